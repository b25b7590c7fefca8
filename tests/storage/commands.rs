//! The SCSI commands.

use vm_usb::devices::storage::{BlockSize, RamDisk};
use vm_usb::usb::{BusError, Outcome, Pid, Speed};

use crate::driver::host::HostDriver;
use crate::driver::mass_storage::{CommandStatus, Data, Sense, ten};
use crate::rig::{BLOCK, pattern, rig, rig_with};

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
fn the_status_stays_until_the_host_has_room_for_it() {
    let mut rig = rig();
    let wrapper = rig.driver.wrapper(0, &[0; 6], Data::None);
    rig.host.send(&rig.driver.output, &wrapper).unwrap();
    let none = rig.host.transact(&rig.driver.input, Pid::In, &mut Vec::new());
    assert_eq!(none, Outcome::failed(0, BusError::Babble));
    assert_eq!(rig.driver.status(&mut rig.host), Ok((CommandStatus::Passed, 0)));
    rig.assert_ready();
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
fn a_command_writes_or_unmaps_a_bounded_number_of_blocks() {
    const INVALID_FIELD_IN_PARAMETER_LIST: Sense = Sense(5, 0x26, 0);
    let mut rig = rig();
    let block = vec![0; BLOCK];
    // What the limits allow is more than the disk has.
    for (blocks, refused) in
        [(0x1fff, LBA_OUT_OF_RANGE), (0x2000, LBA_OUT_OF_RANGE), (0x2001, INVALID_FIELD_IN_CDB)]
    {
        assert_eq!(rig.scsi(&ten(0x41, 0, blocks), Data::Out(&block)), Err(refused), "{blocks}");
    }
    let mut unmap = |descriptors: u16, blocks: u32| {
        let bytes = descriptors * 16;
        let mut list = (bytes + 6).to_be_bytes().to_vec();
        list.extend(bytes.to_be_bytes());
        list.extend([0; 4]);
        for _ in 0..descriptors {
            list.extend(0u64.to_be_bytes());
            list.extend(blocks.to_be_bytes());
            list.extend([0; 4]);
        }
        let [high, low] = (bytes + 8).to_be_bytes();
        rig.scsi(&[0x42, 0, 0, 0, 0, 0, 0, high, low, 0], Data::Out(&list)).map(drop)
    };
    assert_eq!(unmap(255, 1), Ok(()));
    assert_eq!(unmap(256, 1), Ok(()));
    assert_eq!(unmap(257, 1), Err(INVALID_FIELD_IN_PARAMETER_LIST));
    assert_eq!(unmap(1, 0x7f_ffff), Err(LBA_OUT_OF_RANGE));
    assert_eq!(unmap(1, 0x80_0000), Err(LBA_OUT_OF_RANGE));
    assert_eq!(unmap(1, 0x80_0001), Err(INVALID_FIELD_IN_PARAMETER_LIST));
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
