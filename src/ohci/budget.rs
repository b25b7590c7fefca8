//! What one frame may cost.

use super::frame::Pacing;

/// Most TDs that are tried in one frame. The wire has time for about 120 packets; this is far more
/// than any driver queues for a millisecond, and bounds what a loop of TDs can cost.
const TRANSACTIONS: u32 = 1024;
/// Most bytes offered in one frame: 1 GB/s, beyond any device here.
const BYTES: u32 = 1 << 20;
/// Most isochronous TDs that are retired late in one frame. A loop of them never ends; what is left
/// is late in the next frame too.
const LATE_TDS: u32 = 256;

/// Bytes that a frame of 12,000 bit times carries (USB 1.1, 5.3.3).
const WIRE_BYTES: u32 = 1500;
/// Bytes that each packet costs besides its data: token, handshake, gaps (USB 1.1, 5.8.4: 13 for bulk,
/// 9 without the handshake).
const WIRE_OVERHEAD: u32 = 13;
/// Low speed takes eight times as long.
const WIRE_LOW_SPEED: u32 = 8;

/// What a frame may still cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    transactions: u32,
    bytes: u32,
    late: u32,
    /// Room on the wire in bytes, if it counts.
    wire: Option<u32>,
}

impl Budget {
    pub(super) fn new(pacing: Pacing) -> Self {
        let wire = (pacing == Pacing::Wire).then_some(WIRE_BYTES);
        Self { transactions: TRANSACTIONS, bytes: BYTES, late: LATE_TDS, wire }
    }

    /// Whether the wire's own limits count, and so does every packet.
    pub(super) fn is_wire(&self) -> bool {
        self.wire.is_some()
    }

    /// Time has passed: of what the wire carries in a frame, so much is still to come.
    pub(super) fn limit_to(&mut self, thousandths: u32) {
        if let Some(left) = &mut self.wire {
            *left = (*left).min(WIRE_BYTES.saturating_mul(thousandths).div_ceil(1000));
        }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.transactions == 0 || self.bytes == 0
    }

    /// Whether the wire has room for a packet. If it has not, the frame is over: smaller packets do
    /// not overtake.
    pub(super) fn has_room(&mut self, bytes: u32, low_speed: bool) -> bool {
        let Some(left) = &mut self.wire else { return true };
        let fits = cost(bytes, low_speed) <= *left;
        if !fits {
            *left = 0;
        }
        fits
    }

    /// A transaction of `bytes` takes place.
    pub(super) fn spend(&mut self, bytes: u32, low_speed: bool) {
        self.transactions = self.transactions.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.wire = self.wire.map(|left| left.saturating_sub(cost(bytes, low_speed)));
    }

    /// Takes one late isochronous TD from the budget; false if there is none left.
    pub(super) fn spend_late(&mut self) -> bool {
        let left = self.late.checked_sub(1);
        self.late = left.unwrap_or(0);
        left.is_some()
    }
}

fn cost(bytes: u32, low_speed: bool) -> u32 {
    let bytes = bytes.saturating_add(WIRE_OVERHEAD);
    if low_speed { bytes.saturating_mul(WIRE_LOW_SPEED) } else { bytes }
}
