//! QEMU with the `vfio-user-pci` device: the system's, or one in a root of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::apt::Archive;
use super::architecture::Architecture;
use super::cache::Cache;
use crate::shell;

/// The device that speaks to a server like ours; QEMU has it since 10.1.
const DEVICE: &str = "vfio-user-pci";
const LOADER: &str = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// How to start QEMU.
#[derive(Debug, Clone)]
pub(crate) struct Qemu {
    /// Of the guest.
    pub(crate) architecture: Architecture,
    /// In this root, with the root's own libraries; the system's if `None`.
    root: Option<PathBuf>,
}

impl Architecture {
    fn emulator(self) -> &'static str {
        match self {
            Self::Amd64 => "qemu-system-x86_64",
            Self::Arm64 => "qemu-system-aarch64",
        }
    }

    /// Debian's package of it.
    fn emulator_package(self) -> &'static str {
        match self {
            Self::Amd64 => "qemu-system-x86",
            Self::Arm64 => "qemu-system-arm",
        }
    }
}

impl Qemu {
    /// The system's QEMU.
    pub(crate) fn of_system(architecture: Architecture) -> Self {
        Self { architecture, root: None }
    }

    /// The system's QEMU when it has the device, else the cache's, which is fetched when it is not there.
    pub(crate) fn find_or_fetch(cache: &Cache, architecture: Architecture) -> Result<Self> {
        let system = Self::of_system(architecture);
        if system.has_device() {
            return Ok(system);
        }
        let program = architecture.emulator();
        if !cfg!(target_arch = "x86_64") {
            bail!(
                "this machine's {program} has no `{DEVICE}`; on a machine that is not amd64, install QEMU 10.1 or newer yourself"
            );
        }
        let folder = architecture.part("qemu");
        let root = cache.folder(&folder, |root| {
            let archive = Archive::trixie(cache, Architecture::Amd64)?;
            let debs = archive.closure("trixie-backports", &[architecture.emulator_package()])?;
            archive.unpack("QEMU", "trixie-backports", &debs, root)
        });
        let root = root.with_context(|| {
            format!("this machine has no {program} with `{DEVICE}` (10.1 or newer), and fetching one failed")
        })?;
        let qemu = Self { architecture, root: Some(root) };
        if !qemu.has_device() {
            bail!(
                "the QEMU in {} does not start or has no `{DEVICE}`; remove that folder and try again",
                cache.path(&folder).display()
            );
        }
        Ok(qemu)
    }

    /// A command to which the machine's options can be added.
    pub(crate) fn command(&self) -> Command {
        let program = self.architecture.emulator();
        let Some(root) = &self.root else { return Command::new(program) };
        let mut command = with_loader(root, &root.join("usr/bin").join(program));
        for folder in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(root.join(folder));
        }
        command
    }

    /// The version, for people.
    pub(crate) fn version(&self) -> Result<String> {
        let output = shell::output(self.command().arg("--version"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("QEMU emulator version ")
            .to_owned())
    }

    /// Where it is, for people.
    pub(crate) fn place(&self) -> String {
        match &self.root {
            None => "the system's".to_owned(),
            Some(root) => root.display().to_string(),
        }
    }

    fn has_device(&self) -> bool {
        let help = shell::output(self.command().args(["-device", "help"]));
        help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(DEVICE))
    }
}

/// A program of a root, run by the root's own dynamic loader, so that the system's libraries play no part.
pub(crate) fn with_loader(root: &Path, program: &Path) -> Command {
    let mut command = Command::new(root.join(LOADER));
    command.arg("--library-path").arg(root.join(LIBRARIES)).arg(program);
    command
}
