//! A hub in a port, brought to where most stories begin.

use vm_usb::devices::hub::{Hub, HubOptions};
use vm_usb::topology::Port;
use vm_usb::usb::Speed;

use crate::driver::direct::DirectHost;
use crate::driver::enumerate::enumerate;
use crate::driver::hub::HubDriver;
use crate::driver::scripted::{Controls, Scripted};

/// Address of the hub.
pub const HUB: u8 = 2;

/// A host that moves transfers itself, and the hub it has set up.
pub struct Rig {
    pub host: DirectHost,
    pub hub: HubDriver,
    /// The hub's ports.
    pub ports: Vec<Port>,
}

pub fn hub(options: HubOptions) -> (Hub, Vec<Port>) {
    let hub = Hub::new(options).unwrap();
    let ports = hub.ports().to_vec();
    (hub, ports)
}

/// Plugs a scripted device in.
pub fn plug(port: &Port, speed: Speed) -> Controls {
    let (device, controls) = Scripted::new(speed);
    port.attach(Box::new(device)).unwrap();
    controls
}

impl Rig {
    /// On a bus of this speed.
    pub fn new(speed: Speed, options: HubOptions) -> Self {
        let (hub, ports) = hub(options);
        let mut host = DirectHost::new(speed, hub);
        let found = enumerate(&mut host, 0, HUB).unwrap();
        let hub = HubDriver::start(&mut host, &found).unwrap();
        Self { host, hub, ports }
    }

    pub fn high() -> Self {
        Self::new(Speed::High, HubOptions::default())
    }

    /// `wPortStatus` and `wPortChange` of a port.
    pub fn status(&mut self, port: u16) -> (u16, u16) {
        let status = self.hub.status(&mut self.host, port).unwrap();
        (status.status, status.change)
    }

    pub fn set(&mut self, port: u16, feature: u16) {
        self.hub.set(&mut self.host, port, feature).unwrap();
    }

    pub fn clear(&mut self, port: u16, feature: u16) {
        self.hub.clear(&mut self.host, port, feature).unwrap();
    }

    pub fn changes(&mut self) -> Option<Vec<u8>> {
        self.hub.wait(&mut self.host, 0).ok()
    }
}
