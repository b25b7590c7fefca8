//! Control and bulk: a few buffers, each with one transaction (USB 2.0, 11.17).

use serde::{Deserialize, Serialize};

use super::exchange::{Answer, Span, exchange};
use crate::devices::hub::Translation;
use crate::devices::hub::port::SlowBus;
use crate::snapshot::{Offset, RestoreError};
use crate::time::Time;
use crate::usb::{
    CompleteAnswer, CompleteSplit, Pid, SplitToken, StartAnswer, StartSplit, TransferType,
};

/// Buffers of a translator: the fewest that USB asks for (USB 2.0, 11.14.1.3), as most have.
const BUFFERS: usize = 2;

/// Tries of a transaction that fails on the slow bus (USB 2.0, 11.17.1).
const TRIES: usize = 3;

/// Bytes of token, handshake and gaps of a full-speed transaction (USB 2.0, 5.8.4).
const OVERHEAD: usize = 13;
/// Nanoseconds of a byte at 12 Mbit/s and at 1.5 Mbit/s.
const FULL_SPEED_BYTE: u64 = 667;
const LOW_SPEED_BYTE: u64 = 5_333;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Buffer<T = Time> {
    token: SplitToken,
    answer: Answer,
    /// When the transaction is over.
    ready: T,
    /// Announcements and requests before it. After a restore no device has promised any.
    #[serde(skip)]
    news: u64,
}

/// The [`NonPeriodic`] buffers in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NonPeriodicState {
    buffers: Vec<Buffer<Offset>>,
    free: Offset,
}

/// The non-periodic buffers. A result stays until it is collected or cleared.
#[derive(Debug)]
pub(super) struct NonPeriodic {
    translation: Translation,
    buffers: Vec<Buffer>,
    /// When the slow bus is free again.
    free: Time,
}

impl NonPeriodic {
    pub(super) fn new(translation: Translation) -> Self {
        Self { translation, buffers: Vec::with_capacity(BUFFERS), free: Time::ZERO }
    }

    pub(super) fn save(&self, now: Time) -> NonPeriodicState {
        let Self { translation: _, buffers, free } = self;
        let state = |Buffer { token, answer, ready, news }: &Buffer| Buffer {
            token: *token,
            answer: answer.clone(),
            ready: Offset::of(*ready, now),
            news: *news,
        };
        NonPeriodicState {
            buffers: buffers.iter().map(state).collect(),
            free: Offset::of(*free, now),
        }
    }

    pub(super) fn restore(
        &mut self,
        state: NonPeriodicState,
        now: Time,
    ) -> Result<(), RestoreError> {
        let NonPeriodicState { buffers, free } = state;
        let sound = buffers.len() <= BUFFERS && buffers.iter().all(|b| b.answer.is_possible());
        RestoreError::check(sound, "a translator has no such buffers")?;
        let restored = |Buffer { token, answer, ready, news }: Buffer<Offset>| Buffer {
            token,
            answer: answer.restored(),
            ready: ready.at(now),
            news,
        };
        self.buffers = buffers.into_iter().map(restored).collect();
        self.free = free.at(now);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.buffers.len()
    }

    pub(super) fn reset(&mut self) {
        self.buffers.clear();
    }

    pub(super) fn start(&mut self, split: &StartSplit<'_>, bus: &mut SlowBus<'_>) -> StartAnswer {
        if self.buffers.iter().any(|buffer| buffer.token == split.token) {
            // The host missed the handshake and repeats itself: its data is dropped (11.17.1).
            return StartAnswer::Ack;
        }
        if self.buffers.len() >= BUFFERS {
            return StartAnswer::Nak;
        }
        let news = bus.news();
        let mut answer = exchange(split, bus);
        let mut tries = 1usize;
        while answer == Answer::Failed && tries < TRIES {
            answer = exchange(split, bus);
            tries = tries.saturating_add(1);
        }
        let ready = match self.translation {
            Translation::Prompt => split.now,
            Translation::Wire => {
                let byte = if split.token.low_speed { LOW_SPEED_BYTE } else { FULL_SPEED_BYTE };
                let bytes = split.data.len().max(answer.len()).saturating_add(OVERHEAD);
                let bytes = bytes.saturating_mul(tries);
                self.free.max(split.now).after_nanos(byte.saturating_mul(bytes as u64))
            }
        };
        self.free = ready;
        self.buffers.push(Buffer { token: split.token, answer, ready, news });
        StartAnswer::Ack
    }

    pub(super) fn complete(
        &mut self,
        split: &CompleteSplit,
        data: &mut Vec<u8>,
        news: u64,
    ) -> CompleteAnswer {
        let found = self.buffers.iter().position(|buffer| buffer.token == split.token);
        let Some(at) = found else {
            // It was cleared, or never begun.
            return CompleteAnswer::Silence;
        };
        if self.buffers.get(at).is_some_and(|buffer| split.now < buffer.ready) {
            return CompleteAnswer::Nyet;
        }
        let Buffer { answer, news: before, .. } = self.buffers.swap_remove(at);
        let answer = answer.collected(Span { before, after: news });
        if let Answer::Data(bytes) = &answer {
            data.extend(bytes);
        }
        // What failed three times shows as STALL (USB 2.0, 11.17.1).
        answer.handshake(CompleteAnswer::Stall)
    }

    /// ClearTTBuffer, as in USB 2.0, table 11-18: endpoint 3:0, device 10:4, type 12:11, direction 15.
    pub(super) fn clear(&mut self, value: u16) {
        let endpoint = (value & 0xf) as u8;
        let device = (value >> 4 & 0x7f) as u8;
        let control = value >> 11 & 3 == TransferType::Control as u16;
        let direction_in = value >> 15 != 0;
        self.buffers.retain(|Buffer { token, .. }| {
            let kind = (token.transfer_type == TransferType::Control) == control;
            // A control endpoint goes both ways.
            let direction = control || (token.pid == Pid::In) == direction_in;
            !(token.device == device && token.endpoint == endpoint && kind && direction)
        });
    }
}
