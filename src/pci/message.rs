//! When a message is sent: at once, or a moment later if the driver is looking anyway.
//!
//! A message tells a driver of a condition that rose. A driver that is in its interrupt handler sees
//! more than the message told it: Linux's handlers for EHCI and OHCI look at the status register again
//! before they leave. If what rose meanwhile got a message of its own, the handler would be called once
//! more for nothing, and on a virtual machine that costs more than a transfer. So a condition that
//! rises under the driver's hands is told only if the driver has not taken it by itself in a moment;
//! one that stays up over the driver's write is told again, for a driver that does not look twice.

use crate::time::Time;

/// How long a message waits for the driver's next access: a handler that looks again does so soon.
const NEXT_LOOK_NANOS: u64 = 50_000;

/// How long it waits after that access: handlers complete transfers before they acknowledge.
const PATIENCE_NANOS: u64 = 200_000;

/// The longest a message waits altogether: one frame.
const LONGEST_NANOS: u64 = 1_000_000;

/// How the driver came by what the controller has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It read a register.
    Read,
    /// It wrote one.
    Write,
    /// It did nothing: time passed, or a device woke the controller.
    Other,
}

/// The message that is to be sent, if any.
#[derive(Debug, Default)]
pub(super) struct Message {
    pending: Option<Pending>,
    asserted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    due: Time,
    latest: Time,
}

impl Message {
    /// Takes in what the condition is now, and whether it rose, after a call for `cause`.
    pub(super) fn follow(&mut self, cause: Cause, asserted: bool, rose: bool, now: Time) {
        let stayed = std::mem::replace(&mut self.asserted, asserted) && asserted;
        let in_handler = match cause {
            // Of a rise that a write brings about without being in the handler the driver does not
            // know yet: the doorbell for a transfer that is done at once.
            Cause::Write => stayed,
            Cause::Read => true,
            Cause::Other => false,
        };
        if !asserted {
            self.pending = None;
            return;
        }
        match &mut self.pending {
            Some(pending) if rose && !in_handler => pending.due = pending.due.min(now),
            Some(pending) if cause != Cause::Other && pending.latest > now => {
                pending.due = now.after_nanos(PATIENCE_NANOS).min(pending.latest);
            }
            Some(_) => {}
            None if rose && !in_handler => self.pending = Some(Pending { due: now, latest: now }),
            None if rose || (stayed && cause == Cause::Write) => {
                self.pending = Some(Pending {
                    due: now.after_nanos(NEXT_LOOK_NANOS),
                    latest: now.after_nanos(LONGEST_NANOS),
                });
            }
            None => {}
        }
    }

    /// When the message is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.pending.map(|pending| pending.due)
    }

    /// Takes the message if it is due.
    pub(super) fn take(&mut self, now: Time) -> bool {
        self.pending.take_if(|pending| pending.due <= now).is_some()
    }

    /// A message is owed: what a snapshot says of it. It need not be more exact, as one too many does
    /// no harm.
    pub(super) fn owe(&mut self, owed: bool, now: Time) {
        *self = Self { pending: owed.then_some(Pending { due: now, latest: now }), asserted: owed };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(1_000_000_000 + micros * 1_000)
    }

    #[test]
    fn a_rise_out_of_the_blue_is_told_at_once() {
        let mut message = Message::default();
        message.follow(Cause::Other, true, true, at(0));
        assert!(message.take(at(0)));
        assert_eq!(message.due(), None);

        let mut message = Message::default();
        message.follow(Cause::Write, true, true, at(0));
        assert!(message.take(at(0)), "a doorbell whose transfer is done at once");
    }

    #[test]
    fn a_driver_that_takes_the_rise_by_itself_gets_no_message() {
        let mut message = Message::default();
        message.follow(Cause::Read, true, false, at(0));
        message.follow(Cause::Write, true, true, at(10));
        assert!(!message.take(at(10)), "acknowledged one, and another is there");
        message.follow(Cause::Read, true, false, at(40));
        assert!(!message.take(at(200)), "it has looked and works on it");
        message.follow(Cause::Write, false, false, at(220));
        assert_eq!(message.due(), None);
    }

    #[test]
    fn a_driver_that_leaves_without_a_second_look_is_told() {
        let mut message = Message::default();
        message.follow(Cause::Other, true, true, at(0));
        assert!(message.take(at(0)));
        message.follow(Cause::Write, true, false, at(30));
        assert_eq!(message.due(), Some(at(80)), "it has left a condition standing");
        assert!(message.take(at(80)));
        message.follow(Cause::Other, true, false, at(500));
        assert_eq!(message.due(), None, "once a write");
    }

    #[test]
    fn a_driver_that_looks_for_ever_is_told_within_a_frame() {
        let mut message = Message::default();
        message.follow(Cause::Read, true, true, at(0));
        for micros in (100..1_000).step_by(100) {
            message.follow(Cause::Read, true, false, at(micros));
            assert!(!message.take(at(micros)));
        }
        assert!(message.take(at(1_000)));
    }
}
