//! The controllers and their devices saved, and restored from that, while the guest runs.
//!
//! A VMM that saves itself also saves its memory, its vCPU and its interrupt controllers, and restores
//! everything in another process. Here the rest of the machine stays, so the guest is the witness that
//! the USB part goes through bytes without a trace.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use event_manager::{EventOps, EventSet, EventSubscriber, Events};
use vm_usb::adapters::{KvmInterrupt, SharedFunction};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::snapshot::{self, Snapshot};
use vm_usb::topology::Port;
use vmm_sys_util::timerfd::TimerFd;

use crate::usb::{Memory, PORTS};

/// What the ports are called in a snapshot.
const NAMES: [&str; PORTS] = ["port 1", "port 2", "port 3", "port 4"];

/// Both functions and their ports, saved and restored at regular intervals.
pub(crate) struct Checkpoint {
    timer: Mutex<TimerFd>,
    ohci: Arc<SharedFunction<Memory, Ohci, KvmInterrupt>>,
    ehci: Arc<SharedFunction<Memory, Ehci, KvmInterrupt>>,
    ports: [Port; PORTS],
}

impl Checkpoint {
    pub(crate) fn new(
        interval: Duration,
        ohci: Arc<SharedFunction<Memory, Ohci, KvmInterrupt>>,
        ehci: Arc<SharedFunction<Memory, Ehci, KvmInterrupt>>,
        ports: [Port; PORTS],
    ) -> anyhow::Result<Self> {
        let mut timer = TimerFd::new()?;
        timer.reset(interval, Some(interval))?;
        Ok(Self { timer: Mutex::new(timer), ohci, ehci, ports })
    }

    /// The vCPU waits in its next access meanwhile.
    fn take(&self) -> anyhow::Result<()> {
        let (mut ohci, mut ehci) = (self.ohci.pause(), self.ehci.pause());
        let now = ehci.now();
        let mut ports = self.ports.clone();
        let mut parts: Vec<(&str, &dyn Snapshot)> =
            vec![("ohci", ohci.function()), ("ehci", ehci.function())];
        parts.extend(NAMES.into_iter().zip(&ports).map(|(name, port)| (name, port as _)));
        let saved = snapshot::save(now, &parts)?;
        let mut parts: Vec<(&str, &mut dyn Snapshot)> =
            vec![("ohci", ohci.function_mut()), ("ehci", ehci.function_mut())];
        parts.extend(NAMES.into_iter().zip(&mut ports).map(|(name, port)| (name, port as _)));
        snapshot::restore(&saved, now, &mut parts)?;
        log::debug!("saved and restored {} bytes", saved.len());
        Ok(())
    }
}

impl EventSubscriber for Checkpoint {
    fn init(&self, ops: &mut EventOps<'_>) {
        let timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = ops.add(Events::new(&*timer, EventSet::IN)) {
            log::error!("nothing is saved: {error:?}");
        }
    }

    fn process(&self, _: Events, _: &mut EventOps<'_>) {
        let waited = self.timer.lock().unwrap_or_else(PoisonError::into_inner).wait();
        let done = waited.map_err(anyhow::Error::from).and_then(|_| self.take());
        if let Err(error) = done {
            log::error!("the controllers cannot be saved and restored: {error:#}");
        }
    }
}
