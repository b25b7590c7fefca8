//! A disk's driver over either transport.

use super::enumerate::Enumerated;
use super::host::{HostDriver, TransferError};
use super::mass_storage::{Data, DiskError, MassStorage, ten};
use super::uas::Uas;

/// Which transport a driver chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    BulkOnly,
    Uas,
}

/// A driver that has chosen.
#[derive(Clone, Debug)]
pub enum DiskDriver {
    BulkOnly(MassStorage),
    Uas(Uas),
}

impl DiskDriver {
    /// Binds to a disk; `None` if it does not have the transport.
    pub fn bind(
        host: &mut dyn HostDriver,
        enumerated: &Enumerated,
        transport: Transport,
    ) -> Result<Option<Self>, TransferError> {
        Ok(match transport {
            Transport::BulkOnly => MassStorage::bind(enumerated).map(Self::BulkOnly),
            Transport::Uas => Uas::bind(host, enumerated)?.map(Self::Uas),
        })
    }

    /// Waits until the unit is ready, as a driver does at first contact.
    pub fn start(&mut self, host: &mut dyn HostDriver) -> Result<(), DiskError> {
        match self {
            Self::BulkOnly(driver) => driver.start(host),
            Self::Uas(driver) => driver.start(host),
        }
    }

    /// A disk command: its data, or the sense data that says why there is none.
    pub fn scsi(
        &mut self,
        host: &mut dyn HostDriver,
        cdb: &[u8],
        data: Data<'_>,
    ) -> Result<Vec<u8>, DiskError> {
        match self {
            Self::BulkOnly(driver) => driver.scsi(host, cdb, data),
            Self::Uas(driver) => driver.scsi(host, cdb, data),
        }
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
