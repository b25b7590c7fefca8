//! Waking an event loop from any thread.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::usb::Wake;

/// A [`Wake`] that makes an eventfd readable.
#[derive(Debug)]
pub struct WakeFd(EventFd);

impl WakeFd {
    /// An eventfd that is not readable yet.
    ///
    /// # Errors
    /// If the process may not open another file descriptor.
    pub fn new() -> io::Result<Self> {
        EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).map(Self)
    }

    /// Makes it unreadable until somebody wakes again.
    pub fn take(&self) {
        // Fails if nobody woke; then there is nothing to take.
        let _ = self.0.read();
    }
}

impl Wake for WakeFd {
    fn wake(&self) {
        // Fails only if the counter is full, and then the loop is woken anyway.
        let _ = self.0.write(1);
    }
}

impl AsRawFd for WakeFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
