//! A timer that a loop sleeps beside.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Result;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use vm_usb::time::Time;

/// A timer that goes off no later than it was asked to, perhaps sooner.
///
/// A sleep with a time limit sets a timer of the processor and takes it back when a message ends the
/// sleep. Where the host is a virtual machine itself each of them leaves it for its own host, and costs as
/// much as the rest of a register access. So a deadline that moves away leaves the timer alone: one
/// early look is cheaper than a timer for each message.
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
    /// When it goes off, or went off; `None` if it is not set.
    set: Option<Time>,
}

impl Alarm {
    /// A timer that is not set.
    ///
    /// # Errors
    /// If the system has no timer left.
    pub fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, set: None })
    }

    /// Goes off no later than `deadline`, on the clock of [`clock`](crate::clock), which shows `now`.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn follow(&mut self, deadline: Option<Time>, now: Time) -> Result<()> {
        let set = match (self.set, deadline) {
            (Some(set), Some(deadline)) if now < set && set <= deadline => return Ok(()),
            (Some(set), None) if now < set => return Ok(()),
            (None, None) => return Ok(()),
            // Setting it, to no time as well, also forgets that it has gone off.
            (_, deadline) => deadline,
        };
        let value = set.map_or(Timespec { tv_sec: 0, tv_nsec: 0 }, timespec);
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        self.set = set;
        Ok(())
    }
}

/// Becomes readable when it goes off, until it is told what to follow next.
impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// A time that is not 0, which would mean never.
fn timespec(time: Time) -> Timespec {
    let nanos = time.as_nanos().max(1);
    Timespec {
        tv_sec: (nanos / 1_000_000_000).cast_signed(),
        tv_nsec: (nanos % 1_000_000_000).cast_signed(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::clock;

    /// Waits for the alarm without a limit, as a loop that has no other.
    fn sleep(alarm: &Alarm) {
        poll(&mut [PollFd::new(alarm, PollFlags::IN)], None).unwrap();
    }

    fn is_quiet(alarm: &Alarm) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&none)).unwrap() == 0
    }

    #[test]
    fn it_goes_off_at_the_deadline_and_not_before() {
        let mut alarm = Alarm::new().unwrap();
        let deadline = clock::now().after_millis(2);
        alarm.follow(Some(deadline), clock::now()).unwrap();
        sleep(&alarm);
        assert!(clock::now() >= deadline);
    }

    #[test]
    fn a_deadline_that_moves_away_costs_one_early_look() {
        let mut alarm = Alarm::new().unwrap();
        let first = clock::now().after_millis(2);
        let later = first.after_millis(2);
        alarm.follow(Some(first), clock::now()).unwrap();
        alarm.follow(Some(later), clock::now()).unwrap();
        sleep(&alarm);
        assert!(clock::now() >= first);
        alarm.follow(Some(later), clock::now()).unwrap();
        sleep(&alarm);
        assert!(clock::now() >= later);
    }

    #[test]
    fn a_nearer_deadline_replaces_a_farther_one() {
        let mut alarm = Alarm::new().unwrap();
        let now = clock::now();
        alarm.follow(Some(now.after_millis(3_600_000)), now).unwrap();
        alarm.follow(Some(now.after_millis(1)), now).unwrap();
        sleep(&alarm);
    }

    #[test]
    fn without_a_deadline_it_is_quiet_after_it_has_gone_off() {
        let mut alarm = Alarm::new().unwrap();
        alarm.follow(Some(clock::now().after_nanos(1)), clock::now()).unwrap();
        sleep(&alarm);
        alarm.follow(None, clock::now()).unwrap();
        assert!(is_quiet(&alarm));
    }
}
