//! The function's interrupts as the event descriptors of the VMM.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use log::debug;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use vm_usb::pci::InterruptLine;

/// An event descriptor.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// Takes over a descriptor of the client's. It is made non-blocking: whatever it is, it must not
    /// be able to hold this server up.
    ///
    /// # Errors
    /// If the descriptor's mode cannot be changed.
    pub fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let mode = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, mode | OFlags::NONBLOCK)?;
        Ok(Self(fd))
    }

    /// Signals; a counter that is full is a signal nobody has taken yet.
    fn signal(&self) {
        if let Err(error) = rustix::io::write(&self.0, &1_u64.to_ne_bytes()) {
            debug!("cannot signal an interrupt: {error}");
        }
    }

    /// Takes a signal, if there is one.
    fn take(&self) -> bool {
        matches!(rustix::io::read(&self.0, &mut [0; 8]), Ok(8))
    }
}

/// INTx: a level, told to the VMM by events (`VFIO_IRQ_INFO_AUTOMASKED`).
///
/// A signal masks the interrupt; the VMM unmasks it when the guest may have dealt with it, and if the
/// level is still asserted then, it is signalled again.
#[derive(Debug, Default)]
struct Intx {
    level: bool,
    masked: bool,
    trigger: Option<Event>,
    unmask: Option<Event>,
}

impl Intx {
    fn settle(&mut self) {
        if let Some(trigger) = self.trigger.as_ref().filter(|_| self.level && !self.masked) {
            self.masked = true;
            trigger.signal();
        }
    }
}

/// MSI: one vector.
#[derive(Debug, Default)]
struct Msi {
    trigger: Option<Event>,
    /// A message the function sent before the VMM had connected the vector: the guest enables MSI
    /// before the VMM can.
    waiting: bool,
}

/// Both interrupts of a function.
#[derive(Debug, Default)]
pub struct Interrupts {
    intx: Intx,
    msi: Msi,
}

impl Interrupts {
    /// Connects INTx, unmasked, or disconnects it.
    pub fn set_intx(&mut self, trigger: Option<Event>) {
        self.intx.masked = false;
        if trigger.is_none() {
            self.intx.unmask = None;
        }
        self.intx.trigger = trigger;
        self.intx.settle();
    }

    /// Sets the event by which the VMM unmasks INTx without a message.
    pub fn set_unmask(&mut self, unmask: Option<Event>) {
        self.intx.unmask = unmask;
    }

    /// The event by which the VMM unmasks INTx, to wait for.
    pub fn unmask_event(&self) -> Option<BorrowedFd<'_>> {
        self.intx.unmask.as_ref().map(|event| event.0.as_fd())
    }

    /// Masks INTx.
    pub fn mask_intx(&mut self) {
        self.intx.masked = true;
    }

    /// Unmasks INTx; an asserted level is signalled again.
    pub fn unmask_intx(&mut self) {
        self.intx.masked = false;
        self.intx.settle();
    }

    /// Unmasks INTx if the VMM's event says so.
    pub fn poll_unmask(&mut self) {
        if self.intx.unmask.as_ref().is_some_and(Event::take) {
            self.unmask_intx();
        }
    }

    /// Signals INTx as a test.
    pub fn trigger_intx(&self) {
        if let Some(trigger) = &self.intx.trigger {
            trigger.signal();
        }
    }

    /// Connects the MSI vector or disconnects it.
    pub fn set_msi(&mut self, trigger: Option<Event>) {
        self.msi.trigger = trigger;
        if self.msi.waiting {
            self.trigger_msi();
        }
    }

    /// Sends an MSI, or notes that one is to be sent.
    pub fn trigger_msi(&mut self) {
        self.msi.waiting = self.msi.trigger.is_none();
        if let Some(trigger) = &self.msi.trigger {
            trigger.signal();
        }
    }

    /// Forgets what was not told yet, for a function that was reset.
    pub fn reset(&mut self) {
        self.msi.waiting = false;
    }
}

impl InterruptLine for Interrupts {
    fn set_level(&mut self, asserted: bool) {
        self.intx.level = asserted;
        self.intx.settle();
    }

    /// The VMM knows the guest's address and data from configuration space; the vector stands for
    /// them.
    fn message(&mut self, _address: u64, _data: u32) {
        self.trigger_msi();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    /// Two ends of an event: the server's and the VMM's.
    fn event() -> (Event, Event) {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        let other = fd.try_clone().unwrap();
        (Event::new(fd).unwrap(), Event::new(other).unwrap())
    }

    #[test]
    fn intx_signals_a_rise_once_until_it_is_unmasked() {
        let mut interrupts = Interrupts::default();
        let (trigger, vmm) = event();
        interrupts.set_intx(Some(trigger));
        assert!(!vmm.take());
        interrupts.set_level(true);
        assert!(vmm.take());
        interrupts.set_level(false);
        interrupts.set_level(true);
        assert!(!vmm.take(), "masked by the first signal");
        interrupts.unmask_intx();
        assert!(vmm.take(), "still asserted");
        interrupts.set_level(false);
        interrupts.unmask_intx();
        assert!(!vmm.take(), "dealt with");
        interrupts.set_level(true);
        assert!(vmm.take());
    }

    #[test]
    fn a_level_that_is_up_when_intx_is_connected_is_signalled() {
        let mut interrupts = Interrupts::default();
        interrupts.set_level(true);
        let (trigger, vmm) = event();
        interrupts.set_intx(Some(trigger));
        assert!(vmm.take());
        let (trigger, vmm) = event();
        interrupts.set_intx(Some(trigger));
        assert!(vmm.take(), "a new connection starts unmasked");
    }

    #[test]
    fn a_mask_of_the_vmm_holds_the_signal_back() {
        let mut interrupts = Interrupts::default();
        let (trigger, vmm) = event();
        interrupts.set_intx(Some(trigger));
        interrupts.mask_intx();
        interrupts.set_level(true);
        assert!(!vmm.take());
        let (unmask, resample) = event();
        interrupts.set_unmask(Some(unmask));
        interrupts.poll_unmask();
        assert!(!vmm.take(), "not unmasked yet");
        resample.signal();
        interrupts.poll_unmask();
        assert!(vmm.take());
    }

    #[test]
    fn a_message_sent_before_the_vector_is_connected_is_not_lost() {
        let mut interrupts = Interrupts::default();
        interrupts.message(0xfee0_0000, 0x41);
        let (trigger, vmm) = event();
        interrupts.set_msi(Some(trigger));
        assert!(vmm.take());
        interrupts.set_msi(None);
        interrupts.message(0xfee0_0000, 0x41);
        interrupts.reset();
        let (trigger, vmm) = event();
        interrupts.set_msi(Some(trigger));
        assert!(!vmm.take(), "the reset took it back");
    }
}
