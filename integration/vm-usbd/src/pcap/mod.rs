//! `--pcap`: every transfer in a file that Wireshark opens, as Linux's usbmon would show it.
//!
//! A controller's thread formats an event into a bounded buffer ([`spool`]) and goes on; another
//! thread writes the file. `transfers` turns what an observer of the library sees into the beginnings
//! and ends of transfers.

pub mod format;
pub mod spool;
mod transfers;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use vm_usb::time::Time;
use vm_usb::usb::Observer;

use self::format::Wall;
use self::spool::{Limits, Progress, Spool};
use self::transfers::Tap;
use crate::clock;

/// A capture of several buses in one file.
#[derive(Clone, Debug)]
pub struct Capture {
    spool: Arc<Spool>,
    ids: Arc<AtomicU64>,
    epoch: Epoch,
}

/// What wall-clock time it was when the host's monotonic clock was zero, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch(u64);

impl Epoch {
    fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        Self(wall.saturating_sub(clock::now().as_nanos() / 1000))
    }

    fn wall(self, time: Time) -> Wall {
        Wall(self.0.saturating_add(time.as_nanos() / 1000))
    }
}

impl Capture {
    /// A new file, which is written once the capture was [started](Self::start).
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: &Path, limits: Limits) -> io::Result<Self> {
        let spool = Spool::create(path, limits)?;
        Ok(Self { spool, ids: Arc::default(), epoch: Epoch::now() })
    }

    /// Starts the thread that writes the file.
    ///
    /// # Errors
    /// If there cannot be one.
    pub fn start(&self) -> io::Result<()> {
        self.spool.start()
    }

    /// Watches a port of bus `number`.
    pub fn observer(&self, number: u16) -> Arc<dyn Observer> {
        Arc::new(Tap::new(self.spool.clone(), self.ids.clone(), self.epoch, number))
    }

    /// What became of it so far.
    pub fn progress(&self) -> Progress {
        self.spool.progress()
    }

    /// Ends it; what the devices do later is not in it.
    pub fn finish(&self) {
        self.spool.finish();
    }
}
