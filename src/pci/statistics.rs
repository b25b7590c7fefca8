//! What an embedder can count on a function.

use crate::controller::Frames;

/// What happened at a function since it was made; a reset does not clear it.
///
/// All counts wrap after 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionStatistics {
    /// Interrupts raised: rises of the pin, and messages.
    pub interrupts: u64,
    /// Guest reads of BAR 0, of whatever width, answered or not.
    pub register_reads: u64,
    /// Guest writes to BAR 0.
    pub register_writes: u64,
    /// Calls of [`run`](super::PciFunction::run): times the timer or a device woke the controller.
    pub runs: u64,
    /// Frames or microframes of the controller.
    pub frames: Frames,
}
