//! The transfer at hand: what a qTD asks for and the overlay area keeps of it (EHCI 3.5, 3.6.3).

use smallvec::SmallVec;
use vm_memory::GuestMemory;

use super::queue_head::QueueHead;
use super::spec::{Characteristics, EndpointSpeed, SplitProgress, SplitTag, Token, qh, qtd};
use super::structures::Structures;
use crate::dma::DmaError;

/// Bytes in a page.
const PAGE: u32 = 0x1000;
/// Pages of a qTD (EHCI 3.5.4).
const PAGES: usize = 5;
/// Bit 0 of a qTD pointer: it leads nowhere.
const TERMINATE: u32 = 1;
/// NakCnt in the overlay's alternate pointer (EHCI 3.6.3).
const NAK_COUNT: u32 = 0xf << 1;

/// The five buffer pointers; the first one's low bits are the current offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Buffers {
    low: [u32; PAGES],
    /// Upper halves, zero unless structures are 64 bits wide.
    high: [u32; PAGES],
}

/// The overlay: current qTD, its pointers, token and buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overlay {
    pub current: u32,
    pub next: u32,
    pub alternate: u32,
    pub token: Token,
    buffers: Buffers,
    /// Whether the whole of it has to be written to the QH, not only what transactions change.
    fresh: bool,
}

/// Where an idle queue head may find its next qTD (EHCI 4.10.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointers {
    pub next: u32,
    pub alternate: u32,
}

impl Pointers {
    /// The qTD to look at: after a short packet the alternate one, unless there is none.
    pub(super) fn candidate(self, token: Token) -> Option<u32> {
        let short = token.total() != 0;
        let pointer =
            if short && self.alternate & TERMINATE == 0 { self.alternate } else { self.next };
        (pointer & TERMINATE == 0).then_some(pointer & !0x1f)
    }
}

impl Overlay {
    /// The overlay of a queue head.
    pub(super) fn load<M: GuestMemory + ?Sized>(
        memory: &Structures<'_, M>,
        head: &QueueHead,
    ) -> Result<Self, DmaError> {
        Ok(Self {
            current: head.current,
            next: head.pointers.next,
            alternate: head.pointers.alternate,
            token: head.token,
            buffers: Buffers {
                low: memory.load_array(head.address, qh::BUFFERS)?,
                high: memory.load_wide(head.address, qh::BUFFERS_HIGH)?,
            },
            fresh: false,
        })
    }

    /// The qTD at `address` as the new overlay of a queue head whose token was `before`; `None` if it
    /// is not active (EHCI 4.10.2, 4.10.3).
    ///
    /// The token is read first: a driver stores it last, so what is read after it belongs to it.
    pub(super) fn fetch<M: GuestMemory + ?Sized>(
        memory: &Structures<'_, M>,
        address: u32,
        characteristics: Characteristics,
        before: Token,
    ) -> Result<Option<Self>, DmaError> {
        let active = |token| Token::from(token).active();
        let Some([next, alternate, token, page0, page1, page2, page3, page4, high @ ..]) =
            memory.load_guarded::<8, 13>(address, qtd::TOKEN_INDEX, active)?
        else {
            return Ok(None);
        };
        let mut token = Token::from(token);
        if !characteristics.toggle_from_qtd() {
            token.set_toggle(before.toggle());
        }
        if characteristics.speed() == EndpointSpeed::High {
            token.set_ping(before.ping());
        }
        let nak_count = u32::from(characteristics.nak_reload()).wrapping_shl(1);
        Ok(Some(Self {
            current: address,
            next,
            alternate: (alternate & !NAK_COUNT) | nak_count,
            token,
            // C-prog-mask and FrameTag start at 0.
            buffers: Buffers { low: [page0, page1 & !0xff, page2 & !0x1f, page3, page4], high },
            fresh: true,
        }))
    }

    /// Bytes that the pages from the current place on can hold.
    pub(super) fn room(&self) -> u32 {
        let pages = (PAGES as u32).saturating_sub(self.token.c_page().into());
        pages.saturating_mul(PAGE).saturating_sub(if pages == 0 { 0 } else { self.offset() })
    }

    fn offset(&self) -> u32 {
        let [first, ..] = self.buffers.low;
        first & (PAGE - 1)
    }

    /// The guest memory of the next `len` bytes: address and length of each part (EHCI 4.10.6).
    pub(super) fn segments(&self, len: u32) -> SmallVec<[(u64, u32); PAGES]> {
        let mut left = len;
        let mut offset = self.offset();
        let pages = self.buffers.low.iter().zip(&self.buffers.high);
        let mut segments = SmallVec::new();
        for (low, high) in pages.skip(self.token.c_page().into()) {
            let part = left.min(PAGE.saturating_sub(offset));
            if part == 0 {
                break;
            }
            let page = u64::from(*high) << 32 | u64::from(low & !(PAGE - 1));
            segments.push((page | u64::from(offset), part));
            left = left.saturating_sub(part);
            offset = 0;
        }
        segments
    }

    /// `bytes` were moved in `packets` packets (EHCI 4.10.3).
    pub(super) fn advance(&mut self, bytes: u32, packets: usize) {
        let offset = self.offset().saturating_add(bytes);
        let [first, ..] = &mut self.buffers.low;
        *first = (*first & !(PAGE - 1)) | (offset & (PAGE - 1));
        let crossed = u8::try_from(offset / PAGE).unwrap_or(u8::MAX);
        self.token.set_c_page(self.token.c_page().saturating_add(crossed).min(7));
        let left = u32::from(self.token.total()).saturating_sub(bytes);
        self.token.set_total(u16::try_from(left).unwrap_or(0));
        if packets % 2 == 1 {
            self.token.set_toggle(!self.token.toggle());
        }
    }

    /// CERR after a success: 3, unless errors are not counted (EHCI 4.10.3).
    pub(super) fn reload_error_count(&mut self) {
        if self.token.cerr() != 0 {
            self.token.set_cerr(3);
        }
    }

    /// NakCnt starts again at RL (EHCI 4.9).
    pub(super) fn reload_nak_count(&mut self, characteristics: Characteristics) {
        let count = u32::from(characteristics.nak_reload()).wrapping_shl(1);
        self.alternate = (self.alternate & !NAK_COUNT) | count;
    }

    /// One NAK more. A count that has run out is reloaded first: each visit belongs to a walk of its
    /// own, in which the count starts again (EHCI 4.9.1).
    pub(super) fn count_nak(&mut self, characteristics: Characteristics) {
        if self.alternate & NAK_COUNT == 0 {
            self.reload_nak_count(characteristics);
        }
        if self.alternate & NAK_COUNT != 0 {
            self.alternate = self.alternate.wrapping_sub(1 << 1);
        }
    }

    /// How far the split transaction of an interrupt endpoint is (EHCI 3.6.3).
    pub(super) fn split(&self) -> (SplitProgress, SplitTag) {
        let [_, progress, tag, ..] = self.buffers.low;
        (progress.into(), tag.into())
    }

    pub(super) fn set_split(&mut self, progress: SplitProgress, tag: SplitTag) {
        let [_, first, second, ..] = &mut self.buffers.low;
        (*first, *second) = (progress.into(), tag.into());
    }

    /// Ends the transfer in error: it stays where it is (EHCI 4.10.3).
    pub(super) fn halt(&mut self) {
        self.token.set_halted(true);
        self.token.set_active(false);
    }

    /// A transaction without a good answer (EHCI 4.10.3).
    pub(super) fn transaction_error(&mut self) {
        self.token.set_transaction_error(true);
        self.transaction_failed();
    }

    /// A failed transaction costs one of CERR; a CERR that started at 0 does not count.
    pub(super) fn transaction_failed(&mut self) {
        match self.token.cerr() {
            0 => {}
            1 => {
                self.token.set_cerr(0);
                self.halt();
            }
            left => self.token.set_cerr(left.saturating_sub(1)),
        }
    }

    /// Writes the overlay to the queue head at `address`, then a finished transfer's token to its
    /// qTD: a driver that sees the qTD done finds everything else in place.
    pub(super) fn store<M: GuestMemory + ?Sized>(
        &self,
        memory: &Structures<'_, M>,
        address: u32,
        read: &Self,
    ) -> Result<(), DmaError> {
        self.store_head(memory, address, read)?;
        if !self.token.active() {
            memory.store(self.current, qtd::TOKEN, self.token.into())?;
        }
        Ok(())
    }

    /// Writes the overlay to the queue head at `address`, as far as it differs from what was read.
    pub(super) fn store_head<M: GuestMemory + ?Sized>(
        &self,
        memory: &Structures<'_, M>,
        address: u32,
        read: &Self,
    ) -> Result<(), DmaError> {
        if self.fresh {
            let [page0, page1, page2, page3, page4] = self.buffers.low;
            let [high0, high1, high2, high3, high4] = self.buffers.high;
            let (current, next, alternate) = (self.current, self.next, self.alternate);
            let token = self.token.into();
            let overlay = [
                current, next, alternate, token, page0, page1, page2, page3, page4, high0, high1,
                high2, high3, high4,
            ];
            let guard = qh::TOKEN_INDEX.saturating_sub(qh::CURRENT_INDEX);
            return memory.store_guarded((address, qh::CURRENT_INDEX), &overlay, 9, guard);
        }
        let mut offset = qh::BUFFERS;
        for (now, before) in self.buffers.low.iter().zip(&read.buffers.low) {
            if now != before {
                memory.store(address, offset, *now)?;
            }
            offset = offset.wrapping_add(4);
        }
        if self.alternate != read.alternate {
            memory.store(address, qh::ALTERNATE, self.alternate)?;
        }
        if self.token != read.token {
            memory.store(address, qh::TOKEN, self.token.into())?;
        }
        Ok(())
    }
}
