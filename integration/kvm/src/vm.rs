//! The virtual machine: one thread for the vCPU, one for everything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use event_manager::{EventManager, EventOps, EventSet, EventSubscriber, Events, SubscriberOps};
use kvm_bindings::{
    KVM_IRQCHIP_PIC_SLAVE, kvm_irqchip, kvm_pit_config, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VmFd};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
use vm_usb::adapters::WakeFd;
use vm_usb::usb::Wake;

use crate::cli::Arguments;
use crate::idle::{self, Idle};
use crate::pci::Bus;
use crate::ports::Ports;
use crate::usb::{self, Usb};
use crate::{boot, monitor, vcpu};

/// Three pages that VMX needs for real mode, out of the way of RAM and BARs.
const TSS_ADDRESS: usize = 0xfffb_d000;

/// Boots the kernel and runs the machine until the guest ends it; the machine's exit status.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let size = arguments.memory as usize * 1024 * 1024;
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)])
        .with_context(|| format!("the host has no {} MiB for the guest", arguments.memory))?;
    let memory = Arc::new(memory);
    let entry = boot::load(&memory, &arguments.kernel, &arguments.cmdline)?;

    let kvm = Kvm::new().context(
        "cannot use /dev/kvm: load the kvm module, and make sure that you may read and write it",
    )?;
    let vm = Arc::new(create(&kvm, &memory)?);

    let mut events = EventManager::<Arc<dyn EventSubscriber>>::new()
        .map_err(|error| anyhow!("cannot create the event loop: {error:?}"))?;
    let mut bus = Bus::new();
    let usb = Usb::new(&vm, &memory, &mut bus, |subscriber| {
        events.add_subscriber(subscriber);
    })?;
    let usb = Arc::new(usb);
    for (disk, attach) in [
        (&arguments.ehci_disk, Usb::attach_ehci_disk as fn(&Usb, &_) -> _),
        (&arguments.ohci_disk, Usb::attach_ohci_disk),
    ] {
        disk.as_ref().map_or(Ok(()), |image| attach(&usb, image))?;
    }
    if arguments.ehci_keyboard {
        usb.attach_ehci_keyboard()?;
    }
    if arguments.ohci_keyboard {
        usb.attach_ohci_keyboard()?;
    }

    if let Some(millis) = arguments.checkpoint {
        events.add_subscriber(Arc::new(usb.checkpoint(Duration::from_millis(millis))?));
    }

    let turns = Arc::new(AtomicU64::new(0));
    let idle = arguments.idle_seconds.map(|seconds| {
        let idle = Idle::new(Duration::from_secs(seconds), turns.clone(), usb.clone())?;
        let idle = Arc::new(idle);
        events.add_subscriber(idle.clone());
        anyhow::Ok(idle)
    });
    let idle = idle.transpose()?;
    monitor::start(&usb)?;

    let ports = Ports::new(&vm, bus, idle.as_deref().map(Idle::asleep))?;
    let vcpu = vcpu::create(&kvm, &vm, &memory, entry)?;
    let end = Arc::new(End { wake: WakeFd::new()?, reached: AtomicBool::new(false) });
    events.add_subscriber(end.clone());

    let goodbye = Goodbye(end.clone());
    let thread = thread::Builder::new().name("vcpu".into()).spawn(move || {
        let _goodbye = goodbye;
        vcpu::run(vcpu, ports)
    })?;
    while !end.reached.load(Ordering::Acquire) {
        events.run().map_err(|error| anyhow!("the event loop has failed: {error:?}"))?;
        turns.fetch_add(1, Ordering::Relaxed);
    }
    let status = thread.join().map_err(|_| anyhow!("the vCPU's thread has failed"))??;
    ensure!(
        idle.is_none_or(|idle| idle.has_measured()),
        "the guest has ended before it slept for that long: one that writes {:#x} to I/O port 0x80 and then \
         waits for a key can be measured",
        idle::ASLEEP
    );
    Ok(status)
}

/// A VM with RAM and the interrupt controllers and timer of a PC.
fn create(kvm: &Kvm, memory: &GuestMemoryMmap) -> anyhow::Result<VmFd> {
    let vm = kvm.create_vm().context("KVM does not create a VM")?;
    vm.set_tss_address(TSS_ADDRESS)?;
    vm.create_irq_chip().context("KVM has no interrupt controllers of its own")?;
    vm.create_pit2(kvm_pit_config::default()).context("KVM has no timer of its own")?;
    make_level_triggered(&vm)?;
    for (slot, region) in (0..).zip(memory.iter()) {
        let host = memory.get_host_address(region.start_addr())?;
        let region = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: host as u64,
        };
        // SAFETY: the region is mapped; `memory` is in an `Arc` that the USB controllers share, and
        // `run` holds it until the vCPU's thread has ended.
        unsafe { vm.set_user_memory_region(region) }.context("KVM does not take the memory")?;
    }
    Ok(vm)
}

/// PCI's interrupt lines are level-triggered, which firmware would tell the PIC (its ELCR).
fn make_level_triggered(vm: &VmFd) -> anyhow::Result<()> {
    let mut chip = kvm_irqchip { chip_id: KVM_IRQCHIP_PIC_SLAVE, ..Default::default() };
    vm.get_irqchip(&mut chip)?;
    // SAFETY: a PIC was asked for, so the union holds a PIC; every field of it is a plain integer.
    let pic = unsafe { &mut chip.chip.pic };
    pic.elcr |= (1 << (usb::LINE_A - 8)) | (1 << (usb::LINE_B - 8));
    vm.set_irqchip(&chip).context("KVM does not take level-triggered lines")
}

/// The vCPU's thread has ended.
struct End {
    wake: WakeFd,
    reached: AtomicBool,
}

impl EventSubscriber for End {
    fn init(&self, ops: &mut EventOps<'_>) {
        if let Err(error) = ops.add(Events::new(&self.wake, EventSet::IN)) {
            log::error!("the end of the guest goes unnoticed: {error:?}");
        }
    }

    fn process(&self, _: Events, _: &mut EventOps<'_>) {
        self.wake.take();
        self.reached.store(true, Ordering::Release);
    }
}

/// Says so however the thread ends.
struct Goodbye(Arc<End>);

impl Drop for Goodbye {
    fn drop(&mut self) {
        self.0.wake.wake();
    }
}
