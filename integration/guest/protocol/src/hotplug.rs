//! Devices that are pulled out at work.

use serde::{Deserialize, Serialize};

use crate::InputEvent;

/// A device, and how the guest works with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pluggable {
    /// It is read from its start to its end, over and over.
    Disk,
    /// Events are waited for.
    Input,
    /// It is printed on.
    Printer,
    /// `usbtest` reads and writes.
    Loopback,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulled {
    /// Pieces of work that were done.
    pub pieces: u64,
    /// Bytes that were read or written with success.
    pub bytes: u64,
    /// The events that came.
    pub events: Vec<InputEvent>,
    /// What the program that worked with it was told.
    pub told: String,
    /// From then until the kernel had let go of the device.
    pub milliseconds: u64,
}

/// The byte at `at` of what is printed.
#[must_use]
pub fn printed_byte(at: u64) -> u8 {
    (at % 251) as u8
}
