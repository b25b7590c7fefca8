//! The logical unit: carries commands out on the medium.

mod saved;
mod write_behind;

use std::io;

use serde::{Deserialize, Serialize};

pub(super) use self::saved::UnitState;
use self::write_behind::WriteBehind;
use super::command::{Command, Extent};
use super::inquiry::{self, MAX_UNMAP_BLOCKS, MAX_UNMAP_DESCRIPTORS, MAX_WRITE_SAME_BLOCKS};
use super::mode;
use super::sense::Sense;
use super::{Medium, Serial};
use crate::usb::Buffer;

/// Bytes that VERIFY and WRITE SAME move at once through a buffer of ours.
const SCRATCH: usize = 64 << 10;

/// How many commands a transport lets the host send at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queueing {
    /// One.
    None,
    /// Many, told apart by their tags.
    Tagged,
}

/// CHECK CONDITION: the command failed, and the unit keeps the sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckCondition;

/// What a command that began well calls for.
#[derive(Debug)]
pub(super) enum Work {
    /// Nothing more: it is done.
    Done,
    /// Data for the host, at least one byte.
    Send(Source),
    /// Data from the host, at least one byte.
    Receive(Sink),
}

/// Where the rest of a command's data for the host comes from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Source {
    /// An answer, of which `sent` bytes are gone.
    Answer {
        #[serde(with = "hex::serde")]
        bytes: Vec<u8>,
        sent: usize,
        /// The host has room for more.
        #[serde(default)]
        short: bool,
    },
    /// The medium.
    Medium(Run),
}

/// Bytes of the medium, checked to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    offset: u64,
    left: u64,
}

/// Where the rest of a command's data from the host goes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Sink {
    /// To the medium; made durable at the end if the host asked for that.
    Medium { run: Run, durable: bool },
    /// Nowhere: it must equal what the medium holds.
    Comparison(Run),
    /// Into a list that is complete after `left` more bytes.
    Parameters {
        #[serde(with = "hex::serde")]
        list: Vec<u8>,
        left: u64,
        purpose: Purpose,
    },
}

/// What a list of parameters is for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Purpose {
    Unmap,
    WriteSame { run: Run, unmap: bool },
}

impl Run {
    fn take(&mut self, count: usize) {
        self.offset = self.offset.saturating_add(count as u64);
        self.left = self.left.saturating_sub(count as u64);
    }
}

impl Source {
    /// Bytes that are still to be sent.
    pub(super) fn left(&self) -> u64 {
        match self {
            Self::Answer { bytes, sent, .. } => bytes.len().saturating_sub(*sent) as u64,
            Self::Medium(run) => run.left,
        }
    }

    /// Whether the command allows for more bytes than there are.
    pub(super) fn is_short(&self) -> bool {
        matches!(self, Self::Answer { short: true, .. })
    }
}

impl Sink {
    /// Bytes that are still to be received.
    pub(super) fn left(&self) -> u64 {
        match self {
            Self::Medium { run, .. } | Self::Comparison(run) => run.left,
            Self::Parameters { left, .. } => *left,
        }
    }
}

/// Logical unit 0, the only one.
pub(super) struct Unit {
    medium: Box<dyn Medium>,
    serial: Serial,
    /// Why the last command failed, until the host asks or sends the next command.
    sense: Sense,
    /// What the host has to learn before its next command is carried out.
    attention: Option<Sense>,
    /// START STOP UNIT stopped it.
    stopped: bool,
    behind: WriteBehind,
    /// An error of the medium went to the log; the next ones only to the guest, which could flood it.
    reported: bool,
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unit")
            .field("blocks", &self.medium.blocks())
            .field("serial", &self.serial)
            .field("sense", &self.sense)
            .finish_non_exhaustive()
    }
}

impl Unit {
    pub(super) fn new(medium: Box<dyn Medium>, serial: Serial) -> Self {
        Self {
            medium,
            serial,
            sense: Sense::NONE,
            attention: Some(Sense::RESET_OCCURRED),
            stopped: false,
            behind: WriteBehind::default(),
            reported: false,
        }
    }

    /// Power on or hard reset (SAM-4, 6.3).
    pub(super) fn reset(&mut self) {
        self.sense = Sense::NONE;
        self.attention = Some(Sense::RESET_OCCURRED);
        self.stopped = false;
    }

    /// Carries a command out as far as is possible without its data.
    pub(super) fn begin(
        &mut self,
        lun: u8,
        cdb: &[u8],
        queueing: Queueing,
    ) -> Result<Work, CheckCondition> {
        self.behind.clear();
        let work = self.dispatch(lun, cdb, queueing);
        work.map_err(|sense| self.fail(sense))
    }

    /// Why the last command failed, for a transport that says so at once.
    pub(super) fn take_sense(&mut self) -> Sense {
        std::mem::replace(&mut self.sense, Sense::NONE)
    }

    fn fail(&mut self, sense: Sense) -> CheckCondition {
        self.sense = sense;
        CheckCondition
    }

    fn dispatch(&mut self, lun: u8, cdb: &[u8], queueing: Queueing) -> Result<Work, Sense> {
        let last = self.take_sense();
        if lun != 0 {
            return Err(Sense::LOGICAL_UNIT_NOT_SUPPORTED);
        }
        let command = Command::decode(cdb);
        // These three are carried out whatever the state of the unit (SAM-4, 5.14).
        match command {
            Ok(Command::Inquiry { page, allocation }) => {
                return self.inquiry(page, allocation, queueing);
            }
            Ok(Command::ReportLuns { select, allocation }) => {
                return report_luns(select, allocation);
            }
            Ok(Command::RequestSense { descriptor_format, allocation }) => {
                let sense = match last {
                    Sense::NONE => self.attention.take().unwrap_or(last),
                    last => last,
                };
                let bytes = if descriptor_format { sense.descriptor() } else { sense.fixed() };
                return Ok(answer(bytes, allocation));
            }
            _ => {}
        }
        if let Some(attention) = self.attention.take() {
            return Err(attention);
        }
        match command? {
            Command::TestUnitReady => self.ready().map(|()| Work::Done),
            Command::StartStopUnit { start, flush } => self.start_stop(start, flush),
            Command::PreventAllowMediumRemoval => Ok(Work::Done),
            Command::ModeSense(request, allocation) => {
                let bytes = mode::parameters(&request, self.disk())?;
                Ok(answer(bytes, allocation))
            }
            Command::ReadCapacity10 => self.read_capacity_10(),
            Command::ReadCapacity16 { allocation } => self.read_capacity_16(allocation),
            Command::Read(extent) => {
                let run = self.run(extent)?;
                Ok(match run.left {
                    0 => Work::Done,
                    _ => Work::Send(Source::Medium(run)),
                })
            }
            Command::Write { extent, durable } => {
                let run = self.writable_run(extent)?;
                Ok(receive(Sink::Medium { run, durable }))
            }
            Command::Verify { extent, compare } => {
                let run = self.run(extent)?;
                Ok(match compare {
                    // The host's storage verifies itself.
                    false => Work::Done,
                    true => receive(Sink::Comparison(run)),
                })
            }
            Command::SynchronizeCache(extent) => {
                self.run(extent)?;
                self.flush().map(|()| Work::Done)
            }
            Command::WriteSame { extent, unmap, no_data } => {
                self.write_same(extent, unmap, no_data)
            }
            Command::Unmap { len } => self.unmap(len),
            // Answered above.
            Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. } => {
                Ok(Work::Done)
            }
        }
    }

    /// Moves the next `count` bytes of `source` into the buffer.
    pub(super) fn send(
        &mut self,
        source: &mut Source,
        buffer: &mut dyn Buffer,
        count: usize,
    ) -> Result<(), CheckCondition> {
        match source {
            Source::Answer { bytes, sent, .. } => {
                let end = sent.saturating_add(count);
                buffer.write(0, bytes.get(*sent..end).unwrap_or_default());
                *sent = end;
                Ok(())
            }
            Source::Medium(run) => {
                let result = self.medium.read(run.offset, buffer, 0..count);
                run.take(count);
                result.map_err(|error| self.medium_failed(Sense::UNRECOVERED_READ_ERROR, &error))
            }
        }
    }

    /// Moves `count` bytes from the buffer into `sink`; with the last of them the command is done.
    pub(super) fn receive(
        &mut self,
        sink: &mut Sink,
        buffer: &mut dyn Buffer,
        count: usize,
    ) -> Result<(), CheckCondition> {
        let done = match sink {
            Sink::Medium { run, durable } => self.write(run, *durable, buffer, count),
            Sink::Comparison(run) => self.compare(run, buffer, count),
            Sink::Parameters { list, left, purpose } => {
                let start = list.len();
                list.resize(start.saturating_add(count), 0);
                buffer.read(0, list.get_mut(start..).unwrap_or_default());
                *left = left.saturating_sub(count as u64);
                match (*left, *purpose) {
                    (0, Purpose::Unmap) => self.unmap_listed(list),
                    (0, Purpose::WriteSame { run, unmap }) => self.repeat(list, run, unmap),
                    _ => Ok(()),
                }
            }
        };
        done.map_err(|sense| self.fail(sense))
    }

    fn medium_failed(&mut self, sense: Sense, error: &io::Error) -> CheckCondition {
        let sense = self.sense_of(sense, error);
        self.fail(sense)
    }

    /// What to tell the guest of an error of the medium, and the log if it is the first.
    fn sense_of(&mut self, sense: Sense, error: &io::Error) -> Sense {
        if !self.reported {
            self.reported = true;
            log::error!(
                "disk {}: {error}; further errors are reported to the guest only",
                self.serial
            );
        }
        if error.kind() == io::ErrorKind::StorageFull {
            Sense::SPACE_ALLOCATION_FAILED
        } else {
            sense
        }
    }

    fn block_size(&self) -> u64 {
        self.medium.block_size().bytes().into()
    }

    fn disk(&self) -> mode::Disk {
        mode::Disk {
            blocks: self.medium.blocks(),
            block_size: self.medium.block_size().bytes(),
            read_only: self.medium.read_only(),
        }
    }

    fn can_discard(&self) -> bool {
        self.medium.can_discard() && !self.medium.read_only()
    }

    fn ready(&self) -> Result<(), Sense> {
        if self.medium.blocks() == 0 {
            Err(Sense::MEDIUM_NOT_PRESENT)
        } else if self.stopped {
            Err(Sense::INITIALIZING_COMMAND_REQUIRED)
        } else {
            Ok(())
        }
    }

    /// The bytes of `extent`.
    fn run(&self, extent: Extent) -> Result<Run, Sense> {
        self.ready()?;
        let end = extent.lba.checked_add(extent.blocks);
        if end.is_none_or(|end| end > self.medium.blocks()) {
            return Err(Sense::LBA_OUT_OF_RANGE);
        }
        let bytes = |blocks: u64| blocks.checked_mul(self.block_size());
        match (bytes(extent.lba), bytes(extent.blocks)) {
            (Some(offset), Some(left)) => Ok(Run { offset, left }),
            _ => Err(Sense::LBA_OUT_OF_RANGE),
        }
    }

    fn writable_run(&self, extent: Extent) -> Result<Run, Sense> {
        let run = self.run(extent)?;
        if self.medium.read_only() {
            return Err(Sense::WRITE_PROTECTED);
        }
        Ok(run)
    }

    fn inquiry(
        &self,
        page: Option<u8>,
        allocation: u64,
        queueing: Queueing,
    ) -> Result<Work, Sense> {
        let bytes = match page {
            None => inquiry::standard(queueing),
            Some(page) => inquiry::vital_product_data(page, &self.serial, self.can_discard())?,
        };
        Ok(answer(bytes, allocation))
    }

    fn start_stop(&mut self, start: bool, flush: bool) -> Result<Work, Sense> {
        if !start && flush {
            self.flush()?;
        }
        self.stopped = !start;
        Ok(Work::Done)
    }

    fn read_capacity_10(&self) -> Result<Work, Sense> {
        self.ready()?;
        let last = self.medium.blocks().saturating_sub(1);
        // All ones send the host to READ CAPACITY (16) (SBC-3, 5.15.2).
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        let mut bytes = last.to_be_bytes().to_vec();
        bytes.extend(self.medium.block_size().bytes().to_be_bytes());
        let allocation = bytes.len() as u64;
        Ok(answer(bytes, allocation))
    }

    fn read_capacity_16(&self, allocation: u64) -> Result<Work, Sense> {
        self.ready()?;
        let last = self.medium.blocks().saturating_sub(1);
        let mut bytes = last.to_be_bytes().to_vec();
        bytes.extend(self.medium.block_size().bytes().to_be_bytes());
        bytes.extend([0, 0]);
        // LBPME and LBPRZ.
        bytes.push(if self.can_discard() { 0xc0 } else { 0 });
        bytes.extend([0; 17]);
        Ok(answer(bytes, allocation))
    }

    fn flush(&mut self) -> Result<(), Sense> {
        let done = self.medium.flush();
        done.map_err(|error| self.sense_of(Sense::WRITE_ERROR, &error))
    }

    fn write(
        &mut self,
        run: &mut Run,
        durable: bool,
        buffer: &mut dyn Buffer,
        count: usize,
    ) -> Result<(), Sense> {
        let done = self.behind.write(&mut *self.medium, run, buffer, count);
        run.take(count);
        done.map_err(|error| self.sense_of(Sense::WRITE_ERROR, &error))?;
        match durable && run.left == 0 {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn compare(
        &mut self,
        run: &mut Run,
        buffer: &mut dyn Buffer,
        count: usize,
    ) -> Result<(), Sense> {
        let mut at = 0;
        while at < count {
            let len = count.saturating_sub(at).min(SCRATCH);
            let (mut theirs, mut ours) = (vec![0; len], vec![0; len]);
            buffer.read(at, &mut theirs);
            let done = self.medium.read(run.offset, &mut ours, 0..len);
            run.take(len);
            done.map_err(|error| self.sense_of(Sense::UNRECOVERED_READ_ERROR, &error))?;
            if theirs != ours {
                return Err(Sense::MISCOMPARE);
            }
            at = at.saturating_add(len);
        }
        Ok(())
    }

    fn write_same(&mut self, extent: Extent, unmap: bool, no_data: bool) -> Result<Work, Sense> {
        // A length of 0, to the end of the medium, is not supported: WSNZ in the block limits.
        if !(1..=MAX_WRITE_SAME_BLOCKS).contains(&extent.blocks) || unmap && !self.can_discard() {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        let run = self.writable_run(extent)?;
        let block = self.block_size();
        if no_data {
            self.repeat(&vec![0; block as usize], run, unmap)?;
            return Ok(Work::Done);
        }
        Ok(receive(Sink::Parameters {
            list: Vec::new(),
            left: block,
            purpose: Purpose::WriteSame { run, unmap },
        }))
    }

    /// Writes `block` all over `run`, or unmaps it if that reads the same.
    fn repeat(&mut self, block: &[u8], mut run: Run, unmap: bool) -> Result<(), Sense> {
        if unmap && block.iter().all(|byte| *byte == 0) {
            match self.medium.discard(run.offset, run.left) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                done => {
                    return done.map_err(|error| self.sense_of(Sense::WRITE_ERROR, &error));
                }
            }
        }
        let copies = SCRATCH.checked_div(block.len()).unwrap_or(0).max(1);
        let mut buffer = block.repeat(copies);
        while run.left != 0 {
            let count = buffer.len().min(usize::try_from(run.left).unwrap_or(SCRATCH));
            self.write(&mut run, false, &mut buffer, count)?;
        }
        Ok(())
    }

    fn unmap(&mut self, len: u64) -> Result<Work, Sense> {
        if !self.medium.can_discard() {
            return Err(Sense::INVALID_COMMAND);
        }
        self.ready()?;
        if self.medium.read_only() {
            return Err(Sense::WRITE_PROTECTED);
        }
        Ok(match len {
            0 => Work::Done,
            1..8 => return Err(Sense::PARAMETER_LIST_LENGTH_ERROR),
            _ => receive(Sink::Parameters { list: Vec::new(), left: len, purpose: Purpose::Unmap }),
        })
    }

    /// Unmaps what an UNMAP parameter list names (SBC-3, 5.28.2), once all of it was found good.
    fn unmap_listed(&mut self, list: &[u8]) -> Result<(), Sense> {
        // Both lengths of the header are for hosts whose list is shorter than its transfer.
        let described = list.get(2..4).map_or(0, be) as usize;
        let descriptors = list.get(8..).unwrap_or_default();
        let descriptors = descriptors.get(..described).unwrap_or(descriptors);
        let extents: Vec<_> = descriptors
            .chunks_exact(16)
            .map(|descriptor| Extent {
                lba: descriptor.get(..8).map_or(0, be),
                blocks: descriptor.get(8..12).map_or(0, be),
            })
            .collect();
        let total = extents.iter().fold(0u64, |sum, extent| sum.saturating_add(extent.blocks));
        if extents.len() > MAX_UNMAP_DESCRIPTORS || total > MAX_UNMAP_BLOCKS {
            return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
        }
        let runs: Vec<_> =
            extents.into_iter().map(|extent| self.run(extent)).collect::<Result<_, _>>()?;
        for run in runs.into_iter().filter(|run| run.left != 0) {
            match self.medium.discard(run.offset, run.left) {
                // Unmapping is a hint: the blocks may as well stay mapped.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                done => done.map_err(|error| self.sense_of(Sense::WRITE_ERROR, &error))?,
            }
        }
        Ok(())
    }
}

/// Big-endian number.
fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// `bytes`, as many as the host allocated room for.
fn answer(mut bytes: Vec<u8>, allocation: u64) -> Work {
    bytes.truncate(usize::try_from(allocation).unwrap_or(usize::MAX));
    match bytes.len() as u64 {
        0 => Work::Done,
        len => Work::Send(Source::Answer { bytes, sent: 0, short: len < allocation }),
    }
}

fn receive(sink: Sink) -> Work {
    match sink.left() {
        0 => Work::Done,
        _ => Work::Receive(sink),
    }
}

/// REPORT LUNS (SPC-4, 6.33): logical unit 0, or no well known logical units.
fn report_luns(select: u8, allocation: u64) -> Result<Work, Sense> {
    let units = match select {
        0 | 2 => 1,
        1 => 0,
        _ => return Err(Sense::INVALID_FIELD_IN_CDB),
    };
    let mut bytes = vec![0, 0, 0, units << 3, 0, 0, 0, 0];
    bytes.extend([0; 8].iter().take(usize::from(units << 3)));
    Ok(answer(bytes, allocation))
}
