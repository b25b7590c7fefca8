//! The asynchronous schedule: a ring of queue heads (EHCI 4.8).

use serde::{Deserialize, Serialize};
use vm_memory::GuestMemory;

use super::engine::Engine;
use super::polling::Ring;
use super::queue_head::{QueueHead, Visit};
use super::spec::{Characteristics, Link, qh};
use super::waiting::Schedule;
use super::{split, transaction};
use crate::dma::DmaError;

/// Queue heads visited in one turn. A ring is as long as the guest likes; what is left is visited in
/// the next turn, which begins where this one stopped.
const VISITS: u32 = 1024;
/// Transfers finished in one turn, so that a stream of empty ones leaves room for register accesses.
const TRANSFERS: u32 = 256;
/// Bytes moved in one turn, for the same reason: about 50 us of copying.
const BYTES: u32 = 512 << 10;
/// Transfers of one queue head in a row while it is the only one with work.
const RUN: u32 = 16;

const SCHEDULE: Schedule = Schedule::Asynchronous;

/// The asynchronous schedule.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AsyncSchedule {
    /// ASYNCLISTADDR: the next queue head to visit.
    pub address: u32,
    /// USBSTS.Reclamation: something was carried out since the head of the ring was met.
    pub reclamation: bool,
    /// Visits so far.
    step: u64,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Whether any transfer moved on.
    pub progress: bool,
    /// Whether the turn ended before the work did.
    pub more: bool,
    pub ring: Ring,
}

/// An [`AsyncSchedule`] in a snapshot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AsyncState {
    address: u32,
    reclamation: bool,
}

impl AsyncSchedule {
    pub(super) fn save(&self) -> AsyncState {
        // Visits are only compared with what waits, and nothing does after a restore.
        let Self { address, reclamation, step: _ } = *self;
        AsyncState { address, reclamation }
    }

    pub(super) fn restore(&mut self, state: AsyncState) {
        let AsyncState { address, reclamation } = state;
        *self = Self { address, reclamation, step: self.step };
    }

    /// Walks the ring until nothing in it can go on (EHCI 4.8.3), the turn's budget is used up, or
    /// there is an interrupt to deliver. A high-speed queue head is given `park` transfers in a row.
    ///
    /// # Errors
    /// If a structure or a buffer is not in guest RAM.
    pub(super) fn run<M: GuestMemory + ?Sized>(
        &mut self,
        engine: &mut Engine<'_, M>,
        park: u32,
    ) -> Result<Turn, DmaError> {
        let mut turn = Turn::default();
        let (mut transfers, mut bytes, mut run) = (0u32, 0u32, 0u32);
        let mut last_worker = None;
        let mut lap = Lap::new(self.address, self.step);
        self.reclamation = true;
        for _ in 0..VISITS {
            self.step = self.step.wrapping_add(1);
            let head = QueueHead::load(&engine.memory, self.address)?;
            if head.characteristics.head() && !std::mem::take(&mut self.reclamation) {
                return Ok(turn);
            }
            let visit = if head.is_split() {
                split::visit(&head, engine, self.step)?
            } else {
                transaction::visit(&head, engine, SCHEDULE, None, self.step)?
            };
            let mut stay = false;
            match visit {
                Visit::Executed { bytes: moved, progress } => {
                    self.reclamation = true;
                    turn.ring = Ring::Live;
                    turn.progress |= progress;
                    bytes = bytes.saturating_add(moved);
                    transfers = transfers.saturating_add(u32::from(progress));
                    // No other queue head did anything since this one did: it may go on.
                    let alone = last_worker == Some(head.address);
                    let limit = if alone {
                        RUN
                    } else if head.is_split() {
                        0
                    } else {
                        park.saturating_sub(1)
                    };
                    stay = progress && run < limit;
                    run = if stay { run.saturating_add(1) } else { 0 };
                    last_worker = (alone || !stay).then_some(head.address);
                }
                // The ring's own head, which is never given work by most drivers, does not count.
                Visit::Idle if !head.characteristics.head() || !head.token.halted() => {
                    turn.ring = Ring::Live;
                }
                Visit::Idle | Visit::Waits => {}
            }
            if !stay {
                run = 0;
                self.address = head.link.address();
            }
            if matches!(visit, Visit::Executed { .. }) {
                lap = Lap::new(self.address, self.step);
                let spent = transfers >= TRANSFERS || bytes >= BYTES;
                if spent || engine.interrupts.wants_out(engine.now) {
                    turn.more = true;
                    return Ok(turn);
                }
            } else if let Some(since) = lap.closed(self.address, self.step) {
                engine.waiting.sweep(engine.ports, SCHEDULE, since);
                return Ok(turn);
            }
        }
        turn.more = turn.progress;
        Ok(turn)
    }

    /// The doorbell (EHCI 4.8.2): whatever the ring does not hold any more is forgotten, so that the
    /// guest may be told.
    ///
    /// The ring is what is met from its head until the head is met again; if that takes too long, it
    /// is what was met so far.
    ///
    /// # Errors
    /// If a queue head is not in guest RAM.
    pub(super) fn advance<M: GuestMemory + ?Sized>(
        &mut self,
        engine: &mut Engine<'_, M>,
    ) -> Result<(), DmaError> {
        let mut head = None;
        let mut held = false;
        let mut at = self.address;
        let mut since = self.step.wrapping_add(1);
        for _ in 0..VISITS {
            self.step = self.step.wrapping_add(1);
            let [link, characteristics] = engine.memory.load_array(at, qh::LINK)?;
            if head == Some(at) {
                break;
            }
            if head.is_none() && Characteristics::from(characteristics).head() {
                head = Some(at);
                held = false;
                since = self.step;
            }
            engine.waiting.meet(SCHEDULE, at, self.step);
            held |= at == self.address;
            at = Link(link).address();
        }
        engine.waiting.sweep(engine.ports, SCHEDULE, since);
        if let Some(head) = head.filter(|_| !held) {
            self.address = head;
        }
        Ok(())
    }
}

/// Finds out that a walk comes round without anything being carried out, in any list a guest can
/// build: the mark moves ahead at growing distances, so a cycle that excludes the start is found too.
#[derive(Clone, Copy, Debug)]
struct Lap {
    mark: u32,
    since: u64,
    left: u32,
    span: u32,
}

impl Lap {
    /// Begins at the queue head `mark`, which is visited after step `step`.
    fn new(mark: u32, step: u64) -> Self {
        Self { mark, since: step.wrapping_add(1), left: 2, span: 2 }
    }

    /// The walk arrives at `address` after `step`; if that closes a cycle, the step in which the
    /// cycle began.
    fn closed(&mut self, address: u32, step: u64) -> Option<u64> {
        if address == self.mark {
            return Some(self.since);
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.span = self.span.saturating_mul(2);
            *self = Self {
                mark: address,
                since: step.wrapping_add(1),
                left: self.span,
                span: self.span,
            };
        }
        None
    }
}
