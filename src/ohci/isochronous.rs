//! Isochronous transfer descriptors: up to eight packets, each for a frame of its own
//! (OHCI 1.0a, 4.3.2).

use vm_memory::GuestMemory;

use super::descriptors::Ed;
use super::spec::{ConditionCode, IsoControl, POINTER};
use super::transaction::{Bus, Met};
use crate::dma::{Dma, DmaError};
use crate::usb::{Outcome, Pid, Status, Toggle, Transfer};

/// Largest isochronous packet at full speed (USB 1.1, 5.6.3).
const LARGEST_PACKET: u32 = 1023;

/// Offset of a packet in its two pages: a page bit and 12 bits.
const PLACE: u32 = 0x1fff;
/// Its condition code while it has no status (4.3.2.2): 111x.
const NOT_ACCESSED: u32 = 0xe000;
const PAGE: u32 = 0x1000;

/// An isochronous transfer descriptor as it was at one moment.
#[derive(Clone, Copy, Debug)]
struct IsoTd {
    address: u32,
    control: IsoControl,
    bp0: u32,
    next_td: u32,
    be: u32,
    /// Offset and PacketStatusWord of the packets, two in each dword.
    words: [u32; 4],
}

/// Isochronous packets that were never tried, counted since power-on by whose fault it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsochronousLosses {
    /// Their frame was run, and their TD was not there yet: the driver queued it too late.
    pub late: u64,
    /// Their frame was not run: the host was late by more frames than are made up for, or the
    /// function could not reach memory.
    pub missed: u64,
}

/// Which frames were run, as far as isochronous TDs need to know, and what was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attendance {
    /// Frames that were run in a row, the one under way included; all before them were not.
    in_a_row: u32,
    pub(super) losses: IsochronousLosses,
}

impl Default for Attendance {
    fn default() -> Self {
        Self { in_a_row: u32::MAX, losses: IsochronousLosses::default() }
    }
}

impl Attendance {
    /// Frames begin to run: what was to be sent before is the driver's fault.
    pub(super) fn start(&mut self) {
        self.in_a_row = u32::MAX;
    }

    /// A frame is run.
    pub(super) fn attend(&mut self) {
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    /// Frames passed that were not run.
    pub(super) fn skip(&mut self) {
        self.in_a_row = 0;
    }

    /// `td` is retired in frame `frame`: what of it was never tried is lost.
    fn retire(&mut self, td: &IsoTd, frame: u16) {
        for packet in (0..=u16::from(td.control.fc())).filter(|packet| !td.was_tried(*packet)) {
            let age = frame.wrapping_sub(td.control.sf()).wrapping_sub(packet);
            let lost = if u32::from(age) < self.in_a_row {
                &mut self.losses.late
            } else {
                &mut self.losses.missed
            };
            *lost = lost.saturating_add(1);
        }
    }
}

/// Where an isochronous TD stands in a frame.
enum Due {
    /// Its first frame is to come.
    Early,
    /// Its last frame is over.
    Late,
    /// This packet is for this frame.
    Packet(u16),
}

impl IsoTd {
    /// The address of a 32-byte structure has no bit 4; one that has it set is taken without.
    fn load<M: GuestMemory + ?Sized>(dma: &Dma<'_, M>, address: u32) -> Result<Self, DmaError> {
        let address = address & !0x1f;
        let [control, bp0, next_td, be, words @ ..] = dma.load_array::<8>(address.into())?;
        let control = IsoControl::from_bits(control);
        Ok(Self { address, control, bp0: bp0 & !0xfff, next_td: next_td & POINTER, be, words })
    }

    /// R = FrameNumber - StartingFrame as a signed number of 16 bits (4.3.2.3).
    fn due(&self, frame: u16) -> Due {
        let relative = frame.wrapping_sub(self.control.sf());
        match relative {
            0x8000.. => Due::Early,
            _ if relative > self.control.fc().into() => Due::Late,
            _ => Due::Packet(relative),
        }
    }

    /// Offset or PacketStatusWord of a packet.
    fn word(&self, packet: u16) -> u32 {
        let word = self.words.get(usize::from(packet / 2)).copied().unwrap_or(0);
        (word >> (16 * u32::from(packet & 1))) & 0xffff
    }

    fn place(&self, packet: u16) -> u32 {
        self.word(packet) & PLACE
    }

    /// Whether the packet has a status: its condition code is not NotAccessed.
    fn was_tried(&self, packet: u16) -> bool {
        self.word(packet) & NOT_ACCESSED != NOT_ACCESSED
    }

    /// Where packet `packet` is: up to two pieces. `None` if it ends before it begins, or is larger
    /// than a packet can be.
    fn segments(&self, packet: u16) -> Option<[(u64, u32); 2]> {
        let start = self.place(packet);
        let end = if packet < self.control.fc().into() {
            self.place(packet.saturating_add(1))
        } else {
            // BufferEnd counts in BP0's page if it is in it, else in the second.
            let page = if self.be & !0xfff == self.bp0 { 0 } else { PAGE };
            page.saturating_add(self.be & 0xfff).saturating_add(1)
        };
        let len = end.checked_sub(start).filter(|len| *len <= LARGEST_PACKET)?;
        let first = PAGE.saturating_sub(start).min(len);
        let pages = [u64::from(self.bp0), u64::from(self.be & !0xfff)];
        let [bp0, bp1] = pages;
        // A packet whose page bit is set has no byte in the first page: `first` is zero then.
        let second = bp1.wrapping_add(u64::from(start.max(PAGE) & 0xfff));
        Some([
            (bp0.wrapping_add(u64::from(start & 0xfff)), first),
            (second, len.wrapping_sub(first)),
        ])
    }

    /// Writes the PacketStatusWord of one packet; its neighbour in the dword stays.
    fn store_status<M: GuestMemory + ?Sized>(
        &mut self,
        dma: &Dma<'_, M>,
        packet: u16,
        code: ConditionCode,
        size: u32,
    ) -> Result<(), DmaError> {
        let index = usize::from(packet / 2);
        let shift = 16 * u32::from(packet & 1);
        let status = (code as u32) << 12 | (size & 0x7ff);
        let Some(word) = self.words.get_mut(index) else { return Ok(()) };
        *word = (*word & !(0xffff << shift)) | status << shift;
        let offset = u64::from(packet / 2).wrapping_mul(4).wrapping_add(16);
        dma.store(u64::from(self.address).wrapping_add(offset), *word)
    }
}

impl<M: GuestMemory + ?Sized> Bus<'_, '_, M> {
    /// Serves an isochronous ED in frame `frame`: retires what is late, and sends or receives one
    /// packet of the first TD that is not.
    pub(super) fn serve_isochronous(&mut self, ed: &Ed, frame: u16) -> Result<Met, DmaError> {
        let mut head = ed.head_p();
        while head != ed.tail_p {
            let mut td = IsoTd::load(&self.dma, head)?;
            match td.due(frame) {
                Due::Early => break,
                Due::Late => {
                    if !self.budget.spend_late() {
                        break;
                    }
                    self.attendance.retire(&td, frame);
                    self.retire_isochronous(ed, &td, ConditionCode::DataOverrun)?;
                    head = td.next_td;
                }
                Due::Packet(packet) => {
                    let len = td.segments(packet).map_or(0, |[(_, a), (_, b)]| a.saturating_add(b));
                    if !self.budget.has_room(len, ed.control.s()) {
                        return Ok(Met::Full);
                    }
                    let (code, size) = self.isochronous_packet(ed, &td, packet)?;
                    td.store_status(&self.dma, packet, code, size)?;
                    if packet == u16::from(td.control.fc()) {
                        self.attendance.retire(&td, frame);
                        self.retire_isochronous(ed, &td, ConditionCode::NoError)?;
                    }
                    break;
                }
            }
        }
        Ok(Met::Progress)
    }

    /// One packet; returns its condition code and size. There is no second try.
    fn isochronous_packet(
        &mut self,
        ed: &Ed,
        td: &IsoTd,
        packet: u16,
    ) -> Result<(ConditionCode, u32), DmaError> {
        let pid = match ed.control.d() {
            1 => Pid::Out,
            2 => Pid::In,
            // An isochronous TD has no direction of its own.
            _ => return Ok((ConditionCode::UnexpectedPid, 0)),
        };
        let Some(segments) = td.segments(packet) else {
            return Ok((ConditionCode::DataOverrun, 0));
        };
        let len: u32 = segments.iter().fold(0, |sum, (_, len)| len.saturating_add(sum));
        if pid == Pid::Out && len > ed.control.mps().into() {
            return Ok((ConditionCode::DataOverrun, 0));
        }
        self.budget.spend(len, ed.control.s());
        let Some(port) = self.hub.route(ed.control.fa(), ed.control.s()) else {
            return Ok((ConditionCode::DeviceNotResponding, 0));
        };
        let mut buffer = self.dma.buffer(&segments)?;
        let transfer = Transfer {
            pid,
            endpoint: ed.control.en(),
            max_packet: ed.control.mps(),
            toggle: Toggle::Data0,
            buffer: &mut buffer,
            now: self.now,
        };
        let outcome = port.isochronous(ed.control.fa(), transfer);
        Ok(packet_status(pid, len, outcome))
    }

    /// Moves the TD to the done queue; the endpoint's halt and toggle are not touched.
    fn retire_isochronous(
        &mut self,
        ed: &Ed,
        td: &IsoTd,
        code: ConditionCode,
    ) -> Result<(), DmaError> {
        let at = |offset| u64::from(td.address).wrapping_add(offset);
        let next = self.done.push(td.address, code, td.control.di());
        self.dma.store(at(8), next)?;
        self.dma.store(at(0), td.control.with_cc(code as u8).into_bits())?;
        ed.store_head(&self.dma, td.next_td, Toggle::from_bit(ed.head.c()), false)
    }
}

/// Condition code and size of the PacketStatusWord.
fn packet_status(pid: Pid, asked: u32, outcome: Outcome) -> (ConditionCode, u32) {
    let moved = u32::try_from(outcome.bytes).unwrap_or(u32::MAX);
    let received = if pid == Pid::In { moved.min(asked) } else { 0 };
    match outcome.status {
        Status::Complete if moved > asked => (ConditionCode::DataOverrun, received),
        Status::Complete if pid == Pid::In && moved < asked => {
            (ConditionCode::DataUnderrun, received)
        }
        Status::Complete => (ConditionCode::NoError, received),
        Status::Error(error) => (error.into(), received),
        // None of these exists for an isochronous endpoint.
        Status::Nak(_) | Status::Pending | Status::Stall => (ConditionCode::DeviceNotResponding, 0),
    }
}
