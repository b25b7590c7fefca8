//! OHCI-UNLINK-12 to 17: what a driver changes while it is linked, or makes anew where something else was.

use crate::driver::scripted::{Answer, Seen};
use crate::rig::*;
use crate::unlink::{assert_intact, cancels, fill, skip, unskip, wait_for_frame};

#[test]
fn ohci_unlink_12_an_endpoint_rebuilt_at_the_same_address_is_another_one() {
    let mut rig = running();
    let (td, _) = rig.buffered(td::IN, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.device.answer(BULK_IN, [Answer::Pending]);
    rig.run_bulk(&[ed]);
    skip(&mut rig, ed);
    rig.m.write32(reg::BULK_HEAD_ED, 0);
    wait_for_frame(&mut rig);
    rig.device.take_seen();
    let word = rig.m.load(ed + 4);
    rig.m.store_all(ed, &[ed::control(ADDRESS, 2, 32) | ed::OUT, word, word, 0]);
    let td = rig.append(ed, [td::OUT, 0x70_0000], 0x70_003f);
    rig.m.write32(reg::BULK_HEAD_ED, ed);
    rig.ring_bulk();
    assert_eq!(rig.cc(td), 0);
    let seen = rig.device.take_seen();
    let [Seen::Transfer { endpoint: 2, max_packet: 32, len: 64, .. }] = seen[..] else {
        panic!("{seen:?}");
    };
}

#[test]
fn ohci_unlink_13_a_td_at_the_same_address_is_another_one() {
    let mut rig = running();
    let (td, old) = rig.buffered(td::IN, 64);
    let new = rig.m.alloc(64, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.device.answer(BULK_IN, [Answer::Pending]);
    rig.run_bulk(&[ed]);
    rig.frames(1);
    skip(&mut rig, ed);
    wait_for_frame(&mut rig);
    rig.m.store_all(td, &[td::IN | td::NOT_ACCESSED, new]);
    rig.m.store(td + 12, new + 31);
    rig.device.answer(BULK_IN, [Answer::Data(vec![9; 32])]);
    unskip(&mut rig, ed);
    rig.ring_bulk();
    assert_eq!(rig.cc(td), 0);
    assert_eq!(rig.m.bytes(old, 64), [0; 64]);
    assert_eq!(rig.m.bytes(new, 33), [vec![9; 32], vec![0]].concat());
}

#[test]
fn ohci_unlink_13_a_td_that_changed_in_flight_is_asked_for_anew() {
    let mut rig = running();
    let (td, old) = rig.buffered(td::IN, 64);
    let new = rig.m.alloc(64, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.device.answer(BULK_IN, [Answer::Pending, Answer::Data(vec![9; 64])]);
    rig.run_bulk(&[ed]);
    rig.m.store(td + 4, new);
    rig.m.store(td + 12, new + 63);
    rig.ring_bulk();
    assert_eq!(rig.cc(td), 0);
    assert_eq!(cancels(&rig.device), 1);
    assert_eq!((rig.m.bytes(old, 64), rig.m.bytes(new, 64)), (vec![0; 64], vec![9; 64]));
}

#[test]
fn ohci_unlink_14_a_linked_endpoint_may_change_its_address_and_packet() {
    let mut rig = running();
    let td = rig.out(&[1; 64]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    rig.frames(3);
    rig.device.take_seen();
    rig.m.store(ed, ed::control(ADDRESS, 2, 16) | ed::OUT);
    rig.append(ed, [td::OUT | td::DATA0, 0x70_0000], 0x70_003f);
    rig.ring_bulk();
    let seen = rig.device.take_seen();
    let [Seen::Transfer { endpoint: 2, max_packet: 16, len: 64, .. }] = seen[..] else {
        panic!("{seen:?}");
    };
}

#[test]
fn ohci_unlink_15_a_halted_endpoint_starts_over_at_a_new_td() {
    let mut rig = running();
    rig.device.answer(BULK_OUT, [Answer::Stall]);
    let old = rig.out(&[1; 8]);
    let behind = rig.out(&[2; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[old, behind]);
    rig.run_bulk(&[ed]);
    assert!(rig.halted(ed));
    clear_halt(&rig.ports[0], BULK_OUT);
    let new = rig.out(&[3; 8]);
    let tail = rig.m.load(ed + 4);
    rig.m.store(new + 8, tail);
    rig.m.store(ed + 8, new);
    rig.ring_bulk();
    assert_eq!((rig.cc(new), rig.cc(behind), rig.halted(ed)), (0, 0xf, false));
    rig.frames(5);
    assert!(!rig.halted(ed));
    assert_eq!(rig.device.take_received(BULK_OUT), [3; 8]);
}

#[test]
fn ohci_unlink_16_an_idle_endpoint_may_get_a_whole_new_queue() {
    let mut rig = running();
    let ed = rig.endpoint_ed(BULK_OUT, &[]);
    rig.run_bulk(&[ed]);
    rig.frames(3);
    let (td, tail) = (rig.out(&[4; 8]), rig.m.alloc(16, 16));
    rig.m.store(td + 8, tail);
    rig.m.store(ed + 4, tail);
    rig.m.store(ed + 8, td);
    rig.ring_bulk();
    assert_eq!((rig.cc(td), rig.head_p(ed)), (0, tail));
}

#[test]
fn ohci_unlink_17_the_head_may_be_replaced_under_way() {
    let mut rig = running();
    let (waiting, _) = rig.buffered(td::IN, 8);
    let old = rig.endpoint_ed(SECOND_IN, &[waiting]);
    rig.run_bulk(&[old]);
    rig.frames(3);
    let td = rig.out(&[1; 8]);
    let new = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.m.write32(reg::BULK_HEAD_ED, new);
    rig.frames(1);
    let areas = [(old, 16), (waiting, 16)];
    fill(&mut rig, &areas);
    assert_intact(&mut rig, &areas);
    assert_eq!(rig.cc(td), 0);
}
