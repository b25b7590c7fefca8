//! A medium whose calls are costly gets small pieces of a write together.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use vm_usb::devices::storage::{BlockSize, Medium, RamDisk, Serial, Storage};
use vm_usb::snapshot::{restore, save};
use vm_usb::time::Time;
use vm_usb::usb::{Buffer, Speed};

use crate::driver::direct::DirectHost;
use crate::driver::enumerate::enumerate;
use crate::driver::host::HostDriver;
use crate::driver::mass_storage::{CommandStatus, Data, DiskError, MassStorage, Sense, ten};
use crate::rig::{BLOCK, pattern};

/// A disk in memory that says how many bytes a call should have, and remembers its writes.
#[derive(Clone)]
struct Costly {
    disk: RamDisk,
    batch: usize,
    /// Offset and length in blocks of every write.
    writes: Arc<Mutex<Vec<(u64, usize)>>>,
    /// A block that cannot be written.
    bad: Arc<Mutex<Option<u64>>>,
}

impl Costly {
    fn new(disk: RamDisk, batch: usize) -> Self {
        Self { disk, batch, writes: Arc::default(), bad: Arc::default() }
    }

    fn writes(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }

    fn spoil(&self, block: Option<u64>) {
        *self.bad.lock().unwrap() = block;
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let bad = self.bad.lock().unwrap().map(|block| block * 512);
        match bad {
            Some(bad) if (offset..offset + len as u64).contains(&bad) => {
                Err(io::Error::other("bad"))
            }
            _ => Ok(()),
        }
    }
}

impl Medium for Costly {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn write_batch(&self) -> usize {
        self.batch
    }

    fn read(&mut self, at: u64, buffer: &mut dyn Buffer, range: Range<usize>) -> io::Result<()> {
        self.disk.read(at, buffer, range)
    }

    fn write(&mut self, at: u64, buffer: &mut dyn Buffer, range: Range<usize>) -> io::Result<()> {
        self.writes.lock().unwrap().push((at / 512, range.len() / BLOCK));
        self.check(at, range.len())?;
        self.disk.write(at, buffer, range)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Rig {
    host: DirectHost,
    driver: MassStorage,
    medium: Costly,
}

impl Rig {
    fn new(batch: usize, piece: usize) -> Self {
        Self::with(RamDisk::new(pattern(64 * BLOCK), BlockSize::B512), batch, piece)
    }

    fn with(disk: RamDisk, batch: usize, piece: usize) -> Self {
        let medium = Costly::new(disk, batch);
        let device = Storage::new(medium.clone(), Serial::from_name("costly"));
        let mut host = DirectHost::new(Speed::High, device);
        host.piece = piece;
        let enumerated = enumerate(&mut host, 0, 5).unwrap();
        let mut driver = MassStorage::bind(&enumerated).unwrap();
        driver.start(&mut host).unwrap();
        Self { host, driver, medium }
    }

    fn read(&mut self, lba: u32, blocks: usize) -> Vec<u8> {
        self.driver.read(&mut self.host, lba, blocks * BLOCK, BLOCK).unwrap()
    }
}

#[test]
fn small_pieces_of_a_command_are_written_together_before_its_status() {
    let mut rig = Rig::new(16 * BLOCK, 2 * BLOCK);
    let data: Vec<_> = (0..40 * BLOCK).map(|at| (at / 7) as u8).collect();
    rig.driver.write(&mut rig.host, 3, &data, BLOCK).unwrap();
    assert_eq!(rig.medium.writes(), [(3, 16), (19, 16), (35, 8)]);
    assert_eq!(rig.medium.disk.contents()[3 * BLOCK..43 * BLOCK], data);
}

#[test]
fn large_pieces_go_straight_to_the_medium_as_do_all_where_calls_are_cheap() {
    for (batch, piece) in [(8 * BLOCK, 8 * BLOCK), (0, 8 * BLOCK)] {
        let mut rig = Rig::new(batch, piece);
        rig.driver.write(&mut rig.host, 0, &[1; 20 * BLOCK], BLOCK).unwrap();
        assert_eq!(rig.medium.writes(), [(0, 8), (8, 8), (16, 4)]);
    }
}

#[test]
fn a_medium_that_likes_too_much_at_once_gets_the_most_there_is() {
    let mut rig = Rig::with(RamDisk::zeroed(5000), usize::MAX, 2 * BLOCK);
    rig.driver.write(&mut rig.host, 0, &[1; 5000 * BLOCK], BLOCK).unwrap();
    assert_eq!(rig.medium.writes(), [(0, 2048), (2048, 2048), (4096, 904)]);
}

#[test]
fn a_write_that_fails_late_fails_its_command_and_leaves_nothing_for_the_next() {
    let mut rig = Rig::new(16 * BLOCK, 2 * BLOCK);
    rig.medium.spoil(Some(2));
    let failed = rig.driver.write(&mut rig.host, 0, &[1; 20 * BLOCK], BLOCK);
    assert_eq!(failed, Err(DiskError::Check(Sense(3, 0x0c, 0))));
    rig.medium.spoil(None);
    let before = rig.medium.disk.contents();
    rig.driver.write(&mut rig.host, 60, &[2; BLOCK], BLOCK).unwrap();
    let after = rig.medium.disk.contents();
    assert_eq!(after[..60 * BLOCK], before[..60 * BLOCK]);
    assert_eq!(after[60 * BLOCK..61 * BLOCK], [2; BLOCK]);
}

#[test]
fn a_write_that_the_host_gives_up_leaves_nothing_behind() {
    let mut rig = Rig::new(16 * BLOCK, 2 * BLOCK);
    let wrapper = rig.driver.wrapper(0, &ten(0x2a, 0, 20), Data::Out(&[1; 20 * BLOCK]));
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    rig.host.send(&rig.driver.output, &[1; 6 * BLOCK]).unwrap();
    rig.driver.reset_recovery(&mut rig.host).unwrap();
    rig.driver.write(&mut rig.host, 30, &[2; BLOCK], BLOCK).unwrap();
    let mut expected = pattern(64 * BLOCK);
    expected[30 * BLOCK..31 * BLOCK].fill(2);
    assert_eq!(rig.medium.disk.contents(), expected);
}

#[test]
fn what_is_not_yet_written_is_in_the_snapshot() {
    let mut rig = Rig::new(16 * BLOCK, 2 * BLOCK);
    let data: Vec<_> = (0..20 * BLOCK).map(|at| (at / 3) as u8).collect();
    let wrapper = rig.driver.wrapper(0, &ten(0x2a, 5, 20), Data::Out(&data));
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    rig.host.send(&rig.driver.output, &data[..6 * BLOCK]).unwrap();
    assert_eq!(rig.medium.writes(), []);
    let saved = save(Time::ZERO, &[("port", &rig.host.port)]).unwrap();

    let mut other = Rig::new(16 * BLOCK, 2 * BLOCK);
    restore(&saved, Time::ZERO, &mut [("port", &mut other.host.port)]).unwrap();
    other.host.adopt_toggles(&rig.host);
    other.host.send(&rig.driver.output, &data[6 * BLOCK..]).unwrap();
    assert_eq!(rig.driver.status(&mut other.host), Ok((CommandStatus::Passed, 0)));
    assert_eq!(other.medium.disk.contents()[5 * BLOCK..25 * BLOCK], data);
}

proptest! {
    #[test]
    fn whatever_is_put_together_the_disk_holds_the_same(
        batch in 0..40usize,
        piece in 1..20usize,
        steps in prop::collection::vec((any::<bool>(), 0..63u32, 1..64usize, any::<u8>()), 1..20),
    ) {
        let mut rig = Rig::new(batch * 300, piece * BLOCK);
        let mut expected = pattern(64 * BLOCK);
        for (reads, lba, blocks, seed) in steps {
            let blocks = blocks.min(64 - lba as usize);
            let range = lba as usize * BLOCK..(lba as usize + blocks) * BLOCK;
            if reads {
                prop_assert!(rig.read(lba, blocks) == expected[range]);
            } else {
                let data: Vec<_> = (0..range.len()).map(|at| (at / 5) as u8 ^ seed).collect();
                rig.driver.write(&mut rig.host, lba, &data, BLOCK).unwrap();
                expected[range].copy_from_slice(&data);
                prop_assert!(rig.medium.disk.contents() == expected);
            }
        }
    }
}
