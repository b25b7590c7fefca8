//! UAS with hosts that do odd things.

use vm_usb::usb::{BusError, Outcome, Pid, Status};

use crate::driver::host::HostDriver;
use crate::driver::mass_storage::{Data, MassStorage, Sense, ten};
use crate::driver::uas::{Answer, Uas};
use crate::rig::BLOCK;
use crate::uas::{Rig, rig};

const TEST_UNIT_READY: [u8; 6] = [0; 6];

#[test]
fn an_answer_that_the_host_has_no_room_for_is_not_lost() {
    let mut rig = rig();
    let tag = rig.queue(&TEST_UNIT_READY);
    let status = rig.driver.status;
    // Of 16 bytes: the packet is longer, so the host does not acknowledge it.
    for room in [0, 8, 15] {
        let outcome = rig.host.transact(&status, Pid::In, &mut vec![0; room]);
        assert_eq!(outcome, Outcome::failed(0, BusError::Babble), "{room}");
    }
    assert_eq!(rig.answer(), Answer::Good(tag));
    rig.assert_ready();
}

#[test]
fn an_information_unit_that_is_sent_again_counts_once() {
    let mut rig = rig();
    let Uas { command, output, .. } = rig.driver;
    // The host did not hear the acknowledgement: the same packet comes again with the same toggle.
    let mut iu = Uas::command_iu(0x4000, 0, &ten(0x2a, 0, 2)).to_vec();
    rig.iu(&[]);
    assert_eq!(rig.answer(), Answer::Response(0, 2));
    rig.driver.select(&mut rig.host, 1).unwrap();
    for _ in 0..2 {
        rig.host.reset_toggle(&command);
        let outcome = rig.host.transact(&command, Pid::Out, &mut iu);
        assert_eq!(outcome, Outcome::complete(32));
    }
    assert_eq!(rig.answer(), Answer::WriteReady(0x4000));
    rig.assert_status_quiet();
    // So it is with a packet of data.
    for byte in [1, 2] {
        rig.host.reset_toggle(&output);
        let outcome = rig.host.transact(&output, Pid::Out, &mut vec![byte; BLOCK]);
        assert_eq!(outcome, Outcome::complete(BLOCK));
    }
    rig.assert_status_quiet();
    rig.host.send(&output, &[3; BLOCK]).unwrap();
    assert_eq!(rig.answer(), Answer::Good(0x4000));
    assert_eq!(rig.disk.contents()[..2 * BLOCK], [[1; BLOCK], [3; BLOCK]].concat());
    rig.assert_ready();
}

impl Rig {
    fn assert_status_quiet(&mut self) {
        assert_eq!(self.ask(self.driver.status), Outcome::PARK);
    }
}

#[test]
fn a_pipe_that_is_parked_under_one_transport_is_woken_when_the_other_is_chosen() {
    let mut rig = rig();
    let Uas { input, .. } = rig.driver;
    assert_eq!(rig.ask(input), Outcome::PARK);
    rig.driver.select(&mut rig.host, 0).unwrap();
    // The host may have left its transfer there: the endpoint is in both settings.
    assert!(rig.host.link.take_ready().any(|endpoint| endpoint == input.endpoint));
    assert_eq!(rig.ask(input), Outcome::PARK);
    rig.driver.select(&mut rig.host, 1).unwrap();
    assert!(rig.host.link.take_ready().any(|endpoint| endpoint == input.endpoint));
    rig.assert_ready();
}

#[test]
fn an_i_t_nexus_reset_is_for_no_unit_in_particular() {
    let mut rig = rig();
    let mut iu = Uas::task_management_iu(10, 0x10, 0);
    iu[9] = 1;
    rig.iu(&iu);
    assert_eq!(rig.answer(), Answer::Response(10, 0));
    assert_eq!(rig.scsi(&TEST_UNIT_READY, Data::None), Err(Sense(6, 0x29, 0)));
    rig.assert_ready();
}

#[test]
fn the_settings_can_be_changed_between_any_two_transfers_of_a_write() {
    for transfers in 0..8 {
        let mut rig = rig();
        let Uas { command, status, output, .. } = rig.driver;
        let iu = Uas::command_iu(0x4000, 0, &ten(0x2a, 0, 4));
        for n in 0..transfers {
            let outcome = match n {
                0 => rig.host.transact(&command, Pid::Out, &mut iu.to_vec()),
                1 | 6 | 7 => rig.host.transact(&status, Pid::In, &mut vec![0; 96]),
                _ => rig.host.transact(&output, Pid::Out, &mut vec![n; BLOCK]),
            };
            let expected = if n == 7 { Outcome::PARK.status } else { Status::Complete };
            assert_eq!(outcome.status, expected, "{n}");
        }
        rig.driver.select(&mut rig.host, 0).unwrap();
        let mut bulk_only = MassStorage::bind(&rig.enumerated).unwrap();
        let written = rig.disk.contents();
        let read = bulk_only.read(&mut rig.host, 0, 4 * BLOCK, BLOCK).unwrap();
        assert!(read == written[..4 * BLOCK], "{transfers}");
        rig.driver.select(&mut rig.host, 1).unwrap();
        rig.assert_ready();
        assert!(rig.disk.contents() == written, "nothing comes later");
    }
}
