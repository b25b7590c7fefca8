//! The clock the embedder supplies.

use std::time::Duration;

/// A moment on the embedder's monotonic clock, in nanoseconds.
///
/// The library has no clock of its own: each call says what time it is. Arithmetic saturates, so no
/// value a caller can pass makes it wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// The moment `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `nanos` nanoseconds later.
    #[must_use]
    pub const fn after_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The moment `micros` microseconds later.
    #[must_use]
    pub const fn after_micros(self, micros: u64) -> Self {
        self.after_nanos(micros.saturating_mul(1_000))
    }

    /// The moment `millis` milliseconds later.
    #[must_use]
    pub const fn after_millis(self, millis: u64) -> Self {
        self.after_nanos(millis.saturating_mul(1_000_000))
    }

    /// The moment `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        self.after_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Nanoseconds from `earlier` to `self`; zero if `earlier` is the later one.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Time from `earlier` to `self`; zero if `earlier` is the later one.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Time::from_nanos(u64::MAX).after_millis(1), Time::from_nanos(u64::MAX));
        assert_eq!(Time::ZERO.after(Duration::MAX), Time::from_nanos(u64::MAX));
        assert_eq!(Time::ZERO.after(Duration::from_micros(3)), Time::from_nanos(3_000));
        assert_eq!(Time::ZERO.nanos_since(Time::from_nanos(5)), 0);
        assert_eq!(Time::ZERO.after_micros(3).since(Time::ZERO), Duration::from_micros(3));
    }
}
