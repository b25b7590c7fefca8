//! The controller behind PCI configuration space.

use std::sync::{Arc, Mutex};

use vm_memory::GuestMemoryMmap;
use vm_usb::ehci::Ehci;
use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
use vm_usb::time::Time;
use vm_usb::topology::Port;

use super::rig::controller;
use crate::driver::early_console::Registers;
use crate::driver::ehci::{cmd, port, reg};
use crate::driver::machine::Machine;

/// What an interrupt line was told.
#[derive(Default)]
pub struct Told {
    pub levels: Vec<bool>,
    pub messages: usize,
    pub pme: bool,
}

/// An interrupt line that remembers.
#[derive(Clone, Default)]
pub struct Line(Arc<Mutex<Told>>);

impl InterruptLine for Line {
    fn set_level(&mut self, asserted: bool) {
        self.0.lock().unwrap().levels.push(asserted);
    }

    fn message(&mut self, _address: u64, _data: u32) {
        self.0.lock().unwrap().messages += 1;
    }

    fn set_power_management_event(&mut self, asserted: bool) {
        self.0.lock().unwrap().pme = asserted;
    }
}

/// A function, its memory and its ports.
pub struct Pci {
    pub function: PciFunction<GuestMemoryMmap, Ehci, Line>,
    pub memory: GuestMemoryMmap,
    pub now: Time,
    pub ports: Vec<Port>,
    line: Line,
}

impl Pci {
    /// A running controller with memory space and bus mastering on, and port change interrupts.
    pub fn running(ports: Vec<Port>, placement: Placement) -> Self {
        let mut pci = Self::new(ports, placement);
        pci.set_config16(4, 6);
        pci.write32(reg::USBCMD, cmd::RUN);
        pci.write32(reg::CONFIGFLAG, 1);
        for n in 0..pci.ports.len() as u64 {
            pci.write32(reg::PORTSC + 4 * n, port::POWER);
        }
        pci.write32(reg::USBINTR, 0x37);
        pci
    }

    /// As after power-on.
    pub fn new(ports: Vec<Port>, placement: Placement) -> Self {
        Self::around(Machine::new(controller(&ports)), ports, placement)
    }

    /// The function with a machine's controller, memory and time.
    pub fn around(machine: Machine<Ehci>, ports: Vec<Port>, placement: Placement) -> Self {
        let line = Line::default();
        let Machine { controller, memory, now, .. } = machine;
        let function = PciFunction::new(Identity::ehci(), placement, controller, line.clone());
        Self { function, memory, now, ports, line }
    }

    pub fn told<R>(&self, look: impl FnOnce(&mut Told) -> R) -> R {
        look(&mut self.line.0.lock().unwrap())
    }

    pub fn config8(&mut self, offset: u64) -> u8 {
        let mut data = [0];
        self.function.config_read(&self.memory, self.now, offset, &mut data);
        data[0]
    }

    pub fn config16(&mut self, offset: u64) -> u16 {
        u16::from_le_bytes([self.config8(offset), self.config8(offset + 1)])
    }

    pub fn config32(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.function.config_read(&self.memory, self.now, offset, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn set_config(&mut self, offset: u64, data: &[u8]) {
        self.function.config_write(&self.memory, self.now, offset, data);
    }

    pub fn set_config16(&mut self, offset: u64, value: u16) {
        self.set_config(offset, &value.to_le_bytes());
    }

    pub fn read32(&mut self, register: u64) -> u32 {
        let mut data = [0; 4];
        self.function.bar_read(&self.memory, self.now, register, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write32(&mut self, register: u64, value: u32) {
        self.function.bar_write(&self.memory, self.now, register, &value.to_le_bytes());
    }

    pub fn run(&mut self) {
        self.function.run(&self.memory, self.now);
    }

    pub fn advance_millis(&mut self, millis: u64) {
        for _ in 0..millis * 20 {
            self.now = self.now.after_micros(50);
            self.run();
        }
    }

    /// Offset of the standard capability with this id.
    pub fn capability(&mut self, id: u8) -> Option<u64> {
        let mut at = u64::from(self.config8(0x34));
        while at != 0 {
            if self.config8(at) == id {
                return Some(at);
            }
            at = self.config8(at + 1).into();
        }
        None
    }

    /// Puts the function into a power state: 0 for D0, 3 for D3hot, with PME_En kept on.
    pub fn set_power_state(&mut self, state: u16) {
        let power = self.capability(1).expect("power management");
        self.set_config16(power + 4, 0x100 | state);
    }

    pub fn pme_status(&mut self) -> bool {
        let power = self.capability(1).expect("power management");
        self.config16(power + 4) & 0x8000 != 0
    }
}

impl Registers for Pci {
    fn read32(&mut self, register: u64) -> u32 {
        Pci::read32(self, register)
    }

    fn write32(&mut self, register: u64, value: u32) {
        Pci::write32(self, register, value);
    }

    fn sleep_millis(&mut self, millis: u64) {
        self.advance_millis(millis);
    }
}
