//! Devices that are pulled out while the guest is busy with them, and come back.
//!
//! One story, a thousand times for each device on each controller: the driver sees the device come, sets
//! it up and works with it, until a hand pulls it out at a moment that the dice choose, between any two
//! steps of the driver. What was under way ends with an error, the driver sees the device go, and of the
//! data nothing is lost or doubled.

#[path = "../driver/mod.rs"]
mod driver;

#[allow(unreachable_pub, reason = "shared by the modules of this test")]
mod bus;
#[allow(unreachable_pub, reason = "shared by the modules of this test")]
mod disk;
mod hub;
mod input;
#[allow(unreachable_pub, reason = "shared by the modules of this test")]
mod job;
mod loopback;
mod printer;
