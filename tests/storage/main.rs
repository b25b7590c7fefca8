//! A disk behind a bus without any controller: the bulk-only transport and its SCSI commands, as a
//! driver meets them.

#[path = "../driver/mod.rs"]
mod driver;

mod commands;
mod properties;
mod recovery;
mod rig;
mod thirteen_cases;
