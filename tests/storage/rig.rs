//! A disk of 64 blocks and its driver.

use vm_usb::devices::storage::{BlockSize, RamDisk, Serial, Storage};
use vm_usb::usb::Speed;

use crate::driver::direct::DirectHost;
use crate::driver::enumerate::enumerate;
use crate::driver::mass_storage::{Data, DiskError, MassStorage, Reply, Sense, ten};

pub(crate) const BLOCK: usize = 512;

/// Bytes that tell their position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at / 512 * 7 + at) as u8).collect()
}

/// A disk of 64 blocks that its driver has started.
pub(crate) struct Rig {
    pub(crate) host: DirectHost,
    pub(crate) driver: MassStorage,
    pub(crate) disk: RamDisk,
}

pub(crate) fn rig_with(speed: Speed, disk: RamDisk) -> Rig {
    let storage = Storage::new(disk.clone(), Serial::from_name("disk"));
    let mut host = DirectHost::new(speed, storage);
    let enumerated = enumerate(&mut host, 0, 5).unwrap();
    let mut driver = MassStorage::bind(&enumerated).unwrap();
    driver.start(&mut host).unwrap();
    Rig { host, driver, disk }
}

pub(crate) fn rig() -> Rig {
    rig_with(Speed::High, RamDisk::new(pattern(64 * BLOCK), BlockSize::B512))
}

impl Rig {
    pub(crate) fn command(&mut self, cdb: &[u8], data: Data<'_>) -> Reply {
        self.driver.command(&mut self.host, cdb, data).unwrap()
    }

    pub(crate) fn scsi(&mut self, cdb: &[u8], data: Data<'_>) -> Result<Vec<u8>, Sense> {
        self.driver.scsi(&mut self.host, cdb, data).map_err(|error| match error {
            DiskError::Check(sense) => sense,
            DiskError::Command(error) => panic!("{error:?}"),
        })
    }

    /// The device takes a new command: it did not lose step.
    pub(crate) fn assert_ready(&mut self) {
        assert_eq!(self.scsi(&[0; 6], Data::None), Ok(vec![]));
        let block = self.scsi(&ten(0x28, 3, 1), Data::In(BLOCK)).unwrap();
        assert_eq!(block, self.disk.contents()[3 * BLOCK..4 * BLOCK]);
    }
}
