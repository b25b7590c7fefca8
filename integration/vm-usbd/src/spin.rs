//! How long to look at the socket before going to sleep.
//!
//! A guest's interrupt handler reads several registers in a row and waits for each. A server that is
//! awake answers sooner than one that has to be woken, so it pays to stay awake between such accesses.
//! It does not pay while the guest does something else, and it does harm when the client waits for the
//! very processor that this loop is spinning on. Both show in the same way: the window passes without
//! a message. So spinning has to earn its keep; if it mostly fails it rests for a while.

use std::time::Duration;

/// The policy's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinPolicy {
    /// How long to stay awake after a message; zero turns spinning off. A guest that is between two
    /// accesses of one handler takes less, and a longer pause is not worth a processor.
    pub window: Duration,
    /// Sleeping takes about this long even for a shorter time, so a deadline closer than this is
    /// awaited awake.
    pub sleep_cost: Duration,
    /// Messages without spinning after it has failed too often.
    pub rest: u32,
}

impl Default for SpinPolicy {
    fn default() -> Self {
        Self { window: Duration::from_micros(60), sleep_cost: Duration::from_micros(30), rest: 64 }
    }
}

/// Most credit: this many windows in a row may pass in vain after a time of success.
const MOST_CREDIT: u32 = 4 * FAILURE;
/// What a failure costs; a success earns 1. Spinning pays if two waits of three end with a message.
const FAILURE: u32 = 2;

/// Whether spinning pays at present.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    policy: SpinPolicy,
    credit: u32,
    resting: u32,
}

impl Spin {
    /// Full of hope.
    pub fn new(policy: SpinPolicy) -> Self {
        Self { policy, credit: MOST_CREDIT, resting: 0 }
    }

    /// Whether to stay awake `idle` after the last message, with the next deadline in `deadline`.
    pub fn stay_awake(&self, idle: Duration, deadline: Option<Duration>) -> bool {
        (self.resting == 0 && idle < self.policy.window)
            || deadline.is_some_and(|left| left < self.policy.sleep_cost)
    }

    /// A message came; `slept` if the loop had gone to sleep before it.
    pub fn message(&mut self, slept: bool) {
        if self.resting > 0 {
            self.resting -= 1;
        } else if !slept {
            self.credit = (self.credit + 1).min(MOST_CREDIT);
        } else {
            self.credit = self.credit.saturating_sub(FAILURE);
            if self.credit == 0 {
                self.credit = MOST_CREDIT / 2;
                self.resting = self.policy.rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn spin() -> Spin {
        Spin::new(SpinPolicy { window: US * 50, sleep_cost: US * 5, rest: 10 })
    }

    #[test]
    fn a_message_keeps_the_loop_awake_for_a_window() {
        let spin = spin();
        assert!(spin.stay_awake(US * 49, None));
        assert!(!spin.stay_awake(US * 50, None), "off when idle");
        let off = Spin::new(SpinPolicy { window: Duration::ZERO, ..SpinPolicy::default() });
        assert!(!off.stay_awake(Duration::ZERO, None));
    }

    #[test]
    fn spinning_rests_when_it_mostly_fails_and_then_tries_again() {
        let mut spin = spin();
        for round in 0..30 {
            spin.message(round % 3 == 0);
            assert!(spin.stay_awake(US, None), "two of three");
        }
        let mut failures = 0;
        while spin.stay_awake(US, None) {
            spin.message(true);
            failures += 1;
        }
        assert!(failures <= 4);
        for _ in 0..10 {
            assert!(!spin.stay_awake(US, None));
            spin.message(true);
        }
        assert!(spin.stay_awake(US, None));
    }

    #[test]
    fn a_deadline_too_close_to_sleep_for_is_awaited_awake() {
        let spin = spin();
        assert!(spin.stay_awake(US * 1000, Some(US * 4)));
        assert!(!spin.stay_awake(US * 1000, Some(US * 5)));
        assert!(!spin.stay_awake(US * 1000, None));
    }
}
