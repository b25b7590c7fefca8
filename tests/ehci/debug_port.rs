//! The debug port (EHCI appendix C): rules EHCI-DBG.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use vm_usb::devices::debug::{DebugConsole, DebugDevice};
use vm_usb::ehci::Ehci;
use vm_usb::pci::Placement;
use vm_usb::topology::Port;
use vm_usb::usb::{BusError, EndpointAddress, Pid, SetupPacket, Speed, Toggle, Wake, request};

use crate::driver::early_console::{EarlyConsole, Trouble, ctrl, pid};
use crate::driver::ehci::{EhciDriver, Td, bulk, cmd, fresh_device, port, reg, token};
use crate::driver::host::{Device, HostDriver};
use crate::driver::machine::Machine;
use crate::driver::scripted::{Answer, Scripted, Seen};
use crate::pci::Pci;
use crate::rig::{ADDRESS, IN1, OUT1, Rig, bare, controller};

/// Where the registers are; `ehci_dbg_1` holds the capability to it.
const AT: u64 = 0xa0;

/// The far end of a console.
#[derive(Clone, Default)]
struct Transcript(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    text: Vec<u8>,
    input: VecDeque<u8>,
    wake: Option<Arc<dyn Wake>>,
}

impl DebugConsole for Transcript {
    fn attached(&mut self, input: Arc<dyn Wake>) {
        self.0.lock().unwrap().wake = Some(input);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap().text.extend(bytes);
    }

    fn read(&mut self, into: &mut [u8]) -> usize {
        let input = &mut self.0.lock().unwrap().input;
        let count = input.len().min(into.len());
        into.iter_mut().zip(input.drain(..count)).for_each(|(to, from)| *to = from);
        count
    }
}

impl Transcript {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().text.clone()).unwrap()
    }

    fn say(&self, bytes: &[u8]) {
        let mut log = self.0.lock().unwrap();
        log.input.extend(bytes);
        let wake = log.wake.clone();
        drop(log);
        wake.unwrap().wake();
    }
}

/// Ports with a debug device in the first.
fn with_debug_device(count: usize) -> (Vec<Port>, Transcript) {
    let ports: Vec<Port> = (0..count).map(|_| Port::shared()).collect();
    let transcript = Transcript::default();
    ports[0].attach(Box::new(DebugDevice::new(transcript.clone()))).unwrap();
    (ports, transcript)
}

impl Rig {
    /// Makes the device of port 0 the debug port's.
    fn claim(&mut self) {
        self.write(AT, ctrl::CLAIM);
        assert_eq!(self.read(AT) & ctrl::CLAIM, ctrl::CLAIM);
    }

    /// One transaction with endpoint `endpoint` of the device at `address`: the control register after
    /// it, and the PID received.
    fn debug(&mut self, address: u8, endpoint: u32, pids: u32, control: u32) -> (u32, u32) {
        self.write(AT + 0x10, u32::from(address) << 8 | endpoint);
        self.write(AT + 0x04, pids);
        self.write(AT, ctrl::CLAIM | control | ctrl::GO);
        let status = self.read(AT);
        assert_ne!(status & ctrl::DONE, 0, "it is done");
        (status, self.read(AT + 0x04) >> 16 & 0xff)
    }

    fn debug_read(&mut self, len: u32) -> (u32, u32) {
        self.debug(ADDRESS, 1, pid::DATA0 << 8 | pid::IN, len)
    }
}

#[test]
fn ehci_dbg_1_the_capability_leads_to_the_registers() {
    let ports: Vec<Port> = (0..15).map(|_| Port::high_speed_only()).collect();
    let mut pci = Pci::running(ports, Placement::default());
    let at = pci.capability(0x0a).expect("a debug port capability");
    let capability = pci.config32(at);
    assert_eq!(capability >> 29, 1, "BAR 0");
    let offset = u64::from(capability >> 16 & 0x1fff);
    assert_eq!(offset, AT);
    assert!(offset.is_multiple_of(4) && offset >= reg::PORTSC + 4 * 15);
    assert!(offset + 0x14 <= u64::from(pci.function.bar_size()));
    assert_eq!(pci.read32(0x04) >> 20 & 0xf, 1, "HCSPARAMS: root port 1");
    assert_eq!(pci.read32(AT), 0);
    assert_eq!(pci.read32(AT + 0x10), 0x7f01, "device 127, endpoint 1");
    for (register, kept) in
        [(AT + 0x04, 0xffff), (AT + 0x08, !0), (AT + 0x0c, !0), (AT + 0x10, 0x7f0f)]
    {
        pci.write32(register, !0);
        assert_eq!(pci.read32(register), kept, "{register:#x}");
    }
    assert!(pci.capability(1).is_some() && pci.capability(5).is_some(), "the list goes on");
}

#[test]
fn without_a_debug_port_nothing_of_it_shows() {
    let ports = vec![Port::high_speed_only()];
    let machine = Machine::new(controller(&ports).with_debug_port(false));
    let mut pci = Pci::around(machine, ports, Placement::default());
    pci.set_config16(4, 6);
    assert_eq!(pci.capability(0x0a), None);
    assert_eq!(pci.read32(0x04) >> 20 & 0xf, 0);
    for register in (AT..AT + 0x14).step_by(4) {
        pci.write32(register, ctrl::OWNER);
        assert_eq!(pci.read32(register), 0);
    }
}

#[test]
fn ehci_dbg_2_only_an_enabled_port_can_be_taken() {
    let mut rig = Rig::new();
    rig.claim();
    rig.write(AT, 0);
    assert_eq!(rig.read(AT) & ctrl::CLAIM, 0, "given back");
    rig.driver.set_port(0, 0, port::ENABLED);
    rig.write(AT, ctrl::CLAIM);
    assert_eq!(rig.read(AT) & ctrl::CLAIM, ctrl::OWNER | ctrl::IN_USE);
}

#[test]
fn a_claim_takes_the_port_from_the_companion_and_switches_its_power_on() {
    let (ports, _) = with_debug_device(2);
    let mut m = Machine::new(controller(&ports));
    assert_eq!(m.read32(reg::PORTSC), port::OWNER);
    m.write32(AT, ctrl::OWNER);
    let connected = port::CONNECT | port::CONNECT_CHANGE | port::POWER;
    assert_eq!(m.read32(reg::PORTSC) & connected, connected, "whatever PO says");
    assert!(!ports[0].link(vm_usb::topology::Host::Classic).view().owned);
    m.write32(AT, 0);
    assert_eq!(m.read32(reg::PORTSC) & port::CONNECT, 0);
    assert!(ports[0].link(vm_usb::topology::Host::Classic).view().owned);
}

#[test]
fn ehci_dbg_3_the_port_need_not_stay_enabled() {
    let mut rig = Rig::new();
    rig.claim();
    rig.driver.set_port(0, 0, port::ENABLED);
    assert_eq!(rig.driver.port(0) & port::ENABLED, 0);
    assert_ne!(rig.read(AT) & ctrl::ENABLED, 0);
    rig.write(AT + 0x08, u32::from_le_bytes(*b"text"));
    let (status, received) = rig.debug(ADDRESS, 1, pid::DATA0 << 8 | pid::OUT, ctrl::WRITE | 4);
    assert_eq!((status & ctrl::ERROR, received), (0, pid::ACK));
    assert_eq!(rig.controls.take_received(OUT1), b"text");
    // Halted or running makes no difference.
    rig.halt();
    let (status, received) = rig.debug(ADDRESS, 1, pid::DATA1 << 8 | pid::OUT, ctrl::WRITE | 4);
    assert_eq!((status & ctrl::ERROR, received), (0, pid::ACK));
    // A device that leaves, or talks past the end of a frame, ends it.
    rig.ports[0].babble();
    rig.driver.machine.run();
    assert_eq!(rig.read(AT) & ctrl::ENABLED, 0);
}

#[test]
fn ehci_dbg_4_setup() {
    let mut rig = Rig::new();
    rig.claim();
    rig.controls.answer_request(&[]);
    let setup = SetupPacket::new(0x40, 0x12, 0x3456, 0x789a, 0);
    rig.write(AT + 0x08, u32::from_le_bytes([0x40, 0x12, 0x56, 0x34]));
    rig.write(AT + 0x0c, u32::from_le_bytes([0x9a, 0x78, 0, 0]));
    let (status, received) = rig.debug(ADDRESS, 0, pid::DATA0 << 8 | pid::SETUP, ctrl::WRITE | 8);
    assert_eq!((status & ctrl::ERROR, received), (0, pid::ACK));
    // The status stage is what carries the request out.
    let (status, received) = rig.debug(ADDRESS, 0, pid::DATA1 << 8 | pid::IN, 0);
    assert_eq!((status & (ctrl::ERROR | 0xf), received), (0, pid::DATA1));
    assert_eq!(rig.controls.take_seen(), [Seen::Request(setup, vec![])]);
}

#[test]
fn ehci_dbg_5_in_with_either_toggle() {
    let mut rig = Rig::new();
    rig.claim();
    rig.controls.answer(IN1, [Answer::Data(vec![1, 2, 3, 4]), Answer::Data((5..13).collect())]);
    let (status, received) = rig.debug_read(4);
    assert_eq!((status & ctrl::ERROR, ctrl::len(status), received), (0, 4, pid::DATA0));
    assert_eq!(rig.read(AT + 0x08), 0x0403_0201);
    let (status, received) = rig.debug_read(8);
    assert_eq!((status & ctrl::ERROR, ctrl::len(status), received), (0, 8, pid::DATA1));
    assert_eq!([rig.read(AT + 0x08), rig.read(AT + 0x0c)], [0x0807_0605, 0x0c0b_0a09]);
    // A packet that is larger than the registers is no packet at all.
    rig.controls.answer(IN1, [Answer::Data(vec![0; 100])]);
    let (status, _) = rig.debug_read(8);
    assert_ne!(status & ctrl::ERROR, 0);
    assert_eq!(ctrl::exception(status), 1);
}

#[test]
fn ehci_dbg_6_a_refusal_is_reported_after_one_attempt() {
    let mut rig = Rig::new();
    rig.claim();
    for answer in [Answer::Nak, Answer::Park, Answer::Pending] {
        rig.controls.answer(IN1, [answer]);
        rig.controls.take_seen();
        let (status, received) = rig.debug_read(8);
        assert_eq!((status & ctrl::ERROR, ctrl::len(status), received), (0, 0, pid::NAK));
        assert_eq!(rig.tokens(), 1);
    }
    rig.controls.answer(IN1, [Answer::Stall]);
    let (status, received) = rig.debug_read(8);
    assert_eq!((status & ctrl::ERROR, received), (0, pid::STALL));
}

#[test]
fn ehci_dbg_7_nobody_answers() {
    let mut rig = Rig::new();
    rig.claim();
    let (status, _) = rig.debug(ADDRESS + 1, 1, pid::DATA0 << 8 | pid::IN, 8);
    assert_ne!(status & ctrl::ERROR, 0);
    assert_eq!(ctrl::exception(status), 1);
    rig.controls.answer(IN1, [Answer::Error(BusError::Crc)]);
    assert_eq!(ctrl::exception(rig.debug_read(8).0), 1);
    // A token that does not fit the direction is for nobody either.
    for (pids, control) in [
        (pid::DATA0 << 8 | pid::IN, ctrl::WRITE),
        (pid::DATA0 << 8 | pid::OUT, 0),
        (pid::ACK << 8 | pid::OUT, ctrl::WRITE),
    ] {
        assert_eq!(ctrl::exception(rig.debug(ADDRESS, 1, pids, control).0), 1);
    }
    // A port that cannot send at all is another matter.
    rig.driver.set_port(0, port::SUSPEND, 0);
    assert_eq!(ctrl::exception(rig.debug_read(8).0), 2);
    rig.ports[0].detach();
    rig.driver.machine.run();
    rig.write(AT, ctrl::GO);
    let status = rig.read(AT);
    assert_ne!(status & (ctrl::DONE | ctrl::ERROR), 0);
    assert_eq!(ctrl::exception(status), 2);
}

#[test]
fn ehci_dbg_8_done_go_and_the_endpoint_byte() {
    let mut rig = Rig::new();
    rig.claim();
    rig.controls.answer(IN1, [Answer::Data(vec![7])]);
    let (status, _) = rig.debug(ADDRESS, 0x81, pid::DATA0 << 8 | pid::IN, 8);
    assert_eq!((status & (ctrl::GO | ctrl::ERROR), ctrl::len(status)), (0, 1));
    rig.write(AT, ctrl::CLAIM);
    assert_ne!(rig.read(AT) & ctrl::DONE, 0, "a zero leaves it");
    rig.write(AT, ctrl::CLAIM | ctrl::DONE);
    assert_eq!(rig.read(AT) & ctrl::DONE, 0);
    assert_eq!(rig.tokens(), 1, "nothing was sent again");
    rig.write(AT, ctrl::CLAIM | ctrl::WRITE | 0xf);
    assert_eq!(ctrl::len(rig.read(AT)), 8, "there are eight bytes");
}

#[test]
fn the_schedules_do_not_reach_a_device_that_is_being_debugged() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(64);
    let mut queue = rig.open(OUT1, 0);
    rig.claim();
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
    rig.driver.machine.advance_millis(2);
    assert_eq!(rig.tokens(), 0);
    assert_ne!(rig.token(qtd) & token::ERROR, 0, "nobody answers");
}

/// Text that is no multiple of eight bytes long, and as it has to arrive.
const LOG: &str =
    "Linux version 6.1\nCommand line: earlyprintk=dbgp\nBIOS-provided physical RAM map:\n";

fn arrived(text: &str) -> String {
    text.replace('\n', "\r\n")
}

#[test]
fn ehci_dbg_9_an_early_console_finds_its_device_and_prints() {
    let (ports, transcript) = with_debug_device(3);
    let mut pci = Pci::new(ports, Placement { multi_function: true, ..Placement::default() });
    pci.set_config16(4, 2);
    let capability = pci.capability(0x0a).unwrap();
    let offset = u64::from(pci.config32(capability) >> 16 & 0xfff);
    let mut console = EarlyConsole::new(offset);
    console.start(&mut pci).unwrap();
    for line in LOG.split_inclusive('\n') {
        console.print(&mut pci, line);
    }
    assert_eq!(transcript.text(), format!(" {}", arrived(LOG)));
    // A debugger's questions come the other way.
    assert_eq!(console.read(&mut pci), b"");
    transcript.say(b"$g#67 and more");
    assert_eq!(console.read(&mut pci), b"$g#67 an");
    assert_eq!(console.read(&mut pci), b"d more");
}

#[test]
fn ehci_dbg_9_without_a_device_the_console_gives_up() {
    let (mut m, ports) = bare(2);
    let mut console = EarlyConsole::new(AT);
    assert_eq!(console.start(&mut m), Err(Trouble::NotConnected));
    // Nor is any other device taken for one.
    let (scripted, _) = Scripted::new(Speed::High);
    ports[0].attach(Box::new(scripted)).unwrap();
    assert_eq!(console.start(&mut m), Err(Trouble::NoDebugDevice));
}

/// A driver has just set the controller up; the debug device is enumerated as any other.
fn enumerate(driver: &mut EhciDriver) -> Device {
    assert_eq!(driver.reset_port(0), Some(Speed::High));
    let set_address = SetupPacket::new(0, request::SET_ADDRESS, 9, 0, 0);
    driver.control(&fresh_device(), set_address, &[]).unwrap();
    let device = Device { address: 9, ..fresh_device() };
    let configure = SetupPacket::new(0, request::SET_CONFIGURATION, 1, 0, 0);
    driver.control(&device, configure, &[]).unwrap();
    device
}

#[test]
fn ehci_dbg_9_the_driver_takes_the_device_over() {
    let (ports, transcript) = with_debug_device(2);
    let mut machine = Machine::new(controller(&ports));
    let mut console = EarlyConsole::new(AT);
    console.start(&mut machine).unwrap();
    console.print(&mut machine, LOG);
    console.let_go(&mut machine);
    assert_eq!(machine.read32(AT) & ctrl::CLAIM, 0);
    let mut driver = EhciDriver::new(machine);
    let device = enumerate(&mut driver);
    driver.send(&bulk(device, EndpointAddress::out(1), 8), b"a driver's console, now\r\n").unwrap();
    assert_eq!(transcript.text(), format!(" {}a driver's console, now\r\n", arrived(LOG)));
    // What the far end says wakes a waiting transfer.
    transcript.say(b"login: root\n");
    let input = bulk(device, EndpointAddress::r#in(2), 8);
    assert_eq!(driver.receive(&input, 64).unwrap(), b"login: root\n");
}

#[test]
fn ehci_dbg_9_a_console_that_is_kept_prints_beside_the_driver() {
    let (ports, transcript) = with_debug_device(2);
    let (scripted, controls) = Scripted::new(Speed::High);
    ports[1].attach(Box::new(scripted)).unwrap();
    let mut machine = Machine::new(controller(&ports));
    let mut console = EarlyConsole::new(AT);
    console.start(&mut machine).unwrap();
    console.print(&mut machine, LOG);
    // The driver resets the controller, and has the console start again before it goes on.
    machine.write32(reg::USBCMD, cmd::RESET);
    assert_eq!(machine.read32(AT) & ctrl::CLAIM, 0, "nothing of a claim outlives that");
    let mut driver = EhciDriver::new(machine);
    console.external_start(&mut driver.machine).unwrap();
    driver.service();
    // The root hub's other port is the driver's.
    assert_eq!(driver.reset_port(1), Some(Speed::High));
    let set_address = SetupPacket::new(0, request::SET_ADDRESS, ADDRESS.into(), 0, 0);
    driver.control(&fresh_device(), set_address, &[]).unwrap();
    let device = Device { address: ADDRESS, ..fresh_device() };
    let configure = SetupPacket::new(0, request::SET_CONFIGURATION, 1, 0, 0);
    driver.control(&device, configure, &[]).unwrap();
    let out = bulk(device, OUT1, 512);
    let mut expected = format!(" {}", arrived(LOG));
    for n in 0..20u8 {
        let line = format!("usb 1-2: transfer {n}\n");
        console.print(&mut driver.machine, &line);
        driver.send(&out, &[n; 700]).unwrap();
        assert_eq!(controls.take_received(OUT1), [n; 700]);
        expected += &arrived(&line);
    }
    // The space that brings the toggles together is dropped if they differ, as after this restart.
    let text = transcript.text();
    let without_space = text.replacen("map:\r\n ", "map:\r\n", 1);
    assert_eq!(without_space, expected);
}

#[test]
fn ehci_dbg_9_a_console_prints_while_the_controller_is_halted() {
    let (ports, transcript) = with_debug_device(1);
    let mut machine = Machine::new(controller(&ports));
    let mut console = EarlyConsole::new(AT);
    console.start(&mut machine).unwrap();
    let command = machine.read32(reg::USBCMD);
    machine.write32(reg::USBCMD, command & !cmd::RUN);
    console.print(&mut machine, "suspending\n");
    assert_eq!(machine.read32(reg::USBCMD) & cmd::RUN, 0);
    // And if somebody has reset it, the console starts again.
    machine.write32(reg::USBCMD, cmd::RESET);
    console.print(&mut machine, "resuming\n");
    let text = transcript.text();
    assert!(text.starts_with(" suspending\r\n") && text.ends_with("resuming\r\n"), "{text:?}");
}

#[test]
fn a_storm_of_transactions_does_no_more_than_each_asks_for() {
    let mut rig = Rig::new();
    rig.claim();
    for n in 0..1_000u32 {
        rig.debug(ADDRESS, n & 0xf, n.wrapping_mul(0x0101_2345), n & 0x1f);
    }
    rig.write(reg::USBCMD, cmd::RESET);
    assert_eq!(rig.read(AT), 0);
    let seen = rig.packets();
    assert!(seen.len() <= 1_000);
    assert!(seen.iter().all(|p| p.len <= 8 && matches!(p.toggle, Toggle::Data0 | Toggle::Data1)));
}

/// `Ehci` keeps its debug port over everything but what takes it away.
#[test]
fn a_power_on_reset_forgets_the_claim() {
    let (ports, _) = with_debug_device(1);
    let mut machine: Machine<Ehci> = Machine::new(controller(&ports));
    EarlyConsole::new(AT).start(&mut machine).unwrap();
    machine.reset();
    assert_eq!([machine.read32(AT), machine.read32(reg::PORTSC)], [0, port::OWNER]);
}
