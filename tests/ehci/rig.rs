//! A controller with a scripted high-speed device, brought to where most rules begin: running,
//! configured, the device enabled behind port 0 with address 5 and configuration 1.

use vm_usb::ehci::Ehci;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{EndpointAddress, Outcome, Pid, SetupPacket, Speed, Status, Toggle, request};

use crate::driver::ehci::{EhciDriver, HIGH_SPEED, Queue, Td, cmd, fresh_device, reg, sts, token};
use crate::driver::host::{Device, HostDriver, Pipe};
use crate::driver::machine::Machine;
use crate::driver::scripted::{Controls, Scripted, Seen};

pub const IN1: EndpointAddress = EndpointAddress::r#in(1);
pub const OUT1: EndpointAddress = EndpointAddress::out(1);
pub const IN2: EndpointAddress = EndpointAddress::r#in(2);
pub const OUT2: EndpointAddress = EndpointAddress::out(2);
pub const IN3: EndpointAddress = EndpointAddress::r#in(3);

/// The address tests give their device.
pub const ADDRESS: u8 = 5;

/// A driver and the device it has configured.
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

/// A machine with a controller of `count` ports of its own, nothing plugged in, nothing set up.
pub fn bare(count: usize) -> (Machine<Ehci>, Vec<Port>) {
    let ports: Vec<Port> = (0..count).map(|_| Port::high_speed_only()).collect();
    (Machine::new(controller(&ports)), ports)
}

/// One transfer as the device saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub pid: Pid,
    pub endpoint: u8,
    pub len: usize,
    pub toggle: Toggle,
    pub outcome: Outcome,
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
        rig.enumerate();
        rig
    }

    /// Resets port 0 and brings the device behind it to configuration 1.
    pub fn enumerate(&mut self) {
        assert_eq!(self.driver.reset_port(0), Some(Speed::High));
        let fresh = fresh_device();
        let set_address = SetupPacket::new(0, request::SET_ADDRESS, ADDRESS.into(), 0, 0);
        self.driver.control(&fresh, set_address, &[]).unwrap();
        self.device.address = ADDRESS;
        let device = self.device;
        let configure = SetupPacket::new(0, request::SET_CONFIGURATION, 1, 0, 0);
        self.driver.control(&device, configure, &[]).unwrap();
        self.driver.sleep_millis(1);
        self.controls.take_seen();
        self.driver.take_events();
    }

    pub fn bulk(&self, endpoint: EndpointAddress) -> Pipe {
        Pipe { device: self.device, endpoint, max_packet: 512, interval: 0 }
    }

    pub fn interrupt(&self, endpoint: EndpointAddress, interval: u8) -> Pipe {
        Pipe { device: self.device, endpoint, max_packet: 64, interval }
    }

    /// Opens a bulk endpoint's queue, in the ring, with NAK counter reload `nak_reload`.
    pub fn open(&mut self, endpoint: EndpointAddress, nak_reload: u32) -> Queue {
        self.driver.open(ADDRESS, endpoint.number(), 512, nak_reload << 28)
    }

    /// A bulk endpoint's queue that is in no schedule.
    pub fn unlinked(&mut self, endpoint: EndpointAddress) -> Queue {
        let characteristics = self.characteristics(endpoint, 512);
        self.driver.queue(characteristics, 1 << 30, None)
    }

    pub fn characteristics(&self, endpoint: EndpointAddress, max_packet: u32) -> u32 {
        u32::from(ADDRESS) | u32::from(endpoint.number()) << 8 | HIGH_SPEED | max_packet << 16
    }

    /// An interrupt queue with this S-mask and Mult, in every frame.
    pub fn open_interrupt(&mut self, endpoint: EndpointAddress, s_mask: u8, mult: u32) -> Queue {
        let characteristics = self.characteristics(endpoint, 64);
        let capabilities = mult << 30 | u32::from(s_mask);
        let queue = self.driver.queue(characteristics, capabilities, Some(1));
        self.driver.link_periodic(&queue, 0);
        queue
    }

    /// A buffer in guest memory.
    pub fn buffer(&mut self, len: u32) -> u32 {
        self.driver.machine.alloc(len.max(1), 0x1000)
    }

    /// A buffer that holds `bytes`.
    pub fn buffer_of(&mut self, bytes: &[u8]) -> u32 {
        self.driver.machine.alloc_bytes(bytes, 0x1000)
    }

    pub fn submit(&mut self, queue: &mut Queue, tds: &[Td]) -> Vec<u32> {
        self.driver.submit(queue, tds)
    }

    /// Lets a tenth of a millisecond pass: enough for anything that can go on to have done so.
    pub fn settle(&mut self) {
        self.driver.machine.advance_micros(100);
    }

    /// Lets time pass, microframe by microframe.
    pub fn microframes(&mut self, count: u64) {
        self.driver.machine.advance_micros(125 * count);
    }

    pub fn load(&self, address: u32) -> u32 {
        self.driver.machine.load(address)
    }

    pub fn store(&mut self, address: u32, value: u32) {
        self.driver.machine.store(address, value);
    }

    /// Token of a qTD.
    pub fn token(&self, qtd: u32) -> u32 {
        self.load(qtd + 8)
    }

    /// Token of a queue head's overlay.
    pub fn overlay(&self, queue: &Queue) -> u32 {
        self.load(queue.head + 0x18)
    }

    pub fn read(&mut self, register: u64) -> u32 {
        self.driver.machine.read32(register)
    }

    pub fn write(&mut self, register: u64, value: u32) {
        self.driver.machine.write32(register, value);
    }

    pub fn status(&mut self) -> u32 {
        self.read(reg::USBSTS)
    }

    /// Has the controller stop, with the driver's interrupts served.
    pub fn halt(&mut self) {
        let command = self.read(reg::USBCMD);
        self.write(reg::USBCMD, command & !cmd::RUN);
        assert!(self.driver.wait(2, |m| m.read32(reg::USBSTS) & sts::HALTED != 0));
    }

    /// Has it go on.
    pub fn resume(&mut self) {
        let command = self.read(reg::USBCMD);
        self.write(reg::USBCMD, command | cmd::RUN);
    }

    /// Stops the controller, sets FRINDEX and has it go on.
    pub fn set_frame_index(&mut self, index: u32) {
        self.halt();
        self.write(reg::FRINDEX, index);
        self.resume();
    }

    /// What the device's endpoints saw since the last look.
    pub fn packets(&mut self) -> Vec<Packet> {
        let seen = self.controls.take_seen();
        let packets = seen.into_iter().filter_map(|seen| match seen {
            Seen::Transfer { pid, endpoint, len, toggle, outcome, .. } => {
                Some(Packet { pid, endpoint, len, toggle, outcome })
            }
            _ => None,
        });
        packets.collect()
    }

    /// How many tokens the device got at an IN endpoint since the last look, and forgets the rest.
    pub fn tokens(&mut self) -> usize {
        self.packets().len()
    }

    /// The whole of guest memory that the driver uses.
    pub fn memory(&self) -> Vec<u8> {
        self.driver.machine.bytes(0, 8 << 20)
    }
}

/// Whether a token says that the transfer is over and well.
pub fn is_done(t: u32) -> bool {
    t & (token::ACTIVE | token::HALTED) == 0
}

pub fn is_nak(outcome: Outcome) -> bool {
    matches!(outcome.status, Status::Nak(_))
}

/// Bytes with a pattern in which every position differs from its neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
}
