//! Whether to look at the socket for a while before going to sleep.
//!
//! A guest's interrupt handler reads several registers in a row and waits for each. On most hosts a
//! server that is awake answers sooner than one that has to be woken. Not on all: where the client
//! shares this thread's processor, staying awake keeps it from running; where waking another processor
//! is dear (a host that is itself a virtual machine), the scheduler does better if it can put a sleeping
//! server next to its client. Which of them it is shows in one figure, the time from an answer to the
//! client's next message. So both ways are tried, again and again, and the quicker one is used.

use std::time::Duration;

/// The policy's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinPolicy {
    /// How long to stay awake after a message; zero turns spinning off. A guest that is between two
    /// accesses of one handler takes less, and a longer pause is not worth a processor.
    pub window: Duration,
    /// Sleeping takes about this long even for a shorter time, so one that stays awake awaits a
    /// deadline closer than this awake.
    pub sleep_cost: Duration,
    /// One that sleeps is not woken for a deadline sooner than this after it last ran: what it would
    /// find earlier is worth less than the processor time of so many wake-ups. Less than the 125 us of
    /// a microframe.
    pub rest: Duration,
}

impl Default for SpinPolicy {
    fn default() -> Self {
        Self {
            window: Duration::from_micros(60),
            sleep_cost: Duration::from_micros(30),
            rest: Duration::from_micros(100),
        }
    }
}

/// Messages between two comparisons.
const TERM: u32 = 2048;
/// Messages for which each way is tried in a comparison.
const TRIAL: u32 = 64;

/// The way to wait at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Awake,
    Asleep,
}

/// Whether spinning pays at present.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    policy: SpinPolicy,
    way: Way,
    /// Messages since the last comparison began.
    messages: u32,
    /// What the trials of this comparison took.
    awake: Duration,
    asleep: Duration,
}

impl Spin {
    /// Begins with a comparison.
    pub fn new(policy: SpinPolicy) -> Self {
        Self { policy, way: Way::Awake, messages: 0, awake: Duration::ZERO, asleep: Duration::ZERO }
    }

    /// Whether to stay awake `idle` after the last message, with the next deadline in `deadline`.
    pub fn stay_awake(&self, idle: Duration, deadline: Option<Duration>) -> bool {
        self.way == Way::Awake
            && !self.policy.window.is_zero()
            && (idle < self.policy.window
                || deadline.is_some_and(|left| left < self.policy.sleep_cost))
    }

    /// How long after the last run a deadline has to wait at least.
    pub fn rest(&self) -> Duration {
        match self.way {
            Way::Awake => Duration::ZERO,
            Way::Asleep => self.policy.rest,
        }
    }

    /// A message came `gap` after the last.
    pub fn message(&mut self, gap: Duration) {
        // A longer one is the guest's own, and says nothing about waiting.
        let gap = gap.min(self.policy.window * 2);
        match self.messages {
            0..TRIAL => self.awake += gap,
            TRIAL => self.way = Way::Asleep,
            _ if self.messages <= 2 * TRIAL => self.asleep += gap,
            _ => {}
        }
        self.messages += 1;
        if self.messages == 2 * TRIAL + 1 {
            // A tie goes to the way that costs nothing.
            self.way = if self.awake * 10 < self.asleep * 9 { Way::Awake } else { Way::Asleep };
        }
        if self.messages == TERM {
            *self = Self::new(self.policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn spin() -> Spin {
        Spin::new(SpinPolicy { window: US * 50, sleep_cost: US * 5, rest: US * 90 })
    }

    /// A comparison on a host where messages come so long after an answer.
    fn compared(awake: Duration, asleep: Duration) -> Spin {
        let mut spin = spin();
        for _ in 0..=2 * TRIAL {
            spin.message(if spin.stay_awake(US, None) { awake } else { asleep });
        }
        spin
    }

    #[test]
    fn where_being_awake_answers_sooner_it_stays_awake_for_a_window() {
        let spin = compared(US * 11, US * 30);
        assert!(spin.stay_awake(US * 49, None));
        assert!(!spin.stay_awake(US * 50, None), "off when idle");
        assert_eq!(spin.rest(), Duration::ZERO);
    }

    #[test]
    fn where_it_does_not_it_sleeps() {
        for asleep in [US * 12, US * 31] {
            let spin = compared(US * 30, asleep);
            assert!(!spin.stay_awake(US, Some(US)));
            assert_eq!(spin.rest(), US * 90);
        }
    }

    #[test]
    fn pauses_of_the_guest_do_not_count() {
        let mut spin = spin();
        for message in 0..=2 * TRIAL {
            let pause = if message == 3 { US * 1_000_000 } else { US * 10 };
            spin.message(if spin.stay_awake(US, None) { pause } else { US * 30 });
        }
        assert!(spin.stay_awake(US, None));
    }

    #[test]
    fn it_compares_again_when_the_host_has_changed() {
        let mut spin = compared(US * 30, US * 11);
        for _ in 0..2 * TERM {
            spin.message(if spin.stay_awake(US, None) { US * 11 } else { US * 30 });
        }
        for _ in 0..3 * TRIAL {
            spin.message(if spin.stay_awake(US, None) { US * 11 } else { US * 30 });
        }
        assert!(spin.stay_awake(US, None));
    }

    #[test]
    fn a_deadline_too_close_to_sleep_for_is_awaited_awake() {
        let spin = compared(US * 11, US * 30);
        assert!(spin.stay_awake(US * 1000, Some(US * 4)));
        assert!(!spin.stay_awake(US * 1000, Some(US * 5)));
        assert!(!spin.stay_awake(US * 1000, None));
    }

    #[test]
    fn without_a_window_it_never_spins() {
        let spin = Spin::new(SpinPolicy { window: Duration::ZERO, ..SpinPolicy::default() });
        assert!(!spin.stay_awake(Duration::ZERO, Some(Duration::ZERO)));
    }
}
