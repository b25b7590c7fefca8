//! The type-0 header (PCI 3.0, 6.1 and 6.2).

use super::config_space::{self, ConfigSpace, Register};
use super::{Identity, Placement};

/// Bytes of a function's configuration space.
pub const CONFIG_SPACE_SIZE: u64 = config_space::SIZE as u64;

/// Command (low half) and Status (high half) registers.
pub(super) const COMMAND: u8 = 0x04;
pub(super) const BAR0: u8 = 0x10;
const CAPABILITIES_POINTER: u8 = 0x34;

const MEMORY_SPACE: u32 = 1 << 1;
const BUS_MASTER: u32 = 1 << 2;
const INTERRUPT_DISABLE: u32 = 1 << 10;
const INTERRUPT_STATUS: u32 = 1 << 19;
const CAPABILITIES_LIST: u32 = 1 << 20;

/// Smallest BAR: one page, so that no other device's registers share it.
const MIN_BAR: u32 = 4096;
/// Largest BAR that leaves an address bit to write.
const MAX_BAR: u32 = 1 << 31;

/// Size of BAR 0 for a register window of `window` bytes.
pub(super) fn bar_size(window: u64) -> u32 {
    u32::try_from(window)
        .ok()
        .and_then(u32::checked_next_power_of_two)
        .unwrap_or(MAX_BAR)
        .max(MIN_BAR)
}

/// Declares the header; `first` is the first capability.
pub(super) fn declare(
    config: &mut ConfigSpace,
    identity: &Identity,
    placement: Placement,
    bar_size: u32,
    first: u8,
) {
    let id = u32::from(identity.vendor) | u32::from(identity.device) << 16;
    let class = u32::from_be_bytes([
        identity.class[0],
        identity.class[1],
        identity.class[2],
        identity.revision,
    ]);
    let header_type = if placement.multi_function { 0x80 } else { 0 };
    config.declare(&[
        Register::read_only(0x00, 4, id),
        Register {
            offset: COMMAND,
            size: 4,
            reset: CAPABILITIES_LIST,
            writable: MEMORY_SPACE | BUS_MASTER | INTERRUPT_DISABLE,
            clearable: 0,
        },
        Register::read_only(0x08, 4, class),
        // Cache line size and latency timer: storage, as software expects of a bus master.
        Register { offset: 0x0c, size: 2, writable: 0xffff, ..Register::default() },
        Register::read_only(0x0e, 1, header_type),
        // Memory, 32 bits, not prefetchable: the low four bits are zero.
        Register {
            offset: BAR0,
            size: 4,
            writable: !bar_size.wrapping_sub(1),
            ..Register::default()
        },
        // The subsystem is the function itself.
        Register::read_only(0x2c, 4, id),
        Register::read_only(CAPABILITIES_POINTER, 1, first.into()),
        // Interrupt line: storage for firmware.
        Register { offset: 0x3c, size: 1, writable: 0xff, ..Register::default() },
        Register::read_only(0x3d, 1, placement.pin as u32),
    ]);
}

/// What a configuration space says the function is, for people: ids and class (dwords 0 and 2).
pub(super) fn identity(config: &[u8]) -> String {
    let mut bytes = config.iter().copied();
    let mut take = |skip| bytes.by_ref().skip(skip).take(4).collect::<Vec<_>>();
    match (&*take(0), &*take(4)) {
        (&[v0, v1, d0, d1], &[revision, interface, subclass, class]) => format!(
            "function {v1:02x}{v0:02x}:{d1:02x}{d0:02x} of class \
             {class:02x}{subclass:02x}{interface:02x}, revision {revision:02x}"
        ),
        _ => "no function".to_owned(),
    }
}

/// Whether the function answers in memory space.
pub(super) fn memory_enabled(config: &ConfigSpace) -> bool {
    config.get(COMMAND) & MEMORY_SPACE != 0
}

/// Whether the function may read and write guest memory and send messages.
pub(super) fn bus_master(config: &ConfigSpace) -> bool {
    config.get(COMMAND) & BUS_MASTER != 0
}

/// Whether the INTx pin is switched off.
pub(super) fn interrupt_disabled(config: &ConfigSpace) -> bool {
    config.get(COMMAND) & INTERRUPT_DISABLE != 0
}

/// Shows the interrupt condition in the Status register; the disable bit does not hide it (PCI 3.0,
/// 6.2.3).
pub(super) fn show_interrupt(config: &mut ConfigSpace, pending: bool) {
    let value = if pending { INTERRUPT_STATUS } else { 0 };
    config.set(COMMAND, INTERRUPT_STATUS, value);
}

/// The address in BAR 0.
pub(super) fn bar_address(config: &ConfigSpace) -> u32 {
    config.get(BAR0)
}
