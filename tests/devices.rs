//! The devices behind each host controller: one story, told on every bus.

mod driver;

use std::fmt::Debug;

use driver::direct::DirectHost;
use driver::ehci::EhciDriver;
use driver::enumerate::{Enumerated, device_request, enumerate};
use driver::hid::HidDriver;
use driver::host::{HostDriver, Pipe, TransferError};
use driver::machine::Machine;
use driver::mass_storage::{CommandStatus, Data, DiskError, MassStorage, Sense, ten};
use driver::ohci::OhciDriver;
use driver::uas::{Answer, Uas};
use vm_usb::devices::faulty::{Faulty, Odds};
use vm_usb::devices::hid::{Button, Key, Keyboard, Tablet};
use vm_usb::devices::loopback::{Loopback, Pattern};
use vm_usb::devices::storage::{BlockSize, RamDisk, Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{SetupPacket, Speed, UsbDevice, request};

const BLOCK: usize = 512;

/// A way to reach a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bus {
    Ohci,
    Ehci,
    /// No controller, at full and at high speed.
    Direct(Speed),
}

const BUSES: [Bus; 4] = [Bus::Ohci, Bus::Ehci, Bus::Direct(Speed::Full), Bus::Direct(Speed::High)];

impl Bus {
    fn speed(self) -> Speed {
        match self {
            Self::Ohci => Speed::Full,
            Self::Ehci => Speed::High,
            Self::Direct(speed) => speed,
        }
    }

    /// A driver with the device in its first port.
    fn plug(self, device: impl UsbDevice + 'static) -> Box<dyn HostDriver> {
        let attach = |port: Port, device| {
            port.attach(Box::new(device)).map_err(|refused| refused.reason).unwrap();
            port
        };
        match self {
            Self::Ohci => {
                let port = attach(Port::classic(), device);
                Box::new(OhciDriver::new(Ohci::new(vec![port.link(Host::Classic)])))
            }
            Self::Ehci => {
                let port = attach(Port::high_speed_only(), device);
                let ehci = Ehci::new(vec![port.link(Host::High)]);
                Box::new(EhciDriver::new(Machine::new(ehci)))
            }
            Self::Direct(speed) => Box::new(DirectHost::new(speed, device)),
        }
    }

    fn start(self, device: impl UsbDevice + 'static) -> (Box<dyn HostDriver>, Enumerated) {
        let mut host = self.plug(device);
        let enumerated = enumerate(&mut *host, 0, 7);
        let enumerated = enumerated.unwrap_or_else(|error| panic!("{self:?}: {error:?}"));
        assert_eq!(enumerated.device.speed, self.speed(), "{self:?}");
        (host, enumerated)
    }
}

/// `result`, or the bus on which it failed.
fn good<T, E: Debug>(bus: Bus, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{bus:?}: {error:?}"))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at / 512 * 7 + at) as u8).collect()
}

#[test]
fn a_disk_is_read_and_written() {
    for bus in BUSES {
        let disk = RamDisk::new(pattern(256 * BLOCK), BlockSize::B512);
        let (mut host, enumerated) =
            bus.start(Storage::new(disk.clone(), Serial::from_name("disk")));
        let host = &mut *host;
        let mut driver = MassStorage::bind(&enumerated).unwrap();
        good(bus, driver.start(host));
        assert_eq!(good(bus, driver.capacity(host)), (256, 512));
        let mut expected = pattern(256 * BLOCK);
        assert!(good(bus, driver.read(host, 0, 256 * BLOCK, BLOCK)) == expected, "{bus:?}");
        for (lba, blocks) in [(0, 1), (255, 1), (7, 9), (100, 150)] {
            let data: Vec<_> = (0..blocks * BLOCK).map(|at| (at * 13 / 5) as u8).collect();
            good(bus, driver.write(host, lba as u32, &data, BLOCK));
            expected[lba * BLOCK..][..data.len()].copy_from_slice(&data);
            assert!(disk.contents() == expected, "{bus:?}: {lba}+{blocks}");
        }
        assert!(good(bus, driver.read(host, 0, 256 * BLOCK, BLOCK)) == expected, "{bus:?}");
    }
}

#[test]
fn a_disk_is_read_and_written_over_uas() {
    for bus in BUSES {
        let disk = RamDisk::new(pattern(256 * BLOCK), BlockSize::B512);
        let (mut host, enumerated) =
            bus.start(Storage::new(disk.clone(), Serial::from_name("disk")));
        let host = &mut *host;
        let mut driver = good(bus, Uas::bind(host, &enumerated)).unwrap();
        good(bus, driver.start(host));
        let mut expected = pattern(256 * BLOCK);
        for (lba, blocks) in [(0, 1), (255, 1), (7, 9), (100, 150)] {
            let data: Vec<_> = (0..blocks * BLOCK).map(|at| (at * 13 / 5) as u8).collect();
            good(bus, driver.scsi(host, &ten(0x2a, lba as u32, blocks), Data::Out(&data)));
            expected[lba * BLOCK..][..data.len()].copy_from_slice(&data);
        }
        assert!(disk.contents() == expected, "{bus:?}");
        // Two reads and what does not fit their room, queued before the first has ended.
        let first = good(bus, driver.queue(host, &ten(0x28, 0, 200)));
        let second = good(bus, driver.queue(host, &ten(0x28, 200, 56)));
        let inquiry = good(bus, driver.queue(host, &[0x12, 1, 0xb0, 0, 255, 0]));
        assert_eq!(good(bus, driver.answer(host)), Answer::ReadReady(first), "{bus:?}");
        let mut read = good(bus, host.receive(&driver.input, 200 * BLOCK));
        assert_eq!(good(bus, driver.answer(host)), Answer::Good(first), "{bus:?}");
        assert_eq!(good(bus, driver.answer(host)), Answer::ReadReady(second), "{bus:?}");
        read.extend(good(bus, host.receive(&driver.input, 56 * BLOCK)));
        assert!(read == expected, "{bus:?}");
        assert_eq!(good(bus, driver.answer(host)), Answer::Good(second), "{bus:?}");
        assert_eq!(good(bus, driver.answer(host)), Answer::ReadReady(inquiry), "{bus:?}");
        assert_eq!(good(bus, host.receive(&driver.input, 255)).len(), 64, "{bus:?}");
        assert_eq!(good(bus, driver.answer(host)), Answer::Good(inquiry), "{bus:?}");
    }
}

#[test]
fn a_disk_and_its_driver_find_each_other_after_every_kind_of_disagreement() {
    for bus in BUSES {
        let disk = RamDisk::new(pattern(64 * BLOCK), BlockSize::B512);
        let (mut host, enumerated) = bus.start(Storage::new(disk, Serial::from_name("disk")));
        let host = &mut *host;
        let mut driver = MassStorage::bind(&enumerated).unwrap();
        good(bus, driver.start(host));
        let block = vec![1; BLOCK];
        // The thirteen cases, those of failed commands among them.
        let cases: [(&[u8], Data<'_>, CommandStatus); 13] = [
            (&[0; 6], Data::None, CommandStatus::Passed),
            (&ten(0x28, 0, 1), Data::None, CommandStatus::PhaseError),
            (&ten(0x2a, 0, 1), Data::None, CommandStatus::PhaseError),
            (&ten(0x28, 64, 1), Data::In(BLOCK), CommandStatus::Failed),
            (&[0x12, 0, 0, 0, 96, 0], Data::In(96), CommandStatus::Passed),
            (&ten(0x28, 5, 2), Data::In(4 * BLOCK), CommandStatus::Passed),
            (&ten(0x28, 0, 2), Data::In(BLOCK), CommandStatus::PhaseError),
            (&ten(0x2a, 0, 1), Data::In(BLOCK), CommandStatus::PhaseError),
            (&[0; 6], Data::Out(&block), CommandStatus::Passed),
            (&ten(0x28, 0, 1), Data::Out(&block), CommandStatus::PhaseError),
            (&ten(0x2a, 64, 1), Data::Out(&block), CommandStatus::Failed),
            (&ten(0x2a, 0, 2), Data::Out(&block), CommandStatus::PhaseError),
            (&[0x03, 0, 0, 0, 18, 0], Data::In(18), CommandStatus::Passed),
        ];
        for (cdb, data, status) in cases {
            let reply = good(bus, driver.command(host, cdb, data));
            assert_eq!(reply.status, status, "{bus:?}: {cdb:x?}");
            // Nothing is out of step.
            let read = good(bus, driver.read(host, 3, 2 * BLOCK, BLOCK));
            assert!(read == pattern(64 * BLOCK)[3 * BLOCK..5 * BLOCK], "{bus:?}: {cdb:x?}");
        }
        // A wrapper that is none.
        good(bus, host.send(&driver.output, &[0; 31]));
        assert_eq!(host.receive(&driver.input, 13), Err(TransferError::Stall), "{bus:?}");
        good(bus, driver.reset_recovery(host));
        good(bus, driver.read(host, 3, BLOCK, BLOCK));
        // A new enumeration in the middle of a command.
        let wrapper = driver.wrapper(0, &ten(0x28, 0, 64), Data::In(64 * BLOCK));
        good(bus, host.send(&driver.output, &wrapper));
        good(bus, host.receive(&driver.input, 4096));
        let enumerated = good(bus, enumerate(host, 0, 8));
        let mut driver = MassStorage::bind(&enumerated).unwrap();
        let attention = driver.scsi(host, &[0; 6], Data::None);
        assert_eq!(attention, Err(DiskError::Check(Sense(6, 0x29, 0))), "{bus:?}");
        good(bus, driver.read(host, 3, BLOCK, BLOCK));
    }
}

/// Repeats a command until it gets through.
fn persist<T>(bus: Bus, mut attempt: impl FnMut() -> Result<T, DiskError>) -> T {
    for _ in 0..50 {
        match attempt() {
            Ok(done) => return done,
            Err(DiskError::Check(Sense(6, ..)) | DiskError::Command(_)) => {}
            Err(error) => panic!("{bus:?}: the disk is in order: {error:?}"),
        }
    }
    panic!("{bus:?}: 50 attempts did not get a command through");
}

#[test]
fn a_bad_bus_costs_time_but_no_byte() {
    for bus in BUSES {
        for seed in 0..4 {
            let disk = RamDisk::zeroed(64);
            let storage = Storage::new(disk.clone(), Serial::from_name("disk"));
            let device = Faulty::seeded(
                storage,
                seed,
                Odds { nak: 50, stall: 20, error: 100, ..Odds::default() },
            );
            let injected = device.injected();
            let (mut host, enumerated) = bus.start(device);
            let host = &mut *host;
            let mut driver = MassStorage::bind(&enumerated).unwrap();
            let mut expected = vec![0; 64 * BLOCK];
            for round in 0..12u8 {
                let lba = usize::from(round) * 3;
                let data = vec![round + 1; 16 * BLOCK];
                persist(bus, || driver.write(host, lba as u32, &data, BLOCK));
                expected[lba * BLOCK..][..data.len()].copy_from_slice(&data);
                let read = persist(bus, || driver.read(host, 0, 64 * BLOCK, BLOCK));
                assert!(read == expected, "{bus:?}: seed {seed}, round {round}");
            }
            assert!(disk.contents() == expected, "{bus:?}: seed {seed}");
            assert!(injected.count() > 10, "{bus:?}: {} faults", injected.count());
        }
    }
}

#[test]
fn keys_and_diodes_cross_the_bus() {
    for bus in BUSES {
        let keyboard = Keyboard::new(bus.speed());
        let keys = keyboard.handle();
        let (mut host, enumerated) = bus.start(keyboard);
        let host = &mut *host;
        let driver = HidDriver::bind(&enumerated).unwrap();
        good(bus, driver.set_idle(host, 0));
        assert_eq!(driver.report(host, 50), Err(TransferError::TimedOut), "{bus:?}");
        let key: Key = "q".parse().unwrap();
        keys.press(key).unwrap();
        keys.release(key);
        assert_eq!(good(bus, driver.report(host, 50))[2], key.usage(), "{bus:?}");
        assert_eq!(good(bus, driver.report(host, 50)), [0; 8], "{bus:?}");
        good(bus, driver.set_leds(host, 2));
        assert!(keys.leds().caps_lock());
        // Firmware's way: the report again and again.
        good(bus, driver.set_idle(host, 5));
        for _ in 0..3 {
            assert_eq!(good(bus, driver.report(host, 60)), [0; 8], "{bus:?}");
        }
    }
}

#[test]
fn the_pointer_crosses_the_bus() {
    for bus in BUSES {
        let tablet = Tablet::new(bus.speed());
        let pointer = tablet.handle();
        let (mut host, enumerated) = bus.start(tablet);
        let host = &mut *host;
        let driver = HidDriver::bind(&enumerated).unwrap();
        for n in 1..20u16 {
            pointer.move_to(n * 256, 5).unwrap();
            pointer.press(Button::Left).unwrap();
            pointer.release(Button::Left);
            for buttons in [0, 1, 0] {
                let report = good(bus, driver.report(host, 50));
                assert_eq!(report, [buttons, 0, n as u8, 5, 0, 0, 0], "{bus:?}");
            }
        }
    }
}

/// The pipes of one alternate setting with these endpoint attributes: IN, OUT.
fn pipes(enumerated: &Enumerated, alternate: u8, attributes: u8) -> (Pipe, Pipe) {
    let mut interfaces = enumerated.interfaces.iter();
    let interface = interfaces.find(|i| i.alternate == alternate).unwrap();
    let find = |input| {
        let mut endpoints = interface.endpoints.iter();
        endpoints.find(|e| e.attributes == attributes && e.address.is_in() == input).unwrap()
    };
    (enumerated.pipe(find(true)), enumerated.pipe(find(false)))
}

#[test]
fn patterns_survive_bulk_and_interrupt_transfers_of_every_length() {
    for bus in BUSES {
        let (mut host, enumerated) = bus.start(Loopback::new(Pattern::Mod63));
        let host = &mut *host;
        let (input, output) = pipes(&enumerated, 0, 2);
        let packet = usize::from(input.max_packet);
        let expected: Vec<_> = (0..40_000).map(|n| (n % packet % 63) as u8).collect();
        for packets in [1, 2, 7, 8, 9, 31, 70] {
            let len = packets * packet;
            assert!(good(bus, host.receive(&input, len)) == expected[..len], "{bus:?}: {len}");
        }
        for len in [0, 1, packet - 1, packet, packet + 1, 4096, 5000, 20480, 33333] {
            good(bus, host.send(&output, &expected[..len]));
        }
        assert_eq!(host.send(&output, &[0, 0]), Err(TransferError::Stall), "{bus:?}: it checks");

        let setup = SetupPacket::new(0x01, request::SET_INTERFACE, 2, 0, 0);
        good(bus, host.control(&enumerated.device, setup, &[]));
        let (input, output) = pipes(&enumerated, 2, 3);
        for _ in 0..10 {
            assert_eq!(good(bus, host.poll(&input, 64, 100)), expected[..64], "{bus:?}");
            good(bus, host.send(&output, &expected[..64]));
        }
    }
}

#[test]
fn an_echo_returns_every_transfer_as_it_was() {
    for bus in BUSES {
        let (mut host, enumerated) = bus.start(Loopback::new(Pattern::Zeros));
        let host = &mut *host;
        good(bus, device_request(host, &enumerated.device, request::SET_CONFIGURATION, 2));
        let (input, output) = pipes(&enumerated, 0, 2);
        host.reset_toggle(&input);
        host.reset_toggle(&output);
        let data = pattern(30_000);
        for len in [1, 6, 13, 63, 65, 511, 513, 1000, 6143, 20_000, 29_999] {
            good(bus, host.send(&output, &data[..len]));
            let back = good(bus, host.receive(&input, 32 << 10));
            assert!(back == data[..len], "{bus:?}: {len} bytes came back as {}", back.len());
        }
    }
}
