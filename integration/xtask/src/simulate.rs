//! `cargo xtask simulate`: more seeds of the simulation than the tests run.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::{shell, workspace};

/// Runs `seeds` seeds from `first` on; a single one tells all that happens.
pub(crate) fn run(seeds: u64, first: u64) -> Result<ExitCode> {
    let end =
        first.checked_add(seeds).context("there are no seeds beyond 2^64 - 1: begin earlier")?;
    let mut cargo = Command::new(workspace::cargo());
    // What takes long is worth an optimized build; a single seed is not.
    let profile: &[&str] = if seeds > 1 { &["--release"] } else { &[] };
    cargo.args(["test", "--package", "vm-usb", "--test", "simulation"]).args(profile);
    cargo.args(["--", "--nocapture", "nothing_is_lost_in_ten_thousand_short_lives"]);
    cargo.env("VM_USB_SEEDS", format!("{first}..{end}")).current_dir(workspace::root());
    let status = cargo.status().with_context(|| shell::cannot_start("cargo"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
