//! Interrupts into a guest of KVM with the in-kernel interrupt controllers.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvm_bindings::kvm_msi;
use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::pci::InterruptLine;

/// The interrupts of a function in a KVM guest: INTx on an irqfd, MSI by `KVM_SIGNAL_MSI`.
///
/// An irqfd with resampling latches: the kernel raises the pin when it is told, lowers it when the
/// guest ends the interrupt, and then asks whether it is still asserted. The asking is a [`Resample`],
/// which the event loop has to serve. A pin that falls before the guest has looked costs the guest one
/// interrupt that nobody claims, as it may happen on any shared line.
pub struct KvmInterrupt {
    vm: Arc<VmFd>,
    pin: Arc<Pin>,
    /// Whether the log has been told of a message that the kernel refused.
    complained: bool,
}

struct Pin {
    asserted: AtomicBool,
    trigger: EventFd,
    resample: EventFd,
}

/// The kernel's question whether the pin is still asserted: readable after the guest has ended the
/// interrupt; then [`answer`](Self::answer) it.
///
/// With feature `event-manager` it is a subscriber.
pub struct Resample(Arc<Pin>);

impl fmt::Debug for KvmInterrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvmInterrupt").field("pin", &self.pin).finish_non_exhaustive()
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("asserted", &self.asserted).finish_non_exhaustive()
    }
}

impl fmt::Debug for Resample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resample").field(&self.0).finish()
    }
}

impl KvmInterrupt {
    /// Puts a function's pin on global system interrupt `gsi` of `vm`. Functions may share one.
    ///
    /// # Errors
    /// If the VM has no in-kernel interrupt controllers, KVM lacks `KVM_CAP_IRQFD_RESAMPLE`, or the
    /// process may not open two more file descriptors.
    pub fn new(vm: Arc<VmFd>, gsi: u32) -> io::Result<(Self, Resample)> {
        let pin = Arc::new(Pin {
            asserted: AtomicBool::new(false),
            trigger: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
            resample: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
        });
        vm.register_irqfd_with_resample(&pin.trigger, &pin.resample, gsi)
            .map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        Ok((Self { vm, pin: pin.clone(), complained: false }, Resample(pin)))
    }
}

impl Pin {
    fn trigger(&self) {
        // Fails only if the counter is full, and then the kernel is about to look.
        let _ = self.trigger.write(1);
    }
}

impl InterruptLine for KvmInterrupt {
    fn set_level(&mut self, asserted: bool) {
        // Stored before the trigger: a resampling at the same moment sees the new level.
        self.pin.asserted.store(asserted, Ordering::SeqCst);
        if asserted {
            self.pin.trigger();
        }
    }

    fn message(&mut self, address: u64, data: u32) {
        let message = kvm_msi {
            address_lo: address as u32,
            address_hi: (address >> 32) as u32,
            data,
            ..Default::default()
        };
        // The guest chose the address; one that names no local APIC is its own loss.
        if let Err(error) = self.vm.signal_msi(message) {
            if !self.complained {
                log::warn!("no message to {address:#x}: {error}");
            }
            self.complained = true;
        }
    }
}

impl Resample {
    /// Raises the pin again if it is still asserted.
    pub fn answer(&self) {
        // Fails if there is no question; answering all the same is harmless.
        let _ = self.0.resample.read();
        if self.0.asserted.load(Ordering::SeqCst) {
            self.0.trigger();
        }
    }
}

impl AsRawFd for Resample {
    fn as_raw_fd(&self) -> RawFd {
        self.0.resample.as_raw_fd()
    }
}

#[cfg(feature = "event-manager")]
impl event_manager::EventSubscriber for Resample {
    fn init(&self, ops: &mut event_manager::EventOps<'_>) {
        let events = event_manager::Events::new(self, event_manager::EventSet::IN);
        if let Err(error) = ops.add(events) {
            log::error!("the event loop does not watch the interrupt pin: {error:?}");
        }
    }

    fn process(&self, _: event_manager::Events, _: &mut event_manager::EventOps<'_>) {
        self.answer();
    }
}

#[cfg(test)]
#[path = "kvm_tests.rs"]
mod tests;
