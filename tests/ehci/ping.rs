//! The ping protocol (EHCI 4.11): rules EHCI-PING.
//!
//! A device is offered whole transfers, so a PING and the OUT that follows it are one offer: if the
//! device refuses, no data has gone out and P stays 1; if it accepts, P is 0. An OUT after which the
//! device takes no more for now is what NYET says on the wire.

use vm_usb::usb::{BusError, Pid};

use crate::driver::ehci::{Queue, Td, sts, token};
use crate::driver::scripted::Answer;
use crate::rig::{IN1, OUT1, Rig, is_done, is_nak, pattern};

/// A bulk OUT queue with P as given and one transfer of 1024 bytes.
fn out(rig: &mut Rig, ping: u32) -> (Queue, u32) {
    let data = pattern(1024);
    let buffer = rig.buffer_of(&data);
    let mut queue = rig.unlinked(OUT1);
    rig.store(queue.head + 0x18, ping);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 1024)])[0];
    rig.driver.link(&queue);
    (queue, qtd)
}

#[test]
fn ehci_ping_1_a_refused_ping_sends_no_data() {
    let mut rig = Rig::new();
    rig.controls.answer(OUT1, vec![Answer::Nak; 1000]);
    let (queue, _) = out(&mut rig, token::PING);
    rig.settle();
    let packets = rig.packets();
    assert!(!packets.is_empty() && packets.iter().all(|p| is_nak(p.outcome)));
    assert!(rig.controls.take_received(OUT1).is_empty());
    assert_eq!(token::total(rig.overlay(&queue)), 1024);
}

#[test]
fn ehci_ping_2_an_accepted_ping_is_followed_by_data() {
    let mut rig = Rig::new();
    rig.controls.answer(OUT1, [Answer::Nak]);
    let (queue, qtd) = out(&mut rig, token::PING);
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(rig.overlay(&queue) & token::PING, 0);
    assert_eq!(rig.controls.take_received(OUT1), pattern(1024));
}

#[test]
fn ehci_ping_3_a_refused_ping_changes_nothing() {
    let mut rig = Rig::new();
    rig.controls.answer(OUT1, vec![Answer::Nak; 1000]);
    let (queue, qtd) = out(&mut rig, token::PING);
    rig.settle();
    let t = rig.overlay(&queue);
    assert_eq!(token::total(t), 1024);
    assert_eq!(t & (token::PING | token::TOGGLE | token::ERROR), token::PING);
    assert_eq!(token::cerr(t), 3);
    assert_ne!(rig.token(qtd) & token::ACTIVE, 0);
}

#[test]
fn ehci_ping_4_data_taken_before_a_refusal_counts() {
    let mut rig = Rig::new();
    rig.controls.answer(OUT1, [Answer::Take(512)]);
    rig.controls.answer(OUT1, vec![Answer::Nak; 1000]);
    let (queue, _) = out(&mut rig, 0);
    rig.settle();
    let t = rig.overlay(&queue);
    assert_eq!(token::total(t), 512);
    assert_ne!(t & token::TOGGLE, 0);
    assert_ne!(t & token::PING, 0, "the next token is PING");
}

#[test]
fn ehci_ping_5_a_refused_out_turns_to_ping() {
    let mut rig = Rig::new();
    rig.controls.answer(OUT1, vec![Answer::Nak; 1000]);
    let (queue, _) = out(&mut rig, 0);
    rig.settle();
    let t = rig.overlay(&queue);
    assert_ne!(t & token::PING, 0);
    assert_eq!(token::total(t), 1024);
    assert_eq!(t & token::TOGGLE, 0);
}

#[test]
fn ehci_ping_6_an_unanswered_out_or_ping_is_an_error_and_pings_again() {
    for ping in [0, token::PING] {
        let mut rig = Rig::new();
        rig.controls.answer(OUT1, [Answer::Error(BusError::Timeout)]);
        rig.controls.answer(OUT1, vec![Answer::Nak; 1000]);
        let (queue, _) = out(&mut rig, ping);
        rig.driver.machine.advance_micros(60);
        let t = rig.overlay(&queue);
        assert_ne!(t & token::ERROR, 0);
        assert_eq!(token::cerr(t), 2);
        assert_ne!(t & token::PING, 0);
        assert_ne!(t & token::ACTIVE, 0);
    }
}

#[test]
fn ehci_ping_7_a_stalled_ping_halts() {
    let mut rig = Rig::new();
    rig.controls.answer(OUT1, [Answer::Stall]);
    let (_, qtd) = out(&mut rig, token::PING);
    rig.driver.machine.advance_micros(250);
    let t = rig.token(qtd);
    assert_ne!(t & token::HALTED, 0);
    assert_ne!(token::cerr(t), 0);
    assert_ne!(rig.driver.take_events() & sts::ERROR, 0);
}

#[test]
fn ehci_ping_8_the_ping_state_belongs_to_the_endpoint() {
    let mut rig = Rig::new();
    // The qTD says P = 1, the queue head 0: 0 it stays.
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 0);
    let qtd = queue.dummy;
    rig.submit(&mut queue, &[]);
    rig.store(qtd, 1);
    rig.driver.machine.store_all(qtd + 0x0c, &[buffer, 0, 0, 0, 0]);
    rig.store(qtd + 8, Td::new(Pid::In, buffer, 512).token() | token::PING);
    rig.settle();
    assert_eq!(rig.load(queue.head + 0x0c), qtd);
    assert_eq!(rig.overlay(&queue) & token::PING, 0);
    // And the other way round; an IN endpoint keeps it, unused.
    let mut other = rig.unlinked(crate::rig::IN2);
    rig.store(other.head + 0x18, token::PING);
    rig.controls.answer(crate::rig::IN2, [Answer::Data(vec![1; 512])]);
    let qtd = rig.submit(&mut other, &[Td::new(Pid::In, buffer, 512)])[0];
    rig.driver.link(&other);
    rig.settle();
    assert!(is_done(rig.token(qtd)));
    assert_ne!(rig.overlay(&other) & token::PING, 0);
}
