//! Guests that change what the controller is at work on.

use std::sync::Mutex;

use vm_memory::GuestMemoryMmap;
use vm_usb::controller::{Context, HostController};
use vm_usb::ohci::Ohci;
use vm_usb::usb::Outcome;

use super::*;
use crate::driver::recorder::Recorder;
use crate::driver::scripted::{Answer, Seen};

/// A bulk IN transfer that the device has begun: the ED, the TD and its buffer.
fn begun(rig: &mut Rig) -> (u32, u32, u32) {
    rig.device.answer(BULK_IN, [Answer::Pending]);
    let (td, buffer) = rig.buffered(td::IN, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.transfers(), 1);
    (ed, td, buffer)
}

#[test]
fn ohci_hg_23_one_endpoint_has_one_transfer_in_flight() {
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Pending]);
    let (first, _) = rig.buffered(td::IN, 64);
    let (second, _) = rig.buffered(td::IN | td::DATA1, 64);
    let eds = [rig.endpoint_ed(BULK_IN, &[first]), rig.endpoint_ed(BULK_IN, &[second])];
    let asked = work(&mut rig, |rig| {
        rig.run_bulk(&eds);
        // The first is in all three lists.
        rig.run_periodic(&[eds[0]]);
        rig.m.store(eds[0] + 12, eds[1]);
        rig.m.write32(reg::CONTROL_HEAD_ED, eds[0]);
        rig.enable(control::CLE);
        rig.ring_control();
        rig.frames(5);
    });
    assert!(asked.most <= 32 * VISIT + FRAME, "{asked:?}");
    let pending = |seen: &&Seen| matches!(seen, Seen::Transfer { outcome, .. } if *outcome == Outcome::PENDING);
    assert_eq!(rig.device.take_seen().iter().filter(pending).count(), 1);
    rig.device.answer(BULK_IN, [Answer::Data(vec![1; 64]), Answer::Data(vec![2; 64])]);
    rig.device.announce(BULK_IN);
    rig.frames(5);
    assert_eq!((rig.cc(first), rig.cc(second)), (0, 0), "each in its turn");
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_24_a_td_of_two_eds_ends_for_each_of_them() {
    let mut rig = running();
    let td = rig.out(&[1; 8]);
    let eds = [rig.endpoint_ed(BULK_OUT, &[td]), rig.endpoint_ed(SECOND_OUT, &[])];
    rig.m.store(eds[1] + 8, td);
    let served = work(&mut rig, |rig| {
        rig.run_bulk(&eds);
        rig.frames(5);
    });
    assert!(served.most <= 1024 * VISIT + FRAME, "{served:?}");
    assert_eq!(rig.cc(td), 0);
    assert_works_after_reset(&mut rig);
}

#[test]
fn ohci_hg_25_a_descriptor_that_changes_meanwhile_is_another_transfer() {
    let mut rig = running();
    let (_, td, buffer) = begun(&mut rig);
    rig.m.store(td + 12, buffer + 31);
    rig.device.answer(BULK_IN, [Answer::Data(vec![7; 32])]);
    rig.device.announce(BULK_IN);
    let work = work(&mut rig, |rig| rig.frames(2));
    assert!(work.most <= 4 * VISIT + FRAME, "{work:?}");
    let seen = rig.device.take_seen();
    assert_eq!(seen[0], Seen::Cancel(BULK_IN), "{seen:?}");
    assert!(matches!(seen[1], Seen::Transfer { len: 32, .. }), "{seen:?}");
    assert_eq!(rig.cc(td), 0);
    assert_eq!(rig.m.bytes(buffer, 64), [[7; 32], [0; 32]].concat());
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_26_a_head_pointer_that_moves_on_drops_what_was_in_flight() {
    let mut rig = running();
    let (ed, td, buffer) = begun(&mut rig);
    let before = rig.m.bytes(td, 16);
    let dummy = rig.m.load(ed + 4);
    rig.m.store(ed + 8, dummy);
    rig.device.answer(BULK_IN, [Answer::Data(vec![7; 64])]);
    rig.device.announce(BULK_IN);
    let work = work(&mut rig, |rig| rig.frames(3));
    assert!(work.most <= 4 * VISIT + FRAME, "{work:?}");
    assert_eq!(rig.device.take_seen(), [Seen::Cancel(BULK_IN)]);
    assert_eq!((rig.m.bytes(td, 16), rig.m.bytes(buffer, 64)), (before, vec![0; 64]));
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_29_a_done_queue_that_bites_its_tail_is_the_drivers_trouble() {
    let mut rig = running();
    let tds = [rig.out(&[1; 8]), rig.out(&[2; 8])];
    let ed = rig.endpoint_ed(BULK_OUT, &tds);
    rig.run_bulk(&[ed]);
    rig.frames(1);
    // WDH is not acknowledged, and the first TD is queued again.
    let dummy = rig.m.load(ed + 4) & !0xf;
    let word = rig.m.load(tds[0]);
    rig.m.store(tds[0], word | td::NOT_ACCESSED);
    rig.m.store(tds[0] + 8, dummy);
    rig.m.store(ed + 8, tds[0]);
    let again = work(&mut rig, |rig| {
        rig.ring_bulk();
        rig.frames(3);
    });
    assert!(again.most <= 3 * VISIT + FRAME, "{again:?}");
    let acknowledged = work(&mut rig, |rig| {
        rig.clear_status();
        rig.frames(3);
    });
    assert!(acknowledged.most <= VISIT + FRAME, "{acknowledged:?}");
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_30_31_a_done_queue_that_nobody_takes_lives_in_guest_memory() {
    let mut rig = running();
    let first = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[first]);
    rig.run_bulk(&[ed]);
    rig.frames(1);
    assert_ne!(rig.status() & int::WDH, 0);
    let tds: Vec<u32> = (0..3000).map(|_| rig.td(td::OUT, 0, 0)).collect();
    let ed = rig.endpoint_ed(BULK_OUT, &tds);
    let retired = work(&mut rig, |rig| {
        rig.run_bulk(&[ed]);
        rig.frames(5);
    });
    assert!(retired.most <= 1024 * VISIT + FRAME, "{retired:?}");
    assert_eq!(rig.done_head() & !0xf, first, "the driver has not taken it");
    let taken = work(&mut rig, |rig| {
        rig.clear_status();
        rig.frames(1);
    });
    assert!(taken.most <= FRAME, "nothing is walked: {taken:?}");
    let mut at = rig.done_head() & !0xf;
    let mut count = 0;
    while at != 0 {
        count += 1;
        at = rig.next_td(at);
    }
    assert_eq!(count, 3000);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_45_without_bus_mastering_nothing_is_accessed() {
    let mut rig = running();
    let (ed, td, buffer) = begun(&mut rig);
    let before = (rig.m.bytes(ed, 16), rig.m.bytes(td, 16));
    rig.m.bus_master = false;
    rig.device.answer(BULK_IN, [Answer::Data(vec![7; 64])]);
    rig.device.announce(BULK_IN);
    let off = work(&mut rig, |rig| rig.frames(10));
    assert_eq!(off.accesses, 0);
    assert_eq!((rig.m.bytes(ed, 16), rig.m.bytes(td, 16)), before);
    rig.m.bus_master = true;
    rig.frames(2);
    assert_eq!((rig.cc(td), rig.m.bytes(buffer, 64)), (0, vec![7; 64]));
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_46_a_device_that_is_pulled_in_the_middle_is_told_first() {
    let mut rig = running();
    let (_, td, _) = begun(&mut rig);
    let device = rig.ports[0].detach().unwrap();
    let pulled = work(&mut rig, |rig| rig.frames(5));
    assert!(pulled.most <= 4 * VISIT + FRAME, "{pulled:?}");
    assert_eq!(rig.cc(td), 5, "nobody answers any more");
    rig.ports[0].attach(device).map_err(|refused| refused.reason).unwrap();
    rig.frames(1);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_47_two_processors_and_a_device_at_once() {
    let mut rig = running();
    let ed = rig.td_in_a_circle();
    rig.run_bulk(&[ed]);
    let (now, memory, device) = (rig.m.now, rig.m.memory.clone(), rig.device.clone());
    let controller = Mutex::new(&mut rig.m.controller);
    let hammer = |registers: &[(u64, u32)]| {
        for n in 0..500 {
            let (register, value) = registers[n % registers.len()];
            let recorder = Recorder::new(&memory);
            let now = now.after_micros(n as u64 * 3);
            let context = Context::new(&recorder, now);
            let mut controller = controller.lock().unwrap();
            let controller: &mut Ohci = &mut controller;
            controller.write(&context, register, &value.to_le_bytes());
            let mut data = [0; 4];
            controller.read(&context, register, &mut data);
            assert!(recorder.into_log().len() as u64 <= MOST_ACCESSES);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| hammer(&[(reg::COMMAND_STATUS, command::BLF), (reg::HCCA, 0x1_0000)]));
        scope
            .spawn(|| hammer(&[(PORT, port::PRS), (reg::INTERRUPT_STATUS, !0), (PORT, port::PSS)]));
        scope.spawn(|| (0..500).for_each(|_| device.announce(BULK_IN)));
    });
    rig.m.advance_millis(20);
    assert_eq!(HostController::<GuestMemoryMmap>::window(&rig.m.controller), 0x1000);
    assert_works_after_reset(&mut rig);
}
