//! OHCI-ISO: isochronous transfer descriptors.

use vm_usb::ohci::IsochronousLosses;
use vm_usb::usb::{BusError, Pid};

use crate::driver::scripted::Answer;
use crate::rig::*;

const LATE: u32 = 8;

impl Rig {
    /// An isochronous TD that starts in `frame`: packets at these offsets, in 13-bit page form.
    fn iso_td(&mut self, frame: u16, bp0: u32, be: u32, offsets: &[u32]) -> u32 {
        let td = self.m.alloc(32, 32);
        let count = offsets.len() as u32 - 1;
        let mut words = [0; 4];
        for (n, offset) in offsets.iter().enumerate() {
            words[n / 2] |= (0xe000 | offset) << (16 * (n & 1));
        }
        let control = td::NOT_ACCESSED | count << 24 | u32::from(frame);
        self.m.store_all(td, &[control, bp0, 0, be]);
        self.m.store_all(td + 16, &words);
        td
    }

    /// One that has `count` packets of `size` bytes in a buffer of its own; returns both.
    fn iso_run(&mut self, frame: u16, count: u32, size: u32) -> (u32, u32) {
        let buffer = self.m.alloc(0x1000, 0x1000);
        let offsets: Vec<u32> = (0..count).map(|n| n * size).collect();
        (self.iso_td(frame, buffer, buffer + count * size - 1, &offsets), buffer)
    }

    fn iso_ed(&mut self, direction: u32, tds: &[u32]) -> u32 {
        let control = ed::control(ADDRESS, 4, 1023) | direction | ed::ISOCHRONOUS;
        self.ed(control, tds)
    }

    /// PacketStatusWord: condition code and size.
    fn psw(&self, td: u32, packet: u32) -> (u32, u32) {
        let half = self.m.load(td + 16 + 4 * (packet / 2)) >> (16 * (packet & 1)) & 0xffff;
        (half >> 12, half & 0xfff)
    }

    fn next_frame(&mut self) -> u16 {
        self.frame_number().wrapping_add(1)
    }
}

#[test]
fn ohci_iso_1_a_td_waits_for_its_frame() {
    let mut rig = running();
    let frame = rig.frame_number().wrapping_add(6);
    let (td, _) = rig.iso_run(frame, 1, 100);
    let ed = rig.iso_ed(ed::OUT, &[td]);
    let before = (rig.m.bytes(td, 32), rig.m.bytes(ed, 16));
    rig.run_periodic(&[ed]);
    for _ in 0..5 {
        rig.frames(1);
        assert_eq!(rig.transfers(), 0);
        assert_eq!((rig.m.bytes(td, 32), rig.m.bytes(ed, 16)), before);
    }
    rig.frames(1);
    assert_eq!((rig.transfers(), rig.cc(td)), (1, 0));
}

#[test]
fn ohci_iso_2_eight_packets_go_out_in_eight_frames() {
    let mut rig = running();
    let start = rig.next_frame();
    let (td, buffer) = rig.iso_run(start, 8, 100);
    for n in 0..8 {
        rig.m.fill(buffer + n * 100, &[n as u8; 100]);
    }
    let ed = rig.iso_ed(ed::OUT, &[td]);
    rig.run_periodic(&[ed]);
    for n in 0..8 {
        assert_eq!(rig.cc(td), 0xf);
        rig.frames(1);
        assert_eq!(rig.device.take_received(ISO_OUT), [n; 100]);
    }
    assert_eq!((rig.cc(td), rig.head_p(ed)), (0, rig.m.load(ed + 4)));
    rig.frames(1);
    assert_eq!(rig.done_head(), td);
}

#[test]
fn ohci_iso_3_a_td_whose_frames_are_over_is_retired_unsent() {
    let mut rig = running();
    rig.frames(20);
    let (td, _) = rig.iso_run(rig.m.load(rig.hcca + hcca::FRAME_NUMBER) as u16 - 10, 4, 10);
    let ed = rig.iso_ed(ed::OUT, &[td]);
    let words = rig.m.bytes(td + 16, 16);
    rig.run_periodic(&[ed]);
    rig.frames(1);
    assert_eq!((rig.cc(td), rig.transfers(), rig.halted(ed)), (LATE, 0, false));
    assert_eq!(rig.m.bytes(td + 16, 16), words);
    rig.frames(1);
    assert_eq!(rig.done_head(), td, "reported like an error");
}

#[test]
fn ohci_iso_4_behind_a_late_td_the_next_one_is_on_time() {
    let mut rig = running();
    rig.frames(20);
    let frame = rig.next_frame();
    let late = [rig.iso_run(frame - 9, 2, 10).0, rig.iso_run(frame - 5, 5, 10).0];
    let (on_time, _) = rig.iso_run(frame, 1, 10);
    let ed = rig.iso_ed(ed::OUT, &[late[0], late[1], on_time]);
    rig.run_periodic(&[ed]);
    rig.frames(1);
    assert_eq!([late[0], late[1], on_time].map(|td| rig.cc(td)), [LATE, LATE, 0]);
    assert_eq!(rig.transfers(), 1);
}

/// Receives one packet into a slot of 100 bytes of 0x55; returns the rig and its TD and buffer.
fn receive(answer: Answer) -> (Rig, u32, u32, u32) {
    let mut rig = running();
    let frame = rig.next_frame();
    let (td, buffer) = rig.iso_run(frame, 1, 100);
    rig.m.fill(buffer, &[0x55; 300]);
    rig.device.answer(ISO_IN, [answer]);
    let ed = rig.iso_ed(ed::IN, &[td]);
    rig.run_periodic(&[ed]);
    rig.frames(1);
    (rig, ed, td, buffer)
}

#[test]
fn ohci_iso_5_a_full_packet_arrives() {
    let (rig, _, td, buffer) = receive(Answer::Data(vec![7; 100]));
    assert_eq!((rig.psw(td, 0), rig.cc(td)), ((0, 100), 0));
    assert_eq!(rig.m.bytes(buffer, 101), [vec![7; 100], vec![0x55]].concat());
}

#[test]
fn ohci_iso_6_a_short_packet_is_an_underrun_and_no_error() {
    for len in [0, 1, 60] {
        let (rig, ed, td, buffer) = receive(Answer::Data(vec![7; len]));
        assert_eq!((rig.psw(td, 0), rig.cc(td), rig.halted(ed)), ((9, len as u32), 0, false));
        assert_eq!(rig.m.bytes(buffer + len as u32, 1), [0x55]);
    }
}

#[test]
fn ohci_iso_7_a_long_packet_stays_in_its_slot() {
    let (rig, ed, td, buffer) = receive(Answer::Data(vec![7; 120]));
    assert_eq!((rig.psw(td, 0).0, rig.cc(td), rig.halted(ed)), (8, 0, false));
    assert_eq!(rig.m.bytes(buffer + 100, 200), [0x55; 200]);
}

#[test]
fn ohci_iso_8_a_sent_packet_has_no_size() {
    let mut rig = running();
    let frame = rig.next_frame();
    let (td, _) = rig.iso_run(frame, 1, 100);
    let ed = rig.iso_ed(ed::OUT, &[td]);
    rig.run_periodic(&[ed]);
    rig.frames(1);
    assert_eq!((rig.psw(td, 0), rig.cc(td)), ((0, 0), 0));
}

#[test]
fn ohci_iso_9_silence_concerns_one_packet_only() {
    let mut rig = running();
    let frame = rig.next_frame();
    let (td, _) = rig.iso_run(frame, 3, 100);
    rig.device.answer(ISO_OUT, [Answer::Error(BusError::Timeout)]);
    let ed = rig.iso_ed(ed::OUT, &[td]);
    let head = rig.m.load(ed + 8);
    rig.m.store(ed + 8, head | ed::CARRY);
    rig.run_periodic(&[ed]);
    rig.frames(1);
    assert_eq!(rig.psw(td, 0).0, 5);
    assert_eq!(rig.m.load(ed + 8), head | ed::CARRY);
    rig.frames(2);
    assert_eq!(rig.transfers(), 3, "each packet once");
    assert_eq!([0, 1, 2].map(|n| rig.psw(td, n).0), [5, 0, 0]);
    assert_eq!((rig.cc(td), rig.m.load(ed + 8)), (0, rig.m.load(ed + 4) | ed::CARRY));
    // Nobody at the address at all.
    let frame = rig.next_frame();
    let (td, _) = rig.iso_run(frame, 1, 100);
    let absent = rig.ed(ed::control(77, 4, 1023) | ed::OUT | ed::ISOCHRONOUS, &[td]);
    rig.run_periodic(&[absent]);
    rig.frames(1);
    assert_eq!((rig.psw(td, 0).0, rig.cc(td), rig.halted(absent)), (5, 0, false));
}

#[test]
fn ohci_iso_10_packets_go_from_one_page_to_the_other() {
    let (a, b) = (0x60_0000, 0x40_0000);
    for (offsets, be, expected) in [
        (vec![0xff0], b + 0xf, vec![(a + 0xff0, 16), (b, 16)]),
        (vec![0x1020], b + 0x2f, vec![(b + 0x20, 16)]),
        (vec![0xff8, 0x1008], b + 0x10, vec![(a + 0xff8, 8), (b, 8), (b + 8, 9)]),
        (vec![0xfe0], a + 0xfff, vec![(a + 0xfe0, 32)]),
    ] {
        let mut rig = running();
        let mut data = Vec::new();
        for (at, len) in expected {
            let bytes: Vec<u8> = (0..len).map(|n| (data.len() + n + 1) as u8).collect();
            rig.m.fill(at, &bytes);
            data.extend(bytes);
        }
        let frame = rig.next_frame();
        let td = rig.iso_td(frame, a, be, &offsets);
        let ed = rig.iso_ed(ed::OUT, &[td]);
        rig.run_periodic(&[ed]);
        rig.frames(offsets.len() as u64);
        assert_eq!(rig.device.take_received(ISO_OUT), data, "{offsets:x?}");
        assert_eq!(rig.cc(td), 0);
    }
}

#[test]
fn ohci_iso_11_packets_whose_frames_are_over_keep_their_form() {
    let mut rig = running();
    rig.frames(20);
    let frame = rig.next_frame();
    let (td, _) = rig.iso_run(frame - 2, 8, 10);
    let ed = rig.iso_ed(ed::OUT, &[td]);
    rig.run_periodic(&[ed]);
    rig.frames(6);
    assert_eq!((rig.transfers(), rig.cc(td)), (6, 0));
    assert_eq!([0, 1].map(|n| rig.psw(td, n).0 & 0xe), [0xe; 2]);
    assert_eq!([2, 3, 4, 5, 6, 7].map(|n| rig.psw(td, n)), [(0, 0); 6]);
}

#[test]
fn ohci_iso_12_without_its_enable_the_list_ends_at_the_first_one() {
    let mut rig = running();
    let before = rig.out(&[1; 8]);
    let after = rig.out(&[2; 8]);
    let frame = rig.next_frame();
    let (td, _) = rig.iso_run(frame, 8, 8);
    let eds = [
        rig.endpoint_ed(BULK_OUT, &[before]),
        rig.iso_ed(ed::OUT, &[td]),
        rig.endpoint_ed(SECOND_OUT, &[after]),
    ];
    rig.run_periodic(&eds);
    rig.disable(control::IE);
    rig.frames(1);
    assert_eq!(rig.endpoints_seen(), [1]);
    rig.enable(control::IE);
    rig.frames(1);
    assert_eq!(rig.endpoints_seen(), [4, 2]);
}

#[test]
fn ohci_iso_13_frame_numbers_wrap() {
    let mut rig = running();
    rig.m.now = rig.m.now.after_millis(u64::from(0xfffd - rig.frame_number()));
    let (td, buffer) = rig.iso_run(0xfffe, 4, 1);
    rig.m.fill(buffer, &[1, 2, 3, 4]);
    let ed = rig.iso_ed(ed::OUT, &[td]);
    rig.run_periodic(&[ed]);
    for (number, byte) in [(0xfffe, 1), (0xffff, 2), (0, 3), (1, 4)] {
        rig.frames(1);
        assert_eq!(rig.frame_number(), number);
        assert_eq!(rig.device.take_received(ISO_OUT), [byte]);
    }
    assert_eq!(rig.cc(td), 0);
}

#[test]
fn ohci_iso_14_half_way_round_is_early() {
    let mut rig = running();
    let frame = rig.next_frame();
    let (td, _) = rig.iso_run(frame.wrapping_add(0x8000), 1, 8);
    let ed = rig.iso_ed(ed::OUT, &[td]);
    rig.run_periodic(&[ed]);
    rig.frames(1);
    assert_eq!((rig.cc(td), rig.head_p(ed)), (0xf, td));
}

#[test]
fn ohci_err_16_isochronous_nonsense_touches_two_pages_at_most() {
    let (a, b) = (0x60_0000, 0x40_0000);
    for (direction, be, offsets) in [
        (ed::IN, b + 0x10, vec![0x1020]),
        (ed::IN, a + 0x10, vec![0x20]),
        (ed::IN, b + 0xfff, vec![0]),
        (ed::OUT, b + 0xff, vec![0x800, 0x400]),
        (ed::IN, b + 0xff, vec![0x1fff, 0]),
        (ed::IN, b + 0x7ff, vec![0x1000]),
        (0, a + 0x10, vec![0]),
    ] {
        let mut rig = running();
        rig.device.answer(ISO_IN, vec![Answer::Data(vec![7; 1000]); 2]);
        let before = rig.m.bytes(0x38_0000, 0x38_0000);
        let frame = rig.next_frame();
        let td = rig.iso_td(frame, a, be, &offsets);
        let ed = rig.iso_ed(direction, &[td]);
        rig.run_periodic(&[ed]);
        rig.frames(3);
        assert!(rig.psw(td, 0).0 >= 7, "an error: {:x?}", rig.psw(td, 0));
        assert!(rig.m.bytes(0x38_0000, 0x38_0000) == before || offsets.len() == 2);
        assert_eq!(rig.cc(td), 0);
        assert_eq!(rig.status() & int::UE, 0);
    }
}

#[test]
fn a_circle_of_late_tds_is_bounded() {
    let mut rig = running();
    rig.frames(20);
    let frame = rig.frame_number();
    let (td, _) = rig.iso_run(frame - 10, 1, 8);
    let ed = rig.iso_ed(ed::OUT, &[]);
    rig.m.store(td + 8, td);
    rig.m.store(ed + 8, td);
    let interrupt = rig.out(&[1; 8]);
    let other = rig.endpoint_ed(BULK_OUT, &[interrupt]);
    rig.run_periodic(&[ed, other]);
    rig.frames(1);
    assert_eq!(rig.cc(interrupt), 0, "the rest of the list is served");
    let before = rig.frame_number();
    rig.frames(10);
    assert_eq!(rig.frame_number().wrapping_sub(before), 10);
}

#[test]
fn a_host_that_is_late_makes_up_for_each_frame() {
    let mut rig = running();
    let start = rig.next_frame();
    let tds: Vec<u32> = (0..32).map(|n| rig.iso_run(start + n, 1, 8).0).collect();
    let ed = rig.iso_ed(ed::OUT, &tds);
    rig.run_periodic(&[ed]);
    rig.m.now = rig.m.now.after_millis(32);
    rig.m.run();
    assert!(tds.iter().all(|td| rig.cc(*td) == 0));
    assert_eq!(rig.device.take_transfers().iter().filter(|t| t.0 == Pid::Out).count(), 32);
    assert_eq!(rig.m.controller.isochronous_losses(), IsochronousLosses::default());
}

#[test]
fn a_lost_packet_is_the_drivers_or_the_hosts() {
    let mut rig = running();
    // The driver is late: two packets of one TD, and two of another's three.
    rig.frames(20);
    let frame = rig.frame_number();
    let over = rig.iso_run(frame - 5, 2, 8).0;
    let cut = rig.iso_run(frame - 1, 3, 8).0;
    let ed = rig.iso_ed(ed::OUT, &[over, cut]);
    rig.run_periodic(&[ed]);
    rig.frames(1);
    assert_eq!((rig.cc(over), rig.cc(cut)), (LATE, 0));
    assert_eq!((rig.psw(cut, 1).0, rig.psw(cut, 2).0), (0xe, 0));
    assert_eq!(rig.m.controller.isochronous_losses(), IsochronousLosses { late: 4, missed: 0 });

    // The host is late by ten frames more than are made up for.
    let start = rig.next_frame();
    let tds: Vec<u32> = (0..42).map(|n| rig.iso_run(start + n, 1, 8).0).collect();
    let ed = rig.iso_ed(ed::OUT, &tds);
    rig.run_periodic(&[ed]);
    rig.m.now = rig.m.now.after_millis(42);
    rig.m.run();
    assert_eq!(tds.iter().filter(|td| rig.cc(**td) == LATE).count(), 10);
    assert_eq!(rig.m.controller.isochronous_losses(), IsochronousLosses { late: 4, missed: 10 });
}

#[test]
fn the_frame_number_in_memory_is_fresh_while_a_device_may_stream() {
    let mut rig = running();
    // A request on the default pipe shows that the device has isochronous endpoints.
    let (setup, buffer) = rig.buffered(td::SETUP | td::DATA0, 8);
    rig.m.fill(buffer, &[0x80, 0, 0, 0, 0, 0, 2, 0]);
    let ed = rig.ed(ed::control(ADDRESS, 0, 64), &[setup]);
    rig.run_control(&[ed]);
    assert_eq!(rig.cc(setup), 0);
    rig.m.advance_millis(200);
    for _ in 0..100 {
        rig.m.advance_micros(1370);
        let memory = rig.hcca_frame() as u16;
        // A driver that schedules eight frames ahead and rounds down to the endpoint's interval has one
        // frame left at worst.
        assert_eq!(rig.frame_number().wrapping_sub(memory), 0);
    }
}
