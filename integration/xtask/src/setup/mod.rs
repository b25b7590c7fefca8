//! What a lab needs on this machine, fetched when it is not there.
//!
//! Everything fetched is a Debian package, checked by apt against the archive's signature, and unpacked into a folder
//! of the cache that appears only once it is whole. A warm cache asks the network for nothing.

mod apt;
mod apt_sources;
mod cache;
mod kernel;
mod qemu;
mod userland;

use anyhow::Result;

pub(crate) use cache::Cache;
pub(crate) use kernel::{Kernel, KernelFiles};
pub(crate) use qemu::Qemu;
pub(crate) use userland::Userland;

/// The programs for every guest.
pub(crate) struct Lab {
    pub(crate) cache: Cache,
    pub(crate) qemu: Qemu,
    pub(crate) userland: Userland,
}

impl Lab {
    /// Fetches what is missing.
    pub(crate) fn set_up() -> Result<Self> {
        let cache = Cache::open()?;
        let qemu = Qemu::find_or_fetch(&cache)?;
        let userland = Userland::fetch(&cache)?;
        Ok(Self { cache, qemu, userland })
    }

    pub(crate) fn kernel(&self, kernel: Kernel) -> Result<KernelFiles> {
        KernelFiles::fetch(&self.cache, kernel)
    }
}
