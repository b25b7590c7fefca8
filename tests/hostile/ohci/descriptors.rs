//! Descriptors where there are none, and nonsense in them.

use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_usb::usb::BusError;

use super::*;
use crate::driver::machine::RAM;
use crate::driver::scripted::{Answer, Seen};

#[test]
fn ohci_hg_9_larger_packets_than_the_endpoint_has_stay_in_the_buffer() {
    let mut rig = running();
    let buffer = rig.m.alloc(0x1000, 0x1000);
    let td = rig.td(td::IN, buffer, buffer + 63);
    rig.m.fill(buffer + 64, &[0x55; 2048]);
    rig.device.answer(BULK_IN, [Answer::Data(vec![7; 1500])]);
    let ed = rig.ed(ed::control(ADDRESS, 1, 0x7ff) | ed::IN, &[td]);
    let work = work(&mut rig, |rig| {
        rig.run_bulk(&[ed]);
        rig.frames(3);
    });
    assert!(work.most <= 3 * VISIT + FRAME, "{work:?}");
    assert_eq!(
        (rig.cc(td), rig.m.bytes(buffer, 64)),
        (0, vec![7; 64]),
        "a packet of the device's size"
    );
    assert!(rig.m.bytes(buffer + 64, 2048) == [0x55; 2048]);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_10_structures_outside_ram_are_unrecoverable() {
    // Behind RAM, where BARs are, and at the end.
    for nowhere in [RAM, 0xfebf_0000, 0xffff_fff0] {
        for mut rig in led_to(nowhere) {
            assert_dead_until_reset(&mut rig);
        }
    }
}

#[test]
fn ohci_hg_11_address_zero_is_memory_like_any_other() {
    let mut rig = running();
    rig.m.write32(reg::HCCA, 0);
    let work = work(&mut rig, |rig| rig.frames(3));
    assert!(work.most <= FRAME, "{work:?}");
    assert_eq!(rig.status() & int::UE, 0);
    assert_eq!(rig.m.load(hcca::FRAME_NUMBER) as u16, rig.frame_number());
    assert_alive(&mut rig);
}

/// A rig with RAM up to 4 GiB too.
fn with_the_last_page() -> Rig {
    let ranges = [(GuestAddress(0), RAM as usize), (GuestAddress(0xffff_f000), 0x1000)];
    let mut rig = running();
    rig.m.memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
    rig
}

#[test]
fn ohci_hg_12_descriptors_may_end_where_memory_does() {
    let mut rig = with_the_last_page();
    let dummy = rig.m.alloc(16, 16);
    let buffer = rig.m.alloc(16, 16);
    // A TD that ends 16 bytes before 4 GiB, and its ED there.
    rig.m.store_all(0xffff_ffe0, &[td::OUT | td::NOT_ACCESSED, buffer, dummy, buffer + 7]);
    let word = ed::control(ADDRESS, 1, 64) | ed::OUT;
    rig.m.store_all(0xffff_fff0, &[word, dummy, 0xffff_ffe0, 0]);
    rig.m.write32(reg::BULK_HEAD_ED, 0xffff_fff0);
    rig.enable(control::BLE);
    let at_once = work(&mut rig, Rig::ring_bulk);
    assert!(at_once.most <= 2 * VISIT + FRAME, "{at_once:?}");
    assert_eq!((rig.cc(0xffff_ffe0), rig.status() & int::UE), (0, 0));
    // An isochronous TD has no room there, and is taken for the one 16 bytes before.
    let frame = rig.frame_number().wrapping_add(1);
    rig.m.store_all(0xffff_ffe0, &[td::NOT_ACCESSED | u32::from(frame), buffer, dummy, buffer + 7]);
    let ed = iso_ed(&mut rig, ed::OUT, &[]);
    rig.m.store(ed + 4, dummy);
    rig.m.store(ed + 8, 0xffff_fff0);
    rig.m.store_all(0xffff_fff0, &[0xe000, 0, 0, 0]);
    rig.run_periodic(&[ed]);
    rig.frames(2);
    assert_eq!((rig.cc(0xffff_ffe0), rig.status() & int::UE), (0, 0));
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_13_bit_4_of_an_isochronous_tds_address_does_not_count() {
    let mut rig = running();
    let frame = rig.frame_number().wrapping_add(1);
    let buffer = rig.m.alloc(0x100, 0x1000);
    let td = iso_td(&mut rig, frame, (buffer, buffer + 99), &[0], 0xe000);
    let ed = iso_ed(&mut rig, ed::OUT, &[td]);
    rig.m.store(ed + 8, td | 0x10);
    rig.run_periodic(&[ed]);
    let work = work(&mut rig, |rig| rig.frames(1));
    assert!(work.most <= VISIT + FRAME, "{work:?}");
    assert_eq!((rig.cc(td), rig.device.take_received(ISO_OUT).len()), (0, 100));
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_20_a_direction_that_is_none_sends_nothing() {
    let mut rig = running();
    let (td, _) = rig.buffered(3 << 19, 8);
    let ed = rig.ed(ed::control(ADDRESS, 1, 64), &[td]);
    let work = work(&mut rig, |rig| rig.run_bulk(&[ed]));
    assert!(work.most <= 2 * VISIT + FRAME, "{work:?}");
    assert_eq!((rig.cc(td), rig.halted(ed), rig.transfers()), (7, true, 0));
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_21_setup_tokens_that_no_host_sends_are_not_answered() {
    // Of five bytes, of sixteen, and to an endpoint that is not for control.
    for (endpoint, len, max_packet) in [(0, 5, 64), (0, 16, 64), (1, 8, 64)] {
        let mut rig = running();
        let (td, _) = rig.buffered(td::SETUP, len);
        let ed = rig.ed(ed::control(ADDRESS, endpoint, max_packet), &[td]);
        let work = work(&mut rig, |rig| {
            rig.run_control(&[ed]);
            rig.frames(3);
        });
        assert!(work.most <= 3 * VISIT + FRAME, "{work:?}");
        assert_eq!((rig.cc(td), rig.halted(ed)), (5, true), "{endpoint} {len} {max_packet}");
        assert!(!rig.device.take_seen().iter().any(|seen| matches!(seen, Seen::Request(..))));
        assert_alive(&mut rig);
    }
    // Packets of four bytes: the packet is one all the same.
    let mut rig = running();
    let (td, buffer) = rig.buffered(td::SETUP, 8);
    rig.m.fill(buffer, &[0x40, 1, 0, 0, 0, 0, 0, 0]);
    let ed = rig.ed(ed::control(ADDRESS, 0, 4), &[td]);
    rig.run_control(&[ed]);
    assert_eq!((rig.cc(td), rig.halted(ed)), (0, false));
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_22_the_wrong_format_for_an_endpoint_leaves_nothing_in_flight() {
    // Isochronous descriptors for a bulk endpoint, which would begin something and not end it.
    let mut rig = running();
    rig.device.answer(BULK_OUT, vec![Answer::Pending; 100]);
    let frame = rig.frame_number().wrapping_add(1);
    let buffer = rig.m.alloc(0x100, 0x1000);
    let td = iso_td(&mut rig, frame, (buffer, buffer + 63), &[0], 0xe000);
    let word = ed::control(ADDRESS, 1, 64) | ed::OUT | ed::ISOCHRONOUS;
    let ed = rig.ed(word, &[td]);
    rig.run_bulk(&[ed]);
    rig.run_periodic(&[ed]);
    let counted = work(&mut rig, |rig| rig.frames(2));
    assert!(counted.most <= 2 * VISIT + FRAME, "{counted:?}");
    assert_eq!((rig.cc(td), psw(&rig, td, 0).0), (0, 5), "nobody answers");
    assert_eq!(rig.transfers(), 0);
    assert_alive(&mut rig);
    // An isochronous endpoint that says it has begun: there is no later.
    let mut rig = running();
    rig.device.answer(ISO_IN, vec![Answer::Pending; 100]);
    let frame = rig.frame_number().wrapping_add(1);
    let td = iso_td(&mut rig, frame, (buffer, buffer + 63), &[0], 0xe000);
    let ed = iso_ed(&mut rig, ed::IN, &[td]);
    rig.run_periodic(&[ed]);
    rig.frames(1);
    assert_eq!((rig.cc(td), psw(&rig, td, 0)), (0, (5, 0)));
    // General descriptors for it.
    let (td, _) = rig.buffered(td::OUT, 8);
    let ed = rig.ed(ed::control(ADDRESS, 4, 64) | ed::OUT, &[td]);
    rig.device.take_seen();
    rig.run_bulk(&[ed]);
    rig.frames(3);
    assert_eq!((rig.cc(td), rig.transfers()), (5, 0));
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_44_every_pattern_of_a_tds_control_word_has_a_way_to_end() {
    let errors = [BusError::Crc, BusError::Timeout, BusError::ToggleMismatch];
    for delay in 0..8 {
        for toggle in 0..4 {
            for count in 0..4 {
                let mut rig = running();
                rig.device.answer(BULK_OUT, errors.map(Answer::Error));
                let td = rig.out(&[1; 8]);
                let word = td::OUT | delay << 21 | toggle << 24 | count << 26 | td::NOT_ACCESSED;
                rig.m.store(td, word | 0x3ffff);
                let ed = rig.endpoint_ed(BULK_OUT, &[td]);
                let work = work(&mut rig, |rig| {
                    rig.run_bulk(&[ed]);
                    rig.frames(4);
                });
                assert!(work.most <= 4 * VISIT + FRAME, "{work:?}");
                assert_ne!(rig.cc(td), 0xf, "DI {delay} T {toggle} EC {count}");
                rig.frames(9);
                let reported = rig.done_head() & !0xf;
                assert_eq!(reported, if delay == 7 { reported } else { td });
            }
        }
    }
}
