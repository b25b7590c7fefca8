//! Retired TDs on their way back to the driver (OHCI 1.0a, 4.4.2.3 and 6.4.4).

use serde::{Deserialize, Serialize};

use super::spec::ConditionCode;

/// Counter value for "nothing to report".
const NO_INTERRUPT: u8 = 7;

/// Queues in a row that are handed over in the middle of a frame as soon as the driver acknowledges the
/// one before. More would be a driver that queues transfers from its interrupt handler: on a processor
/// of its own it would never leave it. The next then waits for the frame to end, as on a chip.
const IN_A_ROW: u8 = 1;

/// HcDoneHead and its counter.
///
/// The queue itself is in guest memory, linked through the TDs, and is never walked here.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DoneQueue {
    head: u32,
    /// DoneQueueInterruptCounter: frames until the queue is due; 7 for never.
    counter: u8,
    /// The queue was due before the driver had acknowledged the last one.
    held: bool,
    /// How many queues in a row were held.
    in_a_row: u8,
}

impl Default for DoneQueue {
    fn default() -> Self {
        Self { head: 0, counter: NO_INTERRUPT, held: false, in_a_row: 0 }
    }
}

impl DoneQueue {
    /// HcDoneHead.
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// Puts a retired TD on the queue; returns what its NextTD becomes.
    pub(super) fn push(&mut self, td: u32, code: ConditionCode, delay: u8) -> u32 {
        let delay = if code == ConditionCode::NoError { delay } else { 0 };
        self.counter = self.counter.min(delay);
        std::mem::replace(&mut self.head, td)
    }

    /// The queue, if it is due at the end of a frame; it is empty then. Only to be asked while the
    /// driver has seen the last one: while WDH is clear.
    pub(super) fn take_due(&mut self) -> Option<u32> {
        let due = self.counter == 0 && self.head != 0;
        due.then(|| std::mem::take(self).head)
    }

    /// The same in the middle of a frame.
    pub(super) fn take_promptly(&mut self) -> Option<u32> {
        let in_a_row = if self.held { self.in_a_row.saturating_add(1) } else { 0 };
        if in_a_row > IN_A_ROW {
            return None;
        }
        let head = self.take_due()?;
        self.in_a_row = in_a_row;
        Some(head)
    }

    /// The driver has not seen the last queue: WDH is set.
    pub(super) fn hold(&mut self) {
        self.held |= self.counter == 0 && self.head != 0;
    }

    /// A frame ends.
    pub(super) fn end_frame(&mut self) {
        self.skip(1);
    }

    /// `frames` ended that nobody looked at.
    pub(super) fn skip(&mut self, frames: u64) {
        if self.counter != NO_INTERRUPT {
            let frames = u8::try_from(frames).unwrap_or(u8::MAX);
            self.counter = self.counter.saturating_sub(frames);
        }
    }

    /// Whether some frame end will report the queue.
    pub(super) fn is_waiting(&self) -> bool {
        self.head != 0 && self.counter != NO_INTERRUPT
    }

    /// Whether the next frame end reports it, or the one after that, and may come early for it.
    pub(super) fn is_due(&self) -> bool {
        self.head != 0 && self.counter <= 1 && !self.held
    }

    /// Entering USBOPERATIONAL: nothing is due.
    pub(super) fn start(&mut self) {
        self.counter = NO_INTERRUPT;
    }
}
