//! Guest memory as a bus master sees it.
//!
//! Descriptors are dwords: each is loaded and stored as one aligned 32-bit access, so a driver that
//! changes a neighbouring field at the same moment never sees or loses half of one. Data never goes
//! through here: [`GuestBuffer`] hands a device the guest's own pages.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use thiserror::Error;
use vm_memory::bitmap::{BS, Bitmap};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions, VolatileSlice};

use crate::usb::Buffer;

/// Bytes that [`Dma::load_near`] looks up at once.
const PAGE: u64 = 0x1000;

/// An access to guest memory that no RAM answered.
///
/// Nothing but RAM is ever reached: an address in another device's registers, or in the controller's
/// own, fails in the same way, so DMA cannot re-enter a device model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no guest RAM at {address:#x} ({len} bytes)")]
pub struct DmaError {
    /// First address of the access.
    pub address: u64,
    /// Length of the access in bytes.
    pub len: u64,
}

/// A bus master's window on guest memory for one turn.
#[derive(Debug)]
pub struct Dma<'a, M: ?Sized> {
    memory: &'a M,
}

impl<M: ?Sized> Clone for Dma<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: ?Sized> Copy for Dma<'_, M> {}

impl<'a, M: GuestMemory + ?Sized> Dma<'a, M> {
    /// A window on `memory`.
    pub fn new(memory: &'a M) -> Self {
        Self { memory }
    }

    /// Loads one dword with acquire ordering: what the guest stored before it is visible afterwards.
    ///
    /// # Errors
    /// If the dword is not guest RAM or `address` is not a multiple of 4.
    pub fn load(&self, address: u64) -> Result<u32, DmaError> {
        self.memory
            .load(GuestAddress(address), Ordering::Acquire)
            .map(u32::from_le)
            .map_err(|_| DmaError { address, len: 4 })
    }

    /// Stores one dword with release ordering: everything stored earlier is visible before it.
    ///
    /// # Errors
    /// If the dword is not guest RAM or `address` is not a multiple of 4.
    pub fn store(&self, address: u64, value: u32) -> Result<(), DmaError> {
        self.memory
            .store(value.to_le(), GuestAddress(address), Ordering::Release)
            .map_err(|_| DmaError { address, len: 4 })
    }

    /// Loads `N` consecutive dwords, each once and whole, in rising order.
    ///
    /// # Errors
    /// If any of them is not guest RAM or `address` is not a multiple of 4.
    pub fn load_array<const N: usize>(&self, address: u64) -> Result<[u32; N], DmaError> {
        let len = N.saturating_mul(4);
        let error = DmaError { address, len: len as u64 };
        let mut values = [0; N];
        // Nearly always all of them lie in one region, which is looked up once then.
        if let Some(slice) = self.region(address, len, Permissions::Read) {
            let mut offset = 0usize;
            for value in &mut values {
                let dword = slice.load(offset, Ordering::Acquire).map_err(|_| error)?;
                *value = u32::from_le(dword);
                offset = offset.saturating_add(4);
            }
            return Ok(values);
        }
        let mut at = address;
        for value in &mut values {
            *value = self.load(at).map_err(|_| error)?;
            at = at.checked_add(4).ok_or(error)?;
        }
        Ok(values)
    }

    /// [`load_array`](Self::load_array) for one of many structures that are likely to lie in the page of
    /// the one before: `page` remembers it. Only the second in a row makes it worth looking up.
    ///
    /// # Errors
    /// As `load_array`.
    pub(crate) fn load_near<const N: usize>(
        &self,
        page: &mut Page<'a, M>,
        address: u64,
    ) -> Result<[u32; N], DmaError> {
        let start = address & !(PAGE - 1);
        if page.start != start {
            *page = Page { start, slice: None };
            return self.load_array(address);
        }
        if page.slice.is_none() {
            page.slice = self.region(start, PAGE as usize, Permissions::Read);
        }
        match page.load_array(address) {
            Some(values) => Ok(values),
            None => self.load_array(address),
        }
    }

    /// Stores consecutive dwords, each whole, in rising order.
    ///
    /// # Errors
    /// If any of them is not guest RAM or `address` is not a multiple of 4; those before it may have
    /// been stored then.
    pub fn store_array(&self, address: u64, values: &[u32]) -> Result<(), DmaError> {
        let len = values.len().saturating_mul(4);
        let error = DmaError { address, len: len as u64 };
        if let Some(slice) = self.region(address, len, Permissions::Write) {
            let mut offset = 0usize;
            for value in values {
                slice.store(value.to_le(), offset, Ordering::Release).map_err(|_| error)?;
                offset = offset.saturating_add(4);
            }
            return Ok(());
        }
        let mut at = address;
        for value in values {
            self.store(at, *value).map_err(|_| error)?;
            at = at.checked_add(4).ok_or(error)?;
        }
        Ok(())
    }

    /// Loads `count` consecutive dwords, of `N` at most, each once and whole: the one at index `guard`
    /// first, and if its value is `wanted` the others in rising order; the rest is zero. A guest that
    /// stores the guard last is never seen half done.
    ///
    /// # Errors
    /// If any of them that is loaded is not guest RAM or `address` is not a multiple of 4.
    pub fn load_guarded<const N: usize>(
        &self,
        address: u64,
        count: usize,
        guard: usize,
        wanted: impl FnOnce(u32) -> bool,
    ) -> Result<Option<[u32; N]>, DmaError> {
        let len = offset(count.min(N));
        let error = DmaError { address, len: len as u64 };
        let Some(slice) = self.region(address, len, Permissions::Read) else {
            let at = |n: usize| address.checked_add(offset(n) as u64).ok_or(error);
            return guard_first(count, guard, wanted, |n| self.load(at(n)?).map_err(|_| error));
        };
        guard_first(count, guard, wanted, |n| {
            slice.load(offset(n), Ordering::Acquire).map(u32::from_le).map_err(|_| error)
        })
    }

    /// Stores consecutive dwords, each whole, in rising order, but the one at index `guard` last.
    ///
    /// # Errors
    /// If any of them is not guest RAM or `address` is not a multiple of 4; others may have been
    /// stored then.
    pub fn store_guarded(
        &self,
        address: u64,
        values: &[u32],
        guard: usize,
    ) -> Result<(), DmaError> {
        let len = offset(values.len());
        let error = DmaError { address, len: len as u64 };
        let Some(slice) = self.region(address, len, Permissions::Write) else {
            let at = |n: usize| address.checked_add(offset(n) as u64).ok_or(error);
            return guard_last(guard, values, |n, value| {
                self.store(at(n)?, value).map_err(|_| error)
            });
        };
        guard_last(guard, values, |n, value| {
            slice.store(value.to_le(), offset(n), Ordering::Release).map_err(|_| error)
        })
    }

    /// The `len` bytes at `address`, if they lie in one region.
    fn region(
        &self,
        address: u64,
        len: usize,
        access: Permissions,
    ) -> Option<VolatileSlice<'a, BS<'a, M::Bitmap>>> {
        let mut slices = self.memory.get_slices(GuestAddress(address), len, access).ok()?;
        slices.next()?.ok().filter(|slice| slice.len() == len)
    }

    /// The guest memory named by `segments` (address, length in bytes), in order, as one buffer.
    ///
    /// # Errors
    /// If any byte is not guest RAM; nothing has been accessed then.
    pub fn buffer(&self, segments: &[(u64, u32)]) -> Result<GuestBuffer<'a, M>, DmaError> {
        let mut slices = SmallVec::new();
        let mut len = 0usize;
        for (address, length) in merged(segments) {
            let error = DmaError { address, len: length };
            let count = usize::try_from(length).map_err(|_| error)?;
            let pieces = self
                .memory
                .get_slices(GuestAddress(address), count, Permissions::ReadWrite)
                .map_err(|_| error)?;
            for piece in pieces {
                slices.push(piece.map_err(|_| error)?);
            }
            len = len.saturating_add(count);
        }
        Ok(GuestBuffer { slices, len })
    }
}

/// Byte offset of dword `n`.
const fn offset(n: usize) -> usize {
    n.saturating_mul(4)
}

/// Loads the dword at index `guard`, and if it is wanted the others of `count`.
pub(crate) fn guard_first<const N: usize, E>(
    count: usize,
    guard: usize,
    wanted: impl FnOnce(u32) -> bool,
    mut load: impl FnMut(usize) -> Result<u32, E>,
) -> Result<Option<[u32; N]>, E> {
    let first = load(guard)?;
    if !wanted(first) {
        return Ok(None);
    }
    let mut values = [0; N];
    for (n, value) in values.iter_mut().enumerate().take(count) {
        *value = if n == guard { first } else { load(n)? };
    }
    Ok(Some(values))
}

/// Stores all dwords but the one at index `guard`, and then that.
pub(crate) fn guard_last<E>(
    guard: usize,
    values: &[u32],
    mut store: impl FnMut(usize, u32) -> Result<(), E>,
) -> Result<(), E> {
    for (n, value) in values.iter().enumerate() {
        if n != guard {
            store(n, *value)?;
        }
    }
    values.get(guard).map_or(Ok(()), |value| store(guard, *value))
}

/// The page of the structure that was loaded last, see [`Dma::load_near`].
pub(crate) struct Page<'a, M: GuestMemory + ?Sized> {
    start: u64,
    slice: Option<VolatileSlice<'a, BS<'a, M::Bitmap>>>,
}

impl<M: GuestMemory + ?Sized> Page<'_, M> {
    /// Not knowing any.
    pub(crate) fn unknown() -> Self {
        Self { start: u64::MAX, slice: None }
    }

    /// `None` if the dwords do not lie in this page.
    fn load_array<const N: usize>(&self, address: u64) -> Option<[u32; N]> {
        let slice = self.slice.as_ref()?;
        let mut offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let mut values = [0; N];
        for value in &mut values {
            *value = u32::from_le(slice.load(offset, Ordering::Acquire).ok()?);
            offset = offset.saturating_add(4);
        }
        Some(values)
    }
}

/// `segments` with neighbours that continue each other joined and empty ones left out.
fn merged(segments: &[(u64, u32)]) -> impl Iterator<Item = (u64, u64)> {
    let mut rest = segments.iter().copied().filter(|(_, len)| *len != 0).peekable();
    std::iter::from_fn(move || {
        let (address, len) = rest.next()?;
        let mut len = u64::from(len);
        while let Some((_, more)) =
            rest.next_if(|(next, _)| address.checked_add(len) == Some(*next))
        {
            len = len.saturating_add(u64::from(more));
        }
        Some((address, len))
    })
}

/// A transfer's bytes in guest memory: the guest's own pages, never a copy of them.
pub struct GuestBuffer<'a, M: GuestMemory + ?Sized> {
    slices: SmallVec<[VolatileSlice<'a, BS<'a, M::Bitmap>>; 8]>,
    len: usize,
}

impl<M: GuestMemory + ?Sized> std::fmt::Debug for GuestBuffer<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuestBuffer")
            .field("pieces", &self.slices.len())
            .field("len", &self.len)
            .finish()
    }
}

impl<'a, M: GuestMemory + ?Sized> GuestBuffer<'a, M> {
    /// The parts of the slices that `offset..offset + len` covers, with each part's place in it.
    fn parts(
        &self,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = (usize, VolatileSlice<'a, BS<'a, M::Bitmap>>)> + '_ {
        let end = offset.saturating_add(len).min(self.len);
        let mut start = 0usize;
        self.slices.iter().filter_map(move |slice| {
            let (first, last) = (start, start.saturating_add(slice.len()));
            start = last;
            let (from, to) = (first.max(offset), last.min(end));
            let count = to.checked_sub(from).filter(|count| *count != 0)?;
            let part = slice.subslice(from.saturating_sub(first), count).ok()?;
            Some((from.saturating_sub(offset), part))
        })
    }
}

impl<M: GuestMemory + ?Sized> Buffer for GuestBuffer<'_, M> {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let mut done = 0usize;
        for (at, part) in self.parts(offset, into.len()) {
            if let Some(into) = into.get_mut(at..) {
                done = done.saturating_add(part.copy_to(into));
            }
        }
        done
    }

    fn write(&mut self, offset: usize, from: &[u8]) -> usize {
        let mut done = 0usize;
        for (at, part) in self.parts(offset, from.len()) {
            if let Some(from) = from.get(at..) {
                let count = from.len().min(part.len());
                part.copy_from(from);
                done = done.saturating_add(count);
            }
        }
        done
    }

    fn pieces(&mut self, offset: usize, len: usize, visit: &mut dyn FnMut(*mut u8, usize)) {
        for (_, part) in self.parts(offset, len) {
            visit(part.ptr_guard_mut().as_ptr(), part.len());
        }
    }

    fn written(&mut self, offset: usize, len: usize) {
        for (_, part) in self.parts(offset, len) {
            part.bitmap().mark_dirty(0, part.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_is_loaded_first_and_stored_last() {
        let mut order = Vec::new();
        let mut load = |n| {
            order.push(n);
            Ok::<_, ()>(n as u32 * 10)
        };
        let loaded = guard_first::<5, ()>(4, 2, |guard| guard == 20, &mut load);
        assert_eq!(loaded, Ok(Some([0, 10, 20, 30, 0])));
        assert_eq!(guard_first::<4, ()>(4, 1, |_| false, &mut load), Ok(None));
        assert_eq!(order, [2, 0, 1, 3, 1], "an unwanted guard is all that is looked at");
        order.clear();
        let stored = guard_last::<()>(2, &[7, 8, 9, 6], |n, value| {
            order.push(n * 10 + value as usize);
            Ok(())
        });
        assert_eq!((stored, order), (Ok(()), vec![7, 18, 36, 29]));
    }
}
