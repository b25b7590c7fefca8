//! What a client does, written down as an input of the fuzz target `vfio_user`:
//!
//! ```text
//! VM_USBD_RECORD=fuzz/corpus/vfio_user cargo test --package vm-usbd --test protocol --test checkpoint
//! ```

use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::fs::{FileType, fstat};

/// Names the folder that takes recordings.
const FOLDER: &str = "VM_USBD_RECORD";
/// Bytes after which nothing new is to be expected of a client.
const LONGEST: usize = 6 << 10;

/// The steps of `fuzz/src/vfio_user.rs`.
const MESSAGE: u8 = 0;
const BYTES: u8 = 3;
const TIME: u8 = 4;
const POKE: u8 = 5;

/// A client's steps so far, in a file when it goes.
pub struct Recording {
    path: PathBuf,
    steps: Vec<u8>,
    last: Instant,
}

impl Recording {
    /// Of a client at this socket, if there are to be recordings.
    pub fn of(socket: &Path) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::var_os(FOLDER)?;
        let test = std::thread::current().name().unwrap_or("client").replace("::", "-");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = socket.file_name().unwrap_or_default().to_string_lossy();
        Some(Self {
            path: Path::new(&folder).join(format!("{test}-{number}")),
            steps: vec![u8::from(name.starts_with('e'))],
            last: Instant::now(),
        })
    }

    fn time(&mut self) {
        let nanos = u32::try_from(self.last.elapsed().as_nanos()).unwrap_or(u32::MAX);
        self.last = Instant::now();
        self.steps.push(TIME);
        self.steps.extend(nanos.to_le_bytes());
    }

    fn data(&mut self, bytes: &[u8]) {
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.steps.extend(len.to_le_bytes());
        self.steps.extend(&bytes[..len.into()]);
    }

    /// It sent this.
    pub fn sent(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        if self.steps.len() > LONGEST {
            return;
        }
        self.time();
        let size = bytes.get(4..8).map(|field| u32::from_ne_bytes(field.try_into().unwrap()));
        let whole = size.is_some_and(|size| size as usize == bytes.len());
        // Memory or an event, and how many of them.
        let kind = fds.first().map_or(0, |fd| {
            let about = fstat(fd).unwrap();
            if FileType::from_raw_mode(about.st_mode) == FileType::RegularFile { 1 } else { 2 }
        });
        let count = match fds.len() {
            0 | 1 => 0,
            2 => 1,
            3..=16 => 2,
            _ => 3,
        };
        self.steps.extend([if whole { MESSAGE } else { BYTES }, count << 4 | kind]);
        self.data(bytes);
    }

    /// Its guest wrote this to memory.
    pub fn poked(&mut self, address: u32, bytes: &[u8]) {
        if self.steps.len() > LONGEST {
            return;
        }
        self.steps.push(POKE);
        self.steps.extend(address.to_le_bytes());
        self.data(bytes);
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let written = File::create(&self.path).and_then(|mut file| file.write_all(&self.steps));
        if let Err(error) = written {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}
