//! High-speed isochronous transfers (EHCI 3.3, 4.7).

use smallvec::SmallVec;
use vm_memory::GuestMemory;

use super::engine::Engine;
use super::spec::{Transaction, itd, usbsts};
use super::structures::Structures;
use crate::dma::DmaError;
use crate::usb::{BusError, Pid, Status, Toggle, Transfer};

/// Buffer pages of an iTD.
const PAGES: usize = 7;
/// Bytes in a page.
const PAGE: u32 = 0x1000;
/// Largest packet in bytes, and most packets in a microframe (USB 2.0, 5.9.2).
const LARGEST_PACKET: u16 = 1024;
const MOST_PACKETS: u8 = 3;

/// The slots of an iTD that are active, as a mask of microframes.
pub(super) fn active<M: GuestMemory + ?Sized>(
    memory: &Structures<'_, M>,
    address: u32,
) -> Result<u8, DmaError> {
    let slots: [u32; 8] = memory.load_array(address, itd::TRANSACTIONS)?;
    let bits = slots.iter().rev().map(|slot| u8::from(Transaction::from(*slot).active()));
    Ok(bits.fold(0, |mask, bit| mask << 1 | bit))
}

/// What the first three buffer dwords say of the endpoint besides their pages (EHCI 3.3.3).
struct Endpoint {
    address: u8,
    number: u8,
    pid: Pid,
    max_packet: u16,
    packets: u8,
}

impl Endpoint {
    fn new([first, second, third, ..]: [u32; PAGES]) -> Self {
        let max_packet = (second & 0x7ff) as u16;
        Self {
            address: (first & 0x7f) as u8,
            number: (first >> 8 & 0xf) as u8,
            pid: if second & 1 << 11 != 0 { Pid::In } else { Pid::Out },
            max_packet: max_packet.min(LARGEST_PACKET),
            // 0 is undefined and counts as 1 here; 2 bits hold no more than 3.
            packets: ((third & 3) as u8).clamp(1, MOST_PACKETS),
        }
    }

    /// Most bytes in a microframe.
    fn room(&self) -> u32 {
        u32::from(self.max_packet).saturating_mul(self.packets.into())
    }
}

/// Carries out the slot of one microframe, if it is active (EHCI 4.7.1); returns how many bytes it had
/// on the bus.
///
/// # Errors
/// If the iTD or its buffer is not in guest RAM.
pub(super) fn execute<M: GuestMemory + ?Sized>(
    engine: &mut Engine<'_, M>,
    address: u32,
    slot: u32,
) -> Result<u32, DmaError> {
    let at = itd::TRANSACTIONS.wrapping_add(slot.wrapping_mul(4));
    let mut transaction = Transaction::from(engine.memory.load(address, at)?);
    if !transaction.active() {
        return Ok(0);
    }
    let buffers: [u32; PAGES] = engine.memory.load_array(address, itd::BUFFERS)?;
    let high: [u32; PAGES] = engine.memory.load_wide(address, itd::BUFFERS_HIGH)?;
    let endpoint = Endpoint::new(buffers);
    let asked = u32::from(transaction.length()).min(endpoint.room());
    let failed = match segments(&transaction, &buffers, &high, asked) {
        Some(segments) => {
            let mut buffer = engine.memory.dma.buffer(&segments)?;
            let transfer = Transfer {
                pid: endpoint.pid,
                endpoint: endpoint.number,
                max_packet: endpoint.max_packet,
                toggle: Toggle::Data0,
                now: engine.now,
                buffer: &mut buffer,
            };
            let (_, outcome) =
                engine.offer(endpoint.address, |function| function.isochronous(transfer));
            endpoint.pid == Pid::In
                && received(&mut transaction, outcome.bytes, outcome.status, asked)
        }
        None => {
            // The buffer runs out of its last page.
            transaction.set_data_buffer_error(true);
            false
        }
    };
    transaction.set_active(false);
    engine.memory.store(address, at, transaction.into())?;
    let mut events = 0;
    if transaction.ioc() {
        events |= usbsts::USBINT;
    }
    if failed {
        events |= usbsts::USBERRINT;
    }
    engine.interrupts.post(events);
    Ok(asked)
}

/// Notes what an IN slot received; returns whether it failed. There is no second try, and having
/// nothing to send is no error (USB 2.0, 5.6.4).
fn received(transaction: &mut Transaction, bytes: usize, status: Status, asked: u32) -> bool {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(asked);
    transaction.set_length(u16::try_from(bytes).unwrap_or(u16::MAX) & 0xfff);
    match status {
        Status::Complete | Status::Nak(_) | Status::Pending => false,
        Status::Error(BusError::Babble) => {
            transaction.set_babble(true);
            true
        }
        Status::Error(BusError::HostBuffer) => {
            transaction.set_data_buffer_error(true);
            false
        }
        Status::Stall | Status::Error(_) => {
            transaction.set_transaction_error(true);
            true
        }
    }
}

/// The guest memory of a slot: `len` bytes from its offset in its page on, going on at the start of
/// the next page. `None` if it would need a page after the last.
fn segments(
    transaction: &Transaction,
    low: &[u32; PAGES],
    high: &[u32; PAGES],
    len: u32,
) -> Option<SmallVec<[(u64, u32); 2]>> {
    let mut left = len;
    let mut offset = u32::from(transaction.offset());
    let mut segments = SmallVec::new();
    for (low, high) in low.iter().zip(high).skip(transaction.page().into()) {
        if left == 0 {
            break;
        }
        let part = left.min(PAGE.saturating_sub(offset));
        let page = u64::from(*high) << 32 | u64::from(low & !(PAGE - 1));
        segments.push((page | u64::from(offset), part));
        left = left.saturating_sub(part);
        offset = 0;
    }
    let in_range = usize::from(transaction.page()) < PAGES;
    (left == 0 && in_range).then_some(segments)
}
