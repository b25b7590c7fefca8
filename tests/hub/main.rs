//! Hubs: as devices, with devices behind them, and behind each controller.

#[path = "../driver/mod.rs"]
mod driver;

mod controllers;
mod hostile;
mod ports;
#[allow(unreachable_pub, reason = "shared by the modules of this test")]
mod rig;
#[allow(unreachable_pub, reason = "shared by the modules of this test")]
mod split_host;
mod translator;
mod tree;
