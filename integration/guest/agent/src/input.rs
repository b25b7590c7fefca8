//! evdev: the events that reach a program.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guest_protocol::InputEvent;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use crate::sysfs::{attribute, entries, usb_controller};

/// `struct input_event` on a 64-bit kernel: two 64-bit words of time, then type, code and value.
const EVENT: usize = 24;
const EV_SYN: u16 = 0;

/// The input devices that were opened, with their names.
#[derive(Default)]
pub(crate) struct InputDevices(Vec<(String, File)>);

/// The event nodes of the input devices behind USB controllers, with the devices' names.
pub(crate) fn behind_usb() -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for (name, path) in entries("/sys/class/input")? {
        if name.starts_with("event") && usb_controller(&path).is_some() {
            found.push((
                attribute(&path.join("device"), "name")?,
                PathBuf::from(format!("/dev/input/{name}")),
            ));
        }
    }
    Ok(found)
}

impl InputDevices {
    pub(crate) fn open(&mut self) -> Result<()> {
        self.0.clear();
        for (name, node) in behind_usb()? {
            let nonblocking = OFlags::NONBLOCK.bits() as i32;
            let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(&node);
            self.0.push((name, file.with_context(|| node.display().to_string())?));
        }
        ensure!(!self.0.is_empty(), "there is no input device");
        Ok(())
    }

    /// Waits for the next events and appends them.
    pub(crate) fn append(&mut self, events: &mut Vec<InputEvent>) -> Result<()> {
        let mut ready: Vec<_> =
            self.0.iter().map(|(_, file)| PollFd::new(file, PollFlags::IN)).collect();
        poll(&mut ready, None)?;
        self.append_at_once(events)
    }

    /// Appends the events that are there.
    pub(crate) fn append_at_once(&mut self, events: &mut Vec<InputEvent>) -> Result<()> {
        for (device, file) in &mut self.0 {
            drain(device, file, events)?;
        }
        Ok(())
    }

    /// Every event until there are `at_least`, or the time is up.
    pub(crate) fn read(&mut self, at_least: usize, milliseconds: u64) -> Result<Vec<InputEvent>> {
        let end = Instant::now() + Duration::from_millis(milliseconds);
        let mut events = Vec::new();
        loop {
            self.append_at_once(&mut events)?;
            let left = end.saturating_duration_since(Instant::now());
            if events.len() >= at_least || left.is_zero() {
                return Ok(events);
            }
            let mut ready: Vec<_> =
                self.0.iter().map(|(_, file)| PollFd::new(file, PollFlags::IN)).collect();
            poll(&mut ready, Some(&Timespec::try_from(left)?))?;
        }
    }
}

fn drain(device: &str, file: &mut File, events: &mut Vec<InputEvent>) -> Result<()> {
    let mut buffer = [0; EVENT * 64];
    loop {
        match file.read(&mut buffer) {
            Ok(count) => events
                .extend(buffer[..count].chunks_exact(EVENT).filter_map(|raw| decode(device, raw))),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).with_context(|| format!("reading events of {device}")),
        }
    }
}

/// An event, unless it only marks the end of a report.
fn decode(device: &str, raw: &[u8]) -> Option<InputEvent> {
    let half = |at: usize| Some(u16::from_ne_bytes(raw.get(at..at + 2)?.try_into().ok()?));
    let kind = half(16)?;
    let value = i32::from_ne_bytes(raw.get(20..24)?.try_into().ok()?);
    (kind != EV_SYN).then_some(InputEvent {
        device: device.to_owned(),
        kind,
        code: half(18)?,
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_press_is_decoded_and_its_report_mark_is_not() {
        let mut raw = [0; EVENT];
        raw[16] = 1;
        raw[18] = 30;
        raw[20] = 1;
        let event = decode("keyboard", &raw).unwrap();
        assert_eq!((event.kind, event.code, event.value), (1, 30, 1));
        raw[16] = 0;
        assert_eq!(decode("keyboard", &raw), None);
    }
}
