//! The figures: sequential and random reads past the page cache.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Result, ensure};
use guest_protocol::{Latencies, Pattern, Throughput};
use rustix::fs::{SeekFrom, seek};

use crate::{direct, disks};

const SEQUENTIAL_BLOCK: usize = 1 << 20;
const RANDOM_BLOCK: usize = 4 << 10;

/// Reads `mebibytes` MiB from the start in blocks of 1 MiB.
pub(crate) fn sequential(controller: &str, mebibytes: u64) -> Result<Throughput> {
    let disk = direct::open(&disks::node(controller)?)?;
    let mut buffer = direct::Buffer::new(SEQUENTIAL_BLOCK);
    let start = Instant::now();
    for block in 0..mebibytes {
        disk.read_exact_at(buffer.bytes(), block * SEQUENTIAL_BLOCK as u64)?;
    }
    let nanoseconds = start.elapsed().as_nanos() as u64;
    Ok(Throughput { bytes: mebibytes * SEQUENTIAL_BLOCK as u64, nanoseconds })
}

/// Reads `count` blocks of 4 KiB, one at a time, anywhere on the disk.
pub(crate) fn random(controller: &str, count: usize, seed: u64) -> Result<Latencies> {
    let disk = direct::open(&disks::node(controller)?)?;
    let blocks = seek(&disk, SeekFrom::End(0))? / RANDOM_BLOCK as u64;
    ensure!(blocks > 0, "the disk is smaller than one block of {RANDOM_BLOCK} bytes");
    let mut places = Pattern::new(seed);
    let mut buffer = direct::Buffer::new(RANDOM_BLOCK);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let offset = places.below(blocks) * RANDOM_BLOCK as u64;
        let start = Instant::now();
        disk.read_exact_at(buffer.bytes(), offset)?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    Ok(Latencies(times))
}
