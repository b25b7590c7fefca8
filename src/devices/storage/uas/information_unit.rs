//! Information units: what the command and the status pipe carry (UAS, 6.2). Numbers are big-endian.

use serde::{Deserialize, Serialize};
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::devices::storage::sense::Sense;
use crate::usb::Transfer;

/// IU ID (UAS, table 10).
mod iu_id {
    pub(super) const COMMAND: u8 = 0x01;
    pub(super) const SENSE: u8 = 0x03;
    pub(super) const RESPONSE: u8 = 0x04;
    pub(super) const TASK_MANAGEMENT: u8 = 0x05;
    pub(super) const READ_READY: u8 = 0x06;
    pub(super) const WRITE_READY: u8 = 0x07;
}

/// STATUS of a command (SAM-4, 5.3.1).
mod status {
    pub(super) const GOOD: u8 = 0x00;
    pub(super) const CHECK_CONDITION: u8 = 0x02;
    pub(super) const TASK_SET_FULL: u8 = 0x28;
}

/// Length of a COMMAND information unit without additional CDB bytes.
const COMMAND_LEN: usize = 32;
/// Length of a TASK MANAGEMENT information unit.
const TASK_MANAGEMENT_LEN: usize = 16;

/// What all information units begin with.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    iu_id: u8,
    reserved: u8,
    tag: U16,
}

impl Header {
    fn new(iu_id: u8, tag: u16) -> Self {
        Self { iu_id, reserved: 0, tag: U16::new(tag) }
    }
}

/// COMMAND (UAS, 6.2.2); additional CDB bytes may follow.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CommandIu {
    header: Header,
    /// COMMAND PRIORITY and, in bits 2:0, TASK ATTRIBUTE.
    attribute: u8,
    reserved: u8,
    /// ADDITIONAL CDB LENGTH in dwords, in bits 7:2.
    additional: u8,
    reserved_7: u8,
    lun: [u8; 8],
    cdb: [u8; 16],
}

/// TASK MANAGEMENT (UAS, 6.2.7).
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TaskManagementIu {
    header: Header,
    function: u8,
    reserved: u8,
    managed: U16,
    lun: [u8; 8],
}

/// SENSE (UAS, 6.2.5), before the sense data.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct SenseIu {
    header: Header,
    qualifier: U16,
    status: u8,
    reserved: [u8; 7],
    length: U16,
}

/// RESPONSE (UAS, 6.2.6).
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ResponseIu {
    header: Header,
    additional: [u8; 3],
    code: u8,
}

/// A command of the host's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Task {
    pub(super) tag: u16,
    /// Logical unit; the ones that are not there are all the same.
    pub(super) lun: u8,
    pub(super) cdb: [u8; 16],
}

/// Where a command goes among those that wait (SAM-4, 8.6). They are carried out one at a time, in
/// order, so ORDERED is no different from SIMPLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Tail,
    /// HEAD OF QUEUE.
    Head,
}

/// A task management function (SAM-4, 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    AbortTask,
    /// ABORT TASK SET, and CLEAR TASK SET where there is one initiator.
    AbortTaskSet,
    LogicalUnitReset,
    ItNexusReset,
    QueryTask,
    QueryTaskSet,
    /// CLEAR ACA, QUERY ASYNCHRONOUS EVENT and what the standard does not know.
    Other,
}

/// What the command pipe brought.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Command(Task, Place),
    Manage {
        tag: u16,
        function: Function,
        /// TAG OF TASK TO BE MANAGED.
        managed: u16,
        lun: u8,
    },
    /// Not an information unit for this pipe, or one with fields that mean nothing.
    Invalid {
        tag: u16,
    },
}

impl Request {
    /// Reads the information unit that `transfer` is, all of it.
    pub(super) fn read(transfer: &Transfer<'_>) -> Self {
        let mut bytes = [0; COMMAND_LEN];
        let len = transfer.buffer.len();
        transfer.buffer.read(0, &mut bytes);
        let Ok((header, _)) = Header::ref_from_prefix(&bytes) else {
            return Self::Invalid { tag: 0 };
        };
        let tag = header.tag.get();
        let known = match header.iu_id {
            iu_id::COMMAND => Self::command(&bytes, len),
            iu_id::TASK_MANAGEMENT if len == TASK_MANAGEMENT_LEN => Self::task_management(&bytes),
            _ => None,
        };
        known.unwrap_or(Self::Invalid { tag })
    }

    fn command(bytes: &[u8], len: usize) -> Option<Self> {
        let (iu, _) = CommandIu::ref_from_prefix(bytes).ok()?;
        // In dwords, in the upper six bits: so the field without the lower two is in bytes. No command
        // of this disk is longer than 16 bytes; what is left of the others is enough to refuse them.
        let additional = usize::from(iu.additional & 0xfc);
        if len != COMMAND_LEN.saturating_add(additional) {
            return None;
        }
        let place = match iu.attribute & 0x07 {
            0 | 2 => Place::Tail,
            1 => Place::Head,
            // ACA, which needs NACA; the rest is reserved.
            _ => return None,
        };
        let task = Task { tag: iu.header.tag.get(), lun: unit(iu.lun), cdb: iu.cdb };
        Some(Self::Command(task, place))
    }

    fn task_management(bytes: &[u8]) -> Option<Self> {
        let (iu, _) = TaskManagementIu::ref_from_prefix(bytes).ok()?;
        let function = match iu.function {
            0x01 => Function::AbortTask,
            0x02 | 0x04 => Function::AbortTaskSet,
            0x08 => Function::LogicalUnitReset,
            0x10 => Function::ItNexusReset,
            0x80 => Function::QueryTask,
            0x81 => Function::QueryTaskSet,
            _ => Function::Other,
        };
        let tag = iu.header.tag.get();
        Some(Self::Manage { tag, function, managed: iu.managed.get(), lun: unit(iu.lun) })
    }
}

/// The logical unit that `lun` names (SAM-4, 4.6): 0, or one that is not there.
fn unit(lun: [u8; 8]) -> u8 {
    u8::from(lun != [0; 8])
}

/// RESPONSE CODE (UAS, table 18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub(super) enum ResponseCode {
    FunctionComplete = 0x00,
    InvalidInformationUnit = 0x02,
    FunctionNotSupported = 0x04,
    FunctionSucceeded = 0x08,
    IncorrectLogicalUnitNumber = 0x09,
    OverlappedTagAttempted = 0x0a,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ending {
    Good,
    CheckCondition(Sense),
    /// It was not even begun: too many are waiting.
    TaskSetFull,
}

/// What waits for the host on the status pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The host may fetch the data of its command.
    ReadReady(u16),
    /// The host may send the data of its command.
    WriteReady(u16),
    Sense(u16, Ending),
    Response(u16, ResponseCode),
}

impl Answer {
    /// Tag of the command or task management function.
    pub(super) fn tag(&self) -> u16 {
        match *self {
            Self::ReadReady(tag)
            | Self::WriteReady(tag)
            | Self::Sense(tag, _)
            | Self::Response(tag, _) => tag,
        }
    }

    /// Whether there is no more to come for the tag.
    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::Sense(..) | Self::Response(..))
    }

    /// As the status pipe carries it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match *self {
            Self::ReadReady(tag) => Header::new(iu_id::READ_READY, tag).as_bytes().to_vec(),
            Self::WriteReady(tag) => Header::new(iu_id::WRITE_READY, tag).as_bytes().to_vec(),
            Self::Sense(tag, ending) => {
                let (status, sense) = match ending {
                    Ending::Good => (status::GOOD, Vec::new()),
                    Ending::CheckCondition(sense) => (status::CHECK_CONDITION, sense.fixed()),
                    Ending::TaskSetFull => (status::TASK_SET_FULL, Vec::new()),
                };
                let iu = SenseIu {
                    header: Header::new(iu_id::SENSE, tag),
                    qualifier: U16::ZERO,
                    status,
                    reserved: [0; 7],
                    length: U16::new(sense.len() as u16),
                };
                [iu.as_bytes(), &sense].concat()
            }
            Self::Response(tag, code) => {
                let header = Header::new(iu_id::RESPONSE, tag);
                let iu = ResponseIu { header, additional: [0; 3], code: code as u8 };
                iu.as_bytes().to_vec()
            }
        }
    }
}
