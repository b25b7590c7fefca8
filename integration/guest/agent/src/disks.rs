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
use crate::sysfs::attribute;
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
            return Ok(hexadecimal(&hash.finalize()));
        }
        hash.update(&buffer[..count]);
    }
}

/// Carries out `plan`, reads the first MiB, both past the page cache, and says where the buffer was.
pub(crate) fn placement(controller: &str, plan: WritePlan) -> Result<Placement> {
    let node = node(controller)?;
    let disk = direct::open(&node)?;
    let mut buffer = Buffer::new(READ);
    carry_out(&node, &disk, plan, &mut buffer)?;
    disk.read_exact_at(buffer.bytes(), 0)?;
    let (pages, above_4_gib) = buffer.pages()?;
    let sha256 = hexadecimal(&Sha256::digest(buffer.bytes()));
    let function = Path::new("/sys/bus/pci/devices").join(controller);
    let address_bits = attribute(&function, "dma_mask_bits")?.parse()?;
    Ok(Placement { pages, above_4_gib, sha256, address_bits })
}

/// Carries out `plan` past the page cache: every block of the plan is a write on the bus.
pub(crate) fn write(controller: &str, plan: WritePlan) -> Result<Throughput> {
    let node = node(controller)?;
    let disk = direct::open(&node)?;
    let mut buffer = Buffer::new(READ);
    let start = Instant::now();
    carry_out(&node, &disk, plan, &mut buffer)?;
    Ok(Throughput { bytes: plan.bytes(), nanoseconds: start.elapsed().as_nanos() as u64 })
}

/// Every block is copied to `buffer`, which takes a MiB, and written from there.
fn carry_out(node: &Path, disk: &File, plan: WritePlan, buffer: &mut Buffer) -> Result<()> {
    for block in plan.blocks() {
        let bytes = &mut buffer.bytes()[..block.length];
        block.fill(bytes);
        disk.write_all_at(bytes, block.offset).with_context(|| {
            format!("writing {} bytes at {} of {}", block.length, block.offset, node.display())
        })?;
    }
    disk.sync_all().with_context(|| format!("flushing {}", node.display()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
