//! How long to look at the socket before going to sleep.
//!
//! A guest's interrupt handler reads several registers in a row and waits for each. A server that is
//! awake answers in half the time of one that has to be woken, so it pays to stay awake between such
//! accesses; it does not pay while the guest does something else. The window follows what the client
//! does, as KVM's `halt_poll_ns` follows what a guest does.

use std::time::Duration;

/// The policy's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinPolicy {
    /// The first window after a time without spinning.
    pub first: Duration,
    /// The longest window; zero turns spinning off. A pause longer than this is not worth a processor.
    pub longest: Duration,
    /// Sleeping takes about this long even for a shorter time, so a deadline closer than this is
    /// awaited awake.
    pub sleep_cost: Duration,
}

impl Default for SpinPolicy {
    fn default() -> Self {
        Self {
            first: Duration::from_micros(20),
            longest: Duration::from_micros(100),
            sleep_cost: Duration::from_micros(30),
        }
    }
}

/// The present window.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    policy: SpinPolicy,
    window: Duration,
}

impl Spin {
    /// Not spinning yet.
    pub fn new(policy: SpinPolicy) -> Self {
        Self { policy, window: Duration::ZERO }
    }

    /// Whether to stay awake `idle` after the last message, with the next deadline in `deadline`.
    pub fn stay_awake(&self, idle: Duration, deadline: Option<Duration>) -> bool {
        idle < self.window || deadline.is_some_and(|left| left < self.policy.sleep_cost)
    }

    /// A message came `gap` after the last one, and the loop had gone to sleep before it.
    pub fn slept(&mut self, gap: Duration) {
        self.window = if gap > self.policy.longest {
            Duration::ZERO
        } else {
            (self.window * 2).clamp(self.policy.first.min(self.policy.longest), self.policy.longest)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn the_window_grows_while_messages_are_close_and_vanishes_after_a_pause() {
        let mut spin =
            Spin::new(SpinPolicy { first: US * 10, longest: US * 50, sleep_cost: US * 5 });
        assert!(!spin.stay_awake(Duration::ZERO, None), "off at the start");
        let mut windows = Vec::new();
        for _ in 0..5 {
            spin.slept(US * 30);
            windows.push(spin.window);
        }
        assert_eq!(windows, [US * 10, US * 20, US * 40, US * 50, US * 50]);
        assert!(spin.stay_awake(US * 49, None));
        assert!(!spin.stay_awake(US * 50, None));
        spin.slept(US * 51);
        assert!(!spin.stay_awake(Duration::ZERO, None), "off when idle");
    }

    #[test]
    fn a_deadline_too_close_to_sleep_for_is_awaited_awake() {
        let spin = Spin::new(SpinPolicy { first: US, longest: Duration::ZERO, sleep_cost: US * 5 });
        assert!(spin.stay_awake(US * 1000, Some(US * 4)));
        assert!(!spin.stay_awake(US * 1000, Some(US * 5)));
        assert!(!spin.stay_awake(US * 1000, None));
    }
}
