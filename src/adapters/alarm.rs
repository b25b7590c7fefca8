//! A timerfd that follows a deadline.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use vmm_sys_util::timerfd::TimerFd;

use crate::time::Time;

/// Shortest time a timer is armed to: zero would disarm it.
const AT_ONCE: Duration = Duration::from_nanos(1);

/// A timer that is readable no later than the last deadline it was told.
///
/// A deadline that moves away leaves the timer as it is: one early look costs less than a system call
/// for each register access.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: TimerFd,
    /// When the timer goes off; `None` if it is not armed.
    armed: Option<Time>,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { timer: TimerFd::new()?, armed: None })
    }

    /// Goes off no later than `deadline`.
    pub(super) fn follow(&mut self, deadline: Option<Time>, now: Time) {
        let Some(deadline) = deadline else { return };
        if self.armed.is_none_or(|armed| deadline < armed) {
            self.arm(deadline, now);
        }
    }

    /// It has gone off: it is quiet again, or armed to `deadline`.
    ///
    /// The timer is never read: another thread may have armed it again meanwhile, and then a read
    /// would block. Setting it forgets that it has gone off.
    pub(super) fn went_off(&mut self, deadline: Option<Time>, now: Time) {
        match deadline {
            Some(deadline) => self.arm(deadline, now),
            None => {
                self.armed = None;
                report(self.timer.clear());
            }
        }
    }

    fn arm(&mut self, deadline: Time, now: Time) {
        self.armed = Some(deadline);
        report(self.timer.reset(deadline.since(now).max(AT_ONCE), None));
    }
}

/// Setting a timer of our own to a valid time does not fail; if it does, the log should say so.
fn report(result: vmm_sys_util::errno::Result<()>) {
    if let Err(error) = result {
        log::error!("the controller's timer cannot be set: {error}");
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }
}
