//! The MSI capability: one vector, 64-bit address, no masking (PCI 3.0, 6.8.1).

use super::config_space::{ConfigSpace, Register};

pub(super) const AT: u8 = 0x70;
/// Message control is the upper half of the first dword.
const ENABLE: u32 = 1 << 16;
const ADDRESS_64: u32 = 1 << 23;
const ID: u32 = 0x05;

const ADDRESS: u8 = AT + 4;
const UPPER_ADDRESS: u8 = AT + 8;
const DATA: u8 = AT + 12;

/// Declares the capability; `next` is the one after it, 0 for none.
pub(super) fn declare(config: &mut ConfigSpace, next: u8) {
    config.declare(&[
        Register {
            offset: AT,
            size: 4,
            reset: ID | u32::from(next) << 8 | ADDRESS_64,
            writable: ENABLE,
            clearable: 0,
        },
        Register { offset: ADDRESS, size: 4, writable: !0x3, ..Register::default() },
        Register { offset: UPPER_ADDRESS, size: 4, writable: !0, ..Register::default() },
        Register { offset: DATA, size: 2, writable: 0xffff, ..Register::default() },
    ]);
}

/// Whether the guest uses messages instead of the pin.
pub(super) fn enabled(config: &ConfigSpace) -> bool {
    config.get(AT) & ENABLE != 0
}

/// Address and data of the message.
pub(super) fn message(config: &ConfigSpace) -> (u64, u32) {
    let address = u64::from(config.get(UPPER_ADDRESS)) << 32 | u64::from(config.get(ADDRESS));
    (address, config.get(DATA) & 0xffff)
}
