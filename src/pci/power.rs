//! The power-management capability: D0, D3hot, PME (PCI Power Management 1.2, 3.2; EHCI appendix A).

use super::config_space::{ConfigSpace, Register};

pub(super) const AT: u8 = 0x50;
const PMCSR: u8 = AT + 4;
const ID: u32 = 0x01;
/// Version 3 of the capability (PCI Power Management 1.2).
const VERSION: u32 = 3 << 16;
/// PME can be asserted from D3hot; not from D3cold, for which a VMM has no power.
const PME_FROM_D3HOT: u32 = 1 << 30;

const POWER_STATE: u32 = 0x3;
const D0: u32 = 0;
const D3HOT: u32 = 3;
/// D3hot to D0 keeps every register, so software need not set the function up again.
const NO_SOFT_RESET: u32 = 1 << 3;
const PME_ENABLE: u32 = 1 << 8;
const PME_STATUS: u32 = 1 << 15;

/// Declares the capability; `next` is the one after it, 0 for none.
pub(super) fn declare(config: &mut ConfigSpace, next: u8) {
    config.declare(&[
        Register::read_only(AT, 4, ID | u32::from(next) << 8 | VERSION | PME_FROM_D3HOT),
        Register {
            offset: PMCSR,
            size: 4,
            reset: NO_SOFT_RESET,
            writable: POWER_STATE | PME_ENABLE,
            clearable: PME_STATUS,
        },
    ]);
}

/// Whether the function is in D3hot.
pub(super) fn in_d3hot(config: &ConfigSpace) -> bool {
    config.get(PMCSR) & POWER_STATE == D3HOT
}

/// After a write: a state that is not supported leaves the old one (PCI Power Management 1.2, 3.2.4).
pub(super) fn written(config: &mut ConfigSpace, was_d3hot: bool) {
    let state = config.get(PMCSR) & POWER_STATE;
    if state != D0 && state != D3HOT {
        let old = if was_d3hot { D3HOT } else { D0 };
        config.set(PMCSR, POWER_STATE, old);
    }
}

/// Something happened in D3hot that is to wake the system.
pub(super) fn wake(config: &mut ConfigSpace) {
    config.set(PMCSR, PME_STATUS, PME_STATUS);
}

/// The level of PME#.
pub(super) fn pme(config: &ConfigSpace) -> bool {
    const BOTH: u32 = PME_ENABLE | PME_STATUS;
    config.get(PMCSR) & BOTH == BOTH
}
