//! The stages of a control transfer on endpoint 0 (USB 2.0, 8.5.3).

use serde::{Deserialize, Serialize};

use super::{Control, Direction, Outcome, Pid, SetupPacket, Toggle, Transfer};

/// Where the control transfer stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum ControlPipe {
    /// No transfer: everything but SETUP stalls. Also after a request error, until the next SETUP
    /// (USB 2.0, 8.5.3.4).
    #[default]
    Stalled,
    /// Answering IN tokens; an OUT token is the status stage.
    DataIn {
        /// The answer, cut to `wLength`.
        #[serde(with = "hex::serde")]
        answer: Vec<u8>,
        /// How much of it the host has.
        sent: usize,
    },
    /// Collecting `wLength` bytes.
    DataOut {
        /// The request.
        setup: SetupPacket,
        /// Its bytes so far.
        #[serde(with = "hex::serde")]
        received: Vec<u8>,
    },
    /// The request is carried out when the host asks for the status with an IN token.
    StatusIn {
        /// The request.
        setup: SetupPacket,
        /// Its data stage.
        #[serde(with = "hex::serde")]
        data: Vec<u8>,
    },
    /// The status stage is over; a host that missed the handshake may ask again.
    Finished,
}

/// What a transaction on endpoint 0 calls for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This is the outcome.
    Answer(Outcome),
    /// Carry out the request, then report with [`ControlPipe::answered`] or
    /// [`ControlPipe::finished`].
    Request(SetupPacket, Vec<u8>),
}

impl ControlPipe {
    /// One transaction, or several of the same stage.
    pub(super) fn transact(&mut self, transfer: &mut Transfer<'_>) -> Step {
        match transfer.pid {
            Pid::Setup => self.setup(transfer),
            Pid::In => self.data_in(transfer),
            Pid::Out => Step::Answer(self.data_out(transfer)),
        }
    }

    /// SETUP is always accepted and drops whatever was going on (USB 2.0, 8.5.3).
    fn setup(&mut self, transfer: &Transfer<'_>) -> Step {
        let mut bytes = [0; 8];
        transfer.buffer.read(0, &mut bytes);
        let Some(setup) = SetupPacket::from_bytes(&bytes).filter(|_| transfer.buffer.len() == 8)
        else {
            // Not a setup packet: nobody acknowledges it.
            return Step::Answer(Outcome::TIMEOUT);
        };
        *self = match (setup.direction(), setup.length()) {
            (_, 0) => Self::StatusIn { setup, data: Vec::new() },
            (Direction::Out, _) => Self::DataOut { setup, received: Vec::new() },
            (Direction::In, _) => {
                *self = Self::Stalled;
                return Step::Request(setup, Vec::new());
            }
        };
        Step::Answer(Outcome::complete(8))
    }

    fn data_in(&mut self, transfer: &mut Transfer<'_>) -> Step {
        match std::mem::take(self) {
            Self::DataIn { answer, mut sent } => {
                let outcome = transfer.send(answer.get(sent..).unwrap_or_default());
                sent = sent.saturating_add(outcome.bytes);
                *self = Self::DataIn { answer, sent };
                Step::Answer(outcome)
            }
            Self::StatusIn { setup, data } => Step::Request(setup, data),
            Self::Finished => {
                *self = Self::Finished;
                Step::Answer(Outcome::complete(0))
            }
            // Status before all data came: what was received is not the request that was announced.
            Self::DataOut { .. } | Self::Stalled => Step::Answer(Outcome::STALL),
        }
    }

    fn data_out(&mut self, transfer: &Transfer<'_>) -> Outcome {
        let len = transfer.buffer.len();
        match std::mem::take(self) {
            Self::DataOut { setup, mut received } => {
                let start = received.len();
                let wanted = usize::from(setup.length());
                let end = start.saturating_add(len);
                if end > wanted {
                    return Outcome::STALL;
                }
                received.resize(end, 0);
                transfer.buffer.read(0, received.get_mut(start..).unwrap_or_default());
                *self = if end == wanted {
                    Self::StatusIn { setup, data: received }
                } else {
                    Self::DataOut { setup, received }
                };
                Outcome::complete(len)
            }
            Self::DataIn { .. } | Self::Finished if len == 0 => {
                *self = Self::Finished;
                Outcome::complete(0)
            }
            _ => Outcome::STALL,
        }
    }

    /// The toggle of the next IN packet, if packets hold `packet` bytes: data and status stages begin
    /// with DATA1 (USB 2.0, 8.5.3).
    pub(super) fn toggle(&self, packet: u16) -> Toggle {
        let sent = match self {
            Self::DataIn { sent, .. } => sent.checked_div(packet.into()).unwrap_or(0),
            _ => 0,
        };
        Toggle::Data1.after(sent)
    }

    /// The request has been carried out: the outcome of the transaction that called for it.
    pub(super) fn carried_out(
        &mut self,
        setup: &SetupPacket,
        result: Control,
        mut data: Vec<u8>,
    ) -> Outcome {
        let answers = setup.direction() == Direction::In && setup.length() != 0;
        *self = match result {
            Control::Stall => Self::Stalled,
            Control::Done if answers => {
                data.truncate(setup.length().into());
                Self::DataIn { answer: data, sent: 0 }
            }
            Control::Done => Self::Finished,
        };
        match result {
            // The SETUP itself was acknowledged; an error shows in the stage that follows.
            _ if answers => Outcome::complete(8),
            Control::Done => Outcome::complete(0),
            Control::Stall => Outcome::STALL,
        }
    }
}
