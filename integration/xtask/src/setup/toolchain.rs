//! The compiler of the guest's agent: for a guest of this machine's architecture the one that built this program.
//!
//! For another architecture rustup would have to install a standard library. Debian has one as a package, which fits the
//! compiler of the same version only, so that comes along, with a linker and the C library.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::Archive;
use super::architecture::Architecture;
use super::cache::Cache;

/// What compiles for the guest.
#[derive(Debug, Clone)]
pub(crate) enum Toolchain {
    /// The one that this program was built with.
    Own,
    /// Debian's for arm64, in this root.
    Arm64(PathBuf),
}

/// The compiler's package; of what it needs, the C compiler is left out, since every machine with Rust has one.
const COMPILER: &str = "rustc";
const FOR_COMPILER: [&str; 2] = ["libstd-rust-dev", "binutils-aarch64-linux-gnu"];
/// Of the guest's architecture.
const LIBRARIES: [&str; 3] = ["libstd-rust-dev", "libc6-dev", "libgcc-14-dev"];
const RELEASE: &str = "trixie-backports";

/// The programs are run by the root's own dynamic loader. The first line finds the root, wherever the cache is.
const RUSTC: &str = r#"#!/bin/sh
root=$(dirname "$0")
lib=$root/usr/lib/x86_64-linux-gnu
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$root/usr/bin/rustc" --sysroot "$root/usr" "$@"
"#;
/// What a C compiler adds to a link of a static program.
const LINKER: &str = r#"#!/bin/sh
root=$(dirname "$0")
lib=$root/usr/lib/x86_64-linux-gnu
c=$root/usr/lib/aarch64-linux-gnu
gcc=$root/usr/lib/gcc/aarch64-linux-gnu/14
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$root/usr/bin/aarch64-linux-gnu-ld" --sysroot="$root" \
    "$c/crt1.o" "$c/crti.o" "$gcc/crtbeginT.o" -L"$gcc" -L"$c" "$@" \
    --start-group -lgcc -lgcc_eh -lc --end-group "$gcc/crtend.o" "$c/crtn.o"
"#;

impl Toolchain {
    pub(crate) fn fetch(cache: &Cache, architecture: Architecture) -> Result<Self> {
        if architecture == Architecture::Amd64 {
            return Ok(Self::Own);
        }
        let root = cache.folder(&architecture.part("rust"), |root| {
            let label = "a Rust compiler for arm64";
            let archive = Archive::trixie(cache, Architecture::Amd64)?;
            let mut debs = archive.closure(RELEASE, &FOR_COMPILER)?;
            let compiler = archive.closure(RELEASE, &[COMPILER])?;
            debs.extend(compiler.into_iter().filter(|deb| deb.package == COMPILER));
            archive.unpack(label, RELEASE, &debs, root)?;
            let archive = Archive::trixie(cache, architecture)?;
            let mut debs = archive.closure(RELEASE, &LIBRARIES)?;
            debs.retain(|deb| LIBRARIES.contains(&deb.package.as_str()));
            archive.unpack(label, RELEASE, &debs, root)?;
            program(&root.join("rustc"), RUSTC)?;
            program(&root.join("linker"), LINKER)
        });
        root.context("fetching a Rust compiler for arm64").map(Self::Arm64)
    }

    /// Has `cargo` make static programs with it.
    pub(crate) fn configure(&self, cargo: &mut Command) {
        cargo.env_remove("CARGO_ENCODED_RUSTFLAGS");
        match self {
            Self::Own => {
                cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
            }
            Self::Arm64(root) => {
                cargo.env("RUSTC", root.join("rustc"));
                cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", root.join("linker"));
                // Without position-independent code there is one kind of start-up code.
                cargo.env(
                    "RUSTFLAGS",
                    "-C target-feature=+crt-static -C relocation-model=static -C linker-flavor=ld",
                );
            }
        }
    }
}

fn program(path: &Path, script: &str) -> Result<()> {
    fs::write(path, script).with_context(|| path.display().to_string())?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o755))?)
}
