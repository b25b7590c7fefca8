//! A disk behind a bus without any controller: the bulk-only transport and its SCSI commands, as a
//! driver meets them.

mod driver;

use driver::direct::DirectHost;
use driver::enumerate::{clear_halt, enumerate};
use driver::host::{HostDriver, TransferError};
use driver::mass_storage::{CommandStatus, Data, DiskError, MassStorage, Reply, Sense, ten};
use vm_usb::devices::storage::{BlockSize, RamDisk, Serial, Storage};
use vm_usb::usb::{Outcome, Pid, Speed, Status};

const BLOCK: usize = 512;

/// Bytes that tell their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at / 512 * 7 + at) as u8).collect()
}

/// A disk of 64 blocks that its driver has started.
struct Rig {
    host: DirectHost,
    driver: MassStorage,
    disk: RamDisk,
}

fn rig_with(speed: Speed, disk: RamDisk) -> Rig {
    let storage = Storage::new(disk.clone(), Serial::from_name("disk"));
    let mut host = DirectHost::new(speed, storage);
    let enumerated = enumerate(&mut host, 0, 5).unwrap();
    let mut driver = MassStorage::bind(&enumerated).unwrap();
    driver.start(&mut host).unwrap();
    Rig { host, driver, disk }
}

fn rig() -> Rig {
    rig_with(Speed::High, RamDisk::new(pattern(64 * BLOCK), BlockSize::B512))
}

impl Rig {
    fn command(&mut self, cdb: &[u8], data: Data<'_>) -> Reply {
        self.driver.command(&mut self.host, cdb, data).unwrap()
    }

    fn scsi(&mut self, cdb: &[u8], data: Data<'_>) -> Result<Vec<u8>, Sense> {
        self.driver.scsi(&mut self.host, cdb, data).map_err(|error| match error {
            DiskError::Check(sense) => sense,
            DiskError::Command(error) => panic!("{error:?}"),
        })
    }

    /// The device takes a new command: it did not lose step.
    fn assert_ready(&mut self) {
        assert_eq!(self.scsi(&[0; 6], Data::None), Ok(vec![]));
        let block = self.scsi(&ten(0x28, 3, 1), Data::In(BLOCK)).unwrap();
        assert_eq!(block, self.disk.contents()[3 * BLOCK..4 * BLOCK]);
    }
}

const WRITE_PROTECTED: Sense = Sense(7, 0x27, 0);
const INVALID_COMMAND: Sense = Sense(5, 0x20, 0);
const LBA_OUT_OF_RANGE: Sense = Sense(5, 0x21, 0);
const INVALID_FIELD_IN_CDB: Sense = Sense(5, 0x24, 0);

#[test]
fn a_driver_finds_the_disk_and_reads_and_writes_it_at_both_speeds() {
    for (speed, packet) in [(Speed::Full, 64), (Speed::High, 512)] {
        let mut rig = rig_with(speed, RamDisk::new(pattern(64 * BLOCK), BlockSize::B512));
        assert_eq!(rig.driver.input.max_packet, packet);
        assert_eq!(rig.driver.max_lun(&mut rig.host), Ok(0));
        assert_eq!(rig.driver.capacity(&mut rig.host).unwrap(), (64, 512));
        let read = rig.driver.read(&mut rig.host, 0, 64 * BLOCK, BLOCK).unwrap();
        assert_eq!(read, pattern(64 * BLOCK));

        let new = vec![0xa5; 40 * BLOCK];
        rig.driver.write(&mut rig.host, 10, &new, BLOCK).unwrap();
        let contents = rig.disk.contents();
        assert_eq!(contents[10 * BLOCK..50 * BLOCK], new);
        assert_eq!(contents[..10 * BLOCK], pattern(64 * BLOCK)[..10 * BLOCK]);
        assert_eq!(contents[50 * BLOCK..], pattern(64 * BLOCK)[50 * BLOCK..]);
    }
}

#[test]
fn every_length_of_read_and_write_reaches_the_same_blocks() {
    let mut rig = rig();
    let read_6 = [0x08, 0, 0, 7, 2, 0];
    let read_12 = [0xa8, 0, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0];
    let read_16 = [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0];
    let mut expected = pattern(64 * BLOCK)[7 * BLOCK..9 * BLOCK].to_vec();
    for cdb in [&read_6[..], &ten(0x28, 7, 2), &read_12, &read_16] {
        assert_eq!(rig.scsi(cdb, Data::In(2 * BLOCK)).unwrap(), expected, "{cdb:x?}");
    }
    let writes = [&read_6[..], &ten(0x28, 7, 2), &read_12, &read_16];
    for (n, cdb) in writes.into_iter().enumerate() {
        let mut cdb = cdb.to_vec();
        cdb[0] += 2;
        expected.fill(n as u8);
        rig.scsi(&cdb, Data::Out(&expected)).unwrap();
        assert_eq!(rig.disk.contents()[7 * BLOCK..9 * BLOCK], expected, "{cdb:x?}");
    }
}

// The thirteen cases of the Bulk-Only Transport 1.0, section 6.7.

fn reply(status: CommandStatus, residue: u32, data: &[u8], stalled: bool) -> Reply {
    Reply { status, residue, data: data.to_vec(), stalled }
}

#[test]
fn case_1_hn_equals_dn_is_status_only() {
    let mut rig = rig();
    let got = rig.command(&[0; 6], Data::None);
    assert_eq!(got, reply(CommandStatus::Passed, 0, &[], false));
}

#[test]
fn cases_2_and_3_hn_less_than_di_or_do_are_phase_errors_that_move_nothing() {
    let mut rig = rig();
    for cdb in [ten(0x28, 0, 1), ten(0x2a, 0, 1)] {
        let got = rig.command(&cdb, Data::None);
        assert_eq!(got, reply(CommandStatus::PhaseError, 0, &[], false));
        rig.assert_ready();
    }
    assert_eq!(rig.disk.contents(), pattern(64 * BLOCK));
}

#[test]
fn case_4_hi_more_than_dn_stalls_bulk_in_before_the_status() {
    let mut rig = rig();
    let got = rig.command(&[0; 6], Data::In(100));
    assert_eq!(got, reply(CommandStatus::Passed, 100, &[], true));
    // So does a command that fails.
    let got = rig.command(&ten(0x28, 64, 1), Data::In(BLOCK));
    assert_eq!(got, reply(CommandStatus::Failed, 512, &[], true));
    assert_eq!(rig.driver.request_sense(&mut rig.host).unwrap(), LBA_OUT_OF_RANGE);
    rig.assert_ready();
}

#[test]
fn case_5_hi_more_than_di_ends_with_a_short_packet_and_a_stall() {
    let mut rig = rig();
    let wrapper = rig.driver.wrapper(0, &[0x12, 0, 0, 0, 96, 0], Data::In(96));
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    let data = rig.host.receive(&rig.driver.input, 96).unwrap();
    assert_eq!(data.len(), 36, "the data is all there");
    let next = rig.host.transact(&rig.driver.input, Pid::In, &mut vec![0; 13]);
    assert_eq!(next, Outcome::STALL);
    clear_halt(&mut rig.host, &rig.driver.input).unwrap();
    assert_eq!(rig.driver.status(&mut rig.host), Ok((CommandStatus::Passed, 60)));
    rig.assert_ready();
}

#[test]
fn case_5_data_that_ends_with_a_whole_packet_is_followed_by_the_stall_at_once() {
    let mut rig = rig();
    let wrapper = rig.driver.wrapper(0, &ten(0x28, 1, 2), Data::In(4 * BLOCK));
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    let mut buffer = vec![0; 4 * BLOCK];
    let outcome = rig.host.transact(&rig.driver.input, Pid::In, &mut buffer);
    assert_eq!(outcome, Outcome { bytes: 2 * BLOCK, status: Status::Stall });
    assert_eq!(buffer[..2 * BLOCK], pattern(64 * BLOCK)[BLOCK..3 * BLOCK]);
    clear_halt(&mut rig.host, &rig.driver.input).unwrap();
    assert_eq!(rig.driver.status(&mut rig.host), Ok((CommandStatus::Passed, 1024)));
    rig.assert_ready();
}

#[test]
fn case_6_hi_equals_di_needs_no_stall() {
    let mut rig = rig();
    let got = rig.command(&ten(0x28, 1, 1), Data::In(BLOCK));
    let expected = &pattern(64 * BLOCK)[BLOCK..2 * BLOCK];
    assert_eq!(got, reply(CommandStatus::Passed, 0, expected, false));
}

#[test]
fn cases_7_and_8_hi_less_than_di_or_not_do_are_phase_errors() {
    let mut rig = rig();
    let got = rig.command(&ten(0x28, 1, 2), Data::In(BLOCK));
    assert_eq!(got, reply(CommandStatus::PhaseError, 512, &[], true));
    rig.assert_ready();
    let got = rig.command(&ten(0x2a, 1, 1), Data::In(BLOCK));
    assert_eq!(got, reply(CommandStatus::PhaseError, 512, &[], true));
    rig.assert_ready();
    assert_eq!(rig.disk.contents(), pattern(64 * BLOCK));
}

#[test]
fn case_9_ho_more_than_dn_drops_the_data() {
    let mut rig = rig();
    let got = rig.command(&[0; 6], Data::Out(&[1; 700]));
    assert_eq!(got, reply(CommandStatus::Passed, 700, &[], false));
    // So does a command that fails.
    let got = rig.command(&ten(0x2a, 63, 2), Data::Out(&[1; 2 * BLOCK]));
    assert_eq!(got, reply(CommandStatus::Failed, 1024, &[], false));
    assert_eq!(rig.driver.request_sense(&mut rig.host).unwrap(), LBA_OUT_OF_RANGE);
    rig.assert_ready();
    assert_eq!(rig.disk.contents(), pattern(64 * BLOCK));
}

#[test]
fn cases_10_and_13_ho_not_di_or_less_than_do_are_phase_errors_that_write_nothing() {
    let mut rig = rig();
    let got = rig.command(&ten(0x28, 1, 1), Data::Out(&[1; BLOCK]));
    assert_eq!(got, reply(CommandStatus::PhaseError, 512, &[], false));
    rig.assert_ready();
    let got = rig.command(&ten(0x2a, 1, 2), Data::Out(&[1; BLOCK]));
    assert_eq!(got, reply(CommandStatus::PhaseError, 512, &[], false));
    rig.assert_ready();
    assert_eq!(rig.disk.contents(), pattern(64 * BLOCK));
}

#[test]
fn case_11_ho_more_than_do_writes_what_the_command_asks_for_and_drops_the_rest() {
    let mut rig = rig();
    let got = rig.command(&ten(0x2a, 1, 1), Data::Out(&[1; 3 * BLOCK]));
    assert_eq!(got, reply(CommandStatus::Passed, 1024, &[], false));
    rig.assert_ready();
    let mut expected = pattern(64 * BLOCK);
    expected[BLOCK..2 * BLOCK].fill(1);
    assert_eq!(rig.disk.contents(), expected);
}

#[test]
fn case_12_ho_equals_do() {
    let mut rig = rig();
    let got = rig.command(&ten(0x2a, 1, 1), Data::Out(&[1; BLOCK]));
    assert_eq!(got, reply(CommandStatus::Passed, 0, &[], false));
}

// Errors and recovery.

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

// SCSI.

#[test]
fn blocks_past_the_end_are_out_of_range_and_leave_the_medium_alone() {
    let mut rig = rig();
    let sixteen = [0x88, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0];
    for cdb in [&ten(0x28, 64, 1)[..], &ten(0x28, 63, 2), &ten(0x28, u32::MAX, 1), &sixteen] {
        assert_eq!(rig.scsi(cdb, Data::In(BLOCK)), Err(LBA_OUT_OF_RANGE), "{cdb:x?}");
    }
    let block = [1; BLOCK];
    assert_eq!(rig.scsi(&ten(0x2a, 64, 1), Data::Out(&block)), Err(LBA_OUT_OF_RANGE));
    assert_eq!(rig.scsi(&ten(0x2f, 60, 5), Data::None), Err(LBA_OUT_OF_RANGE), "VERIFY");
    assert_eq!(rig.scsi(&ten(0x35, 65, 0), Data::None), Err(LBA_OUT_OF_RANGE), "SYNCHRONIZE CACHE");
    assert_eq!(rig.scsi(&ten(0x28, 64, 0), Data::None), Ok(vec![]), "no blocks at the very end");
    assert_eq!(rig.disk.contents(), pattern(64 * BLOCK));
}

#[test]
fn sense_data_is_there_once_and_goes_with_the_next_command() {
    let mut rig = rig();
    rig.command(&[0xee; 6], Data::None);
    assert_eq!(rig.driver.request_sense(&mut rig.host).unwrap(), INVALID_COMMAND);
    assert_eq!(rig.driver.request_sense(&mut rig.host).unwrap(), Sense(0, 0, 0));
    rig.command(&[0xee; 6], Data::None);
    rig.command(&[0; 6], Data::None);
    assert_eq!(rig.driver.request_sense(&mut rig.host).unwrap(), Sense(0, 0, 0));
    // Descriptor format on request.
    rig.command(&[0xee; 6], Data::None);
    let sense = rig.command(&[0x03, 1, 0, 0, 8, 0], Data::In(8));
    assert_eq!(sense.data, [0x72, 5, 0x20, 0, 0, 0, 0, 0]);
}

#[test]
fn other_logical_units_do_not_exist() {
    let mut rig = rig();
    let wrapper = rig.driver.wrapper(1, &[0; 6], Data::None);
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    assert_eq!(rig.driver.status(&mut rig.host), Ok((CommandStatus::Failed, 0)));
    assert_eq!(rig.driver.request_sense(&mut rig.host).unwrap(), Sense(5, 0x25, 0));
    let luns = rig.scsi(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], Data::In(16)).unwrap();
    assert_eq!(luns, [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_read_only_medium_says_so_and_refuses_every_kind_of_write() {
    let disk = RamDisk::new(pattern(64 * BLOCK), BlockSize::B512).into_read_only();
    let mut rig = rig_with(Speed::High, disk);
    let mode = rig.scsi(&[0x1a, 0, 0x3f, 0, 4, 0], Data::In(4)).unwrap();
    assert_eq!(mode[2] & 0x80, 0x80, "WP");
    let block = [1; BLOCK];
    assert_eq!(rig.scsi(&ten(0x2a, 0, 1), Data::Out(&block)), Err(WRITE_PROTECTED));
    assert_eq!(rig.scsi(&ten(0x41, 0, 1), Data::Out(&block)), Err(WRITE_PROTECTED));
    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(rig.scsi(&unmap, Data::Out(&[0; 24])), Err(INVALID_COMMAND));
    assert_eq!(rig.scsi(&ten(0x35, 0, 0), Data::None), Ok(vec![]), "nothing to flush is fine");
    assert_eq!(rig.disk.contents(), pattern(64 * BLOCK));
}

#[test]
fn verify_compares_what_the_host_sends_with_the_medium() {
    let mut rig = rig();
    let mut verify = ten(0x2f, 2, 2);
    verify[1] = 0x02;
    let mut data = pattern(64 * BLOCK)[2 * BLOCK..4 * BLOCK].to_vec();
    assert_eq!(rig.scsi(&verify, Data::Out(&data)), Ok(vec![]));
    data[1000] ^= 1;
    assert_eq!(rig.scsi(&verify, Data::Out(&data)), Err(Sense(0xe, 0x1d, 0)));
    assert_eq!(rig.scsi(&ten(0x2f, 2, 2), Data::None), Ok(vec![]), "BYTCHK 0 has no data");
    assert_eq!(rig.disk.contents(), pattern(64 * BLOCK));
}

#[test]
fn unmap_and_write_same_touch_exactly_the_blocks_they_name() {
    let mut rig = rig();
    let mut expected = pattern(64 * BLOCK);
    let mut list = vec![0, 38, 0, 32, 0, 0, 0, 0];
    for (lba, blocks) in [(3u64, 2u32), (60, 4)] {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
        expected[lba as usize * BLOCK..][..blocks as usize * BLOCK].fill(0);
    }
    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 40, 0];
    rig.scsi(&unmap, Data::Out(&list)).unwrap();
    assert_eq!(rig.disk.contents(), expected);

    // One extent is out of range: none is unmapped.
    list[8 + 16 + 7] = 61;
    assert_eq!(rig.scsi(&unmap, Data::Out(&list)), Err(LBA_OUT_OF_RANGE));
    assert_eq!(rig.disk.contents(), expected);

    let block: Vec<u8> = (0..BLOCK).map(|at| at as u8 ^ 0x55).collect();
    rig.scsi(&ten(0x41, 20, 3), Data::Out(&block)).unwrap();
    expected[20 * BLOCK..23 * BLOCK].copy_from_slice(&block.repeat(3));
    assert_eq!(rig.disk.contents(), expected);
    // NDOB writes zeros without data.
    let no_data = [0x93, 0x09, 0, 0, 0, 0, 0, 0, 0, 21, 0, 0, 0, 1, 0, 0];
    rig.scsi(&no_data, Data::None).unwrap();
    expected[21 * BLOCK..22 * BLOCK].fill(0);
    assert_eq!(rig.disk.contents(), expected);
    assert_eq!(rig.scsi(&ten(0x41, 0, 0), Data::Out(&block)), Err(INVALID_FIELD_IN_CDB), "WSNZ");
}

#[test]
fn a_stopped_unit_wants_a_start_before_it_reads_again() {
    let mut rig = rig();
    rig.scsi(&[0x1b, 0, 0, 0, 0, 0], Data::None).unwrap();
    let stopped = Err(Sense(2, 4, 2));
    assert_eq!(rig.scsi(&[0; 6], Data::None), stopped);
    assert_eq!(rig.scsi(&ten(0x28, 0, 1), Data::In(BLOCK)), stopped);
    rig.scsi(&[0x1b, 0, 0, 0, 1, 0], Data::None).unwrap();
    rig.assert_ready();
}

#[test]
fn a_disk_of_4096_byte_blocks_says_so() {
    let mut rig = rig_with(Speed::Full, RamDisk::new(pattern(16 * 4096), BlockSize::B4096));
    assert_eq!(rig.driver.capacity(&mut rig.host).unwrap(), (16, 4096));
    let mut cdb = [0; 16];
    cdb[0] = 0x9e;
    cdb[1] = 0x10;
    cdb[13] = 32;
    let long = rig.scsi(&cdb, Data::In(32)).unwrap();
    assert_eq!(long[..12], [0, 0, 0, 0, 0, 0, 0, 15, 0, 0, 0x10, 0]);
    assert_eq!(long[14], 0xc0, "LBPME and LBPRZ");
    // Transfers of a controller need not end where blocks end.
    rig.host.piece = 1024;
    let read = rig.driver.read(&mut rig.host, 5, 3 * 4096, 4096).unwrap();
    assert_eq!(read, pattern(16 * 4096)[5 * 4096..8 * 4096]);
}
