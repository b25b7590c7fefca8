//! A disk behind a bus without any controller: its two transports and its SCSI commands, as a driver
//! meets them.

#[path = "../driver/mod.rs"]
mod driver;

mod batch;
mod commands;
mod moody;
mod properties;
mod recovery;
mod rig;
mod thirteen_cases;
mod uas;
mod uas_hosts;
mod uas_properties;
mod uas_recovery;
