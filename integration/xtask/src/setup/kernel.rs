//! The stock kernels.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::apt::{Archive, Deb};
use super::architecture::Architecture;
use super::cache::Cache;

/// Which stock Debian kernel the guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kernel {
    /// Debian 12's: 6.1.
    Bookworm,
    /// Debian 13's: 6.12.
    Trixie,
    /// Debian 13's newest: 7.3 or later.
    Backports,
}

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub(crate) struct KernelFiles {
    pub(crate) vmlinuz: PathBuf,
    /// The folder of its modules; its name is the kernel's release.
    pub(crate) modules: PathBuf,
    pub(crate) release: String,
}

impl Kernel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Backports => "backports",
        }
    }

    fn release(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Backports => "trixie-backports",
        }
    }

    fn archive(self, cache: &Cache, architecture: Architecture) -> Result<Archive> {
        match self {
            Self::Bookworm => Archive::bookworm(cache, architecture),
            Self::Trixie | Self::Backports => Archive::trixie(cache, architecture),
        }
    }
}

impl KernelFiles {
    pub(crate) fn fetch(cache: &Cache, architecture: Architecture, kernel: Kernel) -> Result<Self> {
        let folder = architecture.part(&format!("kernel-{}", kernel.name()));
        let root = cache.folder(&folder, |root| {
            let archive = kernel.archive(cache, architecture)?;
            let package = format!("linux-image-{}", architecture.name());
            let mut debs = archive.closure(kernel.release(), &[&package])?;
            debs.retain(is_kernel);
            ensure!(!debs.is_empty(), "Debian {} has no kernel package", kernel.release());
            archive.unpack(
                &format!("the kernel of {}", kernel.release()),
                kernel.release(),
                &debs,
                root,
            )
        })?;
        Self::find(root).with_context(|| format!("the kernel of {}", kernel.release()))
    }

    /// Before the split into several packages the image was `/boot/vmlinuz-V`; now it is beside the modules.
    fn find(root: PathBuf) -> Result<Self> {
        let parent = ["usr/lib/modules", "lib/modules"]
            .map(|place| root.join(place))
            .into_iter()
            .find(|path| path.is_dir());
        let parent = parent.with_context(|| format!("{} has no modules", root.display()))?;
        let entry = fs::read_dir(&parent)?
            .next()
            .with_context(|| format!("{} is empty", parent.display()))??;
        let (modules, release) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let images = [modules.join("vmlinuz"), root.join(format!("boot/vmlinuz-{release}"))];
        let vmlinuz = images.into_iter().find(|image| image.is_file());
        Ok(Self {
            vmlinuz: vmlinuz.with_context(|| format!("there is no vmlinuz for {release}"))?,
            modules,
            release,
        })
    }
}

/// The versioned packages that hold the image and the modules, not the tools that installing them would bring.
fn is_kernel(deb: &Deb) -> bool {
    ["linux-image-", "linux-binary-", "linux-base-", "linux-modules-"].iter().any(|prefix| {
        deb.package
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    })
}
