//! High-speed isochronous transfers (EHCI 4.7): rules EHCI-ITD.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use vm_usb::ehci::Ehci;
use vm_usb::topology::Port;
use vm_usb::usb::{
    BusError, Configuration, Description, Endpoint, EndpointAddress, Interface, Outcome, Pid,
    SetupPacket, Speeds, Transfer, TransferType, UsbDevice, request,
};

use crate::driver::ehci::{EhciDriver, FRAMES, TERMINATE, cmd, fresh_device, reg, sts};
use crate::driver::host::HostDriver;
use crate::driver::machine::Machine;
use crate::rig::{controller, pattern};

const ACTIVE: u32 = 1 << 31;
const BUFFER_ERROR: u32 = 1 << 30;
const BABBLE: u32 = 1 << 29;
const ERROR: u32 = 1 << 28;
const IOC: u32 = 1 << 15;

/// What the device saw: endpoint, packet size, bytes of an OUT.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    pid: Pid,
    max_packet: u16,
    len: usize,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Script {
    answers: VecDeque<Result<Vec<u8>, BusError>>,
    seen: Vec<Seen>,
}

/// Isochronous endpoints 4 IN and 4 OUT of 3 x 1024 bytes a microframe.
struct Stream {
    description: Description,
    script: Arc<Mutex<Script>>,
}

impl Stream {
    fn new() -> (Self, Arc<Mutex<Script>>) {
        let script = Arc::<Mutex<Script>>::default();
        let endpoint = |address| Endpoint::new(address, TransferType::Isochronous, 0x1400, 1);
        let configuration = Configuration {
            value: 1,
            self_powered: true,
            remote_wakeup: false,
            max_power: 0,
            interfaces: vec![Interface {
                class: [0xff, 0, 0],
                endpoints: vec![
                    endpoint(EndpointAddress::r#in(4)),
                    endpoint(EndpointAddress::out(4)),
                ],
                ..Interface::default()
            }],
        };
        let description = Description {
            vendor: 0x1209,
            product: 2,
            release: 0x100,
            class: [0xff, 0, 0],
            control_packet: 64,
            manufacturer: "vm-usb".into(),
            name: "Stream".into(),
            serial: String::new(),
            speeds: Speeds::High { high: vec![configuration], full: vec![] },
        };
        (Self { description, script: script.clone() }, script)
    }
}

impl UsbDevice for Stream {
    fn description(&self) -> &Description {
        &self.description
    }

    fn configured(&mut self, _value: u8) {}

    fn transfer(&mut self, _endpoint: EndpointAddress, _transfer: &mut Transfer<'_>) -> Outcome {
        Outcome::STALL
    }

    fn isochronous(&mut self, _endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let mut script = self.script.lock().unwrap();
        let mut bytes = vec![0; transfer.buffer.len()];
        let outcome = match transfer.pid {
            Pid::In => match script.answers.pop_front() {
                Some(Ok(data)) => transfer.send(&data),
                Some(Err(error)) => Outcome::failed(0, error),
                None => Outcome::complete(0),
            },
            _ => {
                transfer.buffer.read(0, &mut bytes);
                Outcome::complete(bytes.len())
            }
        };
        script.seen.push(Seen {
            pid: transfer.pid,
            max_packet: transfer.max_packet,
            len: transfer.buffer.len(),
            bytes: if transfer.pid == Pid::Out { bytes } else { vec![] },
        });
        outcome
    }
}

struct Rig {
    driver: EhciDriver,
    script: Arc<Mutex<Script>>,
    itd: u32,
    pages: u32,
}

/// One slot of an iTD.
fn slot(page: u32, offset: u32, len: u32) -> u32 {
    ACTIVE | len << 16 | page << 12 | offset
}

impl Rig {
    /// A configured device and one empty iTD with seven pages, in no frame yet; FRINDEX 0, halted.
    fn new(pid: Pid, max_packet: u32, multi: u32) -> Self {
        Self::with(|ehci| ehci, pid, max_packet, multi)
    }

    fn with(change: impl FnOnce(Ehci) -> Ehci, pid: Pid, max_packet: u32, multi: u32) -> Self {
        let ports = vec![Port::high_speed_only()];
        let (device, script) = Stream::new();
        ports[0].attach(Box::new(device)).unwrap();
        let mut driver = EhciDriver::new(Machine::new(change(controller(&ports))));
        driver.reset_port(0).unwrap();
        let mut device = fresh_device();
        let address = SetupPacket::new(0, request::SET_ADDRESS, 5, 0, 0);
        driver.control(&device, address, &[]).unwrap();
        device.address = 5;
        let configure = SetupPacket::new(0, request::SET_CONFIGURATION, 1, 0, 0);
        driver.control(&device, configure, &[]).unwrap();
        driver.enable(cmd::PERIODIC, sts::PERIODIC);
        driver.sleep_millis(5);
        driver.take_events();
        let command = driver.machine.read32(reg::USBCMD);
        driver.machine.write32(reg::USBCMD, command & !cmd::RUN);
        driver.machine.write32(reg::FRINDEX, 0);
        let itd = driver.machine.alloc(0x60, 32);
        let pages = driver.machine.alloc(7 * 0x1000, 0x1000);
        driver.machine.store(itd, TERMINATE);
        for n in 0..7 {
            let low = match n {
                0 => 4 << 8 | 5,
                1 => u32::from(pid == Pid::In) << 11 | max_packet,
                2 => multi,
                _ => 0,
            };
            driver.machine.store(itd + 0x24 + 4 * n, (pages + 0x1000 * n) | low);
        }
        Self { driver, script, itd, pages }
    }

    fn set_slot(&mut self, n: u32, value: u32) {
        self.driver.machine.store(self.itd + 4 + 4 * n, value);
    }

    fn slot(&self, n: u32) -> u32 {
        self.driver.machine.load(self.itd + 4 + 4 * n)
    }

    fn len(&self, n: u32) -> u32 {
        self.slot(n) >> 16 & 0xfff
    }

    /// Links the iTD into these frames and has the controller run from FRINDEX 0.
    fn go(&mut self, frames: impl IntoIterator<Item = u32>) {
        for frame in frames {
            let at = self.driver.frame_list + 4 * frame;
            self.driver.machine.store(at, self.itd);
        }
        let command = self.driver.machine.read32(reg::USBCMD);
        self.driver.machine.write32(reg::USBCMD, command | cmd::RUN);
    }

    fn microframes(&mut self, count: u64) {
        self.driver.machine.advance_micros(125 * count);
    }

    fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.script.lock().unwrap().seen)
    }

    fn answer(&self, answers: impl IntoIterator<Item = Result<Vec<u8>, BusError>>) {
        self.script.lock().unwrap().answers.extend(answers);
    }
}

#[test]
fn ehci_itd_1_each_slot_in_its_microframe() {
    let mut rig = Rig::new(Pid::Out, 1024, 1);
    let data = pattern(0x7000);
    let pages = rig.pages;
    rig.driver.machine.fill(pages, &data);
    for n in 0..8 {
        rig.set_slot(n, slot(n % 7, 0x10 * n, 100 + n));
    }
    rig.go([0]);
    for n in 0..8u32 {
        let seen = rig.seen();
        assert_eq!(seen.len(), 1, "microframe {n}");
        let start = (n % 7 * 0x1000 + 0x10 * n) as usize;
        assert!(seen[0].bytes == data[start..start + 100 + n as usize]);
        for other in 0..8 {
            let active = rig.slot(other) & ACTIVE != 0;
            assert_eq!(active, other > n, "slot {other} after microframe {n}");
        }
        rig.microframes(1);
    }
}

#[test]
fn ehci_itd_2_inactive_slots_are_left_alone() {
    let mut rig = Rig::new(Pid::In, 1024, 1);
    for n in 0..8 {
        rig.set_slot(n, 0x0123_4567 & !ACTIVE);
    }
    rig.set_slot(1, slot(0, 0, 8));
    rig.set_slot(5, slot(0, 0, 8));
    rig.go([0]);
    let mut when = vec![];
    for n in 0..16 {
        when.extend(rig.seen().iter().map(|_| n));
        rig.microframes(1);
    }
    assert_eq!(when, [1, 5]);
    for n in [0, 2, 3, 4, 6, 7] {
        assert_eq!(rig.slot(n), 0x0123_4567 & !ACTIVE);
    }
}

#[test]
fn ehci_itd_3_up_to_three_packets_in_a_microframe() {
    for (multi, len) in [(3, 3072), (2, 2048), (1, 1024)] {
        let mut rig = Rig::new(Pid::Out, 1024, multi);
        let data = pattern(4096);
        let pages = rig.pages;
        rig.driver.machine.fill(pages, &data);
        rig.set_slot(0, slot(0, 0, len));
        rig.go([0]);
        rig.microframes(1);
        // Three packets of MDATA, MDATA, DATA2 are one offer with the packet size beside it.
        let seen = rig.seen();
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].max_packet, seen[0].len), (1024, len as usize));
        assert!(seen[0].bytes == data[..len as usize]);
    }
}

#[test]
fn ehci_itd_4_the_length_received_is_written_back() {
    let mut rig = Rig::new(Pid::In, 1024, 1);
    rig.answer([Ok(vec![7; 300]), Ok(vec![])]);
    rig.set_slot(0, slot(0, 0, 1024));
    rig.set_slot(1, slot(0, 0x400, 1024));
    rig.go([0]);
    rig.microframes(2);
    assert_eq!(rig.slot(0), 300 << 16);
    assert_eq!(rig.slot(1), 0x400, "nothing to send is no error");
    assert_eq!(rig.driver.machine.bytes(rig.pages, 300), [7; 300]);
}

#[test]
fn ehci_itd_5_a_short_packet_ends_the_microframe() {
    let mut rig = Rig::new(Pid::In, 1024, 3);
    rig.answer([Ok(vec![7; 1500])]);
    rig.set_slot(0, slot(0, 0, 3072));
    rig.go([0]);
    rig.microframes(1);
    assert_eq!(rig.len(0), 1500);
    assert_eq!(rig.seen().len(), 1);
}

#[test]
fn ehci_itd_6_a_transfer_crosses_into_the_next_page() {
    let mut rig = Rig::new(Pid::In, 1024, 1);
    let data = pattern(300);
    rig.answer([Ok(data.clone())]);
    rig.set_slot(0, slot(2, 0xff0, 300));
    rig.go([0]);
    rig.microframes(1);
    let pages = rig.pages;
    assert_eq!(rig.driver.machine.bytes(pages + 0x2ff0, 300), data);
}

#[test]
fn ehci_itd_7_no_answer_is_an_error_without_a_second_try() {
    let mut rig = Rig::new(Pid::In, 1024, 1);
    rig.answer([Err(BusError::Timeout), Ok(vec![1; 8])]);
    rig.set_slot(0, slot(0, 0, 8));
    rig.go([0]);
    rig.microframes(8);
    assert_eq!(rig.seen().len(), 1);
    assert_eq!(rig.slot(0) & (ACTIVE | BUFFER_ERROR | BABBLE | ERROR), ERROR);
    assert_eq!(rig.len(0), 0);
    assert_eq!(rig.driver.take_events(), sts::ERROR);
}

#[test]
fn ehci_itd_8_babble() {
    let mut rig = Rig::new(Pid::In, 64, 1);
    let pages = rig.pages;
    rig.driver.machine.fill(pages, &[0xee; 256]);
    rig.answer([Ok(vec![1; 200])]);
    rig.set_slot(0, slot(0, 0, 40));
    rig.go([0]);
    rig.microframes(2);
    assert_eq!(rig.slot(0) & (ACTIVE | BUFFER_ERROR | BABBLE | ERROR), BABBLE);
    assert_eq!(rig.driver.take_events(), sts::ERROR);
    assert_eq!(rig.driver.machine.bytes(pages + 40, 216), [0xee; 216]);
}

#[test]
fn ehci_itd_9_ioc_of_one_slot() {
    let mut rig = Rig::new(Pid::Out, 1024, 1);
    for n in 0..8 {
        rig.set_slot(n, slot(0, 0, 8) | if n == 3 { IOC } else { 0 });
    }
    rig.go([0]);
    rig.microframes(2);
    assert!(!rig.driver.machine.line);
    rig.microframes(2);
    assert!(rig.driver.machine.line, "after microframe 3");
    assert_eq!(rig.driver.machine.read32(reg::USBSTS) & 0x3f, sts::INT);
    assert_ne!(rig.slot(7) & ACTIVE, 0);
}

#[test]
fn ehci_itd_10_the_frame_index_is_never_ahead_of_the_work() {
    let mut rig = Rig::new(Pid::Out, 64, 1);
    let list = rig.driver.frame_list;
    // An iTD of its own for each of 12 frames, every slot active.
    let mut itds = vec![];
    for frame in 0..12 {
        let itd = rig.driver.machine.alloc(0x60, 32);
        let bytes = rig.driver.machine.bytes(rig.itd, 0x60);
        rig.driver.machine.fill(itd, &bytes);
        for n in 0..8 {
            rig.driver.machine.store(itd + 4 + 4 * n, slot(0, 0, 16));
        }
        rig.driver.machine.store(list + 4 * frame, itd);
        itds.push(itd);
    }
    rig.go([]);
    // The host looks rarely and at odd moments; the guest reads the index all the time.
    for step in [30u64, 999, 125, 1_300, 1, 2_700, 60, 700, 3_000, 10] {
        rig.driver.machine.now = rig.driver.machine.now.after_micros(step);
        let index = rig.driver.machine.read32(reg::FRINDEX);
        for (frame, itd) in itds.iter().enumerate() {
            for n in 0..8 {
                let done = rig.driver.machine.load(itd + 4 + 4 * n) & ACTIVE == 0;
                let due = frame as u32 * 8 + n <= index;
                assert_eq!(done, due, "frame {frame}, slot {n}, index {index}");
            }
        }
    }
    assert_eq!(rig.driver.machine.frames().skipped, 0);
}

#[test]
fn ehci_itd_11_a_slot_that_is_active_again_is_carried_out_again() {
    let mut rig = Rig::new(Pid::Out, 64, 1);
    rig.set_slot(2, slot(0, 0, 16));
    rig.go([3]);
    rig.microframes(40);
    assert_eq!(rig.seen().len(), 1);
    assert_eq!(rig.slot(2) & ACTIVE, 0);
    rig.set_slot(2, slot(0, 0, 16));
    rig.microframes(u64::from(8 * (FRAMES - 10)));
    assert_eq!(rig.seen().len(), 0, "not before the list comes round");
    rig.microframes(80);
    assert_eq!(rig.seen().len(), 1);
}

#[test]
fn ehci_int_12_fewer_bytes_than_asked_for_raise_nothing() {
    let mut rig = Rig::new(Pid::In, 1024, 1);
    rig.answer([Ok(vec![7; 300])]);
    rig.set_slot(0, slot(0, 0, 1024));
    rig.go([0]);
    rig.microframes(8);
    assert_eq!(rig.len(0), 300);
    assert_eq!(rig.driver.take_events(), 0);
}

#[test]
fn ehci_addr64_3_isochronous_pages_have_upper_halves_of_their_own() {
    let mut rig = Rig::new(Pid::In, 1024, 1);
    // Structures in segment 0, data at 4 GiB: without RAM there it is a host system error, so the
    // upper half counts.
    rig.answer([Ok(vec![7; 300])]);
    rig.set_slot(0, slot(3, 0, 300));
    let itd = rig.itd;
    rig.driver.machine.store(itd + 0x40 + 4 * 3, 1);
    rig.go([0]);
    rig.microframes(2);
    let status = rig.driver.machine.read32(reg::USBSTS);
    assert_ne!(status & sts::SYSTEM_ERROR, 0);
    // With 32 bits the dword is not looked at.
    let mut rig = Rig::with(|ehci| ehci.with_64bit_addressing(false), Pid::In, 1024, 1);
    rig.answer([Ok(vec![7; 300])]);
    rig.set_slot(0, slot(3, 0, 300));
    let itd = rig.itd;
    rig.driver.machine.store(itd + 0x40 + 4 * 3, 1);
    rig.go([0]);
    rig.microframes(2);
    assert_eq!(rig.len(0), 300);
}

#[test]
fn bad_slots_end_with_a_buffer_error_and_harm_nobody() {
    let mut rig = Rig::new(Pid::In, 1024, 0);
    rig.answer(vec![Ok(vec![7; 3000]); 8]);
    rig.set_slot(0, slot(7, 0, 100));
    rig.set_slot(1, slot(6, 0xf00, 1024));
    rig.set_slot(2, slot(0, 0, 0xfff));
    rig.go([0]);
    rig.microframes(8);
    assert_eq!(rig.slot(0) & (ACTIVE | BUFFER_ERROR), BUFFER_ERROR, "page select 7");
    assert_eq!(rig.slot(1) & (ACTIVE | BUFFER_ERROR), BUFFER_ERROR, "out of the last page");
    assert_eq!(rig.len(2), 1024, "Multi 0 counts as 1; the length is cut to what fits");
}
