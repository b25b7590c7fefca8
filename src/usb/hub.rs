//! What the rest of USB needs of a hub: a way to the devices behind it, and back to the host.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{CompleteAnswer, CompleteSplit, Function, Notifier, Speed, StartAnswer, StartSplit};
use crate::time::Time;

/// Most hubs between a root port and a device (USB 2.0, 4.1.1).
pub const MOST_HUBS: usize = 5;

/// A [`UsbDevice`](super::UsbDevice) with ports of its own.
pub trait UsbHub {
    /// The line of the hub's ports to the host.
    fn upstream(&self) -> &Arc<Upstream>;

    /// Says what time it is, and which address the hub has, before each transfer with the hub.
    fn tick(&mut self, now: Time, address: u8);

    /// Bus reset: from now on the hub works at `speed`, and is not configured.
    fn reset(&mut self, speed: Speed);

    /// Shows `visit` the devices that hear what the hub repeats, until it returns `true`; then so
    /// does this. They are those behind enabled ports that are not suspended; a hub that works at high
    /// speed repeats to high-speed devices only (USB 2.0, 11.1).
    fn repeat(&mut self, visit: &mut dyn FnMut(&mut Function) -> bool) -> bool;

    /// Shows `visit` the device in every port, whatever the port's state.
    fn each(&mut self, visit: &mut dyn FnMut(&mut Function));

    /// A start-split for a transaction translator of the hub.
    fn start_split(&mut self, split: &StartSplit<'_>) -> StartAnswer;

    /// A complete-split; `data` takes the bytes of an IN transaction.
    fn complete_split(&mut self, split: &CompleteSplit, data: &mut Vec<u8>) -> CompleteAnswer;

    /// Something happened behind the hub: whether a suspended hub signals resume to its host, given
    /// whether its own remote wakeup is enabled (USB 2.0, 11.9).
    fn resumes(&mut self, remote_wakeup: bool) -> bool;

    /// The hub was pulled out, and everything behind it with it.
    fn detached(&mut self);
}

/// The line from a hub's ports to its host: what devices behind the hub have to say goes through it to
/// the root port, whose controller asks them.
#[derive(Debug, Default)]
pub struct Upstream {
    line: Mutex<Option<Notifier>>,
    announcements: AtomicU64,
}

impl Upstream {
    /// The hub was plugged in; `notifier` is its own line.
    pub fn connect(&self, notifier: Notifier) {
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(notifier);
    }

    /// Endpoints, a bit for each, of devices behind the hub have something to say.
    pub(super) fn ready(&self, endpoints: u32) {
        self.announcements.fetch_add(1, Ordering::AcqRel);
        if let Some(line) = self.line() {
            line.ready_all(endpoints);
        }
    }

    /// A port's state changed: the hub looks at its ports, and the host asks every device again,
    /// since some may not be there any more.
    pub fn changed(&self) {
        self.announcements.fetch_add(1, Ordering::AcqRel);
        if let Some(line) = self.line() {
            line.remote_wakeup();
            line.ready_all(u32::MAX);
        }
    }

    /// How often somebody behind the hub has had something to say. A translator tells by it whether a
    /// device's promise to announce was kept before the host has heard of the promise.
    pub fn announcements(&self) -> u64 {
        self.announcements.load(Ordering::Acquire)
    }

    /// How many hubs there are from here to the root port.
    pub(crate) fn depth(&self) -> usize {
        self.line().map_or(1, |line| line.depth().saturating_add(1))
    }

    fn line(&self) -> Option<Notifier> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
