//! Building the agent: a static program, since the guest has no Rust and hardly any libraries.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::setup::Lab;
use crate::{progress, shell, workspace};

pub(crate) fn build(lab: &Lab) -> Result<PathBuf> {
    let target = lab.architecture().rust_target();
    let folder = workspace::target().join("guest");
    let mut cargo = Command::new(workspace::cargo());
    cargo.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "guest-agent",
        "--target",
        target,
        "--target-dir",
    ]);
    cargo.arg(&folder).current_dir(workspace::root());
    lab.toolchain.configure(&mut cargo);
    let bar = progress::spinner("building the guest's agent");
    let built = shell::output(&mut cargo);
    bar.finish_and_clear();
    built?;
    Ok(folder.join(target).join("release/guest-agent"))
}
