//! Lists without end.

use super::*;

#[test]
fn ohci_hg_1_a_circle_in_the_control_or_bulk_list_ends_the_pass() {
    for length in [2, 3, 7, 100] {
        let mut rig = running();
        let eds = scattered_eds(&mut rig, length);
        rig.link(&eds);
        rig.m.store(eds[length - 1] + 12, eds[length / 2]);
        rig.m.write32(reg::CONTROL_HEAD_ED, eds[0]);
        rig.m.write32(reg::BULK_HEAD_ED, eds[0]);
        let idle = work(&mut rig, |rig| {
            rig.enable(control::CLE | control::BLE);
            rig.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
            rig.frames(3);
        });
        // Twice round each list finds the circle.
        assert!(idle.most <= 2 * 4 * length as u64 + FRAME, "{length}: {idle:?}");
        assert_eq!(rig.m.read32(reg::COMMAND_STATUS) & (command::CLF | command::BLF), 0);
        // What is to be done in a circle is done.
        let tds: Vec<u32> = (0..50).map(|_| rig.td(td::OUT, 0, 0)).collect();
        let busy = rig.endpoint_ed(BULK_OUT, &tds);
        rig.m.store(busy + 12, eds[0]);
        rig.m.store(eds[length - 1] + 12, busy);
        let served = work(&mut rig, |rig| {
            rig.ring_bulk();
            rig.frames(2);
        });
        assert!(served.most <= 50 * (8 * length as u64 + VISIT) + FRAME, "{length}: {served:?}");
        assert_eq!(rig.transfers(), 50);
        assert_eq!(rig.status() & int::UE, 0);
        assert_alive(&mut rig);
    }
}

#[test]
fn ohci_hg_2_a_circle_in_a_periodic_list_is_one_overrun_a_frame() {
    for length in [2, 3, 100] {
        let mut rig = running();
        let eds = scattered_eds(&mut rig, length);
        rig.run_periodic(&eds);
        rig.m.store(eds[length - 1] + 12, eds[0]);
        rig.frames(2);
        for _ in 0..5 {
            let before = rig.m.read32(reg::COMMAND_STATUS) & command::SOC;
            let frame = work(&mut rig, |rig| rig.frames(1));
            assert!(frame.most <= 4 * length as u64 + FRAME, "{length}: {frame:?}");
            let after = rig.m.read32(reg::COMMAND_STATUS) & command::SOC;
            assert_eq!(after, before.wrapping_add(1 << 16) & command::SOC, "one a frame");
        }
        assert_eq!(rig.status() & (int::SO | int::UE), int::SO);
        assert_alive(&mut rig);
    }
}

#[test]
fn ohci_hg_3_an_ed_that_follows_itself_is_a_circle() {
    let mut rig = running();
    let ed = scattered_eds(&mut rig, 1)[0];
    rig.m.store(ed + 12, ed);
    rig.m.write32(reg::CONTROL_HEAD_ED, ed);
    rig.m.write32(reg::BULK_HEAD_ED, ed);
    for slot in 0..32 {
        rig.m.store(rig.hcca + 4 * slot, ed);
    }
    let frames = work(&mut rig, |rig| {
        rig.enable(control::PLE | control::CLE | control::BLE);
        rig.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
        rig.frames(5);
    });
    assert!(frames.most <= 12 + FRAME, "{frames:?}");
    assert_eq!(rig.status() & (int::SO | int::UE), int::SO);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_4_a_hundred_thousand_eds_are_served_piece_by_piece() {
    let mut rig = running();
    let mut eds: Vec<u32> = (0..100_000).map(|_| rig.m.alloc(16, 16)).collect();
    let last = rig.out(&[1; 8]);
    eds.push(rig.endpoint_ed(BULK_OUT, &[last]));
    let served = work(&mut rig, |rig| {
        rig.run_bulk(&eds);
        rig.frames(100_000 / 4096 + 2);
    });
    assert!(served.most <= 2 * 4096 + VISIT + FRAME, "{served:?}");
    assert_eq!(rig.cc(last), 0);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_5_a_td_that_follows_itself_retires_a_bounded_number_of_times() {
    let mut rig = running();
    let ed = rig.td_in_a_circle();
    let at_once = work(&mut rig, |rig| rig.run_bulk(&[ed]));
    assert_eq!(rig.transfers(), 1024);
    assert!(at_once.most <= 1024 * VISIT + FRAME, "{at_once:?}");
    let later = work(&mut rig, |rig| rig.frames(3));
    assert!(rig.transfers() <= 3 * 1024);
    assert!(later.most <= 1024 * VISIT + FRAME, "{later:?}");
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_6_late_isochronous_tds_retire_256_a_frame() {
    let mut rig = running();
    rig.frames(200);
    let old = rig.frame_number() - 100;
    let buffer = rig.m.alloc(16, 16);
    let tds: Vec<u32> =
        (0..1000).map(|_| iso_td(&mut rig, old, (buffer, buffer + 7), &[0], 0xe000)).collect();
    let ed = iso_ed(&mut rig, ed::OUT, &tds);
    rig.run_periodic(&[ed]);
    for frame in 1..=4 {
        let work = work(&mut rig, |rig| rig.frames(1));
        assert!(work.most <= 256 * VISIT + FRAME, "{work:?}");
        let retired = tds.iter().filter(|td| rig.cc(**td) == 8).count();
        assert_eq!(retired, (256 * frame).min(1000));
    }
    assert_eq!(rig.transfers(), 0);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_7_transfers_of_no_bytes_count_too() {
    let mut rig = running();
    let tds: Vec<u32> = (0..5000).map(|_| rig.td(td::OUT, 0, 0)).collect();
    let ed = rig.endpoint_ed(BULK_OUT, &tds);
    let at_once = work(&mut rig, |rig| rig.run_bulk(&[ed]));
    assert_eq!(rig.transfers(), 1024);
    assert!(at_once.most <= 1024 * VISIT + FRAME, "{at_once:?}");
    rig.frames(4);
    assert_eq!(rig.transfers(), 5000 - 1024);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_8_packets_that_may_carry_nothing_end_in_an_error() {
    for endpoint in [BULK_OUT, BULK_IN] {
        let mut rig = running();
        let direction = if endpoint.is_in() { ed::IN } else { ed::OUT };
        let (td, _) = rig.buffered(0, 8);
        let ed = rig.ed(ed::control(ADDRESS, 1, 0) | direction, &[td]);
        let work = work(&mut rig, |rig| {
            rig.run_bulk(&[ed]);
            rig.frames(3);
        });
        assert!(work.most <= 3 * VISIT + FRAME, "{work:?}");
        assert_eq!((rig.cc(td), rig.halted(ed), rig.transfers()), (5, true, 0));
        assert_alive(&mut rig);
    }
}
