//! Queue heads: what a visit finds, and what it leaves behind (EHCI 4.10).

use vm_memory::GuestMemory;

use super::engine::Engine;
use super::overlay::{Overlay, Pointers};
use super::spec::{
    Capabilities, Characteristics, EndpointSpeed, Link, Token, TokenPid, qh, qtd, usbsts,
};
use super::structures::Structures;
use super::waiting::{Identity, Schedule, Until, Wait};
use crate::dma::DmaError;
use crate::usb::{EndpointAddress, Pid};

/// Largest packet of a high-speed endpoint in bytes (EHCI 3.6.2).
const LARGEST_PACKET: u16 = 1024;

/// The first part of a queue head, as much as it takes to decide whether to go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueHead {
    pub address: u32,
    pub link: Link,
    pub characteristics: Characteristics,
    pub capabilities: Capabilities,
    /// Current qTD.
    pub current: u32,
    pub pointers: Pointers,
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

/// What a visit finds to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    /// The transfer in the overlay, new or under way.
    Transfer(Overlay),
    /// Nothing now.
    Nothing(Visit),
}

/// When a transfer is offered again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Again {
    #[default]
    No,
    WhenReady,
    NextTurn,
    NextMicroframe,
}

/// How an attempt at a transfer went, besides what it did to the overlay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempt {
    /// Index of the root port the device is behind.
    pub port: Option<usize>,
    /// Data packets that were acknowledged.
    pub packets: usize,
    /// Whether the device may have begun and holds the transfer.
    pub pending: bool,
    pub again: Again,
}

impl Attempt {
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

impl QueueHead {
    /// Reads a queue head, the dword that guards the others first.
    pub(super) fn load<M: GuestMemory + ?Sized>(
        memory: &Structures<'_, M>,
        address: u32,
    ) -> Result<Self, DmaError> {
        let dwords = memory.load_guarded::<7, 7>(address, qh::TOKEN_INDEX, |_| true)?;
        let [link, characteristics, capabilities, current, next, alternate, token] =
            dwords.unwrap_or_default();
        Ok(Self {
            address,
            link: Link(link),
            characteristics: characteristics.into(),
            capabilities: capabilities.into(),
            current: current & !0x1f,
            pointers: Pointers { next, alternate },
            token: token.into(),
        })
    }

    /// Whether the endpoint is behind a transaction translator.
    pub(super) fn is_split(&self) -> bool {
        matches!(self.characteristics.speed(), EndpointSpeed::Full | EndpointSpeed::Low)
    }

    /// The transfer in the overlay as the visit found it.
    fn present(&self) -> Identity {
        Identity {
            characteristics: self.characteristics.into(),
            qtd: self.current,
            token: self.token.into(),
        }
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
            let key = (schedule, self.address);
            return Ok(!engine.waiting.is_held(key, self.present(), met));
        }
        let Some(candidate) = self.candidate() else {
            return Ok(false);
        };
        let token = engine.memory.load(candidate, qtd::TOKEN)?;
        Ok(Token::from(token).active())
    }

    /// The qTD an inactive queue head goes on with (EHCI 4.10.2).
    fn candidate(&self) -> Option<u32> {
        if self.characteristics.inactivate() {
            return None;
        }
        self.pointers.candidate(self.token)
    }

    /// The transfer to go on with: the one in the overlay, or the next qTD (EHCI 4.10.1, 4.10.2).
    ///
    /// # Errors
    /// If a structure is not in guest RAM.
    pub(super) fn find<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        schedule: Schedule,
        met: u64,
    ) -> Result<Found, DmaError> {
        let (address, token) = (self.address, self.token);
        if (token.halted() || !token.active()) && !engine.waiting.is_empty() {
            // Whatever the device was asked for before, it is not asked for any more.
            engine.waiting.drop_transfer(engine.ports, schedule, address);
        }
        if token.halted() {
            return Ok(Found::Nothing(Visit::Idle));
        }
        if token.active() {
            let holds = !engine.waiting.is_empty()
                && engine.waiting.holds(
                    engine.ports,
                    (schedule, address),
                    self.present(),
                    (engine.turn, engine.microframe),
                    met,
                );
            if holds {
                return Ok(Found::Nothing(Visit::Waits));
            }
            return Ok(Found::Transfer(Overlay::load(&engine.memory, self)?));
        }
        let Some(candidate) = self.candidate() else {
            return Ok(Found::Nothing(Visit::Idle));
        };
        match Overlay::fetch(&engine.memory, candidate, self.characteristics, token)? {
            // A qTD that is halted and active stops the queue as soon as it is in the overlay.
            Some(overlay) if overlay.token.halted() => {
                overlay.store(&engine.memory, address, &overlay)?;
                Ok(Found::Nothing(Visit::Idle))
            }
            Some(overlay) => Ok(Found::Transfer(overlay)),
            None => Ok(Found::Nothing(Visit::Idle)),
        }
    }

    /// Ends a visit that carried out something: what waits is noted, memory is written, and then
    /// events are raised. `read` is the overlay as the visit found it.
    ///
    /// # Errors
    /// If a structure is not in guest RAM.
    pub(super) fn finish<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        (schedule, met): (Schedule, u64),
        (read, overlay): (&Overlay, &Overlay),
        attempt: &Attempt,
    ) -> Result<Visit, DmaError> {
        if let Some(until) = attempt.until(schedule, engine)
            && overlay.token.active()
        {
            let wait = Wait {
                schedule,
                queue_head: self.address,
                identity: self.identity(overlay),
                until,
                pending: attempt.pending,
                port: attempt.port.unwrap_or(usize::MAX),
                endpoint: self.endpoint(overlay.token.pid()),
                address: self.characteristics.address(),
            };
            engine.waiting.begin(engine.ports, wait, met);
        }
        if self.characteristics.endpoint() == 0
            && attempt.packets != 0
            && let Some(port) = attempt.port
        {
            engine.waiting.ask_again(port, self.characteristics.address());
        }
        overlay.store(&engine.memory, self.address, read)?;
        engine.interrupts.post(events(overlay.token));
        let bytes = read.token.total().saturating_sub(overlay.token.total()).into();
        let progress = attempt.packets != 0 || !overlay.token.active();
        Ok(Visit::Executed { bytes, progress })
    }

    /// The PID of a transfer that can be carried out; otherwise ends it (EHCI leaves these cases
    /// undefined; the queue head stops, nothing else does).
    pub(super) fn well_formed(&self, overlay: &mut Overlay) -> Option<Pid> {
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

    /// Largest packet in bytes.
    pub(super) fn packet(&self) -> u16 {
        self.characteristics.max_packet().min(LARGEST_PACKET)
    }

    /// How much of the transfer the buffer pages hold, in whole packets if not all.
    pub(super) fn fitting(&self, overlay: &Overlay) -> u32 {
        let (total, room) = (u32::from(overlay.token.total()), overlay.room());
        if total <= room {
            return total;
        }
        let tail = room.checked_rem(self.packet().into()).unwrap_or(0);
        room.saturating_sub(tail)
    }

    fn endpoint(&self, pid: TokenPid) -> EndpointAddress {
        match (self.characteristics.endpoint(), pid) {
            (0, _) => EndpointAddress::CONTROL,
            (number, TokenPid::In) => EndpointAddress::r#in(number),
            (number, _) => EndpointAddress::out(number),
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
