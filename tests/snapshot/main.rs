//! Machines that are saved and restored: at any instant, from any bytes, from any version.

#![allow(unreachable_pub, reason = "the tests share one world")]

#[path = "../driver/mod.rs"]
mod driver;

mod courier;
mod drivers;
mod golden;
mod hostile;
mod instants;
mod rules;
mod world;
