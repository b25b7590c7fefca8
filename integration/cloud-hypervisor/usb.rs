// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! USB host controllers in this process, on vm-usb.
//!
//! A [`UsbController`] is a controller in a PCI slot of its own. vCPU threads carry out the guest's
//! accesses; a thread of the controller's does what falls due between them.

use std::any::Any;
use std::sync::{Arc, Barrier};
use std::{io, result};

use anyhow::anyhow;
use log::error;
use vm_allocator::{AddressAllocator, SystemAllocator};
use vm_device::interrupt::{
    InterruptIndex, InterruptSourceConfig, InterruptSourceGroup, MsiIrqSourceConfig,
};
use vm_device::{BusDevice, Resource};
use vm_memory::bitmap::AtomicBitmap;
use vm_memory::{Address, GuestAddress, GuestMemoryAtomic, GuestMemoryMmap};
use vm_migration::{Migratable, MigratableError, Pausable, Snapshot, Snapshottable, Transportable};
use vm_usb::adapters::{MonotonicClock, ThreadedFunction};
use vm_usb::controller::HostController;
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
use vm_usb::topology::{Host, Port};

use crate::{
    BarReprogrammingParams, PciBarConfiguration, PciBarPrefetchable, PciBarRegionType, PciBdf,
    PciDevice, PciDeviceError,
};

type Memory = GuestMemoryMmap<AtomicBitmap>;
type Controller = Box<dyn HostController<Memory>>;

const BAR0: u64 = 0x10;
const INTERRUPT_LINE: u64 = 0x3c;
/// The only vector of the function's MSI capability.
const VECTOR: InterruptIndex = 0;

/// Which controller a slot gets. There are no multi-function devices here, so EHCI has no companions:
/// full- and low-speed devices need a slot with OHCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsbControllerKind {
    /// USB 1.1: full and low speed.
    Ohci,
    /// USB 2.0: high speed.
    Ehci,
}

/// Where a controller's interrupts go.
pub struct UsbInterrupts {
    /// A group of one MSI vector.
    pub msi: Arc<dyn InterruptSourceGroup>,
    /// The group of the slot's interrupt pin and its number.
    pub pin: Option<(Arc<dyn InterruptSourceGroup>, u8)>,
}

/// A USB host controller as a PCI device.
pub struct UsbController {
    id: String,
    function: ThreadedFunction<GuestMemoryAtomic<Memory>, Controller, Line>,
    /// Where on the MMIO bus BAR 0 is.
    bar: Option<u64>,
    bar_size: u32,
    ports: Vec<Port>,
}

impl UsbController {
    /// A controller with `ports` empty sockets, from 1 to 15.
    ///
    /// # Errors
    /// If the process may not start another thread.
    pub fn new(
        id: String,
        kind: UsbControllerKind,
        ports: usize,
        bdf: PciBdf,
        memory: GuestMemoryAtomic<Memory>,
        interrupts: UsbInterrupts,
    ) -> io::Result<Self> {
        let socket = match kind {
            UsbControllerKind::Ohci => Port::classic,
            UsbControllerKind::Ehci => Port::high_speed_only,
        };
        let ports: Vec<Port> = (0..ports).map(|_| socket()).collect();
        let links = |host| ports.iter().map(|port| port.link(host)).collect();
        let (identity, controller): (_, Controller) = match kind {
            UsbControllerKind::Ohci => {
                (Identity::ohci(), Box::new(Ohci::new(links(Host::Classic))))
            }
            UsbControllerKind::Ehci => (Identity::ehci(), Box::new(Ehci::new(links(Host::High)))),
        };
        let irq = interrupts.pin.as_ref().map(|(_, irq)| *irq);
        let line = Line {
            msi: interrupts.msi,
            pin: interrupts.pin.map(|(group, _)| group),
            asserted: false,
            device: bdf.into(),
            routed: None,
        };
        let function = PciFunction::new(identity, Placement::default(), controller, line);
        let bar_size = function.bar_size();
        let function = ThreadedFunction::new(&id, function, memory, MonotonicClock::new())?;
        if let Some(irq) = irq {
            // What firmware would leave behind.
            function.config_write(INTERRUPT_LINE, &[irq]);
        }
        for port in &ports {
            port.subscribe(function.wake());
        }
        Ok(Self {
            id,
            function,
            bar: None,
            bar_size,
            ports,
        })
    }

    /// The sockets, to plug devices in and pull them out at any time.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Whether the guest has moved BAR 0 away from where it is on the bus.
    fn moved_bar(&self) -> Option<BarReprogrammingParams> {
        let new_base = self
            .function
            .with(|function, _, _| function.bar_address())?;
        // All ones ask for the size, from a guest that leaves memory space enabled.
        let probe = new_base == !(self.bar_size - 1);
        let (old_base, new_base) = (self.bar?, u64::from(new_base));
        (new_base != old_base && !probe).then_some(BarReprogrammingParams {
            old_base,
            new_base,
            len: self.bar_size.into(),
            region_type: PciBarRegionType::Memory32BitRegion,
        })
    }

    fn put_bar(&self, base: u64) {
        // Allocated below 4 GiB.
        self.function
            .config_write(BAR0, &(base as u32).to_le_bytes());
    }
}

impl Drop for UsbController {
    fn drop(&mut self) {
        for port in &self.ports {
            // A disk writes out what is left of its data when it is dropped.
            drop(port.detach());
        }
    }
}

impl BusDevice for UsbController {
    fn read(&mut self, base: u64, offset: u64, data: &mut [u8]) {
        self.read_bar(base, offset, data);
    }

    fn write(&mut self, base: u64, offset: u64, data: &[u8]) -> Option<Arc<Barrier>> {
        self.write_bar(base, offset, data)
    }
}

impl PciDevice for UsbController {
    fn allocate_bars(
        &mut self,
        _allocator: &mut SystemAllocator,
        mmio32_allocator: &mut AddressAllocator,
        _mmio64_allocator: &mut AddressAllocator,
        resources: Option<Vec<Resource>>,
    ) -> result::Result<Vec<PciBarConfiguration>, PciDeviceError> {
        let restored = resources
            .into_iter()
            .flatten()
            .find_map(|resource| match resource {
                Resource::PciBar { index: 0, base, .. } => Some(GuestAddress(base)),
                _ => None,
            });
        let size = u64::from(self.bar_size);
        let base = mmio32_allocator
            .allocate(restored, size, Some(size))
            .ok_or(PciDeviceError::IoAllocationFailed(size))?
            .raw_value();
        self.bar = Some(base);
        self.put_bar(base);
        let bar = PciBarConfiguration::default()
            .set_index(0)
            .set_address(base)
            .set_size(size)
            .set_region_type(PciBarRegionType::Memory32BitRegion)
            .set_prefetchable(PciBarPrefetchable::NotPrefetchable);
        Ok(vec![bar])
    }

    fn free_bars(
        &mut self,
        _allocator: &mut SystemAllocator,
        mmio32_allocator: &mut AddressAllocator,
        _mmio64_allocator: &mut AddressAllocator,
    ) -> result::Result<(), PciDeviceError> {
        if let Some(base) = self.bar.take() {
            mmio32_allocator.free(GuestAddress(base), self.bar_size.into());
        }
        Ok(())
    }

    fn write_config_register(
        &mut self,
        reg_idx: usize,
        offset: u64,
        data: &[u8],
    ) -> (Vec<BarReprogrammingParams>, Option<Arc<Barrier>>) {
        self.function
            .config_write(reg_idx as u64 * 4 + offset, data);
        (self.moved_bar().into_iter().collect(), None)
    }

    fn read_config_register(&mut self, reg_idx: usize) -> u32 {
        let mut register = [0; 4];
        self.function.config_read(reg_idx as u64 * 4, &mut register);
        u32::from_le_bytes(register)
    }

    fn read_bar(&mut self, _base: u64, offset: u64, data: &mut [u8]) {
        self.function.bar_read(offset, data);
    }

    fn write_bar(&mut self, _base: u64, offset: u64, data: &[u8]) -> Option<Arc<Barrier>> {
        self.function.with(|function, memory, now| {
            let was_asserted = function.line().asserted;
            function.bar_write(memory, now, offset, data);
            if was_asserted {
                function.line().raise_again();
            }
        });
        None
    }

    fn move_bar(&mut self, _old_base: u64, new_base: u64) -> result::Result<(), io::Error> {
        self.bar = Some(new_base);
        Ok(())
    }

    fn restore_bar_addr(&mut self, params: &BarReprogrammingParams) {
        self.put_bar(params.old_base);
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn id(&self) -> Option<String> {
        Some(self.id.clone())
    }
}

impl Pausable for UsbController {
    fn pause(&mut self) -> result::Result<(), MigratableError> {
        self.function.pause();
        Ok(())
    }

    fn resume(&mut self) -> result::Result<(), MigratableError> {
        self.function.resume();
        Ok(())
    }
}

impl Snapshottable for UsbController {
    fn id(&self) -> String {
        self.id.clone()
    }

    /// Refused rather than forgotten: a guest restored without its controllers' state would hang.
    fn snapshot(&mut self) -> result::Result<Snapshot, MigratableError> {
        Err(MigratableError::Snapshot(anyhow!(
            "{}: USB controllers cannot be saved yet; remove the device first",
            self.id
        )))
    }
}

impl Transportable for UsbController {}
impl Migratable for UsbController {}

/// A function's interrupts, through interrupt source groups.
struct Line {
    msi: Arc<dyn InterruptSourceGroup>,
    pin: Option<Arc<dyn InterruptSourceGroup>>,
    /// The level of the pin.
    asserted: bool,
    /// The function's number, which interrupt controllers on some machines want to know.
    device: u32,
    /// The message that the vector is routed to.
    routed: Option<(u64, u32)>,
}

impl Line {
    fn raise(&self) {
        if let Some(pin) = &self.pin
            && let Err(error) = pin.trigger(0)
        {
            error!("A USB controller's interrupt pin cannot be raised: {error}");
        }
    }

    /// The pin groups know edges alone, and nobody tells of the end of an interrupt. A driver's write
    /// that leaves the level asserted may be the one that ends its handler, so raise it again.
    fn raise_again(&self) {
        if self.asserted {
            self.raise();
        }
    }
}

impl InterruptLine for Line {
    fn set_level(&mut self, asserted: bool) {
        self.asserted = asserted;
        self.raise_again();
    }

    fn message(&mut self, address: u64, data: u32) {
        if self.routed != Some((address, data)) {
            let message = InterruptSourceConfig::MsiIrq(MsiIrqSourceConfig {
                high_addr: (address >> 32) as u32,
                low_addr: address as u32,
                data,
                devid: self.device,
            });
            if let Err(error) = self.msi.update(VECTOR, message, false, true) {
                error!("A USB controller's interrupt message cannot be routed: {error}");
                return;
            }
            self.routed = Some((address, data));
        }
        if let Err(error) = self.msi.trigger(VECTOR) {
            error!("A USB controller's interrupt message cannot be sent: {error}");
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.routed.is_some()
            && let Err(error) = self.msi.disable()
        {
            error!("A USB controller's interrupt message cannot be switched off: {error}");
        }
    }
}
