//! Where a disk keeps its blocks.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::usb::Buffer;

/// Size of a logical block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes: every guest and every firmware takes it.
    #[default]
    B512,
    /// 4096 bytes: firmware often does not boot from it.
    B4096,
}

impl BlockSize {
    /// In bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

/// A linear array of blocks: an image file, a partition, memory.
///
/// The disk has checked every range against [`blocks`](Self::blocks), and has refused writes to a
/// medium that is read only. Ranges need not start or end at a block: the host controller decides how
/// many bytes move at once.
///
/// Calls may block for as long as the storage behind takes; the controller's bus stands still
/// meanwhile. An error fails the guest's command with sense data that fits:
/// [`StorageFull`](io::ErrorKind::StorageFull) as a failed space allocation, anything else as a medium
/// error.
pub trait Medium: Send {
    /// How many blocks there are; 0 for no medium in the drive.
    fn blocks(&self) -> u64;

    /// Size of each.
    fn block_size(&self) -> BlockSize {
        BlockSize::B512
    }

    /// Whether writes are refused.
    fn read_only(&self) -> bool {
        false
    }

    /// Reads from byte `offset` into all of `range` of the buffer.
    ///
    /// # Errors
    /// If any byte could not be read.
    fn read(&mut self, offset: u64, buffer: &mut dyn Buffer, range: Range<usize>)
    -> io::Result<()>;

    /// Writes all of `range` of the buffer at byte `offset`. It is durable after the next
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// If any byte could not be written.
    fn write(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()>;

    /// How many bytes are worth a call of [`write`](Self::write). Smaller pieces of a command's data are
    /// put together in a buffer until there are so many, up to 1 MiB, or the command's data ends; larger
    /// ones come as they are. The default, 0, is for a medium whose calls cost no more than the copying.
    fn write_batch(&self) -> usize {
        0
    }

    /// Makes every earlier write durable.
    ///
    /// # Errors
    /// If that cannot be promised.
    fn flush(&mut self) -> io::Result<()>;

    /// Whether [`discard`](Self::discard) does anything; the guest is told so.
    fn can_discard(&self) -> bool {
        false
    }

    /// Gives up the storage behind `len` bytes at byte `offset`, which read as zeros afterwards.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) if nothing happened and the old bytes are still
    /// there.
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A medium in memory. Clones share the same bytes, so what a guest wrote can be looked at.
#[derive(Clone, Debug)]
pub struct RamDisk {
    bytes: Arc<Mutex<Vec<u8>>>,
    blocks: u64,
    block_size: BlockSize,
    read_only: bool,
}

impl RamDisk {
    /// A writable medium that holds `bytes`; an incomplete block at the end is left out.
    pub fn new(bytes: Vec<u8>, block_size: BlockSize) -> Self {
        let block = block_size.bytes() as usize;
        Self {
            blocks: bytes.chunks_exact(block).len() as u64,
            bytes: Arc::new(Mutex::new(bytes)),
            block_size,
            read_only: false,
        }
    }

    /// A writable medium of `blocks` blocks of 512 zeros.
    pub fn zeroed(blocks: usize) -> Self {
        Self::new(vec![0; blocks.saturating_mul(512)], BlockSize::B512)
    }

    /// The same bytes as a medium that refuses writes.
    #[must_use]
    pub fn into_read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// A copy of the bytes as they are now.
    pub fn contents(&self) -> Vec<u8> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The `len` bytes of `bytes` at `offset`.
fn window(bytes: &mut [u8], offset: u64, len: usize) -> io::Result<&mut [u8]> {
    usize::try_from(offset)
        .ok()
        .and_then(|start| bytes.get_mut(start..start.checked_add(len)?))
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

impl Medium for RamDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()> {
        let mut bytes = self.lock();
        let from = window(&mut bytes, offset, range.len())?;
        match buffer.write(range.start, from) == from.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn write(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()> {
        let mut bytes = self.lock();
        let into = window(&mut bytes, offset, range.len())?;
        match buffer.read(range.start, into) == into.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn can_discard(&self) -> bool {
        !self.read_only
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        window(&mut self.lock(), offset, len)?.fill(0);
        Ok(())
    }
}
