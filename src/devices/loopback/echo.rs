//! What comes in goes out again.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::description::{BULK_IN, BULK_OUT};
use crate::snapshot::RestoreError;
use crate::usb::{EndpointAddress, Outcome, Readiness, Status, Transfer};

/// Most bytes that wait to be echoed.
pub const ECHO: usize = 64 << 10;

/// Most transfers that wait to be echoed: even those without bytes take memory.
const ECHO_TRANSFERS: usize = 1024;

/// A transfer on its way back.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EchoState {
    #[serde(with = "hex::serde")]
    bytes: Vec<u8>,
    ended: bool,
}

/// Transfers on their way back.
#[derive(Debug, Default)]
pub(super) struct Echo {
    /// Each with whether it is complete: a short packet ended it.
    transfers: VecDeque<(VecDeque<u8>, bool)>,
    waiting: usize,
    in_parked: bool,
    out_parked: bool,
}

impl Echo {
    pub(super) fn save(&self) -> Vec<EchoState> {
        // How many bytes wait follows; the host asks parked endpoints again.
        let Self { transfers, waiting: _, in_parked: _, out_parked: _ } = self;
        let state = |(bytes, ended): &(VecDeque<u8>, bool)| EchoState {
            bytes: bytes.iter().copied().collect(),
            ended: *ended,
        };
        transfers.iter().map(state).collect()
    }

    pub(super) fn restored(states: Vec<EchoState>) -> Result<Self, RestoreError> {
        let waiting =
            states.iter().fold(0, |sum: usize, state| sum.saturating_add(state.bytes.len()));
        // The last one is accepted as long as there are fewer.
        let sound = waiting <= ECHO && states.len() <= ECHO_TRANSFERS;
        RestoreError::check(sound, "no echo is so long")?;
        let transfers = states.into_iter().map(|state| (state.bytes.into(), state.ended)).collect();
        Ok(Self { transfers, waiting, in_parked: false, out_parked: false })
    }

    pub(super) fn receive(&mut self, transfer: &Transfer<'_>) -> Outcome {
        let packet = usize::from(transfer.max_packet).max(1);
        let len = transfer.buffer.len();
        let room = ECHO.saturating_sub(self.waiting);
        let taken = if len <= room {
            len
        } else {
            room.saturating_sub(room.checked_rem(packet).unwrap_or(0))
        };
        let crowded = self.transfers.len() >= ECHO_TRANSFERS;
        if crowded || taken == 0 && len != 0 {
            self.out_parked = true;
            return Outcome::PARK;
        }
        let mut bytes = vec![0; taken];
        transfer.buffer.read(0, &mut bytes);
        self.waiting = self.waiting.saturating_add(taken);
        let ended = taken == 0 || taken.checked_rem(packet) != Some(0);
        match self.transfers.back_mut() {
            Some((open, end @ false)) => {
                open.extend(bytes);
                *end = ended;
            }
            _ => self.transfers.push_back((bytes.into(), ended)),
        }
        Outcome::complete(taken)
    }

    pub(super) fn send(&mut self, transfer: &mut Transfer<'_>) -> Outcome {
        let Some((bytes, ended)) = self.transfers.front_mut() else {
            self.in_parked = true;
            return Outcome::PARK;
        };
        let outcome = transfer.send(bytes.make_contiguous());
        bytes.drain(..outcome.bytes.min(bytes.len()));
        self.waiting = self.waiting.saturating_sub(outcome.bytes);
        let filled = outcome.bytes == transfer.buffer.len();
        let drained = bytes.is_empty();
        // A transfer of whole packets that filled its buffer is still to be ended by an empty one.
        let packet = usize::from(transfer.max_packet);
        let short = !filled || outcome.bytes.checked_rem(packet) != Some(0);
        if drained && (!*ended || short) {
            let open = !*ended;
            let whole = outcome.bytes.checked_rem(packet) == Some(0);
            self.transfers.pop_front();
            if open && !filled && whole && outcome.status == Status::Complete {
                // More of this transfer may follow: these packets are all that is there now.
                self.in_parked = true;
                let status = Status::Nak(Readiness::Announced);
                return Outcome { bytes: outcome.bytes, status };
            }
        }
        outcome
    }

    /// Takes the endpoints that were parked and are not any more.
    pub(super) fn ready(&mut self) -> Vec<EndpointAddress> {
        let in_ready = self.in_parked && !self.transfers.is_empty();
        let room = self.waiting <= ECHO / 2 && self.transfers.len() <= ECHO_TRANSFERS / 2;
        let out_ready = self.out_parked && room;
        self.in_parked &= !in_ready;
        self.out_parked &= !out_ready;
        let ready = [(BULK_IN, in_ready), (BULK_OUT, out_ready)];
        ready.into_iter().filter(|(_, ready)| *ready).map(|(endpoint, _)| endpoint).collect()
    }
}
