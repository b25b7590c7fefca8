//! USB Attached SCSI: many commands at once, and one turn at the data pipes after the other.

use std::io;

use vm_usb::devices::storage::{BlockSize, RamDisk, Serial, Storage, Transports};
use vm_usb::topology::Port;
use vm_usb::usb::{Outcome, Pid, SetupPacket, Speed};

use crate::driver::direct::DirectHost;
use crate::driver::enumerate::{Enumerated, enumerate};
use crate::driver::host::{HostDriver, Pipe, TransferError};
use crate::driver::mass_storage::{Data, DiskError, MassStorage, Sense, ten};
use crate::driver::uas::{Answer, Uas};
use crate::moody::Moody;
use crate::rig::{BLOCK, pattern};

/// Commands that wait while another one has the data pipes.
const MOST_WAITING: u16 = 64;
/// Answers that may wait before the command pipe takes no more.
const MOST_UNREAD: u16 = 128;

/// RESPONSE CODE (UAS, table 18).
mod response {
    pub(super) const COMPLETE: u8 = 0x00;
    pub(super) const INVALID_IU: u8 = 0x02;
    pub(super) const NOT_SUPPORTED: u8 = 0x04;
    pub(super) const SUCCEEDED: u8 = 0x08;
    pub(super) const INCORRECT_LUN: u8 = 0x09;
    pub(super) const OVERLAPPED_TAG: u8 = 0x0a;
}

const ABORT_TASK: u8 = 0x01;
const LOGICAL_UNIT_RESET: u8 = 0x08;
const QUERY_TASK: u8 = 0x80;
pub(crate) const TEST_UNIT_READY: [u8; 6] = [0; 6];

pub(crate) struct Rig {
    pub(crate) host: DirectHost,
    pub(crate) enumerated: Enumerated,
    pub(crate) driver: Uas,
    pub(crate) disk: RamDisk,
}

impl Rig {
    pub(crate) fn scsi(&mut self, cdb: &[u8], data: Data<'_>) -> Result<Vec<u8>, Sense> {
        self.driver.scsi(&mut self.host, cdb, data).map_err(|error| match error {
            DiskError::Check(sense) => sense,
            DiskError::Command(error) => panic!("{error:?}"),
        })
    }

    pub(crate) fn queue(&mut self, cdb: &[u8]) -> u16 {
        self.driver.queue(&mut self.host, cdb).unwrap()
    }

    pub(crate) fn answer(&mut self) -> Answer {
        self.driver.answer(&mut self.host).unwrap()
    }

    pub(crate) fn data(&mut self, len: usize) -> Vec<u8> {
        self.host.receive(&self.driver.input, len).unwrap()
    }

    /// Sends an information unit.
    pub(crate) fn iu(&mut self, bytes: &[u8]) {
        self.host.send(&self.driver.command, bytes).unwrap();
    }

    fn manage(&mut self, function: u8, managed: u16) -> Answer {
        self.iu(&Uas::task_management_iu(0x7000, function, managed));
        self.answer()
    }

    /// What a transfer to a pipe that should have nothing to say is told.
    pub(crate) fn ask(&mut self, pipe: Pipe) -> Outcome {
        self.host.transact(&pipe, Pid::In, &mut vec![0; 512])
    }

    pub(crate) fn assert_quiet(&mut self) {
        assert_eq!(self.ask(self.driver.status), Outcome::PARK);
        assert_eq!(self.ask(self.driver.input), Outcome::PARK);
    }

    /// Nothing is left of earlier commands, and the next one works.
    pub(crate) fn assert_ready(&mut self) {
        self.assert_quiet();
        let block = self.scsi(&ten(0x28, 3, 1), Data::In(BLOCK)).unwrap();
        assert_eq!(block, self.disk.contents()[3 * BLOCK..4 * BLOCK]);
    }
}

fn plug(speed: Speed, storage: Storage) -> (DirectHost, Enumerated) {
    let mut host = DirectHost::new(speed, storage);
    let enumerated = enumerate(&mut host, 0, 5).unwrap();
    (host, enumerated)
}

pub(crate) fn rig_at(speed: Speed) -> Rig {
    let disk = RamDisk::new(pattern(64 * BLOCK), BlockSize::B512);
    let storage = Storage::new(disk.clone(), Serial::from_name("disk"));
    let (mut host, enumerated) = plug(speed, storage);
    let mut driver = Uas::bind(&mut host, &enumerated).unwrap().unwrap();
    driver.start(&mut host).unwrap();
    Rig { host, enumerated, driver, disk }
}

pub(crate) fn rig() -> Rig {
    rig_at(Speed::High)
}

fn good(tag: u16) -> Answer {
    Answer::Good(tag)
}

#[test]
fn a_disk_is_bulk_only_until_the_host_selects_uas() {
    for (speed, packet) in [(Speed::Full, 64), (Speed::High, 512)] {
        let rig = rig_at(speed);
        let settings: Vec<_> =
            rig.enumerated.interfaces.iter().map(|i| (i.number, i.alternate, i.class)).collect();
        assert_eq!(settings, [(0, 0, [8, 6, 0x50]), (0, 1, [8, 6, 0x62])]);
        let uas = &rig.enumerated.interfaces[1];
        assert!(uas.endpoints.iter().all(|e| e.attributes == 2 && e.max_packet == packet));
        let pipes = [rig.driver.command, rig.driver.status, rig.driver.input, rig.driver.output];
        assert_eq!(pipes.map(|pipe| pipe.endpoint.is_in()), [false, true, true, false]);
    }
}

#[test]
fn a_disk_can_be_kept_to_bulk_only() {
    let serial = Serial::from_name("disk");
    let storage = Storage::with_transports(RamDisk::zeroed(64), serial, Transports::BulkOnly);
    let (mut host, enumerated) = plug(Speed::High, storage);
    assert!(Uas::bind(&mut host, &enumerated).unwrap().is_none());
    let mut driver = MassStorage::bind(&enumerated).unwrap();
    driver.start(&mut host).unwrap();
    assert_eq!(driver.read(&mut host, 0, BLOCK, BLOCK), Ok(vec![0; BLOCK]));
}

#[test]
fn a_read_is_ready_then_sends_its_data_then_is_good() {
    for speed in [Speed::Full, Speed::High] {
        let mut rig = rig_at(speed);
        let tag = rig.queue(&ten(0x28, 0, 64));
        assert_eq!(rig.answer(), Answer::ReadReady(tag));
        assert_eq!(rig.data(64 * BLOCK), pattern(64 * BLOCK));
        assert_eq!(rig.answer(), good(tag));
        rig.assert_ready();
    }
}

#[test]
fn a_write_is_ready_then_takes_its_data_then_is_good() {
    let mut rig = rig();
    let tag = rig.queue(&ten(0x2a, 10, 40));
    assert_eq!(rig.answer(), Answer::WriteReady(tag));
    let new = vec![0xa5; 40 * BLOCK];
    rig.host.send(&rig.driver.output, &new[..8 * BLOCK]).unwrap();
    assert_eq!(rig.ask(rig.driver.status), Outcome::PARK, "not before all data has come");
    rig.host.send(&rig.driver.output, &new[8 * BLOCK..]).unwrap();
    assert_eq!(rig.answer(), good(tag));
    assert_eq!(rig.disk.contents()[10 * BLOCK..50 * BLOCK], new);
    rig.assert_ready();
}

#[test]
fn a_command_without_data_is_good_at_once() {
    let mut rig = rig();
    let tag = rig.queue(&TEST_UNIT_READY);
    assert_eq!(rig.answer(), good(tag));
    rig.assert_ready();
}

#[test]
fn the_end_of_one_command_comes_with_the_turn_of_the_next() {
    let mut rig = rig();
    let tags: Vec<_> = (0..3).map(|n| rig.queue(&ten(0x28, n, 1))).collect();
    let write = rig.queue(&ten(0x2a, 7, 1));
    assert_eq!(rig.answer(), Answer::ReadReady(tags[0]));
    assert_eq!(rig.ask(rig.driver.status), Outcome::PARK, "one has the data pipes at a time");
    for n in 0..3 {
        assert_eq!(rig.data(BLOCK), pattern(64 * BLOCK)[n * BLOCK..][..BLOCK]);
        assert_eq!(rig.answer(), good(tags[n]));
        match tags.get(n + 1) {
            Some(next) => assert_eq!(rig.answer(), Answer::ReadReady(*next)),
            None => assert_eq!(rig.answer(), Answer::WriteReady(write)),
        }
    }
    rig.host.send(&rig.driver.output, &[7; BLOCK]).unwrap();
    assert_eq!(rig.answer(), good(write));
    rig.assert_ready();
}

#[test]
fn head_of_queue_goes_before_those_that_wait() {
    let mut rig = rig();
    let current = rig.queue(&ten(0x28, 0, 1));
    let waiting = rig.queue(&TEST_UNIT_READY);
    rig.iu(&Uas::command_iu(0x4000, 1, &TEST_UNIT_READY));
    rig.iu(&Uas::command_iu(0x4001, 2, &TEST_UNIT_READY));
    assert_eq!(rig.answer(), Answer::ReadReady(current));
    rig.data(BLOCK);
    for tag in [current, 0x4000, waiting, 0x4001] {
        assert_eq!(rig.answer(), good(tag), "SIMPLE and ORDERED in order of arrival");
    }
    rig.assert_ready();
}

#[test]
fn a_short_answer_ends_its_data_with_a_short_packet() {
    // At full speed the block limits are a whole packet of 64 bytes.
    for (speed, cdb, len) in [
        (Speed::High, [0x12, 0, 0, 0, 255, 0], 36),
        (Speed::Full, [0x12, 0, 0, 0, 255, 0], 36),
        (Speed::Full, [0x12, 1, 0xb0, 0, 255, 0], 64),
    ] {
        for piece in [64, 16 << 10] {
            let mut rig = rig_at(speed);
            rig.host.piece = if speed == Speed::High { 512 } else { piece };
            let answer = rig.scsi(&cdb, Data::In(255)).unwrap();
            assert_eq!(answer.len(), len, "{speed:?} {cdb:x?}");
            rig.assert_ready();
        }
    }
}

#[test]
fn a_command_that_asks_for_just_what_there_is_gets_no_empty_packet() {
    let mut rig = rig_at(Speed::Full);
    let tag = rig.queue(&[0x12, 1, 0xb0, 0, 64, 0]);
    assert_eq!(rig.answer(), Answer::ReadReady(tag));
    assert_eq!(rig.data(64).len(), 64);
    assert_eq!(rig.answer(), good(tag));
    rig.assert_ready();
}

#[test]
fn inquiry_tells_of_the_command_queue() {
    let mut rig = rig();
    let inquiry = [0x12, 0, 0, 0, 36, 0];
    assert_eq!(rig.scsi(&inquiry, Data::In(36)).unwrap()[7], 0x02, "CMDQUE");
    rig.driver.select(&mut rig.host, 0).unwrap();
    let mut bulk_only = MassStorage::bind(&rig.enumerated).unwrap();
    assert_eq!(bulk_only.scsi(&mut rig.host, &inquiry, Data::In(36)).unwrap()[7], 0);
}

#[test]
fn sense_data_comes_with_the_status_and_is_gone_then() {
    let mut rig = rig();
    assert_eq!(rig.scsi(&[0xee; 6], Data::None), Err(Sense(5, 0x20, 0)));
    let sense = rig.scsi(&[0x03, 0, 0, 0, 18, 0], Data::In(18)).unwrap();
    assert_eq!((sense[2], sense[12]), (0, 0), "NO SENSE");
    // A command that fails has no turn at the data pipes.
    assert_eq!(rig.scsi(&ten(0x28, 64, 1), Data::In(BLOCK)), Err(Sense(5, 0x21, 0)));
    rig.assert_ready();
}

#[test]
fn a_long_command_block_is_taken_whole_and_refused() {
    let mut rig = rig();
    let mut iu = Uas::command_iu(9, 0, &[0x7f; 16]).to_vec();
    iu[6] = 4 << 2;
    iu.extend([0; 16]);
    rig.iu(&iu);
    assert_eq!(rig.answer(), Answer::Check(9, Sense(5, 0x20, 0)));
    rig.assert_ready();
}

#[test]
fn other_logical_units_do_not_exist() {
    let mut rig = rig();
    let mut iu = Uas::command_iu(9, 0, &TEST_UNIT_READY);
    iu[9] = 1;
    rig.iu(&iu);
    assert_eq!(rig.answer(), Answer::Check(9, Sense(5, 0x25, 0)));
    let mut iu = Uas::task_management_iu(10, ABORT_TASK, 1);
    iu[9] = 1;
    rig.iu(&iu);
    assert_eq!(rig.answer(), Answer::Response(10, response::INCORRECT_LUN));
    rig.assert_ready();
}

fn moody() -> (Moody, DirectHost, Uas) {
    let medium = Moody::default();
    let storage = Storage::new(medium.clone(), Serial::from_name("moody"));
    let (mut host, enumerated) = plug(Speed::High, storage);
    host.piece = 4096;
    let mut driver = Uas::bind(&mut host, &enumerated).unwrap().unwrap();
    driver.start(&mut host).unwrap();
    (medium, host, driver)
}

#[test]
fn a_block_that_cannot_be_read_ends_the_data_early_and_halts_nothing() {
    let (medium, mut host, mut driver) = moody();
    medium.fail_at(20 * 512, io::ErrorKind::Other);
    let tag = driver.queue(&mut host, &ten(0x28, 0, 32)).unwrap();
    let next = driver.queue(&mut host, &ten(0x28, 0, 1)).unwrap();
    assert_eq!(driver.answer(&mut host), Ok(Answer::ReadReady(tag)));
    let data = host.receive(&driver.input, 32 * BLOCK).unwrap();
    assert_eq!(data, [0x11; 2 * 4096], "two good transfers of 4 KiB, and an early end");
    assert_eq!(driver.answer(&mut host), Ok(Answer::Check(tag, Sense(3, 0x11, 0))));
    assert_eq!(driver.answer(&mut host), Ok(Answer::ReadReady(next)));
    assert_eq!(host.receive(&driver.input, BLOCK).unwrap(), [0x11; BLOCK]);
    assert_eq!(driver.answer(&mut host), Ok(good(next)));
}

#[test]
fn a_block_that_cannot_be_written_fails_the_command_after_its_data() {
    let (medium, mut host, mut driver) = moody();
    let data = [1; 32 * BLOCK];
    // In the middle of the data, and in the last of it.
    for (block, kind, sense) in [
        (4, io::ErrorKind::Other, Sense(3, 0x0c, 0)),
        (31, io::ErrorKind::StorageFull, Sense(7, 0x27, 7)),
    ] {
        medium.fail_at(block * 512, kind);
        let write = driver.scsi(&mut host, &ten(0x2a, 0, 32), Data::Out(&data));
        assert_eq!(write, Err(DiskError::Check(sense)));
    }
    medium.calm_down();
    driver.scsi(&mut host, &ten(0x2a, 0, 32), Data::Out(&data)).unwrap();
    assert_eq!(medium.flushes(), 0);
    driver.scsi(&mut host, &ten(0x35, 0, 0), Data::None).unwrap();
    assert_eq!(medium.flushes(), 1);
}

#[test]
fn more_commands_than_the_queue_holds_are_told_so() {
    let mut rig = rig();
    let current = rig.queue(&ten(0x28, 0, 1));
    let waiting: Vec<_> = (0..MOST_WAITING).map(|_| rig.queue(&TEST_UNIT_READY)).collect();
    let refused = rig.queue(&TEST_UNIT_READY);
    assert_eq!(rig.answer(), Answer::ReadReady(current));
    assert_eq!(rig.answer(), Answer::Status(refused, 0x28), "TASK SET FULL");
    rig.data(BLOCK);
    for tag in [current].into_iter().chain(waiting) {
        assert_eq!(rig.answer(), good(tag));
    }
    rig.assert_ready();
}

#[test]
fn a_host_that_fetches_no_answers_cannot_send_more_commands() {
    let mut rig = rig();
    let tags: Vec<_> = (0..MOST_UNREAD).map(|_| rig.queue(&TEST_UNIT_READY)).collect();
    let mut next = Uas::command_iu(0x4000, 0, &TEST_UNIT_READY).to_vec();
    let command = rig.driver.command;
    assert_eq!(rig.host.transact(&command, Pid::Out, &mut next), Outcome::PARK);
    assert_eq!(rig.host.link.take_ready().count(), 0);
    assert_eq!(rig.answer(), good(tags[0]));
    assert_eq!(rig.host.link.take_ready().collect::<Vec<_>>(), [command.endpoint]);
    rig.iu(&next);
    for tag in tags.into_iter().skip(1).chain([0x4000]) {
        assert_eq!(rig.answer(), good(tag));
    }
    rig.assert_ready();
}

#[test]
fn a_parked_pipe_is_woken_by_what_it_waits_for() {
    let mut rig = rig();
    let Uas { status, input, output, .. } = rig.driver;
    rig.assert_quiet();
    let early = rig.host.transact(&output, Pid::Out, &mut vec![0; 512]);
    assert_eq!(early, Outcome::PARK);
    let ready = |rig: &Rig| rig.host.link.take_ready().collect::<Vec<_>>();
    let tag = rig.queue(&ten(0x28, 0, 1));
    let mut woken = ready(&rig);
    woken.sort_by_key(|endpoint| endpoint.byte());
    assert_eq!(woken, [input.endpoint, status.endpoint]);
    assert_eq!(rig.answer(), Answer::ReadReady(tag));
    rig.data(BLOCK);
    assert_eq!(rig.answer(), good(tag));
    let tag = rig.queue(&ten(0x2a, 0, 1));
    assert_eq!(ready(&rig), [output.endpoint]);
    assert_eq!(rig.answer(), Answer::WriteReady(tag));
    rig.host.send(&output, &[0; BLOCK]).unwrap();
    assert_eq!(rig.answer(), good(tag));
}

#[test]
fn what_is_no_information_unit_is_answered_as_such() {
    let good_iu = Uas::command_iu(0x0102, 0, &TEST_UNIT_READY);
    let with = |at: usize, value| {
        let mut iu = good_iu.to_vec();
        iu[at] = value;
        iu
    };
    for (name, iu) in [
        ("an unknown IU ID", with(0, 0x02)),
        ("an IU of the status pipe", with(0, 0x06)),
        ("31 bytes", good_iu[..31].to_vec()),
        ("33 bytes", [&good_iu[..], &[0]].concat()),
        ("additional CDB bytes that are not there", with(6, 4)),
        ("attribute ACA", with(4, 4)),
        ("a reserved attribute", with(4, 3)),
        ("a task management function of 32 bytes", with(0, 0x05)),
    ] {
        let mut rig = rig();
        rig.iu(&iu);
        assert_eq!(rig.answer(), Answer::Response(0x0102, response::INVALID_IU), "{name}");
        rig.assert_ready();
    }
    let mut rig = rig();
    rig.iu(&[]);
    assert_eq!(rig.answer(), Answer::Response(0, response::INVALID_IU), "nothing");
    rig.assert_ready();
}

#[test]
fn a_tag_in_use_ends_all_commands() {
    let mut rig = rig();
    let current = rig.queue(&ten(0x28, 0, 1));
    assert_eq!(rig.answer(), Answer::ReadReady(current));
    let waiting = rig.queue(&TEST_UNIT_READY);
    rig.iu(&Uas::command_iu(waiting, 0, &TEST_UNIT_READY));
    assert_eq!(rig.answer(), Answer::Response(waiting, response::OVERLAPPED_TAG));
    rig.assert_ready();
    // So it is for a task management function, and until the answer was fetched.
    let tag = rig.queue(&TEST_UNIT_READY);
    rig.iu(&Uas::task_management_iu(tag, QUERY_TASK, 1));
    assert_eq!(rig.answer(), Answer::Response(tag, response::OVERLAPPED_TAG));
    rig.assert_ready();
}

#[test]
fn a_command_can_be_aborted_whether_it_waits_or_has_the_data_pipes() {
    let mut rig = rig();
    let before = rig.disk.contents();
    let current = rig.queue(&ten(0x2a, 0, 4));
    let waiting = rig.queue(&TEST_UNIT_READY);
    let last = rig.queue(&ten(0x28, 0, 1));
    assert_eq!(rig.answer(), Answer::WriteReady(current));
    assert_eq!(rig.manage(QUERY_TASK, waiting), Answer::Response(0x7000, response::SUCCEEDED));
    assert_eq!(rig.manage(ABORT_TASK, waiting), Answer::Response(0x7000, response::COMPLETE));
    assert_eq!(rig.manage(QUERY_TASK, waiting), Answer::Response(0x7000, response::COMPLETE));
    rig.host.send(&rig.driver.output, &[9; BLOCK]).unwrap();
    assert_eq!(rig.manage(ABORT_TASK, current), Answer::Response(0x7000, response::COMPLETE));
    let late = rig.host.transact(&rig.driver.output, Pid::Out, &mut vec![9; BLOCK]);
    assert_eq!(late, Outcome::PARK, "nothing of it reaches the medium later");
    assert_eq!(rig.disk.contents()[BLOCK..], before[BLOCK..]);
    assert_eq!(rig.answer(), Answer::ReadReady(last), "the next one has its turn");
    rig.data(BLOCK);
    assert_eq!(rig.answer(), good(last));
    rig.assert_ready();
}

#[test]
fn task_sets_are_aborted_and_asked_for_and_the_rest_is_not_supported() {
    for (function, code) in [
        (0x02, response::COMPLETE),
        (0x04, response::COMPLETE),
        (0x40, response::NOT_SUPPORTED),
        (0x81, response::SUCCEEDED),
        (0x82, response::NOT_SUPPORTED),
        (0x33, response::NOT_SUPPORTED),
    ] {
        let mut rig = rig();
        let current = rig.queue(&ten(0x28, 0, 1));
        assert_eq!(rig.answer(), Answer::ReadReady(current));
        assert_eq!(rig.manage(function, 0), Answer::Response(0x7000, code), "{function:#x}");
        if code != response::COMPLETE {
            rig.data(BLOCK);
            assert_eq!(rig.answer(), good(current));
        }
        assert_eq!(rig.manage(0x81, 0), Answer::Response(0x7000, response::COMPLETE));
        rig.assert_ready();
    }
}

#[test]
fn a_reset_of_the_unit_drops_everything_and_leaves_a_unit_attention() {
    for function in [LOGICAL_UNIT_RESET, 0x10] {
        let mut rig = rig();
        let current = rig.queue(&ten(0x28, 0, 1));
        rig.queue(&TEST_UNIT_READY);
        assert_eq!(rig.answer(), Answer::ReadReady(current));
        assert_eq!(rig.manage(function, 0), Answer::Response(0x7000, response::COMPLETE));
        assert_eq!(rig.scsi(&TEST_UNIT_READY, Data::None), Err(Sense(6, 0x29, 0)));
        rig.assert_ready();
    }
}

#[test]
fn the_host_can_go_back_to_bulk_only_in_the_middle_of_everything() {
    let mut rig = rig();
    rig.queue(&ten(0x28, 0, 4));
    rig.queue(&TEST_UNIT_READY);
    rig.driver.select(&mut rig.host, 0).unwrap();
    let mut bulk_only = MassStorage::bind(&rig.enumerated).unwrap();
    let read = bulk_only.read(&mut rig.host, 0, 2 * BLOCK, BLOCK).unwrap();
    assert_eq!(read, pattern(64 * BLOCK)[..2 * BLOCK]);
    let command = rig.host.send(&rig.driver.command, &[0; 32]);
    assert!(command.is_err(), "no such endpoint");
    rig.driver.select(&mut rig.host, 1).unwrap();
    rig.assert_ready();
}

#[test]
fn the_class_requests_are_those_of_bulk_only() {
    let mut rig = rig();
    let bulk_only = MassStorage::bind(&rig.enumerated).unwrap();
    assert_eq!(bulk_only.max_lun(&mut rig.host), Err(TransferError::Stall));
    assert_eq!(bulk_only.class_reset(&mut rig.host), Err(TransferError::Stall));
    let status = SetupPacket::new(0x81, 0x00, 0, 0, 2);
    assert_eq!(rig.host.control(&rig.driver.device, status, &[]), Ok(vec![0, 0]));
    rig.assert_ready();
}

#[test]
fn a_disk_that_is_saved_in_the_middle_of_its_queue_goes_on_elsewhere() {
    use vm_usb::snapshot::{restore, save};
    use vm_usb::time::Time;

    let mut rig = rig();
    let reading = rig.queue(&ten(0x28, 0, 4));
    let writing = rig.queue(&ten(0x2a, 9, 1));
    assert_eq!(rig.answer(), Answer::ReadReady(reading));
    let first = rig.data(BLOCK);
    let saved = save(Time::ZERO, &[("port", &rig.host.port)]).unwrap();

    let fresh = Storage::new(rig.disk.clone(), Serial::from_name("disk"));
    let mut host = DirectHost::new(Speed::High, fresh);
    let port: &mut Port = &mut host.port;
    restore(&saved, Time::ZERO, &mut [("port", port)]).unwrap();
    host.adopt_toggles(&rig.host);
    rig.host = host;
    let rest = rig.data(3 * BLOCK);
    assert_eq!([first, rest].concat(), pattern(64 * BLOCK)[..4 * BLOCK]);
    assert_eq!(rig.answer(), good(reading));
    assert_eq!(rig.answer(), Answer::WriteReady(writing));
    rig.host.send(&rig.driver.output, &[3; BLOCK]).unwrap();
    assert_eq!(rig.answer(), good(writing));
    rig.assert_ready();
}
