//! OpenHCI 1.0a: the full- and low-speed host controller.
//!
//! [`Ohci`] has all registers but the optional legacy keyboard ones, control, bulk, interrupt and
//! isochronous transfers, the done queue, frames, and a root hub of up to 15 ports with power switching, reset,
//! suspend, resume and remote wakeup. Over-current never happens here, and there is no system
//! management firmware to hand the controller over to.
//!
//! Where a real controller makes one transaction at a time, this one hands a device a whole TD and
//! keeps the rules packet by packet: toggles, short packets, error counts. Control and bulk
//! transfers run in the register write that announces them and are not held to 12 Mbit/s; what they
//! may cost in one frame is bounded. Periodic transfers have their frames, one packet in each.
//!
//! Nothing of a transfer that a device has not finished refers to guest memory: when the device is
//! ready, its descriptors are read afresh, so a driver that takes its memory back never sees a late
//! write.

mod budget;
mod controller;
mod descriptors;
mod done_queue;
mod endpoints;
mod frame;
mod isochronous;
mod lists;
mod periodic;
mod port;
mod registers;
mod root_hub;
pub mod spec;
mod transaction;

pub use controller::Ohci;
pub use frame::Pacing;

use crate::dma::DmaError;

/// Why the controller gave up (UnrecoverableError; OHCI 1.0a, 6.5.9 leaves the causes open).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Unrecoverable {
    #[error(transparent)]
    Dma(#[from] DmaError),
    #[error("the buffer of the TD at {0:#x} ends before it begins")]
    Malformed(u32),
}

/// The three kinds of list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListKind {
    Control,
    Bulk,
    Periodic,
}
