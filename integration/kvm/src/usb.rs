//! The embedding: an EHCI controller and its OHCI companion in one slot.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use event_manager::EventSubscriber;
use kvm_ioctls::VmFd;
use vm_memory::GuestMemoryMmap;
use vm_usb::adapters::{KvmInterrupt, MonotonicClock, SharedFunction};
use vm_usb::controller::HostController;
use vm_usb::devices::storage::{Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::pci::{Identity, InterruptPin, PciFunction, Placement};
use vm_usb::topology::{Host, Port};
use vm_usb_image::{Access, RawImage};

use crate::pci::{Bus, PciDevice};

/// Guest memory as everybody here shares it.
pub(crate) type Memory = Arc<GuestMemoryMmap>;

/// Slot of both controllers.
const SLOT: u8 = 1;
/// Interrupt line of INTA#, the companion's.
pub(crate) const LINE_A: u8 = 10;
/// Interrupt line of INTB#, EHCI's.
pub(crate) const LINE_B: u8 = 11;
/// The register firmware leaves the line's number in (PCI 3.0, 6.2.4).
const INTERRUPT_LINE: u64 = 0x3c;

/// Both controllers and their sockets.
pub(crate) struct Usb {
    /// EHCI port 1, which is the companion's port 1 too.
    shared: Port,
    /// The companion's port 2, which EHCI does not reach.
    classic: Port,
}

impl Usb {
    /// Puts the controllers on `bus` and hands what the event loop must serve to `subscribe`.
    pub(crate) fn new(
        vm: &Arc<VmFd>,
        memory: &Memory,
        bus: &mut Bus,
        mut subscribe: impl FnMut(Arc<dyn EventSubscriber>),
    ) -> anyhow::Result<Self> {
        let (shared, classic) = (Port::shared(), Port::classic());
        let ohci = Ohci::new(vec![shared.link(Host::Classic), classic.link(Host::Classic)]);
        let ehci = Ehci::new(vec![shared.link(Host::High)]);

        let mut plug =
            Plug { vm, memory, bus, clock: MonotonicClock::new(), subscribe: &mut subscribe };
        // Companions have the lower function numbers (EHCI 4.2).
        plug.add(0, Identity::ohci(), InterruptPin::A, LINE_A, ohci, &[&shared, &classic])?;
        plug.add(1, Identity::ehci(), InterruptPin::B, LINE_B, ehci, &[&shared])?;
        Ok(Self { shared, classic })
    }

    /// Plugs a disk into the port that EHCI owns once its driver has started.
    pub(crate) fn attach_ehci_disk(&self, image: &Path) -> anyhow::Result<()> {
        attach_disk(&self.shared, image, "ehci-disk")
    }

    /// Plugs a disk into the companion's own port.
    pub(crate) fn attach_ohci_disk(&self, image: &Path) -> anyhow::Result<()> {
        attach_disk(&self.classic, image, "ohci-disk")
    }
}

impl Drop for Usb {
    fn drop(&mut self) {
        // A disk writes out what is left of its data when it is dropped.
        drop(self.shared.detach());
        drop(self.classic.detach());
    }
}

fn attach_disk(port: &Port, image: &Path, name: &str) -> anyhow::Result<()> {
    let image = RawImage::open(image, Access::ReadWrite)?;
    port.attach(Box::new(Storage::new(image, Serial::from_name(name))))
        .map_err(|refused| refused.reason)?;
    Ok(())
}

/// What it takes to put a controller into the machine.
struct Plug<'a> {
    vm: &'a Arc<VmFd>,
    memory: &'a Memory,
    bus: &'a mut Bus,
    clock: MonotonicClock,
    subscribe: &'a mut dyn FnMut(Arc<dyn EventSubscriber>),
}

impl Plug<'_> {
    fn add(
        &mut self,
        number: u8,
        identity: Identity,
        pin: InterruptPin,
        line: u8,
        controller: impl HostController<GuestMemoryMmap> + 'static,
        ports: &[&Port],
    ) -> anyhow::Result<()> {
        let (interrupt, resample) = KvmInterrupt::new(self.vm.clone(), line.into())
            .context("KVM does not take the interrupt line")?;
        let placement = Placement { multi_function: true, pin };
        let function = PciFunction::new(identity, placement, controller, interrupt);
        let function = Arc::new(SharedFunction::new(function, self.memory.clone(), self.clock)?);
        // What firmware would leave behind.
        function.config_write(INTERRUPT_LINE, &[line]);
        for port in ports {
            port.subscribe(function.wake());
        }
        (self.subscribe)(Arc::new(resample));
        (self.subscribe)(function.clone());
        self.bus.add(SLOT, number, function);
        Ok(())
    }
}

impl<C> PciDevice for SharedFunction<Memory, C, KvmInterrupt>
where
    C: HostController<GuestMemoryMmap>,
{
    fn config_read(&self, offset: u8, data: &mut [u8]) {
        Self::config_read(self, offset.into(), data);
    }

    fn config_write(&self, offset: u8, data: &[u8]) {
        Self::config_write(self, offset.into(), data);
    }

    fn mmio_read(&self, address: u64, data: &mut [u8]) -> bool {
        Self::mmio_read(self, address, data)
    }

    fn mmio_write(&self, address: u64, data: &[u8]) -> bool {
        Self::mmio_write(self, address, data)
    }
}
