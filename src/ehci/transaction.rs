//! High-speed transactions: what a device makes of a transfer, and what that does to the overlay
//! (EHCI 4.10.3, 4.11).

use vm_memory::GuestMemory;

use super::engine::Engine;
use super::overlay::Overlay;
use super::queue_head::{Again, Attempt, Found, QueueHead, Visit};
use super::waiting::Schedule;
use crate::dma::DmaError;
use crate::usb::{BusError, Outcome, Pid, Readiness, Status, Toggle, Transfer};

/// How an offer went.
#[derive(Clone, Copy, Debug)]
struct Offer {
    port: Option<usize>,
    status: Status,
    asked: u32,
    bytes: u32,
    packets: usize,
}

/// One visit of a high-speed queue head: find the transfer, carry out up to `limit` packets of it,
/// write back.
///
/// # Errors
/// If a structure or a buffer is not in guest RAM.
pub(super) fn visit<M: GuestMemory + ?Sized>(
    head: &QueueHead,
    engine: &mut Engine<'_, M>,
    schedule: Schedule,
    limit: Option<u8>,
    met: u64,
) -> Result<Visit, DmaError> {
    let read = match head.find(engine, schedule, met)? {
        Found::Transfer(overlay) => overlay,
        Found::Nothing(visit) => return Ok(visit),
    };
    let mut overlay = read;
    let mut attempt = Attempt::default();
    if let Some(pid) = head.well_formed(&mut overlay) {
        let offer = offer(head, engine, pid, &overlay, limit)?;
        attempt = Attempt {
            port: offer.port,
            packets: offer.packets,
            pending: offer.status == Status::Pending,
            again: apply(head, schedule, pid, &mut overlay, &offer),
        };
    }
    head.finish(engine, (schedule, met), (&read, &overlay), &attempt)
}

/// Hands the transfer to the device.
fn offer<M: GuestMemory + ?Sized>(
    head: &QueueHead,
    engine: &Engine<'_, M>,
    pid: Pid,
    overlay: &Overlay,
    limit: Option<u8>,
) -> Result<Offer, DmaError> {
    let packet = head.packet();
    let mut asked = head.fitting(overlay);
    if let Some(limit) = limit {
        asked = asked.min(u32::from(packet).saturating_mul(limit.into()));
    }
    let mut buffer = engine.memory.dma.buffer(&overlay.segments(asked))?;
    let transfer = Transfer {
        pid,
        endpoint: head.characteristics.endpoint(),
        max_packet: packet,
        toggle: Toggle::from_bit(overlay.token.toggle()),
        now: engine.now,
        buffer: &mut buffer,
    };
    let address = head.characteristics.address();
    let (port, outcome) = engine.offer(address, |function| function.transact(transfer));
    // A device cannot move more than it was offered.
    let bytes = u32::try_from(outcome.bytes).unwrap_or(u32::MAX).min(asked);
    let outcome = Outcome { bytes: bytes as usize, ..outcome };
    let packets = outcome.packets(pid, asked as usize, packet);
    Ok(Offer { port, status: outcome.status, asked, bytes, packets })
}

/// What the outcome does to the overlay; returns when to try again.
fn apply(
    head: &QueueHead,
    schedule: Schedule,
    pid: Pid,
    overlay: &mut Overlay,
    offer: &Offer,
) -> Again {
    let asynchronous = schedule == Schedule::Asynchronous;
    // Interrupt endpoints know no PING (EHCI 4.11).
    let pings = pid == Pid::Out && asynchronous;
    if offer.packets != 0 {
        overlay.advance(offer.bytes, offer.packets);
        overlay.reload_error_count();
        if asynchronous {
            overlay.reload_nak_count(head.characteristics);
        }
        if pings {
            overlay.token.set_ping(false);
        }
    }
    match offer.status {
        Status::Complete => {
            let short = pid == Pid::In && offer.bytes < offer.asked;
            if overlay.token.total() == 0 || short {
                overlay.token.set_active(false);
                Again::No
            } else if offer.packets == 0 {
                Again::NextTurn
            } else {
                Again::No
            }
        }
        Status::Nak(_) if pid == Pid::Setup => {
            // SETUP cannot be refused (USB 2.0, 8.4.6.4).
            overlay.transaction_error();
            Again::NextMicroframe
        }
        Status::Nak(readiness) => {
            if pings {
                overlay.token.set_ping(true);
            }
            if asynchronous {
                overlay.count_nak(head.characteristics);
            }
            match readiness {
                Readiness::Announced => Again::WhenReady,
                Readiness::Poll => Again::NextTurn,
            }
        }
        Status::Pending => Again::WhenReady,
        Status::Stall => {
            overlay.halt();
            Again::No
        }
        Status::Error(BusError::Babble) => {
            overlay.token.set_babble(true);
            overlay.halt();
            Again::No
        }
        // No fault of the device, so CERR stays and the packet is repeated (EHCI 4.15.1.1.4).
        Status::Error(BusError::HostBuffer) => {
            overlay.token.set_data_buffer_error(true);
            Again::NextMicroframe
        }
        // The packet was acknowledged and dropped (USB 2.0, 8.6.3).
        Status::Error(BusError::ToggleMismatch) => Again::NextMicroframe,
        Status::Error(_) => {
            if pings {
                overlay.token.set_ping(true);
            }
            overlay.transaction_error();
            Again::NextMicroframe
        }
    }
}
