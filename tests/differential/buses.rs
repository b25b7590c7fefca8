//! One device, and the ways by which a driver reaches it.

use vm_usb::devices::hub::{Hub, HubOptions, Translation};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::{Ohci, Pacing};
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{Speed, UsbDevice};

use crate::driver::ehci::EhciDriver;
use crate::driver::enumerate::{EnumerateError, Enumerated, enumerate};
use crate::driver::host::{HostDriver, Pipe, TransferError};
use crate::driver::hub::{HubDriver, feature};
use crate::driver::machine::Machine;
use crate::driver::ohci::{Idle, OhciDriver};
use crate::witness::{Diaries, Witness};

/// How a device is wired up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// In a port of an OHCI controller.
    Ohci(Pacing, Idle),
    /// Behind a full-speed hub of one.
    OhciHub,
    /// Behind a high-speed hub of an EHCI controller, whose translator speaks to it.
    Translator(Translation),
    /// In a port of an EHCI controller, at high speed.
    High,
}

/// Every way in which a device of full speed can be reached.
pub const FULL_SPEED: [Wiring; 7] = [
    Wiring::Ohci(Pacing::RealTime, Idle::Keep),
    Wiring::Ohci(Pacing::RealTime, Idle::Unlink),
    Wiring::Ohci(Pacing::Eager, Idle::Unlink),
    Wiring::Ohci(Pacing::Wire, Idle::Keep),
    Wiring::OhciHub,
    Wiring::Translator(Translation::Prompt),
    Wiring::Translator(Translation::Wire),
];

impl Wiring {
    pub fn speed(self) -> Speed {
        if self == Self::High { Speed::High } else { Speed::Full }
    }
}

/// A controller's driver.
pub enum Driver {
    Ohci(Box<OhciDriver>),
    Ehci(Box<EhciDriver>),
}

impl Driver {
    pub fn host(&mut self) -> &mut dyn HostDriver {
        match self {
            Self::Ohci(driver) => &mut **driver,
            Self::Ehci(driver) => &mut **driver,
        }
    }

    /// Isochronous packets, one a frame.
    pub fn isochronous(
        &mut self,
        pipe: &Pipe,
        packets: &mut [Vec<u8>],
    ) -> Result<(), TransferError> {
        match self {
            Self::Ohci(driver) => driver.isochronous(pipe, packets),
            Self::Ehci(driver) => driver.isochronous(pipe, packets),
        }
    }

    fn forget(&mut self, address: u8) {
        match self {
            Self::Ohci(driver) => driver.forget(address),
            Self::Ehci(driver) => driver.forget(address),
        }
    }
}

/// Address of the hub, where there is one, and of the device.
const HUB: u8 = 2;
const DEVICE: u8 = 7;

/// A driver, and the socket that the device is in.
pub struct Bus {
    pub driver: Driver,
    socket: Port,
    hub: Option<HubDriver>,
    pub diary: Diaries,
    /// The device, while it is pulled.
    pulled: Option<Box<dyn UsbDevice>>,
}

fn plug(port: &Port, device: Box<dyn UsbDevice>) {
    port.attach(device).map_err(|refused| refused.reason).unwrap();
}

impl Bus {
    /// With a device that looks at its script every `unit` bytes.
    pub fn new(wiring: Wiring, unit: usize) -> Self {
        let (device, diary) = Witness::new(wiring.speed(), unit);
        let (root, host) = match wiring {
            Wiring::Ohci(..) | Wiring::OhciHub => (Port::classic(), Host::Classic),
            Wiring::Translator(_) | Wiring::High => (Port::high_speed_only(), Host::High),
        };
        let options = match wiring {
            Wiring::Ohci(..) | Wiring::High => None,
            Wiring::OhciHub => Some(HubOptions { speed: Speed::Full, ..HubOptions::default() }),
            Wiring::Translator(translation) => {
                Some(HubOptions { translation, ..HubOptions::default() })
            }
        };
        let socket = match options {
            None => root.clone(),
            Some(options) => {
                let hub = Hub::new(options).unwrap();
                let socket = hub.ports()[0].clone();
                plug(&root, Box::new(hub));
                socket
            }
        };
        let link = vec![root.link(host)];
        let driver = match wiring {
            Wiring::Ohci(pacing, idle) => {
                let mut driver = OhciDriver::new(Ohci::new(link).with_pacing(pacing));
                driver.idle = idle;
                Driver::Ohci(Box::new(driver))
            }
            Wiring::OhciHub => Driver::Ohci(Box::new(OhciDriver::new(Ohci::new(link)))),
            Wiring::Translator(_) | Wiring::High => {
                Driver::Ehci(Box::new(EhciDriver::new(Machine::new(Ehci::new(link)))))
            }
        };
        let device: Box<dyn UsbDevice> = Box::new(device);
        let mut bus = Self { driver, socket, hub: None, diary, pulled: None };
        bus.driver.host().sleep_millis(1);
        if !matches!(wiring, Wiring::Ohci(..) | Wiring::High) {
            let found = enumerate(bus.driver.host(), 0, HUB).unwrap();
            bus.hub = Some(HubDriver::start(bus.driver.host(), &found).unwrap());
        }
        bus.pulled = Some(device);
        bus
    }

    /// Plugs the device in and brings it up.
    pub fn plug(&mut self) -> Result<Enumerated, EnumerateError> {
        if let Some(device) = self.pulled.take() {
            plug(&self.socket, device);
        }
        self.driver.forget(DEVICE);
        let host = self.driver.host();
        // Long enough for a hub to have noticed.
        host.sleep_millis(300);
        match &self.hub {
            None => enumerate(host, 0, DEVICE),
            Some(hub) => hub.enumerate(host, 1, DEVICE),
        }
    }

    /// Pulls the device.
    pub fn pull(&mut self) {
        self.pulled = self.pulled.take().or_else(|| self.socket.detach());
        let host = self.driver.host();
        host.sleep_millis(300);
        if let Some(hub) = &self.hub {
            hub.clear(host, 1, feature::C_CONNECTION).unwrap();
        }
    }

    pub fn is_plugged(&self) -> bool {
        self.pulled.is_none()
    }
}
