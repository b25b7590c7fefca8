//! Access to the structures of the schedules in guest memory.

use vm_memory::GuestMemory;

use crate::dma::{Dma, DmaError, guard_first, guard_last};

/// Guest memory as the schedules see it: 32-bit pointers in the segment of CTRLDSSEGMENT.
pub(super) struct Structures<'a, M: ?Sized> {
    pub dma: Dma<'a, M>,
    /// CTRLDSSEGMENT as the upper half of an address.
    pub segment: u64,
    /// Whether structures have the dwords of 64-bit addressing (HCCPARAMS bit 0, EHCI appendix B).
    pub wide: bool,
}

impl<M: GuestMemory + ?Sized> Structures<'_, M> {
    /// The address of a structure's part. A part that begins behind the end of its 4 GiB is at their
    /// start.
    fn at(&self, structure: u32, offset: u32) -> u64 {
        self.segment | u64::from(structure.wrapping_add(offset))
    }

    pub(super) fn load(&self, structure: u32, offset: u32) -> Result<u32, DmaError> {
        self.dma.load(self.at(structure, offset))
    }

    pub(super) fn load_array<const N: usize>(
        &self,
        structure: u32,
        offset: u32,
    ) -> Result<[u32; N], DmaError> {
        self.dma.load_array(self.at(structure, offset))
    }

    /// Dwords that only exist with 64-bit addressing; zeros without.
    pub(super) fn load_wide<const N: usize>(
        &self,
        structure: u32,
        offset: u32,
    ) -> Result<[u32; N], DmaError> {
        if self.wide { self.load_array(structure, offset) } else { Ok([0; N]) }
    }

    /// The first dwords of a structure: `SHORT` of them, and up to `LONG` with 64-bit addressing. The one
    /// at index `guard` is loaded first, and the others only if it is `wanted`; those that do not exist
    /// are zero.
    pub(super) fn load_guarded<const SHORT: usize, const LONG: usize>(
        &self,
        structure: u32,
        guard: usize,
        wanted: impl FnOnce(u32) -> bool,
    ) -> Result<Option<[u32; LONG]>, DmaError> {
        let count = if self.wide { LONG } else { SHORT };
        if self.wraps(structure, count) {
            return guard_first(count, guard, wanted, |n| self.load(structure, dword(n)));
        }
        self.dma.load_guarded(self.at(structure, 0), count, guard, wanted)
    }

    /// Stores dwords from dword `first` on, the one at index `guard` last; those from `short` on only
    /// exist with 64-bit addressing.
    pub(super) fn store_guarded(
        &self,
        (structure, first): (u32, usize),
        values: &[u32],
        short: usize,
        guard: usize,
    ) -> Result<(), DmaError> {
        let short = if self.wide { values.len() } else { short };
        let values = values.get(..short).unwrap_or(values);
        if self.wraps(structure, first.saturating_add(values.len())) {
            return guard_last(guard, values, |n, value| {
                self.store(structure, dword(n.saturating_add(first)), value)
            });
        }
        self.dma.store_guarded(self.at(structure, dword(first)), values, guard)
    }

    /// Whether a structure of so many dwords runs over its 4 GiB.
    fn wraps(&self, structure: u32, count: usize) -> bool {
        structure.checked_add(dword(count)).is_none()
    }

    pub(super) fn store(&self, structure: u32, offset: u32, value: u32) -> Result<(), DmaError> {
        self.dma.store(self.at(structure, offset), value)
    }
}

/// Offset of a structure's dword `n`.
fn dword(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX).saturating_mul(4)
}
