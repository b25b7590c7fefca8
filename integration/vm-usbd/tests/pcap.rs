//! A capture as other programs read it.

#[path = "../../../tests/driver/mod.rs"]
mod driver;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use driver::ehci::EhciDriver;
use driver::enumerate::enumerate;
use driver::hid::HidDriver;
use driver::host::HostDriver;
use driver::machine::Machine;
use driver::mass_storage::MassStorage;
use driver::ohci::OhciDriver;
use vm_usb::devices::hid::{Key, Keyboard};
use vm_usb::devices::storage::{RamDisk, Serial, Storage, Transports};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::Speed;
use vm_usbd::pcap::Capture;
use vm_usbd::pcap::spool::Limits;

const BLOCK: usize = 512;

/// A capture of drivers at work, removed with the test.
struct Captured(PathBuf);

impl Drop for Captured {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A disk and a keyboard on each of two buses: they are enumerated, the disk is read and written, a
/// key is pressed.
fn captured(name: &str) -> Captured {
    let path = std::env::temp_dir().join(format!("vm-usbd-{}-{name}.pcap", std::process::id()));
    let limits = Limits { data: 65_536, file: 1 << 30 };
    let capture = Capture::create(&path, limits).unwrap();
    capture.start().unwrap();
    let captured = Captured(path);
    for speed in [Speed::High, Speed::Full] {
        let ports = match speed {
            Speed::High => [Port::high_speed_only(), Port::high_speed_only()],
            _ => [Port::classic(), Port::classic()],
        };
        let observer = capture.observer(if speed == Speed::High { 1 } else { 2 });
        for port in &ports {
            port.set_observer(Some(observer.clone()));
        }
        let keyboard = Keyboard::new(speed);
        let keys = keyboard.handle();
        // tshark takes the last alternate setting that describes an endpoint for the one in use.
        let (medium, serial) = (RamDisk::zeroed(2048), Serial::from_name("disk"));
        let disk = Storage::with_transports(medium, serial, Transports::BulkOnly);
        ports[0].attach(Box::new(disk)).unwrap();
        ports[1].attach(Box::new(keyboard)).unwrap();
        let links = |host| ports.iter().map(|port| port.link(host)).collect();
        let mut host: Box<dyn HostDriver> = match speed {
            Speed::High => Box::new(EhciDriver::new(Machine::new(Ehci::new(links(Host::High))))),
            _ => Box::new(OhciDriver::new(Ohci::new(links(Host::Classic)))),
        };
        let host = &mut *host;
        let found = enumerate(host, 0, 1).unwrap();
        let mut disk = MassStorage::bind(&found).unwrap();
        disk.start(host).unwrap();
        disk.capacity(host).unwrap();
        disk.write(host, 7, &[0xa5; 8 * BLOCK], BLOCK).unwrap();
        disk.read(host, 0, 64 * BLOCK, BLOCK).unwrap();
        let found = enumerate(host, 1, 2).unwrap();
        let driver = HidDriver::bind(&found).unwrap();
        driver.set_idle(host, 0).unwrap();
        driver.report_descriptor(host).unwrap();
        let key: Key = "a".parse().unwrap();
        keys.press(key).unwrap();
        assert_eq!(driver.report(host, 100).unwrap()[2], key.usage());
        keys.release(key);
        driver.report(host, 100).unwrap();
    }
    capture.finish();
    assert_eq!(capture.progress().lost, 0);
    captured
}

#[test]
fn every_transfer_that_begins_ends_and_the_file_is_whole() {
    let captured = captured("whole");
    let file = fs::read(&captured.0).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_c3d4, 220));
    let mut begun: HashMap<u64, [u8; 4]> = HashMap::new();
    let mut at = 24;
    let (mut events, mut last) = (0, 0);
    while at < file.len() {
        let time = u64::from(word(at)) * 1_000_000 + u64::from(word(at + 4));
        assert!(time >= last, "time goes on");
        last = time;
        let captured = word(at + 8) as usize;
        let event = &file[at + 16..at + 16 + captured];
        let id = u64::from_le_bytes(event[..8].try_into().unwrap());
        let subject = [event[9], event[10], event[11], event[12]];
        match event[8] {
            b'S' => assert_eq!(begun.insert(id, subject), None, "an id of its own"),
            b'C' => assert_eq!(begun.remove(&id), Some(subject), "ends what began"),
            other => panic!("an event of kind {other}"),
        }
        events += 1;
        at += 16 + captured;
    }
    assert_eq!(at, file.len());
    assert!(begun.is_empty(), "nothing was left open: {begun:?}");
    assert!(events > 200, "{events} events");
}

/// What tshark says of the packets that `filter` lets through: a line each, or all there is to say.
fn tshark(captured: &Captured, filter: &str, whole: bool) -> Vec<String> {
    let output = Command::new("tshark")
        .args(["-n", "-r"])
        .arg(&captured.0)
        .args(["-Y", filter])
        .args(whole.then_some("-V"))
        .output()
        .expect("tshark is in the path");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A line for each `words`, which it has all of.
fn assert_shows(lines: &[String], words: &[&str]) {
    let found = lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(found, "{words:?} in\n{}", lines.join("\n"));
}

#[test]
#[ignore = "needs tshark; `cargo xtask test` runs it where that is installed"]
fn tshark_dissects_descriptors_scsi_commands_and_key_presses() {
    let captured = captured("tshark");
    assert_eq!(tshark(&captured, "_ws.malformed", false), <[String; 0]>::default());
    for bus in [1, 2] {
        let lines = tshark(&captured, &format!("usb.bus_id == {bus}"), false);
        println!("{}", lines.join("\n"));
        for words in [
            ["host → ", "GET DESCRIPTOR Request DEVICE"],
            [" → host", "GET DESCRIPTOR Response DEVICE"],
            [" → host", "GET DESCRIPTOR Response CONFIGURATION"],
            ["USBMS", "SCSI: Data In LUN: 0x00 (Request Sense Response Data)"],
            ["USBMS", "SCSI: Read Capacity(10)"],
            ["USBMS", "SCSI: Write(10) LUN: 0x00 (LBA: 0x00000007, Len: 8)"],
            ["USBMS", "SCSI: Response LUN: 0x00 (Read(10)) (Good)"],
            ["USBHID", "SET_IDLE Request"],
            ["USBHID", "GET DESCRIPTOR Response HID Report"],
        ] {
            assert_shows(&lines, &words);
        }
        let reports = tshark(&captured, &format!("usb.bus_id == {bus} && usbhid.data"), true);
        assert_shows(&reports, &["HID Data: 0000040000000000"]);
        assert_shows(&reports, &["Usage: Keyboard a and A"]);
        let devices = tshark(&captured, &format!("usb.bus_id == {bus} && usb.idVendor"), true);
        assert_shows(&devices, &["idVendor", "0x1209"]);
    }
}
