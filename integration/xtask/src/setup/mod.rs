//! What a lab needs on this machine, fetched when it is not there.
//!
//! Everything fetched is a Debian package, checked by apt against the archive's signature, and unpacked into a folder
//! of the cache that appears only once it is whole. A warm cache asks the network for nothing.

mod apt;
mod apt_sources;
mod architecture;
mod cache;
mod kernel;
mod qemu;
mod toolchain;
mod userland;

use anyhow::Result;

pub(crate) use architecture::Architecture;
pub(crate) use cache::Cache;
pub(crate) use kernel::{Kernel, KernelFiles};
pub(crate) use qemu::Qemu;
pub(crate) use toolchain::Toolchain;
pub(crate) use userland::Userland;

/// The programs for every guest of an architecture.
pub(crate) struct Lab {
    pub(crate) cache: Cache,
    pub(crate) qemu: Qemu,
    pub(crate) userland: Userland,
    pub(crate) toolchain: Toolchain,
}

impl Lab {
    /// Fetches what is missing for guests of this machine's architecture.
    pub(crate) fn set_up() -> Result<Self> {
        Self::set_up_for(Architecture::Amd64)
    }

    /// Fetches what is missing.
    pub(crate) fn set_up_for(architecture: Architecture) -> Result<Self> {
        let cache = Cache::open()?;
        let qemu = Qemu::find_or_fetch(&cache, architecture)?;
        let userland = Userland::fetch(&cache, architecture)?;
        let toolchain = Toolchain::fetch(&cache, architecture)?;
        Ok(Self { cache, qemu, userland, toolchain })
    }

    pub(crate) fn architecture(&self) -> Architecture {
        self.qemu.architecture
    }

    pub(crate) fn kernel(&self, kernel: Kernel) -> Result<KernelFiles> {
        KernelFiles::fetch(&self.cache, self.architecture(), kernel)
    }
}
