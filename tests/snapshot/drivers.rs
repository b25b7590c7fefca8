//! Drivers for all devices of a world, which know every byte.

use vm_usb::devices::hid::Key;
use vm_usb::usb::{EndpointAddress, request};

use crate::courier::{self, MESSAGE};
use crate::driver::dice::Dice;
use crate::driver::disk::{DiskDriver, Transport};
use crate::driver::enumerate::{Enumerated, device_request, enumerate};
use crate::driver::hid::HidDriver;
use crate::driver::host::{HostDriver, Pipe};
use crate::driver::hub::HubDriver;
use crate::driver::mass_storage::{Data, ten};
use crate::driver::uas::{Answer, Uas};
use crate::world::{BLOCKS, Media, Topology, place};

/// What happens to a key.
#[derive(Clone, Copy, Debug)]
pub enum Stroke {
    Down(Key),
    Up(Key),
}

/// A disk and what has to be on it.
struct Disk {
    driver: DiskDriver,
    block: usize,
    model: Vec<u8>,
}

impl Disk {
    fn bind(
        host: &mut dyn HostDriver,
        enumerated: &Enumerated,
        transport: Transport,
        block: usize,
    ) -> Self {
        let mut driver = DiskDriver::bind(host, enumerated, transport).unwrap().unwrap();
        driver.start(host).unwrap();
        Self { driver, block, model: vec![0; BLOCKS * block] }
    }

    fn range(&self, dice: &mut Dice) -> (u32, std::ops::Range<usize>) {
        let lba = dice.below(BLOCKS as u64) as usize;
        let most = (BLOCKS - lba).min(24 << 10 >> self.block.ilog2());
        let count = 1 + dice.below(most as u64) as usize;
        (lba as u32, lba * self.block..(lba + count) * self.block)
    }

    /// One command, or with UAS perhaps a few at once.
    fn work(&mut self, host: &mut dyn HostDriver, dice: &mut Dice) {
        match &self.driver {
            DiskDriver::Uas(driver) if dice.below(2) == 0 => {
                let mut driver = driver.clone();
                self.queue(&mut driver, host, dice);
                self.driver = DiskDriver::Uas(driver);
            }
            _ if dice.below(2) == 0 => self.write(host, dice),
            _ => self.read(host, dice),
        }
    }

    /// Commands that wait for each other; each finds what those before it have written.
    fn queue(&mut self, driver: &mut Uas, host: &mut dyn HostDriver, dice: &mut Dice) {
        let commands: Vec<_> = (0..1 + dice.below(6))
            .map(|_| {
                let (lba, range) = self.range(dice);
                let blocks = range.len() / self.block;
                let writes = dice.below(2) == 0;
                if writes {
                    self.model[range.clone()].copy_from_slice(&dice.bytes(range.len()));
                }
                let opcode = if writes { 0x2a } else { 0x28 };
                let tag = driver.queue(host, &ten(opcode, lba, blocks)).unwrap();
                (tag, writes, self.model[range].to_vec())
            })
            .collect();
        for (tag, writes, data) in commands {
            let answer = driver.answer(host).unwrap();
            if writes {
                assert_eq!(answer, Answer::WriteReady(tag));
                host.send(&driver.output, &data).unwrap();
            } else {
                assert_eq!(answer, Answer::ReadReady(tag));
                let read = host.receive(&driver.input, data.len()).unwrap();
                assert!(read == data, "what was written is read back");
            }
            assert_eq!(driver.answer(host), Ok(Answer::Good(tag)));
        }
    }

    /// Begins a write, and with UAS more behind it, and goes away.
    fn leave_in_the_middle(&mut self, host: &mut dyn HostDriver) {
        let cdb = ten(0x2a, 3, 2);
        let output = match &mut self.driver {
            DiskDriver::BulkOnly(driver) => {
                let wrapper = driver.wrapper(0, &cdb, Data::Out(&vec![0; 2 * self.block]));
                host.send(&driver.output, &wrapper).unwrap();
                driver.output
            }
            DiskDriver::Uas(driver) => {
                let tag = driver.queue(host, &cdb).unwrap();
                assert_eq!(driver.answer(host), Ok(Answer::WriteReady(tag)));
                driver.queue(host, &ten(0x28, 5, 1)).unwrap();
                driver.queue(host, &[0; 6]).unwrap();
                host.send(&driver.command, &Uas::task_management_iu(0x7000, 0x81, 0)).unwrap();
                driver.output
            }
        };
        host.send(&output, &vec![7; self.block]).unwrap();
    }

    fn write(&mut self, host: &mut dyn HostDriver, dice: &mut Dice) {
        let (lba, range) = self.range(dice);
        let data = dice.bytes(range.len());
        self.driver.write(host, lba, &data, self.block).unwrap();
        self.model[range].copy_from_slice(&data);
    }

    fn read(&mut self, host: &mut dyn HostDriver, dice: &mut Dice) {
        let (lba, range) = self.range(dice);
        let data = self.driver.read(host, lba, range.len(), self.block).unwrap();
        assert!(data == self.model[range], "what was written is read back");
    }
}

/// A loopback device in its configuration that echoes.
struct Echo {
    input: Pipe,
    output: Pipe,
}

impl Echo {
    fn bind(host: &mut dyn HostDriver, enumerated: &Enumerated) -> Self {
        device_request(host, &enumerated.device, request::SET_CONFIGURATION, 2).unwrap();
        let pipe = |address: EndpointAddress| {
            let endpoints = &enumerated.interfaces[0].endpoints;
            enumerated.pipe(endpoints.iter().find(|e| e.address == address).unwrap())
        };
        let (input, output) = (pipe(EndpointAddress::r#in(1)), pipe(EndpointAddress::out(2)));
        host.reset_toggle(&input);
        host.reset_toggle(&output);
        Self { input, output }
    }

    fn exchange(&self, host: &mut dyn HostDriver, dice: &mut Dice) {
        // Of odd length, so that a short packet ends it.
        let mut data = dice.some_bytes(6_000);
        data.resize(data.len() | 1, 0);
        host.send(&self.output, &data).unwrap();
        assert!(host.receive(&self.input, data.len()).unwrap() == data, "the echo of all bytes");
    }
}

/// The devices of a world, with their drivers.
pub struct Drivers {
    disk: Disk,
    slow_disk: Disk,
    echo: Echo,
    slow_echo: Echo,
    keyboard: HidDriver,
    courier: (Pipe, Pipe),
    fetched: u8,
    delivered: Vec<u8>,
    printer: Pipe,
    printed: Vec<u8>,
}

impl Drivers {
    /// Sets all devices up: the disk with this transport, and the slow one with the other.
    pub fn bind(host: &mut dyn HostDriver, transport: Transport) -> Self {
        let other = match transport {
            Transport::BulkOnly => Transport::Uas,
            Transport::Uas => Transport::BulkOnly,
        };
        let mut address = 0;
        let mut found = |host: &mut dyn HostDriver, port| {
            address += 1;
            enumerate(host, port, address).unwrap()
        };
        let disk = found(host, place::DISK);
        let hub = found(host, place::HUB);
        let courier = found(host, place::COURIER);
        let echo = found(host, place::LOOPBACK);
        let printer = found(host, place::PRINTER);
        let hub = HubDriver::start(host, &hub).unwrap();
        let mut behind = |host: &mut dyn HostDriver, port: usize| {
            address += 1;
            hub.enumerate(host, port as u16 + 1, address).unwrap()
        };
        let slow_disk = behind(host, place::SLOW_DISK);
        let keyboard = behind(host, place::KEYBOARD);
        behind(host, place::TABLET);
        let slow_echo = behind(host, place::SLOW_LOOPBACK);
        let keyboard = HidDriver::bind(&keyboard).unwrap();
        keyboard.set_idle(host, 0).unwrap();
        let pipe = |device: &Enumerated, n: usize| device.pipe(&device.interfaces[0].endpoints[n]);
        Self {
            disk: Disk::bind(host, &disk, transport, 512),
            slow_disk: Disk::bind(host, &slow_disk, other, 4096),
            echo: Echo::bind(host, &echo),
            slow_echo: Echo::bind(host, &slow_echo),
            keyboard,
            courier: (pipe(&courier, 0), pipe(&courier, 1)),
            fetched: 0,
            delivered: Vec::new(),
            printer: pipe(&printer, 0),
            printed: Vec::new(),
        }
    }

    /// Something with one of the devices; `keyboard` moves a key.
    pub fn step(
        &mut self,
        host: &mut dyn HostDriver,
        dice: &mut Dice,
        keyboard: &mut dyn FnMut(Stroke),
    ) {
        match dice.below(10) {
            0 | 1 => self.disk.work(host, dice),
            2 | 3 => self.slow_disk.work(host, dice),
            4 => self.echo.exchange(host, dice),
            5 => self.slow_echo.exchange(host, dice),
            6 => self.stroke(host, dice, keyboard),
            7 => {
                let data = dice.some_bytes(3_000);
                host.send(&self.courier.1, &data).unwrap();
                self.delivered.extend(&data);
            }
            8 => {
                let message = host.receive(&self.courier.0, MESSAGE).unwrap();
                assert_eq!(message, [self.fetched; MESSAGE], "the next message");
                self.fetched = self.fetched.wrapping_add(1);
            }
            _ => {
                let data = dice.some_bytes(3_000);
                host.send(&self.printer, &data).unwrap();
                self.printed.extend(&data);
            }
        }
    }

    /// A key goes down, before or while the driver waits for it, and comes up.
    fn stroke(
        &mut self,
        host: &mut dyn HostDriver,
        dice: &mut Dice,
        keyboard: &mut dyn FnMut(Stroke),
    ) {
        let key = Key::from_usage(4 + dice.below(26) as u8).unwrap();
        keyboard(Stroke::Down(key));
        let report = self.keyboard.report(host, 5_000).unwrap();
        assert_eq!(report, [0, 0, key.usage(), 0, 0, 0, 0, 0], "the key went down");
        keyboard(Stroke::Up(key));
        let report = self.keyboard.report(host, 5_000).unwrap();
        assert_eq!(report, [0; 8], "the key came up");
    }

    /// Stops where state is richest: a disk in the middle of a command, echoes under way, keys that
    /// wait, a request half carried out.
    pub fn leave_in_the_middle(&mut self, host: &mut dyn HostDriver, topology: &Topology) {
        for disk in [&mut self.disk, &mut self.slow_disk] {
            disk.leave_in_the_middle(host);
        }
        for echo in [&self.echo, &self.slow_echo] {
            host.send(&echo.output, &[1, 2, 3]).unwrap();
            host.send(&echo.output, &[4; 600]).unwrap();
        }
        for usage in 4..7 {
            topology.keyboard.press(Key::from_usage(usage).unwrap()).unwrap();
        }
        topology.tablet.move_to(100, 200).unwrap();
        topology.tablet.scroll(1, 0).unwrap();
        host.send(&self.printer, b"\x1bSTAT?").unwrap();
    }

    /// Nothing is lost, and nothing is there twice.
    pub fn check(&mut self, host: &mut dyn HostDriver, media: &Media) {
        for disk in [&mut self.disk, &mut self.slow_disk] {
            disk.driver.scsi(host, &ten(0x35, 0, 0), Data::None).unwrap();
        }
        assert!(media.disk.contents() == self.disk.model, "every write, once");
        assert!(media.slow_disk.contents() == self.slow_disk.model, "every write, once");
        assert_eq!(courier::OUT, self.courier.1.endpoint);
        assert!(*media.depot.delivered.lock().unwrap() == self.delivered, "every byte, once");
        assert!(*media.paper.0.lock().unwrap() == self.printed, "every byte, once");
    }
}
