//! The rules of `docs/ohci.md`, one test for each at least, against the controller as a guest sees
//! it: registers, memory, the interrupt line.
//!
//! A test is named after its rule: `ohci_td_5_...` tests OHCI-TD-5.

#![allow(unreachable_pub, reason = "the rules share one rig")]

#[path = "../chapter/mod.rs"]
mod chapter;
#[path = "../driver/mod.rs"]
mod driver;

mod rig;

mod conformance;
mod current;
mod done;
mod ed;
mod err;
mod frm;
mod hcca;
mod idle;
mod int;
mod iso;
mod legacy;
mod model;
mod own;
mod pacing;
mod pm;
mod random;
mod reg;
mod rh;
mod streams;
mod td;
mod unlink;
mod unlink_model;
mod unlink_rebuilt;
