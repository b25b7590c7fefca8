//! I/O ports: the serial line, PCI configuration, POST codes, the way out.

use std::io::{self, Stdout};
use std::sync::Arc;

use kvm_ioctls::VmFd;
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};
use vm_usb::usb::Wake;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::idle;
use crate::pci::{Bus, CONFIG_ADDRESS, CONFIG_DATA};

const COM1: u16 = 0x3f8;
const COM1_LAST: u16 = COM1 + 7;
const COM1_LINE: u32 = 4;
const PCI_LAST: u16 = CONFIG_DATA + 3;
/// Where firmware tells how far it has come.
const POST_CODE: u16 = 0x80;
/// A write of V ends the machine with exit status 2 * V + 1, as QEMU's isa-debug-exit does.
const EXIT: u16 = 0xf4;

/// An irqfd.
struct Line(EventFd);

impl Trigger for Line {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// Every port the guest can reach.
pub(crate) struct Ports {
    pub(crate) bus: Bus,
    serial: Serial<Line, NoEvents, Stdout>,
    /// Whom to tell that the guest is about to sleep.
    asleep: Option<Arc<dyn Wake>>,
}

impl Ports {
    pub(crate) fn new(vm: &VmFd, bus: Bus, asleep: Option<Arc<dyn Wake>>) -> anyhow::Result<Self> {
        let line = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?;
        vm.register_irqfd(&line, COM1_LINE)?;
        Ok(Self { bus, serial: Serial::new(Line(line), io::stdout()), asleep })
    }

    /// Guest read. A port without a device reads all ones.
    pub(crate) fn read(&mut self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        match (port, &mut *data) {
            (COM1..=COM1_LAST, [byte]) => *byte = self.serial.read((port - COM1) as u8),
            (CONFIG_ADDRESS..=PCI_LAST, data) => self.bus.port_read(port, data),
            _ => {}
        }
    }

    /// Guest write; the machine's exit status if it ends the machine.
    pub(crate) fn write(&mut self, port: u16, data: &[u8]) -> Option<u8> {
        match (port, data) {
            (COM1..=COM1_LAST, [byte]) => {
                // Standard output is gone: nobody reads what the guest says, which is not its fault.
                let _ = self.serial.write((port - COM1) as u8, *byte);
            }
            (CONFIG_ADDRESS..=PCI_LAST, data) => self.bus.port_write(port, data),
            (POST_CODE, [idle::ASLEEP]) => {
                if let Some(asleep) = &self.asleep {
                    asleep.wake();
                }
            }
            (EXIT, [value, ..]) => return Some(value << 1 | 1),
            _ => {}
        }
        None
    }
}
