//! Short packets (EHCI 4.10.3, 4.10.2): rules EHCI-SHORT.

use vm_usb::usb::{Pid, SetupPacket, request};

use crate::driver::ehci::{Td, sts, token};
use crate::driver::host::HostDriver;
use crate::driver::scripted::Answer;
use crate::rig::{IN1, Rig, is_done, pattern};

#[test]
fn ehci_short_1_the_residue_shows_in_overlay_and_qtd() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(1024);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 612])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 1024)])[0];
    rig.settle();
    for t in [rig.token(qtd), rig.overlay(&queue)] {
        assert!(is_done(t));
        assert_eq!(token::total(t), 412);
    }
}

#[test]
fn ehci_short_2_a_short_packet_interrupts_without_ioc() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(1024);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 612])]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 1024)]);
    rig.driver.machine.advance_micros(125);
    assert!(rig.driver.machine.line);
    assert_eq!(rig.status() & 0x3f, sts::INT);
}

/// A short read of one qTD with the alternate one given; another waits at Next. Returns the three.
fn with_alternate(rig: &mut Rig, alternate_active: bool) -> (crate::driver::ehci::Queue, [u32; 3]) {
    let buffer = rig.buffer(4096);
    let mut queue = rig.open(IN1, 0);
    let alternate = rig.driver.machine.alloc(0x60, 32);
    let td = Td::new(Pid::In, buffer + 2048, 512);
    rig.driver.machine.store_all(alternate, &[1, 1, 0]);
    rig.driver.machine.store_all(alternate + 0x0c, &td.pages());
    if alternate_active {
        rig.store(alternate + 8, td.token());
    }
    rig.controls.answer(IN1, [Answer::Data(vec![1; 100]), Answer::Data(vec![2; 512])]);
    let first = Td::new(Pid::In, buffer, 1024).alternate(alternate);
    let qtds = rig.submit(&mut queue, &[first, Td::new(Pid::In, buffer + 1024, 512)]);
    (queue, [qtds[0], qtds[1], alternate])
}

#[test]
fn ehci_short_3_an_active_alternate_is_taken() {
    let mut rig = Rig::new();
    let (queue, [first, next, alternate]) = with_alternate(&mut rig, true);
    rig.settle();
    assert!(is_done(rig.token(first)) && is_done(rig.token(alternate)));
    assert_ne!(rig.token(next) & token::ACTIVE, 0);
    assert_eq!(rig.load(queue.head + 0x0c), alternate);
}

#[test]
fn ehci_short_4_without_alternate_next_is_taken() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(4096);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 100]), Answer::Data(vec![2; 512])]);
    let tds = [Td::new(Pid::In, buffer, 1024), Td::new(Pid::In, buffer + 1024, 512)];
    let qtds = rig.submit(&mut queue, &tds);
    rig.settle();
    assert!(qtds.iter().all(|qtd| is_done(rig.token(*qtd))));
    assert_eq!(rig.driver.machine.bytes(buffer + 1024, 512), [2; 512]);
}

#[test]
fn ehci_short_5_an_inactive_alternate_stops_the_queue() {
    let mut rig = Rig::new();
    let (queue, [first, next, _]) = with_alternate(&mut rig, false);
    rig.driver.machine.advance_millis(5);
    assert_eq!(rig.packets().len(), 1, "no further token");
    assert_eq!(rig.load(queue.head + 0x0c), first, "Current stays");
    assert_ne!(rig.token(next) & token::ACTIVE, 0);
    assert_eq!(rig.load(queue.head + 0x10), next, "Next stays where it was");
}

#[test]
fn ehci_short_6_a_stopped_queue_sees_its_alternate_become_active() {
    let mut rig = Rig::new();
    let (_, [_, next, alternate]) = with_alternate(&mut rig, false);
    rig.driver.machine.advance_millis(50);
    rig.packets();
    rig.store(alternate + 8, Td::new(Pid::In, 0, 512).token());
    rig.driver.machine.advance_millis(1);
    assert_eq!(rig.packets().len(), 1);
    assert!(is_done(rig.token(alternate)));
    assert_ne!(rig.token(next) & token::ACTIVE, 0);
}

#[test]
fn ehci_short_7_a_full_read_ignores_the_alternate() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(4096);
    let mut queue = rig.open(IN1, 0);
    let stop = rig.driver.stop;
    rig.controls.answer(IN1, [Answer::Data(pattern(1536))]);
    let tds =
        [Td::new(Pid::In, buffer, 1024).alternate(stop), Td::new(Pid::In, buffer + 1024, 512)];
    let qtds = rig.submit(&mut queue, &tds);
    rig.settle();
    assert!(qtds.iter().all(|qtd| is_done(rig.token(*qtd))));
    assert_eq!(rig.driver.machine.bytes(buffer, 1536), pattern(1536));
}

#[test]
fn ehci_short_8_an_empty_packet_is_a_short_one() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(1024);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(vec![])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 1024)])[0];
    rig.settle();
    let t = rig.token(qtd);
    assert!(is_done(t));
    assert_eq!(token::total(t), 1024);
    assert_ne!(t & token::TOGGLE, 0);
}

#[test]
fn ehci_short_9_a_short_data_stage_goes_on_to_the_status_stage() {
    let mut rig = Rig::new();
    let device = rig.device;
    rig.driver.take_events();
    let setup = SetupPacket::new(0x80, request::GET_DESCRIPTOR, 0x100, 0, 64);
    assert_eq!(rig.driver.control(&device, setup, &[]).unwrap().len(), 18);
    rig.driver.sleep_millis(1);
    assert_ne!(rig.driver.take_events() & sts::INT, 0);
}

#[test]
fn ehci_short_10_a_stream_of_long_urbs_stalls_for_microseconds_only() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(32 << 10);
    let mut queue = rig.open(IN1, 4);
    let stop = rig.driver.stop;
    let begin = rig.driver.machine.now;
    const URBS: u64 = 100;
    for urb in 0..URBS {
        let data = vec![urb as u8; 1_514];
        rig.controls.answer(IN1, [Answer::Data(data.clone())]);
        let tds = [
            Td::new(Pid::In, buffer, 20 << 10).alternate(stop),
            Td::new(Pid::In, buffer + (20 << 10), 12 << 10).ioc(),
        ];
        let qtds = rig.submit(&mut queue, &tds);
        let submitted = rig.driver.machine.now;
        rig.driver.events.clear();
        assert!(rig.driver.wait(10, |m| m.load(qtds[0] + 8) & token::ACTIVE == 0));
        let taken = rig.driver.machine.now.since(submitted).as_micros();
        assert!(taken < 1_000, "the next IN within a millisecond of the relink: {taken} us");
        let interrupted = |events: &[u32]| events.iter().any(|e| e & sts::INT != 0);
        let waited = rig.driver.machine.now;
        while !interrupted(&rig.driver.events) {
            rig.driver.machine.advance_micros(5);
            rig.driver.service();
        }
        let late = rig.driver.machine.now.since(waited).as_micros();
        assert!(late <= 130, "USBINT within the threshold of one microframe: {late} us");
        assert_eq!(rig.driver.machine.bytes(buffer, 1_514), data);
        rig.driver.unlink(&queue);
        rig.driver.restart(&queue, queue.dummy);
        rig.driver.link(&queue);
    }
    let each = rig.driver.machine.now.since(begin).as_micros() / u128::from(URBS);
    assert!(each < 600, "three reports of at most a microframe each, not frames: {each} us a URB");
}
