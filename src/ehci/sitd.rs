//! Full-speed isochronous transfers behind a transaction translator (EHCI 3.4, 4.12.3).

use smallvec::SmallVec;
use vm_memory::GuestMemory;

use super::clock::Microframe;
use super::engine::Engine;
use super::spec::{
    Link, MICROFRAMES, SiTdEndpoint, SiTdMasks, SiTdPosition, SiTdState, sitd, usbsts,
};
use super::split::{follows, slot};
use super::structures::Structures;
use crate::dma::DmaError;
use crate::usb::{
    Buffer, CompleteAnswer, CompleteSplit, Pid, SplitPosition, SplitToken, StartSplit, Toggle,
    TransferType,
};

/// Bytes in a page.
const PAGE: u32 = 0x1000;
/// Most bytes of an OUT packet in one start-split (USB 2.0, 11.18.1).
const SLICE: u32 = 188;
/// Most start-splits of a transfer (EHCI 3.4.4).
const MOST_STARTS: u8 = 6;
/// Tries of a complete-split that nobody answers (EHCI 4.12.3.3.2).
const TRIES: u8 = 3;

/// Values of TP (EHCI 3.4.4).
mod position {
    pub(super) const ALL: u8 = 0;
    pub(super) const BEGIN: u8 = 1;
    pub(super) const MID: u8 = 2;
    pub(super) const END: u8 = 3;
}

/// A siTD, as read.
#[derive(Clone, Copy)]
struct SiTd {
    address: u32,
    endpoint: SiTdEndpoint,
    masks: SiTdMasks,
    state: SiTdState,
    /// Page 0 and the current offset.
    buffer: u32,
    position: SiTdPosition,
    back: Link,
    high: [u32; 2],
}

impl SiTd {
    fn load<M: GuestMemory + ?Sized>(
        memory: &Structures<'_, M>,
        address: u32,
    ) -> Result<Self, DmaError> {
        // The dword that holds Active guards the others.
        let state = memory.load(address, sitd::STATE)?;
        let [endpoint, masks] = memory.load_array(address, sitd::ENDPOINT)?;
        let [buffer, position, back] = memory.load_array(address, sitd::BUFFER)?;
        Ok(Self {
            address,
            endpoint: endpoint.into(),
            masks: masks.into(),
            state: state.into(),
            buffer,
            position: position.into(),
            back: Link(back),
            high: memory.load_wide(address, sitd::BUFFERS_HIGH)?,
        })
    }

    /// Writes back what transactions change, the dword with Active last, then raises events.
    fn store<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        read: &Self,
    ) -> Result<(), DmaError> {
        let memory = &engine.memory;
        if self.buffer != read.buffer {
            memory.store(self.address, sitd::BUFFER, self.buffer)?;
        }
        if self.position != read.position {
            memory.store(self.address, sitd::POSITION, self.position.into())?;
        }
        if self.state != read.state {
            memory.store(self.address, sitd::STATE, self.state.into())?;
        }
        if read.state.active() && !self.state.active() {
            let state = self.state;
            let mut events = 0;
            if state.ioc() {
                events |= usbsts::USBINT;
            }
            if state.error() || state.transaction_error() || state.babble() {
                events |= usbsts::USBERRINT;
            }
            engine.interrupts.post(events);
        }
        Ok(())
    }

    fn pid(&self) -> Pid {
        if self.endpoint.direction_in() { Pid::In } else { Pid::Out }
    }

    fn token(&self) -> SplitToken {
        SplitToken {
            hub: self.endpoint.hub_address(),
            port: self.endpoint.port(),
            low_speed: false,
            transfer_type: TransferType::Isochronous,
            pid: self.pid(),
            device: self.endpoint.address(),
            endpoint: self.endpoint.endpoint(),
        }
    }

    /// The guest memory of the next `len` bytes; `None` if they run out of the second page.
    fn segments(&self, len: u32) -> Option<SmallVec<[(u64, u32); 2]>> {
        let [high0, high1] = self.high;
        let pages = [(self.buffer & !(PAGE - 1), high0), (self.position.page() << 12, high1)];
        let mut offset = self.buffer & (PAGE - 1);
        let mut left = len;
        let mut segments = SmallVec::new();
        for (page, high) in pages.into_iter().skip(self.state.second_page().into()) {
            let part = left.min(PAGE.saturating_sub(offset));
            segments.push((u64::from(high) << 32 | u64::from(page | offset), part));
            left = left.saturating_sub(part);
            offset = 0;
        }
        (left == 0).then_some(segments)
    }

    /// `bytes` were moved: the total counts down, and the page changes where it ends.
    fn advance(&mut self, bytes: u32) {
        let offset = (self.buffer & (PAGE - 1)).saturating_add(bytes);
        self.buffer = (self.buffer & !(PAGE - 1)) | (offset & (PAGE - 1));
        if offset >= PAGE {
            self.state.set_second_page(true);
        }
        let left = u32::from(self.state.total()).saturating_sub(bytes);
        self.state.set_total(u16::try_from(left).unwrap_or(0));
    }

    /// A start-split in microframe `at` (EHCI 4.12.3.3.1).
    fn start<M: GuestMemory + ?Sized>(
        &mut self,
        engine: &Engine<'_, M>,
        at: Microframe,
    ) -> Result<(), DmaError> {
        if self.pid() == Pid::In {
            self.send_start(engine, at, SplitPosition::All, &[]);
            self.state.set_split_complete(true);
            return Ok(());
        }
        let count = self.position.count().min(MOST_STARTS);
        let len = if count == 0 { 0 } else { SLICE.min(self.state.total().into()) };
        let Some(segments) = self.segments(len) else {
            self.state.set_data_buffer_error(true);
            self.state.set_active(false);
            return Ok(());
        };
        if count != 0 {
            let buffer = engine.memory.dma.buffer(&segments)?;
            let mut data = [0; SLICE as usize];
            buffer.read(0, &mut data);
            let part = match self.position.position() {
                position::ALL => SplitPosition::All,
                position::BEGIN => SplitPosition::Begin,
                position::MID => SplitPosition::Middle,
                _ => SplitPosition::End,
            };
            self.send_start(engine, at, part, data.get(..len as usize).unwrap_or_default());
            self.advance(len);
        }
        let left = count.saturating_sub(1);
        self.position.set_count(left);
        if left == 0 {
            self.state.set_active(false);
        } else {
            self.position.set_position(if left == 1 { position::END } else { position::MID });
        }
        Ok(())
    }

    fn send_start<M: ?Sized>(
        &self,
        engine: &Engine<'_, M>,
        at: Microframe,
        part: SplitPosition,
        data: &[u8],
    ) {
        // There is no handshake.
        engine.start_split(&StartSplit {
            token: self.token(),
            position: part,
            toggle: Toggle::Data0,
            data,
            now: engine.now,
            microframe: at,
        });
    }

    /// A complete-split in microframe `at`, if one is due (EHCI 4.12.3.3.2). All of them belong to one
    /// start-split, so the order in the masks says whether one was missed.
    fn complete<M: GuestMemory + ?Sized>(
        &mut self,
        engine: &Engine<'_, M>,
        at: Microframe,
    ) -> Result<(), DmaError> {
        let (s_mask, c_mask) = (self.masks.s_mask(), self.masks.c_mask());
        if c_mask & slot(at) == 0 {
            return Ok(());
        }
        if !follows(s_mask, c_mask, self.state.c_prog_mask(), at) {
            self.state.set_missed_microframe(true);
            self.state.set_active(false);
            return Ok(());
        }
        let done = self.state.c_prog_mask() | slot(at);
        self.state.set_c_prog_mask(done);
        let last = done & c_mask == c_mask;
        let split = CompleteSplit { token: self.token(), now: engine.now, microframe: at };
        let mut data = Vec::new();
        let mut answer = CompleteAnswer::Silence;
        for _ in 0..TRIES {
            answer = engine.complete_split(&split, &mut data).1;
            if answer != CompleteAnswer::Silence {
                break;
            }
        }
        match answer {
            CompleteAnswer::Data { last: true } => {
                if self.receive(engine, &data)? {
                    self.state.set_active(false);
                }
            }
            CompleteAnswer::Data { last: false } => {
                // Part of a packet that is not going on is an error.
                if self.receive(engine, &data)? && last {
                    self.state.set_transaction_error(true);
                    self.state.set_active(false);
                }
            }
            CompleteAnswer::Nyet => self.state.set_active(!last),
            CompleteAnswer::Err => {
                self.state.set_error(true);
                self.state.set_active(false);
            }
            // An isochronous endpoint has no handshakes: these mean that something is broken.
            CompleteAnswer::Ack
            | CompleteAnswer::Nak(_)
            | CompleteAnswer::Stall
            | CompleteAnswer::ToggleMismatch
            | CompleteAnswer::Silence => {
                self.state.set_transaction_error(true);
                self.state.set_active(false);
            }
        }
        Ok(())
    }

    /// Stores what came; `false` if it was more than there is room for, which ends the transfer.
    fn receive<M: GuestMemory + ?Sized>(
        &mut self,
        engine: &Engine<'_, M>,
        data: &[u8],
    ) -> Result<bool, DmaError> {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if len > self.state.total().into() {
            self.state.set_babble(true);
            self.state.set_active(false);
            return Ok(false);
        }
        let Some(segments) = self.segments(len) else {
            self.state.set_data_buffer_error(true);
            self.state.set_active(false);
            return Ok(false);
        };
        engine.memory.dma.buffer(&segments)?.write(0, data);
        self.advance(len);
        Ok(true)
    }
}

/// The microframes, as a mask, in which a siTD may do something.
///
/// # Errors
/// If it is not in guest RAM.
pub(super) fn active<M: GuestMemory + ?Sized>(
    memory: &Structures<'_, M>,
    address: u32,
) -> Result<u8, DmaError> {
    let state = SiTdState::from(memory.load(address, sitd::STATE)?);
    if !state.active() {
        return Ok(0);
    }
    let masks = SiTdMasks::from(memory.load(address, sitd::ENDPOINT.wrapping_add(4))?);
    // In microframes 0 and 1 the siTD of the frame before may be completed.
    let completes = if state.split_complete() { masks.c_mask() | 0b11 } else { 0 };
    Ok(masks.s_mask() | completes)
}

/// Carries out what is due of a siTD in microframe `at`; returns how many bytes it had on the bus.
///
/// # Errors
/// If a siTD or its buffer is not in guest RAM.
pub(super) fn execute<M: GuestMemory + ?Sized>(
    engine: &mut Engine<'_, M>,
    address: u32,
    at: Microframe,
) -> Result<u32, DmaError> {
    let read = SiTd::load(&engine.memory, address)?;
    if !read.state.active() {
        return Ok(0);
    }
    let mut td = read;
    if td.state.split_complete() && td.pid() == Pid::In && completes_before(&td, at) {
        // The transfer of the frame before is completed here; the one of this frame begins when that
        // is over (EHCI 4.12.3.3.2.1).
        if !complete_before(engine, td.back.address(), at)? {
            return Ok(0);
        }
        td.state.set_split_complete(false);
    }
    if td.state.split_complete() {
        td.complete(engine, at)?;
    } else if td.masks.s_mask() & slot(at) != 0 {
        td.start(engine, at)?;
    }
    let bytes = read.state.total().saturating_sub(td.state.total());
    td.store(engine, &read)?;
    Ok(bytes.into())
}

/// Whether `at` belongs to the siTD that the back pointer names.
fn completes_before(td: &SiTd, at: Microframe) -> bool {
    let starts_in_0 = td.masks.s_mask() & 1 != 0;
    !td.back.terminates()
        && match at % MICROFRAMES {
            0 => true,
            1 => !starts_in_0,
            _ => false,
        }
}

/// Completes the siTD of the frame before, one level only; returns whether it is over.
fn complete_before<M: GuestMemory + ?Sized>(
    engine: &mut Engine<'_, M>,
    address: u32,
    at: Microframe,
) -> Result<bool, DmaError> {
    let read = SiTd::load(&engine.memory, address)?;
    if !read.state.active() {
        return Ok(true);
    }
    let mut td = read;
    if td.state.split_complete() {
        td.complete(engine, at)?;
    } else {
        // Its start-split never happened.
        td.state.set_missed_microframe(true);
        td.state.set_active(false);
    }
    td.store(engine, &read)?;
    Ok(!td.state.active())
}
