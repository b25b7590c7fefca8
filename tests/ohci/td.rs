//! OHCI-TD: general transfer descriptors.

use vm_usb::usb::{EndpointAddress, Outcome, Pid, Toggle};

use crate::driver::scripted::{Answer, Seen};
use crate::rig::*;

/// Runs one IN TD of `len` bytes with an answer; returns the rig, the ED, the TD and its buffer.
fn receive(len: u32, flags: u32, answers: &[Answer]) -> (Rig, u32, u32, u32) {
    let mut rig = running();
    rig.device.answer(BULK_IN, answers.iter().cloned());
    let (td, buffer) = rig.buffered(td::IN | flags, len);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    (rig, ed, td, buffer)
}

fn control_ed(rig: &mut Rig, tds: &[u32]) -> u32 {
    rig.ed(ed::control(ADDRESS, 0, 64), tds)
}

/// A SETUP TD.
fn setup(rig: &mut Rig, bytes: [u8; 8]) -> u32 {
    let (td, buffer) = rig.buffered(td::SETUP | td::DATA0, 8);
    rig.m.fill(buffer, &bytes);
    td
}

#[test]
fn ohci_td_1_setup_carries_eight_bytes() {
    let mut rig = running();
    rig.device.answer_request(&[]);
    let td = setup(&mut rig, [0x40, 1, 2, 3, 4, 5, 0, 0]);
    let status = rig.td(td::IN | td::DATA1, 0, 0);
    let ed = control_ed(&mut rig, &[td, status]);
    rig.run_control(&[ed]);
    assert_eq!((rig.cc(td), rig.cbp(td)), (0, 0));
    let seen = rig.device.take_seen();
    let Seen::Request(request, _) = &seen[0] else { panic!("{seen:?}") };
    assert_eq!((request.b_request, request.value(), request.index()), (1, 0x302, 0x504));
}

#[test]
fn ohci_td_2_the_first_toggle_is_the_carry_or_the_tds_own() {
    use Toggle::{Data0, Data1};
    for (t, carry, expected) in [
        (0, 0, Data0),
        (0, ed::CARRY, Data1),
        (1 << 24, 0, Data0),
        (1 << 24, ed::CARRY, Data1),
        (td::DATA0, 0, Data0),
        (td::DATA0, ed::CARRY, Data0),
        (td::DATA1, 0, Data1),
        (td::DATA1, ed::CARRY, Data1),
    ] {
        let mut rig = running();
        let (td, _) = rig.buffered(td::OUT | t, 8);
        let ed = rig.endpoint_ed(BULK_OUT, &[td]);
        let head = rig.head_p(ed);
        rig.m.store(ed + 8, head | carry);
        // The device expects DATA0 and drops anything else as a repetition.
        rig.run_bulk(&[ed]);
        assert_eq!(rig.transfers() == 1, expected == Data0, "{t:#x} {carry}");
        assert_eq!(rig.carry(ed), expected == Data0, "the carry is the toggle after it");
    }
}

#[test]
fn ohci_td_3_the_carry_flips_once_a_packet() {
    for (len, odd) in [(1, true), (64, true), (65, false), (128, false), (129, true)] {
        for carry in [false, true] {
            let mut rig = running();
            let tds = [rig.out(&[1; 8]), rig.out(&vec![2; len])];
            let ed = rig.endpoint_ed(BULK_OUT, if carry { &tds } else { &tds[1..] });
            rig.run_bulk(&[ed]);
            assert_eq!(rig.carry(ed), carry ^ odd, "{len} bytes");
        }
    }
}

#[test]
fn ohci_td_4_a_full_packet_fills_the_buffer() {
    let (rig, ed, td, buffer) = receive(64, 0, &[Answer::Data(vec![7; 64])]);
    assert_eq!((rig.cc(td), rig.cbp(td), rig.halted(ed)), (0, 0, false));
    assert_eq!(rig.head_p(ed), rig.m.load(ed + 4), "HeadP went on to the dummy");
    assert_eq!(rig.m.bytes(buffer, 64), [7; 64]);
}

#[test]
fn ohci_td_5_a_short_packet_with_rounding_is_fine() {
    let (rig, ed, td, buffer) = receive(64, td::ROUNDING, &[Answer::Data(vec![7; 10])]);
    assert_eq!((rig.cc(td), rig.cbp(td), rig.halted(ed)), (0, buffer + 10, false));
    assert_eq!(rig.head_p(ed), rig.m.load(ed + 4));
    assert!(rig.carry(ed));
}

#[test]
fn ohci_td_6_a_short_packet_without_rounding_halts() {
    let (rig, ed, td, buffer) = receive(64, 0, &[Answer::Data(vec![7; 10])]);
    assert_eq!((rig.cc(td), rig.cbp(td), rig.halted(ed)), (9, buffer + 10, true));
    assert_eq!(rig.head_p(ed), rig.m.load(ed + 4));
    assert!(rig.carry(ed), "the packet was acknowledged");
}

#[test]
fn ohci_td_7_no_bytes_at_all_are_a_short_packet() {
    let (rig, ed, td, buffer) = receive(64, td::ROUNDING, &[Answer::Data(vec![])]);
    assert_eq!((rig.cc(td), rig.cbp(td), rig.halted(ed)), (0, buffer, false));
    assert!(rig.carry(ed));
}

#[test]
fn ohci_td_8_a_full_buffer_ends_the_td_without_another_packet() {
    for len in [10, 74, 64, 192] {
        let data = vec![7; len];
        let (rig, ed, td, buffer) = receive(len as u32, 0, &[Answer::Data(data.clone())]);
        assert_eq!((rig.cc(td), rig.cbp(td), rig.halted(ed)), (0, 0, false), "{len} bytes");
        assert_eq!(rig.m.bytes(buffer, len), data);
        assert_eq!(rig.transfers(), 1);
    }
}

#[test]
fn ohci_td_9_zero_length_packets() {
    for (cbp, be) in [(0, 0), (0, !0), (0, 0x1234), (0x10_1010, 0x10_100f)] {
        let mut rig = running();
        let td = rig.td(td::OUT, cbp, be);
        let ed = rig.endpoint_ed(BULK_OUT, &[td]);
        rig.run_bulk(&[ed]);
        assert_eq!(rig.offers(), [(Toggle::Data0, 0)], "{cbp:#x} {be:#x}");
        assert_eq!((rig.cc(td), rig.cbp(td)), (0, 0));
        assert!(rig.carry(ed));
    }
}

#[test]
fn ohci_td_10_a_buffer_goes_from_one_page_to_another() {
    let mut rig = running();
    let (a, b) = (0x40_0000, 0x50_0000);
    rig.m.fill(a, &[0xaa; 4096]);
    rig.m.fill(b, &[0xbb; 4096]);
    rig.m.fill(a + 0xff0, &(0..16).collect::<Vec<u8>>());
    rig.m.fill(b, &(16..32).collect::<Vec<u8>>());
    let td = rig.td(td::OUT, a + 0xff0, b + 0xf);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.device.take_received(BULK_OUT), (0..32).collect::<Vec<u8>>());
    assert_eq!(rig.cbp(td), 0);

    rig.device.answer(BULK_IN, [Answer::Data((100..132).collect())]);
    let td = rig.td(td::IN, a + 0xff0, b + 0xf);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cc(td), 0);
    assert_eq!(rig.m.bytes(a + 0xff0, 16), (100..116).collect::<Vec<u8>>());
    assert_eq!(rig.m.bytes(b, 16), (116..132).collect::<Vec<u8>>());
    assert_eq!(rig.m.bytes(a + 0xfef, 1), [0xaa], "no other byte");
    assert_eq!(rig.m.bytes(a + 0x1000, 1), [0], "no other byte");
    assert_eq!(rig.m.bytes(b + 16, 1), [0xbb], "no other byte");
}

#[test]
fn ohci_td_11_two_pages_hold_8192_bytes() {
    let mut rig = running();
    let (a, b) = (0x60_0000, 0x40_0000);
    let data: Vec<u8> = (0..8192u32).map(|n| (n * 3 + n / 256) as u8).collect();
    rig.device.answer(BULK_IN, [Answer::Data(data.clone())]);
    let td = rig.td(td::IN, a, b + 0xfff);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!((rig.cc(td), rig.cbp(td)), (0, 0));
    assert_eq!([rig.m.bytes(a, 4096), rig.m.bytes(b, 4096)].concat(), data);
    assert!(!rig.carry(ed), "128 packets");
}

#[test]
fn ohci_td_12_a_short_packet_may_end_on_the_second_page() {
    let mut rig = running();
    let (a, b) = (0x60_0000, 0x40_0000);
    rig.device.answer(BULK_IN, [Answer::Data(vec![7; 130])]);
    let td = rig.td(td::IN | td::ROUNDING, a + 0xfc0, b + 0xff);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!((rig.cc(td), rig.cbp(td)), (0, b + 66));
}

#[test]
fn ohci_td_13_a_packet_may_end_with_the_first_page() {
    let mut rig = running();
    let (a, b) = (0x60_0000, 0x40_0000);
    let td = rig.td(td::OUT, a + 0xfc0, b + 0x3f);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.device.answer(BULK_OUT, [Answer::Take(64), Answer::Nak, Answer::Nak]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cbp(td), b);
    rig.frames(2);
    assert_eq!((rig.cc(td), rig.cbp(td)), (0, 0));
}

#[test]
fn ohci_td_14_a_nak_changes_nothing() {
    let mut rig = running();
    let (td, _) = rig.buffered(td::IN, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    let before = (rig.m.bytes(ed, 16), rig.m.bytes(td, 16));
    rig.device.answer(BULK_IN, [Answer::Nak, Answer::Nak, Answer::Nak]);
    rig.run_bulk(&[ed]);
    for _ in 0..5 {
        rig.frames(1);
        assert_eq!((rig.m.bytes(ed, 16), rig.m.bytes(td, 16)), before);
    }
    assert!(rig.transfers() >= 5, "it is asked again in every frame");
}

#[test]
fn ohci_td_15_progress_shows_in_the_td() {
    let mut rig = running();
    let (td, buffer) = rig.buffered(td::OUT, 256);
    let word = rig.m.load(td);
    rig.m.store(td, word | 2 << 26);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.device.answer(BULK_OUT, [Answer::Take(64), Answer::Nak, Answer::Take(128), Answer::Nak]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cbp(td), buffer + 64);
    assert_eq!(rig.m.load(td) >> 24 & 3, 3, "DATA1 is next");
    assert_eq!((rig.ec(td), rig.cc(td)), (0, 0xf));
    rig.frames(1);
    assert_eq!(rig.cbp(td), buffer + 192);
    assert_eq!(rig.m.load(td) >> 24 & 3, 3, "two packets later it is again");
    rig.frames(1);
    assert_eq!((rig.cbp(td), rig.cc(td)), (0, 0));
    assert!(!rig.carry(ed), "four packets");
}

#[test]
fn ohci_td_16_the_drivers_bits_of_a_td_are_kept() {
    let mut rig = running();
    let mine = 0x2_aaaa | td::ROUNDING | td::delay(5);
    let (td, buffer) = rig.buffered(td::OUT | mine, 100);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cc(td), 0);
    assert_eq!(rig.m.load(td) & 0xff_ffff, td::OUT | mine);
    assert_eq!(rig.m.load(td + 12), buffer + 99);
}

#[test]
fn ohci_td_17_a_control_transfer_is_three_tds() {
    let mut rig = running();
    let setup = setup(&mut rig, [0x80, 6, 0, 1, 0, 0, 18, 0]);
    let (data, buffer) = rig.buffered(td::IN | td::DATA1 | td::ROUNDING, 18);
    let status = rig.td(td::OUT | td::DATA1, 0, 0);
    let ed = control_ed(&mut rig, &[setup, data, status]);
    rig.run_control(&[ed]);
    assert_eq!([setup, data, status].map(|td| rig.cc(td)), [0; 3]);
    assert_eq!(rig.m.bytes(buffer, 2), [18, 1]);
    assert_eq!(rig.m.load(ed + 8), rig.m.load(ed + 4), "C and H are 0 at the end");
    rig.frames(1);
    assert_eq!(rig.done_head(), status);
    assert_eq!((rig.next_td(status), rig.next_td(data), rig.next_td(setup)), (data, setup, 0));
}

#[test]
fn ohci_td_18_a_stall_before_any_packet_keeps_the_carry() {
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Data(vec![1; 64]), Answer::Stall]);
    let tds = [rig.buffered(td::IN, 64).0, rig.buffered(td::IN, 64).0];
    let ed = rig.endpoint_ed(BULK_IN, &tds);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cc(tds[1]), 4);
    assert!(rig.halted(ed) && rig.carry(ed));
}

#[test]
fn a_descriptor_longer_than_the_control_packet_arrives_in_order_one_td_a_packet() {
    let mut rig = running();
    let setup = setup(&mut rig, [0x80, 6, 0, 1, 0, 0, 18, 0]);
    let parts: Vec<(u32, u32)> = [(td::DATA1, 8), (td::DATA0, 8), (td::DATA1, 2)]
        .map(|(toggle, len)| rig.buffered(td::IN | toggle, len))
        .into();
    let status = rig.td(td::OUT | td::DATA1, 0, 0);
    let ed =
        rig.ed(ed::control(ADDRESS, 0, 8), &[setup, parts[0].0, parts[1].0, parts[2].0, status]);
    rig.run_control(&[ed]);
    let bytes: Vec<u8> =
        parts.iter().zip([8, 8, 2]).flat_map(|((_, at), len)| rig.m.bytes(*at, len)).collect();
    assert_eq!(bytes[..8], [18, 1, 0x10, 1, 0xff, 0, 0, 64]);
    assert_eq!(bytes[8..12], [0x09, 0x12, 0x01, 0x00], "idVendor and idProduct follow");
    assert_eq!(rig.cc(status), 0);
}

#[test]
fn every_td_of_two_endpoints_gets_its_own_bytes() {
    let mut rig = running();
    let first = EndpointAddress::r#in(1);
    rig.device.answer(first, [Answer::Park]);
    rig.device.answer(SECOND_IN, (0..20).map(|n| Answer::Data(vec![n; 64])));
    let (waiting, _) = rig.buffered(td::IN, 64);
    let tds: Vec<(u32, u32)> = (0..20).map(|_| rig.buffered(td::IN, 64)).collect();
    let eds = [
        rig.endpoint_ed(first, &[waiting]),
        rig.endpoint_ed(SECOND_IN, &tds.iter().map(|td| td.0).collect::<Vec<_>>()),
    ];
    rig.run_bulk(&eds);
    for (n, (td, buffer)) in tds.iter().enumerate() {
        assert_eq!(rig.cc(*td), 0, "an endpoint that waits delays no other");
        assert_eq!(rig.m.bytes(*buffer, 64), [n as u8; 64]);
    }
    let seen = rig.device.take_transfers();
    assert_eq!(seen.iter().filter(|t| t.1 == 1).count(), 1, "and is not asked again");
    rig.device.answer(first, [Answer::Data(vec![9; 64])]);
    rig.frames(100);
    assert_eq!(rig.transfers(), 0);
    rig.device.announce(first);
    rig.m.run();
    assert_eq!(rig.cc(waiting), 0);
    assert_eq!(rig.device.take_transfers(), [(Pid::In, 1, 64, Outcome::complete(64))]);
}
