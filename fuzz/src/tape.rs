//! What a real guest did with a controller, or what became of it when a fuzzer had changed it.
//!
//! An input that begins with an odd byte is a tape (`integration/vm-usbd/src/tape/format.rs`); those in
//! `corpus/` were recorded by `cargo xtask seeds`. The controller is played what is on it: time, accesses, and
//! the guest's memory where the guest had it. Devices are those that the server has, without anything behind
//! them: disks are empty, and paper goes nowhere.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vm_usb::devices::debug::{DebugConsole, DebugDevice};
use vm_usb::devices::full_speed::FullSpeed;
use vm_usb::devices::hid::{Keyboard, KeyboardHandle, Tablet};
use vm_usb::devices::hub::{Hub, HubOptions};
use vm_usb::devices::loopback::{Loopback, Pattern};
use vm_usb::devices::printer::{Discard, Printer};
use vm_usb::devices::storage::{Medium, RamDisk, Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::topology::Port;
use vm_usb::usb::{Buffer, Speed, UsbDevice};
use vm_usbd::tape::format::{Device, Place, Step, Steps, controller};

use crate::devices::stroke;
use crate::ehci::Options;
use crate::guest::{Guest, Model};
use crate::ohci;

/// Memory of the guests that are recorded: their addresses are what they were.
const RAM: u32 = 512 << 20;
/// Ports of a server's controller.
const PORTS: u8 = 6;
/// Blocks of the disks in the recordings.
const BLOCKS: usize = 2048;
/// Most devices of an input, so that hubs behind hubs come to an end.
const MOST_DEVICES: usize = 12;
/// Most steps of an input: those of the longest recording, and more.
pub const MOST_STEPS: usize = 8000;
/// Most deadlines that are kept while time passes; the rest of it passes at once.
const MOST_DEADLINES: usize = 20;

/// What came of a tape.
#[derive(Debug, Default)]
pub struct Played {
    /// Times the interrupt line rose.
    pub interrupts: usize,
    /// Times that disks were read.
    pub disk_reads: usize,
    /// Times that disks were written to.
    pub disk_writes: usize,
    /// Bytes that went through the endpoints of each device but its control endpoint, by its kind.
    pub bytes: BTreeMap<&'static str, u64>,
}

/// Plays `tape`, and holds its controller to the rules; `None` if it is no tape.
pub fn play(tape: &[u8]) -> Option<Played> {
    let (bits, steps) = Steps::of(tape)?;
    if bits & controller::EHCI != 0 {
        let rig = Rig::new(Port::high_speed_only, Speed::High);
        let options = Options::of(bits);
        Some(rig.play::<Ehci>(steps, |ports| options.controller(ports)))
    } else {
        let rig = Rig::new(Port::classic, Speed::Full);
        Some(rig.play::<Ohci>(steps, |ports| ohci::of(bits, ports)))
    }
}

/// Ports, and what is in them.
struct Rig {
    /// Those of the controller and of hubs, by the ports on the way.
    ports: BTreeMap<Vec<u8>, (Port, Speed)>,
    plugged: BTreeMap<Vec<u8>, Device>,
    keys: Vec<KeyboardHandle>,
    disks: Arc<Accesses>,
    played: Played,
}

impl Rig {
    fn new(port: impl Fn() -> Port, speed: Speed) -> Self {
        Self {
            ports: (1..=PORTS).map(|number| (vec![number], (port(), speed))).collect(),
            plugged: BTreeMap::new(),
            keys: Vec::new(),
            disks: Arc::default(),
            played: Played::default(),
        }
    }

    fn play<C: Model>(mut self, steps: Steps<'_>, controller: impl Fn(&[Port]) -> C) -> Played {
        let ports: Vec<_> = self.ports.values().map(|(port, _)| port.clone()).collect();
        let mut guest = Guest::with_ram(controller(&ports), RAM);
        for step in steps.take(MOST_STEPS) {
            let line = guest.line;
            self.take(step, &mut guest);
            self.played.interrupts += usize::from(guest.line && !line);
            guest.check();
        }
        let places: Vec<_> = self.plugged.keys().cloned().collect();
        for place in places {
            self.count(&place);
        }
        self.played.disk_reads = self.disks.reads.load(Ordering::Relaxed);
        self.played.disk_writes = self.disks.writes.load(Ordering::Relaxed);
        self.played
    }

    fn take<C: Model>(&mut self, step: Step<'_>, guest: &mut Guest<C>) {
        match step {
            Step::Time(nanos) => guest.pass(nanos, MOST_DEADLINES),
            Step::Write(offset, data) => guest.write(offset.into(), data),
            Step::Read(offset, len) => guest.read(offset.into(), &mut vec![0; len]),
            Step::Poke(address, data) => guest.store_bytes(address, data),
            Step::Fill(address, count, dword) => {
                guest.store_bytes(address, &dword.to_le_bytes().repeat(count.into()));
            }
            Step::Plug(device, place) => {
                self.plug(device, place);
                guest.run();
            }
            Step::Unplug(place) => {
                self.unplug(&place.ports().collect::<Vec<_>>());
                guest.run();
            }
            Step::Key(usage, down) => {
                for keys in &self.keys {
                    stroke(keys, usage, down);
                }
                guest.run();
            }
            Step::BusMaster(on) => {
                guest.bus_master = on;
                guest.run();
            }
            Step::Reset => guest.reset(),
        }
    }

    fn plug(&mut self, device: Device, place: Place) {
        let way: Vec<_> = place.ports().collect();
        let Some((port, speed)) = self.ports.get(&way).cloned() else { return };
        if self.plugged.len() >= MOST_DEVICES || self.plugged.contains_key(&way) {
            return;
        }
        let speed = if place.is_at_full_speed() { Speed::Full } else { speed };
        let mut behind = Vec::new();
        let plugged: Box<dyn UsbDevice> = match device {
            Device::Disk => {
                let medium = Watched(RamDisk::zeroed(BLOCKS), self.disks.clone());
                Box::new(Storage::new(medium, Serial::from_name("disk")))
            }
            Device::Keyboard => {
                let keyboard = Keyboard::new(speed);
                self.keys.push(keyboard.handle());
                Box::new(keyboard)
            }
            Device::Tablet => Box::new(Tablet::new(speed)),
            Device::Printer => Box::new(Printer::new(Discard)),
            Device::Debug => Box::new(DebugDevice::new(Nowhere)),
            Device::Loopback => Box::new(Loopback::new(Pattern::Zeros)),
            Device::Hub => {
                let Ok(hub) = Hub::new(HubOptions { speed, ..HubOptions::default() }) else {
                    return;
                };
                behind = hub.ports().to_vec();
                Box::new(hub)
            }
        };
        let plugged: Box<dyn UsbDevice> = if place.is_at_full_speed() && device != Device::Hub {
            Box::new(FullSpeed::new(plugged))
        } else {
            plugged
        };
        // Seven hubs in a row are refused.
        if port.attach(plugged).is_err() {
            return;
        }
        for (number, port) in (1..).zip(behind) {
            self.ports.insert([&*way, &[number]].concat(), (port, speed));
        }
        self.plugged.insert(way, device);
    }

    /// Pulls a device out, and whatever is behind it.
    fn unplug(&mut self, way: &[u8]) {
        let places: Vec<_> =
            self.plugged.keys().filter(|place| place.starts_with(way)).cloned().collect();
        for place in places.iter().rev() {
            self.count(place);
            self.plugged.remove(place);
            if let Some((port, _)) = self.ports.get(place) {
                drop(port.detach());
            }
        }
        self.ports.retain(|place, _| !place.starts_with(way) || place.len() <= way.len());
    }

    /// Adds up what a device's endpoints have seen.
    fn count(&mut self, place: &[u8]) {
        let statistics = self.ports.get(place).and_then(|(port, _)| port.statistics());
        let (Some(device), Some(statistics)) = (self.plugged.get(place), statistics) else {
            return;
        };
        let others = statistics.endpoints.iter().filter(|one| one.endpoint.number() != 0);
        let bytes: u64 = others.map(|one| one.bytes).sum();
        *self.played.bytes.entry(name(*device)).or_default() += bytes;
    }
}

fn name(device: Device) -> &'static str {
    match device {
        Device::Disk => "disk",
        Device::Keyboard => "keyboard",
        Device::Tablet => "tablet",
        Device::Printer => "printer",
        Device::Debug => "debug",
        Device::Loopback => "loopback",
        Device::Hub => "hub",
    }
}

/// How often disks were read and written to.
#[derive(Debug, Default)]
struct Accesses {
    reads: AtomicUsize,
    writes: AtomicUsize,
}

/// A medium whose accesses are counted.
struct Watched(RamDisk, Arc<Accesses>);

impl Medium for Watched {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()> {
        self.1.reads.fetch_add(1, Ordering::Relaxed);
        self.0.read(offset, buffer, range)
    }

    fn write(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()> {
        self.1.writes.fetch_add(1, Ordering::Relaxed);
        self.0.write(offset, buffer, range)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    // As the image that was recorded: the guest asks what it can do.
    fn can_discard(&self) -> bool {
        self.0.can_discard()
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
}

/// A console that nobody reads.
struct Nowhere;

impl DebugConsole for Nowhere {
    fn write(&mut self, _bytes: &[u8]) {}
}
