//! Dwords that mean something often enough.

use arbitrary::{Result, Unstructured};

/// Where structures lie: few places, so that they link up and overlap.
pub const ARENA: u32 = 0x20_0000;
/// Where buffers lie.
pub const BUFFERS: u32 = 0x30_0000;
/// No RAM is here.
pub const NOWHERE: u32 = 0xfff0_0000;

/// One of `count` places, `stride` bytes apart.
pub fn place(u: &mut Unstructured<'_>, count: u32, stride: u32) -> Result<u32> {
    Ok(ARENA + stride * u.int_in_range(0..=count - 1)?)
}

/// An address in a buffer, or now and then somewhere else.
pub fn buffer(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.int_in_range(0..=15)? {
        0 => 0,
        1 => ARENA + u.int_in_range(0..=0x7ff)?,
        2 => NOWHERE,
        _ => BUFFERS + u.int_in_range(0..=0x7fff)?,
    })
}

/// One of several values.
pub fn one_of(u: &mut Unstructured<'_>, values: &[u32]) -> Result<u32> {
    u.choose(values).copied()
}
