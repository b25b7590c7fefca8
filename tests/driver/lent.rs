//! Guest memory that a driver has handed to its controller. Everything else is the guest's own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pieces that are lent now. Clones are the same account.
#[derive(Clone, Debug, Default)]
pub struct Lent(Arc<Mutex<BTreeMap<u32, u32>>>);

impl Lent {
    fn pieces(&self) -> MutexGuard<'_, BTreeMap<u32, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the controller may write there.
    pub fn lend(&self, start: u32, len: u32) {
        if len != 0 {
            self.pieces().insert(start, len);
        }
    }

    /// The piece that begins at `start` is the guest's again.
    pub fn take_back(&self, start: u32) {
        self.pieces().remove(&start);
    }

    /// The controller was reset: it has forgotten everything it knew.
    pub fn take_all_back(&self) {
        self.pieces().clear();
    }

    /// Whether all of a range is lent, in one piece or in neighbouring ones.
    pub fn covers(&self, start: u64, len: usize) -> bool {
        let pieces = self.pieces();
        let (mut at, end) = (start, start + len as u64);
        while at < end {
            let before = u32::try_from(at).ok().and_then(|at| pieces.range(..=at).next_back());
            match before.map(|(start, len)| u64::from(*start) + u64::from(*len)) {
                Some(piece_end) if piece_end > at => at = piece_end,
                _ => return false,
            }
        }
        true
    }
}
