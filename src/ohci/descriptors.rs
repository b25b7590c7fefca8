//! Endpoint and transfer descriptors in guest memory.
//!
//! Each is read once, as whole dwords, and judged by that copy; only the dwords that the controller
//! may write are written, each as one store (OHCI 1.0a, 4.2 and 4.3).

use vm_memory::GuestMemory;

use super::Unrecoverable;
use super::spec::{EdControl, EdHead, POINTER, TdControl};
use crate::dma::{Dma, DmaError};
use crate::usb::{Pid, Toggle};

/// An endpoint descriptor as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ed {
    pub(super) address: u32,
    pub(super) control: EdControl,
    pub(super) tail_p: u32,
    pub(super) head: EdHead,
    pub(super) next: u32,
}

impl Ed {
    pub(super) fn load<M: GuestMemory + ?Sized>(
        dma: &Dma<'_, M>,
        address: u32,
    ) -> Result<Self, DmaError> {
        dma.load_array(address.into()).map(|words| Self::new(address, words))
    }

    /// From its dwords.
    pub(super) fn new(address: u32, [control, tail_p, head, next]: [u32; 4]) -> Self {
        Self {
            address,
            control: EdControl::from_bits(control),
            tail_p: tail_p & POINTER,
            head: EdHead::from_bits(head),
            next: next & POINTER,
        }
    }

    /// Address of the first TD.
    pub(super) fn head_p(&self) -> u32 {
        self.head.into_bits() & POINTER
    }

    /// Whether there is a TD to process: not skipped, not halted, not empty.
    pub(super) fn is_live(&self) -> bool {
        !self.control.k() && !self.head.h() && self.head_p() != self.tail_p
    }

    /// Moves the queue on; the last store that retiring a TD makes.
    pub(super) fn store_head<M: GuestMemory + ?Sized>(
        &self,
        dma: &Dma<'_, M>,
        head_p: u32,
        carry: Toggle,
        halted: bool,
    ) -> Result<(), DmaError> {
        let head = EdHead::from_bits(head_p & POINTER).with_c(carry.bit()).with_h(halted);
        dma.store(u64::from(self.address).wrapping_add(8), head.into_bits())
    }
}

/// A general transfer descriptor as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Td {
    pub(super) address: u32,
    pub(super) control: TdControl,
    pub(super) cbp: u32,
    pub(super) next_td: u32,
    pub(super) be: u32,
}

const PAGE: u32 = 0x1000;
const OFFSET: u32 = PAGE - 1;

impl Td {
    pub(super) fn load<M: GuestMemory + ?Sized>(
        dma: &Dma<'_, M>,
        address: u32,
    ) -> Result<Self, DmaError> {
        let [control, cbp, next_td, be] = dma.load_array(address.into())?;
        Ok(Self {
            address,
            control: TdControl::from_bits(control),
            cbp,
            next_td: next_td & POINTER,
            be,
        })
    }

    /// The token: the ED's direction, or the TD's own if the ED leaves it open.
    pub(super) fn pid(&self, ed: EdControl) -> Option<Pid> {
        match (ed.d(), self.control.dp()) {
            (1, _) | (0 | 3, 1) => Some(Pid::Out),
            (2, _) | (0 | 3, 2) => Some(Pid::In),
            (_, 0) => Some(Pid::Setup),
            _ => None,
        }
    }

    /// Toggle of the next packet.
    pub(super) fn toggle(&self, carry: bool) -> Toggle {
        match self.control.t() {
            2 => Toggle::Data0,
            3 => Toggle::Data1,
            _ => Toggle::from_bit(carry),
        }
    }

    /// Bytes left, 0 to 8192: never more than two pages, whatever CBP and BE say.
    pub(super) fn len(&self) -> Result<u32, Unrecoverable> {
        let [first, second] = self.pages()?;
        Ok(first.saturating_add(second))
    }

    /// Bytes left in CBP's page and in BE's.
    fn pages(&self) -> Result<[u32; 2], Unrecoverable> {
        let end = (self.be & OFFSET).wrapping_add(1);
        let start = self.cbp & OFFSET;
        if self.cbp == 0 {
            return Ok([0, 0]);
        }
        if self.cbp & !OFFSET != self.be & !OFFSET {
            return Ok([PAGE.wrapping_sub(start), end]);
        }
        // BE one below CBP is how some drivers say "no bytes"; less than that is nonsense.
        let len = end.checked_sub(start).ok_or(Unrecoverable::Malformed(self.address))?;
        Ok([len, 0])
    }

    /// Where the next `len` bytes are.
    pub(super) fn segments(&self, len: u32) -> Result<[(u64, u32); 2], Unrecoverable> {
        let [first, second] = self.pages()?;
        let first = first.min(len);
        let second = second.min(len.saturating_sub(first));
        Ok([(self.cbp.into(), first), ((self.be & !OFFSET).into(), second)])
    }

    /// CurrentBufferPointer after `bytes` more bytes; 0 when none are left.
    pub(super) fn cbp_after(&self, bytes: u32) -> Result<u32, Unrecoverable> {
        let [first, second] = self.pages()?;
        Ok(if bytes >= first.saturating_add(second) {
            0
        } else if bytes < first || second == 0 {
            self.cbp.wrapping_add(bytes)
        } else {
            (self.be & !OFFSET).wrapping_add(bytes.wrapping_sub(first))
        })
    }

    /// Writes what differs from `before`; the dword with the condition code last.
    pub(super) fn store<M: GuestMemory + ?Sized>(
        &self,
        dma: &Dma<'_, M>,
        before: &Self,
    ) -> Result<(), DmaError> {
        let at = |offset| u64::from(self.address).wrapping_add(offset);
        if self.cbp != before.cbp {
            dma.store(at(4), self.cbp)?;
        }
        if self.next_td != before.next_td {
            dma.store(at(8), self.next_td)?;
        }
        if self.control != before.control {
            dma.store(at(0), self.control.into_bits())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn td(cbp: u32, be: u32) -> Td {
        Td { address: 0, control: TdControl::new(), cbp, next_td: 0, be }
    }

    #[test]
    fn a_buffer_has_at_most_two_pages() {
        assert_eq!(td(0, 0xffff_ffff).len(), Ok(0), "CBP 0 is no bytes whatever BE says");
        assert_eq!(td(0x1000, 0x0fff).len(), Ok(0x2000), "BE on the page before is another page");
        assert_eq!(td(0x1010, 0x100f).len(), Ok(0), "BE one below CBP");
        assert_eq!(td(0x1010, 0x100e).len(), Err(Unrecoverable::Malformed(0)));
        assert_eq!(td(0x1000, 0x7fff_ffff).len(), Ok(8192));
        assert_eq!(td(0xffff_fff0, 0xf).len(), Ok(32));
    }

    #[test]
    fn the_second_page_is_the_one_of_the_buffer_end() {
        let td = td(0x1ff0, 0x8_000f);
        assert_eq!(td.segments(32), Ok([(0x1ff0, 16), (0x8_0000, 16)]));
        assert_eq!(td.segments(20), Ok([(0x1ff0, 16), (0x8_0000, 4)]));
        assert_eq!(td.cbp_after(15), Ok(0x1fff));
        assert_eq!(td.cbp_after(16), Ok(0x8_0000));
        assert_eq!(td.cbp_after(31), Ok(0x8_000f));
        assert_eq!(td.cbp_after(32), Ok(0));
    }
}
