//! Split transactions of queue heads: full- and low-speed endpoints behind a transaction translator
//! (EHCI 4.12.1, 4.12.2).

use vm_memory::GuestMemory;

use super::clock::Microframe;
use super::engine::Engine;
use super::overlay::Overlay;
use super::queue_head::{Again, Attempt, Found, QueueHead, Visit};
use super::spec::{EndpointSpeed, MICROFRAMES};
use super::waiting::Schedule;
use crate::dma::DmaError;
use crate::usb::{
    Buffer, CompleteAnswer, CompleteSplit, Pid, Readiness, SplitPosition, SplitToken, StartAnswer,
    StartSplit, Toggle, TransferType,
};

/// Packets of a control or bulk endpoint in one visit. The translator takes no time of its own unless
/// it is told to, and the other queue heads have their turn in between.
const PACKETS: usize = 16;
/// Tries of a complete-split that nobody answers, where errors are not counted (EHCI 4.12.2.3.2).
const TRIES: u8 = 3;

impl QueueHead {
    fn split_token(&self, transfer_type: TransferType, pid: Pid) -> SplitToken {
        SplitToken {
            hub: self.capabilities.hub_address(),
            port: self.capabilities.port(),
            low_speed: self.characteristics.speed() == EndpointSpeed::Low,
            transfer_type,
            pid,
            device: self.characteristics.address(),
            endpoint: self.characteristics.endpoint(),
        }
    }
}

/// The transfer of a visit, with what it takes to send its splits.
struct Split<'a> {
    head: &'a QueueHead,
    token: SplitToken,
    overlay: Overlay,
    attempt: Attempt,
    data: Vec<u8>,
}

impl Split<'_> {
    /// Bytes of the next packet at most.
    fn packet(&self) -> u32 {
        self.head.fitting(&self.overlay).min(self.head.packet().into())
    }

    /// Sends a start-split with the next packet, if it carries one.
    fn start<M: GuestMemory + ?Sized>(
        &mut self,
        engine: &Engine<'_, M>,
    ) -> Result<StartAnswer, DmaError> {
        self.data.clear();
        if self.token.pid != Pid::In {
            let len = self.packet();
            let buffer = engine.memory.dma.buffer(&self.overlay.segments(len))?;
            self.data.resize(len as usize, 0);
            buffer.read(0, &mut self.data);
        }
        let (port, answer) = engine.start_split(&StartSplit {
            token: self.token,
            position: SplitPosition::All,
            toggle: Toggle::from_bit(self.overlay.token.toggle()),
            data: &self.data,
            now: engine.now,
            microframe: engine.microframe,
        });
        self.attempt.port = port;
        Ok(answer)
    }

    /// Sends a complete-split; the data of the answer is in `self.data`.
    fn complete<M: GuestMemory + ?Sized>(&mut self, engine: &Engine<'_, M>) -> CompleteAnswer {
        self.data.clear();
        let split =
            CompleteSplit { token: self.token, now: engine.now, microframe: engine.microframe };
        let (port, answer) = engine.complete_split(&split, &mut self.data);
        self.attempt.port = port;
        answer
    }

    /// One packet was acknowledged: `bytes` of it count.
    fn acknowledge(&mut self, bytes: u32) {
        self.overlay.advance(bytes, 1);
        self.overlay.reload_error_count();
        self.attempt.packets = self.attempt.packets.saturating_add(1);
        let short = self.token.pid == Pid::In && bytes < self.head.packet().into();
        if self.overlay.token.total() == 0 || short {
            self.overlay.token.set_active(false);
        }
    }

    /// Stores the data of the answer behind the `before` bytes of the packet that came earlier;
    /// returns the packet's length so far, or `None` if the device sent more than it was asked for.
    fn receive<M: GuestMemory + ?Sized>(
        &mut self,
        engine: &Engine<'_, M>,
        before: u32,
    ) -> Result<Option<u32>, DmaError> {
        let len = u32::try_from(self.data.len()).unwrap_or(u32::MAX).saturating_add(before);
        if len > self.packet() {
            self.overlay.token.set_babble(true);
            self.overlay.halt();
            return Ok(None);
        }
        let mut buffer = engine.memory.dma.buffer(&self.overlay.segments(len))?;
        buffer.write(before as usize, &self.data);
        Ok(Some(len))
    }

    /// The device has nothing to say: the transaction begins again, later.
    fn nak(&mut self, readiness: Readiness) {
        self.overlay.token.set_split_complete(false);
        self.attempt.again = match readiness {
            Readiness::Announced => Again::WhenReady,
            Readiness::Poll => Again::NextMicroframe,
        };
        self.attempt.pending = readiness == Readiness::Announced;
    }
}

/// One visit of a control or bulk queue head (EHCI 4.12.1).
///
/// # Errors
/// If a structure or a buffer is not in guest RAM.
pub(super) fn visit<M: GuestMemory + ?Sized>(
    head: &QueueHead,
    engine: &mut Engine<'_, M>,
    met: u64,
) -> Result<Visit, DmaError> {
    const SCHEDULE: Schedule = Schedule::Asynchronous;
    let read = match head.find(engine, SCHEDULE, met)? {
        Found::Transfer(overlay) => overlay,
        Found::Nothing(visit) => return Ok(visit),
    };
    let mut overlay = read;
    let Some(pid) = head.well_formed(&mut overlay) else {
        return head.finish(engine, (SCHEDULE, met), (&read, &overlay), &Attempt::default());
    };
    let transfer_type = if head.characteristics.control_endpoint() {
        TransferType::Control
    } else {
        TransferType::Bulk
    };
    let token = head.split_token(transfer_type, pid);
    let attempt = Attempt::default();
    let mut split = Split { head, token, overlay, attempt, data: Vec::new() };
    while split.attempt.packets < PACKETS
        && split.overlay.token.active()
        && split.attempt.again == Again::No
    {
        if split.overlay.token.split_complete() {
            complete(&mut split, engine)?;
        } else {
            start(&mut split, engine)?;
        }
    }
    let Split { overlay, attempt, .. } = split;
    head.finish(engine, (SCHEDULE, met), (&read, &overlay), &attempt)
}

/// DoStart (EHCI 4.12.1.1).
fn start<M: GuestMemory + ?Sized>(
    split: &mut Split<'_>,
    engine: &Engine<'_, M>,
) -> Result<(), DmaError> {
    match split.start(engine)? {
        StartAnswer::Ack => {
            split.overlay.token.set_split_complete(true);
            if split.token.pid != Pid::Setup {
                split.overlay.reload_error_count();
            }
        }
        StartAnswer::Nak => {
            split.overlay.count_nak(split.head.characteristics);
            split.attempt.again = Again::NextMicroframe;
        }
        StartAnswer::Silence => {
            split.overlay.transaction_error();
            split.attempt.again = Again::NextMicroframe;
        }
    }
    Ok(())
}

/// DoComplete (EHCI 4.12.1.2).
fn complete<M: GuestMemory + ?Sized>(
    split: &mut Split<'_>,
    engine: &Engine<'_, M>,
) -> Result<(), DmaError> {
    match split.complete(engine) {
        CompleteAnswer::Nyet => {
            split.overlay.count_nak(split.head.characteristics);
            if split.token.pid != Pid::Setup {
                split.overlay.reload_error_count();
            }
            split.attempt.again = Again::NextMicroframe;
        }
        CompleteAnswer::Ack => {
            split.overlay.token.set_split_complete(false);
            let bytes = split.packet();
            split.acknowledge(bytes);
            split.overlay.reload_nak_count(split.head.characteristics);
        }
        CompleteAnswer::Data { .. } => {
            split.overlay.token.set_split_complete(false);
            if let Some(bytes) = split.receive(engine, 0)? {
                split.acknowledge(bytes);
                split.overlay.reload_nak_count(split.head.characteristics);
            }
        }
        CompleteAnswer::ToggleMismatch => {
            split.overlay.token.set_split_complete(false);
            split.attempt.again = Again::NextMicroframe;
        }
        CompleteAnswer::Nak(_) if split.token.pid == Pid::Setup => {
            // SETUP cannot be refused (USB 2.0, 8.4.6.4).
            split.overlay.token.set_split_complete(false);
            split.overlay.transaction_error();
            split.attempt.again = Again::NextMicroframe;
        }
        CompleteAnswer::Nak(readiness) => split.nak(readiness),
        CompleteAnswer::Stall => split.overlay.halt(),
        CompleteAnswer::Err | CompleteAnswer::Silence => {
            split.overlay.transaction_error();
            split.attempt.again = Again::NextMicroframe;
        }
    }
    Ok(())
}

/// The microframes, as a mask, in which an interrupt queue head may send a split.
pub(super) fn microframes(head: &QueueHead) -> u8 {
    let s_mask = head.capabilities.s_mask();
    if head.token.active() && head.token.split_complete() {
        s_mask | head.capabilities.c_mask()
    } else {
        s_mask
    }
}

/// One visit of an interrupt queue head in microframe `at` (EHCI 4.12.2). On the way back of an FSTN
/// (`recovery`) it only completes what was started in the frame before.
///
/// # Errors
/// If a structure or a buffer is not in guest RAM.
pub(super) fn visit_interrupt<M: GuestMemory + ?Sized>(
    head: &QueueHead,
    engine: &mut Engine<'_, M>,
    at: Microframe,
    recovery: bool,
) -> Result<Visit, DmaError> {
    const SCHEDULE: Schedule = Schedule::Periodic;
    let slot = slot(at);
    let starts = head.capabilities.s_mask() & slot != 0;
    let completing = head.token.active() && head.token.split_complete();
    let mine = if completing {
        head.capabilities.c_mask() & slot != 0 || (starts && !recovery)
    } else {
        starts && !recovery
    };
    if !mine {
        return Ok(Visit::Idle);
    }
    let read = match head.find(engine, SCHEDULE, at)? {
        Found::Transfer(overlay) => overlay,
        Found::Nothing(visit) => return Ok(visit),
    };
    let mut overlay = read;
    let Some(pid) = head.well_formed(&mut overlay) else {
        return head.finish(engine, (SCHEDULE, at), (&read, &overlay), &Attempt::default());
    };
    let token = head.split_token(TransferType::Interrupt, pid);
    let attempt = Attempt::default();
    let mut split = Split { head, token, overlay, attempt, data: Vec::new() };
    if split.overlay.token.split_complete() {
        complete_interrupt(&mut split, engine, at, starts && !recovery)?;
    } else if head.characteristics.inactivate() {
        // The driver wants to change the masks (EHCI 4.12.2.5): nothing is started, and the qTD is
        // not written.
        split.overlay.token.set_active(false);
        split.overlay.store_head(&engine.memory, head.address, &read)?;
        return Ok(Visit::Idle);
    } else {
        start_interrupt(&mut split, engine, at)?;
    }
    let Split { overlay, attempt, .. } = split;
    head.finish(engine, (SCHEDULE, at), (&read, &overlay), &attempt)
}

/// DoStart (EHCI 4.12.2.4.1). There is no handshake.
fn start_interrupt<M: GuestMemory + ?Sized>(
    split: &mut Split<'_>,
    engine: &Engine<'_, M>,
    at: Microframe,
) -> Result<(), DmaError> {
    split.start(engine)?;
    let (progress, tag) = split.overlay.split();
    // A transaction started late is completed in the next frame.
    let late = at % MICROFRAMES >= 6;
    let frame = (at / MICROFRAMES).saturating_add(late.into());
    let tag = tag.with_frame((frame & 0x1f) as u8).with_bytes(0);
    split.overlay.set_split(progress.with_c_prog_mask(0), tag);
    split.overlay.token.set_split_complete(true);
    Ok(())
}

/// DoComplete (EHCI 4.12.2.4.2).
fn complete_interrupt<M: GuestMemory + ?Sized>(
    split: &mut Split<'_>,
    engine: &Engine<'_, M>,
    at: Microframe,
    starts: bool,
) -> Result<(), DmaError> {
    let (progress, tag) = split.overlay.split();
    let (s_mask, c_mask) = (split.head.capabilities.s_mask(), split.head.capabilities.c_mask());
    let due = c_mask & slot(at) != 0;
    let in_frame = tag.frame() == ((at / MICROFRAMES) & 0x1f) as u8;
    let in_order = follows(s_mask, c_mask, progress.c_prog_mask(), at);
    if starts || !due || !in_frame || !in_order {
        return missed(split);
    }
    let done = progress.c_prog_mask() | slot(at);
    let last = done & c_mask == c_mask;
    // What is left is done in the next frame.
    let next_frame = !last && at % MICROFRAMES == MICROFRAMES - 1;
    let frame = tag.frame().wrapping_add(next_frame.into()) & 0x1f;
    let (progress, tag) = (progress.with_c_prog_mask(done), tag.with_frame(frame));
    split.overlay.set_split(progress, tag);
    let mut answer = split.complete(engine);
    let mut tries = 1;
    while answer == CompleteAnswer::Silence && split.overlay.token.active() {
        split.overlay.transaction_error();
        if split.overlay.token.cerr() == 0 && tries >= TRIES {
            // There is no time left in the microframe.
            give_up(split);
            return Ok(());
        }
        if split.overlay.token.active() {
            answer = split.complete(engine);
            tries = tries.saturating_add(1);
        }
    }
    match answer {
        CompleteAnswer::Silence => {}
        CompleteAnswer::Nyet if !last => {}
        CompleteAnswer::Data { last: false } if !last => {
            if let Some(bytes) = split.receive(engine, tag.bytes().into())? {
                let bytes = u8::try_from(bytes).unwrap_or(u8::MAX).min(0x7f);
                split.overlay.set_split(progress, tag.with_bytes(bytes));
            }
        }
        CompleteAnswer::Data { last: true } => {
            split.overlay.token.set_split_complete(false);
            if let Some(bytes) = split.receive(engine, tag.bytes().into())? {
                split.acknowledge(bytes);
            }
        }
        CompleteAnswer::Ack => {
            split.overlay.token.set_split_complete(false);
            let bytes = split.packet();
            split.acknowledge(bytes);
        }
        CompleteAnswer::Nak(readiness) => {
            split.overlay.reload_error_count();
            split.nak(readiness);
        }
        CompleteAnswer::ToggleMismatch => split.overlay.token.set_split_complete(false),
        CompleteAnswer::Stall => split.overlay.halt(),
        CompleteAnswer::Err => {
            // Bit 0 is ERR for these endpoints.
            split.overlay.token.set_ping(true);
            split.overlay.token.set_split_complete(false);
            split.overlay.transaction_failed();
        }
        // The last complete-split came back without a result, or with part of a packet.
        CompleteAnswer::Nyet | CompleteAnswer::Data { last: false } => {
            split.overlay.token.set_split_complete(false);
            split.overlay.transaction_error();
        }
    }
    Ok(())
}

/// A complete-split was missed (EHCI 4.12.2.4.2): IN data is lost, OUT data goes out again.
fn missed(split: &mut Split<'_>) -> Result<(), DmaError> {
    split.overlay.token.set_missed_microframe(true);
    give_up(split);
    Ok(())
}

fn give_up(split: &mut Split<'_>) {
    if split.token.pid == Pid::In {
        split.overlay.halt();
    } else {
        split.overlay.token.set_split_complete(false);
    }
}

/// Whether the complete-split of microframe `at` is the next one after those in `done`: all due before
/// it were sent, and it was not. They are counted from the start-split on, over the frame's end.
pub(super) fn follows(s_mask: u8, c_mask: u8, done: u8, at: Microframe) -> bool {
    let first = s_mask.trailing_zeros().min(7);
    let turned = |mask: u8| mask.rotate_right(first.wrapping_add(1));
    let (due, done, slot) = (turned(c_mask), turned(done), turned(slot(at)));
    let before = due & slot.wrapping_sub(1);
    done & slot == 0 && done & before == before
}

/// The bit of a microframe in a mask.
pub(super) fn slot(at: Microframe) -> u8 {
    1u8.wrapping_shl((at % MICROFRAMES) as u32)
}
