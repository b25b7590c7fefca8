//! USB Attached SCSI (T10 UAS) without streams: commands, status and data on four bulk endpoints.
//!
//! The host may send many commands before the first has ended, and a READ READY or WRITE READY tells
//! it when the data pipe is a command's. What the bulk-only transport says in three transfers, each
//! after the last, takes one step here as long as another command is waiting: the end of one comes
//! together with the next one's turn.

mod information_unit;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use self::information_unit::{Answer, Ending, Function, Place, Request, ResponseCode, Task};
use super::sense::Sense;
use super::unit::{CheckCondition, Queueing, Sink, Source, Unit, Work};
use super::{COMMAND, IN, OUT, STATUS, UAS_ALTERNATE};
use crate::usb::{Endpoint, Interface, Outcome, Status, Transfer};

/// Mass storage, SCSI transparent command set, USB Attached SCSI.
const CLASS: [u8; 3] = [0x08, 0x06, 0x62];
/// `bDescriptorType` of a pipe usage descriptor (UAS, 5.2.3.6).
const PIPE_USAGE: u8 = 0x24;

/// The alternate setting with this transport.
pub(super) fn interface(max_packet: u16) -> Interface {
    // In the order of their pipe IDs: 1 command, 2 status, 3 data-in, 4 data-out.
    let pipes = [(1, COMMAND), (2, STATUS), (3, IN), (4, OUT)];
    let endpoints = pipes.map(|(pipe, address)| Endpoint {
        class_descriptors: vec![4, PIPE_USAGE, pipe, 0],
        ..Endpoint::bulk(address, max_packet)
    });
    Interface {
        alternate: UAS_ALTERNATE,
        class: CLASS,
        endpoints: endpoints.to_vec(),
        ..Interface::default()
    }
}

/// Most commands that wait while another one is carried out; the next is told TASK SET FULL. Twice what
/// the drivers of common systems send.
const MOST_WAITING: usize = 64;
/// How many commands may wait, and answers be left unread by the host, before the command pipe takes no
/// more. Beyond it are only the answers to those that wait, at most two each.
const MOST_UNREAD: usize = 128;

/// The command whose data is on its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum Data {
    In {
        tag: u16,
        source: Source,
    },
    /// All bytes are sent, in whole packets, and the host has room for more: it takes a packet without
    /// data to tell it that there is none.
    InEnd {
        tag: u16,
    },
    Out {
        tag: u16,
        sink: Sink,
    },
    /// The command has failed; the host sends `left` more bytes, which are dropped.
    Drop {
        tag: u16,
        left: u64,
        sense: Sense,
    },
}

impl Data {
    fn tag(&self) -> u16 {
        match self {
            Self::In { tag, .. }
            | Self::InEnd { tag }
            | Self::Out { tag, .. }
            | Self::Drop { tag, .. } => *tag,
        }
    }

    fn is_in(&self) -> bool {
        matches!(self, Self::In { .. } | Self::InEnd { .. })
    }
}

/// The transport's state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Uas {
    /// Commands that have not begun, the next one first.
    waiting: VecDeque<Task>,
    data: Option<Data>,
    /// What the host has not fetched from the status pipe.
    answers: VecDeque<Answer>,
}

impl Uas {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Whether a transport with the medium of `unit` can be in this state; a snapshot may say anything.
    pub(super) fn is_possible(&self, unit: &Unit) -> bool {
        let data = match &self.data {
            Some(Data::In { source, .. }) => unit.can_send(source),
            Some(Data::Out { sink, .. }) => unit.can_receive(sink),
            Some(Data::Drop { left, .. }) => *left != 0,
            Some(Data::InEnd { .. }) | None => true,
        };
        let most = MOST_WAITING.saturating_mul(2).saturating_add(MOST_UNREAD);
        // A command waits for another one's data, or for the host to fetch an answer.
        let goes_on = self.waiting.is_empty() || self.data.is_some() || self.has_answers();
        data && goes_on && self.waiting.len() <= MOST_WAITING && self.answers.len() <= most
    }

    /// Whether the command pipe takes information units.
    pub(super) fn takes_commands(&self) -> bool {
        self.waiting.len().saturating_add(self.answers.len()) < MOST_UNREAD
    }

    /// Whether the status pipe has an answer.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Whether the data-in pipe has an answer.
    pub(super) fn has_data(&self) -> bool {
        self.data.as_ref().is_some_and(Data::is_in)
    }

    /// Whether the data-out pipe takes data.
    pub(super) fn takes_data(&self) -> bool {
        self.data.as_ref().is_some_and(|data| !data.is_in())
    }

    /// An information unit on the command pipe.
    pub(super) fn command(&mut self, unit: &mut Unit, transfer: &mut Transfer<'_>) -> Outcome {
        if !self.takes_commands() {
            return Outcome::PARK;
        }
        let taken = match Request::read(transfer) {
            Request::Command(task, place) => {
                self.accept(task, place);
                transfer.buffer.len()
            }
            Request::Manage { tag, function, managed, lun } => {
                // An I_T nexus reset is for all units (SAM-4, 7.6).
                let code = match (lun, function) {
                    _ if self.knows(tag) => self.overlapped(tag),
                    (0, _) | (_, Function::ItNexusReset) => self.manage(unit, function, managed),
                    _ => ResponseCode::IncorrectLogicalUnitNumber,
                };
                self.answers.push_back(Answer::Response(tag, code));
                transfer.buffer.len()
            }
            Request::Invalid { tag } => {
                let code = ResponseCode::InvalidInformationUnit;
                self.answers.push_back(Answer::Response(tag, code));
                // Whatever it is, it is no information unit beyond its first packet.
                transfer.buffer.len().min(transfer.max_packet.into())
            }
        };
        self.advance(unit);
        Outcome::complete(taken)
    }

    /// The host asks for an answer.
    pub(super) fn status(&mut self, unit: &mut Unit, transfer: &mut Transfer<'_>) -> Outcome {
        let Some(answer) = self.answers.front() else {
            return Outcome::PARK;
        };
        let outcome = transfer.send_whole(&answer.bytes());
        if outcome.status == Status::Complete {
            self.answers.pop_front();
            self.advance(unit);
        }
        outcome
    }

    /// The host asks for data.
    pub(super) fn data_in(&mut self, unit: &mut Unit, transfer: &mut Transfer<'_>) -> Outcome {
        match self.data.take() {
            Some(Data::In { tag, source }) => self.send(unit, transfer, tag, source),
            Some(Data::InEnd { tag }) => {
                self.end(unit, tag, Ending::Good);
                Outcome::complete(0)
            }
            other => {
                self.data = other;
                Outcome::PARK
            }
        }
    }

    /// Data of the host's.
    pub(super) fn data_out(&mut self, unit: &mut Unit, transfer: &mut Transfer<'_>) -> Outcome {
        let len = transfer.buffer.len();
        match self.data.take() {
            Some(Data::Out { tag, mut sink }) => {
                let count = usize::try_from(sink.left()).unwrap_or(len).min(len);
                let left = sink.left().saturating_sub(count as u64);
                match unit.receive(&mut sink, transfer.buffer, count) {
                    Ok(()) if left == 0 => self.end(unit, tag, Ending::Good),
                    Ok(()) => self.data = Some(Data::Out { tag, sink }),
                    Err(CheckCondition) => {
                        let sense = unit.take_sense();
                        self.drop_rest(unit, tag, left, sense);
                    }
                }
            }
            Some(Data::Drop { tag, left, sense }) => {
                self.drop_rest(unit, tag, left.saturating_sub(len as u64), sense);
            }
            other => {
                self.data = other;
                return Outcome::PARK;
            }
        }
        Outcome::complete(len)
    }

    fn send(
        &mut self,
        unit: &mut Unit,
        transfer: &mut Transfer<'_>,
        tag: u16,
        mut source: Source,
    ) -> Outcome {
        let available = usize::try_from(source.left()).unwrap_or(usize::MAX);
        let (count, outcome) = match transfer.room_for(available) {
            Ok(count) => (count, Outcome::complete(count)),
            Err(babble) => (babble.bytes, babble),
        };
        if unit.send(&mut source, transfer.buffer, count).is_err() {
            // Not a STALL: no driver clears a halt of these pipes without a reset. An early end tells the
            // host that no more data comes, and the status says why.
            let sense = unit.take_sense();
            self.end(unit, tag, Ending::CheckCondition(sense));
            return Outcome::complete(0);
        }
        let filled = count == transfer.buffer.len();
        let whole = count.checked_rem(transfer.max_packet.into()) == Some(0);
        if source.left() != 0 {
            self.data = Some(Data::In { tag, source });
        } else if source.is_short() && filled && whole {
            self.data = Some(Data::InEnd { tag });
        } else {
            self.end(unit, tag, Ending::Good);
        }
        outcome
    }

    /// The command has failed with `left` bytes of its data to come.
    fn drop_rest(&mut self, unit: &mut Unit, tag: u16, left: u64, sense: Sense) {
        match left {
            0 => self.end(unit, tag, Ending::CheckCondition(sense)),
            left => self.data = Some(Data::Drop { tag, left, sense }),
        }
    }

    /// The command that had the data pipes has ended.
    fn end(&mut self, unit: &mut Unit, tag: u16, ending: Ending) {
        self.answers.push_back(Answer::Sense(tag, ending));
        self.advance(unit);
    }

    /// Begins the next command, if its turn has come. One at a time: the host has to send something or
    /// fetch something for each.
    fn advance(&mut self, unit: &mut Unit) {
        if self.data.is_some() {
            return;
        }
        let Some(Task { tag, lun, cdb }) = self.waiting.pop_front() else {
            return;
        };
        let answer = match unit.begin(lun, &cdb, Queueing::Tagged) {
            Ok(Work::Done) => Answer::Sense(tag, Ending::Good),
            Ok(Work::Send(source)) => {
                self.data = Some(Data::In { tag, source });
                Answer::ReadReady(tag)
            }
            Ok(Work::Receive(sink)) => {
                self.data = Some(Data::Out { tag, sink });
                Answer::WriteReady(tag)
            }
            Err(CheckCondition) => Answer::Sense(tag, Ending::CheckCondition(unit.take_sense())),
        };
        self.answers.push_back(answer);
    }

    /// A command joins those that wait.
    fn accept(&mut self, task: Task, place: Place) {
        if self.knows(task.tag) {
            let code = self.overlapped(task.tag);
            self.answers.push_back(Answer::Response(task.tag, code));
        } else if self.waiting.len() >= MOST_WAITING {
            self.answers.push_back(Answer::Sense(task.tag, Ending::TaskSetFull));
        } else {
            match place {
                Place::Tail => self.waiting.push_back(task),
                Place::Head => self.waiting.push_front(task),
            }
        }
    }

    /// Whether something with this tag is under way, which it is until the host has the last answer.
    fn knows(&self, tag: u16) -> bool {
        self.is_under_way(tag) || self.answers.iter().any(|answer| answer.tag() == tag)
    }

    /// Whether a command with this tag has not ended.
    fn is_under_way(&self, tag: u16) -> bool {
        self.waiting.iter().any(|task| task.tag == tag)
            || self.data.as_ref().is_some_and(|data| data.tag() == tag)
    }

    /// The host used a tag twice: no command of its is carried on (SAM-4, 5.10).
    fn overlapped(&mut self, tag: u16) -> ResponseCode {
        self.abort(|_| true);
        self.answers.retain(|answer| answer.tag() != tag);
        ResponseCode::OverlappedTagAttempted
    }

    /// Drops the commands with such tags, which get no answer any more.
    fn abort(&mut self, with: impl Fn(u16) -> bool) {
        self.waiting.retain(|task| !with(task.tag));
        self.data = self.data.take().filter(|data| !with(data.tag()));
        self.answers.retain(|answer| answer.is_last() || !with(answer.tag()));
    }

    /// Carries out a task management function (SAM-4, 7).
    fn manage(&mut self, unit: &mut Unit, function: Function, managed: u16) -> ResponseCode {
        let found = |found| match found {
            true => ResponseCode::FunctionSucceeded,
            false => ResponseCode::FunctionComplete,
        };
        match function {
            Function::AbortTask => self.abort(|tag| tag == managed),
            Function::AbortTaskSet => self.abort(|_| true),
            Function::LogicalUnitReset | Function::ItNexusReset => {
                self.abort(|_| true);
                unit.reset();
            }
            Function::QueryTask => return found(self.is_under_way(managed)),
            Function::QueryTaskSet => {
                return found(self.data.is_some() || !self.waiting.is_empty());
            }
            Function::Other => return ResponseCode::FunctionNotSupported,
        }
        ResponseCode::FunctionComplete
    }
}
