//! What lies between controllers, which must not wait, and a file, which may make them.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use log::{error, warn};
use zerocopy::IntoBytes;

use super::format::{EVENT_SIZE, Event, FileHeader, RecordHeader};
use crate::outputs;

/// Bytes that may wait for the file. What comes while there is no room is left out, and counted: some
/// tens of milliseconds of a disk at full speed.
const MOST_WAITING: usize = 8 << 20;
/// How long the end of the program waits for the file to take what is left.
const PATIENCE: Duration = Duration::from_secs(5);

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of data of each transfer.
    pub data: u32,
    /// Bytes of the file; what comes later is left out.
    pub file: u64,
}

/// What became of a capture so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Events in the file, or on their way.
    pub events: u64,
    /// Events that were left out: the file was slow, failed, or is full.
    pub lost: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The events on their way to the file.
#[derive(Debug)]
pub struct Spool {
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The file and its name, until there is a thread that writes it.
    file: Option<(File, String)>,
    waiting: Vec<u8>,
    progress: Progress,
    /// Nothing more is taken.
    closed: bool,
    /// The file has all it will get.
    done: bool,
}

impl Spool {
    /// Creates the file, for its owner alone as it holds what a guest reads and types.
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn create(path: &Path, limits: Limits) -> io::Result<Arc<Self>> {
        let mut file = outputs::create(path, 0o600)?;
        let header = FileHeader::new(limits.data);
        file.write_all(header.as_bytes())?;
        let spool = Self::new(limits);
        {
            let mut state = spool.lock();
            state.progress.bytes = size_of::<FileHeader>() as u64;
            state.file = Some((file, path.display().to_string()));
        }
        Ok(Arc::new(spool))
    }

    /// Starts the thread that writes the file; once.
    ///
    /// # Errors
    /// If there cannot be one.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        let Some((file, name)) = self.lock().file.take() else { return Ok(()) };
        let ours = self.clone();
        std::thread::Builder::new().name("pcap".into()).spawn(move || ours.write(file, &name))?;
        Ok(())
    }

    fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default(), changed: Condvar::new() }
    }

    /// How much is kept.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Adds an event and the data it carries, which `fill` puts into place. Never waits for the file.
    pub fn add(&self, event: &Event, captured: usize, fill: impl FnOnce(&mut [u8])) {
        let mut state = self.lock();
        let size = size_of::<RecordHeader>() + EVENT_SIZE + captured;
        let total = state.progress.bytes.saturating_add(size as u64);
        if state.closed || state.waiting.len() + size > MOST_WAITING {
            state.progress.lost += 1;
            return;
        }
        if total > self.limits.file {
            state.closed = true;
            state.progress.lost += 1;
            self.changed.notify_all();
            warn!("the capture is full at {} bytes; see --pcap-limit", state.progress.bytes);
            return;
        }
        state.progress.events += 1;
        state.progress.bytes = total;
        let State { waiting, .. } = &mut *state;
        let wake = waiting.is_empty();
        waiting.extend_from_slice(RecordHeader::new(event).as_bytes());
        waiting.extend_from_slice(event.as_bytes());
        let start = waiting.len();
        waiting.resize(start + captured, 0);
        fill(&mut waiting[start..]);
        drop(state);
        if wake {
            self.changed.notify_all();
        }
    }

    /// What became of it so far.
    pub fn progress(&self) -> Progress {
        self.lock().progress
    }

    /// Ends the capture: what is on its way reaches the file, if that takes no longer than a few
    /// seconds.
    pub fn finish(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| !state.done);
        state = waited.map_or_else(|error| error.into_inner().0, |(state, _)| state);
        let Progress { lost, .. } = state.progress;
        if lost != 0 {
            warn!("the capture lacks {lost} events: its file was too slow, failed, or was full");
        }
    }

    /// The thread of the file.
    fn write(&self, mut file: File, name: &str) {
        let mut batch = Vec::new();
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() && !state.closed {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.waiting.is_empty() {
                break;
            }
            std::mem::swap(&mut state.waiting, &mut batch);
            drop(state);
            if let Err(cause) = file.write_all(&batch) {
                error!("{name}: {cause}; the capture ends here");
                self.lock().closed = true;
                break;
            }
            batch.clear();
        }
        let mut state = self.lock();
        state.waiting = Vec::new();
        state.done = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::format::{Subject, Wall};
    use super::*;
    use vm_usb::usb::TransferType;

    /// A spool that no thread empties, for looking at what is in it.
    pub(in super::super) fn stuck(limits: Limits) -> Arc<Spool> {
        Arc::new(Spool::new(limits))
    }

    pub(in super::super) fn bytes(spool: &Spool) -> Vec<u8> {
        std::mem::take(&mut spool.lock().waiting)
    }

    fn event(id: u64, len: u32) -> Event {
        let subject =
            Subject { id, bus: 1, device: 1, endpoint: 1, transfer_type: TransferType::Bulk };
        subject.submitted(Wall::default(), None, len, len)
    }

    #[test]
    fn a_file_that_takes_nothing_costs_events_not_memory_or_time() {
        let spool = stuck(Limits { data: 1 << 20, file: u64::MAX });
        for id in 0..100 {
            spool.add(&event(id, 1 << 20), 1 << 20, |_| {});
        }
        let progress = spool.progress();
        assert_eq!((progress.events, progress.lost), (7, 93));
        assert!(spool.lock().waiting.capacity() <= 2 * MOST_WAITING);
    }

    #[test]
    fn a_full_capture_stays_at_its_limit() {
        let spool = stuck(Limits { data: 100, file: 1000 });
        for id in 0..100 {
            spool.add(&event(id, 100), 100, |data| data.fill(7));
        }
        let written = bytes(&spool);
        assert_eq!(written.len(), 5 * (16 + 64 + 100));
        let progress = spool.progress();
        assert_eq!((progress.events, progress.lost, progress.bytes), (5, 95, 900));
    }

    #[test]
    fn what_was_added_before_the_end_is_in_the_file() {
        let path = std::env::temp_dir().join(format!("vm-usbd-{}-spool", std::process::id()));
        let spool = Spool::create(&path, Limits { data: 64, file: u64::MAX }).unwrap();
        spool.start().unwrap();
        for id in 0..1000 {
            spool.add(&event(id, 64), 64, |data| data.fill(id as u8));
        }
        spool.finish();
        spool.add(&event(0, 64), 64, |_| {});
        let file = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.len(), 24 + 1000 * (16 + 64 + 64));
        assert_eq!(file.len() as u64, spool.progress().bytes);
        assert_eq!(file[file.len() - 1], 999_u32 as u8);
        assert_eq!(spool.progress().lost, 1, "after the end");
    }
}
