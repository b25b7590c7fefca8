//! Workloads on devices that are there to be measured or tested with.

use serde::{Deserialize, Serialize};

/// A page on its way to a printer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Its length.
    pub bytes: usize,
    /// How much of it is written at once, after a look at the printer's status.
    pub chunk: usize,
}

/// One case of the kernel's `usbtest` driver with its parameters; each case says for itself what they mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsbTest {
    /// Which one, from 0.
    pub case: u32,
    /// How often.
    pub iterations: u32,
    /// Bytes of a transfer at most.
    pub length: u32,
    /// By how much the length changes from one transfer to the next.
    pub vary: u32,
    /// Transfers in a list, or queued at once.
    pub sglen: u32,
}

/// What the data of `usbtest`'s transfers is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TestPattern {
    /// Zeroes.
    Zero,
    /// Each packet counts from 0 to 62 again and again.
    Mod63,
}

/// How a case of `usbtest` ended when nothing failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UsbTestOutcome {
    /// It passed and took this long.
    Passed {
        /// In microseconds, as the driver measured it.
        microseconds: u64,
    },
    /// The device or the parameters do not suit it: nothing was tested.
    DoesNotApply,
}
