//! The thirteen cases of the Bulk-Only Transport 1.0, section 6.7.

use vm_usb::usb::{Outcome, Pid, Status};

use crate::driver::enumerate::clear_halt;
use crate::driver::host::HostDriver;
use crate::driver::mass_storage::{CommandStatus, Data, Reply, Sense, ten};
use crate::rig::{BLOCK, pattern, rig};

const LBA_OUT_OF_RANGE: Sense = Sense(5, 0x21, 0);

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
