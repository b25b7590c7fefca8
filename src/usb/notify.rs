//! How a device, from any thread, gets the host controller's attention.

#[cfg(loom)]
use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32},
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32},
};

use serde::{Deserialize, Serialize};

use super::{EndpointAddress, Upstream};

/// Wakes the loop that drives a controller, from any thread; then the loop calls
/// [`HostController::run`](crate::controller::HostController::run).
///
/// Waking an awake loop is harmless. An `eventfd` is a good implementation.
pub trait Wake: Send + Sync {
    /// Makes the loop run soon.
    fn wake(&self);
}

/// What devices behind one port want the host to know: bits, not a queue, so it never grows.
#[derive(Default)]
pub(crate) struct Mailbox {
    ready: AtomicU32,
    remote_wakeup: AtomicBool,
    babble: AtomicBool,
    wake: Mutex<Vec<Arc<dyn Wake>>>,
    /// The way on, for the port of a hub.
    upstream: Option<Arc<Upstream>>,
}

/// A [`Mailbox`] in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MailboxState {
    remote_wakeup: bool,
    babble: bool,
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// The mailbox of a hub's port.
    pub(crate) fn behind(upstream: Arc<Upstream>) -> Self {
        Self { upstream: Some(upstream), ..Self::default() }
    }

    /// The hub's line, for the port of a hub.
    pub(crate) fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.upstream.as_ref()
    }

    /// Endpoints, a bit for each, became ready. Whoever asks them sits at the root port.
    fn ready(&self, endpoints: u32) {
        match &self.upstream {
            Some(upstream) => upstream.ready(endpoints),
            None => {
                self.ready.fetch_or(endpoints, Ordering::AcqRel);
                self.wake();
            }
        }
    }

    /// Adds a loop to wake.
    pub(crate) fn subscribe(&self, wake: Arc<dyn Wake>) {
        self.wake.lock().unwrap_or_else(PoisonError::into_inner).push(wake);
    }

    /// Adds what a controller notes for itself, before all loops: one that is woken looks at once, perhaps
    /// before the next in this list was told.
    pub(crate) fn subscribe_first(&self, wake: Arc<dyn Wake>) {
        self.wake.lock().unwrap_or_else(PoisonError::into_inner).insert(0, wake);
    }

    /// Wakes every loop that may have to act.
    pub(crate) fn wake(&self) {
        for wake in self.wake.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            wake.wake();
        }
        if let Some(upstream) = &self.upstream {
            upstream.changed();
        }
    }

    /// Whether there is nothing to take, without taking it: most looks find nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.load(Ordering::Acquire) == 0
            && !self.remote_wakeup.load(Ordering::Acquire)
            && !self.babble.load(Ordering::Acquire)
    }

    /// Takes the endpoints that became ready.
    pub(crate) fn take_ready(&self) -> impl Iterator<Item = EndpointAddress> + use<> {
        let mut bits = self.ready.swap(0, Ordering::AcqRel);
        std::iter::from_fn(move || {
            let index = bits.trailing_zeros();
            bits &= bits.wrapping_sub(1);
            (index < 32).then(|| EndpointAddress::from_index(index))
        })
    }

    /// The device talked past the end of a frame.
    pub(crate) fn babble(&self) {
        set(&self.babble);
        self.wake();
    }

    /// Takes the report that it did.
    pub(crate) fn take_babble(&self) -> bool {
        self.babble.swap(false, Ordering::AcqRel)
    }

    /// What the device asked for that nobody has taken, for a snapshot. The endpoints that are ready
    /// are no part of it: after a restore all of them are asked.
    pub(crate) fn save(&self) -> MailboxState {
        MailboxState {
            remote_wakeup: self.remote_wakeup.load(Ordering::Acquire),
            babble: self.babble.load(Ordering::Acquire),
        }
    }

    /// Holds again what [`save`](Self::save) recorded, and every endpoint is ready.
    pub(crate) fn restore(&self, state: MailboxState) {
        let MailboxState { remote_wakeup, babble } = state;
        self.remote_wakeup.store(remote_wakeup, Ordering::Release);
        self.babble.store(babble, Ordering::Release);
        self.ready(u32::MAX);
        self.wake();
    }

    /// Takes a request for resume signalling.
    pub(crate) fn take_remote_wakeup(&self) -> bool {
        self.remote_wakeup.swap(false, Ordering::AcqRel)
    }
}

/// Sets a flag that another thread may be taking. An exchange, unlike a store, also hands on what those did
/// who set it before.
fn set(flag: &AtomicBool) {
    flag.swap(true, Ordering::AcqRel);
}

/// A device's line to its host, usable from any thread and cheap to clone.
///
/// Nothing happens while the device is not attached.
#[derive(Clone, Debug)]
pub struct Notifier {
    mailbox: Arc<Mailbox>,
}

impl Notifier {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox }
    }

    /// `endpoint` has something to say now: it was parked, or its pending transfer has an outcome.
    pub fn ready(&self, endpoint: EndpointAddress) {
        self.mailbox.ready(1 << endpoint.index());
    }

    /// These endpoints, a bit for each, of the device or of some behind it have something to say.
    pub(super) fn ready_all(&self, endpoints: u32) {
        self.mailbox.ready(endpoints);
    }

    /// How many hubs there are between the device and the root port.
    pub(super) fn depth(&self) -> usize {
        self.mailbox.upstream().map_or(0, |upstream| upstream.depth())
    }

    /// Asks for resume signalling: honoured if the device is suspended and the host has enabled its
    /// remote wakeup feature.
    pub fn remote_wakeup(&self) {
        set(&self.mailbox.remote_wakeup);
        self.mailbox.wake();
    }
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_has_a_bit_of_its_own() {
        let mailbox = Arc::new(Mailbox::default());
        let notifier = Notifier::new(mailbox.clone());
        for endpoint in (0..16).flat_map(|n| [EndpointAddress::out(n), EndpointAddress::r#in(n)]) {
            notifier.ready(endpoint);
            assert_eq!(mailbox.take_ready().collect::<Vec<_>>(), [endpoint]);
            assert_eq!(mailbox.take_ready().count(), 0);
        }
    }
}
