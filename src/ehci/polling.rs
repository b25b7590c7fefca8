//! How often to look for work that no register announces.

use std::time::Duration;

use crate::time::Time;

/// How often the asynchronous schedule is looked at.
///
/// A driver adds work to a running asynchronous schedule by storing one bit in memory; no register
/// tells the controller (EHCI 4.8). Real hardware looks all the time. This controller looks at once
/// after any activity (a register access, a transfer that moved on, a device that became ready), then
/// at intervals that grow with the time since: new work never waits longer than a quarter of the
/// quiet time before it, nor longer than the bounds here. A guest that rests for seconds with its
/// queues linked is looked at less often yet.
///
/// Shorter bounds lower the latency of new work and cost turns of the host's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// The shortest interval, right after activity. Default: 10 us.
    pub shortest: Duration,
    /// The longest interval while a queue in the ring could be given work. Default: 1 ms, what
    /// drivers that poll memory tolerate.
    pub longest: Duration,
    /// How far `longest` grows while the guest rests: to a thousandth of the quiet time, at most to
    /// this. Default: 8 ms, which are reached after 8 s and are nothing after those.
    pub resting: Duration,
    /// The longest interval while the ring holds nothing but its idle head and queues that wait for
    /// their device. Default: 8 ms.
    pub waiting: Duration,
}

impl Default for Polling {
    fn default() -> Self {
        Self {
            shortest: Duration::from_micros(10),
            longest: Duration::from_millis(1),
            resting: Duration::from_millis(8),
            waiting: Duration::from_millis(8),
        }
    }
}

/// What a walk of the ring found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ring {
    /// Nothing that could get work without being linked first.
    #[default]
    Waiting,
    /// A queue that may be given work, or an endpoint that has to be asked again.
    Live,
}

impl Polling {
    /// When to look again, `now`, if the last activity was at `active`.
    pub(super) fn next(&self, now: Time, active: Time, ring: Ring) -> Time {
        let quiet = now.nanos_since(active);
        let longest = match ring {
            Ring::Waiting => self.waiting,
            Ring::Live => self.longest.max(self.resting.min(Duration::from_nanos(quiet / 1_000))),
        };
        let quarter = Duration::from_nanos(quiet / 4);
        let interval = quarter.clamp(self.shortest.min(longest), longest);
        now.after(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_with_the_quiet_time_up_to_the_bound() {
        let polling = Polling::default();
        let look = |quiet: u64, ring| {
            let now = Time::from_nanos(100_000_000_000);
            let active = Time::from_nanos(100_000_000_000 - quiet * 1_000);
            polling.next(now, active, ring).since(now).as_micros()
        };
        assert_eq!(look(0, Ring::Live), 10);
        assert_eq!(look(400, Ring::Live), 100);
        assert_eq!(look(100_000, Ring::Live), 1_000);
        assert_eq!(look(1_000_000, Ring::Live), 1_000);
        assert_eq!(look(3_000_000, Ring::Live), 3_000);
        assert_eq!(look(60_000_000, Ring::Live), 8_000);
        assert_eq!(look(100_000, Ring::Waiting), 8_000);
    }
}
