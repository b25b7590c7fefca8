//! Raw images: block n of the disk is block n of the file.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;
use vm_usb::devices::storage::{BlockSize, Medium};
use vm_usb::usb::Buffer;

use crate::{OpenError, vectored};

/// Bytes worth a write: for a page the kernel's bookkeeping takes several times as long as the copying.
const BATCH: usize = 64 << 10;

/// What a disk may do with its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it; any number of disks may do so at once.
    ReadOnly,
    /// Read and write it; no other program that keeps to the rules has it open meanwhile.
    ReadWrite,
}

/// A raw file or a block device.
///
/// It is locked with `flock` while it is open: shared for reading, exclusively for writing. What the
/// guest wrote and did not flush is flushed when the image is dropped.
#[derive(Debug)]
pub struct RawImage {
    store: Arc<Store>,
    path: PathBuf,
    access: Access,
    blocks: u64,
    block_size: BlockSize,
    can_discard: bool,
}

/// An open image, and how much of what was written is on the host's storage.
#[derive(Debug)]
struct Store {
    file: File,
    /// Writes so far. Each counts when it is over, so that no flush that began before it covers it.
    written: AtomicU64,
    /// Those of them that the last flush covered.
    stored: AtomicU64,
}

impl Store {
    /// Has the host store what was written; returns whether there was anything. When it returns, all
    /// writes before it are stored, also those that a flush elsewhere has begun to store.
    fn flush(&self) -> io::Result<bool> {
        let written = self.written.load(Ordering::Acquire);
        if self.stored.load(Ordering::Acquire) >= written {
            return Ok(false);
        }
        self.file.sync_data()?;
        self.stored.fetch_max(written, Ordering::AcqRel);
        Ok(true)
    }

    /// A write is over, whole or in part.
    fn mark(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }
}

/// A handle by which others than its disk have an image flushed. It does not keep the image open.
#[derive(Clone, Debug)]
pub struct Flusher(Weak<Store>);

impl Flusher {
    /// Has the host store what was written to the image and not flushed yet; returns whether there was
    /// anything. An image that was closed was flushed then.
    ///
    /// # Errors
    /// If the host cannot store it.
    pub fn flush(&self) -> io::Result<bool> {
        self.0.upgrade().map_or(Ok(false), |store| store.flush())
    }

    /// Whether the image is still open.
    pub fn is_open(&self) -> bool {
        self.0.strong_count() != 0
    }
}

impl RawImage {
    /// Opens and locks an image. A file has blocks of 512 bytes, a block device those it has.
    ///
    /// # Errors
    /// If it is not there, not accessible, not an image, or in use.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let other = |error| OpenError::Io { path: path.to_owned(), error };
        let mut file = open_file(path, access)?;
        let kind = file.metadata().map_err(other)?.file_type();
        let block_size = match kind {
            kind if kind.is_file() => BlockSize::B512,
            kind if kind.is_block_device() => sector_size(path, &file)?,
            kind => {
                let kind = name(kind);
                return Err(OpenError::Kind { path: path.to_owned(), kind });
            }
        };
        lock(path, &file, access)?;
        // The end of a block device is found like a file's.
        let size = file.seek(SeekFrom::End(0)).map_err(other)?;
        let block = u64::from(block_size.bytes());
        if size == 0 {
            return Err(OpenError::Empty(path.to_owned()));
        }
        if size % block != 0 {
            return Err(OpenError::Size { path: path.to_owned(), size });
        }
        Ok(Self {
            can_discard: access == Access::ReadWrite
                && (kind.is_block_device() || can_punch(&file, size)),
            store: Arc::new(Store { file, written: AtomicU64::new(0), stored: AtomicU64::new(0) }),
            path: path.to_owned(),
            access,
            blocks: size / block,
            block_size,
        })
    }

    /// A handle for flushing it from elsewhere.
    pub fn flusher(&self) -> Flusher {
        Flusher(Arc::downgrade(&self.store))
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn open_file(path: &Path, access: Access) -> Result<File, OpenError> {
    let writing = access == Access::ReadWrite;
    let mut options = OpenOptions::new();
    // Not to wait for the other end of a pipe, which is refused afterwards.
    options.read(true).write(writing).custom_flags(libc::O_NONBLOCK);
    let is_device = path.metadata().is_ok_and(|found| found.file_type().is_block_device());
    if writing && is_device {
        // Fails if the device is mounted.
        options.custom_flags(libc::O_NONBLOCK | libc::O_EXCL);
    }
    options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => OpenError::Missing(path.to_owned()),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::Permission { path: path.to_owned(), writing }
        }
        io::ErrorKind::IsADirectory => {
            OpenError::Kind { path: path.to_owned(), kind: "a directory" }
        }
        io::ErrorKind::ResourceBusy => OpenError::InUse(path.to_owned()),
        _ => OpenError::Io { path: path.to_owned(), error },
    })
}

fn name(kind: std::fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_char_device() => "a character device",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "something else",
    }
}

fn sector_size(path: &Path, file: &File) -> Result<BlockSize, OpenError> {
    match rustix::fs::ioctl_blksszget(file) {
        Ok(512) => Ok(BlockSize::B512),
        Ok(4096) => Ok(BlockSize::B4096),
        Ok(sector) => Err(OpenError::Sector { path: path.to_owned(), sector }),
        Err(error) => Err(OpenError::Io { path: path.to_owned(), error: error.into() }),
    }
}

fn lock(path: &Path, file: &File, access: Access) -> Result<(), OpenError> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse(path.to_owned())),
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {
            log::warn!(
                "\"{}\" cannot be locked: see to it that nobody else uses it",
                path.display()
            );
            Ok(())
        }
        Err(error) => Err(OpenError::Io { path: path.to_owned(), error: error.into() }),
    }
}

const PUNCH_HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Whether the file system can punch holes: tried where the file has nothing.
fn can_punch(file: &File, size: u64) -> bool {
    rustix::fs::fallocate(file, PUNCH_HOLE, size, 4096).is_ok()
}

impl Medium for RawImage {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }

    fn read(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()> {
        vectored::read(&self.store.file, offset, buffer, range)
    }

    fn write(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()> {
        let written = vectored::write(&self.store.file, offset, buffer, range);
        // One that failed may have written a part.
        self.store.mark();
        written
    }

    fn write_batch(&self) -> usize {
        BATCH
    }

    fn flush(&mut self) -> io::Result<()> {
        self.store.flush().map(drop)
    }

    fn can_discard(&self) -> bool {
        self.can_discard
    }

    /// Punches a hole, which both files and block devices read as zeros.
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let punched = rustix::fs::fallocate(&self.store.file, PUNCH_HOLE, offset, len);
        self.store.mark();
        match punched {
            Err(Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
            done => Ok(done?),
        }
    }
}

impl Drop for RawImage {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            log::error!("\"{}\": the last writes may be lost: {error}", self.path.display());
        }
    }
}
