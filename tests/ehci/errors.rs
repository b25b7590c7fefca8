//! Errors (EHCI 4.15.1, 4.10.3): rules EHCI-ERR.

use vm_usb::usb::{BusError, Pid, SetupPacket, request};

use crate::driver::ehci::{DTC, Td, cmd, reg, sts, token};
use crate::driver::host::setup_bytes;
use crate::driver::scripted::Answer;
use crate::rig::{ADDRESS, IN1, OUT1, Rig, is_done, pattern};

#[test]
fn ehci_err_1_three_attempts_in_consecutive_microframes() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, vec![Answer::Error(BusError::Timeout); 10]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)])[0];
    rig.driver.machine.run();
    let begin = rig.driver.machine.now;
    let halts = rig.driver.wait(2, |m| m.load(qtd + 8) & token::HALTED != 0);
    assert!(halts);
    let taken = rig.driver.machine.now.since(begin).as_micros();
    assert!((100..=400).contains(&taken), "two microframe boundaries later: {taken} us");
    let t = rig.token(qtd);
    assert_eq!(rig.packets().len(), 3);
    assert_eq!((token::cerr(t), token::total(t)), (0, 512));
    assert_ne!(t & token::ERROR, 0);
    assert_eq!(t & token::ACTIVE, 0);
    rig.driver.machine.advance_millis(1);
    assert_eq!(rig.driver.take_events(), sts::ERROR);
}

#[test]
fn ehci_err_2_without_a_limit_it_tries_for_ever_and_does_not_spin() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.driver.open(77, 1, 512, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512).cerr(0)])[0];
    let accesses = rig.driver.machine.record(1_000_000);
    let t = rig.token(qtd);
    assert_ne!(t & token::ACTIVE, 0);
    assert_eq!(t & token::HALTED, 0);
    assert_ne!(rig.overlay(&queue) & token::ERROR, 0);
    // At most one attempt a microframe, each with a walk of the ring.
    assert!(accesses.len() < 8_000 * 100, "{} accesses in a second", accesses.len());
}

#[test]
fn an_error_of_a_queue_that_has_left_the_ring_is_not_waited_for() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, vec![Answer::Error(BusError::Timeout); 10]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512).cerr(0)])[0];
    rig.driver.machine.run();
    assert_ne!(rig.token(qtd) & token::ACTIVE, 0, "to be tried again");
    // Linux rings the doorbell a while after it has taken a queue head out.
    rig.driver.cut_out(&queue);
    rig.driver.machine.advance_micros(500);
    let now = rig.driver.machine.now;
    rig.driver.machine.run();
    let deadline = rig.driver.machine.deadline().expect("the ring is looked at now and then");
    assert!(deadline > now, "{} ns ago", now.nanos_since(deadline));
}

#[test]
fn ehci_err_3_success_gives_the_attempts_back() {
    let mut rig = Rig::new();
    let data = pattern(1024);
    let buffer = rig.buffer_of(&data);
    let mut queue = rig.open(OUT1, 0);
    for _ in 0..2 {
        rig.controls.answer(OUT1, vec![Answer::Error(BusError::Timeout); 2]);
        rig.controls.answer(OUT1, [Answer::Take(512)]);
    }
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 1024)])[0];
    rig.driver.machine.advance_millis(5);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(token::cerr(rig.token(qtd)), 3);
    assert_eq!(rig.controls.take_received(OUT1), data);
}

#[test]
fn ehci_err_4_a_stall_halts_and_leaves_the_error_counter() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Stall]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)])[0];
    rig.driver.machine.advance_millis(1);
    let t = rig.token(qtd);
    assert_eq!(t & 0xff, token::HALTED);
    assert_eq!((token::cerr(t), token::total(t), t & token::TOGGLE), (3, 512, 0));
    assert_eq!(rig.driver.take_events(), sts::ERROR);
}

#[test]
fn ehci_err_5_babble_halts_and_writes_nothing_beyond_the_buffer() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(1024);
    rig.driver.machine.fill(buffer, &[0xee; 1024]);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 512])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 100)])[0];
    rig.driver.machine.advance_millis(1);
    let t = rig.token(qtd);
    assert_eq!(t & 0xff, token::HALTED | token::BABBLE);
    assert_eq!(token::cerr(t), 3);
    assert_eq!(rig.driver.take_events(), sts::ERROR);
    assert_eq!(rig.driver.machine.bytes(buffer + 100, 924), [0xee; 924]);
}

#[test]
fn ehci_err_6_a_repeated_packet_is_dropped() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.unlinked(IN1);
    // The queue expects DATA1, the device sends DATA0: what it sends first is a repetition.
    rig.store(queue.head + 0x18, token::TOGGLE);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 512])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)])[0];
    rig.driver.link(&queue);
    rig.driver.machine.advance_micros(50);
    let t = rig.overlay(&queue);
    assert_eq!(token::total(t), 512);
    assert_ne!(t & token::TOGGLE, 0);
    assert_eq!(t & token::ERROR, 0);
    assert_eq!(rig.driver.machine.bytes(buffer, 512), [0; 512]);
    rig.controls.answer(IN1, [Answer::Data(vec![2; 512])]);
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(rig.driver.machine.bytes(buffer, 512), [2; 512]);
}

/// No RAM of the machine is here.
const NOWHERE: u32 = 0xfff0_0000;

/// Expects a host system error, then a reset that restores everything.
fn dies_and_recovers(mut rig: Rig, what: &str) {
    rig.driver.machine.interrupts.clear();
    rig.driver.machine.advance_millis(3);
    assert!(rig.driver.machine.line, "{what}: interrupt");
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0, "{what}: HSE");
    assert_ne!(rig.status() & sts::HALTED, 0, "{what}: halted");
    assert_eq!(rig.read(reg::USBCMD) & cmd::RUN, 0, "{what}: R/S");
    let ports = rig.ports.clone();
    let driver = crate::driver::ehci::EhciDriver::new(rig.driver.machine);
    let mut again = Rig { driver, device: rig.device, controls: rig.controls.clone(), ports };
    again.enumerate();
}

#[test]
fn ehci_err_7_structures_outside_ram_are_a_host_system_error() {
    let mut rig = Rig::new();
    let ring = rig.driver.ring;
    rig.store(ring, NOWHERE);
    dies_and_recovers(rig, "queue head");

    let mut rig = Rig::new();
    let queue = rig.open(IN1, 0);
    rig.store(queue.head + 0x10, NOWHERE);
    dies_and_recovers(rig, "qTD");

    let mut rig = Rig::new();
    let mut queue = rig.open(IN1, 0);
    rig.submit(&mut queue, &[Td::new(Pid::In, NOWHERE, 512)]);
    dies_and_recovers(rig, "buffer");

    let mut rig = Rig::new();
    rig.write(reg::PERIODICLISTBASE, NOWHERE);
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | cmd::PERIODIC);
    dies_and_recovers(rig, "frame list");

    for (typ, what) in [(0, "iTD"), (1, "interrupt queue head"), (2, "siTD"), (3, "FSTN")] {
        let mut rig = Rig::new();
        for frame in 0..1024 {
            let list = rig.driver.frame_list;
            rig.store(list + 4 * frame, NOWHERE | typ << 1);
        }
        let command = rig.read(reg::USBCMD);
        rig.write(reg::USBCMD, command | cmd::PERIODIC);
        dies_and_recovers(rig, what);
    }
}

#[test]
fn ehci_err_8_running_again_without_a_reset_is_allowed() {
    let mut rig = Rig::new();
    let ring = rig.driver.ring;
    let link = rig.load(ring);
    rig.store(ring, NOWHERE);
    rig.driver.machine.advance_millis(2);
    for _ in 0..3 {
        rig.write(reg::USBSTS, 0x3f);
        rig.resume();
        rig.driver.machine.advance_millis(2);
        assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0, "the cause remains");
    }
    rig.store(ring, link);
    rig.write(reg::ASYNCLISTADDR, ring);
    rig.write(reg::USBSTS, 0x3f);
    rig.resume();
    let buffer = rig.buffer(64);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
}

#[test]
fn ehci_err_9_pulling_the_device_out_ends_its_transfers() {
    for answer in [Answer::Nak, Answer::Park, Answer::Pending] {
        let mut rig = Rig::new();
        let buffer = rig.buffer(512);
        let mut queue = rig.open(IN1, 4);
        rig.controls.answer(IN1, vec![answer; 10_000]);
        let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)])[0];
        rig.driver.machine.advance_millis(5);
        assert_ne!(rig.token(qtd) & token::ACTIVE, 0);
        rig.driver.take_events();
        rig.ports[0].detach();
        rig.driver.machine.advance_millis(2);
        let t = rig.token(qtd);
        assert_eq!(t & 0xff, token::HALTED | token::ERROR);
        assert_eq!(token::cerr(t), 0);
        assert_eq!(rig.driver.take_events(), sts::ERROR | sts::PORT);
    }
}

#[test]
fn ehci_err_10_memory_that_is_too_slow_costs_a_repetition_and_no_error() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 0);
    let slow = || Answer::Error(BusError::HostBuffer);
    // Oftener than CERR would stand.
    rig.controls.answer(IN1, [slow(), slow(), slow(), slow(), Answer::Data(pattern(512))]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512).ioc()])[0];
    rig.driver.machine.advance_millis(2);
    let packets = rig.packets();
    assert_eq!(packets.len(), 5);
    assert!(packets.iter().all(|p| p.toggle == packets[0].toggle), "the same packet each time");
    let t = rig.token(qtd);
    assert!(is_done(t));
    assert_ne!(t & token::BUFFER_ERROR, 0);
    assert_eq!((t & token::ERROR, token::cerr(t), token::total(t)), (0, 3, 0));
    assert_eq!(rig.driver.machine.bytes(buffer, 512), pattern(512));
    assert_eq!(rig.driver.take_events(), sts::INT, "no USBERRINT");
}

#[test]
fn ehci_err_10_an_out_packet_that_broke_off_is_repeated_too() {
    let mut rig = Rig::new();
    let buffer = rig.buffer_of(&pattern(512));
    let mut queue = rig.open(OUT1, 0);
    rig.controls.answer(OUT1, [Answer::Error(BusError::HostBuffer)]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)])[0];
    rig.driver.machine.advance_millis(1);
    let t = rig.token(qtd);
    assert!(is_done(t));
    assert_eq!((t & token::BUFFER_ERROR, token::cerr(t)), (token::BUFFER_ERROR, 3));
    assert_eq!(rig.controls.take_received(OUT1), pattern(512));
    assert_eq!(rig.driver.take_events(), 0);
}

#[test]
fn ehci_err_11_setup_cannot_be_refused() {
    // A device whose endpoint 0 does not take the packet: its SETUP is of the wrong length, which
    // nobody acknowledges; a NAK from a real device counts the same.
    let mut rig = Rig::new();
    let setup = SetupPacket::new(0x80, request::GET_DESCRIPTOR, 0x100, 0, 18);
    let packet = rig.buffer_of(&setup_bytes(&setup));
    let mut queue = rig.driver.open(ADDRESS, 0, 64, DTC);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Setup, packet, 7)])[0];
    rig.driver.machine.advance_millis(2);
    let t = rig.token(qtd);
    assert_eq!(t & 0xff, token::HALTED | token::ERROR);
    assert_eq!(token::cerr(t), 0);
    // A SETUP to an endpoint that is not for control gets no answer either.
    let mut queue = rig.driver.open(ADDRESS, 1, 512, DTC);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Setup, packet, 8)])[0];
    rig.driver.machine.advance_millis(2);
    assert_eq!(rig.token(qtd) & 0xff, token::HALTED | token::ERROR);
}
