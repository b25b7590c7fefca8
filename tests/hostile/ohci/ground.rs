//! Ground rules: what holds whatever the guest does.

use vm_usb::usb::Outcome;

use super::*;
use crate::driver::machine::RAM;
use crate::driver::scripted::{Answer, Seen};
use crate::log::lines_of;

/// Most accesses in one frame: [`MOST_ACCESSES`] has 33 of them.
const MOST_IN_A_FRAME: u64 = MOST_ACCESSES / 33;

#[test]
fn ohci_hg_48_all_of_it_at_once_fits_into_a_frames_budget() {
    let mut rig = running();
    let td = rig.td(td::OUT, 0, 0);
    let busy = rig.endpoint_ed(BULK_OUT, &[]);
    rig.m.store(td + 8, td);
    rig.m.store(busy + 8, td);
    // Lists that are long, busy and closed to a circle, on pages of their own.
    let control = scattered_eds(&mut rig, 3000);
    let bulk = scattered_eds(&mut rig, 3000);
    rig.link(&control);
    rig.link(&bulk);
    rig.m.store(control[2999] + 12, busy);
    rig.m.store(bulk[2999] + 12, busy);
    rig.m.store(busy + 12, bulk[0]);
    for slot in 0..32 {
        rig.m.store(rig.hcca + 4 * slot, bulk[slot as usize]);
    }
    rig.m.write32(reg::CONTROL_HEAD_ED, control[0]);
    rig.m.write32(reg::BULK_HEAD_ED, bulk[0]);
    let frames = work(&mut rig, |rig| {
        rig.enable(control::PLE | control::IE | control::CLE | control::BLE);
        for _ in 0..5 {
            rig.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
            rig.frames(1);
        }
    });
    assert!(frames.most <= MOST_IN_A_FRAME, "{frames:?}");
    assert!(frames.most > 3000, "there was something to do: {frames:?}");
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_48_a_mebibyte_is_offered_in_a_frame() {
    for (count, at_once) in [(127, true), (128, true), (129, false)] {
        let mut rig = running();
        let buffer = rig.m.alloc(0x2000, 0x1000);
        let tds: Vec<u32> = (0..count).map(|_| rig.td(td::OUT, buffer, buffer + 0x1fff)).collect();
        let ed = rig.endpoint_ed(BULK_OUT, &tds);
        let work = work(&mut rig, |rig| rig.run_bulk(&[ed]));
        assert!(work.most <= 129 * VISIT + FRAME, "{work:?}");
        let last = tds[count - 1];
        assert_eq!(rig.cc(last) == 0, at_once, "{count} of 8 KiB");
        rig.frames(1);
        assert_eq!(rig.cc(last), 0);
        assert_alive(&mut rig);
    }
}

#[test]
fn ohci_hg_49_at_the_limit_the_rest_waits_or_is_an_overrun() {
    let mut rig = running();
    // 1,024 periodic EDs are served, one more is an overrun.
    for (count, overrun) in [(1023, false), (1024, false), (1025, true)] {
        let mut eds: Vec<u32> = (1..count).map(|_| rig.endpoint_ed(BULK_OUT, &[])).collect();
        let td = rig.out(&[1; 8]);
        eds.push(rig.endpoint_ed(SECOND_OUT, &[td]));
        rig.run_periodic(&eds);
        rig.clear_status();
        let work = work(&mut rig, |rig| rig.frames(2));
        assert!(work.most <= 1024 + VISIT + FRAME, "{work:?}");
        assert_eq!(rig.status() & int::SO != 0, overrun, "{count}");
        assert_eq!(rig.cc(td) == 0, !overrun, "{count}");
    }
    rig.disable(control::PLE);
    // 4,096 EDs of the bulk list in a frame, the next one in the next.
    for (count, at_once) in [(4095, true), (4096, true), (4097, false)] {
        let mut eds: Vec<u32> = (1..count).map(|_| rig.endpoint_ed(BULK_OUT, &[])).collect();
        let td = rig.out(&[1; 8]);
        eds.push(rig.endpoint_ed(SECOND_OUT, &[td]));
        rig.disable(control::BLE);
        rig.frames(1);
        rig.run_bulk(&eds);
        assert_eq!(rig.cc(td) == 0, at_once, "{count}");
        rig.frames(1);
        assert_eq!(rig.cc(td), 0, "{count}");
    }
    assert_eq!(rig.status() & int::UE, 0, "neither is an error");
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_50_what_is_no_ram_is_an_error_and_no_access() {
    // Buffers too: behind RAM, across its end, and where BARs are.
    for (cbp, be) in [(RAM, RAM + 7), (RAM - 8, RAM + 7), (0xfebf_0000, 0xfebf_003f)] {
        let mut rig = running();
        let td = rig.td(td::OUT, cbp, be);
        let ed = rig.endpoint_ed(BULK_OUT, &[td]);
        let work = work(&mut rig, |rig| rig.run_bulk(&[ed]));
        assert!(work.most <= VISIT + FRAME, "{work:?}");
        assert_eq!((rig.cc(td), rig.transfers()), (0xf, 0));
        assert_dead_until_reset(&mut rig);
    }
}

#[test]
fn ohci_hg_51_a_descriptor_is_read_once_a_visit() {
    let mut rig = running();
    let td = rig.out(&[1; 200]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_periodic(&[ed]);
    let accesses = rig.m.record(1000);
    for structure in [ed, td] {
        let reads = accesses.iter().filter(|a| !a.write && a.touches(structure, 16));
        assert_eq!(reads.count(), 1, "{accesses:x?}");
    }
    assert_eq!(rig.transfers(), 1);
}

#[test]
fn ohci_hg_52_no_address_and_no_length_overflows() {
    let extremes = [0, 1, 0xfff, 0x1000, 0x7fff_ffff, 0x8000_0000, 0xffff_f000, 0xffff_ffff];
    for cbp in extremes {
        for be in extremes {
            let mut rig = running();
            let general = rig.td(td::IN, cbp, be);
            let bulk = rig.endpoint_ed(BULK_IN, &[general]);
            rig.device.answer(BULK_IN, vec![Answer::Data(vec![1; 9000]); 3]);
            rig.device.answer(ISO_IN, vec![Answer::Data(vec![1; 1500]); 3]);
            let frame = rig.frame_number().wrapping_add(1);
            let offsets = [be & 0x1fff, cbp & 0x1fff, 0x1fff];
            let td = iso_td(&mut rig, frame, (cbp, be), &offsets, 0xe000);
            let ed = iso_ed(&mut rig, ed::IN, &[td]);
            let work = work(&mut rig, |rig| {
                rig.run_periodic(&[ed]);
                rig.run_bulk(&[bulk]);
                rig.frames(3);
            });
            assert!(work.most <= 8 * VISIT + FRAME, "{cbp:#x} {be:#x}: {work:?}");
            assert_works_after_reset(&mut rig);
        }
    }
}

#[test]
fn ohci_hg_53_in_flight_is_one_transfer_for_each_endpoint() {
    let mut rig = running();
    let endpoints = [BULK_IN, SECOND_IN];
    let mut eds = Vec::new();
    for n in 0..1000 {
        let (td, _) = rig.buffered(td::IN, 16);
        eds.push(rig.endpoint_ed(endpoints[n % 2], &[td]));
    }
    for endpoint in endpoints {
        rig.device.answer(endpoint, vec![Answer::Pending; 2000]);
    }
    let work = work(&mut rig, |rig| {
        rig.run_bulk(&eds);
        rig.frames(5);
    });
    assert!(work.most <= 1000 * VISIT + FRAME, "{work:?}");
    let begun = |seen: &&Seen| matches!(seen, Seen::Transfer { outcome, .. } if *outcome == Outcome::PENDING);
    assert_eq!(rig.device.take_seen().iter().filter(begun).count(), 2);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_54_a_register_write_waits_for_no_device() {
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Pending]);
    let (td, _) = rig.buffered(td::IN, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    let before = rig.m.now;
    rig.run_bulk(&[ed]);
    rig.device.take_seen();
    let reset = work(&mut rig, |rig| rig.m.write32(reg::COMMAND_STATUS, command::HCR));
    assert_eq!((reset.calls, reset.accesses), (1, 0));
    assert_eq!(rig.device.take_seen(), [Seen::Cancel(BULK_IN)], "within the write");
    assert_eq!(rig.m.now, before);
    assert_works_after_reset(&mut rig);
}

#[test]
fn ohci_hg_55_there_is_one_deadline() {
    let mut rig = running();
    let second = work(&mut rig, |rig| {
        for _ in 0..1000 {
            for state in [control::SUSPEND, control::OPERATIONAL] {
                rig.m.write32(reg::CONTROL, state);
            }
            rig.m.write32(PORT, port::PRS);
        }
        rig.m.write32(reg::INTERRUPT_ENABLE, int::SF | int::MIE);
        rig.m.take_work();
        rig.frames(1000);
    });
    // A start of frame each millisecond, the end of one reset, and the test's own look at the end.
    assert!(second.calls <= 1003, "{second:?}");
    assert!(second.most <= 33 * FRAME, "{second:?}");
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_56_an_address_proves_nothing() {
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Pending]);
    let (td, buffer) = rig.buffered(td::IN, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    rig.device.take_seen();
    // The same places, another endpoint and another direction.
    rig.m.store(ed, ed::control(ADDRESS, 2, 64) | ed::OUT);
    rig.m.store(td, td::OUT | td::NOT_ACCESSED);
    rig.device.announce(BULK_IN);
    let work = work(&mut rig, |rig| rig.frames(2));
    assert!(work.most <= 4 * VISIT + FRAME, "{work:?}");
    assert!(rig.device.take_seen().contains(&Seen::Cancel(BULK_IN)));
    assert_eq!(rig.device.take_received(SECOND_OUT), [0; 64]);
    assert_eq!((rig.cc(td), rig.m.bytes(buffer, 64)), (0, vec![0; 64]));
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_57_the_log_has_a_limit_a_second() {
    let mut rig = running();
    for seconds in 1..=3 {
        let lines = lines_of(|| {
            for _ in 0..100 * seconds {
                rig.m.write32(PORT, port::PRS);
                rig.frames(10);
                rig.m.write32(reg::CONTROL, control::RESET);
                rig.m.write32(reg::CONTROL, control::OPERATIONAL);
            }
        });
        // 32 of the controller's and 32 of the device's, in each second that was begun.
        assert!((1..=64 * (seconds + 1)).contains(&lines), "{lines} lines in {seconds} s");
    }
    assert_works_after_reset(&mut rig);
}

#[test]
fn ohci_hg_58_after_an_unrecoverable_error_nothing_is_done() {
    let mut rig = running();
    rig.m.write32(reg::BULK_HEAD_ED, RAM);
    rig.enable(control::BLE | control::PLE | control::CLE);
    rig.ring_bulk();
    assert_ne!(rig.status() & int::UE, 0);
    let dead = work(&mut rig, |rig| {
        for _ in 0..1000 {
            rig.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
            rig.frames(1);
        }
    });
    assert_eq!(dead.accesses, 0);
    assert!(rig.m.deadline().is_none());
    assert_dead_until_reset(&mut rig);
}
