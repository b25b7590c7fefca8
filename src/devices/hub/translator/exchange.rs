//! One transaction on the slow bus.

use serde::{Deserialize, Serialize};

use crate::devices::hub::port::SlowBus;
use crate::usb::{
    BusError, CompleteAnswer, Function, Outcome, Pid, Readiness, StartSplit, Status, Transfer,
    TransferType,
};

/// What a transaction on the slow bus brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The device took the data.
    Ack,
    /// Nothing to say.
    Nak(Readiness),
    /// The endpoint is halted.
    Stall,
    /// A data packet.
    Data(#[serde(with = "hex::serde")] Vec<u8>),
    /// A data packet with the wrong toggle, dropped.
    ToggleMismatch,
    /// No answer, or a bad one.
    Failed,
}

/// How many announcements and requests there were before a transaction, and when its result is collected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub before: u64,
    pub after: u64,
}

impl Span {
    fn any(self) -> bool {
        self.before != self.after
    }
}

/// Largest packet that a device at full or low speed sends (USB 2.0, 5.6.3).
const LARGEST: usize = 1023;

impl Answer {
    /// The answer after a restore, in which no device has promised to announce anything: the host
    /// asks again.
    pub(super) fn restored(self) -> Self {
        match self {
            Self::Nak(_) => Self::Nak(Readiness::Poll),
            other => other,
        }
    }

    /// The answer when the host collects it. A device that promised to announce may have done so since
    /// the transaction, or a request may have ended the promise: nobody was waiting for it then, so the
    /// host is told to ask again.
    pub(super) fn collected(self, news: Span) -> Self {
        match self {
            Self::Nak(Readiness::Announced) if news.any() => Self::Nak(Readiness::Poll),
            other => other,
        }
    }

    /// Whether a device can have sent it; a snapshot may say anything.
    pub(super) fn is_possible(&self) -> bool {
        self.len() <= LARGEST
    }

    /// Bytes on the bus besides the protocol's own.
    pub(super) fn len(&self) -> usize {
        if let Self::Data(bytes) = self { bytes.len() } else { 0 }
    }

    /// The answer to the complete-split, apart from what becomes of data; `failed` says what the
    /// translator reports for a transaction that failed.
    pub(super) fn handshake(&self, failed: CompleteAnswer) -> CompleteAnswer {
        match self {
            Self::Ack => CompleteAnswer::Ack,
            Self::Nak(readiness) => CompleteAnswer::Nak(*readiness),
            Self::Stall => CompleteAnswer::Stall,
            Self::Data(_) => CompleteAnswer::Data { last: true },
            Self::ToggleMismatch => CompleteAnswer::ToggleMismatch,
            Self::Failed => failed,
        }
    }
}

/// Carries out the transaction of a start-split: one packet.
pub(super) fn exchange(split: &StartSplit<'_>, bus: &mut SlowBus<'_>) -> Answer {
    let answer = bus.reach(&split.token, |function| match split.token.pid {
        Pid::In => receive(split, function),
        Pid::Out | Pid::Setup => send(split, split.data.to_vec(), function),
    });
    answer.unwrap_or(Answer::Failed)
}

/// An IN transaction: the device sends what it has, at most its own packet.
fn receive(split: &StartSplit<'_>, function: &mut Function) -> Answer {
    let Some(packet) = function.packet_size(Pid::In, split.token.endpoint) else {
        return Answer::Failed;
    };
    let mut buffer = vec![0; packet.into()];
    let outcome = transact(split, packet, &mut buffer, function);
    match outcome.status {
        Status::Complete => {
            buffer.truncate(outcome.bytes);
            Answer::Data(buffer)
        }
        _ => refused(outcome.status),
    }
}

/// An OUT or SETUP transaction with the whole packet.
pub(super) fn send(split: &StartSplit<'_>, mut data: Vec<u8>, function: &mut Function) -> Answer {
    let packet = function.packet_size(split.token.pid, split.token.endpoint);
    // A packet too large for the endpoint is one nobody acknowledges.
    let Some(packet) = packet.filter(|packet| data.len() <= usize::from(*packet)) else {
        return Answer::Failed;
    };
    let empty = data.is_empty();
    let outcome = transact(split, packet, &mut data, function);
    match outcome.status {
        // The device took nothing, which is what NAK says.
        Status::Complete if outcome.bytes == 0 && !empty => Answer::Nak(Readiness::Poll),
        Status::Complete => Answer::Ack,
        _ => refused(outcome.status),
    }
}

fn transact(
    split: &StartSplit<'_>,
    packet: u16,
    buffer: &mut Vec<u8>,
    function: &mut Function,
) -> Outcome {
    let transfer = Transfer {
        pid: split.token.pid,
        endpoint: split.token.endpoint,
        max_packet: packet,
        toggle: split.toggle,
        now: split.now,
        buffer,
    };
    match split.token.transfer_type {
        TransferType::Isochronous => function.isochronous(transfer),
        _ => function.transact(transfer),
    }
}

fn refused(status: Status) -> Answer {
    match status {
        Status::Nak(readiness) => Answer::Nak(readiness),
        // On the wire a device that is at work says NAK, and so does this one until it announces.
        Status::Pending => Answer::Nak(Readiness::Announced),
        Status::Stall => Answer::Stall,
        Status::Error(BusError::ToggleMismatch) => Answer::ToggleMismatch,
        Status::Error(_) | Status::Complete => Answer::Failed,
    }
}
