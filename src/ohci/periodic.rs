//! The periodic lists (OHCI 1.0a, 5.2.7.2 and 6.4.3): one for each of 32 frames.

use vm_memory::GuestMemory;

use super::lists::Walk;
use super::spec::{POINTER, hcca};
use super::transaction::{Bus, Met};
use super::{ListKind, Unrecoverable};

/// Most EDs that one frame visits. The bus has time for fewer than a hundred periodic packets; a
/// longer list is an overrun here as it is there, only later.
const EDS: u32 = 1024;

/// What came of a frame's periodic list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    /// The list was not finished: SchedulingOverrun.
    pub(super) overrun: bool,
    /// Something moved, or must be tried in the next frame that leads to it.
    pub(super) active: bool,
    /// An isochronous endpoint has TDs queued.
    pub(super) isochronous: bool,
}

/// Serves the list of frame `number`: each ED once, one packet each.
///
/// Without `isochronous` (IsochronousEnable) the list ends at the first isochronous ED. `frames` counts frames without wrapping at 16 bits.
pub(super) fn run<M: GuestMemory + ?Sized>(
    bus: &mut Bus<'_, '_, M>,
    hcca_address: u32,
    number: u16,
    frames: u32,
    isochronous: bool,
) -> Result<Served, Unrecoverable> {
    let mut served = Served::default();
    let slot = u64::from(number & 31).wrapping_mul(4);
    let table = u64::from(hcca_address).wrapping_add(hcca::INTERRUPT_TABLE);
    let mut at = bus.dma.load(table.wrapping_add(slot))? & POINTER;
    let mut left = EDS;
    let mut walk = Walk::default();
    while at != 0 {
        // An ED is due once a frame: a list that comes back to one never ends.
        if left == 0 || walk.circles(at) {
            served.overrun = true;
            break;
        }
        left = left.saturating_sub(1);
        let ed = bus.ed(at)?;
        if ed.control.f() && !isochronous {
            break;
        }
        if ed.is_live() {
            let met = if ed.control.f() {
                served.isochronous = true;
                bus.serve_isochronous(&ed, number)?
            } else {
                bus.serve(&ed, ListKind::Periodic, frames)?
            };
            served.active |= met != Met::Parked;
            if met == Met::Full {
                served.overrun = true;
                break;
            }
        }
        at = ed.next;
    }
    Ok(served)
}
