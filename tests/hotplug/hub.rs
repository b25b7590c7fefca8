//! A hub with a disk behind it: either is pulled out while the disk is at work.

use vm_usb::devices::hub::{Hub, HubOptions};
use vm_usb::topology::Port;
use vm_usb::usb::{Speed, UsbDevice};

use crate::bus::Kind;
use crate::disk::Disk;
use crate::driver::enumerate::Enumerated;
use crate::driver::host::{HostDriver, TransferError};
use crate::driver::hub::{HubDriver, bit, feature};
use crate::job::{ADDRESS, Job, tell, tell_on};

/// The disk's address, and the hub's port that it is in, from 1.
const DISK: u8 = 2;
const PORT: u16 = 3;

struct Tree {
    disk: Disk,
    /// Whether the disk is kept from high speed, so that a translator stands before it.
    slow: bool,
    port: Option<Port>,
    hub: Option<HubDriver>,
}

impl Tree {
    fn new(seed: u64, slow: bool) -> Self {
        Self { disk: Disk::new(seed), slow, port: None, hub: None }
    }

    fn plug(&mut self, port: &Port, speed: Speed) {
        let disk = if self.slow { self.disk.slow_device() } else { self.disk.device(speed) };
        port.attach(disk).unwrap();
    }

    /// The disk was just plugged in: the hub tells of it, and it is set up.
    fn welcome(&mut self, host: &mut dyn HostDriver) -> Result<(), TransferError> {
        let hub = self.hub.expect("it is bound");
        assert_eq!(hub.wait(host, 1_000)?, [1 << PORT], "the hub tells of the port");
        hub.clear(host, PORT, feature::C_CONNECTION)?;
        let found = hub.enumerate(host, PORT, DISK);
        // Whoever pulls the hub now takes the disk with it.
        let Ok(found) = found else {
            return Err(TransferError::NoAnswer);
        };
        self.disk.bind(host, &found)
    }
}

impl Job for Tree {
    fn device(&mut self, speed: Speed) -> Box<dyn UsbDevice> {
        let hub = Hub::new(HubOptions::default()).unwrap();
        let port = hub.ports()[usize::from(PORT) - 1].clone();
        self.plug(&port, speed);
        self.port = Some(port);
        self.hub = None;
        Box::new(hub)
    }

    fn bind(&mut self, host: &mut dyn HostDriver, found: &Enumerated) -> Result<(), TransferError> {
        self.hub = Some(HubDriver::start(host, found)?);
        self.welcome(host)
    }

    fn work(&mut self, host: &mut dyn HostDriver) -> Result<(), TransferError> {
        self.disk.work(host)
    }

    fn check(&mut self) {
        self.disk.check();
    }

    fn addresses(&self) -> Vec<u8> {
        vec![DISK, ADDRESS]
    }

    fn inner_port(&self, round: u64) -> Option<Port> {
        self.port.clone().filter(|_| round.is_multiple_of(2))
    }

    /// The hub tells that the disk went, and that it came back; then it works as before.
    fn inner_gone(&mut self, host: &mut dyn HostDriver, told: TransferError) {
        // A translator that hears nothing from the device answers with STALL (USB 2.0, 11.17.1).
        assert!(matches!(told, TransferError::NoAnswer | TransferError::Stall), "{told:?}");
        self.disk.check();
        let hub = self.hub.expect("it is bound");
        assert_eq!(hub.wait(host, 1_000).unwrap(), [1 << PORT], "the hub tells of the port");
        let status = hub.status(host, PORT).unwrap();
        assert_eq!(status.status & (bit::CONNECTION | bit::ENABLE), 0);
        assert_ne!(status.change & 1 << (feature::C_CONNECTION - 16), 0);
        hub.clear(host, PORT, feature::C_CONNECTION).unwrap();
        let port = self.port.clone().expect("there is one");
        self.plug(&port, hub.device.speed);
        self.welcome(host).unwrap();
        self.disk.work(host).unwrap();
    }
}

#[test]
fn a_hub_or_the_disk_behind_it_is_pulled_out() {
    tell(|seed| Tree::new(seed, false));
}

#[test]
fn a_hub_or_the_disk_behind_its_translator_is_pulled_out() {
    tell_on(&[(Kind::Ehci, 1_000)], |seed| Tree::new(seed, true));
}
