//! A look at every transfer, for captures and measurements.

use super::{Buffer, EndpointAddress, Outcome, Pid, Speed, TransferType};
use crate::time::Time;

/// Watches the transfers of the devices in one port; see
/// [`Port::set_observer`](crate::topology::Port::set_observer).
///
/// It is called on the thread that drives the controller, in the middle of a transfer, with the port's
/// lock held: it must return soon, and must not call into the port.
///
/// A transfer that is NAKed or pending is offered again, so one transfer may be offered many times. The
/// host may give up one that was NAKed without a word; one that is pending it cancels.
pub trait Observer: Send + Sync {
    /// The time, on the clock of the calls. An observer without a clock returns `call`, the time that
    /// the controller was told; one with a clock lets statistics see what happens within a call.
    fn now(&self, call: Time) -> Time {
        call
    }

    /// A transfer is offered to the device. The buffer of an OUT or SETUP transfer holds its bytes.
    fn offered(&self, sight: &Sight<'_>) {
        let _ = sight;
    }

    /// The device has answered. The buffer of an IN transfer holds the bytes that `outcome` tells of.
    fn answered(&self, sight: &Sight<'_>, outcome: &Outcome) {
        let _ = (sight, outcome);
    }

    /// The host gave up what `endpoint` of the device at `address` had pending.
    fn cancelled(&self, address: u8, endpoint: EndpointAddress) {
        let _ = (address, endpoint);
    }
}

/// A transfer that an [`Observer`] sees.
#[derive(Clone, Copy)]
pub struct Sight<'a> {
    /// When, by the observer's own clock if it has one.
    pub time: Time,
    /// The device's address. The device answers SET_ADDRESS at its old one.
    pub address: u8,
    /// The speed it signals at.
    pub speed: Speed,
    /// The token.
    pub pid: Pid,
    /// The endpoint; [`EndpointAddress::CONTROL`] whatever the token.
    pub endpoint: EndpointAddress,
    /// The endpoint's type; `None` if no setting of the device had such an endpoint so far.
    pub transfer_type: Option<TransferType>,
    /// Bytes to send, or room for bytes to receive.
    pub buffer: &'a dyn Buffer,
}

impl std::fmt::Debug for Sight<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sight")
            .field("time", &self.time)
            .field("address", &self.address)
            .field("pid", &self.pid)
            .field("endpoint", &self.endpoint)
            .field("len", &self.buffer.len())
            .finish_non_exhaustive()
    }
}
