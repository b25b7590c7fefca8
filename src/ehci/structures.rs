//! Access to the structures of the schedules in guest memory.

use vm_memory::GuestMemory;

use crate::dma::{Dma, DmaError};

/// Guest memory as the schedules see it: 32-bit pointers in the segment of CTRLDSSEGMENT.
pub(super) struct Structures<'a, M: ?Sized> {
    pub dma: Dma<'a, M>,
    /// CTRLDSSEGMENT as the upper half of an address.
    pub segment: u64,
    /// Whether structures have the dwords of 64-bit addressing (HCCPARAMS bit 0, EHCI appendix B).
    pub wide: bool,
}

impl<M: GuestMemory + ?Sized> Structures<'_, M> {
    /// The address of a structure's dword. A structure that runs over its 4 GiB goes on at their
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

    pub(super) fn store(&self, structure: u32, offset: u32, value: u32) -> Result<(), DmaError> {
        self.dma.store(self.at(structure, offset), value)
    }

    pub(super) fn store_array(
        &self,
        structure: u32,
        offset: u32,
        values: &[u32],
    ) -> Result<(), DmaError> {
        self.dma.store_array(self.at(structure, offset), values)
    }

    /// Dwords that only exist with 64-bit addressing; without, nothing is written.
    pub(super) fn store_wide(
        &self,
        structure: u32,
        offset: u32,
        values: &[u32],
    ) -> Result<(), DmaError> {
        if self.wide { self.store_array(structure, offset, values) } else { Ok(()) }
    }
}
