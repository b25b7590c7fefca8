//! The control and the bulk list (OHCI 1.0a, 5.2.7.1, 6.4.1 to 6.4.3).

use serde::{Deserialize, Serialize};
use vm_memory::GuestMemory;

use super::transaction::{Bus, Met};
use super::{ListKind, Unrecoverable};

/// Most EDs of one list that are visited in one frame, and again as many looked through to find the
/// place where the last one stopped. A bus can have 127 devices with 31 endpoints: an honest list is
/// shorter than this, and one without end costs no more.
const EDS: u32 = 4096;

/// Finds out whether a walk through guest memory goes in circles (Brent's algorithm).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walk {
    mark: u32,
    steps: u32,
    limit: u32,
}

impl Walk {
    /// Notes that `address` was reached; returns whether it was reached before.
    pub(super) fn circles(&mut self, address: u32) -> bool {
        if self.steps != 0 && address == self.mark {
            return true;
        }
        if self.steps == self.limit {
            self.mark = address;
            self.limit = self.limit.saturating_mul(2).max(1);
            self.steps = 0;
        }
        self.steps = self.steps.saturating_add(1);
        false
    }
}

/// Where the current pointer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Whence {
    /// The list was left there in this frame.
    ThisFrame,
    /// The list was left there in an earlier frame. The driver may have unlinked the ED since, as
    /// Linux does without stopping the list: it counts only if the head still leads to it.
    EarlierFrame,
    /// The driver wrote it; it is taken as it stands, once.
    Driver,
}

/// A [`List`] in a snapshot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListState {
    head: u32,
    current: u32,
    filled: bool,
    whence: Whence,
    again: bool,
    eds_left: u32,
}

/// One of the two lists: its registers and what the last run left.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    kind: ListKind,
    /// HcControlHeadED or HcBulkHeadED.
    pub(super) head: u32,
    /// HcControlCurrentED or HcBulkCurrentED.
    pub(super) current: u32,
    /// ControlListFilled or BulkListFilled.
    pub(super) filled: bool,
    whence: Whence,
    /// There is work that must be tried again in the next frame.
    again: bool,
    /// EDs that may still be read in this frame.
    eds_left: u32,
    /// Counts passes, so that transfers in flight can tell when the last one led to them.
    passes: u32,
}

impl List {
    pub(super) fn new(kind: ListKind) -> Self {
        Self {
            kind,
            head: 0,
            current: 0,
            filled: false,
            whence: Whence::ThisFrame,
            again: false,
            eds_left: EDS,
            passes: 0,
        }
    }

    pub(super) fn save(&self) -> ListState {
        let Self {
            kind: _,
            head,
            current,
            filled,
            whence,
            again,
            eds_left,
            // Only compared with what is in flight, and nothing is after a restore.
            passes: _,
        } = *self;
        ListState { head, current, filled, whence, again, eds_left }
    }

    pub(super) fn restore(&mut self, state: ListState) {
        let ListState { head, current, filled, whence, again, eds_left } = state;
        let eds_left = eds_left.min(EDS);
        *self = Self { head, current, filled, whence, again, eds_left, ..*self };
    }

    /// A write to the current pointer.
    pub(super) fn write_current(&mut self, address: u32) {
        self.current = address;
        self.whence = Whence::Driver;
    }

    /// Whether the next frame must look at the list.
    pub(super) fn wants_frame(&self) -> bool {
        self.again
    }

    /// A frame begins.
    pub(super) fn begin_frame(&mut self) {
        self.eds_left = EDS;
        if self.whence == Whence::ThisFrame {
            self.whence = Whence::EarlierFrame;
        }
    }

    /// The list is about to be run: forgets a current pointer that leads nowhere.
    fn check_current<M: GuestMemory + ?Sized>(
        &mut self,
        bus: &mut Bus<'_, '_, M>,
    ) -> Result<(), Unrecoverable> {
        let whence = std::mem::replace(&mut self.whence, Whence::ThisFrame);
        let old = whence == Whence::EarlierFrame && self.current != 0;
        if old && self.has_lost(self.current, bus)? {
            self.current = 0;
            self.filled = true;
        }
        Ok(())
    }

    /// Whether the head does not lead to `target` any more. Of a list that is too long to tell, it is
    /// assumed that it does, so that all of it is served some time.
    fn has_lost<M: GuestMemory + ?Sized>(
        &self,
        target: u32,
        bus: &mut Bus<'_, '_, M>,
    ) -> Result<bool, Unrecoverable> {
        let mut walk = Walk::default();
        let mut at = self.head;
        for _ in 0..EDS {
            if at == target {
                return Ok(false);
            }
            if at == 0 || walk.circles(at) {
                return Ok(true);
            }
            at = bus.ed(at)?.next;
        }
        Ok(false)
    }
}

/// A list while it is being run.
struct Runner<'a> {
    list: &'a mut List,
    /// Nothing more to do before the next frame or doorbell.
    finished: bool,
    /// The pass began at the head: at its end every ED of the list was visited.
    whole: bool,
    /// The pass moved bytes or retired a TD.
    progress: bool,
    /// EDs with a TD to process that the pass met, and the last of them.
    live: u32,
    last_live: u32,
    walk: Walk,
}

impl<'a> Runner<'a> {
    fn new<M: GuestMemory + ?Sized>(
        list: &'a mut List,
        enabled: bool,
        bus: &mut Bus<'_, '_, M>,
    ) -> Result<Self, Unrecoverable> {
        if enabled {
            list.again = false;
            list.check_current(bus)?;
        }
        // What is left of a pass that an earlier frame could not finish is not the whole list.
        let progress = list.current != 0;
        Ok(Self {
            list,
            finished: !enabled,
            whole: false,
            progress,
            live: 0,
            last_live: 0,
            walk: Walk::default(),
        })
    }

    /// Goes on to the next ED and serves it; returns whether a TD was tried.
    fn step<M: GuestMemory + ?Sized>(
        &mut self,
        bus: &mut Bus<'_, '_, M>,
    ) -> Result<bool, Unrecoverable> {
        let stays = self.list.current == 0 && self.whole && self.progress && self.live == 1;
        if self.list.current == 0 && !stays && !self.begin_pass(bus) {
            self.finished = true;
            return Ok(false);
        }
        if self.list.eds_left == 0 || bus.budget.is_spent() {
            self.try_again();
            return Ok(false);
        }
        self.list.eds_left = self.list.eds_left.saturating_sub(1);
        if stays {
            return self.stay(bus);
        }
        let address = self.list.current;
        let ed = bus.ed(address)?;
        self.list.current = if self.walk.circles(address) { 0 } else { ed.next };
        if !ed.is_live() || ed.control.f() {
            return Ok(false);
        }
        self.list.filled = true;
        self.live = self.live.saturating_add(1);
        self.last_live = address;
        match bus.serve(&ed, self.list.kind, self.list.passes)? {
            Met::Progress => self.progress = true,
            Met::Again => self.list.again = true,
            Met::Parked => {}
            Met::Full => {
                self.list.current = address;
                self.try_again();
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The pass that is over met one ED with work. Another one would only read all the others again,
    /// which a driver may have left linked by the dozen: stays with the one until it has no more.
    fn stay<M: GuestMemory + ?Sized>(
        &mut self,
        bus: &mut Bus<'_, '_, M>,
    ) -> Result<bool, Unrecoverable> {
        let ed = bus.ed(self.last_live)?;
        if !ed.is_live() || ed.control.f() {
            // As after a pass that met no TD.
            self.forget_unlinked(bus);
            self.list.filled = false;
            self.finished = true;
            return Ok(false);
        }
        match bus.serve(&ed, self.list.kind, self.list.passes)? {
            Met::Progress => {}
            Met::Parked => self.finished = true,
            Met::Again | Met::Full => self.try_again(),
        }
        Ok(true)
    }

    /// Leaves the rest to the next frame.
    fn try_again(&mut self) {
        self.list.again = true;
        self.finished = true;
    }

    /// The list is at its end: starts over if the last pass met a TD and achieved something.
    fn begin_pass<M: GuestMemory + ?Sized>(&mut self, bus: &mut Bus<'_, '_, M>) -> bool {
        let first = !self.whole && !self.progress;
        if self.whole {
            self.forget_unlinked(bus);
        }
        if !self.list.filled || !(first || self.progress) {
            return false;
        }
        self.list.filled = false;
        self.list.current = self.list.head;
        self.list.passes = self.list.passes.wrapping_add(1);
        self.whole = true;
        self.progress = false;
        self.live = 0;
        self.walk = Walk::default();
        // A list without head is empty: filled or not, it stops (5.2.7.1).
        if self.list.current == 0 {
            self.forget_unlinked(bus);
        }
        self.list.current != 0
    }

    /// Takes back what is in flight for EDs that the pass did not come to.
    fn forget_unlinked<M: GuestMemory + ?Sized>(&self, bus: &mut Bus<'_, '_, M>) {
        let (kind, passes) = (self.list.kind, self.list.passes);
        bus.hub.retain_flights(|flight| flight.offer.list != kind || flight.seen == passes);
    }
}

/// Control transactions for each bulk one, carried over from frame to frame (6.4.1).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ServiceRatio {
    control_in_a_row: u8,
}

/// Which of the two lists are enabled, and CBSR.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub(super) control: bool,
    pub(super) bulk: bool,
    pub(super) cbsr: u8,
}

/// Runs both lists until neither can do more before the next frame, or the frame's budget is spent.
pub(super) fn run<M: GuestMemory + ?Sized>(
    bus: &mut Bus<'_, '_, M>,
    control: &mut List,
    bulk: &mut List,
    ratio: &mut ServiceRatio,
    service: Service,
) -> Result<(), Unrecoverable> {
    let mut control = Runner::new(control, service.control, bus)?;
    let mut bulk = Runner::new(bulk, service.bulk, bus)?;
    while !control.finished || !bulk.finished {
        let bulks_turn = ratio.control_in_a_row > service.cbsr;
        if control.finished || (bulks_turn && !bulk.finished) {
            if bulk.step(bus)? {
                ratio.control_in_a_row = 0;
            }
        } else if control.step(bus)? {
            ratio.control_in_a_row = ratio.control_in_a_row.saturating_add(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_notices_every_circle() {
        for (tail, ring) in [(0, 1), (0, 2), (1, 1), (5, 7), (100, 1), (3, 64)] {
            let mut walk = Walk::default();
            let mut steps = 0;
            let mut at = 0u32;
            while !walk.circles(at + 16) {
                at = if at + 1 == tail + ring { tail } else { at + 1 };
                steps += 1;
                assert!(steps <= 3 * (tail + ring) + 2, "tail {tail}, ring {ring}");
            }
            assert!(steps >= ring);
        }
        let mut walk = Walk::default();
        assert!((1..10_000).all(|at| !walk.circles(at)), "a straight line is none");
    }
}
