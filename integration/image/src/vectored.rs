//! Moving bytes between a file and the memory behind a [`Buffer`], without a copy of our own.

#![allow(unsafe_code, reason = "preadv and pwritev take pointers to guest memory")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use smallvec::SmallVec;
use vm_usb::usb::Buffer;

/// Most pieces that the kernel takes in one call: UIO_MAXIOV.
const IOV_MAX: usize = 1024;

/// A system call that moves bytes between a file and memory in pieces.
type Call =
    unsafe extern "C" fn(libc::c_int, *const libc::iovec, libc::c_int, libc::off64_t) -> isize;

/// Fills `range` of the buffer from `offset` in the file.
pub(crate) fn read(
    file: &File,
    offset: u64,
    buffer: &mut dyn Buffer,
    range: Range<usize>,
) -> io::Result<()> {
    let (start, len) = (range.start, range.len());
    let result = transfer(libc::preadv64, file, offset, buffer, range);
    // Even a read that failed may have filled a part.
    buffer.written(start, len);
    result
}

/// Stores `range` of the buffer at `offset` in the file.
pub(crate) fn write(
    file: &File,
    offset: u64,
    buffer: &mut dyn Buffer,
    range: Range<usize>,
) -> io::Result<()> {
    transfer(libc::pwritev64, file, offset, buffer, range)
}

fn transfer(
    call: Call,
    file: &File,
    mut offset: u64,
    buffer: &mut dyn Buffer,
    range: Range<usize>,
) -> io::Result<()> {
    let mut pieces = SmallVec::<[libc::iovec; 16]>::new();
    let mut total = 0;
    buffer.pieces(range.start, range.len(), &mut |start, len| {
        // A piece without bytes would look like the end of the file.
        if len != 0 {
            total += len;
            pieces.push(libc::iovec { iov_base: start.cast(), iov_len: len });
        }
    });
    if total != range.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut rest = pieces.as_mut_slice();
    while !rest.is_empty() {
        let count = rest.len().min(IOV_MAX) as libc::c_int;
        let at = i64::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        // SAFETY: `rest` starts with `count` pieces of memory that belong to `buffer`, which stays
        // borrowed until this function returns: so they stay valid by the contract of
        // `Buffer::pieces`. The kernel copies as if by another CPU, no reference to that memory
        // exists here, and the guest's own accesses to it meanwhile are as harmless as any DMA.
        let moved = unsafe { call(file.as_raw_fd(), rest.as_ptr(), count, at) };
        match usize::try_from(moved) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => {
                offset += moved as u64;
                rest = advance(rest, moved);
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// The pieces that are left after the first `moved` bytes.
fn advance(pieces: &mut [libc::iovec], mut moved: usize) -> &mut [libc::iovec] {
    let mut done = 0;
    while let Some(piece) = pieces.get(done).filter(|piece| piece.iov_len <= moved) {
        moved -= piece.iov_len;
        done += 1;
    }
    let rest = &mut pieces[done..];
    if let Some(first) = rest.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(moved);
        first.iov_len -= moved;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_transfer_goes_on_where_it_stopped() {
        let mut memory = [0u8; 30];
        let base: *mut libc::c_void = memory.as_mut_ptr().cast();
        let piece = |at, len| libc::iovec { iov_base: base.wrapping_byte_add(at), iov_len: len };
        let mut pieces = [piece(0, 10), piece(10, 5), piece(15, 15)];
        let places = |pieces: &[libc::iovec]| -> Vec<_> {
            pieces.iter().map(|p| (p.iov_base as usize - base as usize, p.iov_len)).collect()
        };
        let rest = advance(&mut pieces, 3);
        assert_eq!(places(rest), [(3, 7), (10, 5), (15, 15)]);
        let rest = advance(rest, 12);
        assert_eq!(places(rest), [(15, 15)], "a piece that is done is gone");
        let rest = advance(rest, 15);
        assert_eq!(places(rest), []);
    }
}
