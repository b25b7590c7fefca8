//! The periodic schedule: lists without end, and nodes that lead back.

use vm_usb::usb::Pid;

use super::rig::{ADDRESS, IN3, Rig};
use super::*;
use crate::driver::ehci::{FRAMES, HIGH_SPEED};
use crate::driver::scripted::Answer;

const FSTN: u32 = 3 << 1;
const SITD: u32 = 2 << 1;

#[test]
fn ehci_hg_5_6_circles_in_the_periodic_list_end() {
    for typ in 0..4u32 {
        let mut rig = Rig::new();
        let element = rig.driver.machine.alloc(0x80, 32);
        rig.store(element, element | typ << 1);
        if typ == 3 {
            rig.store(element + 4, element | typ << 1);
        }
        fill_frame_list(&mut rig, element | typ << 1);
        rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
        let busy = work(&mut rig, |rig| each_microframe(rig, 160));
        // Looked at twice: for something to do, and for when to look again.
        assert!(busy.most <= (8192 + 4096) * 4, "type {typ}: {busy:?}");
        let index = rig.read(reg::FRINDEX);
        rig.driver.machine.advance_millis(1);
        assert_eq!(rig.read(reg::FRINDEX), (index + 8) & 0x3fff);
        assert_eq!(rig.status() & (sts::SYSTEM_ERROR | sts::HALTED), 0);
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_6_thousands_of_save_place_nodes_are_one_saved_pointer() {
    // Each node's back path is the next one; then Restore nodes without a Save-Place before them.
    for back in [true, false] {
        let mut rig = Rig::new();
        let nodes = rig.driver.machine.alloc(0x20 * 3000, 32);
        for n in 0..3000 {
            let at = nodes + 0x20 * n;
            let next = (at + 0x20) | FSTN;
            rig.driver.machine.store_all(at, &[next, if back { next } else { TERMINATE }]);
        }
        rig.store(nodes + 0x20 * 2999, TERMINATE);
        fill_frame_list(&mut rig, nodes | FSTN);
        rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
        let nodes = work(&mut rig, |rig| each_microframe(rig, 32));
        assert!(nodes.most <= (8192 + 4096) * 4, "{nodes:?}");
        assert_eq!(rig.status() & (sts::SYSTEM_ERROR | sts::HALTED), 0);
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_7_a_back_path_of_another_type_is_taken_as_what_it_is() {
    for back in [0, SITD, TERMINATE] {
        let mut rig = Rig::new();
        let element = rig.driver.machine.alloc(0x80, 32);
        // Active as an iTD and as a siTD; on the way back both are passed over.
        rig.driver.machine.store_all(element, &[TERMINATE, 1 << 31 | ADDRESS as u32, 0xff, 1 << 7]);
        let node = rig.driver.machine.alloc(0x20, 32);
        let link = if back == TERMINATE { TERMINATE } else { element | back };
        rig.driver.machine.store_all(node, &[TERMINATE, link]);
        fill_frame_list(&mut rig, node | FSTN);
        rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
        let before = rig.driver.machine.bytes(element, 0x80);
        let work = work(&mut rig, |rig| each_microframe(rig, 32));
        assert!(work.most <= 4096 * 4, "{work:?}");
        assert_eq!(rig.driver.machine.bytes(element, 0x80), before, "{back:#x}");
        assert_eq!(rig.packets(), []);
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_28_frindex_is_written_while_halted_only() {
    let mut rig = Rig::new();
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    let running = work(&mut rig, |rig| {
        for n in 0..1000u32 {
            let before = rig.read(reg::FRINDEX);
            rig.write(reg::FRINDEX, n.wrapping_mul(0x1234_5679));
            assert_eq!(rig.read(reg::FRINDEX), before);
        }
    });
    assert_eq!(running.accesses, 0, "and moves no time");
    rig.halt();
    rig.write(reg::FRINDEX, !0);
    assert_eq!(rig.read(reg::FRINDEX) & !7, 0x3ff8, "14 bits");
    // Another size of the frame list while it is run: no frame is made up for.
    rig.resume();
    let sizes = work(&mut rig, |rig| {
        for n in 0..1000 {
            let command = rig.read(reg::USBCMD) & !0xc;
            rig.write(reg::USBCMD, command | (n % 4) << 2);
        }
        rig.microframes(8);
    });
    assert!(sizes.most <= 2 * 1024, "an empty list of 1,024 entries: {sizes:?}");
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_30_a_microframe_carries_what_a_bus_would() {
    let mut rig = Rig::new();
    // 1,000 interrupt queue heads in every microframe, all with data.
    let buffer = rig.buffer(64);
    let mut link = TERMINATE;
    let characteristics = rig.characteristics(IN3, 64);
    rig.controls.answer(IN3, vec![Answer::Data(vec![1; 64]); 5_000]);
    for _ in 0..1_000 {
        let mut queue = rig.driver.queue(characteristics | 1 << 14, 1 << 30 | 0xff, Some(1));
        rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)]);
        rig.store(queue.head, link);
        link = queue.head | QUEUE_HEAD;
    }
    fill_frame_list(&mut rig, link);
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    rig.packets();
    let full = work(&mut rig, |rig| rig.microframes(1));
    assert!(full.most <= 2 * 1024 * 40, "{full:?}");
    let bytes: usize = rig.packets().iter().map(|p| p.outcome.bytes).sum();
    assert!(bytes <= 2 * (7_500 + 64), "{bytes} bytes in at most two microframes");
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_31_absent_devices_in_every_microframe_fail_fast_and_quietly() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(64);
    let mut link = TERMINATE;
    for _ in 0..1_000 {
        let characteristics = 99 | 1 << 8 | HIGH_SPEED | 64 << 16;
        let mut queue = rig.driver.queue(characteristics, 1 << 30 | 0xff, Some(1));
        rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64).cerr(0)]);
        rig.store(queue.head, link);
        link = queue.head | QUEUE_HEAD;
    }
    fill_frame_list(&mut rig, link);
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    let mut lines = 0;
    let failing = work(&mut rig, |rig| {
        lines = crate::log::lines_of(|| each_microframe(rig, 80));
    });
    assert!(failing.most <= (8192 + 4096) * 24, "{failing:?}");
    assert!(lines <= 32, "{lines} lines");
    assert_eq!(rig.status() & sts::HALTED, 0);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_33_bases_that_change_while_the_schedules_run() {
    let mut rig = Rig::with(|ehci| ehci.with_64bit_addressing(true));
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    let lists = [rig.driver.frame_list, rig.driver.machine.alloc(4 * FRAMES, 0x1000)];
    for frame in 0..FRAMES {
        rig.store(lists[1] + 4 * frame, TERMINATE);
    }
    let ring = rig.read(reg::ASYNCLISTADDR);
    let changes = work(&mut rig, |rig| {
        for n in 0..500 {
            rig.write(reg::PERIODICLISTBASE, lists[n % 2]);
            rig.write(reg::ASYNCLISTADDR, 0xffff_ffe0);
            rig.microframes(1);
        }
    });
    assert!(changes.most <= 2 * 1024, "{changes:?}");
    assert_eq!(rig.read(reg::ASYNCLISTADDR), ring, "not while it runs");
    assert_eq!(rig.status() & (sts::HALTED | sts::SYSTEM_ERROR), 0);
    // A segment without RAM is a host system error at the next look.
    let segment = work(&mut rig, |rig| {
        rig.write(reg::CTRLDSSEGMENT, !0);
        rig.driver.machine.advance_millis(200);
    });
    assert!(segment.most <= 2 * 1024, "{segment:?}");
    let halted = rig.driver.take_events() & sts::SYSTEM_ERROR != 0;
    assert!(halted || rig.status() & sts::SYSTEM_ERROR != 0);
    rig.write(reg::CTRLDSSEGMENT, 0);
    assert_works_after_reset(rig);
}
