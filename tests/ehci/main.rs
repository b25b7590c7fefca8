//! The EHCI controller against its specification, through a driver.

#[path = "../driver/mod.rs"]
mod driver;

#[allow(unreachable_pub, reason = "shared by the modules of this test")]
mod rig;
mod story;
