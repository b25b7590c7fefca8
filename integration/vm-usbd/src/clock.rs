//! The host's monotonic clock, as the library's.

use rustix::time::{ClockId, clock_gettime};
use vm_usb::time::Time;
use vm_usb::usb::Observer;

/// Now.
pub fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Lets the statistics of a port's device see how long it takes within a call: a disk reads and writes
/// its file while the controller waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stopwatch;

impl Observer for Stopwatch {
    fn now(&self, _: Time) -> Time {
        now()
    }
}
