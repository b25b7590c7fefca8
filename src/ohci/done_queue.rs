//! Retired TDs on their way back to the driver (OHCI 1.0a, 4.4.2.3 and 6.4.4).

use super::spec::ConditionCode;

/// Counter value for "nothing to report".
const NO_INTERRUPT: u8 = 7;

/// HcDoneHead and its counter.
///
/// The queue itself is in guest memory, linked through the TDs, and is never walked here.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoneQueue {
    head: u32,
    /// DoneQueueInterruptCounter: frames until the queue is due; 7 for never.
    counter: u8,
}

impl Default for DoneQueue {
    fn default() -> Self {
        Self { head: 0, counter: NO_INTERRUPT }
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

    /// A frame ends; returns the queue if it is due and the driver has seen the last one (WDH is
    /// clear), and is empty then.
    pub(super) fn end_frame(&mut self, may_write: bool) -> Option<u32> {
        if self.counter == 0 && may_write && self.head != 0 {
            return Some(std::mem::take(self).head);
        }
        if self.counter != NO_INTERRUPT {
            self.counter = self.counter.saturating_sub(1);
        }
        None
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

    /// Whether the next frame end reports it, or the one after that.
    pub(super) fn is_due(&self) -> bool {
        self.head != 0 && self.counter <= 1
    }

    /// Entering USBOPERATIONAL: nothing is due.
    pub(super) fn start(&mut self) {
        self.counter = NO_INTERRUPT;
    }
}
