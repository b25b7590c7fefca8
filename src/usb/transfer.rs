//! One unit of work between a host controller and an endpoint, and how it went.

use serde::{Deserialize, Serialize};

use super::{Buffer, Toggle};
use crate::time::Time;

/// Token packet identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pid {
    /// Host to device.
    Out,
    /// Device to host.
    In,
    /// Start of a control transfer.
    Setup,
}

/// A run of transactions with one endpoint: what one TD or qTD asks for, not one packet.
///
/// The packet rules hold all the same: `max_packet` divides the buffer into packets, the first of
/// which carries `toggle`.
pub struct Transfer<'a> {
    /// The token.
    pub pid: Pid,
    /// Endpoint number, 0 to 15.
    pub endpoint: u8,
    /// Largest data packet in bytes, as the host believes.
    pub max_packet: u16,
    /// Toggle of the first packet; without meaning for isochronous endpoints.
    pub toggle: Toggle,
    /// When the transfer is offered.
    pub now: Time,
    /// Bytes to send, or room for bytes to receive.
    pub buffer: &'a mut dyn Buffer,
}

impl std::fmt::Debug for Transfer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("pid", &self.pid)
            .field("endpoint", &self.endpoint)
            .field("max_packet", &self.max_packet)
            .field("toggle", &self.toggle)
            .field("len", &self.buffer.len())
            .finish()
    }
}

impl Transfer<'_> {
    /// How many of `available` bytes an IN transfer takes, or that the device babbles.
    ///
    /// A device sends whole packets. If the host's buffer ends inside one, the device sends more than
    /// was asked for (USB 2.0, 8.7.4).
    ///
    /// # Errors
    /// The [`Outcome`] to return: [`BusError::Babble`] after the packets that fit.
    pub fn room_for(&self, available: usize) -> Result<usize, Outcome> {
        let len = self.buffer.len();
        if available <= len {
            return Ok(available);
        }
        let packet = usize::from(self.max_packet).max(1);
        match len.checked_rem(packet).unwrap_or(0) {
            0 => Ok(len),
            tail => Err(Outcome::failed(len.saturating_sub(tail), BusError::Babble)),
        }
    }

    /// Answers an IN transfer with `bytes`, of which it takes as many as it asked for.
    pub fn send(&mut self, bytes: &[u8]) -> Outcome {
        match self.room_for(bytes.len()) {
            Ok(count) => {
                let sent = self.buffer.write(0, bytes.get(..count).unwrap_or(bytes));
                Outcome::complete(sent)
            }
            Err(babble) => {
                self.buffer.write(0, bytes.get(..babble.bytes).unwrap_or_default());
                babble
            }
        }
    }

    /// Answers an IN transfer with `bytes`, which are one packet: a host without room for all of it does
    /// not acknowledge it.
    pub(crate) fn send_whole(&mut self, bytes: &[u8]) -> Outcome {
        if self.buffer.len() < bytes.len() {
            return Outcome::failed(0, BusError::Babble);
        }
        self.send(bytes)
    }
}

/// Whether the host must keep asking an endpoint that had nothing to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Readiness {
    /// The device does not know; ask again.
    Poll,
    /// The device will call [`Notifier::ready`](super::Notifier::ready); until then asking again is
    /// pointless and the controller parks the endpoint.
    Announced,
}

/// Errors on the bus (USB 2.0, 8.7; OHCI 1.0a table 4-7; EHCI table 3-16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BusError {
    /// Nobody answered: no device, no such endpoint, or the answer was lost.
    Timeout,
    /// A data packet failed its CRC.
    Crc,
    /// Bit stuffing violation.
    BitStuffing,
    /// A packet identifier failed its check bits.
    PidCheck,
    /// A packet identifier that has no place here.
    UnexpectedPid,
    /// An IN data packet carried the toggle of the one before it; its bytes are not in the buffer.
    ToggleMismatch,
    /// The device sent more than was asked for.
    Babble,
    /// The host's memory was too slow: an IN packet was dropped without an acknowledgement, or an OUT
    /// packet was broken off. The device is not to blame, and saw nothing that counts.
    HostBuffer,
}

/// How a transfer ended, after `Outcome::bytes` good bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// IN: the buffer is full, or the last packet was short. OUT: the bytes were taken (the rest, if
    /// any, is to be offered again).
    Complete,
    /// The device is busy or has nothing to say.
    Nak(Readiness),
    /// The device has begun and will say [`Notifier::ready`](super::Notifier::ready) when it has the
    /// outcome; the controller then offers the transfer again. Nothing of the buffer is used
    /// meanwhile. A controller that does not offer it again calls
    /// [`Function::cancel`](super::Function::cancel).
    Pending,
    /// The endpoint is halted, or the request is not supported.
    Stall,
    /// The transaction after the good bytes failed.
    Error(BusError),
}

/// What became of a [`Transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// Bytes moved and acknowledged. A whole number of packets unless the status is
    /// [`Status::Complete`].
    pub bytes: usize,
    /// How it ended.
    pub status: Status,
}

impl Outcome {
    /// Everything went well; for IN, fewer bytes than asked for mean that the last packet was short.
    pub const fn complete(bytes: usize) -> Self {
        Self { bytes, status: Status::Complete }
    }

    /// Nothing to say, and the host has to ask again.
    pub const NAK: Self = Self { bytes: 0, status: Status::Nak(Readiness::Poll) };

    /// Nothing to say; the device will announce when it has.
    pub const PARK: Self = Self { bytes: 0, status: Status::Nak(Readiness::Announced) };

    /// Work has begun.
    pub const PENDING: Self = Self { bytes: 0, status: Status::Pending };

    /// STALL handshake.
    pub const STALL: Self = Self { bytes: 0, status: Status::Stall };

    /// Nobody answered.
    pub const TIMEOUT: Self = Self { bytes: 0, status: Status::Error(BusError::Timeout) };

    /// An error after `bytes` good bytes.
    pub const fn failed(bytes: usize, error: BusError) -> Self {
        Self { bytes, status: Status::Error(error) }
    }

    /// How many data packets of at most `max_packet` bytes were acknowledged, given what the
    /// transfer asked for: the number of times its toggle flipped.
    ///
    /// A complete IN transfer shorter than `asked` ended with a short packet, which is a zero-length
    /// one if the bytes end at a packet's end; so did a complete transfer of no bytes.
    pub fn packets(&self, pid: Pid, asked: usize, max_packet: u16) -> usize {
        let packet = usize::from(max_packet).max(1);
        let whole = self.bytes.checked_div(packet).unwrap_or(0);
        let tail = self.bytes.checked_rem(packet).unwrap_or(0);
        let zero_length = self.status == Status::Complete
            && tail == 0
            && (asked == 0 || (pid == Pid::In && self.bytes < asked));
        whole.saturating_add(usize::from(tail != 0 || zero_length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_flips_its_toggle_once_a_packet() {
        let packets = |pid, bytes, asked| Outcome::complete(bytes).packets(pid, asked, 64);
        assert_eq!(packets(Pid::In, 0, 0), 1, "a status stage");
        assert_eq!(packets(Pid::In, 0, 512), 1, "a zero-length answer");
        assert_eq!(packets(Pid::In, 128, 128), 2, "exactly filled");
        assert_eq!(packets(Pid::In, 128, 512), 3, "ended by a zero-length packet");
        assert_eq!(packets(Pid::In, 130, 512), 3, "ended by a short packet");
        assert_eq!(packets(Pid::Out, 130, 130), 3);
        assert_eq!(packets(Pid::Out, 128, 512), 2, "the rest is offered again");
        assert_eq!(Outcome::NAK.packets(Pid::In, 512, 64), 0);
        assert_eq!(Outcome::failed(64, BusError::Crc).packets(Pid::In, 512, 64), 1);
    }

    #[test]
    fn a_device_with_more_than_the_last_packet_holds_babbles() {
        let mut room = vec![0; 100];
        let mut transfer = Transfer {
            pid: Pid::In,
            endpoint: 1,
            max_packet: 64,
            toggle: Toggle::Data0,
            now: Time::ZERO,
            buffer: &mut room,
        };
        assert_eq!(transfer.send(&[7; 200]), Outcome::failed(64, BusError::Babble));
        assert_eq!(transfer.send(&[7; 99]), Outcome::complete(99));
        assert_eq!(room[63..65], [7, 7]);
    }
}
