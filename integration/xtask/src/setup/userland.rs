//! The guest's userland: a static busybox and ext4's tools.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::Archive;
use super::architecture::Architecture;
use super::cache::Cache;
use crate::shell;

/// The roots the programs are taken from.
#[derive(Debug, Clone)]
pub(crate) struct Userland {
    architecture: Architecture,
    /// The guest's.
    root: PathBuf,
    /// The same for this machine, to run.
    own: PathBuf,
}

impl Userland {
    pub(crate) fn fetch(cache: &Cache, architecture: Architecture) -> Result<Self> {
        let root = |architecture: Architecture| {
            cache.folder(&architecture.part("userland"), |root| {
                let archive = Archive::trixie(cache, architecture)?;
                let debs = archive.closure("trixie", &["busybox-static", "e2fsprogs"])?;
                archive.unpack("the guest's userland", "trixie", &debs, root)
            })
        };
        let own = root(Architecture::Amd64)?;
        Ok(Self { architecture, root: root(architecture)?, own })
    }

    /// The guest's busybox.
    pub(crate) fn busybox(&self) -> PathBuf {
        self.root.join("usr/bin/busybox")
    }

    /// A busybox that this machine can run.
    pub(crate) fn own_busybox(&self) -> Command {
        Command::new(self.own.join("usr/bin/busybox"))
    }

    /// The names busybox goes by, but `busybox` itself.
    pub(crate) fn applets(&self) -> Result<Vec<String>> {
        let list = shell::output(self.own_busybox().arg("--list"))?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        Ok(list.lines().filter(|name| *name != "busybox").map(str::to_owned).collect())
    }

    /// Programs of `usr/sbin` and all libraries of the root, which has those that they need and few more. Each with its
    /// place in the guest.
    pub(crate) fn programs(&self, names: &[&str]) -> Result<Vec<(PathBuf, String)>> {
        let program = |name: &&str| (self.root.join("usr/sbin").join(name), format!("sbin/{name}"));
        let mut files: Vec<_> = names.iter().map(program).collect();
        let folder = self.root.join(self.architecture.libraries());
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(place) = library(&name) {
                files.push((entry.path(), place));
            }
        }
        files.sort();
        Ok(files)
    }
}

/// The place of a library in the guest, if the name is one that programs ask for: `libc.so.6`, not `libuuid.so.1.3.0`.
fn library(name: &str) -> Option<String> {
    let (_, version) = name.split_once(".so.")?;
    version.parse::<u32>().ok()?;
    // Where programs look for their loader.
    let folder = if name.starts_with("ld-linux-x86-64") { "lib64" } else { "lib" };
    Some(format!("{folder}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_go_to_lib_and_the_loader_where_programs_look_for_it() {
        assert_eq!(library("libext2fs.so.2").as_deref(), Some("lib/libext2fs.so.2"));
        assert_eq!(library("ld-linux-x86-64.so.2").as_deref(), Some("lib64/ld-linux-x86-64.so.2"));
        assert_eq!(library("ld-linux-aarch64.so.1").as_deref(), Some("lib/ld-linux-aarch64.so.1"));
    }

    #[test]
    fn a_library_is_taken_under_the_name_that_programs_ask_for() {
        for name in ["libext2fs.so.2.4", "libmemusage.so", "gconv", "libc.a"] {
            assert_eq!(library(name), None, "{name}");
        }
    }
}
