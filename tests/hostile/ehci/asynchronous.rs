//! The asynchronous schedule: rings that are none, and queues that never end.

use vm_usb::usb::Pid;

use super::rig::{ADDRESS, IN1, OUT1, OUT2, Rig, is_done};
use super::*;
use crate::driver::ehci::{HEAD, token};
use crate::driver::scripted::{Answer, Seen};

/// No RAM is here.
const NOWHERE: u32 = 0xfff0_0000;

#[test]
fn ehci_hg_1_2_3_rings_without_a_head_with_several_and_beside_the_start_end() {
    for links in [
        vec![(1, 0), (2, 0), (0, 0)],
        vec![(1, 0), (2, 0), (3, 0), (1, 0)],
        vec![(0, 0)],
        vec![(1, 0), (1, HEAD)],
        vec![(1, HEAD), (2, HEAD), (0, HEAD)],
        vec![(1, HEAD), (2, 0), (3, HEAD), (0, 0)],
    ] {
        let (mut rig, heads) = ring(&links);
        let idle = work(&mut rig, |rig| each_microframe(rig, 160));
        assert!(idle.most < heads.len() as u64 * 4 * LOOK, "{links:?}: {idle:?}");
        // Work in the last queue head of the cycle is still found.
        let qtd = give_work(&mut rig, *heads.last().unwrap());
        rig.driver.machine.advance_millis(1);
        assert!(is_done(rig.token(qtd)), "{links:?}");
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_4_every_element_of_the_asynchronous_list_is_a_queue_head() {
    for typ in 0..4 {
        let (mut rig, heads) = ring(&[(1, HEAD), (0, 0)]);
        rig.store(heads[0], heads[1] | typ << 1 | TERMINATE);
        let qtd = give_work(&mut rig, heads[1]);
        let work = work(&mut rig, |rig| rig.driver.machine.advance_millis(2));
        assert!(work.most <= VISIT + 8 * LOOK, "{work:?}");
        assert!(is_done(rig.token(qtd)), "type {typ}");
        assert_eq!(rig.status() & (sts::HALTED | sts::SYSTEM_ERROR), 0);
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_9_a_stream_of_empty_transfers_leaves_room_for_registers() {
    // A ring of qTDs that the guest makes active again as fast as it can: here, 4,000 of them.
    let mut rig = Rig::new();
    let mut queue = rig.unlinked(OUT1);
    let qtds = rig.submit(&mut queue, &[Td::new(Pid::Out, 0, 0); 4_000]);
    rig.driver.insert(&queue);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let stream = work(&mut rig, |rig| rig.driver.machine.advance_millis(2));
    assert!(stream.most < 256 * VISIT, "{stream:?}");
    assert!(stream.calls >= 4_000 / 256, "{stream:?}");
    assert!(is_done(rig.token(*qtds.last().unwrap())));
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_10_an_alternate_that_names_its_own_qtd_ends() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 0);
    let own = queue.dummy;
    rig.controls.answer(IN1, [Answer::Data(vec![1; 10])]);
    let work = work(&mut rig, |rig| {
        let td = Td::new(Pid::In, buffer, 512).alternate(own);
        assert_eq!(rig.submit(&mut queue, &[td]), [own]);
        rig.driver.machine.advance_millis(1);
    });
    assert!(work.most <= 2 * VISIT, "{work:?}");
    assert_eq!(rig.packets().len(), 1);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_21_a_transfer_into_its_own_queue_head_harms_nobody() {
    let mut rig = Rig::new();
    let mut queue = rig.open(IN1, 0);
    let target = queue.head;
    let mut image = vec![0xff; 0x44];
    // What the device sends makes the queue head lead nowhere.
    image[..4].copy_from_slice(&NOWHERE.to_le_bytes());
    rig.controls.answer(IN1, [Answer::Data(image)]);
    let work = work(&mut rig, |rig| {
        rig.submit(&mut queue, &[Td::new(Pid::In, target, 0x44)]);
        rig.driver.machine.advance_millis(3);
    });
    assert!(work.most <= 4 * VISIT, "{work:?}");
    rig.write(reg::USBCMD, cmd::RESET);
    assert_ne!(rig.status() & sts::HALTED, 0);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_22_23_a_queue_head_reused_while_its_transfer_is_pending() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 4);
    rig.controls.answer(IN1, [Answer::Pending]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
    rig.driver.machine.advance_millis(1);
    assert_eq!(rig.packets().len(), 1);
    // No doorbell: the guest simply makes another endpoint of it.
    let other = rig.characteristics(OUT2, 512);
    rig.store(queue.head + 4, other);
    let t = rig.overlay(&queue) & !(3 << 8);
    rig.store(queue.head + 0x18, t);
    let work = work(&mut rig, |rig| rig.driver.machine.advance_millis(2));
    assert!(work.most <= 2 * VISIT, "{work:?}");
    let seen = rig.controls.take_seen();
    assert!(seen.contains(&Seen::Cancel(IN1)), "{seen:?}");
    assert!(seen.iter().any(|s| matches!(s, Seen::Transfer { endpoint: 2, .. })), "{seen:?}");
    assert_eq!(rig.driver.machine.bytes(buffer, 512), [0; 512]);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_24_a_queue_head_or_a_qtd_in_two_places() {
    // One qTD is the first of two queue heads.
    let (mut rig, heads) = ring(&[(1, HEAD), (2, 0), (0, 0)]);
    let qtd = give_work(&mut rig, heads[1]);
    rig.store(heads[2] + 0x10, qtd);
    let shared = work(&mut rig, |rig| rig.driver.machine.advance_millis(1));
    assert!(shared.most <= 4 * VISIT, "{shared:?}");
    assert!(is_done(rig.token(qtd)));
    assert_works_after_reset(rig);
    // One queue head is in both schedules, with a transfer that the device has begun.
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    rig.controls.answer(IN1, vec![Answer::Pending; 100]);
    let mut queue = rig.driver.open(ADDRESS, 1, 512, 0);
    rig.store(queue.head + 8, 1 << 30 | 0xff);
    let link = rig.load(queue.head);
    fill_frame_list(&mut rig, queue.head | QUEUE_HEAD);
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    let both = work(&mut rig, |rig| {
        rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
        each_microframe(rig, 16);
    });
    // Each schedule leads through the ring, and gives up at its budget.
    assert!(both.most <= 2 * 8192 * LOOK, "{both:?}");
    assert_eq!(rig.load(queue.head), link, "and leaves the list as it is");
    let mut begun = 0i32;
    for seen in rig.controls.take_seen() {
        match seen {
            Seen::Transfer { .. } => begun += 1,
            Seen::Cancel(_) => begun -= 1,
            _ => {}
        }
        assert!((0..=2).contains(&begun), "one for each schedule at most");
    }
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_32_absent_and_silent_devices_by_the_hundred() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    for n in 0..600u32 {
        let address = if n % 2 == 0 { 100 } else { ADDRESS };
        let mut queue = rig.driver.open(address, 1, 512, 4 << 28);
        rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512).cerr(0)]);
    }
    rig.controls.answer(IN1, vec![Answer::Pending; 20_000]);
    let waiting = work(&mut rig, |rig| each_microframe(rig, 160));
    assert!(waiting.most <= 1024 * VISIT, "{waiting:?}");
    // Pushed out of what the controller remembers, a pending transfer is cancelled, not forgotten.
    let seen = rig.controls.take_seen();
    let cancelled = seen.iter().filter(|s| **s == Seen::Cancel(IN1)).count();
    assert!(cancelled != 0);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_16_packets_of_no_bytes_or_of_too_many() {
    for cerr in [0, 3] {
        let mut rig = Rig::new();
        let buffer = rig.buffer(512);
        let mut queue = rig.driver.open(ADDRESS, 1, 0, 0);
        let mut qtd = 0;
        let work = work(&mut rig, |rig| {
            qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512).cerr(cerr)])[0];
            rig.driver.machine.advance_millis(2);
        });
        assert!(work.most <= 4 * VISIT, "{work:?}");
        let t = rig.token(qtd);
        assert_eq!(t & 0xff & !token::PING, token::HALTED | token::ERROR, "CERR {cerr}");
        assert_eq!(rig.packets(), []);
        assert_works_after_reset(rig);
    }
    let mut rig = Rig::new();
    let buffer = rig.buffer(4096);
    let mut queue = rig.driver.open(ADDRESS, 1, 0x7ff, 0);
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 4096)]);
    rig.driver.machine.advance_millis(1);
    let largest = rig.controls.take_seen().into_iter().find_map(|seen| match seen {
        Seen::Transfer { max_packet, .. } => Some(max_packet),
        _ => None,
    });
    assert_eq!(largest, Some(1024));
    assert_works_after_reset(rig);
}
