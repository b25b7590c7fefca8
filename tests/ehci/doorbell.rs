//! The doorbell (EHCI 4.8.2): rules EHCI-DOORBELL.

use vm_usb::usb::Pid;

use crate::driver::ehci::{Queue, Td, cmd, reg, sts, token};
use crate::driver::scripted::{Answer, Seen};
use crate::rig::{IN1, IN2, OUT1, OUT2, Rig, is_done, pattern};

/// Rings, and waits for IAA with nothing but the registers, up to 2 ms.
fn ring(rig: &mut Rig) -> bool {
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | cmd::DOORBELL);
    rig.driver.machine.wait_millis(2, |m| {
        m.read32(reg::USBSTS) & sts::ADVANCE != 0 && m.read32(reg::USBCMD) & cmd::DOORBELL == 0
    })
}

#[test]
fn ehci_doorbell_1_a_working_ring_answers() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(4096);
    let mut queue = rig.open(OUT1, 0);
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 4096); 50]);
    assert!(ring(&mut rig));
    assert!(rig.driver.machine.line);
    rig.driver.machine.advance_millis(2);
    assert_eq!(rig.packets().len(), 50, "the ring goes on");
}

/// A queue with a transfer under way, cut out of the ring and rung for.
fn removed(rig: &mut Rig, answers: Vec<Answer>, len: u32) -> (Queue, u32, u32) {
    let buffer = rig.buffer(len);
    let mut queue = rig.open(IN1, 4);
    rig.controls.answer(IN1, answers);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, len).ioc()])[0];
    rig.driver.machine.advance_millis(1);
    rig.driver.cut_out(&queue);
    rig.driver.take_events();
    assert!(ring(rig));
    (queue, qtd, buffer)
}

#[test]
fn ehci_doorbell_2_a_removed_queue_head_is_never_touched_again() {
    let mut rig = Rig::new();
    let (queue, qtd, buffer) = removed(&mut rig, vec![Answer::Nak; 10_000], 512);
    rig.driver.machine.fill(queue.head, &[0xa5; 0x60]);
    rig.driver.machine.fill(qtd, &[0x5a; 0x60]);
    rig.packets();
    let accesses = rig.driver.machine.record(50_000);
    for access in accesses {
        for place in [queue.head, qtd] {
            assert!(!access.touches(place, 0x60), "{access:?}");
        }
        assert!(!access.touches(buffer, 512), "{access:?}");
    }
    assert_eq!(rig.packets(), []);
}

#[test]
fn ehci_doorbell_3_a_backend_that_never_answers_does_not_hold_it_up() {
    let mut rig = Rig::new();
    let answers = vec![Answer::Pending, Answer::Data(vec![7; 512])];
    let (_, qtd, buffer) = removed(&mut rig, answers, 512);
    assert!(rig.controls.take_seen().contains(&Seen::Cancel(IN1)));
    rig.driver.take_events();
    rig.driver.machine.advance_millis(100);
    rig.controls.announce(IN1);
    rig.driver.machine.advance_millis(10);
    assert_eq!(rig.driver.machine.bytes(buffer, 512), [0; 512], "late data is not written");
    assert_ne!(rig.token(qtd) & token::ACTIVE, 0);
    assert_eq!(rig.driver.take_events() & sts::INT, 0);
}

#[test]
fn ehci_doorbell_4_partial_progress_is_in_memory_before_the_answer() {
    let mut rig = Rig::new();
    let data = pattern(4096);
    let buffer = rig.buffer_of(&data);
    let mut queue = rig.open(OUT1, 4);
    rig.controls.answer(OUT1, [Answer::Take(1536), Answer::Pending]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 4096)])[0];
    rig.driver.machine.advance_millis(1);
    rig.driver.cut_out(&queue);
    assert!(ring(&mut rig));
    let t = rig.overlay(&queue);
    assert_eq!(token::total(t), 2560);
    assert_ne!(t & token::TOGGLE, 0);
    assert_eq!(rig.load(queue.head + 0x0c), qtd);
    assert_eq!(rig.load(queue.head + 0x1c) & 0xfff, 1536);
}

#[test]
fn ehci_doorbell_5_a_ring_of_its_head_answers() {
    let mut rig = Rig::new();
    let ring_head = rig.driver.ring;
    rig.store(ring_head, ring_head | 2);
    assert!(ring(&mut rig));
}

#[test]
fn ehci_doorbell_6_pollers_get_their_answer_without_an_interrupt() {
    let mut rig = Rig::new();
    rig.write(reg::USBINTR, 0);
    assert!(ring(&mut rig));
    assert!(!rig.driver.machine.line);
}

#[test]
fn ehci_doorbell_7_writing_zero_does_not_take_a_ring_back() {
    let mut rig = Rig::new();
    // A threshold of 64 microframes, and a report that has just been made: the answer has to wait.
    let command = rig.read(reg::USBCMD) & !0xff_0000 | 64 << 16;
    rig.write(reg::USBCMD, command);
    assert!(ring(&mut rig));
    rig.write(reg::USBSTS, sts::ADVANCE);
    rig.write(reg::USBCMD, command | cmd::DOORBELL);
    assert_ne!(rig.read(reg::USBCMD) & cmd::DOORBELL, 0, "pending");
    rig.write(reg::USBCMD, command);
    assert_ne!(rig.read(reg::USBCMD) & cmd::DOORBELL, 0, "still pending");
    let answered = rig.driver.machine.wait_millis(9, |m| m.read32(reg::USBSTS) & sts::ADVANCE != 0);
    assert!(answered);
    assert_eq!(rig.read(reg::USBCMD) & cmd::DOORBELL, 0);
}

#[test]
fn ehci_doorbell_8_each_ring_has_an_answer_of_its_own() {
    let mut rig = Rig::new();
    for _ in 0..10 {
        assert!(ring(&mut rig));
        rig.write(reg::USBSTS, sts::ADVANCE);
        assert_eq!(rig.status() & sts::ADVANCE, 0);
    }
}

#[test]
fn ehci_doorbell_9_asynclistaddr_moves_into_the_remaining_ring() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut stays = rig.open(OUT2, 0);
    let leaves = rig.open(OUT1, 0);
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.write(reg::ASYNCLISTADDR, leaves.head);
    rig.driver.cut_out(&leaves);
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | cmd::ASYNCHRONOUS | cmd::DOORBELL);
    assert!(rig.driver.machine.wait_millis(2, |m| m.read32(reg::USBSTS) & sts::ADVANCE != 0));
    // An address that is not RAM would be a host system error.
    rig.driver.machine.fill(leaves.head, &[0xff; 0x60]);
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let qtd = rig.submit(&mut stays, &[Td::new(Pid::Out, buffer, 512)])[0];
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(rig.status() & (sts::SYSTEM_ERROR | sts::HALTED), 0);
}

#[test]
fn ehci_doorbell_10_rings_without_a_running_schedule_are_answered() {
    let mut rig = Rig::new();
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    assert!(ring(&mut rig), "with ASE = 0");
    rig.write(reg::USBSTS, sts::ADVANCE);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | cmd::DOORBELL);
    rig.write(reg::USBCMD, command & !cmd::RUN);
    let done = rig.driver.machine.wait_millis(2, |m| {
        m.read32(reg::USBSTS) & sts::ADVANCE != 0 && m.read32(reg::USBCMD) & cmd::DOORBELL == 0
    });
    assert!(done, "halted meanwhile");
}

#[test]
fn a_linked_endpoint_keeps_its_pending_transfer_over_a_doorbell() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut stays = rig.open(IN2, 4);
    rig.controls.answer(IN2, [Answer::Pending, Answer::Data(vec![3; 512])]);
    let qtd = rig.submit(&mut stays, &[Td::new(Pid::In, buffer, 512)])[0];
    rig.driver.machine.advance_millis(1);
    let other = rig.open(OUT1, 0);
    rig.driver.unlink(&other);
    assert!(!rig.controls.take_seen().contains(&Seen::Cancel(IN2)));
    rig.controls.announce(IN2);
    rig.settle();
    assert!(is_done(rig.token(qtd)));
}

#[test]
fn a_removed_transfer_whose_device_was_ready_already_is_cancelled_all_the_same() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 4);
    rig.controls.answer(IN1, [Answer::Pending]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
    rig.driver.machine.advance_millis(1);
    rig.driver.cut_out(&queue);
    rig.controls.announce(IN1);
    assert!(ring(&mut rig));
    assert!(rig.controls.take_seen().contains(&Seen::Cancel(IN1)));
}
