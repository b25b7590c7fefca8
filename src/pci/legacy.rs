//! What EHCI adds to configuration space (EHCI 2.1): SBRN, FLADJ, PORTWAKECAP, and the legacy support
//! capability, which has a list of its own that starts at HCCPARAMS.EECP.

use super::config_space::{ConfigSpace, Register, touches};
use super::type0;
use crate::ehci::EECP;

/// Serial Bus Release Number 2.0 (EHCI 2.1.4).
const SBRN: u32 = 0x20;
/// A frame of 60,000 high-speed bit times (EHCI 2.1.5).
const FLADJ: u32 = 0x20;
/// The register is implemented; one mask bit for each of up to 15 ports (EHCI 2.1.6).
const PORTWAKECAP: u32 = 0x0001;
const PORTWAKECAP_MASK: u32 = 0xfffe;

const LEGACY_SUPPORT_ID: u32 = 0x01;
const BIOS_OWNED: u32 = 1 << 16;
const OS_OWNED: u32 = 1 << 24;

const USBLEGCTLSTS: u8 = EECP + 4;
/// Enables: USB complete, error, port change, rollover, system error, async advance; then OS
/// ownership change, PCI command, BAR.
const SMI_ENABLES: u32 = 0x0000_e03f;
const USBSTS_COPY: u32 = 0x003f_0000;
const OWNERSHIP_CHANGED: u32 = 1 << 29;
const COMMAND_WRITTEN: u32 = 1 << 30;
const BAR_WRITTEN: u32 = 1 << 31;

/// Declares the registers.
pub(super) fn declare(config: &mut ConfigSpace) {
    config.declare(&[
        Register::read_only(0x60, 1, SBRN),
        Register { offset: 0x61, size: 1, reset: FLADJ, writable: 0x3f, clearable: 0 },
        Register {
            offset: 0x62,
            size: 2,
            reset: PORTWAKECAP,
            writable: PORTWAKECAP_MASK,
            clearable: 0,
        },
        Register {
            offset: EECP,
            size: 4,
            reset: LEGACY_SUPPORT_ID,
            writable: BIOS_OWNED | OS_OWNED,
            clearable: 0,
        },
        Register {
            offset: USBLEGCTLSTS,
            size: 4,
            reset: 0,
            writable: SMI_ENABLES,
            clearable: OWNERSHIP_CHANGED | COMMAND_WRITTEN | BAR_WRITTEN,
        },
    ]);
}

/// Whether an access shows the copies of USBSTS, so that they have to be fresh.
pub(super) fn shows_status(offset: u64, len: usize) -> bool {
    touches(offset, len, USBLEGCTLSTS, 4)
}

/// Refreshes the copies of USBSTS[5:0].
pub(super) fn show_status(config: &mut ConfigSpace, usbsts: u32) {
    config.set(USBLEGCTLSTS, USBSTS_COPY, usbsts << 16);
}

/// Whether the operating system owns the controller.
pub(super) fn os_owned(config: &ConfigSpace) -> bool {
    config.get(EECP) & OS_OWNED != 0
}

/// After a write of `len` bytes at `offset`.
pub(super) fn written(config: &mut ConfigSpace, offset: u64, len: usize, was_os_owned: bool) {
    let mut events = 0;
    if os_owned(config) != was_os_owned {
        events |= OWNERSHIP_CHANGED;
    }
    if touches(offset, len, type0::COMMAND, 2) {
        events |= COMMAND_WRITTEN;
    }
    if touches(offset, len, type0::BAR0, 4) {
        events |= BAR_WRITTEN;
    }
    config.set(USBLEGCTLSTS, events, events);
    // No firmware runs in system management mode here, so nobody else would let go (EHCI 5.1).
    if os_owned(config) {
        config.set(EECP, BIOS_OWNED, 0);
    }
}
