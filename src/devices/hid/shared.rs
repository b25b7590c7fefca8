//! What a device on the bus and the handles of its embedder have in common.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use super::QUEUE;
use super::class::{IN, Reports};
use crate::usb::{Notifier, Suspension};

/// An event that the guest will not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InputError {
    /// Nobody listens.
    #[error("the guest has not configured the device: wait until its driver has loaded")]
    NotConfigured,
    /// Nobody has listened for some time.
    #[error("the guest has not taken the last {QUEUE} events: is its driver still running?")]
    Full,
}

/// A source of reports with the line to its host. Clones are the same one.
#[derive(Debug)]
pub(super) struct Shared<R> {
    state: Arc<Mutex<State<R>>>,
}

#[derive(Debug)]
pub(super) struct State<R> {
    pub(super) reports: R,
    pub(super) notifier: Option<Notifier>,
    pub(super) configured: bool,
    /// The host waits to be told of the next report.
    pub(super) parked: bool,
    pub(super) suspended: bool,
}

impl<R> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone() }
    }
}

impl<R: Reports> Shared<R> {
    pub(super) fn new(reports: R) -> Self {
        let state =
            State { reports, notifier: None, configured: false, parked: false, suspended: false };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the embedder add to the reports, then tells the host if it waits for one.
    pub(super) fn input<T>(
        &self,
        add: impl FnOnce(&mut R) -> Result<T, InputError>,
    ) -> Result<T, InputError> {
        let mut state = self.lock();
        if !state.configured {
            return Err(InputError::NotConfigured);
        }
        let result = add(&mut state.reports)?;
        let call = state.call();
        // The host may act in this call: it must not find the state locked.
        drop(state);
        call.make();
        Ok(result)
    }

    /// The bus went idle or came back; what still waits to be reported wakes the host.
    pub(super) fn suspension(&self, suspension: Suspension) {
        let mut state = self.lock();
        state.suspended = suspension == Suspension::Suspended;
        let call = state.call();
        drop(state);
        call.make();
    }
}

impl<R: Reports> State<R> {
    /// What the host has to be told now.
    fn call(&mut self) -> Call {
        let waiting = self.reports.waiting();
        let ready = waiting && self.parked;
        self.parked &= !ready;
        Call { ready, wakeup: waiting && self.suspended, notifier: self.notifier.clone() }
    }
}

/// A call to the host, to be made while nothing is locked.
struct Call {
    notifier: Option<Notifier>,
    ready: bool,
    wakeup: bool,
}

impl Call {
    fn make(self) {
        let Some(notifier) = self.notifier else {
            return;
        };
        if self.ready {
            notifier.ready(IN);
        }
        if self.wakeup {
            notifier.remote_wakeup();
        }
    }
}
