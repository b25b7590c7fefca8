//! What holds of a queue of commands whatever a guest does.

use proptest::prelude::*;
use vm_usb::usb::{Pid, Speed, Status};

use crate::driver::mass_storage::{Data, DiskError, MassStorage, Sense, ten};
use crate::driver::uas::Uas;
use crate::rig::BLOCK;
use crate::uas::{TEST_UNIT_READY, rig, rig_at};

/// What one side of a disk that knows both transports makes of a command.
fn outcome(result: Result<Vec<u8>, DiskError>) -> Result<Vec<u8>, Sense> {
    result.map_err(|error| match error {
        DiskError::Check(sense) => sense,
        DiskError::Command(error) => panic!("{error:?}"),
    })
}

proptest! {
    /// Commands that a driver would send do the same over both transports.
    #[test]
    fn both_transports_carry_the_same_disk(
        steps in prop::collection::vec((0..7u8, 0..70u8, 1..9u8, any::<u8>()), 1..40),
        full in any::<bool>(),
    ) {
        let speed = if full { Speed::Full } else { Speed::High };
        let mut uas = rig_at(speed);
        let mut other = rig_at(speed);
        other.driver.select(&mut other.host, 0).unwrap();
        let mut bulk_only = MassStorage::bind(&other.enumerated).unwrap();
        for (kind, lba, blocks, seed) in steps {
            let bytes = vec![seed; usize::from(blocks) * BLOCK];
            let at = |opcode| ten(opcode, lba.into(), blocks.into()).to_vec();
            let (cdb, data) = match kind {
                0 => (at(0x28), Data::In(bytes.len())),
                1 => (at(0x2a), Data::Out(&bytes)),
                2 => (at(0x35), Data::None),
                // Room for part of the longest page: this driver loses data that a STALL ends.
                3 => {
                    let page = [0x00, 0x83, 0xb0, 0xb1, 0xb2, 0xc0][usize::from(seed) % 6];
                    (vec![0x12, 1, page, 0, 60, 0], Data::In(60))
                }
                4 => (vec![0x1a, 0, 0x3f, 0, 192, 0], Data::In(192)),
                5 => (vec![0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], Data::In(32)),
                _ => (vec![0x41, 0, 0, 0, 0, lba, 0, 0, blocks, 0], Data::Out(&bytes[..BLOCK])),
            };
            let over_uas = outcome(uas.driver.scsi(&mut uas.host, &cdb, data));
            let over_bulk_only = outcome(bulk_only.scsi(&mut other.host, &cdb, data));
            prop_assert_eq!(over_uas, over_bulk_only, "{:x?}", cdb);
        }
        prop_assert!(uas.disk.contents() == other.disk.contents());
    }

    /// Whatever arrives on whichever pipe, the disk is usable after the host has chosen anew.
    #[test]
    fn no_sequence_of_transfers_gets_the_disk_out_of_step(
        steps in prop::collection::vec(
            (0..5u8, prop::collection::vec(any::<u8>(), 0..80), 0..8u16, 0..1500usize),
            0..200,
        ),
    ) {
        let mut rig = rig();
        for (kind, mut bytes, tag, len) in steps {
            let Uas { command, status, input, output, .. } = rig.driver;
            let outcome = match kind {
                0 => rig.host.transact(&command, Pid::Out, &mut bytes),
                1 => {
                    bytes.resize(16, 0);
                    bytes[1..5].iter_mut().for_each(|byte| *byte &= 3);
                    bytes[0] = [0x28, 0x2a, 0x12, 0, 0x35][usize::from(bytes[15]) % 5];
                    let iu = Uas::command_iu(tag, 0, &bytes);
                    rig.host.transact(&command, Pid::Out, &mut iu.to_vec())
                }
                2 => rig.host.transact(&status, Pid::In, &mut vec![0; 96]),
                3 => rig.host.transact(&input, Pid::In, &mut vec![0; len]),
                _ => rig.host.transact(&output, Pid::Out, &mut vec![0; len]),
            };
            let expected = matches!(outcome.status, Status::Complete | Status::Nak(_))
                || kind == 3 && matches!(outcome.status, Status::Error(_));
            prop_assert!(expected, "{outcome:?}");
        }
        rig.driver.select(&mut rig.host, 1).unwrap();
        match rig.scsi(&TEST_UNIT_READY, Data::None) {
            Ok(_) | Err(Sense(6, 0x29, 0)) => {}
            // START STOP UNIT may have stopped it.
            Err(Sense(2, 0x04, 2)) => {
                rig.scsi(&[0x1b, 0, 0, 0, 1, 0], Data::None).unwrap();
            }
            other => prop_assert!(false, "{other:?}"),
        }
        rig.assert_ready();
    }
}
