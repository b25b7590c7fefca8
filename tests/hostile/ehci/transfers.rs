//! Buffers and codes that are none.

use vm_memory::{Bytes, GuestAddress};
use vm_usb::usb::Pid;

use super::rig::{ADDRESS, IN1, OUT1, OUT2, Rig, is_done};
use super::*;
use crate::driver::ehci::{HEAD, token};
use crate::driver::machine::RAM;
use crate::driver::scripted::Answer;

#[test]
fn ehci_hg_11_structures_outside_ram_are_a_host_system_error() {
    // Behind RAM, where the guest has mapped BAR 0, and at the end.
    for nowhere in [RAM, 0xfebf_0000, 0xffff_ff80] {
        for place in 0..4 {
            let (mut rig, heads) = ring(&[(0, HEAD)]);
            match place {
                0 => rig.store(heads[0], nowhere | QUEUE_HEAD),
                1 => rig.store(heads[0] + 0x10, nowhere),
                2 => fill_frame_list(&mut rig, nowhere | QUEUE_HEAD),
                _ => rig.write(reg::PERIODICLISTBASE, nowhere & !0xfff),
            }
            let command = rig.read(reg::USBCMD);
            rig.write(reg::USBCMD, command | cmd::PERIODIC);
            let work = work(&mut rig, |rig| rig.driver.machine.advance_millis(4));
            assert!(work.most <= 8 * LOOK, "{nowhere:#x} {place}: {work:?}");
            let expected = sts::SYSTEM_ERROR | sts::HALTED;
            let seen = rig.driver.take_events() & sts::SYSTEM_ERROR;
            assert_eq!(rig.status() & expected | seen, expected, "{nowhere:#x} {place}");
            assert_works_after_reset(rig);
        }
    }
}

#[test]
fn ehci_hg_12_buffers_outside_ram_are_a_host_system_error() {
    for (pid, endpoint, at) in
        [(Pid::In, IN1, 0xfebf_0000), (Pid::Out, OUT1, RAM), (Pid::Out, OUT1, RAM - 0x200)]
    {
        let mut rig = Rig::new();
        let mut queue = rig.open(endpoint, 0);
        rig.controls.answer(IN1, [Answer::Data(vec![1; 64])]);
        let work = work(&mut rig, |rig| {
            rig.submit(&mut queue, &[Td::new(pid, at, 0x400)]);
            rig.driver.machine.advance_millis(1);
        });
        assert!(work.most <= 2 * VISIT, "{work:?}");
        let error = rig.driver.take_events() | rig.status();
        assert_ne!(error & sts::SYSTEM_ERROR, 0, "{at:#x}");
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_13_more_bytes_than_five_pages_hold() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(0x8000);
    let mut queue = rig.open(OUT1, 0);
    let mut qtd = 0;
    let moved = work(&mut rig, |rig| {
        qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer + 0xffe, 0x7fff)])[0];
        rig.driver.machine.advance_millis(1);
    });
    assert!(moved.most <= 2 * VISIT, "{moved:?}");
    let t = rig.token(qtd);
    assert_eq!(t & 0xff, token::HALTED | token::BUFFER_ERROR);
    let moved = rig.controls.take_received(OUT1).len();
    assert_eq!(moved, 0x4002 / 512 * 512, "whole packets that fit");
    assert_eq!(token::total(t), 0x7fff - moved as u32);
    rig.driver.machine.advance_millis(1);
    assert_ne!(rig.driver.take_events() & sts::ERROR, 0);
    assert_works_after_reset(rig);

    for page in 5..8 {
        let mut rig = Rig::new();
        let buffer = rig.buffer(512);
        let mut queue = rig.open(OUT1, 0);
        let qtd = queue.dummy;
        rig.submit(&mut queue, &[]);
        rig.store(qtd, TERMINATE);
        rig.driver.machine.store_all(qtd + 0x0c, &[buffer; 5]);
        rig.store(qtd + 8, Td::new(Pid::Out, buffer, 512).token() | page << 12);
        rig.driver.machine.advance_millis(1);
        assert_eq!(rig.token(qtd) & 0xff, token::HALTED | token::BUFFER_ERROR, "C_Page {page}");
        assert_eq!(rig.packets(), []);
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_14_addresses_at_the_end_of_32_bits() {
    let mut rig = Rig::new();
    let mut queue = rig.open(OUT1, 0);
    let data = work(&mut rig, |rig| {
        rig.submit(&mut queue, &[Td::new(Pid::Out, 0xffff_f000, 0x5000)]);
        rig.driver.machine.advance_millis(1);
    });
    assert!(data.most <= 2 * VISIT, "{data:?}");
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0);
    assert_works_after_reset(rig);
    let (mut rig, heads) = ring(&[(0, HEAD)]);
    rig.store(heads[0], 0xffff_ffe0);
    let structure = work(&mut rig, |rig| rig.driver.machine.advance_millis(1));
    assert!(structure.most <= 8 * LOOK, "{structure:?}");
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0);
    assert_works_after_reset(rig);
    // The upper halves of a qTD's pointers, where there are any.
    let mut rig = Rig::with(|ehci| ehci.with_64bit_addressing(true));
    let mut queue = rig.open(OUT1, 0);
    let qtd = queue.dummy;
    rig.driver.machine.store_all(qtd + 0x20, &[!0; 5]);
    let high = work(&mut rig, |rig| {
        rig.submit(&mut queue, &[Td::new(Pid::Out, 0xffff_f000, 0x5000)]);
        rig.driver.machine.advance_millis(1);
    });
    assert!(high.most <= 2 * VISIT, "{high:?}");
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_15_structures_across_the_end_of_ram() {
    let place = u64::from(RAM) - 32;
    let (mut rig, heads) = ring(&[(0, HEAD)]);
    rig.store(heads[0], RAM - 32);
    rig.driver.machine.memory.write_slice(&[0; 32], GuestAddress(place)).unwrap();
    let idle = work(&mut rig, |rig| rig.driver.machine.advance_millis(1));
    assert!(idle.most <= 8 * LOOK, "{idle:?}");
    assert_eq!(rig.status() & sts::SYSTEM_ERROR, 0, "nothing there needs more than 32 bytes");
    assert_works_after_reset(rig);
    // Active: the buffers of the overlay lie behind the end.
    let (mut rig, heads) = ring(&[(0, HEAD)]);
    let active = Td::new(Pid::Out, 0, 64).token().to_le_bytes();
    rig.driver.machine.memory.write_slice(&active, GuestAddress(place + 0x18)).unwrap();
    rig.store(heads[0], RAM - 32);
    let error = work(&mut rig, |rig| rig.driver.machine.advance_millis(2));
    assert!(error.most <= VISIT, "{error:?}");
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_17_reserved_codes_stop_their_queue_only() {
    // PID 3 and EPS 3.
    for (pid, speed) in [(3 << 8, 0), (0, 1 << 12)] {
        let mut rig = Rig::new();
        let buffer = rig.buffer(512);
        let mut queue = rig.driver.open(ADDRESS, 1, 512, speed);
        let mut other = rig.open(OUT2, 0);
        let qtd = queue.dummy;
        rig.submit(&mut queue, &[]);
        rig.store(qtd, TERMINATE);
        rig.driver.machine.store_all(qtd + 0x0c, &[buffer; 5]);
        rig.store(qtd + 8, Td::new(Pid::Out, buffer, 512).token() | pid);
        let works = rig.submit(&mut other, &[Td::new(Pid::Out, buffer, 512)])[0];
        let work = work(&mut rig, |rig| rig.driver.machine.advance_millis(1));
        assert!(work.most <= 4 * VISIT, "{work:?}");
        assert_ne!(rig.token(qtd) & token::HALTED, 0);
        assert!(is_done(rig.token(works)));
        assert_eq!(rig.driver.take_events(), sts::ERROR);
        assert_works_after_reset(rig);
    }
    // Mult 0 counts as 1.
    let mut rig = Rig::new();
    let buffer = rig.buffer(64);
    let mut queue = rig.open_interrupt(OUT2, 0x01, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
    rig.driver.machine.advance_millis(3);
    assert!(is_done(rig.token(qtd)));
    assert_works_after_reset(rig);
}
