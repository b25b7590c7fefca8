//! What a function says it is.

/// Identification registers of a function.
///
/// Drivers bind to these controllers by class. The ids matter all the same: drivers keep lists of chips
/// whose faults they work around, and of those they need not watch. A product may put its own here, with
/// [`with_id`](Self::with_id).
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
    /// An OHCI controller: class 0C0310, 1AF4:10F0, from the range 1AF4:10F0 to 10FF that its owner sets
    /// aside for experiments without registration. No driver has a quirk for it.
    pub const fn ohci() -> Self {
        Self {
            vendor: 0x1af4,
            device: 0x10f0,
            revision: 1,
            class: [USB[0], USB[1], 0x10],
            ehci_registers: false,
        }
    }

    /// An EHCI controller: class 0C0320, 8086:24CD (82801DB, ICH4), with SBRN, FLADJ, PORTWAKECAP and the
    /// legacy support capability.
    ///
    /// Linux looks after the transfers of an EHCI ten times a second unless its vendor is one of a few
    /// that are known to report all of them, of which this is one; it has no quirk for this chip. Of this
    /// library's own, for those who prefer it, is 1AF4:10F1, from the same range as that of
    /// [`ohci`](Self::ohci).
    pub const fn ehci() -> Self {
        Self {
            vendor: 0x8086,
            device: 0x24cd,
            revision: 1,
            class: [USB[0], USB[1], 0x20],
            ehci_registers: true,
        }
    }

    /// The same with other ids. FFFFh is no vendor: it is what nobody answers with.
    #[must_use]
    pub const fn with_id(mut self, vendor: u16, device: u16) -> Self {
        self.vendor = vendor;
        self.device = device;
        self
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
