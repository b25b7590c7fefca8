//! The embedding: an EHCI controller and its OHCI companion in one slot.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use event_manager::EventSubscriber;
use kvm_ioctls::VmFd;
use vm_memory::GuestMemoryMmap;
use vm_usb::adapters::{KvmInterrupt, MonotonicClock, SharedFunction};
use vm_usb::controller::HostController;
use vm_usb::devices::full_speed::FullSpeed;
use vm_usb::devices::storage::{Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::pci::{Identity, InterruptPin, PciFunction, Placement};
use vm_usb::topology::{Host, Port};
use vm_usb::usb::UsbDevice;
use vm_usb_image::{Access, RawImage};

use crate::checkpoint::Checkpoint;
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

/// The sockets of both controllers. EHCI's driver decides which of the two serves a device: one that is
/// not a high-speed one goes to the companion.
pub(crate) struct Usb {
    ports: [Port; 2],
    ohci: Arc<Function<Ohci>>,
    ehci: Arc<Function<Ehci>>,
}

/// A controller as vCPU and event loop share it.
type Function<C> = SharedFunction<Memory, C, KvmInterrupt>;

impl Usb {
    /// Puts the controllers on `bus` and hands what the event loop must serve to `subscribe`.
    pub(crate) fn new(
        vm: &Arc<VmFd>,
        memory: &Memory,
        bus: &mut Bus,
        mut subscribe: impl FnMut(Arc<dyn EventSubscriber>),
    ) -> anyhow::Result<Self> {
        let ports = [Port::shared(), Port::shared()];
        let links = |host| ports.iter().map(|port| port.link(host)).collect();
        let (ohci, ehci) = (Ohci::new(links(Host::Classic)), Ehci::new(links(Host::High)));

        let clock = MonotonicClock::new();
        let mut plug = Plug { vm, memory, bus, clock, ports: &ports, subscribe: &mut subscribe };
        // Companions have the lower function numbers (EHCI 4.2).
        let ohci = plug.add(0, Identity::ohci(), InterruptPin::A, LINE_A, ohci)?;
        let ehci = plug.add(1, Identity::ehci(), InterruptPin::B, LINE_B, ehci)?;
        Ok(Self { ports, ohci, ehci })
    }

    /// Saves and restores everything each time `interval` has passed, once the event loop has it.
    pub(crate) fn checkpoint(&self, interval: Duration) -> anyhow::Result<Checkpoint> {
        Checkpoint::new(interval, self.ohci.clone(), self.ehci.clone(), self.ports.clone())
    }

    /// Plugs a high-speed disk into port 1.
    pub(crate) fn attach_ehci_disk(&self, image: &Path) -> anyhow::Result<()> {
        attach(&self.ports[0], disk(image, "ehci-disk")?)
    }

    /// Plugs a full-speed disk into port 2.
    pub(crate) fn attach_ohci_disk(&self, image: &Path) -> anyhow::Result<()> {
        attach(&self.ports[1], Box::new(FullSpeed::new(disk(image, "ohci-disk")?)))
    }
}

impl Drop for Usb {
    fn drop(&mut self) {
        for port in &self.ports {
            // A disk writes out what is left of its data when it is dropped.
            drop(port.detach());
        }
    }
}

fn disk(image: &Path, name: &str) -> anyhow::Result<Box<dyn UsbDevice>> {
    let image = RawImage::open(image, Access::ReadWrite)?;
    Ok(Box::new(Storage::new(image, Serial::from_name(name))))
}

fn attach(port: &Port, device: Box<dyn UsbDevice>) -> anyhow::Result<()> {
    port.attach(device).map_err(|refused| refused.reason)?;
    Ok(())
}

/// What it takes to put a controller into the machine.
struct Plug<'a> {
    vm: &'a Arc<VmFd>,
    memory: &'a Memory,
    bus: &'a mut Bus,
    clock: MonotonicClock,
    ports: &'a [Port],
    subscribe: &'a mut dyn FnMut(Arc<dyn EventSubscriber>),
}

impl Plug<'_> {
    fn add<C: HostController<GuestMemoryMmap> + 'static>(
        &mut self,
        number: u8,
        identity: Identity,
        pin: InterruptPin,
        line: u8,
        controller: C,
    ) -> anyhow::Result<Arc<Function<C>>> {
        let (interrupt, resample) = KvmInterrupt::new(self.vm.clone(), line.into())
            .context("KVM does not take the interrupt line")?;
        let placement = Placement { multi_function: true, pin };
        let function = PciFunction::new(identity, placement, controller, interrupt);
        let function = Arc::new(SharedFunction::new(function, self.memory.clone(), self.clock)?);
        // What firmware would leave behind.
        function.config_write(INTERRUPT_LINE, &[line]);
        for port in self.ports {
            port.subscribe(function.wake());
        }
        (self.subscribe)(Arc::new(resample));
        (self.subscribe)(function.clone());
        self.bus.add(SLOT, number, function.clone());
        Ok(function)
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
