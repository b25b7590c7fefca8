//! What outlives a machine: platters, paper, and the account of who did what.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use vm_usb::devices::printer::PrintSink;
use vm_usb::devices::storage::{Medium, RamDisk};
use vm_usb::usb::Buffer;

/// Blocks of a disk.
pub const BLOCKS: usize = 64;
pub const BLOCK: usize = 512;

/// A medium that notes where it was written.
#[derive(Clone)]
pub struct Platter {
    pub disk: RamDisk,
    writes: Arc<Mutex<Vec<(u64, usize)>>>,
}

impl Default for Platter {
    fn default() -> Self {
        Self { disk: RamDisk::zeroed(BLOCKS), writes: Arc::default() }
    }
}

impl Platter {
    /// Byte offset and length of every write since the last look, in order.
    pub fn take_writes(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut *self.writes.lock().unwrap())
    }
}

impl Medium for Platter {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()> {
        self.disk.read(offset, buffer, range)
    }

    fn write(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()> {
        self.writes.lock().unwrap().push((offset, range.len()));
        self.disk.write(offset, buffer, range)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.disk.flush()
    }
}

/// What was printed.
#[derive(Clone, Default)]
pub struct Paper(pub Arc<Mutex<Vec<u8>>>);

impl PrintSink for Paper {
    fn print(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap().extend(bytes);
    }
}

/// One for each place; a place uses what its device has.
#[derive(Clone, Default)]
pub struct Media {
    pub platter: Platter,
    pub paper: Paper,
}
