//! OHCI-ED: endpoint descriptors.

use vm_usb::usb::{Pid, Speed, Toggle};

use crate::driver::scripted::Answer;
use crate::rig::*;

/// An ED of endpoint 1 and, after it, one of endpoint 2, with a TD each, on the bulk list.
fn first_is_passed_over(change: impl FnOnce(&mut Rig, u32)) {
    let mut rig = running();
    let (passed, served) = (rig.out(&[1; 8]), rig.out(&[2; 8]));
    let first = rig.endpoint_ed(BULK_OUT, &[passed]);
    let second = rig.endpoint_ed(SECOND_OUT, &[served]);
    rig.link(&[first, second]);
    change(&mut rig, first);
    let before = (rig.m.bytes(first, 16), rig.m.bytes(passed, 16));
    rig.run_bulk(&[first, second]);
    rig.frames(5);
    assert_eq!(rig.endpoints_seen(), [2]);
    assert_eq!(rig.cc(served), 0);
    assert_eq!((rig.m.bytes(first, 16), rig.m.bytes(passed, 16)), before, "not a bit written");
}

#[test]
fn ohci_ed_1_a_skipped_endpoint_is_passed_over() {
    first_is_passed_over(|rig, ed| {
        let control = rig.m.load(ed);
        rig.m.store(ed, control | ed::SKIP);
    });
}

#[test]
fn ohci_ed_2_a_halted_endpoint_is_passed_over() {
    first_is_passed_over(|rig, ed| {
        let head = rig.m.load(ed + 8);
        rig.m.store(ed + 8, head | ed::HALTED);
    });
}

#[test]
fn ohci_ed_3_an_empty_endpoint_is_passed_over() {
    first_is_passed_over(|rig, ed| {
        let tail = rig.m.load(ed + 4);
        rig.m.store(ed + 8, tail);
    });
}

#[test]
fn ohci_ed_4_low_bits_do_not_make_an_endpoint_busy() {
    for (carry, bits) in [(ed::CARRY, 0), (0, 0xf), (ed::CARRY, 5)] {
        first_is_passed_over(|rig, ed| {
            let tail = rig.m.load(ed + 4);
            rig.m.store(ed + 4, tail | bits);
            rig.m.store(ed + 8, tail | carry);
        });
    }
}

#[test]
fn ohci_ed_5_the_direction_is_the_eds_unless_it_leaves_it_open() {
    for (ed_direction, dp, expected) in [
        (ed::OUT, td::IN, Pid::Out),
        (ed::OUT, td::SETUP, Pid::Out),
        (ed::IN, td::OUT, Pid::In),
        (ed::IN, td::SETUP, Pid::In),
        (0, td::OUT, Pid::Out),
        (0, td::IN, Pid::In),
        (ed::OUT | ed::IN, td::OUT, Pid::Out),
        (ed::OUT | ed::IN, td::IN, Pid::In),
    ] {
        let mut rig = running();
        rig.device.answer(BULK_IN, [Answer::Data(vec![7; 8])]);
        let (td, _) = rig.buffered(dp, 8);
        let ed = rig.ed(ed::control(ADDRESS, 1, 64) | ed_direction, &[td]);
        rig.run_bulk(&[ed]);
        let seen = rig.device.take_transfers();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].0, expected, "{ed_direction:#x} {dp:#x}");
        assert_eq!(rig.cc(td), 0);
    }
}

#[test]
fn ohci_ed_6_only_the_addressed_device_and_endpoint_see_a_packet() {
    let mut rig = running();
    let (other, controls) = device(Speed::Full);
    rig.ports[1].attach(other).unwrap();
    rig.m.run();
    rig.m.write32(PORT + 4, port::PRS);
    rig.m.advance_millis(10);
    configure(&rig.ports[1], 9);
    controls.take_seen();
    for (address, number) in [(ADDRESS, 1), (ADDRESS, 2), (9, 2)] {
        let td = rig.out(&[number; 4]);
        let ed = rig.ed(ed::control(address, number, 64) | ed::OUT, &[td]);
        rig.run_bulk(&[ed]);
        let seen: [Vec<u8>; 2] = [&rig.device, &controls]
            .map(|device| device.take_transfers().into_iter().map(|t| t.1).collect());
        let expected: [Vec<u8>; 2] =
            if address == 9 { [vec![], vec![2]] } else { [vec![number], vec![]] };
        assert_eq!(seen, expected);
    }
}

#[test]
fn ohci_ed_7_the_maximum_packet_size_divides_a_td() {
    let mut rig = running();
    let td = rig.out(&[3; 20]);
    let ed = rig.ed(ed::control(ADDRESS, 1, 8) | ed::OUT, &[td]);
    rig.device.answer(BULK_OUT, [Answer::Take(8), Answer::Nak, Answer::Take(8), Answer::Nak]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.offers()[0], (Toggle::Data0, 20), "offered whole, divided by the device");
    rig.frames(3);
    assert_eq!(rig.cc(td), 0);
    assert_eq!(rig.device.take_received(BULK_OUT), [3; 20]);
    assert!(rig.carry(ed), "8, 8 and 4 bytes are three packets");
    let offers = rig.offers();
    assert_eq!(offers.last(), Some(&(Toggle::Data0, 4)));
    assert!(offers.contains(&(Toggle::Data1, 12)));
}

#[test]
fn ohci_ed_8_the_drivers_words_of_an_ed_are_never_written() {
    let mut rig = running();
    let mut eds = Vec::new();
    for (n, endpoint) in [BULK_OUT, SECOND_OUT, BULK_IN].into_iter().enumerate() {
        let tds = [rig.out(&[1; 100]), rig.out(&[2; 100])];
        let ed = rig.endpoint_ed(endpoint, &tds);
        let word = rig.m.load(ed);
        rig.m.store(ed, word | (n as u32 * 7 + 3) << 27);
        eds.push(ed);
    }
    rig.device.answer(BULK_IN, [Answer::Data(vec![1; 100]), Answer::Stall]);
    rig.link(&eds);
    let words = |rig: &Rig| -> Vec<[u32; 3]> {
        eds.iter().map(|ed| [0, 4, 12].map(|offset| rig.m.load(ed + offset))).collect()
    };
    let before = words(&rig);
    rig.run_bulk(&eds);
    rig.frames(3);
    assert_eq!(words(&rig), before);
    assert!(eds.iter().all(|ed| rig.head_p(*ed) == rig.m.load(ed + 4)), "all is done");
}

#[test]
fn ohci_ed_9_low_bits_of_links_are_not_address_bits() {
    let mut rig = running();
    let eds = [1, 2, 3, 4].map(|n| {
        let td = rig.out(&[n; 4]);
        let toggle = if n & 1 == 1 { td::DATA0 } else { td::DATA1 };
        let word = rig.m.load(td);
        rig.m.store(td, word | toggle);
        rig.endpoint_ed(BULK_OUT, &[td])
    });
    rig.m.store(eds[0] + 12, eds[1] | 0xf);
    rig.m.write32(reg::BULK_HEAD_ED, eds[0] | 0xf);
    rig.enable(control::BLE);
    rig.ring_bulk();
    assert_eq!(rig.device.take_received(BULK_OUT), [1, 1, 1, 1, 2, 2, 2, 2]);
    rig.m.store(eds[2] + 12, eds[3] | 0xf);
    for slot in 0..32 {
        rig.m.store(rig.hcca + 4 * slot, eds[2] | 0xf);
    }
    rig.enable(control::PLE);
    rig.frames(1);
    assert_eq!(rig.device.take_received(BULK_OUT), [3, 3, 3, 3, 4, 4, 4, 4]);
}

#[test]
fn ohci_ed_10_a_periodic_endpoint_sends_one_packet_a_frame() {
    let mut rig = running();
    let tds = [rig.out(&[1; 8]), rig.out(&[2; 100]), rig.out(&[3; 8])];
    let ed = rig.endpoint_ed(BULK_OUT, &tds);
    rig.run_periodic(&[ed]);
    for expected in [8, 64, 36, 8] {
        rig.frames(1);
        assert_eq!(rig.offers().iter().map(|o| o.1).collect::<Vec<_>>(), [expected]);
    }
    rig.frames(1);
    assert_eq!(rig.offers(), []);
}

#[test]
fn ohci_ed_11_a_running_list_sees_new_tds_without_a_doorbell() {
    let mut rig = running();
    let (waiting, _) = rig.buffered(td::IN, 8);
    let keeps_running = rig.endpoint_ed(SECOND_IN, &[waiting]);
    let ed = rig.endpoint_ed(BULK_IN, &[]);
    rig.run_bulk(&[keeps_running, ed]);
    rig.frames(3);
    rig.device.answer(BULK_IN, [Answer::Data(vec![9; 8])]);
    let (td, buffer) = rig.append_in(ed, 8);
    rig.frames(2);
    assert_eq!(rig.cc(td), 0);
    assert_eq!(rig.m.bytes(buffer, 8), [9; 8]);
}

#[test]
fn ohci_ed_12_low_speed_endpoints_reach_low_speed_devices_only() {
    for (speed, bit, served) in [
        (Speed::Low, ed::LOW_SPEED, true),
        (Speed::Low, 0, false),
        (Speed::Full, ed::LOW_SPEED, false),
    ] {
        let mut rig = running_at(speed);
        assert_eq!(rig.port() & port::LSDA != 0, speed == Speed::Low);
        let td = rig.out(&[5; 8]);
        let ed = rig.ed(ed::control(ADDRESS, 1, 8) | ed::OUT | bit, &[td]);
        rig.run_bulk(&[ed]);
        rig.frames(5);
        assert_eq!(rig.cc(td), if served { 0 } else { 5 });
        assert_eq!(rig.transfers(), usize::from(served));
    }
}

#[test]
fn ohci_ed_13_a_queue_may_end_at_address_zero() {
    let mut rig = running();
    let td = rig.out(&[1; 8]);
    let ed = rig.m.alloc(16, 16);
    rig.m.store_all(ed, &[ed::control(ADDRESS, 1, 64) | ed::OUT, 0, td, 0]);
    rig.run_bulk(&[ed]);
    rig.frames(10);
    assert_eq!(rig.transfers(), 1);
    assert_eq!(rig.m.load(ed + 8), ed::CARRY, "HeadP is 0, which is TailP");
    assert_eq!(rig.status() & int::UE, 0);
    assert_eq!(rig.m.bytes(0, 64), [0; 64], "no TD was looked for at address 0");
}

#[test]
fn ohci_ed_14_two_busy_endpoints_share_the_list() {
    let mut rig = running();
    let eds = [BULK_OUT, SECOND_OUT].map(|endpoint| {
        let tds: Vec<u32> = (0..2000).map(|_| rig.td(td::OUT, 0, 0)).collect();
        rig.endpoint_ed(endpoint, &tds)
    });
    rig.run_bulk(&eds);
    rig.frames(1);
    let seen = rig.endpoints_seen();
    let first = seen.iter().filter(|endpoint| **endpoint == 1).count();
    let second = seen.len() - first;
    assert!(first > 100 && first.abs_diff(second) <= 2, "{first} and {second}");
}
