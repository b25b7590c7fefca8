//! One machine of each kind, built anew as often as a test likes around media that stay.

use std::sync::{Arc, Mutex};

use vm_usb::controller::HostController;
use vm_usb::devices::full_speed::FullSpeed;
use vm_usb::devices::hid::{Keyboard, KeyboardHandle, Tablet, TabletHandle};
use vm_usb::devices::hub::{Hub, HubOptions, Translators};
use vm_usb::devices::loopback::{Loopback, Pattern};
use vm_usb::devices::printer::{PrintSink, Printer};
use vm_usb::devices::storage::{BlockSize, RamDisk, Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::snapshot::{self, RestoreError, Snapshot};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{Speed, UsbDevice};

use crate::courier::{Courier, Depot};
use crate::driver::dice::Dice;
use crate::driver::disk::Transport;
use crate::driver::host::HostDriver;
use crate::driver::machine::Machine;
use crate::drivers::{Drivers, Stroke};

/// Blocks of each disk.
pub const BLOCKS: usize = 64;

/// Ports of the controller and of the hub, from 0: what is in them.
pub mod place {
    pub const DISK: usize = 0;
    pub const HUB: usize = 1;
    pub const COURIER: usize = 2;
    pub const LOOPBACK: usize = 3;
    pub const PRINTER: usize = 4;
    /// Nothing.
    pub const FREE: usize = 5;

    pub const SLOW_DISK: usize = 0;
    pub const KEYBOARD: usize = 1;
    pub const TABLET: usize = 2;
    pub const SLOW_LOOPBACK: usize = 3;
}

/// What outlives a machine.
#[derive(Clone)]
pub struct Media {
    pub disk: RamDisk,
    pub slow_disk: RamDisk,
    pub depot: Depot,
    pub paper: Paper,
}

impl Default for Media {
    fn default() -> Self {
        Self {
            disk: RamDisk::zeroed(BLOCKS),
            slow_disk: RamDisk::new(vec![0; 8 * BLOCKS * 512], BlockSize::B4096),
            depot: Depot::default(),
            paper: Paper::default(),
        }
    }
}

/// What was printed.
#[derive(Clone, Default)]
pub struct Paper(pub Arc<Mutex<Vec<u8>>>);

impl PrintSink for Paper {
    fn print(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap().extend(bytes);
    }
}

/// The two controllers.
pub trait Kind: Snapshot + Sized + 'static {
    const SPEED: Speed;

    fn wired(ports: &[Port]) -> Self;
    fn port() -> Port;
}

impl Kind for Ehci {
    const SPEED: Speed = Speed::High;

    fn wired(ports: &[Port]) -> Self {
        Self::new(ports.iter().map(|port| port.link(Host::High)).collect())
    }

    fn port() -> Port {
        Port::high_speed_only()
    }
}

impl Kind for Ohci {
    const SPEED: Speed = Speed::Full;

    fn wired(ports: &[Port]) -> Self {
        Self::new(ports.iter().map(|port| port.link(Host::Classic)).collect())
    }

    fn port() -> Port {
        Port::classic()
    }
}

/// Everything of a machine but its controller.
pub struct Topology {
    pub ports: Vec<Port>,
    pub hub_ports: Vec<Port>,
    pub keyboard: KeyboardHandle,
    pub tablet: TabletHandle,
}

/// A machine as its owner builds it. At high speed some of the devices are behind a hub's
/// translators, the rest speaks for itself; at full speed all share the bus.
pub fn build<C: Kind>(media: &Media) -> (C, Topology) {
    let speed = C::SPEED;
    let options = HubOptions {
        ports: 4,
        speed,
        translators: Translators::Multiple,
        serial: "hub".into(),
        ..HubOptions::default()
    };
    let hub = Hub::new(options).unwrap();
    let hub_ports = hub.ports().to_vec();
    let keyboard = Keyboard::new(Speed::Low);
    let tablet = Tablet::new(Speed::Full);
    let (keys, pointer) = (keyboard.handle(), tablet.handle());
    let slow_disk = Storage::new(media.slow_disk.clone(), Serial::from_name("slow"));
    let slow_loopback = FullSpeed::new(Box::new(Loopback::new(Pattern::Zeros)));
    let behind: [Box<dyn UsbDevice>; 4] = [
        Box::new(FullSpeed::new(Box::new(slow_disk))),
        Box::new(keyboard),
        Box::new(tablet),
        Box::new(slow_loopback),
    ];
    for (port, device) in hub_ports.iter().zip(behind) {
        port.attach(device).unwrap();
    }
    let devices: [Box<dyn UsbDevice>; 5] = [
        Box::new(Storage::new(media.disk.clone(), Serial::from_name("disk"))),
        Box::new(hub),
        Box::new(Courier::new(media.depot.clone())),
        Box::new(Loopback::new(Pattern::Zeros)),
        Box::new(Printer::new(media.paper.clone())),
    ];
    let ports: Vec<Port> = (0..=place::FREE).map(|_| C::port()).collect();
    for (port, device) in ports.iter().zip(devices) {
        port.attach(device).unwrap();
    }
    (C::wired(&ports), Topology { ports, hub_ports, keyboard: keys, tablet: pointer })
}

const NAMES: [&str; 6] = ["port 1", "port 2", "port 3", "port 4", "port 5", "port 6"];

pub fn save(controller: &dyn Snapshot, ports: &[Port], now: Time) -> Vec<u8> {
    let ports = NAMES.into_iter().zip(ports.iter().map(|port| port as &dyn Snapshot));
    let parts: Vec<_> = [("controller", controller)].into_iter().chain(ports).collect();
    snapshot::save(now, &parts).unwrap()
}

pub fn restore(
    bytes: &[u8],
    controller: &mut impl Snapshot,
    ports: &[Port],
    now: Time,
) -> Result<(), RestoreError> {
    let mut ports = ports.to_vec();
    let ports = NAMES.into_iter().zip(ports.iter_mut().map(|port| port as &mut dyn Snapshot));
    let mut parts: Vec<_> =
        [("controller", controller as &mut dyn Snapshot)].into_iter().chain(ports).collect();
    snapshot::restore(bytes, now, &mut parts)
}

/// The transport of the disk in a run with this seed.
pub fn transport_of(seed: u64) -> Transport {
    if seed.is_multiple_of(2) { Transport::Uas } else { Transport::BulkOnly }
}

/// A machine that its guest has set up and used for a while.
pub fn used<C: Drivable, D: HostDriver>(
    media: &Media,
    seed: u64,
    start: impl Fn(Machine<C>) -> D,
) -> (D, Topology) {
    let (controller, topology) = build::<C>(media);
    let mut machine = Machine::new(controller);
    let depot = media.depot.clone();
    machine.meanwhile = Some(Box::new(move |_, now| {
        depot.finish();
        now
    }));
    let mut host = start(machine);
    let mut drivers = Drivers::bind(&mut host, transport_of(seed));
    let mut dice = Dice::new(seed);
    for _ in 0..30 {
        drivers.step(&mut host, &mut dice, &mut |stroke| match stroke {
            Stroke::Down(key) => topology.keyboard.press(key).unwrap(),
            Stroke::Up(key) => topology.keyboard.release(key),
        });
    }
    drivers.leave_in_the_middle(&mut host, &topology);
    (host, topology)
}

/// A controller whose guest memory is the tests' own.
pub trait Drivable: Kind + HostController<vm_memory::GuestMemoryMmap> {}

impl<C: Kind + HostController<vm_memory::GuestMemoryMmap>> Drivable for C {}
