//! Building the agent: a static program, since the guest has no Rust and hardly any libraries.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{progress, shell, workspace};

const TARGET: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn build() -> Result<PathBuf> {
    let folder = workspace::target().join("guest");
    let mut cargo = Command::new(workspace::cargo());
    cargo.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "guest-agent",
        "--target",
        TARGET,
        "--target-dir",
    ]);
    cargo.arg(&folder).current_dir(workspace::root());
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let bar = progress::spinner("building the guest's agent");
    let built = shell::output(&mut cargo);
    bar.finish_and_clear();
    built?;
    Ok(folder.join(TARGET).join("release/guest-agent"))
}
