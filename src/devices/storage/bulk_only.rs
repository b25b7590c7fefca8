//! The bulk-only transport (USB Mass Storage Class, Bulk-Only Transport 1.0): command, data and
//! status on two bulk endpoints.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::unit::{CheckCondition, Queueing, Sink, Source, Unit, Work};
use crate::usb::{Outcome, Status, Transfer};

/// `dCBWSignature`.
const CBW_SIGNATURE: u32 = 0x4342_5355;
/// `dCSWSignature`.
const CSW_SIGNATURE: u32 = 0x5342_5355;
/// Length of a command block wrapper in bytes.
const CBW_LEN: usize = 31;

/// Command Block Wrapper (5.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CommandBlockWrapper {
    signature: U32,
    tag: U32,
    data_transfer_length: U32,
    flags: u8,
    lun: u8,
    cb_length: u8,
    cb: [u8; 16],
}

impl CommandBlockWrapper {
    /// Reads a wrapper that is valid (6.2.1) and, apart from the number of the logical unit,
    /// meaningful (6.2.2).
    fn read(transfer: &Transfer<'_>) -> Option<Self> {
        let mut bytes = [0; CBW_LEN];
        if transfer.buffer.len() != CBW_LEN || transfer.buffer.read(0, &mut bytes) != CBW_LEN {
            return None;
        }
        let wrapper: Self = zerocopy::transmute!(bytes);
        let valid = wrapper.signature.get() == CBW_SIGNATURE;
        let reserved = wrapper.flags & 0x7f | wrapper.lun & 0xf0 | wrapper.cb_length & 0xe0;
        let meaningful = reserved == 0 && (1..=16).contains(&wrapper.cb_length);
        (valid && meaningful).then_some(wrapper)
    }

    fn command_block(&self) -> &[u8] {
        self.cb.get(..self.cb_length.into()).unwrap_or(&self.cb)
    }

    /// What the host expects.
    fn expectation(&self) -> Expectation {
        match u64::from(self.data_transfer_length.get()) {
            0 => Expectation::Nothing,
            length if self.flags & 0x80 != 0 => Expectation::In(length),
            length => Expectation::Out(length),
        }
    }
}

/// The host's side of the thirteen cases (6.7): Hn, Hi or Ho, with its `dCBWDataTransferLength`.
#[derive(Clone, Copy, Debug)]
enum Expectation {
    Nothing,
    In(u64),
    Out(u64),
}

/// `bCSWStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
enum CommandStatus {
    Passed = 0,
    Failed = 1,
    PhaseError = 2,
}

/// Command Status Wrapper (5.2).
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct CommandStatusWrapper {
    signature: U32,
    tag: U32,
    data_residue: U32,
    status: u8,
}

/// How the present command stands: its [`CommandStatusWrapper`] to be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reply {
    tag: u32,
    /// `dCBWDataTransferLength` minus what was processed. Our own bookkeeping never lets it pass 32
    /// bits.
    residue: u64,
    status: CommandStatus,
}

impl Reply {
    fn with(self, status: CommandStatus) -> Self {
        Self { status, ..self }
    }

    fn after(self, processed: usize) -> Self {
        let residue = self.residue.saturating_sub(processed as u64);
        Self { residue, ..self }
    }

    fn wrapper(&self) -> CommandStatusWrapper {
        CommandStatusWrapper {
            signature: U32::new(CSW_SIGNATURE),
            tag: U32::new(self.tag),
            data_residue: U32::new(self.residue as u32),
            status: self.status as u8,
        }
    }
}

/// Where the present command stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum Stage {
    /// Ready for a command (5.3.1).
    Command,
    /// Sending data; the host expects `expected` more bytes, no fewer than there are.
    DataIn { source: Source, expected: u64, reply: Reply },
    /// Taking `expected` more bytes; those that no sink wants any more are dropped.
    DataOut { sink: Option<Sink>, expected: u64, reply: Reply },
    /// There was less data than the host expected: Bulk-In has to stall before the status (6.7.2).
    Short(Reply),
    /// The status is ready (5.3.3).
    Status(Reply),
    /// A wrapper was not valid or not meaningful: both endpoints stall, however often the host clears
    /// their halts, until Reset Recovery (6.6.1).
    Invalid,
}

/// The transport's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct BulkOnly {
    stage: Stage,
}

impl BulkOnly {
    pub(super) fn new() -> Self {
        Self { stage: Stage::Command }
    }

    /// Bulk-Only Mass Storage Reset (3.1), or a new configuration: nothing of the present command
    /// takes effect any more.
    pub(super) fn reset(&mut self) {
        self.stage = Stage::Command;
    }

    /// Whether a transport with the medium of `unit` can be in this state; a snapshot may say anything.
    pub(super) fn is_possible(&self, unit: &Unit) -> bool {
        /// `dCBWDataTransferLength` is a dword.
        const MOST: u64 = u32::MAX as u64;
        match &self.stage {
            Stage::DataIn { source, expected, .. } => {
                unit.can_send(source) && source.left() <= *expected && *expected <= MOST
            }
            Stage::DataOut { sink, expected, .. } => {
                let wanted = sink.as_ref().map_or(0, Sink::left);
                sink.as_ref().is_none_or(|sink| unit.can_receive(sink))
                    && wanted <= *expected
                    && *expected <= MOST
            }
            Stage::Command | Stage::Short(_) | Stage::Status(_) | Stage::Invalid => true,
        }
    }

    /// Whether Bulk-In has an answer, be it STALL.
    pub(super) fn answers_in(&self) -> bool {
        !matches!(self.stage, Stage::Command | Stage::DataOut { .. })
    }

    /// Whether Bulk-Out takes data or stalls.
    pub(super) fn answers_out(&self) -> bool {
        matches!(self.stage, Stage::Command | Stage::DataOut { .. } | Stage::Invalid)
    }

    /// Data on Bulk-Out.
    pub(super) fn bulk_out(&mut self, unit: &mut Unit, transfer: &mut Transfer<'_>) -> Outcome {
        let (stage, outcome) = match std::mem::replace(&mut self.stage, Stage::Invalid) {
            Stage::Command => command(unit, transfer),
            Stage::DataOut { sink, expected, reply } => {
                data_out(unit, transfer, sink, expected, reply)
            }
            Stage::Invalid => (Stage::Invalid, Outcome::STALL),
            // The host must fetch the status first.
            stage => (stage, Outcome::PARK),
        };
        self.stage = stage;
        outcome
    }

    /// The host asks Bulk-In for data.
    pub(super) fn bulk_in(&mut self, unit: &mut Unit, transfer: &mut Transfer<'_>) -> Outcome {
        let (stage, outcome) = match std::mem::replace(&mut self.stage, Stage::Invalid) {
            Stage::DataIn { source, expected, reply } => {
                data_in(unit, transfer, source, expected, reply)
            }
            Stage::Short(reply) => (Stage::Status(reply), Outcome::STALL),
            Stage::Status(reply) => {
                let outcome = transfer.send_whole(reply.wrapper().as_bytes());
                match outcome.status {
                    Status::Complete => (Stage::Command, outcome),
                    _ => (Stage::Status(reply), outcome),
                }
            }
            Stage::Invalid => (Stage::Invalid, Outcome::STALL),
            stage => (stage, Outcome::PARK),
        };
        self.stage = stage;
        outcome
    }
}

/// A command arrives.
fn command(unit: &mut Unit, transfer: &mut Transfer<'_>) -> (Stage, Outcome) {
    let Some(wrapper) = CommandBlockWrapper::read(transfer) else {
        // The packet that broke the rules is acknowledged; what follows it is not.
        let packet = transfer.buffer.len().min(transfer.max_packet.into());
        return (Stage::Invalid, Outcome::complete(packet));
    };
    let reply = Reply {
        tag: wrapper.tag.get(),
        residue: wrapper.data_transfer_length.get().into(),
        status: CommandStatus::Passed,
    };
    let work = unit.begin(wrapper.lun, wrapper.command_block(), Queueing::None);
    let stage = thirteen_cases(wrapper.expectation(), work, reply);
    (stage, Outcome::complete(CBW_LEN))
}

/// Holds what the host expects against what the device intends (6.7). A command on whose data they
/// disagree is not carried out.
fn thirteen_cases(host: Expectation, device: Result<Work, CheckCondition>, reply: Reply) -> Stage {
    let phase_error = reply.with(CommandStatus::PhaseError);
    let (device, done) = match device {
        Ok(work) => (work, reply),
        Err(CheckCondition) => (Work::Done, reply.with(CommandStatus::Failed)),
    };
    match (host, device) {
        // (1) Hn = Dn.
        (Expectation::Nothing, Work::Done) => Stage::Status(done),
        // (2) Hn < Di, (3) Hn < Do.
        (Expectation::Nothing, _) => Stage::Status(phase_error),
        // (4) Hi > Dn.
        (Expectation::In(_), Work::Done) => Stage::Short(done),
        // (5) Hi > Di, (6) Hi = Di.
        (Expectation::In(expected), Work::Send(source)) if source.left() <= expected => {
            Stage::DataIn { source, expected, reply }
        }
        // (7) Hi < Di, (8) Hi <> Do.
        (Expectation::In(_), _) => Stage::Short(phase_error),
        // (9) Ho > Dn.
        (Expectation::Out(expected), Work::Done) => {
            Stage::DataOut { sink: None, expected, reply: done }
        }
        // (11) Ho > Do, (12) Ho = Do.
        (Expectation::Out(expected), Work::Receive(sink)) if sink.left() <= expected => {
            Stage::DataOut { sink: Some(sink), expected, reply }
        }
        // (10) Ho <> Di, (13) Ho < Do.
        (Expectation::Out(expected), _) => {
            Stage::DataOut { sink: None, expected, reply: phase_error }
        }
    }
}

fn data_in(
    unit: &mut Unit,
    transfer: &mut Transfer<'_>,
    mut source: Source,
    expected: u64,
    reply: Reply,
) -> (Stage, Outcome) {
    let available = usize::try_from(source.left()).unwrap_or(usize::MAX);
    let (count, outcome) = match transfer.room_for(available) {
        Ok(count) => (count, Outcome::complete(count)),
        Err(babble) => (babble.bytes, babble),
    };
    if unit.send(&mut source, transfer.buffer, count).is_err() {
        let failed = reply.with(CommandStatus::Failed);
        return (Stage::Status(failed), Outcome::STALL);
    }
    let reply = reply.after(count);
    let expected = expected.saturating_sub(count as u64);
    let filled = count == transfer.buffer.len();
    let whole = count.checked_rem(transfer.max_packet.into()) == Some(0);
    if source.left() != 0 {
        let stage = Stage::DataIn { source, expected, reply };
        (stage, outcome)
    } else if expected == 0 {
        (Stage::Status(reply), outcome)
    } else if filled || !whole {
        (Stage::Short(reply), outcome)
    } else {
        // The data ended with a whole packet, and the host still waits: it sees the STALL now.
        let stalled = Outcome { bytes: count, status: Status::Stall };
        (Stage::Status(reply), stalled)
    }
}

fn data_out(
    unit: &mut Unit,
    transfer: &mut Transfer<'_>,
    mut sink: Option<Sink>,
    expected: u64,
    mut reply: Reply,
) -> (Stage, Outcome) {
    let len = transfer.buffer.len();
    if len as u64 > expected {
        // More than was announced: none of these bytes can be trusted.
        let reply = reply.with(CommandStatus::PhaseError);
        return (Stage::Status(reply), Outcome::complete(len));
    }
    if let Some(wanting) = &mut sink {
        let count = usize::try_from(wanting.left()).unwrap_or(len).min(len);
        match unit.receive(wanting, transfer.buffer, count) {
            Ok(()) if wanting.left() != 0 => reply = reply.after(count),
            Ok(()) => {
                reply = reply.after(count);
                sink = None;
            }
            Err(CheckCondition) => {
                reply = reply.with(CommandStatus::Failed);
                sink = None;
            }
        }
    }
    let stage = match expected.saturating_sub(len as u64) {
        0 => Stage::Status(reply),
        expected => Stage::DataOut { sink, expected, reply },
    };
    (stage, Outcome::complete(len))
}
