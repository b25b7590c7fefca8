//! What an embedder can see: statistics of endpoints and functions, and an observer's view.

mod driver;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driver::direct::DirectHost;
use driver::ehci::EhciDriver;
use driver::enumerate::enumerate;
use driver::host::{Device, HostDriver, Pipe, TransferError};
use driver::machine::Machine;
use driver::mass_storage::MassStorage;
use driver::ohci::OhciDriver;
use driver::scripted::{Answer, Controls, Scripted};
use vm_usb::controller::Frames;
use vm_usb::devices::storage::{RamDisk, Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{
    BusError, EndpointAddress, EndpointStatistics, Observer, Outcome, Pid, Sight, Speed, Status,
    TransferType, UsbDevice,
};

const OUT1: EndpointAddress = EndpointAddress::out(1);
const IN1: EndpointAddress = EndpointAddress::r#in(1);
const IN3: EndpointAddress = EndpointAddress::r#in(3);

/// A driver that has enumerated a device in the only port of a full-speed controller.
struct Rig {
    driver: OhciDriver,
    controls: Controls,
    port: Port,
    device: Device,
}

impl Rig {
    fn new() -> Self {
        let (device, controls) = Scripted::new(Speed::Full);
        let (mut driver, port) = on_ohci(device);
        let device = enumerate(&mut driver, 0, 7).unwrap().device;
        Self { driver, controls, port, device }
    }

    fn pipe(&self, endpoint: EndpointAddress) -> Pipe {
        Pipe { device: self.device, endpoint, max_packet: 64, interval: 1 }
    }

    fn endpoint(&self, endpoint: EndpointAddress) -> EndpointStatistics {
        of(&self.port, endpoint)
    }
}

fn on_ohci(device: impl UsbDevice + 'static) -> (OhciDriver, Port) {
    let port = Port::classic();
    port.attach(Box::new(device)).map_err(|refused| refused.reason).unwrap();
    (OhciDriver::new(Ohci::new(vec![port.link(Host::Classic)])), port)
}

fn of(port: &Port, endpoint: EndpointAddress) -> EndpointStatistics {
    let device = port.statistics().expect("a device is plugged in");
    device.endpoints.into_iter().find(|e| e.endpoint == endpoint).expect("it has the endpoint")
}

#[test]
fn an_empty_port_has_no_statistics_and_a_new_device_has_only_endpoint_0() {
    let port = Port::classic();
    assert_eq!(port.statistics(), None);
    port.attach(Box::new(Scripted::new(Speed::Full).0)).unwrap();
    let device = port.statistics().unwrap();
    assert_eq!((&*device.name, device.address, device.configuration), ("Scripted", 0, 0));
    let [control] = &device.endpoints[..] else { panic!("{device:?}") };
    assert_eq!(control.transfer_type, TransferType::Control);
    assert_eq!(control.transfers, 0);
}

#[test]
fn a_configured_device_shows_every_endpoint_and_what_enumeration_took() {
    let rig = Rig::new();
    let device = rig.port.statistics().unwrap();
    assert_eq!((device.address, device.configuration, device.speed), (7, 1, Speed::Full));
    let kinds: Vec<_> =
        device.endpoints.iter().map(|e| (e.endpoint.byte(), e.transfer_type)).collect();
    use TransferType::{Bulk, Control, Interrupt};
    assert_eq!(
        kinds,
        [
            (0x00, Control),
            (0x01, Bulk),
            (0x02, Bulk),
            (0x03, Interrupt),
            (0x81, Bulk),
            (0x82, Bulk),
            (0x83, Interrupt)
        ]
    );
    let control = &device.endpoints[0];
    // SET_ADDRESS and SET_CONFIGURATION have two stages, the reads of descriptors three.
    assert!(control.transfers >= 2 * 2 + 3 * 3, "{control:?}");
    assert!(control.bytes >= 18 + 9, "descriptors went over: {control:?}");
    assert_eq!(control.latency.count(), control.transfers + control.stalls);
}

#[test]
fn transfers_bytes_naks_stalls_and_errors_are_counted_at_their_endpoint() {
    let mut rig = Rig::new();
    let (to, from) = (rig.pipe(OUT1), rig.pipe(IN1));
    rig.driver.send(&to, &[7; 1000]).unwrap();
    rig.driver.send(&to, &[7; 10]).unwrap();
    let sent = rig.endpoint(OUT1);
    // The driver makes a TD of each packet.
    assert_eq!((sent.transfers, sent.bytes, sent.naks, sent.errors), (16 + 1, 1010, 0, 0));

    rig.controls.answer(IN1, [Answer::Nak, Answer::Nak, Answer::Data(vec![1; 100])]);
    assert_eq!(rig.driver.receive(&from, 512).unwrap().len(), 100);
    let timeouts = vec![Answer::Error(BusError::Timeout); 3];
    rig.controls.answer(IN1, timeouts);
    assert_eq!(rig.driver.receive(&from, 512), Err(TransferError::NoAnswer));
    rig.controls.answer(IN1, [Answer::Stall]);
    assert_eq!(rig.driver.receive(&from, 512), Err(TransferError::Stall));
    let got = rig.endpoint(IN1);
    assert_eq!((got.transfers, got.bytes, got.naks), (1, 100, 2));
    assert_eq!((got.errors, got.stalls), (3, 1));
    assert_eq!(got.latency.count(), 5, "each that ended, however it did");
    assert_eq!(rig.endpoint(OUT1), sent, "the other endpoint had no part in it");
}

#[test]
fn a_parked_endpoint_counts_one_nak_and_no_latency() {
    let mut rig = Rig::new();
    let keys = rig.pipe(IN3);
    rig.controls.answer(IN3, [Answer::Park]);
    assert_eq!(rig.driver.poll(&keys, 8, 500), Err(TransferError::TimedOut));
    let parked = rig.endpoint(IN3);
    assert_eq!((parked.naks, parked.transfers, parked.latency.count()), (1, 0, 0));
    rig.controls.answer(IN3, [Answer::Data(vec![4; 8])]);
    rig.controls.announce(IN3);
    assert_eq!(rig.driver.poll(&keys, 8, 500).unwrap(), [4; 8]);
    let latency = rig.endpoint(IN3).latency;
    assert_eq!((latency.count(), latency.longest()), (1, Duration::ZERO), "it was quiet, not slow");
}

#[test]
fn latency_is_the_time_a_device_had_a_transfer() {
    let (device, controls) = Scripted::new(Speed::High);
    let mut host = DirectHost::new(Speed::High, device);
    let device = enumerate(&mut host, 0, 3).unwrap().device;
    let from = Pipe { device, endpoint: IN1, max_packet: 512, interval: 0 };
    controls.answer(IN1, [Answer::Pending, Answer::Pending, Answer::Data(vec![1; 512])]);
    let mut room = vec![0; 512];
    assert_eq!(host.transact(&from, Pid::In, &mut room), Outcome::PENDING);
    host.now = host.now.after_millis(2);
    assert_eq!(host.transact(&from, Pid::In, &mut room), Outcome::PENDING);
    host.now = host.now.after_millis(1);
    assert_eq!(host.transact(&from, Pid::In, &mut room), Outcome::complete(512));
    let statistics = of(&host.port, IN1);
    assert_eq!(statistics.pending, 2);
    assert_eq!(statistics.latency.longest(), Duration::from_millis(3));

    // What the host gives up is not part of the next transfer's time.
    controls.answer(IN1, [Answer::Pending, Answer::Data(vec![1; 512])]);
    host.transact(&from, Pid::In, &mut room);
    host.link.with(|function| function.cancel(IN1));
    host.now = host.now.after_millis(1000);
    host.transact(&from, Pid::In, &mut room);
    assert_eq!(of(&host.port, IN1).latency.longest(), Duration::from_millis(3));
}

#[test]
fn a_disk_read_shows_the_same_bytes_on_either_controller() {
    let disk = || Storage::new(RamDisk::zeroed(256), Serial::from_name("disk"));
    let (ohci, classic) = on_ohci(disk());
    let high = Port::high_speed_only();
    high.attach(Box::new(disk())).unwrap();
    let ehci = EhciDriver::new(Machine::new(Ehci::new(vec![high.link(Host::High)])));
    let hosts: [(Box<dyn HostDriver>, Port); 2] =
        [(Box::new(ohci), classic), (Box::new(ehci), high)];
    for (mut host, port) in hosts {
        let found = enumerate(&mut *host, 0, 7).unwrap();
        let mut driver = MassStorage::bind(&found).unwrap();
        driver.start(&mut *host).unwrap();
        let total = || -> (u64, u64) {
            let device = port.statistics().unwrap();
            let sum = |wanted: bool| {
                let data = device.endpoints.iter().filter(|e| e.endpoint.number() != 0);
                data.filter(|e| e.endpoint.is_in() == wanted).map(|e| e.bytes).sum()
            };
            (sum(false), sum(true))
        };
        let before = total();
        driver.read(&mut *host, 0, 256 * 512, 512).unwrap();
        let (out, read) = total();
        let commands = (out - before.0) / 31;
        assert_eq!((out - before.0) % 31, 0, "command wrappers");
        assert_eq!(read - before.1, 256 * 512 + commands * 13, "data and status wrappers");
    }
}

#[test]
fn controllers_count_the_frames_they_run_and_those_they_skip() {
    let mut rig = Rig::new();
    let before = rig.driver.machine.frames();
    rig.driver.sleep_millis(1000);
    let after = rig.driver.machine.frames();
    let passed = Frames { run: after.run - before.run, skipped: after.skipped - before.skipped };
    assert_eq!(passed.run + passed.skipped, 1000, "every frame is one or the other");
    assert!(passed.skipped > 0, "nothing was to be done in most");
}

/// Notes what it sees, and has a clock that ticks a microsecond a look.
#[derive(Default)]
struct Notes {
    clock: AtomicU64,
    lines: Mutex<Vec<String>>,
}

impl Notes {
    fn add(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

fn bytes(sight: &Sight<'_>, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    sight.buffer.read(0, &mut bytes);
    bytes
}

impl Observer for Notes {
    fn now(&self, _: Time) -> Time {
        Time::from_nanos(1000 * self.clock.fetch_add(1, Ordering::Relaxed))
    }

    fn offered(&self, sight: &Sight<'_>) {
        let Sight { address, pid, endpoint, .. } = sight;
        let sent = match pid {
            Pid::In => String::new(),
            _ => format!(" {:02x?}", bytes(sight, sight.buffer.len().min(8))),
        };
        self.add(format!("{address} {endpoint} {pid:?} of {}{sent}", sight.buffer.len()));
    }

    fn answered(&self, sight: &Sight<'_>, outcome: &Outcome) {
        let got = match sight.pid {
            Pid::In => format!(" {:02x?}", bytes(sight, outcome.bytes.min(4))),
            _ => String::new(),
        };
        let line = match outcome.status {
            Status::Complete => format!("-> {}{got}", outcome.bytes),
            other => format!("-> {other:?}"),
        };
        self.add(line);
    }

    fn cancelled(&self, address: u8, endpoint: EndpointAddress) {
        self.add(format!("{address} {endpoint} cancelled"));
    }
}

#[test]
fn an_observer_sees_every_stage_its_data_and_its_outcome() {
    let notes = Arc::new(Notes::default());
    let (device, controls) = Scripted::new(Speed::High);
    let mut host = DirectHost::new(Speed::High, device);
    let found = enumerate(&mut host, 0, 3).unwrap().device;
    host.port.set_observer(Some(notes.clone()));
    let descriptor = vm_usb::usb::SetupPacket::new(0x80, 6, 0x0100, 0, 18);
    host.control(&found, descriptor, &[]).unwrap();
    assert_eq!(
        notes.take(),
        [
            "3 endpoint 0 Setup of 8 [80, 06, 00, 01, 00, 00, 12, 00]",
            "-> 8",
            "3 endpoint 0 In of 18",
            "-> 18 [12, 01, 00, 02]",
            "3 endpoint 0 Out of 0 []",
            "-> 0",
        ]
    );
    let from = Pipe { device: found, endpoint: IN1, max_packet: 512, interval: 0 };
    controls.answer(IN1, [Answer::Pending, Answer::Park, Answer::Stall]);
    let mut room = vec![0; 512];
    host.transact(&from, Pid::In, &mut room);
    host.link.with(|function| function.cancel(IN1));
    host.transact(&from, Pid::In, &mut room);
    host.transact(&from, Pid::In, &mut room);
    assert_eq!(
        notes.take(),
        [
            "3 endpoint 1 IN In of 512",
            "-> Pending",
            "3 endpoint 1 IN cancelled",
            "3 endpoint 1 IN In of 512",
            "-> Nak(Announced)",
            "3 endpoint 1 IN In of 512",
            "-> Stall",
        ]
    );

    host.port.set_observer(None);
    host.transact(&from, Pid::In, &mut room);
    assert_eq!(notes.take(), <[String; 0]>::default());
}

#[test]
fn an_observer_stays_with_the_port_and_its_clock_sees_into_calls() {
    let notes = Arc::new(Notes::default());
    let port = Port::high_speed_only();
    port.set_observer(Some(notes.clone()));
    port.attach(Box::new(Scripted::new(Speed::High).0)).unwrap();
    let device = port.detach().unwrap();
    port.attach(device).unwrap();
    let ehci = Ehci::new(vec![port.link(Host::High)]);
    let mut driver = EhciDriver::new(Machine::new(ehci));
    enumerate(&mut driver, 0, 9).unwrap();
    assert!(!notes.take().is_empty());
    let control = of(&port, EndpointAddress::CONTROL);
    assert_eq!(
        control.latency.longest(),
        Duration::from_micros(1),
        "one tick from offer to answer"
    );
    assert!(control.latency.percentile(50) > Duration::ZERO);
}
