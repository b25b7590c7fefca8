//! What goes wrong on the way, and how driver and disk find each other again.

use std::io;

use vm_usb::devices::faulty::{Faulty, Odds};
use vm_usb::devices::storage::{BlockSize, RamDisk, Serial, Storage};
use vm_usb::usb::{Outcome, Pid, Speed};

use crate::driver::direct::DirectHost;
use crate::driver::enumerate::{clear_halt, enumerate};
use crate::driver::host::{HostDriver, TransferError};
use crate::driver::mass_storage::{CommandStatus, Data, DiskError, MassStorage, Sense, ten};
use crate::moody::Moody;
use crate::rig::{BLOCK, pattern, rig};

#[test]
fn an_invalid_wrapper_stalls_both_endpoints_until_reset_recovery() {
    let good = rig().driver.wrapper(0, &[0; 6], Data::None);
    let broken = |at: usize, value| {
        let mut wrapper = good.to_vec();
        wrapper[at] = value;
        wrapper
    };
    let invalid = [
        ("signature", broken(0, b'X')),
        ("30 bytes", good[..30].to_vec()),
        ("32 bytes", [&good[..], &[0]].concat()),
        ("nothing", vec![]),
        ("a block of no bytes", broken(14, 0)),
        ("a block of 17 bytes", broken(14, 17)),
        ("a reserved flag", broken(12, 0x81)),
        ("a reserved bit beside the LUN", broken(13, 0x10)),
    ];
    for (name, wrapper) in invalid {
        let mut rig = rig();
        rig.host.send(&rig.driver.output, &wrapper).unwrap();
        let (input, output) = (rig.driver.input, rig.driver.output);
        for _ in 0..2 {
            // CLEAR_FEATURE alone does not help.
            assert_eq!(rig.host.receive(&input, 13), Err(TransferError::Stall), "{name}");
            assert_eq!(rig.host.send(&output, &good), Err(TransferError::Stall), "{name}");
            clear_halt(&mut rig.host, &input).unwrap();
            clear_halt(&mut rig.host, &output).unwrap();
        }
        rig.driver.reset_recovery(&mut rig.host).unwrap();
        rig.assert_ready();
    }
}

#[test]
fn a_class_reset_leaves_halts_for_the_host_to_clear() {
    let mut rig = rig();
    rig.host.send(&rig.driver.output, &[0; 31]).unwrap();
    let input = rig.driver.input;
    assert_eq!(rig.host.receive(&input, 13), Err(TransferError::Stall));
    rig.driver.class_reset(&mut rig.host).unwrap();
    assert_eq!(rig.host.receive(&input, 13), Err(TransferError::Stall));
    clear_halt(&mut rig.host, &input).unwrap();
    rig.assert_ready();
}

#[test]
fn nothing_of_an_abandoned_write_reaches_the_medium_later() {
    let mut rig = rig();
    let wrapper = rig.driver.wrapper(0, &ten(0x2a, 1, 4), Data::Out(&[1; 4 * BLOCK]));
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    rig.host.send(&rig.driver.output, &[1; BLOCK]).unwrap();
    rig.driver.reset_recovery(&mut rig.host).unwrap();
    let at_reset = rig.disk.contents();
    // The same bytes again are now taken for a command, and refused.
    rig.host.send(&rig.driver.output, &[1; BLOCK]).unwrap();
    assert_eq!(rig.disk.contents(), at_reset);
    rig.driver.reset_recovery(&mut rig.host).unwrap();
    rig.assert_ready();
    assert_eq!(at_reset[2 * BLOCK..], pattern(64 * BLOCK)[2 * BLOCK..]);
}

#[test]
fn a_bus_reset_in_the_middle_of_a_command_starts_afresh_with_a_unit_attention() {
    let mut rig = rig();
    let wrapper = rig.driver.wrapper(0, &ten(0x28, 0, 64), Data::In(64 * BLOCK));
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    rig.host.receive(&rig.driver.input, BLOCK).unwrap();
    enumerate(&mut rig.host, 0, 5).unwrap();
    let mut inquiry = rig.command(&[0x12, 0, 0, 0, 36, 0], Data::In(36));
    assert_eq!(inquiry.data.split_off(8)[..8], *b"VM-USB  ", "INQUIRY does not mind");
    assert_eq!(rig.scsi(&[0; 6], Data::None), Err(Sense(6, 0x29, 0)));
    rig.assert_ready();
}

#[test]
fn the_host_must_take_the_status_before_it_sends_another_command() {
    let mut rig = rig();
    let wrapper = rig.driver.wrapper(0, &[0; 6], Data::None);
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    let second = rig.host.transact(&rig.driver.output, Pid::Out, &mut wrapper.to_vec());
    assert_eq!(second, Outcome::PARK);
    assert_eq!(rig.host.link.take_ready().count(), 0);
    rig.driver.status(&mut rig.host).unwrap();
    assert_eq!(rig.host.link.take_ready().collect::<Vec<_>>(), [rig.driver.output.endpoint]);
    rig.assert_ready();
}

#[test]
fn a_parked_bulk_in_is_woken_by_the_command_it_waits_for() {
    let mut rig = rig();
    let input = rig.driver.input;
    let early = rig.host.transact(&input, Pid::In, &mut vec![0; 36]);
    assert_eq!(early, Outcome::PARK);
    let wrapper = rig.driver.wrapper(0, &[0x12, 0, 0, 0, 36, 0], Data::In(36));
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    assert_eq!(rig.host.link.take_ready().collect::<Vec<_>>(), [input.endpoint]);
    assert_eq!(rig.host.receive(&input, 36).unwrap().len(), 36);
    rig.driver.status(&mut rig.host).unwrap();
}

/// Repeats a command until it gets through, as a driver does after its recovery.
fn persist<T>(mut attempt: impl FnMut() -> Result<T, DiskError>) -> T {
    for _ in 0..50 {
        match attempt() {
            Ok(done) => return done,
            Err(DiskError::Check(sense)) => panic!("the disk is in order: {sense:?}"),
            Err(DiskError::Command(_)) => {}
        }
    }
    panic!("50 attempts did not get a command through");
}

#[test]
fn a_driver_that_recovers_gets_every_byte_across_a_bad_bus() {
    for seed in 0..20 {
        let disk = RamDisk::new(pattern(64 * BLOCK), BlockSize::B512);
        let storage = Storage::new(disk.clone(), Serial::from_name("disk"));
        let device = Faulty::seeded(
            storage,
            seed,
            Odds { nak: 100, stall: 20, error: 100, ..Odds::default() },
        );
        let injected = device.injected();
        let mut host = DirectHost::new(Speed::Full, device);
        host.piece = 2048;
        let enumerated = enumerate(&mut host, 0, 5).unwrap();
        let mut driver = MassStorage::bind(&enumerated).unwrap();
        let mut expected = pattern(64 * BLOCK);
        for round in 0..30u8 {
            let lba = usize::from(round) * 2;
            let data = vec![round ^ seed as u8; 4 * BLOCK];
            // The first command may have to report the power-on attention instead.
            let started = (0..50).any(|_| driver.start(&mut host).is_ok());
            assert!(started, "seed {seed}");
            persist(|| driver.write(&mut host, lba as u32, &data, BLOCK));
            expected[lba * BLOCK..][..data.len()].copy_from_slice(&data);
            let read = persist(|| driver.read(&mut host, 0, 64 * BLOCK, BLOCK));
            assert!(read == expected, "seed {seed}, round {round}");
        }
        assert!(disk.contents() == expected, "seed {seed}");
        assert!(injected.count() > 100, "seed {seed}: only {} faults", injected.count());
    }
}

fn moody() -> (Moody, DirectHost, MassStorage) {
    let medium = Moody::default();
    let device = Storage::new(medium.clone(), Serial::from_name("moody"));
    let mut host = DirectHost::new(Speed::High, device);
    host.piece = 4096;
    let enumerated = enumerate(&mut host, 0, 5).unwrap();
    let mut driver = MassStorage::bind(&enumerated).unwrap();
    driver.start(&mut host).unwrap();
    (medium, host, driver)
}

#[test]
fn a_block_that_cannot_be_read_ends_the_data_with_a_medium_error() {
    let (medium, mut host, mut driver) = moody();
    medium.fail_at(20 * 512, io::ErrorKind::Other);
    let reply = driver.command(&mut host, &ten(0x28, 0, 32), Data::In(32 * BLOCK)).unwrap();
    assert!(reply.stalled);
    assert_eq!(reply.status, CommandStatus::Failed);
    assert_eq!(reply.residue as usize, 32 * BLOCK - 2 * 4096, "two good transfers of 4 KiB");
    assert_eq!(driver.request_sense(&mut host), Ok(Sense(3, 0x11, 0)));
    medium.calm_down();
    assert_eq!(driver.read(&mut host, 0, BLOCK, BLOCK), Ok(vec![0x11; BLOCK]));
}

#[test]
fn a_block_that_cannot_be_written_fails_the_command_after_its_data() {
    let (medium, mut host, mut driver) = moody();
    let data = [1; 32 * BLOCK];
    for (kind, sense) in [
        (io::ErrorKind::Other, Sense(3, 0x0c, 0)),
        // The host's file system is full: the guest's may hear of it.
        (io::ErrorKind::StorageFull, Sense(7, 0x27, 7)),
    ] {
        medium.fail_at(20 * 512, kind);
        let write = driver.write(&mut host, 0, &data, BLOCK);
        assert_eq!(write, Err(DiskError::Check(sense)));
    }
    medium.calm_down();
    driver.write(&mut host, 0, &data, BLOCK).unwrap();
}

#[test]
fn writes_are_durable_after_synchronize_cache_fua_and_stop() {
    let (medium, mut host, mut driver) = moody();
    driver.write(&mut host, 0, &[1; 4 * BLOCK], BLOCK).unwrap();
    assert_eq!(medium.flushes(), 0);
    driver.scsi(&mut host, &ten(0x35, 0, 0), Data::None).unwrap();
    assert_eq!(medium.flushes(), 1);
    let mut fua = ten(0x2a, 0, 32);
    fua[1] = 0x08;
    driver.scsi(&mut host, &fua, Data::Out(&[1; 32 * BLOCK])).unwrap();
    assert_eq!(medium.flushes(), 2, "once, at the end of the command");
    driver.scsi(&mut host, &[0x1b, 0, 0, 0, 0, 0], Data::None).unwrap();
    assert_eq!(medium.flushes(), 3);
    driver.scsi(&mut host, &[0x1b, 0, 0, 0, 1, 0], Data::None).unwrap();

    medium.fail_at(0, io::ErrorKind::Other);
    let flush = driver.scsi(&mut host, &ten(0x35, 0, 0), Data::None);
    assert_eq!(flush, Err(DiskError::Check(Sense(3, 0x0c, 0))));
    // A medium without discard says so, and refuses it.
    let unmap = driver.scsi(&mut host, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Out(&[0; 24]));
    assert_eq!(unmap, Err(DiskError::Check(Sense(5, 0x20, 0))));
}
