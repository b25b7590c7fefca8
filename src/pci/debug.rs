//! The debug port capability: where a debugger finds the registers (EHCI 5.2, PCI 3.0 appendix H).

use super::config_space::{ConfigSpace, Register};

pub(super) const AT: u8 = 0x58;
const ID: u32 = 0x0a;
/// BAR 0; BARs count from 1.
const FIRST_BAR: u32 = 1 << 29;
/// The offset's bits.
const OFFSET: u32 = 0x1fff;

/// Declares the capability for registers at `offset` in BAR 0; `next` is the capability after it, 0
/// for none.
pub(super) fn declare(config: &mut ConfigSpace, next: u8, offset: u16) {
    let offset = u32::from(offset) & OFFSET;
    let value = ID | u32::from(next) << 8 | offset << 16 | FIRST_BAR;
    config.declare(&[Register::read_only(AT, 4, value)]);
}
