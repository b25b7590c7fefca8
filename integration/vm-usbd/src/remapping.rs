//! Standing still while the VMM rebuilds the guest's address space.
//!
//! A VMM changes its memory map by withdrawing regions and making the new ones known, message by
//! message, while the guest's processors wait: QEMU does so for all of RAM whenever firmware opens or
//! locks a BIOS segment. A controller that went on in between would find its schedule outside of RAM
//! and stop with a system error. The protocol does not say when a change is complete, but until it is
//! nothing else is sent.

use vm_usb::time::Time;

/// A change is taken to be complete when nothing has come for this long: far longer than a VMM on a
/// busy machine is held up between two messages, and shorter than any driver's patience.
const SETTLED_MILLIS: u64 = 100;

/// Whether the address space is being changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remapping {
    until: Option<Time>,
    /// The controller was to run meanwhile.
    owed: bool,
    /// No region is known yet.
    awaited: bool,
}

impl Remapping {
    /// A controller that was restored is to go on as soon as it has its memory: when the client does
    /// anything else after having made a region known, or makes a pause.
    pub fn awaited() -> Self {
        Self { until: Some(Time::from_nanos(u64::MAX)), owed: true, awaited: true }
    }

    /// A region was withdrawn.
    pub fn unmapped(&mut self, now: Time) {
        self.until = Some(now.after_millis(SETTLED_MILLIS));
    }

    /// A region was made known.
    pub fn mapped(&mut self, now: Time) {
        if self.until.is_some() {
            self.awaited = false;
            self.unmapped(now);
        }
    }

    /// A command came that has nothing to do with memory: the change is complete.
    pub fn complete(&mut self) {
        if !self.awaited {
            self.until = None;
        }
    }

    /// The controller is to run; returns `false` if it has to wait.
    pub fn may_run(&mut self, now: Time) -> bool {
        if self.until.is_some_and(|until| now < until) {
            self.owed = true;
            return false;
        }
        *self = Self::default();
        true
    }

    /// When to run a controller that wants to run at `deadline`.
    pub fn defer(&self, deadline: Option<Time>) -> Option<Time> {
        let deadline = if self.owed { Some(Time::ZERO) } else { deadline };
        match self.until {
            Some(until) => deadline.map(|deadline| deadline.max(until)),
            None => deadline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1_000_000_000);

    #[test]
    fn a_controller_waits_until_the_next_command_of_another_kind() {
        let mut remapping = Remapping::default();
        assert!(remapping.may_run(START));
        remapping.mapped(START);
        assert!(remapping.may_run(START), "new memory disturbs nobody");
        remapping.unmapped(START);
        assert!(!remapping.may_run(START.after_millis(1)));
        remapping.mapped(START.after_millis(80));
        assert!(!remapping.may_run(START.after_millis(150)));
        assert_eq!(remapping.defer(None), Some(START.after_millis(180)));
        remapping.complete();
        assert_eq!(remapping.defer(None), Some(Time::ZERO), "what was owed comes at once");
        assert!(remapping.may_run(START.after_millis(150)));
        assert_eq!(remapping.defer(None), None);
    }

    #[test]
    fn a_restored_controller_waits_for_its_memory() {
        let mut remapping = Remapping::awaited();
        remapping.complete();
        assert!(!remapping.may_run(START), "the client asks for regions and interrupts first");
        remapping.mapped(START);
        assert!(!remapping.may_run(START.after_millis(99)));
        assert_eq!(remapping.defer(None), Some(START.after_millis(100)));
        remapping.complete();
        assert!(remapping.may_run(START.after_millis(99)));
        assert_eq!(remapping.defer(None), None);
    }

    #[test]
    fn a_change_without_end_does_not_stop_the_controller_for_good() {
        let mut remapping = Remapping::default();
        remapping.unmapped(START);
        assert_eq!(remapping.defer(Some(START)), Some(START.after_millis(100)));
        assert!(remapping.may_run(START.after_millis(100)));
        assert_eq!(remapping.defer(Some(START)), Some(START));
    }
}
