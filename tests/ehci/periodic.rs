//! The periodic schedule and interrupt queue heads (EHCI 4.6, 4.10.7): rules EHCI-PER.

use vm_usb::usb::Pid;

use crate::driver::ehci::{FRAMES, QUEUE_HEAD, Queue, TERMINATE, Td, cmd, reg, sts, token};
use crate::driver::scripted::Answer;
use crate::rig::{IN1, IN3, Rig, is_done, pattern};

/// The microframes in which endpoint IN 3 is polled, over `count` microframes from FRINDEX `from` on.
fn polls(rig: &mut Rig, from: u32, count: u32) -> Vec<u32> {
    rig.halt();
    rig.write(reg::FRINDEX, from);
    rig.packets();
    rig.resume();
    let mut polled = vec![];
    for n in 0..count {
        // Stand in the middle of the microframe.
        rig.driver.machine.advance_nanos(62_500);
        for _ in rig.packets() {
            polled.push(from + n);
        }
        rig.driver.machine.advance_nanos(62_500);
    }
    polled
}

/// An interrupt queue that always has a transfer waiting, linked in the entries given.
fn waiting_in(rig: &mut Rig, s_mask: u8, entries: impl IntoIterator<Item = u32>) -> Queue {
    let characteristics = rig.characteristics(IN3, 64);
    let mut queue = rig.driver.queue(characteristics, 1 << 30 | u32::from(s_mask), Some(1));
    let buffer = rig.buffer(64);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)]);
    for entry in entries {
        let at = rig.driver.frame_list + 4 * entry;
        rig.store(at, queue.head | QUEUE_HEAD);
    }
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    queue
}

#[test]
fn ehci_per_1_the_frame_list_is_indexed_by_frindex() {
    for (size, entries) in [(0u32, 1024u32), (1, 512), (2, 256)] {
        let mut rig = Rig::new();
        rig.halt();
        let command = rig.read(reg::USBCMD) & !0xc;
        rig.write(reg::USBCMD, command | size << 2);
        rig.resume();
        let entry = entries - 3;
        waiting_in(&mut rig, 0x04, [entry]);
        let from = (entry - 2) * 8;
        let expected = (0..2).map(|lap| (entry + lap * entries) * 8 + 2).collect::<Vec<_>>();
        let seen = polls(&mut rig, from, entries * 8 + 40);
        assert_eq!(seen, expected, "{entries} entries");
    }
}

#[test]
fn ehci_per_2_the_s_mask_says_when() {
    for s_mask in [0x01, 0x80, 0x55, 0xff, 0x2c] {
        let mut rig = Rig::new();
        waiting_in(&mut rig, s_mask, 0..FRAMES);
        let seen = polls(&mut rig, 0, 24);
        let expected: Vec<u32> = (0..24).filter(|n| s_mask >> (n & 7) & 1 != 0).collect();
        assert_eq!(seen, expected, "S-mask {s_mask:#x}");
    }
}

#[test]
fn ehci_per_3_nothing_is_read_behind_the_end() {
    let mut rig = Rig::new();
    let trap = rig.buffer(4096);
    for frame in 0..FRAMES {
        let at = rig.driver.frame_list + 4 * frame;
        rig.store(at, trap | QUEUE_HEAD | TERMINATE);
    }
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    let accesses = rig.driver.machine.record(20_000);
    let list = rig.driver.frame_list;
    assert!(accesses.iter().any(|a| a.touches(list, 4096)));
    assert!(!accesses.iter().any(|a| a.touches(trap, 4096)));
}

#[test]
fn ehci_per_4_mult_allows_several_packets_in_a_microframe() {
    let mut rig = Rig::new();
    let mut queue = rig.open_interrupt(IN3, 0x01, 3);
    let buffer = rig.buffer(4096);
    let data = pattern(64 * 7);
    rig.controls.answer(IN3, [Answer::Data(data.clone())]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64 * 7)])[0];
    rig.driver.machine.advance_millis(1);
    let lens: Vec<usize> = rig.packets().iter().map(|p| p.outcome.bytes).collect();
    assert_eq!(lens, [192], "three packets in one microframe");
    rig.driver.machine.advance_millis(2);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(rig.driver.machine.bytes(buffer, data.len()), data);

    rig.packets();
    rig.controls.answer(IN3, [Answer::Data(vec![1; 10]), Answer::Data(vec![2; 64])]);
    let qtds = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 192); 2]);
    while rig.token(qtds[0]) & token::ACTIVE != 0 {
        rig.microframes(1);
    }
    assert_ne!(rig.token(qtds[1]) & token::ACTIVE, 0, "one short packet ends the microframe");
}

#[test]
fn ehci_per_5_a_nak_leaves_no_trace() {
    let mut rig = Rig::new();
    let mut queue = rig.open_interrupt(IN3, 0x11, 1);
    let buffer = rig.buffer(64);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64).ioc()]);
    rig.driver.machine.advance_millis(2);
    rig.packets();
    rig.driver.take_events();
    let before = rig.driver.machine.bytes(queue.head, 0x60);
    let accesses = rig.driver.machine.record(10_000);
    assert_eq!(rig.packets().len(), 20, "two polls a frame");
    assert!(!accesses.iter().any(|a| a.write && a.touches(queue.head, 0x60)));
    assert_eq!(rig.driver.machine.bytes(queue.head, 0x60), before);
    assert_eq!(rig.driver.take_events(), 0);
}

#[test]
fn ehci_per_6_the_second_transfer_waits_for_its_turn() {
    let mut rig = Rig::new();
    let mut queue = rig.open_interrupt(IN3, 0x01, 1);
    let buffer = rig.buffer(64);
    rig.controls.answer(IN3, vec![Answer::Data(vec![1; 64]); 2]);
    let qtds = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64); 2]);
    while rig.token(qtds[0]) & token::ACTIVE != 0 {
        rig.microframes(1);
    }
    let first = rig.read(reg::FRINDEX);
    while rig.token(qtds[1]) & token::ACTIVE != 0 {
        rig.microframes(1);
    }
    assert_eq!(rig.read(reg::FRINDEX) / 8, first / 8 + 1);
}

#[test]
fn ehci_per_7_a_queue_head_without_s_mask_is_inert() {
    let mut rig = Rig::new();
    let placeholder = rig.driver.machine.alloc(0x60, 32);
    let queue = waiting_in(&mut rig, 0xff, []);
    rig.store(placeholder, queue.head | QUEUE_HEAD);
    rig.store(placeholder + 0x10, TERMINATE);
    rig.store(queue.head, TERMINATE);
    for frame in 0..FRAMES {
        let at = rig.driver.frame_list + 4 * frame;
        rig.store(at, placeholder | QUEUE_HEAD);
    }
    let before = rig.driver.machine.bytes(placeholder, 0x60);
    rig.packets();
    let accesses = rig.driver.machine.record(5_000);
    assert!(!accesses.iter().any(|a| a.touches(0, 0x1000)), "nothing at address 0");
    assert_eq!(rig.driver.machine.bytes(placeholder, 0x60), before);
    assert!(rig.packets().len() >= 39, "the queue head behind it works");
}

#[test]
fn ehci_per_8_switched_off_the_frame_list_is_not_read() {
    let mut rig = Rig::new();
    rig.driver.machine.advance_millis(2);
    let list = rig.driver.frame_list;
    let accesses = rig.driver.machine.record(50_000);
    assert!(!accesses.iter().any(|a| a.touches(list, 4096)));
}

#[test]
fn ehci_per_9_an_element_linked_two_microframes_ahead_is_in_time() {
    let mut rig = Rig::new();
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    // However long nothing happened before.
    for quiet in [0, 5, 300, 2_000] {
        rig.driver.machine.advance_millis(quiet);
        let index = rig.read(reg::FRINDEX);
        let due = index + 2;
        let characteristics = rig.characteristics(IN3, 64);
        let s_mask = 1 << (due & 7);
        let mut queue = rig.driver.queue(characteristics, 1 << 30 | s_mask, Some(1));
        let buffer = rig.buffer(64);
        rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)]);
        let entry = rig.driver.frame_list + 4 * ((due >> 3) & 1023);
        rig.packets();
        rig.store(entry, queue.head | QUEUE_HEAD);
        rig.microframes(4);
        assert_eq!(rig.packets().len(), 1, "after {quiet} ms of quiet");
        rig.store(entry, TERMINATE);
        rig.microframes(9);
    }
}

#[test]
fn ehci_per_10_after_a_pause_only_a_little_is_caught_up() {
    let mut rig = Rig::new();
    waiting_in(&mut rig, 0xff, 0..FRAMES);
    rig.set_frame_index(0);
    rig.driver.machine.advance_millis(10);
    rig.packets();
    rig.driver.machine.now = rig.driver.machine.now.after_millis(1_000);
    assert_eq!(rig.read(reg::FRINDEX), (1_010 * 8) & 0x3fff);
    let caught_up = rig.packets().len();
    assert!((1..=1_024).contains(&caught_up), "{caught_up} polls");
    assert!(rig.driver.machine.frames().skipped >= 8_000 - 1_024);
    rig.driver.machine.advance_millis(1);
    assert_eq!(rig.packets().len(), 8, "the system goes on");
}

#[test]
fn ehci_per_11_the_index_wraps_without_a_gap() {
    let mut rig = Rig::new();
    waiting_in(&mut rig, 0xff, 0..FRAMES);
    let seen = polls(&mut rig, 0x3ff8, 24);
    assert_eq!(seen, (0x3ff8..0x4010).collect::<Vec<_>>());
    assert_eq!(rig.read(reg::FRINDEX), 0x10);
    // And a queue head in entry 0 only is met once.
    let mut rig = Rig::new();
    waiting_in(&mut rig, 0x03, [0]);
    assert_eq!(polls(&mut rig, 0x3ff0, 32), [0x4000, 0x4001]);
}

#[test]
fn a_parked_interrupt_endpoint_costs_next_to_nothing_and_answers_when_it_is_ready() {
    let mut rig = Rig::new();
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let mut queue = rig.open_interrupt(IN3, 0x01, 1);
    let buffer = rig.buffer(64);
    rig.controls.answer(IN3, [Answer::Park, Answer::Data(vec![5; 8])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64).ioc()])[0];
    rig.driver.machine.advance_millis(2_500);
    let mut turns = 0;
    let end = rig.driver.machine.now.after_millis(10_000);
    while let Some(deadline) = rig.driver.machine.deadline().filter(|d| *d < end) {
        rig.driver.machine.now = deadline.max(rig.driver.machine.now);
        rig.driver.machine.run();
        turns += 1;
    }
    assert!(turns <= 20, "{turns} turns in ten seconds");
    assert_eq!(rig.packets().len(), 1, "asked once");
    rig.controls.announce(IN3);
    rig.driver.machine.run();
    rig.driver.machine.advance_micros(1_300);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(rig.driver.machine.bytes(buffer, 8), [5; 8]);
}

#[test]
fn a_queue_head_linked_without_a_word_is_found_in_a_quarter_of_the_quiet_time_or_half_a_second() {
    for (quiet, longest) in [(100, 25), (1_000, 250), (60_000, 500)] {
        let mut rig = Rig::new();
        rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
        let mut parked = rig.open_interrupt(IN3, 0x01, 1);
        let buffer = rig.buffer(64);
        rig.controls.answer(IN3, [Answer::Park, Answer::Data(vec![7; 8])]);
        rig.submit(&mut parked, &[Td::new(Pid::In, buffer, 64).ioc()]);
        rig.driver.machine.advance_millis(quiet);
        // Not a register is touched from here on.
        let mut second = rig.open_interrupt(IN3, 0x01, 1);
        let qtd = rig.submit(&mut second, &[Td::new(Pid::In, buffer, 64).ioc()])[0];
        rig.driver.machine.advance_millis(longest + 3);
        assert!(is_done(rig.token(qtd)), "after {quiet} ms");
    }
}

#[test]
fn microframes_count_as_run_when_something_is_due_and_as_skipped_when_missed() {
    let mut rig = Rig::new();
    let mut queue = rig.open_interrupt(IN3, 0x04, 1);
    let count = |rig: &mut Rig, millis| {
        let before = rig.driver.machine.frames();
        rig.driver.machine.advance_millis(millis);
        let after = rig.driver.machine.frames();
        (after.run - before.run, after.skipped - before.skipped)
    };
    assert_eq!(count(&mut rig, 1_000), (0, 0), "the schedule is on, and nothing is queued");
    let buffer = rig.buffer(64);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)]);
    assert_eq!(count(&mut rig, 100), (100, 0), "polled once in each frame");
    rig.controls.answer(IN3, [Answer::Park]);
    rig.driver.machine.advance_millis(1);
    assert_eq!(count(&mut rig, 1_000), (0, 0), "parked");
    // The device announces, and asks to be polled from now on; then the host is away for a second.
    rig.controls.announce(IN3);
    rig.driver.machine.advance_millis(1);
    rig.driver.machine.now = rig.driver.machine.now.after_millis(1_000);
    let (run, skipped) = count(&mut rig, 0);
    assert_eq!(run, 1_024 / 8);
    let most = 8_000 - 1_024;
    assert!((most - 8..=most).contains(&skipped), "{skipped}, from the first poll that was due");
}

#[test]
fn a_slow_endpoint_does_not_hold_up_the_other_schedule() {
    let mut rig = Rig::new();
    let mut slow = rig.open_interrupt(IN3, 0xff, 1);
    let buffer = rig.buffer(512);
    rig.controls.answer(IN3, [Answer::Pending]);
    rig.submit(&mut slow, &[Td::new(Pid::In, buffer, 64)]);
    rig.driver.machine.advance_millis(5);
    let mut bulk = rig.open(IN1, 4);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 512])]);
    let qtd = rig.submit(&mut bulk, &[Td::new(Pid::In, buffer, 512)])[0];
    rig.settle();
    assert!(is_done(rig.token(qtd)));
}
