//! A transaction translator: high-speed splits on one side, a full- and low-speed bus on the other
//! (USB 2.0, 11.14 to 11.22).

mod exchange;
mod non_periodic;
mod periodic;

use serde::{Deserialize, Serialize};

use self::non_periodic::{NonPeriodic, NonPeriodicState};
use self::periodic::Periodic;
use super::Translation;
use super::port::SlowBus;
use crate::snapshot::RestoreError;
use crate::time::Time;
use crate::usb::{
    CompleteAnswer, CompleteSplit, SplitToken, StartAnswer, StartSplit, TransferType,
};

/// A [`Translator`] in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TranslatorState {
    non_periodic: NonPeriodicState,
    periodic: Periodic,
    stopped: bool,
}

/// A transaction translator.
#[derive(Debug)]
pub(super) struct Translator {
    non_periodic: NonPeriodic,
    periodic: Periodic,
    stopped: bool,
    /// Control transactions it has begun. After a restore no device has promised to announce anything.
    requests: u64,
}

fn is_periodic(token: &SplitToken) -> bool {
    matches!(token.transfer_type, TransferType::Interrupt | TransferType::Isochronous)
}

impl Translator {
    pub(super) fn new(translation: Translation) -> Self {
        Self {
            non_periodic: NonPeriodic::new(translation),
            periodic: Periodic::default(),
            stopped: false,
            requests: 0,
        }
    }

    pub(super) fn save(&self, now: Time) -> TranslatorState {
        let Self { non_periodic, periodic, stopped, requests: _ } = self;
        TranslatorState {
            non_periodic: non_periodic.save(now),
            periodic: periodic.clone(),
            stopped: *stopped,
        }
    }

    pub(super) fn restore(
        &mut self,
        state: TranslatorState,
        now: Time,
    ) -> Result<(), RestoreError> {
        let TranslatorState { non_periodic, periodic, stopped } = state;
        self.non_periodic.restore(non_periodic, now)?;
        self.periodic = periodic.restored()?;
        self.stopped = stopped;
        Ok(())
    }

    /// A start-split.
    pub(super) fn start(&mut self, split: &StartSplit<'_>, bus: &mut SlowBus<'_>) -> StartAnswer {
        if self.stopped {
            return StartAnswer::Silence;
        }
        if is_periodic(&split.token) {
            self.periodic.start(split, bus);
            return StartAnswer::Silence;
        }
        if split.token.transfer_type == TransferType::Control {
            self.requests = self.requests.wrapping_add(1);
        }
        self.non_periodic.start(split, bus)
    }

    /// How many control transactions there were: each may have given the device's other endpoints
    /// something to say, of which it tells nobody, so promises to announce from before it are void.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// A complete-split.
    pub(super) fn complete(
        &mut self,
        split: &CompleteSplit,
        data: &mut Vec<u8>,
        news: u64,
    ) -> CompleteAnswer {
        if self.stopped {
            return CompleteAnswer::Silence;
        }
        if is_periodic(&split.token) {
            self.periodic.complete(split, data, news)
        } else {
            self.non_periodic.complete(split, data, news)
        }
    }

    /// ClearTTBuffer (USB 2.0, 11.24.2.3): `wValue` names device, endpoint, type and direction.
    pub(super) fn clear_buffer(&mut self, value: u16) {
        self.non_periodic.clear(value);
    }

    /// ResetTT (USB 2.0, 11.24.2.9): everything in hand is dropped, and it works again.
    pub(super) fn reset(&mut self) {
        self.non_periodic.reset();
        self.periodic = Periodic::default();
        self.stopped = false;
    }

    /// StopTT (USB 2.0, 11.24.2.11): it stands still, to be looked at.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// GetTTState (USB 2.0, 11.24.2.8), of a stopped one. The format is the maker's: how many
    /// non-periodic buffers are taken, then how many periodic transactions are in hand.
    pub(super) fn state(&self) -> Option<[u8; 2]> {
        let count = |len: usize| u8::try_from(len).unwrap_or(u8::MAX);
        self.stopped.then(|| [count(self.non_periodic.len()), count(self.periodic.len())])
    }
}
