//! Queue heads: one visit, one transfer (EHCI 4.10).

use vm_memory::GuestMemory;

use super::clock::Microframe;
use super::interrupts::Interrupts;
use super::overlay::{Overlay, Pointers};
use super::ports::RootPort;
use super::spec::{
    Capabilities, Characteristics, EndpointSpeed, Link, Token, TokenPid, qh, usbsts,
};
use super::structures::Structures;
use super::waiting::{Identity, Schedule, Until, Wait, Waiting};
use crate::dma::DmaError;
use crate::time::Time;
use crate::usb::{
    BusError, EndpointAddress, Function, Outcome, Pid, Readiness, Status, Toggle, Transfer,
};

/// Largest packet of a high-speed endpoint in bytes (EHCI 3.6.2).
const LARGEST_PACKET: u16 = 1024;

/// What carrying out a schedule takes.
pub(super) struct Engine<'a, M: ?Sized> {
    pub memory: Structures<'a, M>,
    pub ports: &'a [RootPort],
    pub waiting: &'a mut Waiting,
    pub interrupts: &'a mut Interrupts,
    pub now: Time,
    pub microframe: Microframe,
    /// Which turn of the controller this is.
    pub turn: u64,
}

impl<M: ?Sized> Engine<'_, M> {
    /// Addresses the device with `address` behind an enabled port, and says which port that is:
    /// nobody answers for an address that no device has.
    pub(super) fn offer(
        &self,
        address: u8,
        action: impl FnOnce(&mut Function) -> Outcome,
    ) -> (Option<usize>, Outcome) {
        let mut action = Some(action);
        for (at, port) in self.ports.iter().enumerate().filter(|(_, port)| port.carries_traffic()) {
            let answer = port.link().with(|function| {
                function.reach(address, |function| action.take().map(|action| action(function)))
            });
            if let Some(outcome) = answer.flatten().flatten() {
                return (Some(at), outcome);
            }
        }
        (None, Outcome::TIMEOUT)
    }
}

/// The first part of a queue head, as much as it takes to decide whether to go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueHead {
    pub address: u32,
    pub link: Link,
    pub characteristics: Characteristics,
    pub capabilities: Capabilities,
    pub token: Token,
}

/// What came of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// There is nothing to do for this queue head.
    Idle,
    /// It waits for its device or for a later microframe.
    Waits,
    /// Transactions were carried out.
    Executed {
        /// Bytes moved.
        bytes: u32,
        /// Whether anything but NAKs came back.
        progress: bool,
    },
}

impl QueueHead {
    /// Reads a queue head, the dword that guards the others first.
    pub(super) fn load<M: GuestMemory + ?Sized>(
        memory: &Structures<'_, M>,
        address: u32,
    ) -> Result<Self, DmaError> {
        let token = Token::from(memory.load(address, qh::TOKEN)?);
        let [link, characteristics, capabilities] = memory.load_array(address, qh::LINK)?;
        Ok(Self {
            address,
            link: Link(link),
            characteristics: characteristics.into(),
            capabilities: capabilities.into(),
            token,
        })
    }

    fn identity(&self, overlay: &Overlay) -> Identity {
        Identity {
            characteristics: self.characteristics.into(),
            qtd: overlay.current,
            token: overlay.token.into(),
        }
    }

    /// Whether a visit would carry out a transaction; for looking ahead.
    pub(super) fn has_work<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        schedule: Schedule,
        met: u64,
    ) -> Result<bool, DmaError> {
        if self.token.halted() {
            return Ok(false);
        }
        if self.token.active() {
            let current = engine.memory.load(self.address, qh::CURRENT)?;
            let identity = Identity {
                characteristics: self.characteristics.into(),
                qtd: current & !0x1f,
                token: self.token.into(),
            };
            let key = (schedule, self.address);
            return Ok(!engine.waiting.is_held(key, identity, met));
        }
        let Some(candidate) = self.candidate(engine)? else {
            return Ok(false);
        };
        let token = engine.memory.load(candidate, super::spec::qtd::TOKEN)?;
        Ok(Token::from(token).active())
    }

    /// The qTD an inactive queue head goes on with (EHCI 4.10.2).
    fn candidate<M: GuestMemory + ?Sized>(
        &self,
        engine: &Engine<'_, M>,
    ) -> Result<Option<u32>, DmaError> {
        if self.characteristics.inactivate() {
            return Ok(None);
        }
        let [next, alternate] = engine.memory.load_array(self.address, qh::NEXT)?;
        Ok(Pointers { next, alternate }.candidate(self.token))
    }

    /// One visit (EHCI 4.10): find the transfer, carry out up to `limit` packets of it, write back.
    ///
    /// # Errors
    /// If a structure or a buffer is not in guest RAM.
    pub(super) fn visit<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        schedule: Schedule,
        limit: Option<u8>,
        met: u64,
    ) -> Result<Visit, DmaError> {
        let (address, token) = (self.address, self.token);
        if token.halted() || !token.active() {
            // Whatever the device was asked for before, it is not asked for any more.
            if !engine.waiting.is_empty() {
                engine.waiting.drop_transfer(engine.ports, schedule, address);
            }
        }
        if token.halted() {
            return Ok(Visit::Idle);
        }
        if token.active() {
            let overlay = Overlay::load(&engine.memory, address, token)?;
            let holds = !engine.waiting.is_empty()
                && engine.waiting.holds(
                    engine.ports,
                    (schedule, address),
                    self.identity(&overlay),
                    (engine.turn, engine.microframe),
                    met,
                );
            if holds {
                return Ok(Visit::Waits);
            }
            return self.execute(engine, schedule, overlay, limit, met);
        }
        let Some(candidate) = self.candidate(engine)? else {
            return Ok(Visit::Idle);
        };
        match Overlay::fetch(&engine.memory, candidate, self.characteristics, token)? {
            // A qTD that is halted and active stops the queue as soon as it is in the overlay.
            Some(overlay) if overlay.token.halted() => {
                overlay.store(&engine.memory, address, &overlay)?;
                Ok(Visit::Idle)
            }
            Some(overlay) => self.execute(engine, schedule, overlay, limit, met),
            None => Ok(Visit::Idle),
        }
    }

    /// Carries out the transfer in `overlay` as far as it goes.
    fn execute<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        schedule: Schedule,
        mut overlay: Overlay,
        limit: Option<u8>,
        met: u64,
    ) -> Result<Visit, DmaError> {
        let read = overlay;
        let total = overlay.token.total();
        let mut done = Done::default();
        if let Some(pid) = self.well_formed(&mut overlay) {
            done = self.transact(engine, pid, &mut overlay, limit)?;
            self.apply(schedule, pid, &mut overlay, &mut done);
            if let Some(until) = done.until(schedule, engine)
                && overlay.token.active()
            {
                let wait = Wait {
                    schedule,
                    queue_head: self.address,
                    identity: self.identity(&overlay),
                    until,
                    pending: done.outcome.status == Status::Pending,
                    port: done.port.unwrap_or(usize::MAX),
                    endpoint: self.endpoint(pid),
                    address: self.characteristics.address(),
                };
                engine.waiting.begin(engine.ports, wait, met);
            }
            if self.characteristics.endpoint() == 0
                && done.packets != 0
                && let Some(port) = done.port
            {
                engine.waiting.ask_again(port, self.characteristics.address());
            }
        }
        overlay.store(&engine.memory, self.address, &read)?;
        engine.interrupts.post(events(overlay.token));
        let bytes = u32::from(total.saturating_sub(overlay.token.total()));
        let progress = done.packets != 0 || !overlay.token.active();
        Ok(Visit::Executed { bytes, progress })
    }

    /// The PID of a transfer that can be carried out; otherwise ends it (EHCI leaves these cases
    /// undefined; the queue head stops, nothing else does).
    fn well_formed(&self, overlay: &mut Overlay) -> Option<Pid> {
        let pid = match overlay.token.pid() {
            TokenPid::Out => Some(Pid::Out),
            TokenPid::In => Some(Pid::In),
            TokenPid::Setup => Some(Pid::Setup),
            TokenPid::Reserved => None,
        };
        let pid = pid.filter(|_| self.characteristics.speed() != EndpointSpeed::Reserved);
        if pid.is_none() {
            overlay.halt();
            return None;
        }
        let total = u32::from(overlay.token.total());
        if total != 0 && self.packet() == 0 {
            // Packets of no bytes would never come to an end.
            overlay.transaction_error();
            if overlay.token.cerr() == 0 {
                overlay.halt();
            }
            return None;
        }
        if total != 0 && self.fitting(overlay) == 0 {
            overlay.token.set_data_buffer_error(true);
            overlay.halt();
            return None;
        }
        pid
    }

    fn packet(&self) -> u16 {
        self.characteristics.max_packet().min(LARGEST_PACKET)
    }

    /// How much of the transfer the buffer pages hold, in whole packets if not all.
    fn fitting(&self, overlay: &Overlay) -> u32 {
        let (total, room) = (u32::from(overlay.token.total()), overlay.room());
        if total <= room {
            return total;
        }
        let tail = room.checked_rem(self.packet().into()).unwrap_or(0);
        room.saturating_sub(tail)
    }

    fn endpoint(&self, pid: Pid) -> EndpointAddress {
        match (self.characteristics.endpoint(), pid) {
            (0, _) => EndpointAddress::CONTROL,
            (number, Pid::In) => EndpointAddress::r#in(number),
            (number, _) => EndpointAddress::out(number),
        }
    }

    /// Hands the transfer to the device.
    fn transact<M: GuestMemory + ?Sized>(
        &self,
        engine: &Engine<'_, M>,
        pid: Pid,
        overlay: &mut Overlay,
        limit: Option<u8>,
    ) -> Result<Done, DmaError> {
        let packet = self.packet();
        let mut asked = self.fitting(overlay);
        if let Some(limit) = limit {
            asked = asked.min(u32::from(packet).saturating_mul(limit.into()));
        }
        let mut buffer = engine.memory.dma.buffer(&overlay.segments(asked))?;
        let transfer = Transfer {
            pid,
            endpoint: self.characteristics.endpoint(),
            max_packet: packet,
            toggle: Toggle::from_bit(overlay.token.toggle()),
            now: engine.now,
            buffer: &mut buffer,
        };
        let (port, outcome) = if self.characteristics.speed() == EndpointSpeed::High {
            engine.offer(self.characteristics.address(), |function| function.transact(transfer))
        } else {
            // Split transactions: no hub with a transaction translator answers yet.
            (None, Outcome::TIMEOUT)
        };
        // A device cannot move more than it was offered.
        let bytes = u32::try_from(outcome.bytes).unwrap_or(u32::MAX).min(asked);
        let outcome = Outcome { bytes: bytes as usize, ..outcome };
        let packets = outcome.packets(pid, asked as usize, packet);
        Ok(Done { port, outcome, asked, bytes, packets, again: Again::No })
    }

    /// What the outcome does to the overlay (EHCI 4.10.3, 4.11).
    fn apply(&self, schedule: Schedule, pid: Pid, overlay: &mut Overlay, done: &mut Done) {
        let bulk_out = pid == Pid::Out && schedule == Schedule::Asynchronous;
        if done.packets != 0 {
            overlay.advance(done.bytes, done.packets);
            if overlay.token.cerr() != 0 {
                overlay.token.set_cerr(3);
            }
            if schedule == Schedule::Asynchronous {
                overlay.reload_nak_count(self.characteristics);
            }
            if bulk_out {
                overlay.token.set_ping(false);
            }
        }
        match done.outcome.status {
            Status::Complete => {
                let short = pid == Pid::In && done.bytes < done.asked;
                if overlay.token.total() == 0 || short {
                    overlay.token.set_active(false);
                } else if done.packets == 0 {
                    done.again = Again::NextTurn;
                }
            }
            Status::Nak(_) if pid == Pid::Setup => {
                // SETUP cannot be refused (USB 2.0, 8.4.6.4).
                overlay.transaction_error();
                done.again = Again::NextMicroframe;
            }
            Status::Nak(readiness) => {
                if bulk_out {
                    overlay.token.set_ping(true);
                }
                if schedule == Schedule::Asynchronous {
                    overlay.count_nak(self.characteristics);
                }
                done.again = match readiness {
                    Readiness::Announced => Again::WhenReady,
                    Readiness::Poll => Again::NextTurn,
                };
            }
            Status::Pending => done.again = Again::WhenReady,
            Status::Stall => overlay.halt(),
            Status::Error(BusError::Babble) => {
                overlay.token.set_babble(true);
                overlay.halt();
            }
            // The packet was acknowledged and dropped (USB 2.0, 8.6.3).
            Status::Error(BusError::ToggleMismatch) => done.again = Again::NextMicroframe,
            Status::Error(_) => {
                let ping = overlay.token.ping();
                overlay.transaction_error();
                if !bulk_out {
                    overlay.token.set_ping(ping);
                }
                done.again = Again::NextMicroframe;
            }
        }
    }
}

/// When a transfer is offered again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Again {
    #[default]
    No,
    WhenReady,
    NextTurn,
    NextMicroframe,
}

/// How an offer went.
#[derive(Clone, Copy, Debug)]
struct Done {
    /// Index of the root port the device is behind.
    port: Option<usize>,
    outcome: Outcome,
    asked: u32,
    bytes: u32,
    packets: usize,
    again: Again,
}

impl Default for Done {
    fn default() -> Self {
        Self {
            port: None,
            outcome: Outcome::complete(0),
            asked: 0,
            bytes: 0,
            packets: 0,
            again: Again::No,
        }
    }
}

impl Done {
    fn until<M: ?Sized>(&self, schedule: Schedule, engine: &Engine<'_, M>) -> Option<Until> {
        match self.again {
            Again::No => None,
            Again::WhenReady => Some(Until::Ready),
            // The S-mask says when an interrupt endpoint is asked again.
            _ if schedule == Schedule::Periodic => None,
            Again::NextTurn => Some(Until::Turn(engine.turn)),
            Again::NextMicroframe => Some(Until::Microframe(engine.microframe.saturating_add(1))),
        }
    }
}

/// What a transfer with this token raises (EHCI 4.15.1).
fn events(token: Token) -> u32 {
    if token.active() {
        return 0;
    }
    let short = token.pid() == TokenPid::In && token.total() != 0;
    let mut events = 0;
    if token.ioc() || (short && !token.halted()) {
        events |= usbsts::USBINT;
    }
    if token.halted() {
        events |= usbsts::USBERRINT;
    }
    events
}
