//! Microframes: FRINDEX as a function of time (EHCI 2.3.4).

use serde::{Deserialize, Serialize};

use super::spec::MICROFRAME_NANOS;
use crate::snapshot::Offset;
use crate::time::Time;

/// A microframe counted in 64 bits; FRINDEX is the low 14 of them, so a wrap of FRINDEX is no wrap
/// here.
pub(super) type Microframe = u64;

/// FRINDEX and the clock behind it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FrameClock<T = Time> {
    /// The microframe that began at `origin`, or that stands still while stopped.
    first: Microframe,
    /// `None` while the controller is halted.
    origin: Option<T>,
}

impl FrameClock<Offset> {
    pub(super) fn restored(self, now: Time) -> FrameClock {
        let Self { first, origin } = self;
        // No microframe under way begins later than now.
        FrameClock { first, origin: origin.map(|origin| origin.at(now).min(now)) }
    }
}

impl FrameClock {
    /// The clock runs from `now` on, from where it stood (EHCI 2.3.4).
    pub(super) fn start(&mut self, now: Time) {
        self.origin.get_or_insert(now);
    }

    /// The clock with the microframe under way as its first: the host that restores it may not have
    /// a clock that knows of earlier ones.
    pub(super) fn save(&self, now: Time) -> FrameClock<Offset> {
        let first = self.microframe(now);
        let origin = self.origin.map(|_| Offset::of(self.begin(first), now));
        FrameClock { first, origin }
    }

    /// The clock stands still.
    pub(super) fn stop(&mut self, now: Time) {
        self.first = self.microframe(now);
        self.origin = None;
    }

    /// Sets the index of a clock that stands still; a running one ignores it.
    pub(super) fn set(&mut self, index: u32) {
        if self.origin.is_none() {
            self.first = Microframe::from(index & 0x3fff);
        }
    }

    /// The microframe at `now`.
    pub(super) fn microframe(&self, now: Time) -> Microframe {
        let passed = self.origin.map_or(0, |origin| now.nanos_since(origin) / MICROFRAME_NANOS);
        self.first.saturating_add(passed)
    }

    /// When `microframe` begins, on a clock that runs.
    pub(super) fn begin(&self, microframe: Microframe) -> Time {
        let ahead = microframe.saturating_sub(self.first);
        self.origin.unwrap_or_default().after_nanos(ahead.saturating_mul(MICROFRAME_NANOS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_stands_still_while_halted_and_goes_on_from_there() {
        let mut clock = FrameClock::default();
        clock.set(0x1238);
        let start = Time::from_nanos(77);
        assert_eq!(clock.microframe(start.after_millis(5)), 0x1238);
        clock.start(start);
        assert_eq!(clock.microframe(start.after_millis(1)), 0x1240);
        assert_eq!(clock.begin(0x1240), start.after_millis(1));
        clock.set(0);
        clock.stop(start.after_millis(2));
        assert_eq!(clock.microframe(start.after_millis(9)), 0x1248);
    }
}
