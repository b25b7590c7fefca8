//! Split transactions of queue heads (EHCI 4.12.1, 4.12.2): rules EHCI-SPLIT.

use vm_usb::usb::{CompleteAnswer, Pid, Readiness, StartAnswer, TransferType};

use crate::driver::ehci::{CONTROL, DTC, LOW_SPEED, Td, sts, token};
use crate::rig::{is_done, pattern};
use crate::translator::{DEVICE, HUB, PORT, Rig, Seen, data, part, plain};

/// Token bit 1: the start-split is out.
const COMPLETING: u32 = 1 << 1;
/// Token bit 0: the translator said ERR.
const ERR: u32 = 1;

#[test]
fn ehci_split_1_the_tokens_say_who_and_what() {
    for (flags, kind, low) in [
        (CONTROL, TransferType::Control, false),
        (0, TransferType::Bulk, false),
        (CONTROL | LOW_SPEED, TransferType::Control, true),
    ] {
        let mut rig = Rig::new();
        let (characteristics, capabilities) = rig.words(1, 8, false, 0);
        let mut queue = rig.driver.queue(characteristics | flags | DTC, capabilities, None);
        rig.driver.insert(&queue);
        let buffer = rig.buffer(8);
        rig.driver.submit(&mut queue, &[Td::new(Pid::Out, buffer, 8)]);
        rig.go();
        rig.microframes(1);
        let seen = rig.seen();
        assert!(matches!(seen[0], Seen::Start { .. }) && matches!(seen[1], Seen::Complete { .. }));
        for packet in seen {
            let t = packet.token();
            assert_eq!((t.hub, t.port, t.device, t.endpoint), (HUB, PORT, DEVICE, 1));
            assert_eq!((t.transfer_type, t.low_speed, t.pid), (kind, low, Pid::Out));
        }
    }
}

#[test]
fn ehci_split_2_start_then_complete_packet_by_packet() {
    let mut rig = Rig::new();
    let mut queue = rig.bulk(1, 64);
    let bytes = pattern(74);
    let buffer = rig.buffer(74);
    rig.driver.machine.fill(buffer, &bytes);
    let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::Out, buffer, 74)])[0];
    rig.complete([plain(CompleteAnswer::Nyet)]);
    rig.go();
    let t = rig.overlay(&queue);
    assert_ne!(t & COMPLETING, 0, "the translator has it");
    assert_eq!(token::total(t), 74);
    rig.complete(vec![plain(CompleteAnswer::Ack); 2]);
    rig.microframes(2);
    assert!(is_done(rig.load(qtd + 8)));
    assert_eq!(rig.load(qtd + 8) & (COMPLETING | token::TOGGLE), 0, "two packets");
    let sent: Vec<(usize, bool)> = rig
        .seen()
        .iter()
        .filter_map(|seen| match seen {
            Seen::Start { data, toggle, .. } => Some((data.len(), toggle.bit())),
            Seen::Complete { .. } => None,
        })
        .collect();
    assert_eq!(sent, [(64, false), (10, true)]);
}

#[test]
fn ehci_split_3_not_yet_is_no_error() {
    let mut rig = Rig::new();
    let mut queue = rig.bulk(1, 64);
    let buffer = rig.buffer(64);
    rig.start([StartAnswer::Nak]);
    rig.driver.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)]);
    rig.go();
    let t = rig.overlay(&queue);
    assert_eq!(t & (COMPLETING | token::ERROR), 0);
    assert_eq!(token::cerr(t), 3);
    rig.microframes(3);
    let seen: Vec<char> = rig.brief().iter().map(|(kind, _)| *kind).collect();
    assert_eq!(seen[..4], ['S', 'S', 'C', 'C'], "NAK: start again; NYET: complete again");
    assert_ne!(rig.overlay(&queue) & COMPLETING, 0);
    assert_eq!(rig.driver.take_events(), 0);
}

#[test]
fn ehci_split_4_nak_begins_again() {
    let mut rig = Rig::new();
    let mut queue = rig.bulk(1, 64);
    let buffer = rig.buffer(64);
    rig.complete([plain(CompleteAnswer::Nak(Readiness::Poll)), data(&[5; 64])]);
    let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)])[0];
    rig.go();
    let t = rig.overlay(&queue);
    assert_eq!(t & (COMPLETING | token::ERROR), 0);
    rig.microframes(2);
    let seen: Vec<char> = rig.brief().iter().map(|(kind, _)| *kind).collect();
    assert_eq!(seen, ['S', 'C', 'S', 'C']);
    assert!(is_done(rig.load(qtd + 8)));
    assert_eq!(rig.bytes(buffer, 64), [5; 64]);

    let mut rig = Rig::new();
    let (characteristics, capabilities) = rig.words(0, 8, false, 0);
    let mut queue = rig.driver.queue(characteristics | CONTROL | DTC, capabilities, None);
    rig.driver.insert(&queue);
    rig.complete([plain(CompleteAnswer::Nak(Readiness::Poll))]);
    let buffer = rig.buffer(8);
    rig.driver.submit(&mut queue, &[Td::new(Pid::Setup, buffer, 8)]);
    rig.go();
    let t = rig.overlay(&queue);
    assert_ne!(t & token::ERROR, 0, "SETUP cannot be refused");
    assert_eq!((token::cerr(t), t & COMPLETING), (2, 0));
}

#[test]
fn ehci_split_5_silence_counts_and_halts() {
    let unanswered = [
        (vec![StartAnswer::Silence; 3], vec![]),
        (vec![], vec![plain(CompleteAnswer::Silence); 3]),
    ];
    for (starts, completes) in unanswered {
        let mut rig = Rig::new();
        let mut queue = rig.bulk(1, 64);
        let buffer = rig.buffer(64);
        rig.start(starts);
        rig.complete(completes);
        let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)])[0];
        rig.go();
        assert_eq!(token::cerr(rig.overlay(&queue)), 2);
        rig.microframes(4);
        let t = rig.load(qtd + 8);
        assert_eq!(t & 0xf8, token::HALTED | token::ERROR);
        assert_eq!(token::cerr(t), 0);
        assert_eq!(rig.driver.take_events(), sts::ERROR);
    }
}

#[test]
fn ehci_split_6_stall() {
    let mut rig = Rig::new();
    let mut queue = rig.bulk(1, 64);
    let buffer = rig.buffer(64);
    rig.complete([plain(CompleteAnswer::Stall)]);
    let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)])[0];
    rig.go();
    rig.microframes(2);
    let t = rig.load(qtd + 8);
    assert_ne!(t & token::HALTED, 0);
    assert_ne!(token::cerr(t), 0);
}

#[test]
fn ehci_split_7_there_is_no_ping() {
    let mut rig = Rig::new();
    let mut queue = rig.bulk(1, 64);
    let buffer = rig.buffer(64);
    rig.complete([plain(CompleteAnswer::Nak(Readiness::Poll)), plain(CompleteAnswer::Silence)]);
    rig.driver.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)]);
    rig.go();
    rig.microframes(1);
    assert_eq!(rig.overlay(&queue) & token::PING, 0, "bit 0 is ERR here");
    let all_with_data = rig.seen().iter().all(|seen| match seen {
        Seen::Start { data, .. } => data.len() == 64,
        Seen::Complete { .. } => true,
    });
    assert!(all_with_data, "each start-split carries the data");
}

#[test]
fn ehci_split_8_interrupt_splits_keep_to_their_masks() {
    let mut rig = Rig::new();
    let mut queue = rig.interrupt(1, 0x01, 0x1c);
    let buffer = rig.buffer(64);
    rig.complete([plain(CompleteAnswer::Nyet), data(&[7; 8])]);
    let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8)])[0];
    rig.go();
    rig.microframes(16);
    assert_eq!(rig.brief(), [('S', 0), ('C', 2), ('C', 3)]);
    assert!(is_done(rig.load(qtd + 8)));
    assert_eq!(rig.bytes(buffer, 8), [7; 8]);
}

#[test]
fn ehci_split_9_an_interrupt_nak_waits_for_the_next_period() {
    let mut rig = Rig::new();
    let mut queue = rig.interrupt(1, 0x01, 0x1c);
    let buffer = rig.buffer(64);
    rig.complete([plain(CompleteAnswer::Nak(Readiness::Poll))]);
    rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8).ioc()]);
    rig.go();
    rig.microframes(7);
    assert_eq!(rig.brief(), [('S', 0), ('C', 2)]);
    let t = rig.overlay(&queue);
    assert_eq!(t & 0x7f, 0, "no status, DoStart");
    assert_eq!(token::cerr(t), 3);
    assert_eq!(rig.driver.take_events(), 0);
    rig.microframes(2);
    assert_eq!(rig.brief(), [('S', 0)]);
}

#[test]
fn ehci_split_10_no_result_by_the_last_complete_split_is_an_error() {
    let mut rig = Rig::new();
    let mut queue = rig.interrupt(1, 0x01, 0x1c);
    let buffer = rig.buffer(64);
    rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8)]);
    rig.go();
    rig.microframes(5);
    assert_eq!(rig.brief(), [('S', 0), ('C', 2), ('C', 3), ('C', 4)]);
    let t = rig.overlay(&queue);
    assert_eq!(t & (token::ERROR | COMPLETING), token::ERROR);
    assert_eq!(token::cerr(t), 2);
}

#[test]
fn ehci_split_11_a_packet_in_parts() {
    let mut rig = Rig::new();
    let mut queue = rig.interrupt(1, 0x01, 0x1c);
    let buffer = rig.buffer(64);
    let bytes = pattern(50);
    rig.complete([part(&bytes[..30]), data(&bytes[30..])]);
    let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)])[0];
    rig.go();
    rig.microframes(2);
    assert_eq!(rig.load(queue.head + 0x24) >> 5 & 0x7f, 30, "S-bytes");
    assert_eq!(token::total(rig.overlay(&queue)), 64, "nothing counts yet");
    rig.microframes(1);
    let t = rig.load(qtd + 8);
    assert!(is_done(t));
    assert_eq!(token::total(t), 14);
    assert_ne!(t & token::TOGGLE, 0, "one packet");
    assert_eq!(rig.bytes(buffer, 50), bytes);
}

#[test]
fn ehci_split_12_err() {
    let mut rig = Rig::new();
    let mut queue = rig.interrupt(1, 0x01, 0x1c);
    let buffer = rig.buffer(64);
    rig.complete([plain(CompleteAnswer::Err)]);
    rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8)]);
    rig.go();
    rig.microframes(3);
    let t = rig.overlay(&queue);
    assert_eq!(t & (ERR | COMPLETING | token::ACTIVE), ERR | token::ACTIVE);
    assert_eq!(token::cerr(t), 2);
}

/// An interrupt queue head in the middle of a split of frame `frame`: nothing completed yet.
fn in_the_middle(rig: &mut Rig, pid: Pid, frame: u32) -> crate::driver::ehci::Queue {
    let mut queue = rig.interrupt(1, 0x01, 0x1c);
    let buffer = rig.buffer(64);
    let td = Td::new(pid, buffer, 8);
    let qtd = rig.driver.submit(&mut queue, &[td])[0];
    rig.store(queue.head + 0x0c, qtd);
    rig.store(queue.head + 0x1c, buffer);
    rig.store(queue.head + 0x24, frame & 0x1f);
    rig.store(queue.head + 0x18, td.token() | COMPLETING);
    queue
}

#[test]
fn ehci_split_13_a_missed_complete_split() {
    // Found first in microframe 3, though 2 was due; and in microframe 0, where a start is due.
    for (index, pid) in [(3, Pid::In), (3, Pid::Out), (8, Pid::In)] {
        let mut rig = Rig::new();
        let queue = in_the_middle(&mut rig, pid, 0);
        rig.halt(index & !7);
        // PSE counts from a frame boundary on: the frame of the index begins before it.
        let list = rig.driver.frame_list;
        let entry = rig.load(list + 4 * (index >> 3));
        rig.store(list + 4 * (index >> 3), 1);
        rig.go();
        if index & 7 == 0 {
            rig.store(list + 4 * (index >> 3), entry);
            rig.halt(index);
            rig.go();
        } else {
            rig.microframes(u64::from(index & 7) - 1);
            rig.driver.machine.advance_micros(100);
            rig.store(list + 4 * (index >> 3), entry);
            rig.driver.machine.advance_micros(25);
        }
        let t = rig.overlay(&queue);
        assert_ne!(t & token::MISSED, 0, "index {index}, {pid:?}: {t:#x}");
        if pid == Pid::In {
            assert_eq!(t & (token::HALTED | token::ACTIVE), token::HALTED);
        } else {
            assert_eq!(t & (token::HALTED | COMPLETING), 0);
            assert_eq!(token::cerr(t), 3);
        }
        assert_eq!(rig.brief(), [], "nothing is sent");
    }
}

#[test]
fn ehci_split_14_inactivate_on_next_transaction() {
    let mut rig = Rig::new();
    let mut queue = rig.interrupt(1, 0x01, 0x1c);
    let buffer = rig.buffer(64);
    let qtds = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8); 2]);
    rig.complete([plain(CompleteAnswer::Nak(Readiness::Poll))]);
    rig.go();
    rig.microframes(4);
    assert_eq!(rig.brief(), [('S', 0), ('C', 2)]);
    rig.store(queue.head + 4, queue.characteristics | 1 << 7);
    rig.microframes(24);
    assert_eq!(rig.brief(), []);
    assert_eq!(rig.overlay(&queue) & (token::ACTIVE | token::HALTED), 0);
    assert_ne!(rig.load(qtds[0] + 8) & token::ACTIVE, 0, "the qTD is not written");
    assert_eq!(rig.load(queue.head + 0x0c), qtds[0], "no advance");
}

#[test]
fn a_split_that_spans_two_frames_is_completed_in_the_second() {
    // Start in microframe 6: both complete-splits are in the next frame.
    let mut rig = Rig::new();
    let mut queue = rig.interrupt(1, 0x40, 0x03);
    let buffer = rig.buffer(64);
    rig.complete([plain(CompleteAnswer::Nyet), data(&[3; 8])]);
    let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8)])[0];
    rig.go();
    rig.microframes(10);
    assert_eq!(rig.brief(), [('S', 6), ('C', 0), ('C', 1)]);
    assert!(is_done(rig.load(qtd + 8)));
    // Start in 4: some in this frame, the rest in the next.
    let mut rig = Rig::new();
    let mut queue = rig.interrupt(1, 0x10, 0xc1);
    let buffer = rig.buffer(64);
    rig.complete([plain(CompleteAnswer::Nyet), plain(CompleteAnswer::Nyet), data(&[3; 8])]);
    let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8)])[0];
    rig.go();
    rig.microframes(10);
    assert_eq!(rig.brief(), [('S', 4), ('C', 6), ('C', 7), ('C', 0)]);
    assert!(is_done(rig.load(qtd + 8)));
}

#[test]
fn a_host_that_stands_still_in_the_middle_of_a_split_transaction_loses_nothing() {
    for millis in [1, 100, 200, 5_000, 3_600_000] {
        let mut rig = Rig::new();
        let mut queue = rig.interrupt(1, 0x01, 0x1c);
        let buffer = rig.buffer(64);
        rig.complete([plain(CompleteAnswer::Nyet), data(&[3; 8])]);
        let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8)])[0];
        rig.go();
        rig.microframes(1);
        assert_eq!(rig.brief(), [('S', 0)]);
        rig.driver.machine.now = rig.driver.machine.now.after_millis(millis);
        rig.driver.machine.run();
        assert!(is_done(rig.load(qtd + 8)), "after {millis} ms");
        assert_eq!(rig.bytes(buffer, 8), [3; 8], "after {millis} ms");
    }
}
