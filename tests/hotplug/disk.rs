//! Disks: what is on them is what was written, up to where the plug was pulled.

use vm_usb::devices::faulty::{Faulty, Odds};
use vm_usb::devices::full_speed::FullSpeed;
use vm_usb::devices::storage::{RamDisk, Serial, Storage};
use vm_usb::ohci::Pacing;
use vm_usb::usb::{Speed, UsbDevice};

use crate::bus::Kind;
use crate::driver::dice::Dice;
use crate::driver::disk::{DiskDriver, Transport};
use crate::driver::enumerate::Enumerated;
use crate::driver::host::{HostDriver, TransferError};
use crate::driver::mass_storage::{CommandError, DiskError};
use crate::driver::ohci::Idle;
use crate::job::{Job, tell, tell_on};

const BLOCK: usize = 512;
const BLOCKS: u64 = 128;
const MOST_BLOCKS: u64 = 40;

/// A disk that is read and written.
pub(crate) struct Disk {
    dice: Dice,
    medium: RamDisk,
    transport: Transport,
    driver: Option<DiskDriver>,
    /// What is on it.
    expected: Vec<u8>,
    /// A write that did not come to its end: where, and what.
    torn: Option<(usize, Vec<u8>)>,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            medium: RamDisk::zeroed(BLOCKS as usize),
            transport: Transport::BulkOnly,
            driver: None,
            expected: vec![0; BLOCKS as usize * BLOCK],
            torn: None,
        }
    }

    fn over_uas(seed: u64) -> Self {
        Self { transport: Transport::Uas, ..Self::new(seed) }
    }

    /// The same disk at full speed.
    pub(crate) fn slow_device(&mut self) -> Box<dyn UsbDevice> {
        Box::new(FullSpeed::new(self.device(Speed::Full)))
    }

    fn transfer(&mut self, host: &mut dyn HostDriver) -> Result<(), DiskError> {
        let blocks = 1 + self.dice.below(MOST_BLOCKS);
        let lba = self.dice.below(BLOCKS - blocks);
        let (at, len) = (lba as usize * BLOCK, blocks as usize * BLOCK);
        let driver = self.driver.as_mut().expect("it is bound");
        if self.dice.below(2) == 0 {
            let read = driver.read(host, lba as u32, len, BLOCK)?;
            assert!(read == self.expected[at..][..len], "{lba}+{blocks} reads as something else");
        } else {
            let data = self.dice.bytes(len);
            self.torn = Some((at, data.clone()));
            driver.write(host, lba as u32, &data, BLOCK)?;
            self.torn = None;
            self.expected[at..][..len].copy_from_slice(&data);
        }
        Ok(())
    }
}

/// What the bus said; a command that failed for another reason is nothing that pulling explains.
fn of_the_bus(error: DiskError) -> TransferError {
    match error {
        DiskError::Command(CommandError::Transfer(error)) => error,
        other => panic!("{other:?}"),
    }
}

impl Job for Disk {
    fn device(&mut self, _speed: Speed) -> Box<dyn UsbDevice> {
        let storage = Storage::new(self.medium.clone(), Serial::from_name("disk"));
        // A device that is busy now and then, so that transfers take their time.
        Box::new(Faulty::seeded(storage, self.dice.roll(), Odds { nak: 100, ..Odds::default() }))
    }

    fn bind(&mut self, host: &mut dyn HostDriver, found: &Enumerated) -> Result<(), TransferError> {
        let driver = DiskDriver::bind(host, found, self.transport)?;
        let mut driver = driver.expect("it is a disk");
        driver.start(host).map_err(of_the_bus)?;
        self.driver = Some(driver);
        Ok(())
    }

    fn work(&mut self, host: &mut dyn HostDriver) -> Result<(), TransferError> {
        self.transfer(host).map_err(of_the_bus)
    }

    fn check(&mut self) {
        let contents = self.medium.contents();
        if let Some((at, data)) = self.torn.take() {
            let new = contents[at..].iter().zip(&data).take_while(|(is, new)| is == new).count();
            self.expected[at..][..new].copy_from_slice(&data[..new]);
        }
        assert!(contents == self.expected, "more changed than the start of the torn write");
    }
}

#[test]
fn a_disk_is_pulled_out_while_it_is_read_and_written() {
    tell(Disk::new);
}

#[test]
fn a_disk_is_pulled_out_while_it_is_read_and_written_over_uas() {
    let ohci = Kind::Ohci(Pacing::RealTime, Idle::Unlink);
    tell_on(&[(ohci, 200), (Kind::Ehci, 200)], Disk::over_uas);
}
