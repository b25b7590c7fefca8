//! Waking a loop from other threads.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, fence};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, fence};

use rustix::event::{EventfdFlags, eventfd};
use vm_usb::usb::Wake;

/// What a loop sleeps on: it wakes if this has been raised since it was last taken back.
pub trait Signal {
    /// Wakes the loop, or keeps it from falling asleep.
    fn raise(&self);
    /// Takes it back, however often it was raised.
    fn take_back(&self);
}

/// A [`Signal`] to wait for with `poll`.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl Signal for EventFd {
    fn raise(&self) {
        // Fails only if the counter is full, and then the loop wakes anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn take_back(&self) {
        // Fails only if there is nothing to take back.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// A loop's doorbell: a signal to sleep on, and a flag so that a loop that is awake is told without a
/// system call.
#[derive(Debug)]
pub struct Doorbell<S = EventFd> {
    event: S,
    rung: AtomicBool,
    asleep: AtomicBool,
    stop: AtomicBool,
}

impl Doorbell {
    /// A doorbell that nobody has rung.
    ///
    /// # Errors
    /// If the system has no `eventfd` left.
    pub fn new() -> rustix::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self::on(EventFd(event)))
    }

    /// Becomes readable when the bell rings while the loop is asleep.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.0.as_fd()
    }
}

impl<S: Signal> Doorbell<S> {
    fn on(event: S) -> Self {
        Self {
            event,
            rung: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    /// Whether it was rung since the last call.
    pub fn take(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::AcqRel)
    }

    /// The loop is about to sleep on the signal; returns `false` if it must not, because somebody has just
    /// rung or it is to end.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        // Each side tells the other first and looks then, so one of them sees the other.
        fence(Ordering::SeqCst);
        // The ring that came with the stop may have been taken since the loop last asked.
        if self.rung.load(Ordering::Relaxed) || self.stopped() {
            self.asleep.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The loop is awake again, and has seen whether the signal was `raised`. If that happens just
    /// afterwards, it ends the next sleep.
    pub fn wake_up(&self, raised: bool) {
        self.asleep.store(false, Ordering::Relaxed);
        if raised {
            self.event.take_back();
        }
    }

    /// Tells the loop to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Wakes the loop if it is asleep, with nothing to tell it: it is time to look.
    pub fn nudge(&self) {
        if self.asleep.load(Ordering::Relaxed) {
            self.event.raise();
        }
    }

    fn ring(&self) {
        // An exchange, unlike a store, also hands on what those did who rang before.
        self.rung.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.event.raise();
        }
    }

    /// Whether the loop is to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl<S: Signal + Send + Sync> Wake for Doorbell<S> {
    fn wake(&self) {
        self.ring();
    }
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_is_to_end_does_not_fall_asleep_even_if_it_has_taken_the_ring() {
        let doorbell = Doorbell::new().unwrap();
        assert!(!doorbell.stopped());
        doorbell.stop();
        assert!(doorbell.take());
        assert!(!doorbell.fall_asleep());
        assert!(doorbell.stopped());
    }
}
