//! What a controller's thread shows to others of its counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vm_usb::controller::Frames;
use vm_usb::pci::FunctionStatistics;

use crate::cli::ControllerKind;
use crate::statistics::ControllerCounts;

/// The counts of one controller. Its own thread writes them, with plain stores, and never waits for a
/// reader; a reader may see one count newer than another.
#[derive(Debug)]
pub struct Gauge {
    id: String,
    kind: ControllerKind,
    client: AtomicBool,
    interrupts: AtomicU64,
    register_reads: AtomicU64,
    register_writes: AtomicU64,
    runs: AtomicU64,
    frames_run: AtomicU64,
    frames_skipped: AtomicU64,
}

impl Gauge {
    /// For the controller called `id`.
    pub fn new(id: String, kind: ControllerKind) -> Self {
        Self {
            id,
            kind,
            client: AtomicBool::default(),
            interrupts: AtomicU64::default(),
            register_reads: AtomicU64::default(),
            register_writes: AtomicU64::default(),
            runs: AtomicU64::default(),
            frames_run: AtomicU64::default(),
            frames_skipped: AtomicU64::default(),
        }
    }

    /// Shows what was counted by now.
    pub fn show(&self, counts: &FunctionStatistics) {
        let FunctionStatistics { interrupts, register_reads, register_writes, runs, frames } =
            counts;
        for (shown, count) in [
            (&self.interrupts, interrupts),
            (&self.register_reads, register_reads),
            (&self.register_writes, register_writes),
            (&self.runs, runs),
            (&self.frames_run, &frames.run),
            (&self.frames_skipped, &frames.skipped),
        ] {
            shown.store(*count, Ordering::Relaxed);
        }
    }

    /// Shows whether a client is connected.
    pub fn show_client(&self, connected: bool) {
        self.client.store(connected, Ordering::Relaxed);
    }

    /// What was shown last.
    pub fn read(&self) -> ControllerCounts {
        let read = |shown: &AtomicU64| shown.load(Ordering::Relaxed);
        let counts = FunctionStatistics {
            interrupts: read(&self.interrupts),
            register_reads: read(&self.register_reads),
            register_writes: read(&self.register_writes),
            runs: read(&self.runs),
            frames: Frames { run: read(&self.frames_run), skipped: read(&self.frames_skipped) },
        };
        let client = self.client.load(Ordering::Relaxed);
        ControllerCounts::new(self.id.clone(), self.kind.name(), client, &counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_shows_every_count_in_its_place() {
        let counts = FunctionStatistics {
            interrupts: 1,
            register_reads: 2,
            register_writes: 3,
            runs: 4,
            frames: Frames { run: 5, skipped: 6 },
        };
        let gauge = Gauge::new("e0".to_owned(), ControllerKind::Ehci);
        gauge.show(&counts);
        gauge.show_client(true);
        let shown = ControllerCounts::new("e0".to_owned(), "ehci", true, &counts);
        assert_eq!(gauge.read(), shown);
    }
}
