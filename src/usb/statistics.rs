//! What an embedder can count on a device.

use super::{EndpointAddress, Histogram, Outcome, Pid, Speed, Status, TransferType};

/// What happened at one endpoint since its device was plugged in, whichever controller carried it.
///
/// A *transfer* is what one TD, qTD or iTD slot asks for. A driver's request may be several of them: a
/// control transfer is two or three, a large bulk transfer one for every few KiB. Behind a transaction
/// translator, and with [`Pacing::Wire`](crate::ohci::Pacing::Wire), a transfer is one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointStatistics {
    /// Which endpoint.
    pub endpoint: EndpointAddress,
    /// Its type, in the settings that last had it.
    pub transfer_type: TransferType,
    /// Transfers that ended well, or of which the device took a part.
    pub transfers: u64,
    /// Bytes moved, those of transfers that failed half-way too.
    pub bytes: u64,
    /// Times the device had nothing to say or no room, whether the controller asks again by itself or
    /// parks the endpoint until the device announces something.
    pub naks: u64,
    /// Times the device began with a transfer and was to announce its end.
    pub pending: u64,
    /// STALLs: requests refused, and transfers that met a halted endpoint.
    pub stalls: u64,
    /// Errors on the bus: no answer, babble, a lost toggle, an injected fault.
    pub errors: u64,
    /// How long the device had each transfer that ended, in whichever way: from the offer with which
    /// it began until the end. Offers that were NAKed do not count, as the device had not begun.
    ///
    /// Work that a device does within a call takes no time on the call's own clock; an
    /// [`Observer`](super::Observer) with a clock measures it.
    pub latency: Histogram,
}

impl EndpointStatistics {
    pub(super) fn new(endpoint: EndpointAddress, transfer_type: TransferType) -> Self {
        Self {
            endpoint,
            transfer_type,
            transfers: 0,
            bytes: 0,
            naks: 0,
            pending: 0,
            stalls: 0,
            errors: 0,
            latency: Histogram::default(),
        }
    }

    /// Counts an answer to an offer of `asked` bytes. Returns whether the transfer ended.
    pub(super) fn count(&mut self, pid: Pid, asked: usize, outcome: &Outcome) -> bool {
        self.bytes = self.bytes.wrapping_add(outcome.bytes as u64);
        let counter = match outcome.status {
            // The device took nothing, which is what NAK says.
            Status::Complete if pid == Pid::Out && outcome.bytes == 0 && asked != 0 => {
                &mut self.naks
            }
            Status::Complete => &mut self.transfers,
            Status::Nak(_) => &mut self.naks,
            Status::Pending => &mut self.pending,
            Status::Stall => &mut self.stalls,
            Status::Error(_) => &mut self.errors,
        };
        *counter = counter.wrapping_add(1);
        !matches!(outcome.status, Status::Nak(_) | Status::Pending)
    }
}

/// A device as it is now, and what happened at its endpoints since it was plugged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// Its product string.
    pub name: String,
    /// Its address; 0 if it has none.
    pub address: u8,
    /// The speed it signals at.
    pub speed: Speed,
    /// Value of its configuration; 0 if it is not configured.
    pub configuration: u8,
    /// The control endpoint, and every endpoint that some selected setting had.
    pub endpoints: Vec<EndpointStatistics>,
}
