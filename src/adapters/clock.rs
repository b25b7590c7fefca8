//! The host's monotonic clock as the library's.

use std::time::Instant;

use crate::time::Time;

/// The host's monotonic clock, counted from the clock's creation. Copies tell the same time.
///
/// All functions of a machine should be given copies of one clock: a device that moves from an EHCI
/// controller to its companion carries times along.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
}

impl MonotonicClock {
    /// A clock that begins now.
    #[allow(clippy::new_without_default, reason = "two defaults would not be equal")]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }

    /// Now.
    pub fn now(&self) -> Time {
        // 2^64 ns are 584 years.
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
