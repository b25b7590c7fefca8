//! The EHCI controller against its specification, through a driver.
//!
//! Each test is named after the rule of `docs/ehci.md` that it checks.
#![allow(unreachable_pub, reason = "the rig is shared by the modules of this test")]

#[path = "../chapter/mod.rs"]
mod chapter;
#[path = "../driver/mod.rs"]
mod driver;

mod pci;
mod rig;

mod addendum;
mod addressing;
mod asynchronous;
mod capabilities;
mod companion;
mod conformance;
mod debug_port;
mod doorbell;
mod errors;
mod fstn;

mod interrupts;
mod isochronous;
mod periodic;
mod ping;
mod polling;
mod ports;
mod power;
mod qtd;
mod random;
mod registers;
mod short;
mod sitd;
mod split;
mod stall;
mod story;
mod stream;
mod translator;
