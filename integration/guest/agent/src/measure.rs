//! The figures: sequential and random access past the page cache.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use guest_protocol::{Direction, Latencies, Pattern, Throughput};
use rustix::fs::{SeekFrom, seek};

use crate::{direct, disks};

const SEQUENTIAL_BLOCK: usize = 1 << 20;
const RANDOM_BLOCK: usize = 4 << 10;

/// Reads or writes `mebibytes` MiB from the start in blocks of 1 MiB, `at_once` of them at the same time.
pub(crate) fn sequential(
    controller: &str,
    direction: Direction,
    mebibytes: u64,
    at_once: usize,
) -> Result<Throughput> {
    let disk = direct::open(&disks::node(controller)?)?;
    let next = AtomicU64::new(0);
    let one_after_the_other = || -> Result<()> {
        let mut buffer = direct::Buffer::new(SEQUENTIAL_BLOCK);
        loop {
            let block = next.fetch_add(1, Ordering::Relaxed);
            if block >= mebibytes {
                return Ok(());
            }
            let offset = block * SEQUENTIAL_BLOCK as u64;
            match direction {
                Direction::Read => disk.read_exact_at(buffer.bytes(), offset)?,
                Direction::Write => disk.write_all_at(buffer.bytes(), offset)?,
            }
        }
    };
    let start = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..at_once.max(1)).map(|_| scope.spawn(one_after_the_other)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
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
