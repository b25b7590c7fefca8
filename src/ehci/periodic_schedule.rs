//! The periodic schedule: the frame list and what hangs off it (EHCI 4.6).

use serde::{Deserialize, Serialize};
use vm_memory::GuestMemory;

use super::clock::Microframe;
use super::engine::Engine;
use super::queue_head::{QueueHead, Visit};
use super::spec::{Element, Link, MICROFRAMES};
use super::waiting::Schedule;
use super::{itd, sitd, split, transaction};
use crate::dma::DmaError;

/// Elements visited in one microframe. A guest can link its list into a ring or hang thousands of
/// elements in one frame; the rest misses its turn as on a bus that is full.
const ELEMENTS: u32 = 1024;
/// Elements visited in one turn of the controller, however many microframes it has to catch up: some
/// full ones, or many with what real drivers link; about a millisecond of work.
const TURN_ELEMENTS: u32 = 8192;
/// Bytes that fit in a microframe of 125 us at 480 Mbit/s. What does not fit misses its turn.
const MICROFRAME_BYTES: u32 = 7500;
/// Elements looked at in one look ahead: a frame list of 1024 entries with a few shared queue heads.
/// A longer list is looked at piece by piece.
const LOOK_AHEAD: u32 = 4096;

/// The microframes in which an FSTN leads back to the frame before (EHCI 4.12.2.2.1).
const SPAN_MICROFRAMES: u8 = 0b11;
/// Idle branches that a look ahead remembers.
const REMEMBERED: usize = 4;

const SCHEDULE: Schedule = Schedule::Periodic;

/// The periodic schedule.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeriodicSchedule {
    /// PERIODICLISTBASE.
    pub base: u32,
    /// USBSTS.PSS: PSE as it was at the last frame boundary.
    pub active: bool,
    /// Entries in the frame list, a power of two (USBCMD.FLS).
    pub entries: u32,
}

/// The next microframe in which something is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// There is work, or the look ahead ended here.
    At(Microframe),
    /// Nothing in the list will do anything unless the guest or a device acts.
    Never,
}

/// What one turn of the controller may do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    elements: u32,
    /// Microframes in which something was due, and done.
    ran: u64,
    /// Microframes that it did not suffice for.
    missed: u64,
}

impl Budget {
    pub(super) fn turn() -> Self {
        Self { elements: TURN_ELEMENTS, ran: 0, missed: 0 }
    }

    /// Microframes in which something was due, and done.
    pub(super) fn ran(&self) -> u64 {
        self.ran
    }

    /// Microframes that were not carried out.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }
}

impl PeriodicSchedule {
    /// Carries out the microframes `from` to `to`; returns whether there was anything to do. If the
    /// budget is used up, the rest of the microframes is missed.
    ///
    /// # Errors
    /// If a structure or a buffer is not in guest RAM.
    pub(super) fn run<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        from: Microframe,
        to: Microframe,
        budget: &mut Budget,
    ) -> Result<bool, DmaError> {
        let mut at = from;
        let mut any = false;
        // A list in which nothing acts is the same in the next frame, as long as nothing is carried out.
        let mut idle = None;
        // Every round moves `at` on by a microframe at least.
        while at <= to && budget.elements != 0 {
            let frame_end = at | (MICROFRAMES - 1);
            let entry = self.entry(engine, at)?;
            if idle == Some(entry) {
                at = frame_end.saturating_add(1);
                continue;
            }
            let looked_at = ELEMENTS.min(budget.elements);
            let mut left = looked_at;
            let busy = self.busy(engine, entry, at, &mut left)?;
            let looked_at = looked_at.saturating_sub(left).max(1);
            budget.elements = budget.elements.saturating_sub(looked_at);
            let ahead = busy.wrapping_shr(slot(at));
            idle = (busy == 0).then_some(entry);
            if ahead == 0 {
                at = frame_end.saturating_add(1);
                continue;
            }
            at = at.saturating_add(u64::from(ahead.trailing_zeros()));
            if at > to {
                break;
            }
            self.microframe(engine, entry, at, budget, false)?;
            budget.ran = budget.ran.saturating_add(1);
            any = true;
            at = at.saturating_add(1);
        }
        budget.missed = budget.missed.saturating_add(to.saturating_add(1).saturating_sub(at));
        Ok(any)
    }

    /// Completes, in the microframes `from` to `to`, the split transactions of interrupt endpoints that
    /// were started before them. Nothing else is carried out.
    ///
    /// # Errors
    /// If a structure or a buffer is not in guest RAM.
    pub(super) fn complete_splits<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        from: Microframe,
        to: Microframe,
        budget: &mut Budget,
    ) -> Result<(), DmaError> {
        for at in from..=to {
            let entry = self.entry(engine, at)?;
            self.microframe(engine, entry, at, budget, true)?;
        }
        Ok(())
    }

    /// When there is something to do next, from `from` on, as the list is now. What cannot be read
    /// counts as work: the error belongs into its microframe.
    pub(super) fn look_ahead<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        from: Microframe,
    ) -> Next {
        let mut budget = LOOK_AHEAD;
        let mut at = from;
        // Most entries share their branch with one not far before them.
        let mut idle = [None; REMEMBERED];
        let mut oldest = 0;
        for _ in 0..=self.entries {
            let Ok(entry) = self.entry(engine, at) else {
                return Next::At(at);
            };
            if !idle.contains(&Some(entry)) {
                let Ok(busy) = self.busy(engine, entry, at, &mut budget) else {
                    return Next::At(at);
                };
                let ahead = busy.wrapping_shr(slot(at));
                if ahead != 0 {
                    return Next::At(at.saturating_add(u64::from(ahead.trailing_zeros())));
                }
                // Only a whole frame without work speaks for the frames like it.
                if busy == 0
                    && let Some(place) = idle.get_mut(oldest)
                {
                    *place = Some(entry);
                    oldest = oldest.wrapping_add(1) % REMEMBERED;
                }
            }
            at = (at | (MICROFRAMES - 1)).saturating_add(1);
            budget = budget.saturating_sub(1);
            if budget == 0 {
                return Next::At(at);
            }
        }
        Next::Never
    }

    fn entry<M: GuestMemory + ?Sized>(
        &self,
        engine: &Engine<'_, M>,
        at: Microframe,
    ) -> Result<Link, DmaError> {
        let index = (at / MICROFRAMES) as u32 & self.entries.saturating_sub(1);
        engine.memory.load(self.base, index.wrapping_mul(4)).map(Link)
    }

    /// The microframes of a frame, as a mask, in which an element of its list would act.
    fn busy<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        entry: Link,
        met: Microframe,
        budget: &mut u32,
    ) -> Result<u8, DmaError> {
        let mut busy = 0;
        let mut link = entry;
        while !link.terminates() && *budget != 0 {
            *budget = budget.saturating_sub(1);
            let address = link.address();
            match link.element() {
                Element::QueueHead => {
                    let head = QueueHead::load(&engine.memory, address)?;
                    let mask = if head.is_split() {
                        split::microframes(&head)
                    } else {
                        head.capabilities.s_mask()
                    };
                    if mask & !busy != 0 && head.has_work(engine, SCHEDULE, met)? {
                        busy |= mask;
                    }
                    link = head.link;
                }
                Element::IsochronousTd => {
                    busy |= itd::active(&engine.memory, address)?;
                    link = Link(engine.memory.load(address, 0)?);
                }
                Element::SplitIsochronousTd => {
                    busy |= sitd::active(&engine.memory, address)?;
                    link = Link(engine.memory.load(address, 0)?);
                }
                Element::SpanNode => {
                    let [normal, back] = engine.memory.load_array(address, 0)?;
                    if !Link(back).terminates() {
                        busy |= SPAN_MICROFRAMES;
                    }
                    link = Link(normal);
                }
            }
        }
        Ok(busy)
    }

    /// One microframe: every element whose turn it is acts, in the order of the list; with
    /// `completing`, only those do that complete what was started earlier.
    fn microframe<M: GuestMemory + ?Sized>(
        &self,
        engine: &mut Engine<'_, M>,
        entry: Link,
        at: Microframe,
        budget: &mut Budget,
        completing: bool,
    ) -> Result<(), DmaError> {
        let mut link = entry;
        let mut bytes = 0u32;
        // Where to go on after the back path of an FSTN; while that is set, only splits of the frame
        // before are completed (EHCI 4.12.2.2.1).
        let mut saved: Option<Link> = None;
        engine.microframe = at;
        for _ in 0..ELEMENTS {
            if link.terminates() || bytes >= MICROFRAME_BYTES || budget.elements == 0 {
                break;
            }
            budget.elements = budget.elements.saturating_sub(1);
            let address = link.address();
            match link.element() {
                Element::QueueHead => {
                    let head = QueueHead::load(&engine.memory, address)?;
                    if let Visit::Executed { bytes: moved, .. } =
                        visit(&head, engine, at, completing || saved.is_some())?
                    {
                        bytes = bytes.saturating_add(moved);
                    }
                    link = head.link;
                }
                Element::IsochronousTd => {
                    if saved.is_none() && !completing {
                        bytes = bytes.saturating_add(itd::execute(engine, address, slot(at))?);
                    }
                    link = Link(engine.memory.load(address, 0)?);
                }
                Element::SplitIsochronousTd => {
                    if saved.is_none() && !completing {
                        bytes = bytes.saturating_add(sitd::execute(engine, address, at)?);
                    }
                    link = Link(engine.memory.load(address, 0)?);
                }
                Element::SpanNode => {
                    let normal = Link(engine.memory.load(address, 0)?);
                    let spans = SPAN_MICROFRAMES.wrapping_shr(slot(at)) & 1 != 0;
                    link = match (spans, saved) {
                        _ if completing => normal,
                        (false, _) => normal,
                        (true, None) => {
                            // Save-Place if there is a way back, else Restore.
                            let back = Link(engine.memory.load(address, 4)?);
                            if back.terminates() {
                                normal
                            } else {
                                saved = Some(normal);
                                back
                            }
                        }
                        (true, Some(place)) => {
                            let back = Link(engine.memory.load(address, 4)?);
                            if back.terminates() {
                                saved = None;
                                place
                            } else {
                                normal
                            }
                        }
                    };
                }
            }
        }
        Ok(())
    }
}

/// One visit of an interrupt queue head in microframe `at`, if it is its turn.
fn visit<M: GuestMemory + ?Sized>(
    head: &QueueHead,
    engine: &mut Engine<'_, M>,
    at: Microframe,
    recovery: bool,
) -> Result<Visit, DmaError> {
    if head.is_split() {
        return split::visit_interrupt(head, engine, at, recovery);
    }
    if recovery || head.capabilities.s_mask().wrapping_shr(slot(at)) & 1 == 0 {
        return Ok(Visit::Idle);
    }
    let packets = Some(head.capabilities.mult().max(1));
    transaction::visit(head, engine, SCHEDULE, packets, at)
}

/// FRINDEX 2:0.
fn slot(at: Microframe) -> u32 {
    (at % MICROFRAMES) as u32
}
