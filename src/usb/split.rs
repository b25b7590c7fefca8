//! Split transactions: how a high-speed host speaks with full- and low-speed devices behind a
//! high-speed hub (USB 2.0, 8.4.2 and 11.14 to 11.22).
//!
//! The host hands the hub's transaction translator (TT) a *start-split*, goes about other things, and
//! asks for the result with *complete-splits*. The TT carries out the transaction on the slow bus
//! behind the port meanwhile.

use serde::{Deserialize, Serialize};

use super::{Pid, Readiness, Toggle, TransferType};
use crate::time::Time;

/// What both tokens of a split transaction say: SPLIT, then IN, OUT or SETUP (USB 2.0, 8.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitToken {
    /// Address of the hub.
    pub hub: u8,
    /// The hub's port, from 1, behind which the device is. A hub with one TT ignores it for routing.
    pub port: u8,
    /// S of control, bulk and interrupt splits: the device is a low-speed one.
    pub low_speed: bool,
    /// ET, the transfer type.
    pub transfer_type: TransferType,
    /// The token for the device.
    pub pid: Pid,
    /// Address of the device.
    pub device: u8,
    /// Endpoint number, 0 to 15.
    pub endpoint: u8,
}

/// S and E of an isochronous OUT start-split: which part of the packet it carries (USB 2.0, 8.4.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SplitPosition {
    /// S, E = 0, 0.
    Middle,
    /// S, E = 0, 1.
    End,
    /// S, E = 1, 0.
    Begin,
    /// S, E = 1, 1: the whole packet.
    #[default]
    All,
}

/// A start-split.
#[derive(Clone, Copy, Debug)]
pub struct StartSplit<'a> {
    /// Whom it is for.
    pub token: SplitToken,
    /// The part of the packet in `data`; [`SplitPosition::All`] unless isochronous OUT.
    pub position: SplitPosition,
    /// OUT, SETUP: of the data packet. IN: what the host expects, as in
    /// [`Transfer::toggle`](super::Transfer::toggle). Without meaning for isochronous endpoints.
    pub toggle: Toggle,
    /// The data packet of OUT and SETUP, up to 188 bytes of an isochronous one; empty for IN.
    pub data: &'a [u8],
    /// What time it is.
    pub now: Time,
    /// The host's microframe, in a count that never wraps; the low three bits are `FRINDEX[2:0]`.
    pub microframe: u64,
}

/// The handshake of a start-split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartAnswer {
    /// The TT has a buffer for it (control and bulk).
    Ack,
    /// The TT's buffers are taken (control and bulk): try again later.
    Nak,
    /// No handshake: always for interrupt and isochronous start-splits (USB 2.0, 11.20 and 11.21),
    /// otherwise because no TT listens.
    Silence,
}

/// A complete-split.
#[derive(Clone, Copy, Debug)]
pub struct CompleteSplit {
    /// Whom it is for: what the start-split said.
    pub token: SplitToken,
    /// What time it is.
    pub now: Time,
    /// The host's microframe, as in [`StartSplit::microframe`].
    pub microframe: u64,
}

/// The answer to a complete-split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompleteAnswer {
    /// There is no result yet.
    Nyet,
    /// The device took the data of the start-split.
    Ack,
    /// The device has nothing to say. If it announces readiness there is no point in another
    /// start-split before that. It may have begun with the transfer, as with
    /// [`Status::Pending`](super::Status::Pending): a host that gives it up calls
    /// [`Function::cancel_at`](super::Function::cancel_at).
    Nak(Readiness),
    /// The device's endpoint is halted. A control or bulk transaction that failed three times on the
    /// slow bus shows as this too (USB 2.0, 11.17.1).
    Stall,
    /// Data, appended to the buffer given.
    Data {
        /// DATA0 or DATA1: the packet is complete. Otherwise MDATA: more of it comes with the next
        /// complete-split.
        last: bool,
    },
    /// The device's data packet had the toggle of the one before: the packet is lost, the endpoint
    /// works on.
    ToggleMismatch,
    /// The transaction failed on the slow bus (interrupt and isochronous).
    Err,
    /// No TT listens.
    Silence,
}
