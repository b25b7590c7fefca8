//! USBSTS, USBINTR and the interrupt threshold (EHCI 2.3.2, 2.3.3, 4.15).

use serde::{Deserialize, Serialize};

use super::spec::{MICROFRAME_NANOS, usbsts};
use crate::controller::Interrupt;
use crate::snapshot::Offset;
use crate::time::Time;

/// Status events and who hears of them.
///
/// Events of transfers wait for the threshold, the others show at once. The threshold is a maximum
/// rate: the first event after a quiet time shows at once too, and only what follows within the
/// threshold waits.
#[derive(Clone, Debug)]
pub(super) struct Interrupts {
    /// USBSTS 5:0 as the guest sees them, and 31:16, the ports' (EHCI 1.1).
    status: u32,
    /// The bits of USBINTR that there are.
    enables: u32,
    /// USBINTR.
    enable: u32,
    /// Events that the threshold holds back.
    held: u32,
    /// The earliest moment for the next report.
    next_report: Time,
    /// With prompt reports off: the end of the frame in which the held events came up.
    batch: Option<Time>,
    /// Whether an enabled event has shown since the owner last asked.
    event: bool,
    /// Report at once, not with the next frame.
    prompt: bool,
}

/// [`Interrupts`] in a snapshot; whether reports are prompt is the owner's choice.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InterruptState {
    status: u32,
    enable: u32,
    held: u32,
    next_report: Offset,
    batch: Option<Offset>,
    event: bool,
}

impl Interrupts {
    pub(super) fn save(&self, now: Time) -> InterruptState {
        let Self { status, enables: _, enable, held, next_report, batch, event, prompt: _ } = *self;
        InterruptState {
            status,
            enable,
            held,
            next_report: Offset::of(next_report, now),
            batch: batch.map(|batch| Offset::of(batch, now)),
            event,
        }
    }

    pub(super) fn restore(&mut self, state: InterruptState, now: Time) {
        let InterruptState { status, enable, held, next_report, batch, event } = state;
        *self = Self {
            status: status & (usbsts::EVENTS | !0xffff),
            enables: self.enables,
            enable: enable & self.enables,
            held: held & usbsts::EVENTS,
            next_report: next_report.at(now),
            batch: batch.map(|batch| batch.at(now)),
            event,
            prompt: self.prompt,
        };
    }

    pub(super) fn new() -> Self {
        Self {
            status: 0,
            enables: usbsts::EVENTS,
            enable: 0,
            held: 0,
            next_report: Time::ZERO,
            batch: None,
            event: false,
            prompt: true,
        }
    }

    /// Whether events are reported as soon as the threshold allows, or wait for the frame's end.
    pub(super) fn set_prompt(&mut self, prompt: bool) {
        self.prompt = prompt;
    }

    /// Adds an enable for each of these bits of USBSTS 31:16.
    pub(super) fn add_ports(&mut self, bits: u32) {
        self.enables |= bits & !0xffff;
    }

    /// Forgets everything but the policy.
    pub(super) fn reset(&mut self) {
        *self = Self { prompt: self.prompt, enables: self.enables, ..Self::new() };
    }

    /// USBSTS 31:16 follow the ports.
    pub(super) fn show_ports(&mut self, bits: u32) {
        let before = self.asserted();
        self.status = (self.status & 0xffff) | (bits & !0xffff);
        self.event |= self.asserted() & !before != 0;
    }

    /// USBSTS 5:0 and 31:16.
    pub(super) fn status(&self) -> u32 {
        self.status
    }

    /// USBINTR.
    pub(super) fn enable(&self) -> u32 {
        self.enable
    }

    /// A write to USBINTR.
    pub(super) fn set_enable(&mut self, enable: u32) {
        let before = self.asserted();
        self.enable = enable & self.enables;
        self.event |= self.asserted() & !before != 0;
    }

    /// A write to USBSTS: ones clear events. The ports' bits are theirs.
    pub(super) fn acknowledge(&mut self, bits: u32) {
        self.status &= !(bits & usbsts::EVENTS);
    }

    /// An event that waits for the threshold: USBINT, USBERRINT.
    pub(super) fn post(&mut self, bits: u32) {
        self.held |= bits;
    }

    /// An event that is reported at once: port change, rollover, host system error.
    pub(super) fn raise(&mut self, bits: u32) {
        let before = self.asserted();
        self.status |= bits;
        self.event |= self.asserted() & !before != 0;
    }

    /// Whether events are held back.
    pub(super) fn holds(&self) -> bool {
        self.held != 0
    }

    /// When a report is allowed next.
    pub(super) fn next_report(&self) -> Time {
        self.next_report.max(self.batch.unwrap_or_default())
    }

    /// Whether a held event would be reported at `now` and the guest wants to hear of it.
    pub(super) fn wants_out(&self, now: Time) -> bool {
        self.prompt && now >= self.next_report && self.held & self.enable & !self.status != 0
    }

    /// Whether a report is allowed at `now`, in a frame that ends at `frame_end`.
    pub(super) fn may_report(&mut self, now: Time, frame_end: Time) -> bool {
        if !self.prompt {
            self.batch.get_or_insert(frame_end);
        }
        now >= self.next_report()
    }

    /// Reports what is held and keeps the next report `threshold` microframes away.
    pub(super) fn report(&mut self, now: Time, threshold: u8) {
        self.batch = None;
        let held = std::mem::take(&mut self.held);
        if held != 0 {
            self.raise(held);
            let spacing = spacing(threshold).saturating_mul(MICROFRAME_NANOS);
            self.next_report = now.after_nanos(spacing);
        }
    }

    /// The interrupt output; takes the event.
    pub(super) fn output(&mut self) -> Interrupt {
        Interrupt { asserted: self.asserted() != 0, event: std::mem::take(&mut self.event) }
    }

    fn asserted(&self) -> u32 {
        self.status & self.enable
    }
}

/// Microframes between reports: ITC, of which the highest bit counts if several are set; 0 counts as
/// 1 (values other than powers of two are reserved, EHCI 2.3.1).
fn spacing(threshold: u8) -> u64 {
    threshold.checked_ilog2().map_or(1, |log| 1u64.checked_shl(log).unwrap_or(1)).min(0x40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_a_power_of_two_up_to_64() {
        let spacings = [0, 1, 3, 8, 0x41, 0xff].map(spacing);
        assert_eq!(spacings, [1, 1, 2, 8, 64, 64]);
    }
}
