//! The Enhanced Host Controller Interface, revision 1.0 or 1.1: a high-speed host controller.
//!
//! [`Ehci`] is the controller as a value. What it does, chapter by chapter:
//!
//! * the complete register file, root ports and the hand-off to a companion (EHCI 2, 4.2, 4.3);
//! * the asynchronous schedule with its doorbell: control and bulk transfers (EHCI 4.8 to 4.11);
//! * the periodic schedule with isochronous transfers and interrupt queue heads (EHCI 4.6, 4.7);
//! * interrupts with the threshold as a maximum rate (EHCI 4.15);
//! * split transactions for full- and low-speed devices behind a high-speed hub (EHCI 4.12);
//! * the debug port, for consoles and debuggers that run before any driver (EHCI appendix C);
//! * the addendum of revision 1.1, if asked for ([`Ehci::with_addendum`]): link power management, a
//!   change bit for each port, a frame list of 32 entries.

mod async_schedule;
mod clock;
mod controller;
mod debug_port;
mod engine;
mod interrupts;
mod itd;
mod overlay;
mod periodic_schedule;
mod polling;
mod ports;
mod queue_head;
mod registers;
mod sitd;
mod spec;
mod split;
mod structures;
mod transaction;
mod waiting;

pub use controller::{EECP, Ehci};
pub use polling::Polling;
