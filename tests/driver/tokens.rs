//! One device in a port, and a host that sends it whatever tokens it is told to: the answers keep to the
//! rules of the bus.

use vm_usb::devices::faulty::{Faulty, Odds};
use vm_usb::devices::hid::{Button, Key, Keyboard, KeyboardHandle, Tablet, TabletHandle};
use vm_usb::devices::hub::{Hub, HubOptions};
use vm_usb::devices::loopback::{Loopback, Pattern};
use vm_usb::devices::printer::{Discard, Printer};
use vm_usb::devices::storage::{RamDisk, Serial, Storage};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{
    EndpointAddress, Function, Outcome, Pid, Speed, Status, Suspension, Toggle, Transfer,
};

/// The devices of the library.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Disk,
    ReadOnlyDisk,
    Keyboard,
    Tablet,
    Loopback,
    Hub,
    Printer,
    BadDay(u64),
}

/// What happens to a device.
#[derive(Clone, Debug)]
pub enum Event {
    Token {
        pid: Pid,
        endpoint: u8,
        max_packet: u16,
        toggle: bool,
        bytes: Vec<u8>,
    },
    /// A transfer as a driver would send it: a known endpoint and its packet size.
    Likely {
        input: bool,
        number: u8,
        len: usize,
        in_step: bool,
    },
    Isochronous {
        input: bool,
        number: u8,
        len: usize,
    },
    Setup([u8; 8]),
    Configure(u8),
    Cancel(u8),
    Suspend(bool),
    Reset,
    Later(u64),
    Type(u8, bool),
    Point(u16, u16, i8),
}

/// A device in a port, and a host that keeps to no rule.
pub struct Rig {
    port: Port,
    host: Host,
    now: Time,
    toggles: [[bool; 16]; 2],
    keys: Option<KeyboardHandle>,
    pointer: Option<TabletHandle>,
}

impl Rig {
    pub fn new(kind: Kind, speed: Speed) -> Self {
        let port = if speed == Speed::High { Port::high_speed_only() } else { Port::classic() };
        let host = if speed == Speed::High { Host::High } else { Host::Classic };
        let (mut keys, mut pointer) = (None, None);
        let disk = || RamDisk::zeroed(16);
        let storage = |disk| Storage::new(disk, Serial::from_name("disk"));
        let device: Box<dyn vm_usb::usb::UsbDevice> = match kind {
            Kind::Disk => Box::new(storage(disk())),
            Kind::ReadOnlyDisk => Box::new(storage(disk().into_read_only())),
            Kind::Keyboard => {
                let keyboard = Keyboard::new(speed);
                keys = Some(keyboard.handle());
                Box::new(keyboard)
            }
            Kind::Tablet => {
                let tablet = Tablet::new(speed);
                pointer = Some(tablet.handle());
                Box::new(tablet)
            }
            Kind::Loopback => Box::new(Loopback::new(Pattern::Mod63)),
            Kind::Hub => Box::new(Hub::new(HubOptions::default()).unwrap()),
            Kind::Printer => Box::new(Printer::new(Discard)),
            Kind::BadDay(seed) => {
                let odds = Odds { nak: 100, stall: 100, error: 200, ..Odds::default() };
                Box::new(Faulty::seeded(Loopback::new(Pattern::Unchecked), seed, odds))
            }
        };
        port.attach(device).map_err(|refused| refused.reason).unwrap();
        Self { port, host, now: Time::ZERO, toggles: [[false; 16]; 2], keys, pointer }
    }

    fn with<R>(&self, action: impl FnOnce(&mut Function) -> R) -> R {
        self.port.link(self.host).with(action).unwrap()
    }

    /// Offers a transfer and checks what any answer must keep to.
    pub fn offer(
        &self,
        pid: Pid,
        endpoint: u8,
        max_packet: u16,
        toggle: Toggle,
        mut buffer: Vec<u8>,
    ) -> Outcome {
        let len = buffer.len();
        let before = buffer.clone();
        let now = self.now;
        let outcome = self.with(|function| {
            let buffer = &mut buffer;
            function.transact(Transfer { pid, endpoint, max_packet, toggle, now, buffer })
        });
        assert!(outcome.bytes <= len, "{outcome:?}");
        if outcome.status != Status::Complete && max_packet != 0 {
            let packet = usize::from(max_packet);
            assert_eq!(outcome.bytes % packet, 0, "whole packets before {:?}", outcome.status);
        }
        match pid {
            Pid::In => assert!(
                buffer[outcome.bytes..] == before[outcome.bytes..] || outcome.bytes == 0,
                "bytes that were not acknowledged arrived"
            ),
            _ => assert!(buffer == before, "the host's bytes were changed"),
        }
        outcome
    }

    /// Offers a transfer to a bulk endpoint with the toggle of its turn.
    pub fn in_step(&mut self, pid: Pid, number: u8, buffer: Vec<u8>) -> Outcome {
        self.likely(pid, number, buffer, true)
    }

    fn likely(&mut self, pid: Pid, number: u8, buffer: Vec<u8>, in_step: bool) -> Outcome {
        let packet = if self.host == Host::High { 512 } else { 64 };
        let (input, number) = (usize::from(pid == Pid::In), usize::from(number));
        let toggle = Toggle::from_bit(self.toggles[input][number] == in_step);
        let len = buffer.len();
        let outcome = self.offer(pid, number as u8, packet, toggle, buffer);
        let flips = outcome.packets(pid, len, packet);
        self.toggles[input][number] ^= flips % 2 == 1;
        outcome
    }

    /// A request without data; the endpoints that it may concern start again.
    pub fn request(&mut self, setup: [u8; 8]) {
        self.offer(Pid::Setup, 0, 64, Toggle::Data0, setup.to_vec());
        self.offer(Pid::In, 0, 64, Toggle::Data1, vec![]);
        self.toggles = Default::default();
    }

    pub fn play(&mut self, event: Event) {
        match event {
            Event::Token { pid, endpoint, max_packet, toggle, bytes } => {
                self.offer(pid, endpoint, max_packet, Toggle::from_bit(toggle), bytes);
            }
            Event::Likely { input, number, len, in_step } => {
                let pid = if input { Pid::In } else { Pid::Out };
                self.likely(pid, number, vec![0; len], in_step);
            }
            Event::Isochronous { input, number, len } => {
                let pid = if input { Pid::In } else { Pid::Out };
                let now = self.now;
                let mut buffer = vec![0; len];
                let outcome = self.with(|function| {
                    let (buffer, toggle) = (&mut buffer, Toggle::Data0);
                    let endpoint = number;
                    let max_packet = 1024;
                    function.isochronous(Transfer {
                        pid,
                        endpoint,
                        max_packet,
                        toggle,
                        now,
                        buffer,
                    })
                });
                assert!(outcome.bytes <= len);
            }
            Event::Setup(bytes) => {
                let outcome = self.offer(Pid::Setup, 0, 64, Toggle::Data0, bytes.to_vec());
                assert_eq!(outcome, Outcome::complete(8), "a SETUP is never refused");
            }
            Event::Configure(value) => {
                self.request([0, 9, value, 0, 0, 0, 0, 0]);
            }
            Event::Cancel(number) => self.with(|function| {
                function.cancel(EndpointAddress::r#in(number));
                function.cancel(EndpointAddress::out(number));
            }),
            Event::Suspend(true) => self.with(|f| f.suspension(Suspension::Suspended)),
            Event::Suspend(false) => self.with(|f| f.suspension(Suspension::Resumed)),
            Event::Reset => {
                let fastest = self.port.link(self.host).fastest();
                self.with(|function| function.bus_reset(fastest));
                self.toggles = Default::default();
            }
            Event::Later(nanos) => self.now = self.now.after_nanos(nanos),
            Event::Type(usage, down) => {
                if let (Some(keys), Some(key)) = (&self.keys, Key::from_usage(usage)) {
                    if down {
                        let _ = keys.press(key);
                    } else {
                        keys.release(key);
                    }
                }
            }
            Event::Point(x, y, up) => {
                if let Some(pointer) = &self.pointer {
                    let _ = pointer.move_to(x, y);
                    let _ = pointer.scroll(up, 0);
                    let _ = pointer.press(Button::Left);
                    pointer.release(Button::Left);
                }
            }
        }
    }

    /// Whatever happened, the device still enumerates.
    pub fn assert_enumerates(&mut self) {
        self.play(Event::Reset);
        self.play(Event::Setup([0x80, 6, 0, 1, 0, 0, 18, 0]));
        let descriptor = self.offer(Pid::In, 0, 64, Toggle::Data1, vec![0; 18]);
        assert_eq!(descriptor, Outcome::complete(18));
    }
}
