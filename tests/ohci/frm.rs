//! OHCI-FRM: frames, and when lists are served.

use vm_usb::usb::Speed;

use crate::driver::scripted::Answer;
use crate::rig::*;

#[test]
fn ohci_frm_1_the_first_start_of_frame_comes_a_frame_after_operational() {
    for before in [control::RESET, control::RESUME, control::SUSPEND] {
        let mut rig = cold(Speed::Full);
        rig.m.write32(reg::HCCA, rig.hcca);
        rig.write_control(before);
        rig.write_control(control::OPERATIONAL);
        rig.m.advance_micros(999);
        assert_eq!((rig.status() & int::SF, rig.frame_number()), (0, 0));
        rig.m.advance_micros(2);
        assert_eq!((rig.status() & int::SF, rig.frame_number()), (int::SF, 1));
        assert_eq!(rig.hcca_frame(), 1);
    }
}

#[test]
fn ohci_frm_2_a_second_has_a_thousand_frames() {
    let mut rig = running();
    let before = rig.frame_number();
    rig.m.now = rig.m.now.after_millis(1000);
    assert_eq!(rig.frame_number().wrapping_sub(before), 1000);
    for _ in 0..1000 {
        rig.m.advance_micros(997);
    }
    assert_eq!(rig.frame_number().wrapping_sub(before), 1997);
}

#[test]
fn ohci_frm_3_the_overflow_is_reported_twice_in_65536_frames() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::FNO);
    for expected in [0x8000, 0, 0x8000] {
        rig.m.write32(reg::INTERRUPT_STATUS, int::FNO);
        rig.m.interrupts.clear();
        rig.m.advance_millis(32_768 + 10);
        let (rose, _) = rig.m.interrupts[0];
        let late = rig.m.now.nanos_since(rose) / 1_000_000;
        let number = rig.frame_number().wrapping_sub(late as u16);
        assert_eq!(number, expected);
        assert_eq!(rig.m.interrupts.len(), 1);
    }
    // Also over frames that nobody looked at.
    rig.m.write32(reg::INTERRUPT_STATUS, int::FNO);
    rig.m.now = rig.m.now.after_millis(65_536);
    assert_ne!(rig.status() & int::FNO, 0);
}

#[test]
fn ohci_frm_4_every_frame_has_a_start_with_all_lists_off() {
    let mut rig = running();
    for _ in 0..50 {
        rig.m.write32(reg::INTERRUPT_STATUS, int::SF);
        assert_eq!(rig.status() & int::SF, 0);
        rig.frames(1);
        assert_eq!(rig.status() & int::SF, int::SF);
    }
}

#[test]
fn ohci_frm_5_the_remaining_time_falls_through_the_frame() {
    let mut rig = running();
    rig.m.advance_nanos(500_001);
    let number = rig.frame_number();
    let mut last = u32::MAX;
    for _ in 0..99 {
        let remaining = rig.m.read32(reg::FM_REMAINING) & 0x3fff;
        assert!(remaining <= 0x2edf && remaining <= last);
        last = remaining;
        rig.m.advance_micros(10);
    }
    assert_eq!(rig.frame_number(), number);
    assert!(last < 250);
}

#[test]
fn ohci_frm_6_the_interval_toggle_is_copied_at_the_boundary() {
    let mut rig = running();
    for toggle in [1 << 31, 0, 1 << 31] {
        rig.m.write32(reg::FM_INTERVAL, toggle | 0x2778_2edf);
        assert_ne!(rig.m.read32(reg::FM_REMAINING) & 1 << 31, toggle);
        rig.frames(1);
        assert_eq!(rig.m.read32(reg::FM_REMAINING) & 1 << 31, toggle);
    }
}

#[test]
fn ohci_frm_7_the_number_stands_still_outside_operational() {
    let mut rig = running();
    rig.frames(100);
    let number = rig.frame_number();
    rig.clear_status();
    for state in [control::SUSPEND, control::RESUME] {
        rig.write_control(state);
        rig.frames(50);
        assert_eq!((rig.frame_number(), rig.status()), (number, 0));
    }
}

#[test]
fn ohci_frm_8_the_periodic_list_follows_its_enable() {
    let mut rig = running();
    let tds = [rig.out(&[1; 8]), rig.out(&[2; 8]), rig.out(&[3; 8])];
    let ed = rig.endpoint_ed(BULK_OUT, &tds);
    rig.run_periodic(&[ed]);
    rig.disable(control::PLE);
    rig.frames(10);
    assert_eq!(rig.transfers(), 0);
    rig.enable(control::PLE);
    rig.frames(1);
    assert_eq!(rig.transfers(), 1);
    rig.disable(control::PLE);
    rig.frames(10);
    assert_eq!(rig.transfers(), 0);
}

#[test]
fn ohci_frm_9_lists_follow_their_enables() {
    for (enable, filled, head, bulk) in [
        (control::CLE, command::CLF, reg::CONTROL_HEAD_ED, false),
        (control::BLE, command::BLF, reg::BULK_HEAD_ED, true),
    ] {
        let mut rig = running();
        let tds = [rig.out(&[1; 8]), rig.out(&[2; 8])];
        let ed = rig.endpoint_ed(BULK_OUT, &tds);
        rig.device.answer(BULK_OUT, [Answer::Take(8), Answer::Nak]);
        rig.m.write32(head, ed);
        rig.m.write32(reg::COMMAND_STATUS, filled);
        rig.frames(3);
        assert_eq!(rig.transfers(), 0, "bulk: {bulk}");
        rig.enable(enable);
        assert_eq!(rig.transfers(), 2, "at once");
        rig.disable(enable);
        rig.frames(10);
        assert_eq!(rig.transfers(), 0);
        rig.enable(enable);
        assert_eq!(rig.cc(tds[1]), 0);
    }
}

#[test]
fn ohci_frm_10_control_and_bulk_share_by_the_service_ratio() {
    for cbsr in 0..4u32 {
        let mut rig = running();
        rig.write_control(control::OPERATIONAL | cbsr);
        let mut ed = |endpoint| {
            let tds: Vec<u32> = (0..2000).map(|_| rig.td(td::OUT, 0, 0)).collect();
            rig.endpoint_ed(endpoint, &tds)
        };
        let (control_ed, bulk_ed) = (ed(BULK_OUT), ed(SECOND_OUT));
        for (register, ed) in [(reg::CONTROL_HEAD_ED, control_ed), (reg::BULK_HEAD_ED, bulk_ed)] {
            rig.m.write32(register, ed);
        }
        rig.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
        rig.enable(control::CLE | control::BLE);
        let seen = rig.endpoints_seen();
        let control = seen.iter().filter(|endpoint| **endpoint == 1).count();
        let bulk = seen.len() - control;
        assert!(bulk > 100);
        let expected = bulk * (cbsr as usize + 1);
        assert!(control.abs_diff(expected) <= 4, "CBSR {cbsr}: {control} to {bulk}");
    }
    let mut rig = running();
    rig.write_control(control::OPERATIONAL | control::CBSR_3);
    let tds: Vec<u32> = (0..1000).map(|_| rig.td(td::OUT, 0, 0)).collect();
    let (idle, busy) = (rig.endpoint_ed(BULK_OUT, &[]), rig.endpoint_ed(SECOND_OUT, &tds));
    rig.run_control(&[idle]);
    rig.run_bulk(&[busy]);
    assert_eq!(rig.transfers(), 1000, "an idle control list costs bulk nothing");
}

#[test]
fn ohci_frm_11_a_list_without_work_stops() {
    let mut rig = running();
    for eds in [vec![], vec![rig.endpoint_ed(BULK_OUT, &[]), rig.endpoint_ed(SECOND_OUT, &[])]] {
        rig.run_control(&eds);
        rig.run_bulk(&eds);
        rig.frames(1);
        assert_eq!(rig.m.read32(reg::COMMAND_STATUS), 0);
        assert_eq!(rig.m.read32(reg::CONTROL_CURRENT_ED), 0);
        assert_eq!(rig.m.read32(reg::BULK_CURRENT_ED), 0);
    }
    assert_eq!(rig.transfers(), 0);
}

#[test]
fn ohci_frm_12_a_stopped_list_waits_for_its_doorbell() {
    let mut rig = running();
    let ed = rig.endpoint_ed(BULK_OUT, &[]);
    rig.run_bulk(&[ed]);
    rig.frames(2);
    rig.append(ed, [td::OUT, 0], 0);
    rig.frames(20);
    assert_eq!(rig.transfers(), 0);
    rig.ring_bulk();
    assert_eq!(rig.transfers(), 1);
}

#[test]
fn ohci_frm_13_a_td_that_waits_keeps_its_list_alive() {
    for answer in [Answer::Nak, Answer::Park, Answer::Pending] {
        let mut rig = running();
        let (td, _) = rig.buffered(td::IN, 8);
        let ed = rig.endpoint_ed(BULK_IN, &[td]);
        let parks = !matches!(answer, Answer::Nak);
        rig.device.answer(BULK_IN, [answer]);
        rig.run_control(&[ed]);
        rig.frames(10);
        assert_eq!(rig.m.read32(reg::COMMAND_STATUS), command::CLF);
        rig.device.answer(BULK_IN, [Answer::Data(vec![1; 8])]);
        if parks {
            rig.device.announce(BULK_IN);
        }
        rig.frames(1);
        assert_eq!(rig.cc(td), 0);
    }
}

#[test]
fn ohci_frm_14_the_driver_may_say_where_service_begins() {
    let mut rig = running();
    let tds = [rig.out(&[1; 8]), rig.out(&[2; 8])];
    let first = rig.endpoint_ed(BULK_OUT, &tds[..1]);
    let second = rig.endpoint_ed(SECOND_OUT, &tds[1..]);
    rig.link(&[first, second]);
    rig.m.write32(reg::CONTROL_HEAD_ED, first);
    rig.m.write32(reg::CONTROL_CURRENT_ED, second);
    rig.frames(3);
    rig.enable(control::CLE);
    assert_eq!(rig.endpoints_seen(), [2, 1]);
}

#[test]
fn ohci_frm_15_a_periodic_list_that_is_too_long_is_an_overrun() {
    let mut rig = running();
    // Longer than any frame can serve, without a circle; two slots of their own.
    let mut ends = Vec::new();
    for _ in 0..2 {
        let eds: Vec<u32> = (0..3000).map(|_| rig.m.alloc(16, 16)).collect();
        let head = rig.link(&eds);
        ends.push(head);
    }
    let first = rig.frame_number().wrapping_add(1) & 31;
    let heads = [(first, ends[0]), ((first + 1) & 31, ends[1])];
    for (slot, head) in heads {
        let tds = [rig.out(&[slot as u8; 4])];
        let word = rig.m.load(tds[0]);
        let toggle = if slot == first { td::DATA0 } else { td::DATA1 };
        rig.m.store(tds[0], word | toggle);
        let ed = rig.endpoint_ed(BULK_OUT, &tds);
        rig.m.store(ed + 12, head);
        rig.m.store(rig.hcca + 4 * u32::from(slot), ed);
    }
    rig.clear_status();
    rig.enable(control::PLE);
    rig.frames(1);
    assert_eq!(rig.device.take_received(BULK_OUT), [first as u8; 4]);
    rig.frames(1);
    assert_eq!(rig.device.take_received(BULK_OUT), [(first + 1) as u8 & 31; 4]);
    rig.frames(1);
    assert_eq!(rig.status() & (int::SO | int::UE), int::SO);
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS) & command::SOC, 2 << 16);
}
