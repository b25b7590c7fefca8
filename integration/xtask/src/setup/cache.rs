//! The cache folder, in which a thing is there whole or not at all.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

/// The folder itself.
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens `$VM_USB_CACHE`, else `$XDG_CACHE_HOME/vm-usb`, else `~/.cache/vm-usb`.
    pub(crate) fn open() -> Result<Self> {
        Self::open_at(place()?)
    }

    fn open_at(root: PathBuf) -> Result<Self> {
        fs::create_dir_all(&root).with_context(|| {
            format!("cannot make the cache folder {}; set VM_USB_CACHE to another", root.display())
        })?;
        Ok(Self { root })
    }

    /// Only one process at a time fills the cache; it is free again when the file is dropped.
    fn lock(&self) -> Result<File> {
        let lock =
            File::create(self.path("lock")).with_context(|| self.root.display().to_string())?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            eprintln!("another run is filling {}; waiting for it", self.root.display());
            flock(&lock, FlockOperation::LockExclusive)?;
        }
        Ok(lock)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The folder `name`. When it is not there, `fill` gets an empty folder to fill, which takes the name only after
    /// `fill` succeeded and its bytes are on the disk: an interrupted run leaves nothing that looks whole.
    pub(crate) fn folder(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let whole = self.path(name);
        if whole.is_dir() {
            return Ok(whole);
        }
        let _lock = self.lock()?;
        if whole.is_dir() {
            return Ok(whole);
        }
        let part = self.path(&format!("{name}.part"));
        if part.exists() {
            fs::remove_dir_all(&part)
                .with_context(|| format!("removing the unfinished {}", part.display()))?;
        }
        fs::create_dir_all(&part).with_context(|| format!("making {}", part.display()))?;
        fill(&part)?;
        rustix::fs::syncfs(File::open(&part)?)?;
        fs::rename(&part, &whole).with_context(|| format!("finishing {}", whole.display()))?;
        Ok(whole)
    }
}

fn place() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(place) = set("VM_USB_CACHE") {
        return std::path::absolute(&place)
            .with_context(|| format!("VM_USB_CACHE={}", place.display()));
    }
    match set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache"))) {
        Some(parent) => Ok(parent.join("vm-usb")),
        None => bail!(
            "neither VM_USB_CACHE, XDG_CACHE_HOME nor HOME is set: set VM_USB_CACHE to a folder to cache in"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_filled_once() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::open_at(place.path().join("cache")).unwrap();
        let made = cache.folder("thing", |part| Ok(fs::write(part.join("file"), "x")?)).unwrap();
        assert_eq!(fs::read_to_string(made.join("file")).unwrap(), "x");
        cache.folder("thing", |_| panic!("it is there")).unwrap();
    }

    #[test]
    fn a_fill_that_failed_leaves_nothing_that_looks_whole() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::open_at(place.path().join("cache")).unwrap();
        let failed = cache.folder("thing", |part| {
            fs::write(part.join("half"), "x")?;
            bail!("the network is gone")
        });
        assert!(failed.is_err());
        assert!(!cache.path("thing").exists());
        let made = cache.folder("thing", |part| Ok(fs::write(part.join("whole"), "x")?)).unwrap();
        assert!(!made.join("half").exists());
    }
}
