//! Command descriptor blocks (SPC-4, SBC-3) as typed values.

use super::sense::Sense;

/// Operation codes (SPC-4, annex E.3.1).
mod opcode {
    pub(super) const TEST_UNIT_READY: u8 = 0x00;
    pub(super) const REQUEST_SENSE: u8 = 0x03;
    pub(super) const READ_6: u8 = 0x08;
    pub(super) const WRITE_6: u8 = 0x0a;
    pub(super) const INQUIRY: u8 = 0x12;
    pub(super) const MODE_SENSE_6: u8 = 0x1a;
    pub(super) const START_STOP_UNIT: u8 = 0x1b;
    pub(super) const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1e;
    pub(super) const READ_CAPACITY_10: u8 = 0x25;
    pub(super) const READ_10: u8 = 0x28;
    pub(super) const WRITE_10: u8 = 0x2a;
    pub(super) const VERIFY_10: u8 = 0x2f;
    pub(super) const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub(super) const WRITE_SAME_10: u8 = 0x41;
    pub(super) const UNMAP: u8 = 0x42;
    pub(super) const MODE_SENSE_10: u8 = 0x5a;
    pub(super) const READ_16: u8 = 0x88;
    pub(super) const WRITE_16: u8 = 0x8a;
    pub(super) const VERIFY_16: u8 = 0x8f;
    pub(super) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub(super) const WRITE_SAME_16: u8 = 0x93;
    pub(super) const SERVICE_ACTION_IN_16: u8 = 0x9e;
    pub(super) const REPORT_LUNS: u8 = 0xa0;
    pub(super) const READ_12: u8 = 0xa8;
    pub(super) const WRITE_12: u8 = 0xaa;
    pub(super) const VERIFY_12: u8 = 0xaf;
}

/// READ CAPACITY (16) among the service actions of SERVICE ACTION IN (16).
const SERVICE_ACTION_READ_CAPACITY_16: u64 = 0x10;

/// Consecutive blocks; not yet checked against the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) lba: u64,
    pub(super) blocks: u64,
}

/// Which mode parameters MODE SENSE asks for, and in what form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModeSense {
    /// The eight-byte header of MODE SENSE (10).
    pub(super) long_header: bool,
    /// DBD.
    pub(super) no_block_descriptor: bool,
    /// PC: 0 current, 1 changeable, 2 default, 3 saved values.
    pub(super) page_control: u8,
    pub(super) page: u8,
    pub(super) subpage: u8,
}

/// A command. `allocation` is the most bytes of answer that the host takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    TestUnitReady,
    RequestSense {
        descriptor_format: bool,
        allocation: u64,
    },
    Inquiry {
        /// A page of vital product data instead of the standard data.
        page: Option<u8>,
        allocation: u64,
    },
    ModeSense(ModeSense, /* allocation */ u64),
    StartStopUnit {
        start: bool,
        flush: bool,
    },
    PreventAllowMediumRemoval,
    ReadCapacity10,
    ReadCapacity16 {
        allocation: u64,
    },
    ReportLuns {
        select: u8,
        allocation: u64,
    },
    Read(Extent),
    Write {
        extent: Extent,
        /// FUA: durable before the status.
        durable: bool,
    },
    Verify {
        extent: Extent,
        /// BYTCHK: the host sends what the blocks should hold.
        compare: bool,
    },
    SynchronizeCache(Extent),
    WriteSame {
        extent: Extent,
        /// UNMAP: the blocks may be unmapped if they read the same.
        unmap: bool,
        /// NDOB: zeros, and no data stage.
        no_data: bool,
    },
    Unmap {
        /// Length of the parameter list in bytes.
        len: u64,
    },
}

/// The bytes of a command descriptor block; those past its end read as zero.
struct Cdb<'a>(&'a [u8]);

impl Cdb<'_> {
    /// Big-endian field of `len` bytes, up to 8, at `at`.
    fn field(&self, at: usize, len: usize) -> u64 {
        let bytes = self.0.iter().skip(at).take(len);
        bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn bit(&self, at: usize, bit: u32) -> bool {
        self.byte(at) & 1u8.wrapping_shl(bit) != 0
    }

    /// Length that the operation code's group implies (SPC-4, 4.3.2).
    fn expected_len(&self) -> Option<usize> {
        match self.byte(0) >> 5 {
            0 => Some(6),
            1 | 2 => Some(10),
            4 => Some(16),
            5 => Some(12),
            _ => None,
        }
    }

    /// Blocks as the commands of this length name them.
    fn extent(&self) -> Extent {
        let (lba, blocks) = match self.byte(0) >> 5 {
            0 => {
                let blocks = self.field(4, 1);
                // 0 stands for 256 in the six-byte commands only (SBC-3, 5.7).
                let blocks = if blocks == 0 { 256 } else { blocks };
                (self.field(1, 3) & 0x1f_ffff, blocks)
            }
            4 => (self.field(2, 8), self.field(10, 4)),
            5 => (self.field(2, 4), self.field(6, 4)),
            _ => (self.field(2, 4), self.field(7, 2)),
        };
        Extent { lba, blocks }
    }

    /// Fails on RDPROTECT, WRPROTECT or VRPROTECT: the medium has no protection information.
    fn unprotected(&self) -> Result<(), Sense> {
        match self.byte(1) >> 5 {
            0 => Ok(()),
            _ => Err(Sense::INVALID_FIELD_IN_CDB),
        }
    }
}

impl Command {
    /// Reads a command descriptor block.
    ///
    /// # Errors
    /// The sense data to report: an unknown operation code, or a field we do not implement.
    pub(super) fn decode(cdb: &[u8]) -> Result<Self, Sense> {
        let cdb = Cdb(cdb);
        let expected = cdb.expected_len().ok_or(Sense::INVALID_COMMAND)?;
        let command = Self::by_opcode(&cdb)?;
        if cdb.0.len() < expected {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        Ok(command)
    }

    fn by_opcode(cdb: &Cdb<'_>) -> Result<Self, Sense> {
        Ok(match cdb.byte(0) {
            opcode::TEST_UNIT_READY => Self::TestUnitReady,
            opcode::REQUEST_SENSE => {
                Self::RequestSense { descriptor_format: cdb.bit(1, 0), allocation: cdb.field(4, 1) }
            }
            opcode::INQUIRY => Self::inquiry(cdb)?,
            opcode::MODE_SENSE_6 => Self::ModeSense(mode_sense(cdb, false), cdb.field(4, 1)),
            opcode::MODE_SENSE_10 => Self::ModeSense(mode_sense(cdb, true), cdb.field(7, 2)),
            opcode::START_STOP_UNIT => Self::start_stop_unit(cdb)?,
            opcode::PREVENT_ALLOW_MEDIUM_REMOVAL => Self::PreventAllowMediumRemoval,
            opcode::READ_CAPACITY_10 => Self::ReadCapacity10,
            opcode::SERVICE_ACTION_IN_16 => match cdb.field(1, 1) & 0x1f {
                SERVICE_ACTION_READ_CAPACITY_16 => {
                    Self::ReadCapacity16 { allocation: cdb.field(10, 4) }
                }
                _ => return Err(Sense::INVALID_FIELD_IN_CDB),
            },
            opcode::REPORT_LUNS => {
                Self::ReportLuns { select: cdb.byte(2), allocation: cdb.field(6, 4) }
            }
            opcode::READ_6 => Self::Read(cdb.extent()),
            opcode::READ_10 | opcode::READ_12 | opcode::READ_16 => {
                cdb.unprotected()?;
                Self::Read(cdb.extent())
            }
            opcode::WRITE_6 => Self::Write { extent: cdb.extent(), durable: false },
            opcode::WRITE_10 | opcode::WRITE_12 | opcode::WRITE_16 => {
                cdb.unprotected()?;
                Self::Write { extent: cdb.extent(), durable: cdb.bit(1, 3) }
            }
            opcode::VERIFY_10 | opcode::VERIFY_12 | opcode::VERIFY_16 => {
                cdb.unprotected()?;
                Self::Verify {
                    extent: cdb.extent(),
                    // BYTCHK 3, one block to compare with all, is for others to implement.
                    compare: match cdb.byte(1) >> 1 & 3 {
                        0 => false,
                        1 => true,
                        _ => return Err(Sense::INVALID_FIELD_IN_CDB),
                    },
                }
            }
            opcode::SYNCHRONIZE_CACHE_10 | opcode::SYNCHRONIZE_CACHE_16 => {
                Self::SynchronizeCache(cdb.extent())
            }
            opcode::WRITE_SAME_10 | opcode::WRITE_SAME_16 => Self::write_same(cdb)?,
            opcode::UNMAP => match cdb.bit(1, 0) {
                // ANCHOR: nothing is ever anchored here (SBC-3, 5.28).
                true => return Err(Sense::INVALID_FIELD_IN_CDB),
                false => Self::Unmap { len: cdb.field(7, 2) },
            },
            _ => return Err(Sense::INVALID_COMMAND),
        })
    }

    fn inquiry(cdb: &Cdb<'_>) -> Result<Self, Sense> {
        let page = match (cdb.byte(1) & 3, cdb.byte(2)) {
            (0, 0) => None,
            (1, page) => Some(page),
            // CMDDT, or a page without EVPD.
            _ => return Err(Sense::INVALID_FIELD_IN_CDB),
        };
        let allocation = cdb.field(3, 2);
        Ok(Self::Inquiry { page, allocation })
    }

    fn start_stop_unit(cdb: &Cdb<'_>) -> Result<Self, Sense> {
        // Neither power conditions nor loading and ejecting: the medium is fixed.
        if cdb.byte(4) >> 4 != 0 || cdb.bit(4, 1) {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        Ok(Self::StartStopUnit { start: cdb.bit(4, 0), flush: !cdb.bit(4, 2) })
    }

    fn write_same(cdb: &Cdb<'_>) -> Result<Self, Sense> {
        cdb.unprotected()?;
        let long = cdb.byte(0) == opcode::WRITE_SAME_16;
        // ANCHOR, and the obsolete PBDATA and LBDATA.
        if cdb.byte(1) & 0b1_0110 != 0 {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        Ok(Self::WriteSame {
            extent: cdb.extent(),
            unmap: cdb.bit(1, 3),
            no_data: long && cdb.bit(1, 0),
        })
    }
}

fn mode_sense(cdb: &Cdb<'_>, long_header: bool) -> ModeSense {
    ModeSense {
        long_header,
        no_block_descriptor: cdb.bit(1, 3),
        page_control: cdb.byte(2) >> 6,
        page: cdb.byte(2) & 0x3f,
        subpage: cdb.byte(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(cdb: &[u8]) -> Extent {
        match Command::decode(cdb) {
            Ok(Command::Read(extent) | Command::Write { extent, .. }) => extent,
            other => panic!("{cdb:x?}: {other:?}"),
        }
    }

    #[test]
    fn each_length_of_read_and_write_has_its_own_fields() {
        let read_6 = [0x08, 0xff, 0xff, 0xff, 0, 0];
        assert_eq!(
            extent(&read_6),
            Extent { lba: 0x1f_ffff, blocks: 256 },
            "three bits above the address are reserved, and a length of 0 means 256"
        );
        let write_10 = [0x2a, 0, 1, 2, 3, 4, 0, 5, 6, 0];
        assert_eq!(extent(&write_10), Extent { lba: 0x0102_0304, blocks: 0x0506 });
        let read_12 = [0xa8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0];
        assert_eq!(extent(&read_12), Extent { lba: 0x0102_0304, blocks: 0x0506_0708 });
        let write_16 = [0x8a, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0];
        assert_eq!(extent(&write_16), Extent { lba: 0x0102_0304_0506_0708, blocks: 0x090a_0b0c });
    }

    #[test]
    fn a_block_that_is_too_short_for_its_command_is_refused() {
        assert_eq!(Command::decode(&[0x28, 0, 0, 0, 0, 0]), Err(Sense::INVALID_FIELD_IN_CDB));
        assert_eq!(Command::decode(&[0xff; 16]), Err(Sense::INVALID_COMMAND));
        assert_eq!(Command::decode(&[0x04; 6]), Err(Sense::INVALID_COMMAND));
    }
}
