//! The asynchronous schedule (EHCI 4.8, 4.9): rules EHCI-ASYNC.

use vm_usb::usb::Pid;

use crate::driver::ehci::{HEAD, QUEUE_HEAD, Td, cmd, reg, sts, token};
use crate::driver::scripted::Answer;
use crate::rig::{IN1, IN2, IN3, OUT1, OUT2, Packet, Rig, is_done, is_nak, pattern};

fn endpoints(packets: &[Packet]) -> Vec<(Pid, u8)> {
    packets.iter().map(|p| (p.pid, p.endpoint)).collect()
}

#[test]
fn ehci_async_1_the_ring_is_walked_in_order_from_asynclistaddr() {
    let mut rig = Rig::new();
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let buffer = rig.buffer(512);
    let mut queues = [OUT2, OUT1, IN1].map(|endpoint| rig.unlinked(endpoint));
    for queue in &queues {
        rig.driver.insert(queue);
    }
    rig.controls.answer(IN1, [Answer::Data(vec![1; 512])]);
    for (queue, pid) in queues.iter_mut().zip([Pid::Out, Pid::Out, Pid::In]) {
        rig.submit(queue, &[Td::new(pid, buffer, 512)]);
    }
    // The ring: head, IN 1, OUT 1, OUT 2. It starts at OUT 1.
    rig.write(reg::ASYNCLISTADDR, queues[1].head);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.settle();
    assert_eq!(endpoints(&rig.packets()), [(Pid::Out, 1), (Pid::Out, 2), (Pid::In, 1)]);
}

#[test]
fn ehci_async_2_t_in_a_horizontal_pointer_means_nothing() {
    let mut rig = Rig::new();
    let mut second = rig.open(OUT2, 0);
    let mut first = rig.open(OUT1, 0);
    let link = rig.load(first.head);
    rig.store(first.head, link | 1);
    let buffer = rig.buffer(64);
    rig.submit(&mut first, &[Td::new(Pid::Out, buffer, 64)]);
    rig.submit(&mut second, &[Td::new(Pid::Out, buffer, 64)]);
    rig.settle();
    assert_eq!(rig.packets().len(), 2);
}

#[test]
fn ehci_async_3_periodic_transfers_come_first_in_a_microframe() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut bulk = rig.open(OUT1, 0);
    let mut interrupt = rig.open_interrupt(IN3, 0xff, 1);
    rig.halt();
    rig.write(reg::FRINDEX, 0);
    rig.controls.answer(IN3, [Answer::Data(vec![1; 8])]);
    rig.submit(&mut bulk, &[Td::new(Pid::Out, buffer, 512)]);
    rig.submit(&mut interrupt, &[Td::new(Pid::In, buffer, 8)]);
    rig.resume();
    rig.settle();
    assert_eq!(endpoints(&rig.packets()), [(Pid::In, 3), (Pid::Out, 1)]);
}

#[test]
fn ehci_async_4_a_ring_of_its_idle_head_is_empty() {
    let mut rig = Rig::with(|ehci| ehci);
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let ring = rig.driver.ring;
    rig.store(ring, ring | QUEUE_HEAD);
    rig.write(reg::ASYNCLISTADDR, ring);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let before = rig.memory();
    let accesses = rig.driver.machine.record(2_000);
    assert!(accesses.iter().all(|a| !a.write), "nothing is written");
    assert_eq!(rig.memory(), before);
    assert_eq!(rig.status() & sts::RECLAMATION, 0);
    assert_eq!(rig.packets(), []);
}

#[test]
fn ehci_async_5_an_idle_ring_costs_one_walk_a_look() {
    let mut rig = Rig::new();
    const QUEUES: usize = 6;
    for _ in 0..QUEUES {
        rig.open(OUT1, 0);
    }
    rig.driver.machine.advance_millis(50);
    // Time enough for the longest interval between looks to be reached.
    let accesses = rig.driver.machine.record(1_000_000);
    assert!(accesses.iter().all(|a| !a.write));
    // A look a millisecond, each a walk of the ring with less than two dozen accesses a queue head.
    let looks = 1_000;
    assert!(accesses.len() < looks * (QUEUES + 2) * 24, "{} accesses", accesses.len());
    assert!(accesses.len() >= looks * QUEUES, "{} accesses", accesses.len());
}

#[test]
fn ehci_async_6_new_work_is_seen_within_a_millisecond_without_a_register_access() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(64);
    let mut queue = rig.open(OUT1, 0);
    for quiet in [0, 1, 3, 10, 100, 1_000] {
        rig.driver.machine.advance_millis(quiet);
        rig.packets();
        let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
        rig.driver.machine.advance_millis(1);
        assert_eq!(rig.packets().len(), 1, "after {quiet} ms of quiet");
        assert!(is_done(rig.token(qtd)));
    }
}

#[test]
fn a_ring_at_rest_for_seconds_is_looked_at_125_times_a_second() {
    let mut rig = Rig::new();
    rig.open(OUT1, 0);
    rig.driver.machine.advance_millis(10_000);
    let (mut looks, end) = (0, rig.driver.machine.now.after_millis(1_000));
    while let Some(deadline) = rig.driver.machine.deadline().filter(|deadline| *deadline < end) {
        rig.driver.machine.now = deadline.max(rig.driver.machine.now.after_nanos(100));
        rig.driver.machine.run();
        looks += 1;
    }
    assert!((120..=130).contains(&looks), "{looks} looks a second");
}

#[test]
fn ehci_async_7_two_busy_queues_take_turns() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(4096);
    let mut queues = [OUT1, OUT2].map(|endpoint| rig.open(endpoint, 0));
    // Without park mode, as a driver leaves it.
    rig.halt();
    for queue in &mut queues {
        rig.submit(queue, &[Td::new(Pid::Out, buffer, 4096); 20]);
    }
    rig.resume();
    rig.driver.machine.advance_millis(1);
    let packets = rig.packets();
    assert_eq!(packets.len(), 40);
    let mut ahead = 0i32;
    for packet in packets {
        ahead += if packet.endpoint == 1 { 1 } else { -1 };
        assert!(ahead.abs() <= 1, "neither is more than one qTD ahead");
    }
}

#[test]
fn ehci_async_8_an_endpoint_that_naks_is_asked_a_few_times_and_others_go_on() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut nak = rig.open(IN1, 4);
    let mut other = rig.open(OUT2, 4);
    rig.submit(&mut nak, &[Td::new(Pid::In, buffer, 512)]);
    rig.driver.machine.advance_millis(5);
    rig.packets();
    rig.driver.machine.run();
    let asked = rig.packets().iter().filter(|p| is_nak(p.outcome)).count();
    assert!(asked <= 8, "asked {asked} times in one start of the schedule");
    rig.driver.machine.advance_millis(2);
    assert_ne!(rig.packets().len(), 0, "asked again later");
    let qtd = rig.submit(&mut other, &[Td::new(Pid::Out, buffer, 512)])[0];
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
    let count = rig.load(nak.head + 0x14) >> 1 & 0xf;
    assert!(count <= 4, "NakCnt counts down from RL: {count}");
}

#[test]
fn ehci_async_9_naks_leave_no_trace() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, vec![Answer::Nak; 7]);
    let data = pattern(512);
    rig.controls.answer(IN1, [Answer::Data(data.clone())]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)])[0];
    rig.driver.machine.advance_millis(5);
    let packets = rig.packets();
    assert_eq!(packets.len(), 8);
    assert!(packets.iter().take(7).all(|p| is_nak(p.outcome)));
    let t = rig.token(qtd);
    assert_eq!(token::cerr(t), 3);
    assert_eq!(t & 0xff, 0);
    assert_eq!(rig.driver.machine.bytes(buffer, 512), data);
}

#[test]
fn ehci_async_10_a_halted_queue_head_is_passed_by() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut last = rig.open(OUT2, 0);
    let mut halted = rig.open(IN2, 0);
    let mut first = rig.open(OUT1, 0);
    rig.store(halted.head + 0x18, token::HALTED);
    let qtd = rig.submit(&mut halted, &[Td::new(Pid::In, buffer, 512)])[0];
    let before = rig.driver.machine.bytes(halted.head, 0x60);
    rig.submit(&mut first, &[Td::new(Pid::Out, buffer, 512)]);
    rig.submit(&mut last, &[Td::new(Pid::Out, buffer, 512)]);
    rig.driver.machine.advance_millis(1);
    assert_eq!(endpoints(&rig.packets()), [(Pid::Out, 1), (Pid::Out, 2)]);
    assert_eq!(rig.driver.machine.bytes(halted.head, 0x60), before);
    assert_ne!(rig.token(qtd) & token::ACTIVE, 0);
}

/// Has the schedule start with a ring of its own, of one queue head that is also the head, with transfers of 64 bytes:
/// the queue head and its qTDs.
fn start_alone(rig: &mut Rig, transfers: usize) -> (u32, Vec<u32>) {
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let mut alone = rig.unlinked(OUT1);
    rig.store(alone.head, alone.head | QUEUE_HEAD);
    rig.store(alone.head + 4, alone.characteristics | HEAD);
    let buffer = rig.buffer(64);
    let qtds = rig.submit(&mut alone, &vec![Td::new(Pid::Out, buffer, 64); transfers]);
    rig.write(reg::ASYNCLISTADDR, alone.head);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    (alone.head, qtds)
}

#[test]
fn ehci_async_11_a_new_list_address_counts_when_the_schedule_starts_again() {
    let mut rig = Rig::new();
    let (head, qtds) = start_alone(&mut rig, 1);
    rig.settle();
    assert!(is_done(rig.token(qtds[0])));
    assert_eq!(rig.read(reg::ASYNCLISTADDR), head);
}

#[test]
fn ehci_async_12_off_and_on_loses_nothing() {
    let mut rig = Rig::new();
    let data = pattern(3_000);
    let to = rig.buffer_of(&data);
    let from = rig.buffer(3_000);
    let (mut out, mut r#in) = (rig.open(OUT1, 0), rig.open(IN1, 4));
    // Answers in small portions with NAKs between, so that the schedule is off in the middle.
    for _ in 0..6 {
        rig.controls.answer(OUT1, [Answer::Take(512), Answer::Nak]);
    }
    rig.controls.answer(IN1, [Answer::Nak, Answer::Data(data.clone())]);
    let out = rig.submit(&mut out, &[Td::new(Pid::Out, to, 3_000)])[0];
    let r#in = rig.submit(&mut r#in, &[Td::new(Pid::In, from, 3_000)])[0];
    for _ in 0..20 {
        rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
        rig.driver.machine.advance_micros(200);
        rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
        rig.driver.machine.advance_micros(20);
    }
    rig.driver.machine.advance_millis(5);
    assert!(is_done(rig.token(out)) && is_done(rig.token(r#in)));
    assert_eq!(rig.controls.take_received(OUT1), data);
    assert_eq!(rig.driver.machine.bytes(from, 3_000), data);
}

#[test]
fn ehci_async_13_a_queue_head_linked_to_itself_works() {
    let mut rig = Rig::new();
    let (_, qtds) = start_alone(&mut rig, 30);
    rig.driver.machine.advance_millis(1);
    assert!(qtds.iter().all(|qtd| is_done(rig.token(*qtd))));
    assert_eq!(rig.packets().len(), 30);
}

/// Two queues with eight qTDs each, the first ones given their work at once; which endpoint was served
/// when.
fn order_with_park(park: u32, tds: usize) -> Vec<u8> {
    let mut rig = Rig::new();
    let command = rig.read(reg::USBCMD) & !0xb00;
    rig.write(reg::USBCMD, command | park);
    let buffer = rig.buffer(512);
    let mut queues = [OUT1, OUT2].map(|endpoint| rig.open(endpoint, 0));
    rig.halt();
    for queue in &mut queues {
        rig.submit(queue, &vec![Td::new(Pid::Out, buffer, 512); tds]);
    }
    rig.resume();
    rig.driver.machine.advance_millis(1);
    rig.packets().iter().map(|p| p.endpoint).collect()
}

/// How often in a row the same endpoint was served.
fn rows(order: &[u8]) -> Vec<usize> {
    order.chunk_by(|a, b| a == b).map(<[u8]>::len).collect()
}

#[test]
fn ehci_async_14_park_mode_gives_a_queue_head_some_packets_in_a_row() {
    const ENABLE: u32 = 1 << 11;
    for (park, row) in [(0, 1), (3 << 8, 1), (ENABLE, 1), (ENABLE | 1 << 8, 1)] {
        assert_eq!(rows(&order_with_park(park, 4)), vec![row; 8], "{park:#x}");
    }
    assert_eq!(rows(&order_with_park(ENABLE | 2 << 8, 4)), [2; 4]);
    assert_eq!(rows(&order_with_park(ENABLE | 3 << 8, 6)), [3; 4]);
    // It ends early with the work.
    assert_eq!(rows(&order_with_park(ENABLE | 3 << 8, 4)), [3, 3, 1, 1]);
}
