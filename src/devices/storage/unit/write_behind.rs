//! Pieces of a write put together for the medium.
//!
//! Drivers cut their buffers at pages, and controllers hand each piece over by itself. Where writing costs
//! much more a call than it costs a byte, as it does in a file system, many pieces take one call.

use std::io;

use super::Run;
use crate::devices::storage::Medium;
use crate::usb::Buffer;

/// Most bytes that are put together, whatever the medium likes.
pub(super) const MOST_BEHIND: usize = 1 << 20;

/// Bytes of the present command that were received and are not on the medium yet: those just before
/// what is left of its run.
#[derive(Debug, Default)]
pub(super) struct WriteBehind {
    pub(super) bytes: Vec<u8>,
}

impl WriteBehind {
    /// Drops what is there: its command has ended without success.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Takes the next `count` bytes of `run` from the buffer. With the last of them all are on the medium.
    pub(super) fn write(
        &mut self,
        medium: &mut dyn Medium,
        run: &Run,
        buffer: &mut dyn Buffer,
        count: usize,
    ) -> io::Result<()> {
        let last = count as u64 >= run.left;
        let batch = medium.write_batch().min(MOST_BEHIND);
        let start = self.bytes.len();
        if start == 0 && (last || count >= batch) {
            return medium.write(run.offset, buffer, 0..count);
        }
        let end = start.saturating_add(count);
        self.bytes.resize(end, 0);
        buffer.read(0, self.bytes.get_mut(start..).unwrap_or_default());
        if !last && end < batch {
            return Ok(());
        }
        let written = match run.offset.checked_sub(start as u64) {
            Some(offset) => medium.write(offset, &mut self.bytes, 0..end),
            None => Err(io::ErrorKind::InvalidData.into()),
        };
        self.clear();
        written
    }
}
