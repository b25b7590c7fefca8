//! A running guest: what it is made of, how it is started, how one talks to it.

mod console;
mod hand;
mod machine;
mod relay;
mod rig;
mod server;
mod session;

pub(crate) use hand::Hand;
pub(crate) use machine::{Firmware, Interrupts};
pub(crate) use rig::{Attachment, Controller, Disk, Kind, Loopback, Maker, Rig, Transport, Wiring};
pub(crate) use server::{Pacing, build as build_server, recording, tape};
pub(crate) use session::{Guest, Start};
