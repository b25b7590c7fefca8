//! The programs a guest is started from, and a run from its start to its end.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::guest::{self, Firmware, Guest, Interrupts, Maker, Pacing, Rig, Start};
use crate::initramfs;
use crate::run_folder::RunFolder;
use crate::setup::{Kernel, KernelFiles, Lab};

/// How a Linux guest is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) kernel: Kernel,
    pub(crate) interrupts: Interrupts,
    /// Guest memory in MiB.
    pub(crate) memory: u32,
    pub(crate) pacing: Option<Pacing>,
}

impl Default for Options {
    /// The guest that the command line gives when nothing is said.
    fn default() -> Self {
        let (kernel, interrupts) = (Kernel::Bookworm, Interrupts::Msi);
        Self { kernel, interrupts, memory: 512, pacing: None }
    }
}

/// From here on this program and all it starts run on one host processor. So our server, which is a process of its own,
/// has no processor that QEMU's controllers do not have, and figures do not depend on where the host's scheduler puts
/// threads: waking one on another processor takes a nested virtual machine ten times as long.
pub(crate) fn share_one_processor() -> Result<()> {
    let allowed = sched_getaffinity(None).context("this program's processors")?;
    let mut one = CpuSet::new();
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| allowed.is_set(cpu));
    one.set(last.context("no processor is allowed")?);
    sched_setaffinity(None, &one).context("cannot keep to one processor")
}

/// A lab with everything built that its guests need.
pub(crate) struct Bench {
    pub(crate) lab: Lab,
    server: Option<PathBuf>,
}

impl Bench {
    /// Builds the server when one of the makers is us.
    pub(crate) fn build(lab: Lab, makers: &[Maker]) -> Result<Self> {
        let server = makers.contains(&Maker::Ours).then(guest::build_server).transpose()?;
        Ok(Self { lab, server })
    }

    /// What a Linux guest on `rig` is started from.
    pub(crate) fn linux(
        &self,
        options: Options,
        rig: Rig,
        run: &RunFolder,
        shell: bool,
    ) -> Result<Start<'_>> {
        let kernel = self.lab.kernel(options.kernel)?;
        let initramfs = self.initramfs(&kernel, run)?;
        let firmware = Firmware::Linux {
            vmlinuz: kernel.vmlinuz,
            initramfs,
            interrupts: options.interrupts,
            shell,
        };
        Ok(self.start(firmware, rig, options.memory, options.pacing, run))
    }

    /// What a guest is started from that boots from its disks.
    pub(crate) fn disks(&self, rig: Rig, run: &RunFolder) -> Start<'_> {
        self.start(Firmware::Disks, rig, 256, None, run)
    }

    /// What a guest is started from that is one program without an operating system.
    pub(crate) fn bare_metal(&self, program: &Path, rig: Rig, run: &RunFolder) -> Start<'_> {
        self.start(Firmware::BareMetal(program.to_owned()), rig, 64, None, run)
    }

    fn start(
        &self,
        firmware: Firmware,
        rig: Rig,
        memory: u32,
        pacing: Option<Pacing>,
        run: &RunFolder,
    ) -> Start<'_> {
        let server = self.server.as_deref();
        Start {
            qemu: &self.lab.qemu,
            server,
            firmware,
            rig,
            memory,
            pacing,
            run: run.path().to_owned(),
        }
    }

    fn initramfs(&self, kernel: &KernelFiles, run: &RunFolder) -> Result<PathBuf> {
        let base =
            self.lab.cache.path(&format!("initramfs-{}-{}", kernel.release, initramfs::recipe()));
        let target = run.path().join("initramfs");
        initramfs::build(&self.lab, kernel, &base, &target)?;
        Ok(target)
    }
}

/// Runs `work` on a guest; when it fails, the logs are kept and the error says where.
pub(crate) fn with_logs<T>(
    run: RunFolder,
    work: impl FnOnce(&RunFolder) -> Result<T>,
) -> Result<T> {
    work(&run).map_err(|error| {
        let logs = run.keep_logs();
        error.context(format!("(the guest's logs are in {})", logs.display()))
    })
}

/// Powers the guest off after `work` and fails when its kernel complained.
pub(crate) fn through<T>(
    mut guest: Guest,
    work: impl FnOnce(&mut Guest) -> Result<T>,
) -> Result<T> {
    let value = work(&mut guest)?;
    guest.end()?;
    Ok(value)
}
