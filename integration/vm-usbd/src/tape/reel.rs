//! The tape itself: bytes in order, bounded, on their way to a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use log::{error, info};
use vm_usb::time::Time;

use super::format::{Step, TAPE};
use crate::outputs;

/// Bytes that wait for the file: it is written to seldom.
const CHUNK: usize = 64 << 10;
/// Time that is not worth a step of its own before something happens; it is not lost.
const SHORT_NANOS: u64 = 4096;

/// A file with what happened so far.
#[derive(Debug)]
pub(super) struct Reel {
    path: PathBuf,
    /// Until the tape is full, or the file failed.
    file: Option<File>,
    waiting: Vec<u8>,
    /// Bytes that there is room for.
    room: u64,
    /// Up to when the tape tells, once it has begun.
    told: Option<Time>,
}

impl Reel {
    /// A new file, for its owner alone as it holds what a guest writes; at most `limit` bytes of it.
    pub(super) fn create(path: &Path, limit: u64, controller: u8) -> io::Result<Self> {
        let mut reel = Self {
            path: path.to_owned(),
            file: Some(outputs::create(path, 0o600)?),
            waiting: Vec::new(),
            room: limit,
            told: None,
        };
        reel.add(&[TAPE, controller]);
        Ok(reel)
    }

    /// Whether something is still taken.
    pub(super) fn is_running(&self) -> bool {
        self.file.is_some()
    }

    /// Time has passed until `now`.
    pub(super) fn pass(&mut self, now: Time) {
        let told = *self.told.get_or_insert(now);
        let nanos = now.as_nanos().saturating_sub(told.as_nanos());
        if nanos >= SHORT_NANOS {
            let mut step = Vec::new();
            let left = Step::Time(nanos).put(&mut step);
            self.add(&step);
            self.told = Some(told.after_nanos(nanos - left));
        }
    }

    /// Adds a step.
    pub(super) fn step(&mut self, step: Step<'_>) {
        let mut bytes = Vec::new();
        step.put(&mut bytes);
        self.add(&bytes);
    }

    /// Adds whole steps.
    pub(super) fn add(&mut self, steps: &[u8]) {
        if !self.is_running() {
            return;
        }
        let Some(room) = self.room.checked_sub(steps.len() as u64) else {
            self.end("it is full");
            return;
        };
        self.room = room;
        self.waiting.extend(steps);
        if self.waiting.len() >= CHUNK {
            self.write();
        }
    }

    /// Ends the tape, and says why.
    pub(super) fn end(&mut self, why: &str) {
        if self.is_running() {
            self.write();
            self.file = None;
            info!("the tape {} ends here: {why}", self.path.display());
        }
    }

    fn write(&mut self) {
        let Some(file) = &mut self.file else { return };
        if let Err(cause) = file.write_all(&self.waiting) {
            error!("{}: {cause}; the tape ends here", self.path.display());
            self.file = None;
        }
        self.waiting = Vec::new();
    }
}

impl Drop for Reel {
    fn drop(&mut self) {
        self.write();
    }
}
