//! OpenHCI 1.0a: the full- and low-speed host controller.
//!
//! [`Ohci`] has all registers, control, bulk, interrupt and isochronous transfers, the done queue, frames,
//! and a root hub of up to 15 ports with power switching, over-current protection, reset, suspend,
//! resume and remote wakeup. The legacy keyboard registers and the pin for system management
//! interrupts are an option ([`Ohci::with_legacy_support`]).
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
mod legacy;
mod lists;
mod periodic;
mod port;
mod registers;
mod root_hub;
pub mod spec;
mod transaction;

pub use controller::Ohci;
pub use frame::Pacing;
pub use isochronous::IsochronousLosses;
pub use legacy::{LegacyInterrupts, LegacyPort};
pub use root_hub::{OverCurrentProtection, PowerSwitching};

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
