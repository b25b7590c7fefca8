//! Raw images: block n of the disk is block n of the file.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;
use vm_usb::devices::storage::{BlockSize, Medium};
use vm_usb::usb::Buffer;

use crate::{OpenError, vectored};

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
    file: File,
    path: PathBuf,
    access: Access,
    blocks: u64,
    block_size: BlockSize,
    can_discard: bool,
    /// Something was written since the last flush.
    dirty: bool,
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
            file,
            path: path.to_owned(),
            access,
            blocks: size / block,
            block_size,
            dirty: false,
        })
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
        vectored::read(&self.file, offset, buffer, range)
    }

    fn write(
        &mut self,
        offset: u64,
        buffer: &mut dyn Buffer,
        range: Range<usize>,
    ) -> io::Result<()> {
        self.dirty = true;
        vectored::write(&self.file, offset, buffer, range)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.dirty {
            self.file.sync_data()?;
            self.dirty = false;
        }
        Ok(())
    }

    fn can_discard(&self) -> bool {
        self.can_discard
    }

    /// Punches a hole, which both files and block devices read as zeros.
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.dirty = true;
        match rustix::fs::fallocate(&self.file, PUNCH_HOLE, offset, len) {
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
