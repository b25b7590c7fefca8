//! A thousand instants: between any two looks of the driver the machine is saved, thrown away, built
//! anew under another clock and restored, with transfers of every kind under way. The driver never
//! notices, no byte is lost and none comes twice.

use std::sync::{Arc, Mutex};

use vm_usb::devices::hid::Key;
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::time::Time;
use vm_usb::usb::{EndpointAddress, request};

use crate::courier::{self, MESSAGE};
use crate::driver::ehci::EhciDriver;
use crate::driver::enumerate::{Enumerated, device_request, enumerate};
use crate::driver::hid::HidDriver;
use crate::driver::host::{HostDriver, Pipe};
use crate::driver::hub::HubDriver;
use crate::driver::machine::{Machine, Meanwhile};
use crate::driver::mass_storage::{Data, MassStorage, ten};
use crate::driver::ohci::OhciDriver;
use crate::world::{BLOCKS, Drivable, Media, Random, Topology, build, place, restore, save};

/// Restarts of a machine in one run.
const RESTARTS: u32 = 25;
/// Calls of the controller between two restarts, on average.
const CALLS: u64 = 400;
/// Runs of each controller; with [`RESTARTS`], five hundred instants.
const RUNS: u64 = 20;

/// What happens to the machine while its driver works.
struct Fate {
    random: Random,
    media: Media,
    topology: Topology,
    restarts: u32,
    /// A key that goes down after so many calls.
    key: Option<(u32, Key)>,
}

impl Fate {
    fn call<C: Drivable>(&mut self, controller: &mut C, now: Time) -> Time {
        if self.random.below(8) == 0 {
            self.media.depot.finish();
        }
        if let Some((calls, key)) = self.key {
            self.key = calls.checked_sub(1).map(|left| (left, key));
            if calls == 0 {
                self.topology.keyboard.press(key).unwrap();
            }
        }
        if self.random.below(CALLS) != 0 {
            return now;
        }
        let saved = save(controller, &self.topology.ports, now);
        let (mut fresh, topology) = build::<C>(&self.media);
        // The new host's clock may be young or old.
        let now = Time::from_nanos(self.random.below(1 << (10 + self.random.0 % 44)));
        restore(&saved, &mut fresh, &topology.ports, now).unwrap();
        *controller = fresh;
        self.topology = topology;
        self.restarts += 1;
        now
    }
}

/// A disk and what has to be on it.
struct Disk {
    driver: MassStorage,
    block: usize,
    model: Vec<u8>,
}

impl Disk {
    fn bind(host: &mut dyn HostDriver, enumerated: &Enumerated, block: usize) -> Self {
        let mut driver = MassStorage::bind(enumerated).unwrap();
        driver.start(host).unwrap();
        Self { driver, block, model: vec![0; BLOCKS * block] }
    }

    fn range(&self, random: &mut Random) -> (u32, std::ops::Range<usize>) {
        let lba = random.below(BLOCKS as u64) as usize;
        let most = (BLOCKS - lba).min(24 << 10 >> self.block.ilog2());
        let count = 1 + random.below(most as u64) as usize;
        (lba as u32, lba * self.block..(lba + count) * self.block)
    }

    fn write(&mut self, host: &mut dyn HostDriver, random: &mut Random) {
        let (lba, range) = self.range(random);
        let data = random.bytes(range.len());
        self.driver.write(host, lba, &data, self.block).unwrap();
        self.model[range].copy_from_slice(&data);
    }

    fn read(&mut self, host: &mut dyn HostDriver, random: &mut Random) {
        let (lba, range) = self.range(random);
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

    fn exchange(&self, host: &mut dyn HostDriver, random: &mut Random) {
        // Of odd length, so that a short packet ends it.
        let mut data = random.some_bytes(6_000);
        data.resize(data.len() | 1, 0);
        host.send(&self.output, &data).unwrap();
        assert!(host.receive(&self.input, data.len()).unwrap() == data, "the echo of all bytes");
    }
}

/// The devices of a world, with their drivers.
struct Drivers {
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
    fn bind(host: &mut dyn HostDriver) -> Self {
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
        let slow_echo = behind(host, place::SLOW_LOOPBACK);
        let keyboard = HidDriver::bind(&keyboard).unwrap();
        keyboard.set_idle(host, 0).unwrap();
        let pipe = |device: &Enumerated, n: usize| device.pipe(&device.interfaces[0].endpoints[n]);
        Self {
            disk: Disk::bind(host, &disk, 512),
            slow_disk: Disk::bind(host, &slow_disk, 4096),
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

    fn step(&mut self, host: &mut dyn HostDriver, fate: &Arc<Mutex<Fate>>, random: &mut Random) {
        match random.below(10) {
            0 => self.disk.write(host, random),
            1 => self.disk.read(host, random),
            2 => self.slow_disk.write(host, random),
            3 => self.slow_disk.read(host, random),
            4 => self.echo.exchange(host, random),
            5 => self.slow_echo.exchange(host, random),
            6 => self.stroke(host, fate, random),
            7 => {
                let data = random.some_bytes(3_000);
                host.send(&self.courier.1, &data).unwrap();
                self.delivered.extend(&data);
            }
            8 => {
                let message = host.receive(&self.courier.0, MESSAGE).unwrap();
                assert_eq!(message, [self.fetched; MESSAGE], "the next message");
                self.fetched = self.fetched.wrapping_add(1);
            }
            _ => {
                let data = random.some_bytes(3_000);
                host.send(&self.printer, &data).unwrap();
                self.printed.extend(&data);
            }
        }
    }

    /// A key goes down while the driver waits for it, restarts or not, and comes up.
    fn stroke(&mut self, host: &mut dyn HostDriver, fate: &Arc<Mutex<Fate>>, random: &mut Random) {
        let key = Key::from_usage(4 + random.below(26) as u8).unwrap();
        fate.lock().unwrap().key = Some((random.below(2 * CALLS) as u32, key));
        let report = self.keyboard.report(host, 5_000).unwrap();
        assert_eq!(report, [0, 0, key.usage(), 0, 0, 0, 0, 0], "the key went down");
        fate.lock().unwrap().topology.keyboard.release(key);
        let report = self.keyboard.report(host, 5_000).unwrap();
        assert_eq!(report, [0; 8], "the key came up");
    }

    fn check(&mut self, host: &mut dyn HostDriver, media: &Media) {
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

/// One run; returns how often the machine was restarted.
fn run<C: Drivable, D: HostDriver>(seed: u64, start: impl Fn(Machine<C>) -> D) -> u32 {
    println!("seed {seed}");
    let media = Media::default();
    let (controller, topology) = build::<C>(&media);
    let fate = Arc::new(Mutex::new(Fate {
        random: Random(seed),
        media: media.clone(),
        topology,
        restarts: 0,
        key: None,
    }));
    let mut machine = Machine::new(controller);
    let shared = fate.clone();
    let meanwhile: Meanwhile<C> =
        Box::new(move |controller, now| shared.lock().unwrap().call(controller, now));
    machine.meanwhile = Some(meanwhile);
    let mut host = start(machine);
    let mut drivers = Drivers::bind(&mut host);
    let mut random = Random(!seed);
    while fate.lock().unwrap().restarts < RESTARTS {
        drivers.step(&mut host, &fate, &mut random);
    }
    drivers.check(&mut host, &media);
    fate.lock().unwrap().restarts
}

#[test]
fn an_ehci_machine_goes_on_from_any_of_500_instants() {
    let restarts: u32 = (0..RUNS).map(|seed| run::<Ehci, _>(seed, EhciDriver::new)).sum();
    assert!(restarts >= 500, "{restarts}");
}

#[test]
fn an_ohci_machine_goes_on_from_any_of_500_instants() {
    let restarts: u32 = (0..RUNS).map(|seed| run::<Ohci, _>(seed, OhciDriver::start)).sum();
    assert!(restarts >= 500, "{restarts}");
}
