//! A printer: USB printer class, bidirectional interface (class 7, subclass 1, protocol 2).
//!
//! What a host sends on Bulk-Out goes, byte for byte, to a [`PrintSink`] of the embedder's. Bulk-In
//! answers status requests and is silent otherwise, so a host may leave a read pending for as long as
//! it likes at no cost.
//!
//! What it implements: the class requests GET_DEVICE_ID, GET_PORT_STATUS and SOFT_RESET (USB printer
//! class 1.1, 4.2), and back-pressure: a sink without room makes the host wait, packet by packet.
//!
//! What it does not: a page description language (the sink decides what the bytes mean), IPP over USB,
//! the IEEE 1284.4 packet protocol.
//!
//! # Status while printing
//! Laser printers are asked for their status between the pieces of a page. This one takes a packet
//! of exactly the six bytes [`STATUS_REQUEST`] for a question and queues a [`StatusReply`] of six
//! bytes on Bulk-In, in its turn: the reply counts the bytes that came before the question. Up to
//! [`REPLIES`] unread replies are kept; the next question waits until the host has read one.

mod sink;
mod status;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

pub use sink::{Discard, Paper, PrintSink, Ready};
pub use status::{STATUS_REQUEST, StatusReply};

use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::{
    Configuration, Control, Description, Direction, Endpoint, EndpointAddress, Interface, Notifier,
    Outcome, Recipient, RequestType, SetupPacket, Speeds, Transfer, UsbDevice,
};

/// Bulk-Out.
const OUT: EndpointAddress = EndpointAddress::out(1);
/// Bulk-In.
const IN: EndpointAddress = EndpointAddress::r#in(2);
/// Printer class, printers, bidirectional.
const CLASS: [u8; 3] = [0x07, 0x01, 0x02];
/// IEEE 1284 device ID: what drivers and spoolers choose by.
const DEVICE_ID: &str = "MFG:vm-usb;MDL:Printer;CLS:PRINTER;CMD:RAW;DES:vm-usb Printer;";

/// Unread status replies that are kept: more than any host asks for ahead, and a bound on what one
/// that never reads can make us hold.
pub const REPLIES: usize = 16;

/// Bytes copied at a time on their way to the sink.
const PIECE: usize = 4096;

/// Class requests (USB printer class 1.1, 4.2).
mod class_request {
    pub(super) const GET_DEVICE_ID: u8 = 0;
    pub(super) const GET_PORT_STATUS: u8 = 1;
    pub(super) const SOFT_RESET: u8 = 2;
}

/// A printer.
pub struct Printer {
    description: Description,
    sink: Box<dyn PrintSink>,
    /// Bytes that the sink was given since the last reset; wraps.
    printed: u32,
    /// Status requests since the last reset; wraps.
    asked: u8,
    replies: VecDeque<StatusReply>,
    notifier: Option<Notifier>,
    /// The host was told that Bulk-In would announce its data.
    in_parked: bool,
    /// The host was told that Bulk-Out would announce its room.
    out_parked: bool,
}

/// Name of the form in a snapshot.
const KIND: &str = "printer";

/// A [`Printer`] in a snapshot. What was printed is with the sink.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrinterState {
    printed: u32,
    asked: u8,
    replies: VecDeque<StatusReply>,
}

impl std::fmt::Debug for Printer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printer")
            .field("printed", &self.printed)
            .field("replies", &self.replies.len())
            .finish_non_exhaustive()
    }
}

impl Printer {
    /// A printer for high and full speed that gives what it is sent to `sink`.
    pub fn new(sink: impl PrintSink + 'static) -> Self {
        let speeds = Speeds::High { high: vec![configuration(512)], full: vec![configuration(64)] };
        Self::with_speeds(Box::new(sink), speeds)
    }

    /// The same as a USB 1.1 printer: full speed only.
    pub fn full_speed(sink: impl PrintSink + 'static) -> Self {
        Self::with_speeds(Box::new(sink), Speeds::Full(vec![configuration(64)]))
    }

    fn with_speeds(sink: Box<dyn PrintSink>, speeds: Speeds) -> Self {
        Self {
            description: Description {
                // A test identity that no driver has quirks for.
                vendor: 0x1209,
                product: 0x0002,
                release: 0x0100,
                class: [0, 0, 0],
                control_packet: 64,
                manufacturer: "vm-usb".into(),
                name: "Printer".into(),
                serial: String::new(),
                speeds,
            },
            sink,
            printed: 0,
            asked: 0,
            replies: VecDeque::new(),
            notifier: None,
            in_parked: false,
            out_parked: false,
        }
    }

    /// Forgets what the host has not read and starts counting again (USB printer class 1.1, 4.2.3).
    fn reset(&mut self) {
        self.replies.clear();
        self.printed = 0;
        self.asked = 0;
        self.sink.reset();
    }

    fn announce(&mut self, endpoint: EndpointAddress) {
        let parked = if endpoint.is_in() { &mut self.in_parked } else { &mut self.out_parked };
        if std::mem::take(parked)
            && let Some(notifier) = &self.notifier
        {
            notifier.ready(endpoint);
        }
    }

    /// Print data with perhaps a question as its last packet.
    fn bulk_out(&mut self, transfer: &Transfer<'_>) -> Outcome {
        let len = transfer.buffer.len();
        let question = is_question(transfer);
        let data = if question { len.saturating_sub(STATUS_REQUEST.len()) } else { len };
        let taken = self.print(transfer, data);
        if taken < data {
            return self.busy_after(taken);
        }
        if question {
            if self.replies.len() >= REPLIES {
                return self.busy_after(taken);
            }
            self.asked = self.asked.wrapping_add(1);
            self.replies.push_back(StatusReply {
                paper: self.sink.paper(),
                sequence: self.asked,
                printed: self.printed,
            });
            self.announce(IN);
        }
        Outcome::complete(len)
    }

    /// The first `bytes` are acknowledged; the rest is to be offered again when there is room.
    fn busy_after(&mut self, bytes: usize) -> Outcome {
        if bytes != 0 {
            return Outcome::complete(bytes);
        }
        self.out_parked = true;
        Outcome::PARK
    }

    /// Gives the sink the first `len` bytes, or as many whole packets of them as it has room for.
    fn print(&mut self, transfer: &Transfer<'_>, len: usize) -> usize {
        let packet = usize::from(transfer.max_packet).max(1);
        let room = self.sink.room();
        let count = if room >= len {
            len
        } else {
            room.saturating_sub(room.checked_rem(packet).unwrap_or(0))
        };
        let mut piece = [0; PIECE];
        let mut at = 0;
        while at < count {
            let want = count.saturating_sub(at).min(PIECE);
            let got = transfer.buffer.read(at, piece.get_mut(..want).unwrap_or_default());
            if got == 0 {
                break;
            }
            self.sink.print(piece.get(..got).unwrap_or_default());
            at = at.saturating_add(got);
        }
        // The counter is modulo 2^32 by definition.
        self.printed = self.printed.wrapping_add(at as u32);
        at
    }

    fn bulk_in(&mut self, transfer: &mut Transfer<'_>) -> Outcome {
        let Some(reply) = self.replies.front() else {
            self.in_parked = true;
            return Outcome::PARK;
        };
        let bytes = reply.to_bytes();
        let outcome = transfer.send(&bytes);
        if outcome == Outcome::complete(bytes.len()) {
            self.replies.pop_front();
            self.announce(OUT);
        }
        outcome
    }

    /// The interface answers for itself, and GET_DEVICE_ID has its number in the high byte.
    fn class_request(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Option<()> {
        let [low, high] = request.index().to_le_bytes();
        let value = request.value();
        match (request.b_request, request.direction(), request.recipient()) {
            (class_request::GET_DEVICE_ID, Direction::In, Recipient::Interface)
                if high == 0 && low == 0 && value == 0 =>
            {
                let len = u16::try_from(DEVICE_ID.len().saturating_add(2)).ok()?;
                data.extend(len.to_be_bytes());
                data.extend(DEVICE_ID.bytes());
            }
            (class_request::GET_PORT_STATUS, Direction::In, Recipient::Interface)
                if request.index() == 0 && value == 0 =>
            {
                data.push(self.sink.paper().port_status());
            }
            // Version 1.0 of the class said "other" here, and Linux still does.
            (
                class_request::SOFT_RESET,
                Direction::Out,
                Recipient::Interface | Recipient::Other,
            ) if request.index() == 0 && value == 0 && request.length() == 0 => {
                self.reset();
                self.announce(OUT);
            }
            _ => return None,
        }
        Some(())
    }
}

impl UsbDevice for Printer {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.sink.attached(Ready::new(notifier.clone(), OUT));
        self.notifier = Some(notifier);
    }

    fn configured(&mut self, _value: u8) {
        self.in_parked = false;
        self.out_parked = false;
        self.reset();
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        if request.request_type() != RequestType::Class {
            return Control::Stall;
        }
        match self.class_request(request, data) {
            Some(()) => Control::Done,
            None => Control::Stall,
        }
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        if endpoint.is_in() { self.bulk_in(transfer) } else { self.bulk_out(transfer) }
    }

    fn save(&self, _now: Time) -> Result<State, SaveError> {
        let Self {
            description: _,
            sink: _,
            printed,
            asked,
            replies,
            notifier: _,
            // The host asks again.
            in_parked: _,
            out_parked: _,
        } = self;
        let state = PrinterState { printed: *printed, asked: *asked, replies: replies.clone() };
        State::of(KIND, &state)
    }

    fn restore(&mut self, state: &State, _now: Time) -> Result<(), RestoreError> {
        let PrinterState { printed, asked, replies } = state.to(KIND)?;
        RestoreError::check(replies.len() <= REPLIES, "so many replies are not kept")?;
        self.printed = printed;
        self.asked = asked;
        self.replies = replies;
        self.in_parked = false;
        self.out_parked = false;
        Ok(())
    }
}

/// Whether the last packet is the question and nothing else.
fn is_question(transfer: &Transfer<'_>) -> bool {
    let len = transfer.buffer.len();
    let packet = usize::from(transfer.max_packet).max(1);
    let mut tail = [0; STATUS_REQUEST.len()];
    let Some(at) = len.checked_sub(tail.len()) else {
        return false;
    };
    at.checked_rem(packet) == Some(0)
        && transfer.buffer.read(at, &mut tail) == tail.len()
        && tail == STATUS_REQUEST
}

fn configuration(max_packet: u16) -> Configuration {
    Configuration::only(Interface {
        class: CLASS,
        endpoints: [OUT, IN].map(|address| Endpoint::bulk(address, max_packet)).to_vec(),
        ..Interface::default()
    })
}
