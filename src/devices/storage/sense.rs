//! Sense data: why a command failed (SPC-4, 4.5).

use serde::{Deserialize, Serialize};

/// A sense key with its additional sense code and qualifier (SPC-4, tables 48 and 49).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sense {
    key: u8,
    code: u8,
    qualifier: u8,
}

impl Sense {
    pub(super) const NONE: Self = Self::new(0x0, 0x00, 0x00);
    /// The START STOP UNIT command stopped the unit.
    pub(super) const INITIALIZING_COMMAND_REQUIRED: Self = Self::new(0x2, 0x04, 0x02);
    pub(super) const MEDIUM_NOT_PRESENT: Self = Self::new(0x2, 0x3a, 0x00);
    pub(super) const WRITE_ERROR: Self = Self::new(0x3, 0x0c, 0x00);
    pub(super) const UNRECOVERED_READ_ERROR: Self = Self::new(0x3, 0x11, 0x00);
    pub(super) const INVALID_COMMAND: Self = Self::new(0x5, 0x20, 0x00);
    pub(super) const LBA_OUT_OF_RANGE: Self = Self::new(0x5, 0x21, 0x00);
    pub(super) const INVALID_FIELD_IN_CDB: Self = Self::new(0x5, 0x24, 0x00);
    pub(super) const LOGICAL_UNIT_NOT_SUPPORTED: Self = Self::new(0x5, 0x25, 0x00);
    pub(super) const INVALID_FIELD_IN_PARAMETER_LIST: Self = Self::new(0x5, 0x26, 0x00);
    pub(super) const PARAMETER_LIST_LENGTH_ERROR: Self = Self::new(0x5, 0x1a, 0x00);
    pub(super) const SAVING_PARAMETERS_NOT_SUPPORTED: Self = Self::new(0x5, 0x39, 0x00);
    /// Power was applied, or the bus was reset.
    pub(super) const RESET_OCCURRED: Self = Self::new(0x6, 0x29, 0x00);
    pub(super) const WRITE_PROTECTED: Self = Self::new(0x7, 0x27, 0x00);
    /// The host has no room left for a thinly provisioned medium.
    pub(super) const SPACE_ALLOCATION_FAILED: Self = Self::new(0x7, 0x27, 0x07);
    pub(super) const MISCOMPARE: Self = Self::new(0xe, 0x1d, 0x00);

    const fn new(key: u8, code: u8, qualifier: u8) -> Self {
        Self { key, code, qualifier }
    }

    /// Fixed format, current error, 18 bytes (SPC-4, 4.5.3).
    pub(super) fn fixed(self) -> Vec<u8> {
        let mut bytes = vec![0x70, 0, self.key, 0, 0, 0, 0, 10, 0, 0, 0, 0];
        bytes.extend([self.code, self.qualifier, 0, 0, 0, 0]);
        bytes
    }

    /// Descriptor format, current error, no descriptors (SPC-4, 4.5.2).
    pub(super) fn descriptor(self) -> Vec<u8> {
        vec![0x72, self.key, self.code, self.qualifier, 0, 0, 0, 0]
    }
}
