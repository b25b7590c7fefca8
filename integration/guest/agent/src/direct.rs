//! Reads and writes past the page cache.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::OFlags;

/// `O_DIRECT` wants memory aligned to the logical block; a page serves every disk.
const ALIGNMENT: usize = 4096;

/// Memory that may be read into or written from directly.
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    pub(crate) fn new(length: usize) -> Self {
        let memory = vec![0; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start, length }
    }

    /// How many pages it has in memory, and how many of them above 4 GiB; pages that were never touched are nowhere.
    pub(crate) fn pages(&mut self) -> Result<(usize, usize)> {
        let map = File::open("/proc/self/pagemap").context("/proc/self/pagemap")?;
        let first = self.bytes().as_ptr().addr() / ALIGNMENT;
        let (mut pages, mut above_4_gib) = (0, 0);
        for page in first..first + self.length.div_ceil(ALIGNMENT) {
            let mut entry = [0; 8];
            map.read_exact_at(&mut entry, page as u64 * 8)?;
            // Bit 63: present; bits 54 to 0: the frame's number.
            let entry = u64::from_ne_bytes(entry);
            if entry >> 63 != 0 {
                pages += 1;
                let address = (entry & ((1 << 55) - 1)) * ALIGNMENT as u64;
                above_4_gib += usize::from(address >= 1 << 32);
            }
        }
        Ok((pages, above_4_gib))
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

pub(crate) fn open(node: &Path) -> Result<File> {
    let flags = OFlags::DIRECT.bits() as i32;
    let options = OpenOptions::new().read(true).write(true).custom_flags(flags).open(node);
    options.with_context(|| format!("opening {} for direct access", node.display()))
}
