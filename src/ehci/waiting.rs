//! Queue heads that wait: for their device, or for the next microframe.
//!
//! This is all the controller remembers of a queue head between two visits; everything else is read
//! from guest memory each time.

use super::clock::Microframe;
use super::ports::RootPort;
use crate::usb::EndpointAddress;

/// Most queue heads that can wait at a time. One more pushes out the oldest, whose device is asked
/// again at the next visit; so a hostile guest cannot make the host remember more.
const MOST: usize = 256;

/// Which schedule a queue head is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    Asynchronous,
    Periodic,
}

/// What the transfer at a queue head's overlay was when it began to wait. If the guest has changed
/// any of it, it is another transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// QH dword 1: address, endpoint, speed, packet size.
    pub characteristics: u32,
    /// Current qTD.
    pub qtd: u32,
    /// The overlay's token, which holds PID and progress.
    pub token: u32,
}

/// What a queue head waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The device announces that it is ready.
    Ready,
    /// The next visit: the device is to be asked again.
    Visit,
    /// The next turn: the device answered NAK in this one.
    Turn(u64),
    /// A microframe: an error is not tried again in the one it happened in (EHCI 4.10.3).
    Microframe(Microframe),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    schedule: Schedule,
    queue_head: u32,
    identity: Identity,
    until: Until,
    pending: bool,
    port: usize,
    endpoint: EndpointAddress,
    address: u8,
    /// When the queue head was last met in its schedule, in the schedule's own count.
    met: u64,
}

/// The queue heads that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    entries: Vec<Entry>,
    /// Where the next search begins: queue heads are met in the same order walk after walk.
    cursor: usize,
}

/// A queue head that begins to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub schedule: Schedule,
    pub queue_head: u32,
    pub identity: Identity,
    pub until: Until,
    /// Whether the device holds a transfer meanwhile, whose outcome the next offer takes.
    pub pending: bool,
    /// Index of the root port the device is behind.
    pub port: usize,
    pub endpoint: EndpointAddress,
    /// Address of the device.
    pub address: u8,
}

impl Waiting {
    /// Has a queue head wait. It must not be waiting already.
    pub(super) fn begin(&mut self, ports: &[RootPort], wait: Wait, met: u64) {
        if self.entries.len() >= MOST {
            cancel(ports, &self.entries.remove(0));
        }
        let Wait { schedule, queue_head, identity, until, pending, port, endpoint, address } = wait;
        self.entries.push(Entry {
            schedule,
            queue_head,
            identity,
            until,
            pending,
            port,
            endpoint,
            address,
            met,
        });
    }

    /// Whether a queue head waits, at turn `turn` in microframe `now`, given what its transfer is by
    /// now; notes that it was met.
    ///
    /// A wait that is over is forgotten. If the transfer is another one, the device is told.
    pub(super) fn holds(
        &mut self,
        ports: &[RootPort],
        (schedule, queue_head): (Schedule, u32),
        identity: Identity,
        (turn, now): (u64, Microframe),
        met: u64,
    ) -> bool {
        let found = self.find(schedule, queue_head);
        let Some((at, entry)) = found.and_then(|at| Some((at, self.entries.get_mut(at)?))) else {
            return false;
        };
        entry.met = met;
        let waits = match entry.until {
            Until::Ready => true,
            Until::Visit => false,
            Until::Turn(last) => last == turn,
            Until::Microframe(first) => now < first,
        };
        if waits && entry.identity == identity {
            return true;
        }
        let entry = self.entries.swap_remove(at);
        if entry.identity != identity {
            cancel(ports, &entry);
        }
        false
    }

    /// Whether [`holds`](Self::holds) would say that the queue head waits; notes that it was met.
    pub(super) fn is_held(
        &mut self,
        (schedule, queue_head): (Schedule, u32),
        identity: Identity,
        met: u64,
    ) -> bool {
        let found = self.find(schedule, queue_head).and_then(|at| self.entries.get_mut(at));
        found.is_some_and(|entry| {
            entry.met = met;
            entry.until == Until::Ready && entry.identity == identity
        })
    }

    /// Notes that a queue head was met.
    pub(super) fn meet(&mut self, schedule: Schedule, queue_head: u32, met: u64) {
        if let Some(entry) = self.find(schedule, queue_head).and_then(|at| self.entries.get_mut(at))
        {
            entry.met = met;
        }
    }

    /// Forgets a queue head that has no transfer any more; the device is told.
    pub(super) fn drop_transfer(
        &mut self,
        ports: &[RootPort],
        schedule: Schedule,
        queue_head: u32,
    ) {
        if let Some(at) = self.find(schedule, queue_head) {
            cancel(ports, &self.entries.swap_remove(at));
        }
    }

    /// Place of a queue head; there is one entry for each at most.
    fn find(&mut self, schedule: Schedule, queue_head: u32) -> Option<usize> {
        let is_it = |e: &Entry| e.queue_head == queue_head && e.schedule == schedule;
        let start = self.cursor.min(self.entries.len());
        let (before, after) = self.entries.split_at(start);
        let behind = || Some(after.iter().position(is_it)?.saturating_add(start));
        let at = behind().or_else(|| before.iter().position(is_it))?;
        self.cursor = at.saturating_add(1);
        Some(at)
    }

    /// The device behind `port` announced that `endpoint` is ready: its queue heads wait no more.
    /// Returns whether there are any.
    pub(super) fn ready(&mut self, port: usize, endpoint: EndpointAddress) -> bool {
        let mut any = false;
        for e in &mut self.entries {
            if e.port == port && e.endpoint == endpoint && e.until == Until::Ready {
                e.until = Until::Visit;
                any = true;
            }
        }
        any
    }

    /// A control transfer of the device at `address` behind `port` moved on: it may have ended what
    /// the device had said about its other endpoints, so they are asked again.
    pub(super) fn ask_again(&mut self, port: usize, address: u8) {
        for e in &mut self.entries {
            if e.port == port && e.address == address && e.until == Until::Ready {
                e.until = Until::Visit;
            }
        }
    }

    /// Forgets the queue heads of a schedule that were last met before `since`.
    pub(super) fn sweep(&mut self, ports: &[RootPort], schedule: Schedule, since: u64) {
        self.forget(ports, |e| e.schedule == schedule && e.met < since);
    }

    /// Forgets everything in `schedule`.
    pub(super) fn clear(&mut self, ports: &[RootPort], schedule: Schedule) {
        self.forget(ports, |e| e.schedule == schedule);
    }

    /// Forgets the queue heads of devices behind `port`.
    pub(super) fn clear_port(&mut self, ports: &[RootPort], port: usize) {
        self.forget(ports, |e| e.port == port);
    }

    /// The first microframe after `now` in which an error may be tried again. A walk of the whole schedule
    /// leaves those that were due only where the guest has taken the queue head out.
    pub(super) fn next_retry(&self, schedule: Schedule, now: Microframe) -> Option<Microframe> {
        let entries = self.entries.iter().filter(|e| e.schedule == schedule);
        entries
            .filter_map(|e| match e.until {
                Until::Microframe(first) => Some(first),
                _ => None,
            })
            .filter(|first| *first > now)
            .min()
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn forget(&mut self, ports: &[RootPort], gone: impl Fn(&Entry) -> bool) {
        self.entries.retain(|entry| {
            let gone = gone(entry);
            if gone {
                cancel(ports, entry);
            }
            !gone
        });
    }
}

/// Tells the device that the transfer it holds is given up.
fn cancel(ports: &[RootPort], entry: &Entry) {
    if entry.pending
        && let Some(port) = ports.get(entry.port)
    {
        port.link().with(|function| function.cancel_at(entry.address, entry.endpoint));
    }
}
