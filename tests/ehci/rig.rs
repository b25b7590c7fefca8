//! A controller with a scripted high-speed device, brought to where most rules begin.

use vm_usb::ehci::Ehci;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{EndpointAddress, SetupPacket, Speed, request};

use crate::driver::ehci::{EhciDriver, fresh_device};
use crate::driver::host::{Device, HostDriver, Pipe};
use crate::driver::machine::Machine;
use crate::driver::scripted::{Controls, Scripted};

pub const IN1: EndpointAddress = EndpointAddress::r#in(1);
pub const OUT1: EndpointAddress = EndpointAddress::out(1);
pub const IN2: EndpointAddress = EndpointAddress::r#in(2);
pub const OUT2: EndpointAddress = EndpointAddress::out(2);
pub const IN3: EndpointAddress = EndpointAddress::r#in(3);
pub const OUT3: EndpointAddress = EndpointAddress::out(3);

/// The address tests give their device.
pub const ADDRESS: u8 = 5;

/// A driver and the device it has configured behind port 0.
pub struct Rig {
    pub driver: EhciDriver,
    pub device: Device,
    pub controls: Controls,
    pub ports: Vec<Port>,
}

/// A controller with `ports`.
pub fn controller(ports: &[Port]) -> Ehci {
    Ehci::new(ports.iter().map(|port| port.link(Host::High)).collect())
}

/// A machine with a controller of one port of its own, nothing plugged in.
pub fn bare() -> (Machine<Ehci>, Port) {
    let port = Port::high_speed_only();
    (Machine::new(controller(std::slice::from_ref(&port))), port)
}

impl Rig {
    pub fn new() -> Self {
        Self::with(|ehci| ehci)
    }

    pub fn with(change: impl FnOnce(Ehci) -> Ehci) -> Self {
        let ports = vec![Port::high_speed_only(), Port::high_speed_only()];
        let driver = EhciDriver::new(Machine::new(change(controller(&ports))));
        let (scripted, controls) = Scripted::new(Speed::High);
        ports[0].attach(Box::new(scripted)).unwrap();
        let mut rig = Self { driver, device: fresh_device(), controls, ports };
        rig.driver.sleep_millis(1);
        assert_eq!(rig.driver.reset_port(0), Some(Speed::High));
        let fresh = rig.device;
        let set_address = SetupPacket::new(0, request::SET_ADDRESS, ADDRESS.into(), 0, 0);
        rig.driver.control(&fresh, set_address, &[]).unwrap();
        rig.device.address = ADDRESS;
        let device = rig.device;
        let configure = SetupPacket::new(0, request::SET_CONFIGURATION, 1, 0, 0);
        rig.driver.control(&device, configure, &[]).unwrap();
        rig.controls.take_seen();
        rig.driver.take_events();
        rig
    }

    pub fn bulk(&self, endpoint: EndpointAddress) -> Pipe {
        Pipe { device: self.device, endpoint, max_packet: 512, interval: 0 }
    }

    pub fn interrupt(&self, endpoint: EndpointAddress, interval: u8) -> Pipe {
        Pipe { device: self.device, endpoint, max_packet: 64, interval }
    }
}
