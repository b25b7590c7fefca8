//! A controller with one port, its driver, and somebody at the socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_usb::ehci::Ehci;
use vm_usb::ohci::{Ohci, Pacing};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{Speed, UsbDevice, Wake};

use crate::driver::ehci::{self, EhciDriver};
use crate::driver::host::HostDriver;
use crate::driver::machine::{Hand, Machine};
use crate::driver::ohci::{self, Idle, OhciDriver};

/// A kind of controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With this pacing, and drivers that do this with idle endpoints.
    Ohci(Pacing, Idle),
    Ehci,
}

/// Both, with how often a device is plugged in and pulled out: a thousand times, and some more on OHCI
/// in the other ways that change when things happen.
pub const KINDS: [(Kind, u64); 4] = [
    (Kind::Ohci(Pacing::RealTime, Idle::Unlink), 1_000),
    (Kind::Ohci(Pacing::Eager, Idle::Unlink), 200),
    (Kind::Ohci(Pacing::Wire, Idle::Keep), 200),
    (Kind::Ehci, 1_000),
];

/// What a driver needs besides transfers.
pub trait PortDriver: HostDriver {
    /// Whether an interrupt or its status told of a change at the port, and what the port says; the
    /// change is acknowledged.
    fn news(&mut self) -> News;

    /// Ends everything that it had with the device of this address.
    fn forget(&mut self, address: u8);

    fn now(&self) -> Time;

    /// Has `hand` act.
    fn expect(&mut self, hand: Hand);
}

/// What a port says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    pub told: bool,
    pub changed: bool,
    pub connected: bool,
}

impl News {
    pub const CAME: Self = Self { told: true, changed: true, connected: true };
    pub const WENT: Self = Self { told: true, changed: true, connected: false };
}

impl PortDriver for EhciDriver {
    fn news(&mut self) -> News {
        self.machine.run();
        self.service();
        let port = self.port(0);
        let acknowledged = ehci::port::CONNECT_CHANGE | ehci::port::ENABLE_CHANGE;
        self.machine.write32(ehci::reg::PORTSC, port & !ehci::port::CHANGES | acknowledged);
        News {
            told: std::mem::take(&mut self.port_changes) != 0,
            changed: port & ehci::port::CONNECT_CHANGE != 0,
            connected: port & ehci::port::CONNECT != 0,
        }
    }

    fn forget(&mut self, address: u8) {
        self.forget(address);
    }

    fn now(&self) -> Time {
        self.machine.now
    }

    fn expect(&mut self, hand: Hand) {
        self.machine.hand = Some(hand);
    }
}

impl PortDriver for OhciDriver {
    fn news(&mut self) -> News {
        self.machine.run();
        let status = self.machine.read32(ohci::reg::INTERRUPT_STATUS);
        let port = self.machine.read32(ohci::reg::RH_PORT_STATUS);
        self.machine.write32(ohci::reg::RH_PORT_STATUS, ohci::port::CSC | ohci::port::PESC);
        self.machine.write32(ohci::reg::INTERRUPT_STATUS, ohci::int::RHSC);
        News {
            told: status & ohci::int::RHSC != 0,
            changed: port & ohci::port::CSC != 0,
            connected: port & ohci::port::CCS != 0,
        }
    }

    fn forget(&mut self, address: u8) {
        self.forget(address);
    }

    fn now(&self) -> Time {
        self.machine.now
    }

    fn expect(&mut self, hand: Hand) {
        self.machine.hand = Some(hand);
    }
}

/// Counts how often the owner of the controller is woken.
#[derive(Default)]
pub struct Bell(AtomicU64);

impl Bell {
    pub fn rings(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Bell {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// All of it.
pub struct Bus {
    pub kind: Kind,
    pub port: Port,
    pub driver: Box<dyn PortDriver>,
    pub bell: Arc<Bell>,
}

impl Bus {
    pub fn new(kind: Kind) -> Self {
        let port = match kind {
            Kind::Ohci(..) => Port::classic(),
            Kind::Ehci => Port::high_speed_only(),
        };
        let bell = Arc::new(Bell::default());
        port.subscribe(bell.clone());
        let driver: Box<dyn PortDriver> = match kind {
            Kind::Ohci(pacing, idle) => {
                let ohci = Ohci::new(vec![port.link(Host::Classic)]).with_pacing(pacing);
                let mut driver = OhciDriver::new(ohci);
                driver.idle = idle;
                Box::new(driver)
            }
            Kind::Ehci => {
                Box::new(EhciDriver::new(Machine::new(Ehci::new(vec![port.link(Host::High)]))))
            }
        };
        Self { kind, port, driver, bell }
    }

    pub fn speed(&self) -> Speed {
        match self.kind {
            Kind::Ohci(..) => Speed::Full,
            Kind::Ehci => Speed::High,
        }
    }

    /// Plugs a device in; whoever runs the controller is woken, and the driver sees it come.
    pub fn plug(&mut self, device: Box<dyn UsbDevice>) {
        let woken = self.bell.rings();
        self.port.attach(device).unwrap();
        assert!(self.bell.rings() > woken, "{:?}: nobody was woken", self.kind);
        assert_eq!(self.driver.news(), News::CAME, "{:?}", self.kind);
    }
}
