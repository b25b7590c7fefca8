//! The guest's userland: a static busybox and ext4's tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::apt::Archive;
use super::cache::Cache;
use super::qemu::with_loader;
use crate::shell;

/// The root the programs are taken from.
#[derive(Debug, Clone)]
pub(crate) struct Userland {
    root: PathBuf,
}

impl Userland {
    pub(crate) fn fetch(cache: &Cache) -> Result<Self> {
        let root = cache.folder("userland", |root| {
            let archive = Archive::trixie(cache)?;
            let debs = archive.closure("trixie", &["busybox-static", "e2fsprogs"])?;
            archive.unpack("the guest's userland", "trixie", &debs, root)
        })?;
        Ok(Self { root })
    }

    pub(crate) fn busybox(&self) -> PathBuf {
        self.root.join("usr/bin/busybox")
    }

    /// The names busybox goes by, but `busybox` itself.
    pub(crate) fn applets(&self) -> Result<Vec<String>> {
        let list = shell::output(Command::new(self.busybox()).arg("--list"))?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        Ok(list.lines().filter(|name| *name != "busybox").map(str::to_owned).collect())
    }

    /// A program under `usr/sbin` and the libraries it loads, each with its place in the guest.
    pub(crate) fn program(&self, name: &str) -> Result<Vec<(PathBuf, String)>> {
        let program = self.root.join("usr/sbin").join(name);
        // The loader's `--list` does not run the program; it resolves its libraries, in this root.
        let mut list = with_loader(&self.root, Path::new("--list"));
        let listing = shell::output(list.arg(&program))?;
        let mut files = vec![(program, format!("sbin/{name}"))];
        files.extend(parse_libraries(&String::from_utf8_lossy(&listing.stdout)));
        Ok(files)
    }
}

/// Lines are `NAME => PATH (ADDRESS)`; the loader's own is `PATH (ADDRESS)`; the vDSO has no path.
fn parse_libraries(listing: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for line in listing.lines() {
        let place = line.split("=>").last().unwrap_or_default();
        let Some(path) = place.split_whitespace().next().filter(|path| path.starts_with('/'))
        else {
            continue;
        };
        let Some(name) = path.rsplit('/').next() else { continue };
        let folder = if name.starts_with("ld-linux") { "lib64" } else { "lib" };
        found.push((PathBuf::from(path), format!("{folder}/{name}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_go_to_lib_and_the_loader_where_programs_look_for_it() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                       \tlibext2fs.so.2 => /root/usr/lib/x86_64-linux-gnu/libext2fs.so.2 (0x00007f5e)\n\
                       \t/root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 (0x00007f5f)\n";
        let libraries = parse_libraries(listing);
        let places: Vec<_> = libraries.iter().map(|(_, place)| place.as_str()).collect();
        assert_eq!(places, ["lib/libext2fs.so.2", "lib64/ld-linux-x86-64.so.2"]);
    }
}
