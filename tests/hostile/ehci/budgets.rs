//! The budgets of a turn: what is done at them, below them and above them.

use vm_usb::usb::{CompleteAnswer, Pid};

use super::rig::{ADDRESS, IN1, OUT1, OUT2, Rig, is_done};
use super::*;
use crate::driver::ehci::HEAD;
use crate::driver::scripted::{Answer, Seen};

/// `count` idle interrupt queue heads in a row on every microframe, and a busy one behind them; its qTD.
fn chain(rig: &mut Rig, count: u32) -> u32 {
    let mut queue = rig.open_interrupt(OUT2, 0xff, 1);
    let buffer = rig.buffer(64);
    let mut link = queue.head | QUEUE_HEAD;
    let characteristics = rig.characteristics(OUT1, 64);
    for _ in 0..count {
        let head = rig.driver.machine.alloc(0x60, 32);
        let words = [link, characteristics, 1 << 30 | 0xff, 0, TERMINATE, TERMINATE, 0];
        rig.driver.machine.store_all(head, &words);
        link = head | QUEUE_HEAD;
    }
    fill_frame_list(rig, link);
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0]
}

/// Switches the asynchronous schedule on, and lets it have the first turn in which it does anything.
fn first_turn(rig: &mut Rig) {
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | cmd::ASYNCHRONOUS);
    while rig.driver.machine.work.accesses == 0 {
        each_microframe(rig, 1);
    }
}

#[test]
fn ehci_hg_41_so_many_periodic_elements_a_microframe() {
    for (before, served) in [(1022, true), (1023, true), (1024, false)] {
        let mut rig = Rig::new();
        let qtd = chain(&mut rig, before);
        let work = work(&mut rig, |rig| each_microframe(rig, 160));
        assert!(work.most <= (8192 + 4096) * LOOK, "{work:?}");
        assert_eq!(is_done(rig.token(qtd)), served, "{before} before it");
        assert_eq!(rig.status() & (sts::SYSTEM_ERROR | sts::HALTED), 0);
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_42_so_many_queue_heads_of_the_ring_a_turn() {
    for (count, at_once) in [(1023, true), (1024, true), (1025, false)] {
        // Of a ring that keeps being busy at its end, so that the walk does not stop at its start.
        let links: Vec<(usize, u32)> =
            (0..count).map(|n| ((n + 1) % count, if n == 0 { HEAD } else { 0 })).collect();
        let (mut rig, heads) = ring(&links);
        rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
        let qtd = give_work(&mut rig, heads[count - 1]);
        rig.write(reg::ASYNCLISTADDR, heads[0]);
        let first = work(&mut rig, first_turn);
        assert!(first.most <= 1024 * LOOK + VISIT, "{first:?}");
        assert_eq!(is_done(rig.token(qtd)), at_once, "{count}");
        rig.driver.machine.advance_millis(2);
        assert!(is_done(rig.token(qtd)), "the next turn goes on there");
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_43_a_ring_without_work_is_walked_to_where_it_closes() {
    for count in [1, 2, 10, 200] {
        let links: Vec<(usize, u32)> = (0..count).map(|n| ((n + 1) % count, 0)).collect();
        let (mut rig, _) = ring(&links);
        let work = work(&mut rig, |rig| each_microframe(rig, 16));
        assert!(work.most <= 4 * (count as u64 + 2) * LOOK, "{count}: {work:?}");
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_44_so_many_transfers_a_turn_and_in_a_row() {
    let mut rig = Rig::new();
    let mut queue = rig.unlinked(OUT1);
    let qtds = rig.submit(&mut queue, &[Td::new(Pid::Out, 0, 0); 600]);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.driver.insert(&queue);
    let done = |rig: &Rig| qtds.iter().filter(|qtd| is_done(rig.token(**qtd))).count();
    for expected in [256, 512, 600] {
        let turn = work(&mut rig, |rig| rig.driver.machine.run());
        assert!(turn.most <= 256 * VISIT, "{turn:?}");
        assert_eq!(done(&rig), expected);
    }
    assert_works_after_reset(rig);
    // Two queues: neither waits for more than sixteen transfers of the other.
    let mut rig = Rig::new();
    let mut queues = [rig.unlinked(OUT1), rig.unlinked(OUT2)];
    for queue in &mut queues {
        rig.submit(queue, &[Td::new(Pid::Out, 0, 0); 100]);
        rig.driver.insert(queue);
    }
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.driver.machine.advance_millis(1);
    let endpoints: Vec<u8> = rig.packets().iter().map(|packet| packet.endpoint).collect();
    assert_eq!(endpoints.len(), 200);
    let longest = endpoints[..100].chunk_by(|a, b| a == b).map(<[u8]>::len).max();
    assert!(longest <= Some(17), "{longest:?}");
}

#[test]
fn ehci_hg_44_so_many_packets_of_a_split_endpoint_in_a_row() {
    let mut rig = super::translator::Rig::new();
    let mut queues = [rig.bulk(1, 64), rig.bulk(2, 64)];
    let buffer = rig.buffer(0x1000);
    for queue in &mut queues {
        rig.driver.submit(queue, &[Td::new(Pid::Out, buffer, 64 * 64)]);
    }
    rig.complete(vec![(CompleteAnswer::Ack, vec![]); 200]);
    rig.go();
    let work = work_of(&mut rig.driver.machine, |m| m.advance_millis(2));
    assert!(work.most <= 256 * VISIT, "{work:?}");
    let seen = rig.seen();
    let starts = seen.iter().filter(|seen| matches!(seen, super::translator::Seen::Start { .. }));
    let endpoints: Vec<u8> = starts.map(|seen| seen.token().endpoint).collect();
    assert_eq!(endpoints.len(), 128);
    let longest = endpoints[..64].chunk_by(|a, b| a == b).map(<[u8]>::len).max();
    assert_eq!(longest, Some(16));
}

#[test]
fn ehci_hg_45_half_a_mebibyte_a_turn() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(0x5000);
    let mut queue = rig.unlinked(OUT1);
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 0x5000); 60]);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.driver.insert(&queue);
    let mut total = 0;
    while total < 60 * 0x5000 {
        let turn = work(&mut rig, |rig| rig.driver.machine.run());
        assert!(turn.most <= 60 * VISIT, "{turn:?}");
        let moved = rig.controls.take_received(OUT1).len();
        assert!(moved < (512 << 10) + 0x5000, "{moved}");
        assert!(moved >= (512 << 10).min(60 * 0x5000 - total), "{moved}");
        total += moved;
    }
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_46_so_many_microframes_are_caught_up() {
    // An interrupt queue of 2,000 empty transfers, one a microframe.
    for (microframes, carried_out) in [(1023, 1023), (1024, 1024), (1025, 1024), (100_000, 1024)] {
        let mut rig = Rig::new();
        let mut queue = rig.open_interrupt(OUT2, 0xff, 1);
        let buffer = rig.buffer(64);
        let qtds = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64); 2_000]);
        rig.microframes(2);
        let done = |rig: &Rig| qtds.iter().filter(|qtd| is_done(rig.token(**qtd))).count();
        let before = done(&rig);
        let pause = work(&mut rig, |rig| {
            let now = rig.driver.machine.now;
            rig.driver.machine.now = now.after_micros(125 * microframes);
            rig.driver.machine.run();
        });
        assert!(pause.most <= 1024 * 40 + 4096 * LOOK, "{pause:?}");
        let caught_up = done(&rig) - before;
        assert!(caught_up.abs_diff(carried_out) <= 1, "{microframes}: {caught_up}");
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_47_48_so_many_queue_heads_wait_and_the_oldest_makes_room() {
    for (count, cancelled) in [(255, 0), (256, 0), (257, 1)] {
        let mut rig = Rig::new();
        let buffer = rig.buffer(512);
        rig.controls.answer(IN1, vec![Answer::Pending; count]);
        rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
        for _ in 0..count {
            let characteristics = rig.characteristics(IN1, 512);
            let mut queue = rig.driver.queue(characteristics, 1 << 30, None);
            rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
            rig.driver.insert(&queue);
        }
        assert_eq!(ADDRESS, rig.device.address);
        let first = work(&mut rig, first_turn);
        assert!(first.most <= count as u64 * VISIT, "{first:?}");
        let seen = rig.controls.take_seen();
        let cancels = seen.iter().filter(|seen| **seen == Seen::Cancel(IN1)).count();
        assert_eq!(cancels, cancelled, "{count}");
        assert_works_after_reset(rig);
    }
}
