//! Disk images for `vm-usb`: a raw file or a block device as the
//! [`Medium`](vm_usb::devices::storage::Medium) of a disk.
//!
//! The kernel moves the bytes straight between the image and the guest's pages, but for small pieces of a
//! write, which are put together before. Only `vectored.rs`, which makes the two system calls, has `unsafe`
//! code.

#![deny(unsafe_code)]

mod error;
mod raw;
mod vectored;

pub use error::OpenError;
pub use raw::{Access, Flusher, RawImage};
