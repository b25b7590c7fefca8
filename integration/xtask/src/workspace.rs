//! This workspace: where it is and how to build its parts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder of the top `Cargo.toml`.
pub(crate) fn root() -> &'static Path {
    let this = Path::new(env!("CARGO_MANIFEST_DIR"));
    this.ancestors().nth(2).unwrap_or(this)
}

/// Cargo's output folder.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |set| root().join(set))
}

/// The cargo that runs us, else the one in PATH.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
