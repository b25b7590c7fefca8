//! Files that are written anew, so that what they held is gone: none may be in use for something else.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

use crate::cli::{Arguments, DeviceKind};

/// A command line has two uses for one file, of which one would replace what the other needs.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{path}: it would be {one} and {other}: give each its own",
    path = path.display()
)]
pub struct SharedFile {
    path: PathBuf,
    one: String,
    other: String,
}

/// A file of the command line.
struct Named<'a> {
    path: &'a Path,
    /// What it is for.
    purpose: String,
    is_output: bool,
}

/// Looks whether every file that would be written anew is named for that alone. Two uses that leave a file as it is
/// are not this function's business.
///
/// # Errors
/// If one is named twice.
pub fn check(arguments: &Arguments) -> Result<(), SharedFile> {
    let mut before: Vec<(Named<'_>, Identity)> = Vec::new();
    for named in files(arguments) {
        let Some(identity) = Identity::of(named.path) else { continue };
        let is_in_conflict = |(other, whose): &&(Named<'_>, Identity)| {
            *whose == identity && (other.is_output || named.is_output)
        };
        if let Some((other, _)) = before.iter().find(is_in_conflict) {
            return Err(SharedFile {
                path: named.path.to_owned(),
                one: other.purpose.clone(),
                other: named.purpose,
            });
        }
        before.push((named, identity));
    }
    Ok(())
}

fn files(arguments: &Arguments) -> impl Iterator<Item = Named<'_>> {
    let capture = arguments.pcap.iter().map(|path| Named {
        path,
        purpose: "the capture".into(),
        is_output: true,
    });
    let snapshot = arguments.restore.iter().map(|path| Named {
        path,
        purpose: "the snapshot to restore".into(),
        is_output: false,
    });
    let tapes = arguments.controllers.iter().filter_map(|controller| {
        let purpose = format!("the tape of controller \"{}\"", controller.id);
        Some(Named { path: &controller.tape.as_ref()?.file, purpose, is_output: true })
    });
    let devices = arguments.devices.iter().filter_map(|device| {
        let purpose = format!("the file of a {} device", device.kind.name());
        let is_output = !matches!(device.kind, DeviceKind::Storage { .. });
        Some(Named { path: device.kind.file()?, purpose, is_output })
    });
    capture.chain(snapshot).chain(tapes).chain(devices)
}

/// A new file with these permissions, or the one that is there, emptied; it is locked with `flock` while it is open,
/// as images are.
///
/// # Errors
/// If it cannot be had, or whoever has it has locked it.
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).mode(mode).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() {
        lock(&file)?;
    }
    if kind.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// The file at `path`, if there is one, locked for as long as it is being replaced.
///
/// # Errors
/// If whoever has it has locked it.
pub fn replace(path: &Path) -> io::Result<Option<File>> {
    // Nobody waits for the other end of a pipe, and what cannot be read cannot be locked.
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file());
    let old = is_file.then(|| File::open(path).ok()).flatten();
    old.as_ref().map_or(Ok(()), lock)?;
    Ok(old)
}

fn lock(file: &File) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        // A file system without locks has none of images either.
        Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let said = "it is in use, as a disk's image or for output: give another file";
            Err(io::Error::new(ErrorKind::ResourceBusy, said))
        }
        Err(error) => Err(error.into()),
    }
}

/// What makes two paths one file.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// The file system, and the file there.
    File(u64, u64),
    /// The number of a block device.
    Device(u64),
    /// Where it will be.
    Place(PathBuf),
}

impl Identity {
    /// Of what holds nothing there is none: many may write to `/dev/null`, a terminal or a pipe.
    fn of(path: &Path) -> Option<Self> {
        match fs::metadata(path) {
            Ok(found) if found.is_file() => Some(Self::File(found.dev(), found.ino())),
            Ok(found) if found.file_type().is_block_device() => Some(Self::Device(found.rdev())),
            Ok(_) => None,
            Err(_) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
                Some(Self::Place(folder.join(path.file_name()?)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn check_line(line: &str) -> Result<(), SharedFile> {
        check(&Arguments::try_parse_from(line.split(' ')).unwrap())
    }

    #[test]
    fn what_holds_nothing_may_be_named_twice() {
        let tape = "vm-usbd --controller ehci,id=e0,socket=/s,tape=/dev/null";
        let line = format!("{tape} --device printer,bus=e0,file=/dev/null --pcap /dev/null");
        assert_eq!(check_line(&line), Ok(()));
    }

    #[test]
    fn a_file_that_is_not_there_yet_is_known_by_its_place() {
        let line = "vm-usbd --controller ehci,id=e0,socket=/s --pcap new --device printer,bus=e0,file=./new";
        assert_eq!(
            check_line(line).unwrap_err().to_string(),
            "./new: it would be the capture and the file of a printer device: give each its own"
        );
    }

    #[test]
    fn files_that_are_only_read_are_not_looked_at() {
        let line = "vm-usbd --controller ehci,id=e0,socket=/s --restore new --device storage,bus=e0,file=new";
        assert_eq!(check_line(line), Ok(()));
    }
}
