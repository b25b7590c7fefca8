//! A bulk-only mass storage driver with the recovery that the transport's specification prescribes.

use vm_usb::usb::SetupPacket;

use super::enumerate::{Enumerated, clear_halt};
use super::host::{Device, HostDriver, Pipe, TransferError};

/// What the driver announces in the wrapper of a command.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    None,
    /// This many bytes from the device.
    In(usize),
    /// These bytes to the device.
    Out(&'a [u8]),
}

/// `bCSWStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandStatus {
    Passed,
    Failed,
    PhaseError,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: CommandStatus,
    /// `dCSWDataResidue`.
    pub residue: u32,
    /// What arrived of the data stage.
    pub data: Vec<u8>,
    /// Whether the data stage ended with a STALL.
    pub stalled: bool,
}

/// Why a command has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    Transfer(TransferError),
    /// The status wrapper was not valid or not this command's.
    BadStatus,
}

impl From<TransferError> for CommandError {
    fn from(error: TransferError) -> Self {
        Self::Transfer(error)
    }
}

/// Why a disk command failed: sense key, additional sense code and qualifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense(pub u8, pub u8, pub u8);

/// Why a disk did not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    Command(CommandError),
    Check(Sense),
}

impl<E: Into<CommandError>> From<E> for DiskError {
    fn from(error: E) -> Self {
        Self::Command(error.into())
    }
}

/// A mass storage interface.
#[derive(Clone, Debug)]
pub struct MassStorage {
    pub device: Device,
    pub interface: u8,
    pub input: Pipe,
    pub output: Pipe,
    tag: u32,
}

impl MassStorage {
    /// Binds to the bulk-only interface of a device.
    pub fn bind(enumerated: &Enumerated) -> Option<Self> {
        let interface = enumerated.interfaces.iter().find(|i| i.class == [8, 6, 0x50])?;
        let bulk = |input| {
            let mut endpoints = interface.endpoints.iter();
            endpoints.find(|e| e.attributes & 3 == 2 && e.address.is_in() == input)
        };
        Some(Self {
            device: enumerated.device,
            interface: interface.number,
            input: enumerated.pipe(bulk(true)?),
            output: enumerated.pipe(bulk(false)?),
            tag: 0x1000,
        })
    }

    /// GET_MAX_LUN.
    pub fn max_lun(&self, host: &mut dyn HostDriver) -> Result<u8, TransferError> {
        let setup = SetupPacket::new(0xa1, 0xfe, 0, self.interface.into(), 1);
        host.control(&self.device, setup, &[]).map(|data| data[0])
    }

    /// Bulk-Only Mass Storage Reset, without the rest of the recovery.
    pub fn class_reset(&self, host: &mut dyn HostDriver) -> Result<(), TransferError> {
        let setup = SetupPacket::new(0x21, 0xff, 0, self.interface.into(), 0);
        host.control(&self.device, setup, &[]).map(drop)
    }

    /// Reset Recovery (Bulk-Only Transport 1.0, 5.3.4).
    pub fn reset_recovery(&self, host: &mut dyn HostDriver) -> Result<(), TransferError> {
        self.class_reset(host)?;
        clear_halt(host, &self.input)?;
        clear_halt(host, &self.output)
    }

    /// The wrapper of a command, with a new tag.
    pub fn wrapper(&mut self, lun: u8, cdb: &[u8], data: Data<'_>) -> [u8; 31] {
        self.tag += 1;
        let (flags, len) = match data {
            Data::None => (0, 0),
            Data::In(len) => (0x80, len),
            Data::Out(bytes) => (0, bytes.len()),
        };
        let mut wrapper = [0; 31];
        wrapper[..4].copy_from_slice(b"USBC");
        wrapper[4..8].copy_from_slice(&self.tag.to_le_bytes());
        wrapper[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        wrapper[12..15].copy_from_slice(&[flags, lun, cdb.len() as u8]);
        wrapper[15..][..cdb.len()].copy_from_slice(cdb);
        wrapper
    }

    /// Command, data and status (Bulk-Only Transport 1.0, 5.3 and 6.7).
    pub fn command(
        &mut self,
        host: &mut dyn HostDriver,
        cdb: &[u8],
        data: Data<'_>,
    ) -> Result<Reply, CommandError> {
        let wrapper = self.wrapper(0, cdb, data);
        if let Err(error) = host.send(&self.output, &wrapper) {
            self.reset_recovery(host)?;
            return Err(error.into());
        }
        let moved = match data {
            Data::None => Ok(Vec::new()),
            Data::In(len) => host.receive(&self.input, len),
            Data::Out(bytes) => host.send(&self.output, bytes).map(|()| Vec::new()),
        };
        let (data, stalled) = match (moved, data) {
            (Ok(data), _) => (data, false),
            (Err(TransferError::Stall), Data::Out(_)) => {
                clear_halt(host, &self.output)?;
                (Vec::new(), true)
            }
            (Err(TransferError::Stall), _) => {
                clear_halt(host, &self.input)?;
                (Vec::new(), true)
            }
            (Err(error), _) => {
                self.reset_recovery(host)?;
                return Err(error.into());
            }
        };
        let (status, residue) = self.status(host)?;
        Ok(Reply { status, residue, data, stalled })
    }

    /// Fetches the status; a STALL before it is cleared once (figure 2).
    pub fn status(
        &mut self,
        host: &mut dyn HostDriver,
    ) -> Result<(CommandStatus, u32), CommandError> {
        let bytes = match host.receive(&self.input, 13) {
            Err(TransferError::Stall) => {
                clear_halt(host, &self.input)?;
                host.receive(&self.input, 13)
            }
            result => result,
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                self.reset_recovery(host)?;
                return Err(error.into());
            }
        };
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let status = match (bytes.len(), bytes.last()) {
            (13, Some(0)) => CommandStatus::Passed,
            (13, Some(1)) => CommandStatus::Failed,
            (13, Some(2)) => CommandStatus::PhaseError,
            _ => {
                self.reset_recovery(host)?;
                return Err(CommandError::BadStatus);
            }
        };
        if bytes[..4] != *b"USBS" || word(4) != self.tag {
            self.reset_recovery(host)?;
            return Err(CommandError::BadStatus);
        }
        if status == CommandStatus::PhaseError {
            self.reset_recovery(host)?;
        }
        Ok((status, word(8)))
    }

    /// A disk command: its data, or the sense data that says why there is none.
    pub fn scsi(
        &mut self,
        host: &mut dyn HostDriver,
        cdb: &[u8],
        data: Data<'_>,
    ) -> Result<Vec<u8>, DiskError> {
        let reply = self.command(host, cdb, data)?;
        match reply.status {
            CommandStatus::Passed => Ok(reply.data),
            CommandStatus::Failed => Err(DiskError::Check(self.request_sense(host)?)),
            CommandStatus::PhaseError => Err(CommandError::BadStatus.into()),
        }
    }

    /// REQUEST SENSE.
    pub fn request_sense(&mut self, host: &mut dyn HostDriver) -> Result<Sense, CommandError> {
        let reply = self.command(host, &[0x03, 0, 0, 0, 18, 0], Data::In(18))?;
        Ok(Sense(reply.data[2] & 0xf, reply.data[12], reply.data[13]))
    }

    /// Waits until the unit is ready, as a driver does at first contact.
    pub fn start(&mut self, host: &mut dyn HostDriver) -> Result<(), DiskError> {
        for _ in 0..3 {
            match self.scsi(host, &[0; 6], Data::None) {
                Err(DiskError::Check(Sense(6, ..))) => host.sleep_millis(1),
                result => return result.map(drop),
            }
        }
        self.scsi(host, &[0; 6], Data::None).map(drop)
    }

    /// Number of blocks and their size in bytes.
    pub fn capacity(&mut self, host: &mut dyn HostDriver) -> Result<(u64, u32), DiskError> {
        let data = self.scsi(host, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], Data::In(8))?;
        let word = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
        Ok((u64::from(word(0)) + 1, word(4)))
    }

    /// READ (10) of `len` bytes in blocks of `block` bytes.
    pub fn read(
        &mut self,
        host: &mut dyn HostDriver,
        lba: u32,
        len: usize,
        block: usize,
    ) -> Result<Vec<u8>, DiskError> {
        self.scsi(host, &ten(0x28, lba, len / block), Data::In(len))
    }

    /// WRITE (10) of `data` in blocks of `block` bytes.
    pub fn write(
        &mut self,
        host: &mut dyn HostDriver,
        lba: u32,
        data: &[u8],
        block: usize,
    ) -> Result<(), DiskError> {
        self.scsi(host, &ten(0x2a, lba, data.len() / block), Data::Out(data)).map(drop)
    }
}

/// A command of ten bytes with an address and a number of blocks.
pub fn ten(opcode: u8, lba: u32, blocks: usize) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&(blocks as u16).to_be_bytes());
    cdb
}
