//! The bytes of a transfer.

/// Where a transfer's bytes come from or go to: usually the guest's own pages.
///
/// A device copies with [`read`](Self::read) and [`write`](Self::write), or lets the host's kernel
/// move the bytes with [`pieces`](Self::pieces).
pub trait Buffer {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies from the buffer at `offset` into `into`; returns how many bytes there were.
    fn read(&self, offset: usize, into: &mut [u8]) -> usize;

    /// Copies `from` into the buffer at `offset`; returns how many bytes fitted.
    fn write(&mut self, offset: usize, from: &[u8]) -> usize;

    /// Shows the host memory behind `offset..offset + len`, in order, as pointer and length.
    ///
    /// For `preadv`, `pwritev` and the like. The pointers are valid as long as the buffer is borrowed;
    /// the guest may read and write the same memory at any time. After writing through them call
    /// [`written`](Self::written).
    fn pieces(&mut self, offset: usize, len: usize, visit: &mut dyn FnMut(*mut u8, usize));

    /// Says that `offset..offset + len` was written through [`pieces`](Self::pieces), so that dirty
    /// page tracking sees it.
    fn written(&mut self, offset: usize, len: usize);
}

impl Buffer for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let from = self.get(offset..).unwrap_or_default();
        let count = from.len().min(into.len());
        into.iter_mut().zip(from).for_each(|(into, from)| *into = *from);
        count
    }

    fn write(&mut self, offset: usize, from: &[u8]) -> usize {
        let into = self.get_mut(offset..).unwrap_or_default();
        let count = from.len().min(into.len());
        into.iter_mut().zip(from).for_each(|(into, from)| *into = *from);
        count
    }

    fn pieces(&mut self, offset: usize, len: usize, visit: &mut dyn FnMut(*mut u8, usize)) {
        let from = self.get_mut(offset..).unwrap_or_default();
        let count = from.len().min(len);
        if count != 0 {
            visit(from.as_mut_ptr(), count);
        }
    }

    fn written(&mut self, _offset: usize, _len: usize) {}
}
