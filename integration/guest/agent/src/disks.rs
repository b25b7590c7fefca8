//! The disk behind a controller: which one it is, reading all of it, writing a plan to it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use guest_protocol::{Placement, Throughput, WritePlan};
use sha2::{Digest, Sha256};

use crate::direct::{self, Buffer};
use crate::{inventory, wait};

/// How much the checksum reads at a time.
const READ: usize = 1 << 20;

/// The device node of the disk behind `controller`; waits for it to come.
pub(crate) fn node(controller: &str) -> Result<PathBuf> {
    wait::until(|| {
        let disk = inventory::take()?.disks.into_iter().find(|disk| disk.controller == controller);
        let disk = disk.ok_or_else(|| anyhow!("there is no disk behind {controller}"))?;
        let node = Path::new("/dev").join(&disk.name);
        // The node is there a moment before the disk answers.
        File::open(&node).with_context(|| format!("opening {}", node.display()))?;
        Ok(node)
    })
}

/// Reads the whole disk through the page cache, as most programs would.
pub(crate) fn sha256(controller: &str) -> Result<String> {
    let node = node(controller)?;
    let mut disk = File::open(&node)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; READ];
    loop {
        let count =
            disk.read(&mut buffer).with_context(|| format!("reading {}", node.display()))?;
        if count == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&buffer[..count]);
    }
}

/// Reads a MiB past the page cache and says where it went.
pub(crate) fn placement(controller: &str) -> Result<Placement> {
    let disk = direct::open(&node(controller)?)?;
    let mut buffer = Buffer::new(READ);
    disk.read_exact_at(buffer.bytes(), 0)?;
    buffer.placement()
}

/// Carries out `plan` past the page cache: every block of the plan is a write on the bus.
pub(crate) fn write(controller: &str, plan: WritePlan) -> Result<Throughput> {
    let node = node(controller)?;
    let disk = direct::open(&node)?;
    let mut buffer = Buffer::new(1 << 20);
    let start = Instant::now();
    for block in plan.blocks() {
        let bytes = &mut buffer.bytes()[..block.length];
        block.fill(bytes);
        disk.write_all_at(bytes, block.offset).with_context(|| {
            format!("writing {} bytes at {} of {}", block.length, block.offset, node.display())
        })?;
    }
    disk.sync_all().with_context(|| format!("flushing {}", node.display()))?;
    Ok(Throughput { bytes: plan.bytes(), nanoseconds: start.elapsed().as_nanos() as u64 })
}
