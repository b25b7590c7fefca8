//! Interrupt and isochronous: a pipeline of microframes (USB 2.0, 11.18 to 11.21).
//!
//! The transaction of a start-split in microframe n begins on the slow bus in n + 1, where a
//! microframe has time for 188 bytes; what has passed in one microframe is there for a complete-split
//! in the next.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::exchange::{Answer, Span, exchange, send};
use crate::devices::hub::port::SlowBus;
use crate::snapshot::RestoreError;
use crate::usb::{
    CompleteAnswer, CompleteSplit, Pid, SplitPosition, SplitToken, StartSplit, TransferType,
};

/// Bytes that pass a full-speed bus in a microframe (USB 2.0, 11.18.1).
const SLICE: usize = 188;
/// Transactions in hand at a time (USB 2.0, 11.18.6.3).
const MOST: usize = 16;
/// Microframes after which a result that nobody collects is dropped (USB 2.0, 11.18.6.2), and a packet
/// that is not continued.
const PATIENCE: u64 = 4;
/// Microframes ahead of the host in which a transaction can be under way: far more than the largest
/// packet takes. What is further ahead belongs to a time before the host's frame index was set back.
const HORIZON: u64 = 64;
/// Largest full-speed packet.
const LARGEST: usize = 1023;
/// A byte at low speed takes as long as these at full speed.
const LOW_SPEED: usize = 8;

/// What passes the slow bus in one microframe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slice {
    microframe: u64,
    bytes: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum Work {
    /// An isochronous OUT packet that comes in pieces, the last one in this microframe.
    Assembling {
        #[serde(with = "hex::serde")]
        data: Vec<u8>,
        microframe: u64,
    },
    /// A transaction whose result waits for complete-splits.
    Result {
        answer: Answer,
        slices: VecDeque<Slice>,
        sent: usize,
        /// Announcements and requests before it. After a restore no device has promised any.
        #[serde(skip)]
        news: u64,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    token: SplitToken,
    work: Work,
}

/// The periodic pipeline.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Periodic {
    entries: Vec<Entry>,
    /// The microframe in which the slow bus has room, and how much of it is taken.
    bus: (u64, usize),
}

impl Periodic {
    /// The pipeline as it was saved. Its microframes are the host's, which go on counting.
    pub(super) fn restored(mut self) -> Result<Self, RestoreError> {
        /// More than the slices of the largest packet at low speed.
        const SLICES: usize = HORIZON as usize;
        let sound = self.entries.len() <= MOST
            && self.entries.iter().all(|entry| match &entry.work {
                Work::Assembling { data, .. } => data.len() <= LARGEST,
                Work::Result { answer, slices, .. } => {
                    answer.is_possible() && slices.len() <= SLICES
                }
            });
        RestoreError::check(sound, "a translator has no such pipeline")?;
        for entry in &mut self.entries {
            if let Work::Result { answer, .. } = &mut entry.work {
                *answer = answer.clone().restored();
            }
        }
        Ok(self)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn start(&mut self, split: &StartSplit<'_>, bus: &mut SlowBus<'_>) {
        self.age(split.microframe);
        let token = split.token;
        if token.transfer_type == TransferType::Isochronous && token.pid == Pid::Out {
            return self.assemble(split, bus);
        }
        // Another start-split to the same endpoint: the host has given up the one before.
        self.entries.retain(|entry| entry.token != token);
        if self.entries.len() >= MOST {
            return;
        }
        let news = bus.news();
        let answer = exchange(split, bus);
        let mut bytes = answer.len().max(split.data.len());
        if token.low_speed && token.transfer_type == TransferType::Interrupt {
            bytes = bytes.saturating_mul(LOW_SPEED);
        }
        let slices = self.slices(split.microframe.saturating_add(1), bytes);
        let work = Work::Result { answer, slices, sent: 0, news };
        self.entries.push(Entry { token, work });
    }

    /// Isochronous OUT: the pieces of a packet come in consecutive microframes, and the device gets
    /// the whole. There is no complete-split. A packet with a piece missing is dropped; on the wire the
    /// device sees a bad CRC then (USB 2.0, 11.21.3).
    fn assemble(&mut self, split: &StartSplit<'_>, bus: &mut SlowBus<'_>) {
        let token = split.token;
        let found = self.entries.iter().position(|entry| entry.token == token);
        let begun = found.map(|at| self.entries.swap_remove(at).work);
        let mut packet = match (split.position, begun) {
            (SplitPosition::All | SplitPosition::Begin, _) => Vec::new(),
            (_, Some(Work::Assembling { data, microframe }))
                if microframe.saturating_add(1) == split.microframe =>
            {
                data
            }
            _ => return,
        };
        packet.extend(split.data);
        if packet.len() > LARGEST {
            return;
        }
        match split.position {
            SplitPosition::All | SplitPosition::End => {
                bus.reach(&token, |function| send(split, packet, function));
            }
            SplitPosition::Begin | SplitPosition::Middle if self.entries.len() < MOST => {
                let work = Work::Assembling { data: packet, microframe: split.microframe };
                self.entries.push(Entry { token, work });
            }
            _ => {}
        }
    }

    /// When a transaction of so many bytes passes the slow bus, from microframe `first` on.
    fn slices(&mut self, first: u64, bytes: usize) -> VecDeque<Slice> {
        let (mut microframe, mut taken) = self.bus;
        if microframe < first || microframe > first.saturating_add(HORIZON) {
            (microframe, taken) = (first, 0);
        }
        let (mut slices, mut left) = (VecDeque::new(), bytes);
        loop {
            let passed = left.min(SLICE.saturating_sub(taken));
            taken = taken.saturating_add(passed);
            left = left.saturating_sub(passed);
            if passed != 0 || left == 0 {
                slices.push_back(Slice { microframe, bytes: passed });
            }
            if left == 0 {
                self.bus = (microframe, taken);
                return slices;
            }
            (microframe, taken) = (microframe.saturating_add(1), 0);
        }
    }

    /// Drops what waited too long.
    fn age(&mut self, now: u64) {
        self.entries.retain(|entry| {
            let last = match &entry.work {
                Work::Assembling { microframe, .. } => Some(*microframe),
                Work::Result { slices, .. } => slices.front().map(|slice| slice.microframe),
            };
            last.is_some_and(|last| {
                now <= last.saturating_add(PATIENCE) && last <= now.saturating_add(HORIZON)
            })
        });
    }

    pub(super) fn complete(
        &mut self,
        split: &CompleteSplit,
        data: &mut Vec<u8>,
        news: u64,
    ) -> CompleteAnswer {
        self.age(split.microframe);
        let found = self.entries.iter().position(|entry| entry.token == split.token);
        let entry = found.and_then(|at| Some((at, self.entries.get_mut(at)?)));
        let Some((at, Entry { work: Work::Result { answer, slices, sent, news: before }, .. })) =
            entry
        else {
            // Nothing is known of it (USB 2.0, 11.20.2).
            return CompleteAnswer::Nyet;
        };
        let Some(slice) = slices.front().copied().filter(|s| s.microframe < split.microframe)
        else {
            return CompleteAnswer::Nyet;
        };
        slices.pop_front();
        let last = slices.is_empty();
        if let Answer::Data(bytes) = answer {
            let rest = bytes.get(*sent..).unwrap_or_default();
            let count = if last { rest.len() } else { slice.bytes.min(rest.len()) };
            data.extend(rest.get(..count).unwrap_or_default());
            *sent = sent.saturating_add(count);
        }
        if last {
            let span = Span { before: *before, after: news };
            let answer = answer.clone().collected(span).handshake(CompleteAnswer::Err);
            self.entries.swap_remove(at);
            return answer;
        }
        match answer {
            Answer::Data(_) => CompleteAnswer::Data { last: false },
            _ => CompleteAnswer::Nyet,
        }
    }
}
