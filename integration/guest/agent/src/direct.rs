//! Reads and writes past the page cache.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
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

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

pub(crate) fn open(node: &Path) -> Result<File> {
    let flags = OFlags::DIRECT.bits() as i32;
    let options = OpenOptions::new().read(true).write(true).custom_flags(flags).open(node);
    options.with_context(|| format!("opening {} for direct access", node.display()))
}
