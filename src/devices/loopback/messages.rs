//! Messages of the bulk source, and the pace at which they come.

use std::num::{NonZeroU32, NonZeroUsize};

use serde::{Deserialize, Serialize};

use crate::snapshot::Offset;
use crate::time::Time;

/// Bytes of paced messages that wait for the host, as in a network adapter: what does not fit is lost. One
/// message always fits.
pub const BACKLOG: usize = 64 << 10;

/// Messages of the bulk source, each ended by a short packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// Bytes of each.
    pub bytes: NonZeroUsize,
    /// How many come, in Mbit/s, whether the host asks or not, as from a network; the next one is always
    /// there if `None`. At most [`BACKLOG`] bytes wait. Without any the endpoint answers NAK, as an
    /// adapter's does: the host has to ask again.
    pub pace: Option<NonZeroU32>,
}

impl Messages {
    /// Time between two of them, if they keep a pace.
    pub(super) fn period(self) -> Option<u64> {
        let bits = u64::try_from(self.bytes.get()).unwrap_or(u64::MAX).saturating_mul(8);
        // Mbit/s are bits a microsecond.
        let nanos = bits.saturating_mul(1_000);
        self.pace.and_then(|pace| nanos.checked_div(pace.get().into())).map(|nanos| nanos.max(1))
    }

    /// How many can wait.
    pub(super) fn most(self) -> u64 {
        u64::try_from(BACKLOG.checked_div(self.bytes.get()).unwrap_or(0)).unwrap_or(0).max(1)
    }
}

/// Messages that come at a pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrivals {
    /// When the last one came.
    pub(super) last: Time,
    pub(super) waiting: u64,
}

impl Arrivals {
    /// Nothing has come before `now`.
    pub(super) fn from(now: Time) -> Self {
        Self { last: now, waiting: 0 }
    }

    /// Takes the first message that has come by `now`, one every `period` nanoseconds; `most` can wait.
    pub(super) fn take(&mut self, now: Time, period: u64, most: u64) -> bool {
        let came = now.nanos_since(self.last).checked_div(period).unwrap_or(0);
        self.last = self.last.after_nanos(came.saturating_mul(period));
        self.waiting = self.waiting.saturating_add(came).min(most);
        let any = self.waiting != 0;
        self.waiting = self.waiting.saturating_sub(1);
        any
    }
}

/// [`Arrivals`] in a snapshot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArrivalsState {
    pub(super) last: Offset,
    pub(super) waiting: u64,
}
