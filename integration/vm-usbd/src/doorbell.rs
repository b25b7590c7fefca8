//! Waking a loop from other threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use vm_usb::usb::Wake;

/// A loop's doorbell: an `eventfd` to sleep on, and a flag so that a loop that is awake is told
/// without a system call.
#[derive(Debug)]
pub struct Doorbell {
    event: OwnedFd,
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
        Ok(Self {
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            rung: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    /// Whether it was rung since the last call.
    pub fn take(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::SeqCst)
    }

    /// The loop is about to sleep on [`event`](Self::event); returns `false` if it must not because
    /// somebody has just rung.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.rung.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// The loop is awake again, and has seen whether the [`event`](Self::event) is `readable`. One that
    /// becomes so just afterwards ends the next sleep.
    pub fn wake_up(&self, readable: bool) {
        self.asleep.store(false, Ordering::SeqCst);
        if readable {
            // Fails only if there is nothing to take back.
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// Becomes readable when the bell rings while the loop is asleep.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Tells the loop to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether the loop is to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Wake for Doorbell {
    fn wake(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            // Fails only if the counter is full, and then the loop wakes anyway.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}
