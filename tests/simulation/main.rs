//! Deterministic simulation: a seed is a machine, a guest and everything that goes wrong with them.
//!
//! `README.md` beside this says what happens, what is checked and how to replay a seed.

#![allow(unreachable_pub, reason = "the parts of one program")]

#[path = "../driver/mod.rs"]
mod driver;

mod disk;
mod echo;
mod host;
mod job;
mod keyboard;
mod life;
mod media;
mod model;
mod owner;
mod plan;
mod printer;
mod runs;
mod story;
mod world;
