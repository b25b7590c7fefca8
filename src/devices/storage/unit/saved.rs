//! The logical unit in a snapshot. What is on the medium is no part of it.

use serde::{Deserialize, Serialize};

use super::write_behind::{MOST_BEHIND, WriteBehind};
use super::{Purpose, Run, Sink, Source, Unit};
use crate::devices::storage::inquiry::MAX_WRITE_SAME_BLOCKS;
use crate::devices::storage::sense::Sense;
use crate::snapshot::RestoreError;

/// Most bytes of an UNMAP parameter list: its length is 16 bits (SBC-3, 5.28.1).
const MOST_PARAMETERS: u64 = 0xffff;

/// A [`Unit`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct UnitState {
    blocks: u64,
    block_size: u64,
    read_only: bool,
    sense: Sense,
    attention: Option<Sense>,
    stopped: bool,
    /// Bytes that were received and are not on the medium.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "hex::serde")]
    behind: Vec<u8>,
}

impl Unit {
    pub(in super::super) fn save(&self) -> UnitState {
        let Self {
            medium,
            // Part of the device's description.
            serial: _,
            sense,
            attention,
            stopped,
            behind,
            // The log of this process.
            reported: _,
        } = self;
        UnitState {
            blocks: medium.blocks(),
            block_size: self.block_size(),
            read_only: medium.read_only(),
            sense: *sense,
            attention: *attention,
            stopped: *stopped,
            behind: behind.bytes.clone(),
        }
    }

    pub(in super::super) fn restore(&mut self, state: &UnitState) -> Result<(), RestoreError> {
        let UnitState { blocks, block_size, read_only, sense, attention, stopped, behind } = state;
        let medium = |blocks, block_size, read_only| {
            let kind = if read_only { "read-only" } else { "writable" };
            format!("a {kind} medium of {blocks} blocks of {block_size} bytes")
        };
        let present = medium(self.medium.blocks(), self.block_size(), self.medium.read_only());
        RestoreError::same(medium(*blocks, *block_size, *read_only), present)?;
        self.sense = *sense;
        self.attention = *attention;
        self.stopped = *stopped;
        RestoreError::check(behind.len() <= MOST_BEHIND, "no disk keeps so many bytes back")?;
        self.behind = WriteBehind { bytes: behind.clone() };
        Ok(())
    }

    /// Whether `source` is one that a command can have led to.
    pub(in super::super) fn can_send(&self, source: &Source) -> bool {
        match source {
            Source::Answer { bytes, sent, .. } => *sent < bytes.len(),
            Source::Medium(run) => self.has(run),
        }
    }

    /// Whether `sink` is one that a command can have led to.
    pub(in super::super) fn can_receive(&self, sink: &Sink) -> bool {
        match sink {
            Sink::Comparison(run) => self.has(run),
            Sink::Medium { run, .. } => self.has(run) && !self.medium.read_only(),
            Sink::Parameters { list, left, purpose } => {
                let len = left.checked_add(list.len() as u64);
                *left != 0
                    && !self.medium.read_only()
                    && match purpose {
                        Purpose::Unmap => len.is_some_and(|len| len <= MOST_PARAMETERS),
                        Purpose::WriteSame { run, .. } => {
                            let most = MAX_WRITE_SAME_BLOCKS.saturating_mul(self.block_size());
                            len == Some(self.block_size()) && self.has(run) && run.left <= most
                        }
                    }
            }
        }
    }

    /// Whether a run was checked to be on the medium.
    fn has(&self, run: &Run) -> bool {
        let size = self.medium.blocks().checked_mul(self.block_size());
        let end = run.offset.checked_add(run.left);
        run.left != 0 && size.zip(end).is_some_and(|(size, end)| end <= size)
    }
}
