//! What a function says it is.

/// Identification registers of a function.
///
/// Drivers bind to these controllers by class. The ids matter all the same: drivers keep lists of chips
/// whose faults they work around, and a model must not be taken for one of them. Those of
/// [`ohci`](Self::ohci) and [`ehci`](Self::ehci) are from 1AF4:10F0 to 10FF, the range that its owner
/// sets aside for experiments without registration; no driver has a quirk for them. A product should
/// put its own here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor id; the subsystem vendor id too.
    pub vendor: u16,
    /// Device id; the subsystem id too.
    pub device: u16,
    /// Revision id.
    pub revision: u8,
    /// Base class, subclass, programming interface.
    pub class: [u8; 3],
    /// Whether EHCI's registers in configuration space are there.
    pub(super) ehci_registers: bool,
}

/// Serial bus controller, USB.
const USB: [u8; 2] = [0x0c, 0x03];

impl Identity {
    /// An OHCI controller: class 0C0310, 1AF4:10F0.
    pub const fn ohci() -> Self {
        Self {
            vendor: 0x1af4,
            device: 0x10f0,
            revision: 1,
            class: [USB[0], USB[1], 0x10],
            ehci_registers: false,
        }
    }

    /// An EHCI controller: class 0C0320, 1AF4:10F1, with SBRN, FLADJ, PORTWAKECAP and the legacy
    /// support capability.
    pub const fn ehci() -> Self {
        Self {
            vendor: 0x1af4,
            device: 0x10f1,
            revision: 1,
            class: [USB[0], USB[1], 0x20],
            ehci_registers: true,
        }
    }
}

/// Which of the slot's four interrupt pins a function uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum InterruptPin {
    /// INTA#, the only one for a function that is alone in its slot.
    #[default]
    A = 1,
    /// INTB#.
    B = 2,
    /// INTC#.
    C = 3,
    /// INTD#.
    D = 4,
}
