//! The guest's console: kept, written to a log, and watched for signs of trouble.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Words that a healthy guest's kernel never prints, with the subsystems they come from.
const TROUBLE: [&str; 26] = [
    // The kernel itself.
    "Kernel panic",
    "Oops",
    "BUG:",
    "WARNING:",
    "Call Trace",
    "soft lockup",
    "hung_task",
    "blocked for more than",
    "rcu_sched",
    "nobody cared",
    // Host controllers.
    "HC died",
    "Unrecoverable Error",
    "fatal error",
    "assume dead",
    "controller won't resume",
    "IAA watchdog",
    "HC halted",
    // USB devices: errors, time-outs, and the port resets that the storage driver answers them with.
    "device descriptor read",
    "not accepting address",
    "unable to enumerate",
    "can't set config",
    "-speed USB device number",
    // Disks and file systems.
    "I/O error",
    "EXT4-fs error",
    "Sense Key : Hardware Error",
    "Sense Key : Medium Error",
];

/// Of the "-speed USB device number" lines, those that begin so are the usual ones.
const USUAL: [&str; 1] = ["new "];

/// Everything the guest has printed so far.
#[derive(Clone)]
pub(crate) struct Console {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    text: Mutex<Text>,
    changed: Condvar,
}

#[derive(Default)]
struct Text {
    lines: Vec<String>,
    unfinished: Vec<u8>,
    ended: bool,
}

impl Console {
    /// Follows `output` to its end in a thread of its own and copies it to the file `log`.
    pub(crate) fn follow(output: impl Read + Send + 'static, log: &Path) -> Result<Self> {
        let mut log = File::create(log).with_context(|| log.display().to_string())?;
        let console = Self { shared: Arc::default() };
        let writer = console.clone();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                // A full disk must not end the watch.
                let _ = log.write_all(&buffer[..count]);
                writer.add(&buffer[..count]);
            }
            writer.text().ended = true;
            writer.shared.changed.notify_all();
        });
        Ok(console)
    }

    fn text(&self) -> MutexGuard<'_, Text> {
        self.shared.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, bytes: &[u8]) {
        let mut text = self.text();
        for &byte in bytes {
            if byte == b'\n' {
                let line = String::from_utf8_lossy(&text.unfinished).trim_end().to_owned();
                text.lines.push(line);
                text.unfinished.clear();
            } else {
                text.unfinished.push(byte);
            }
        }
        drop(text);
        self.shared.changed.notify_all();
    }

    /// The lines that show trouble.
    pub(crate) fn trouble(&self) -> Vec<String> {
        self.text().lines.iter().filter(|line| is_trouble(line)).cloned().collect()
    }

    /// The last `count` lines, for a failure's report.
    pub(crate) fn tail(&self, count: usize) -> String {
        let text = self.text();
        text.lines[text.lines.len().saturating_sub(count)..].join("\n")
    }

    /// Waits until a line contains `wanted` and gives it; `None` when the console ended or the time ran out first.
    pub(crate) fn wait_for(&self, wanted: &str, limit: Duration) -> Option<String> {
        let end = Instant::now() + limit;
        let mut text = self.text();
        loop {
            if let Some(line) = text.lines.iter().find(|line| line.contains(wanted)) {
                return Some(line.clone());
            }
            let left = end.saturating_duration_since(Instant::now());
            if text.ended || left.is_zero() {
                return None;
            }
            text = self
                .shared
                .changed
                .wait_timeout(text, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

fn is_trouble(line: &str) -> bool {
    TROUBLE.iter().any(|word| match line.split_once(word) {
        Some((before, _)) => {
            !(*word == "-speed USB device number"
                && USUAL.iter().any(|usual| before.contains(usual)))
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_boot_is_no_trouble() {
        for line in [
            "[    1.0] usb 1-1: new high-speed USB device number 2 using ehci-pci",
            "[    1.0] usb 1-1: USB disconnect, device number 2",
            "[    1.0] Spectre V2 : Vulnerable",
            "[    1.0] sd 2:0:0:0: [sda] Attached SCSI disk",
            "[    1.0] EXT4-fs (sda): mounted filesystem with ordered data mode.",
        ] {
            assert!(!is_trouble(line), "{line}");
        }
    }

    #[test]
    fn a_dead_controller_a_reset_and_a_disk_error_are_trouble() {
        for line in [
            "[    9.0] ehci-pci 0000:00:04.0: HC died; cleaning up",
            "[    9.0] ohci-pci 0000:00:05.0: OHCI Unrecoverable Error, disabled",
            "[    9.0] usb 1-1: reset high-speed USB device number 2 using ehci-pci",
            "[    9.0] I/O error, dev sda, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",
            "[    9.0] usb 2-1: device descriptor read/64, error -110",
        ] {
            assert!(is_trouble(line), "{line}");
        }
    }

    #[test]
    fn lines_are_found_however_the_bytes_come() {
        let place = tempfile::tempdir().unwrap();
        let bytes: &[u8] = b"one\r\ntwo BUG: x\r\nthree\r\n";
        let console = Console::follow(bytes.take(100), &place.path().join("log")).unwrap();
        assert_eq!(console.wait_for("three", Duration::from_secs(5)).as_deref(), Some("three"));
        assert_eq!(console.wait_for("four", Duration::from_secs(5)), None);
        assert_eq!(console.trouble(), ["two BUG: x"]);
        assert_eq!(console.tail(2), "two BUG: x\nthree");
    }
}
