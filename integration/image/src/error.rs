//! Why an image cannot be used, and what to do about it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// An image that cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is nothing under this name.
    #[error("there is no image \"{}\": create it with `truncate -s SIZE {}`", .0.display(), .0.display())]
    Missing(PathBuf),
    /// The host does not let us.
    #[error(
        "no permission to open \"{}\" for {}: change its mode or owner{}",
        path.display(),
        if *.writing { "writing" } else { "reading" },
        if *.writing { ", or open it read only" } else { "" }
    )]
    Permission {
        /// The image.
        path: PathBuf,
        /// Whether it was to be written.
        writing: bool,
    },
    /// A directory, socket, terminal and so on.
    #[error("\"{}\" is {kind}, not a raw image: give a regular file or a block device", path.display())]
    Kind {
        /// What was given.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// There are no blocks in it.
    #[error("\"{}\" is empty: give it a size with `truncate -s SIZE {}`", .0.display(), .0.display())]
    Empty(PathBuf),
    /// Its last block is incomplete.
    #[error(
        "\"{}\" is {size} bytes long, not a multiple of 512: \
         pad it with `truncate -s %512 {}` if it is a raw image at all",
        path.display(),
        path.display()
    )]
    Size {
        /// The image.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// A block device whose sectors no guest knows.
    #[error("\"{}\" has sectors of {sector} bytes: only 512 and 4096 are supported", path.display())]
    Sector {
        /// The device.
        path: PathBuf,
        /// Size of its logical sectors in bytes.
        sector: u32,
    },
    /// Somebody else has it.
    #[error(
        "\"{}\" is in use by another program (or mounted): \
         stop that first, or open the image read only in both",
        .0.display()
    )]
    InUse(PathBuf),
    /// Anything else.
    #[error("cannot open \"{}\": {error}", path.display())]
    Io {
        /// The image.
        path: PathBuf,
        /// What the host says.
        error: io::Error,
    },
}
