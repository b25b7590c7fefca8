//! A small software host: guest memory, a simulated clock, and a driver for each controller.
//!
//! Everything a guest does to a controller goes through its registers, its memory and its interrupt
//! line, as a real driver's would. The same code serves the tests and `examples/demo.rs`.
#![allow(dead_code, unreachable_pub, reason = "each test uses the part of the driver it needs")]

pub mod dice;
pub mod direct;
pub mod disk;
pub mod early_console;
pub mod ehci;
pub mod enumerate;
pub mod hid;
pub mod host;
pub mod hub;
pub mod lent;
pub mod machine;
pub mod mass_storage;
pub mod ohci;
pub mod recorder;
pub mod scripted;
pub mod tokens;
pub mod uas;
