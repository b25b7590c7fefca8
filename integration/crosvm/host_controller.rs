// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! OHCI and EHCI host controllers, on vm-usb.
//!
//! The controller lives where the device does, in a jail of its own or not. Its thread, and one that
//! answers the interrupt controller, begin in `on_device_sandboxed`: threads do not survive the fork
//! into a jail.

use std::mem;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::anyhow;
use anyhow::Context;
use base::error;
use base::AsRawDescriptor;
use base::EventType;
use base::RawDescriptor;
use base::Tube;
use resources::Alloc;
use resources::AllocOptions;
use resources::SystemAllocator;
use rust_vmm_memory::mmap::MmapRegionBuilder;
use rust_vmm_memory::GuestMemoryMmap;
use rust_vmm_memory::GuestRegionMmap;
use sync::Mutex;
use vm_memory::GuestMemory;
use vm_usb::adapters::MonotonicClock;
use vm_usb::adapters::ThreadedFunction;
use vm_usb::controller::HostController;
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::pci::Identity;
use vm_usb::pci::InterruptLine;
use vm_usb::pci::PciFunction;
use vm_usb::pci::Placement;
use vm_usb::time::Time;
use vm_usb::topology::Host;
use vm_usb::topology::Port;

use crate::pci::BarRange;
use crate::pci::MsiConfig;
use crate::pci::PciAddress;
use crate::pci::PciBarConfiguration;
use crate::pci::PciBarPrefetchable;
use crate::pci::PciBarRegionType;
use crate::pci::PciDevice;
use crate::pci::PciDeviceError;
use crate::pci::PciInterruptPin;
use crate::utils::EventHandler;
use crate::utils::EventLoop;
use crate::IrqLevelEvent;
use crate::Suspendable;

type Memory = GuestMemoryMmap<()>;
type Function = PciFunction<Memory, Box<dyn HostController<Memory>>, Line>;
type Running = ThreadedFunction<Arc<Memory>, Box<dyn HostController<Memory>>, Line>;

const BAR0: u64 = 0x10;
const INTERRUPT_LINE: u64 = 0x3c;
/// The address bits of a memory BAR.
const BAR_ADDRESS: u32 = !0xf;

// Offsets in an MSI capability with 64-bit addresses (PCI 3.0, 6.8.1).
const MSI_CONTROL: u32 = 0x2;
const MSI_ADDRESS: u32 = 0x4;
const MSI_UPPER_ADDRESS: u32 = 0x8;
const MSI_DATA: u32 = 0xc;

/// Which controller a slot gets. EHCI is without companions here: full- and low-speed devices need a
/// slot with OHCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsbHostKind {
    /// USB 1.1: full and low speed.
    Ohci,
    /// USB 2.0: high speed.
    Ehci,
}

/// A USB host controller as a PCI device.
pub struct UsbHostController {
    label: &'static str,
    // Before the memory that it masters: fields are dropped in this order.
    stage: Stage,
    memory: Arc<Memory>,
    /// Keeps alive what `memory` maps.
    _guest_memory: GuestMemory,
    bar_size: u32,
    ports: Vec<Port>,
    address: Option<PciAddress>,
    msi_descriptor: RawDescriptor,
}

enum Stage {
    /// Before `on_device_sandboxed`.
    SetUp(Mutex<Function>),
    AtWork {
        function: Running,
        // Ends with the function.
        _resample: Option<ResampleLoop>,
    },
    /// A thread could not be started.
    Failed,
}

impl UsbHostController {
    /// A controller with `ports` empty sockets, from 1 to 15. `msi` is the device's end of a tube for
    /// `VmIrqRequest`.
    pub fn new(
        kind: UsbHostKind,
        ports: usize,
        guest_memory: GuestMemory,
        msi: Tube,
    ) -> anyhow::Result<Self> {
        let socket = match kind {
            UsbHostKind::Ohci => Port::classic,
            UsbHostKind::Ehci => Port::high_speed_only,
        };
        let ports: Vec<Port> = (0..ports).map(|_| socket()).collect();
        let links = |host| ports.iter().map(|port| port.link(host)).collect();
        let (label, identity, controller): (_, _, Box<dyn HostController<Memory>>) = match kind {
            UsbHostKind::Ohci => {
                let ohci = Ohci::new(links(Host::Classic));
                ("ohci controller", Identity::ohci(), Box::new(ohci))
            }
            UsbHostKind::Ehci => {
                let ehci = Ehci::new(links(Host::High));
                ("ehci controller", Identity::ehci(), Box::new(ehci))
            }
        };
        let id = u32::from(identity.vendor) | u32::from(identity.device) << 16;
        let msi = MsiConfig::new(true, false, msi, id, label.to_owned());
        let msi_descriptor = msi.get_msi_socket();
        let line = Line {
            msi,
            pin: None,
            asserted: Arc::new(AtomicBool::new(false)),
            routed: None,
        };
        let function = PciFunction::new(identity, Placement::default(), controller, line);
        Ok(Self {
            label,
            bar_size: function.bar_size(),
            stage: Stage::SetUp(Mutex::new(function)),
            memory: Arc::new(view(&guest_memory)?),
            _guest_memory: guest_memory,
            ports,
            address: None,
            msi_descriptor,
        })
    }

    /// The sockets. What has threads or descriptors of its own is plugged in after the fork.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    fn config_read(&self, offset: u64, data: &mut [u8]) {
        match &self.stage {
            Stage::SetUp(function) => {
                function.lock().config_read(&self.memory, Time::ZERO, offset, data);
            }
            Stage::AtWork { function, .. } => function.config_read(offset, data),
            Stage::Failed => data.fill(0xff),
        }
    }

    fn config_write(&self, offset: u64, data: &[u8]) {
        match &self.stage {
            Stage::SetUp(function) => {
                function.lock().config_write(&self.memory, Time::ZERO, offset, data);
            }
            Stage::AtWork { function, .. } => function.config_write(offset, data),
            Stage::Failed => {}
        }
    }

    fn start(&mut self, function: Function) -> anyhow::Result<Stage> {
        let line = function.line();
        let resample = match &line.pin {
            Some(pin) => Some(ResampleLoop::start(pin, line.asserted.clone())?),
            None => None,
        };
        let clock = MonotonicClock::new();
        let function = ThreadedFunction::new("usb_host", function, self.memory.clone(), clock)
            .context("failed to start the controller's thread")?;
        for port in &self.ports {
            port.subscribe(function.wake());
        }
        Ok(Stage::AtWork {
            function,
            _resample: resample,
        })
    }

    fn bar_address(&self) -> u32 {
        let mut bar = [0; 4];
        self.config_read(BAR0, &mut bar);
        u32::from_le_bytes(bar) & BAR_ADDRESS
    }
}

/// The guest's memory as rust-vmm's, over the same mappings.
fn view(guest_memory: &GuestMemory) -> anyhow::Result<Memory> {
    let mut regions = Vec::new();
    for region in guest_memory.regions() {
        let builder = MmapRegionBuilder::<()>::new(region.size)
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: the region is mapped at this address, readable and writable, for as long as
        // `guest_memory` lives, and `UsbHostController` keeps a handle of it until the end. The guest's
        // memory is accessed by volatile reads and writes alone, on both sides.
        let builder = unsafe { builder.with_raw_mmap_pointer(region.host_addr as *mut u8) };
        let mapping = builder.build().context("failed to share guest memory")?;
        let base = rust_vmm_memory::GuestAddress(region.guest_addr.offset());
        let region = GuestRegionMmap::new(mapping, base);
        regions.push(region.ok_or_else(|| anyhow!("guest memory ends beyond the address space"))?);
    }
    Memory::from_regions(regions).context("guest memory overlaps itself")
}

impl Drop for UsbHostController {
    fn drop(&mut self) {
        for port in &self.ports {
            // A disk writes out what is left of its data when it is dropped.
            drop(port.detach());
        }
    }
}

impl PciDevice for UsbHostController {
    fn debug_label(&self) -> String {
        self.label.to_owned()
    }

    fn allocate_address(
        &mut self,
        resources: &mut SystemAllocator,
    ) -> Result<PciAddress, PciDeviceError> {
        if self.address.is_none() {
            self.address = resources.allocate_pci(0, self.debug_label());
        }
        let address = self.address.ok_or(PciDeviceError::PciAllocationFailed)?;
        if let Stage::SetUp(function) = &self.stage {
            function.lock().line_mut().msi.set_pci_address(address);
        }
        Ok(address)
    }

    fn keep_rds(&self) -> Vec<RawDescriptor> {
        let mut descriptors = vec![self.msi_descriptor];
        if let Stage::SetUp(function) = &self.stage {
            if let Some(pin) = &function.lock().line().pin {
                descriptors.push(pin.get_trigger().as_raw_descriptor());
                descriptors.push(pin.get_resample().as_raw_descriptor());
            }
        }
        descriptors
    }

    fn assign_irq(&mut self, irq_evt: IrqLevelEvent, _pin: PciInterruptPin, irq_num: u32) {
        // A function that is alone in its slot has INTA#, which is what the register says already.
        self.config_write(INTERRUPT_LINE, &[irq_num as u8]);
        if let Stage::SetUp(function) = &self.stage {
            function.lock().line_mut().pin = Some(irq_evt);
        }
    }

    fn allocate_io_bars(
        &mut self,
        resources: &mut SystemAllocator,
    ) -> Result<Vec<BarRange>, PciDeviceError> {
        let address = self
            .address
            .expect("allocate_address must be called prior to allocate_io_bars");
        let size = u64::from(self.bar_size);
        let addr = resources
            .allocate_mmio(
                size,
                Alloc::PciBar {
                    bus: address.bus,
                    dev: address.dev,
                    func: address.func,
                    bar: 0,
                },
                format!("{}_bar0", self.label),
                AllocOptions::new().max_address(u32::MAX.into()).align(size),
            )
            .map_err(|e| PciDeviceError::IoAllocationFailed(size, e))?;
        self.config_write(BAR0, &(addr as u32).to_le_bytes());
        Ok(vec![BarRange {
            addr,
            size,
            prefetchable: false,
        }])
    }

    fn get_bar_configuration(&self, bar_num: usize) -> Option<PciBarConfiguration> {
        (bar_num == 0).then(|| {
            PciBarConfiguration::new(
                0,
                self.bar_size.into(),
                PciBarRegionType::Memory32BitRegion,
                PciBarPrefetchable::NotPrefetchable,
            )
            .set_address(self.bar_address().into())
        })
    }

    fn read_config_register(&self, reg_idx: usize) -> u32 {
        let mut register = [0; 4];
        self.config_read(reg_idx as u64 * 4, &mut register);
        u32::from_le_bytes(register)
    }

    fn write_config_register(&mut self, reg_idx: usize, offset: u64, data: &[u8]) {
        self.config_write(reg_idx as u64 * 4 + offset, data);
    }

    fn read_bar(&mut self, _bar_index: usize, offset: u64, data: &mut [u8]) {
        match &self.stage {
            Stage::AtWork { function, .. } => function.bar_read(offset, data),
            Stage::SetUp(_) | Stage::Failed => data.fill(0xff),
        }
    }

    fn write_bar(&mut self, _bar_index: usize, offset: u64, data: &[u8]) {
        if let Stage::AtWork { function, .. } = &self.stage {
            function.bar_write(offset, data);
        }
    }

    fn on_device_sandboxed(&mut self) {
        if let Stage::SetUp(function) = mem::replace(&mut self.stage, Stage::Failed) {
            match self.start(function.into_inner()) {
                Ok(stage) => self.stage = stage,
                Err(e) => error!("{} does not work: {:#}", self.label, e),
            }
        }
    }
}

impl Suspendable for UsbHostController {
    fn sleep(&mut self) -> anyhow::Result<()> {
        if let Stage::AtWork { function, .. } = &self.stage {
            function.pause();
        }
        Ok(())
    }

    fn wake(&mut self) -> anyhow::Result<()> {
        if let Stage::AtWork { function, .. } = &self.stage {
            function.resume();
        }
        Ok(())
    }
}

/// A function's interrupts.
struct Line {
    msi: MsiConfig,
    pin: Option<IrqLevelEvent>,
    /// The level of the pin, for whoever answers the interrupt controller.
    asserted: Arc<AtomicBool>,
    /// The message that has a route.
    routed: Option<(u64, u32)>,
}

impl InterruptLine for Line {
    fn set_level(&mut self, asserted: bool) {
        self.asserted.store(asserted, Ordering::SeqCst);
        if let (true, Some(pin)) = (asserted, &self.pin) {
            if let Err(e) = pin.trigger() {
                error!("USB host: failed to raise the interrupt pin: {}", e);
            }
        }
    }

    /// The guest writes its message to the function, which passes it on when there is a reason to: to a
    /// capability that gets a route for it.
    fn message(&mut self, address: u64, data: u32) {
        if self.routed.replace((address, data)) != Some((address, data)) {
            let (low, high) = (address as u32, (address >> 32) as u32);
            let msi = &mut self.msi;
            msi.write_msi_capability(MSI_CONTROL, &0_u16.to_le_bytes());
            msi.write_msi_capability(MSI_ADDRESS, &low.to_le_bytes());
            msi.write_msi_capability(MSI_UPPER_ADDRESS, &high.to_le_bytes());
            msi.write_msi_capability(MSI_DATA, &(data as u16).to_le_bytes());
            msi.write_msi_capability(MSI_CONTROL, &1_u16.to_le_bytes());
        }
        self.msi.trigger();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.msi.destroy();
    }
}

/// Answers the interrupt controller: after the guest has ended an interrupt it asks whether the pin is
/// still asserted.
struct ResampleLoop {
    event_loop: EventLoop,
    thread: Option<JoinHandle<()>>,
    // The loop has a weak reference alone.
    _resample: Arc<Resample>,
}

struct Resample {
    irq: IrqLevelEvent,
    asserted: Arc<AtomicBool>,
}

impl ResampleLoop {
    fn start(pin: &IrqLevelEvent, asserted: Arc<AtomicBool>) -> anyhow::Result<Self> {
        let irq = pin.try_clone().context("failed to clone the interrupt")?;
        let resample = Arc::new(Resample { irq, asserted });
        let (event_loop, thread) = EventLoop::start("usb_host_irq".to_owned(), None)
            .context("failed to start the interrupt's thread")?;
        let handler: Arc<dyn EventHandler> = resample.clone();
        let handler = Arc::downgrade(&handler);
        event_loop
            .add_event(resample.irq.get_resample(), EventType::Read, handler)
            .context("failed to wait for the resample event")?;
        Ok(Self {
            event_loop,
            thread: Some(thread),
            _resample: resample,
        })
    }
}

impl EventHandler for Resample {
    fn on_event(&self) -> anyhow::Result<()> {
        self.irq.clear_resample();
        if self.asserted.load(Ordering::SeqCst) {
            self.irq.trigger().context("failed to raise the pin again")?;
        }
        Ok(())
    }
}

impl Drop for ResampleLoop {
    fn drop(&mut self) {
        self.event_loop.stop();
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                error!("USB host: the interrupt's thread has panicked");
            }
        }
    }
}
