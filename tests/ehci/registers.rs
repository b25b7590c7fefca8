//! Operational registers (EHCI 2.3): rules EHCI-REG.

use vm_usb::usb::Pid;

use crate::driver::ehci::{Td, cmd, reg, sts, token};
use crate::driver::scripted::Answer;
use crate::rig::{IN1, IN3, OUT1, Rig, bare, is_done};

const RESET_STATE: [(u64, u32); 7] = [
    (reg::USBCMD, 0x0008_0b00),
    (reg::USBSTS, 0x0000_1000),
    (reg::USBINTR, 0),
    (reg::FRINDEX, 0),
    (reg::CTRLDSSEGMENT, 0),
    (reg::CONFIGFLAG, 0),
    (reg::PORTSC, 0x0000_2000),
];

#[test]
fn ehci_reg_1_reset_values() {
    let mut rig = Rig::new();
    rig.write(reg::CTRLDSSEGMENT, 0);
    rig.halt();
    rig.write(reg::FRINDEX, 0x123);
    rig.write(reg::USBCMD, cmd::RESET);
    assert_eq!(rig.read(reg::USBCMD) & cmd::RESET, 0);
    for (register, value) in RESET_STATE {
        assert_eq!(rig.read(register), value, "register {register:#x}");
    }
}

#[test]
fn ehci_reg_2_running_counts_eight_microframes_a_millisecond() {
    let mut rig = Rig::new();
    rig.halt();
    rig.write(reg::FRINDEX, 0);
    rig.resume();
    assert_eq!(rig.status() & sts::HALTED, 0);
    for millis in 1..=50 {
        rig.driver.machine.advance_millis(1);
        assert_eq!(rig.read(reg::FRINDEX), 8 * millis);
    }
}

#[test]
fn ehci_reg_3_halted_nothing_moves() {
    let mut rig = Rig::new();
    let mut queue = rig.open(IN1, 0);
    let buffer = rig.buffer(512);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)])[0];
    rig.settle();
    assert_ne!(rig.tokens(), 0, "polled while running");
    rig.halt();
    rig.tokens();
    let index = rig.read(reg::FRINDEX);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 512])]);
    let accesses = rig.driver.machine.record(20_000);
    assert!(accesses.is_empty(), "no access to memory: {accesses:?}");
    assert_eq!(rig.tokens(), 0);
    assert_eq!(rig.read(reg::FRINDEX), index);
    assert_ne!(rig.token(qtd) & token::ACTIVE, 0);
}

#[test]
fn ehci_reg_4_run_again_goes_on_from_there() {
    let mut rig = Rig::new();
    let mut queue = rig.open(OUT1, 0);
    let buffer = rig.buffer(512);
    rig.controls.answer(OUT1, vec![Answer::Nak; 3]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)])[0];
    rig.halt();
    let index = rig.read(reg::FRINDEX);
    rig.driver.machine.advance_millis(3);
    rig.resume();
    assert_eq!(rig.read(reg::FRINDEX), index);
    rig.driver.machine.advance_millis(5);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(rig.read(reg::FRINDEX), index + 40);
}

#[test]
fn ehci_reg_5_reset_works_from_a_running_controller() {
    for command in [cmd::RESET | cmd::RUN | cmd::ASYNCHRONOUS, cmd::RESET] {
        let mut rig = Rig::new();
        let mut queue = rig.open(IN1, 0);
        let buffer = rig.buffer(512);
        rig.controls.answer(IN1, [Answer::Pending, Answer::Data(vec![1; 512])]);
        rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
        rig.settle();
        rig.write(reg::USBCMD, command);
        assert_eq!(rig.read(reg::USBCMD) & cmd::RESET, 0);
        assert_ne!(rig.status() & sts::HALTED, 0);
        rig.tokens();
        rig.controls.announce(IN1);
        let accesses = rig.driver.machine.record(20_000);
        assert!(accesses.is_empty(), "no access to memory: {accesses:?}");
        assert_eq!(rig.tokens(), 0);
    }
}

#[test]
fn ehci_reg_7_light_reset_is_not_implemented() {
    let mut rig = Rig::new();
    let before = rig.read(reg::USBCMD);
    let port = rig.read(reg::PORTSC);
    rig.write(reg::USBCMD, before | 1 << 7);
    assert_eq!(rig.read(reg::USBCMD), before);
    assert_eq!(rig.read(reg::PORTSC), port);
    assert_eq!(rig.read(reg::CONFIGFLAG), 1);
}

#[test]
fn ehci_reg_8_status_bits_clear_by_ones_only() {
    let mut rig = Rig::new();
    rig.write(reg::USBINTR, 0);
    // A port change and an answered doorbell make two bits to play with.
    rig.ports[0].detach();
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | cmd::DOORBELL);
    rig.driver.machine.advance_millis(2);
    let set = sts::PORT | sts::ADVANCE;
    let read_only = rig.status() & 0xf000;
    assert_eq!(rig.status() & 0x3f, set);
    rig.write(reg::USBSTS, 0);
    assert_eq!(rig.status() & 0x3f, set);
    rig.write(reg::USBSTS, !sts::PORT & !sts::ADVANCE);
    assert_eq!(rig.status() & 0x3f, set);
    assert_eq!(rig.status() & 0xf000, read_only);
    rig.write(reg::USBSTS, sts::PORT);
    assert_eq!(rig.status() & 0x3f, sts::ADVANCE);
    rig.write(reg::USBSTS, 0xffff_ffff);
    assert_eq!(rig.status() & 0x3f, 0);
    assert_eq!(rig.status() & 0xf000, read_only);
}

#[test]
fn ehci_reg_9_six_interrupt_enables() {
    let (mut m, _) = bare(1);
    m.write32(reg::USBINTR, 0xffff_ffff);
    assert_eq!(m.read32(reg::USBINTR), 0x3f);
}

#[test]
fn ehci_reg_10_frame_index_is_written_while_halted() {
    let (mut m, _) = bare(1);
    m.write32(reg::FRINDEX, 0xffff_d238);
    assert_eq!(m.read32(reg::FRINDEX), 0x1238);
    m.write32(reg::USBCMD, cmd::RUN);
    m.advance_millis(2);
    assert_eq!(m.read32(reg::FRINDEX), 0x1248);
}

#[test]
fn ehci_reg_11_frame_index_is_not_written_while_running() {
    let (mut m, _) = bare(1);
    m.write32(reg::FRINDEX, 0x100);
    m.write32(reg::USBCMD, cmd::RUN);
    m.write32(reg::FRINDEX, 0x800);
    assert_eq!(m.read32(reg::FRINDEX), 0x100);
}

#[test]
fn ehci_reg_12_list_addresses_are_aligned() {
    let (mut m, _) = bare(1);
    m.write32(reg::PERIODICLISTBASE, 0xffff_ffff);
    m.write32(reg::ASYNCLISTADDR, 0xffff_ffff);
    assert_eq!(m.read32(reg::PERIODICLISTBASE), 0xffff_f000);
    assert_eq!(m.read32(reg::ASYNCLISTADDR), 0xffff_ffe0);
}

#[test]
fn ehci_reg_13_the_segment_exists_with_64_bit_addressing_only() {
    let (mut m, _) = bare(1);
    assert_eq!(m.read32(0x08) & 1, 1);
    m.write32(reg::CTRLDSSEGMENT, 0x1234);
    assert_eq!(m.read32(reg::CTRLDSSEGMENT), 0x1234);

    let mut rig = Rig::with(|ehci| ehci.with_64bit_addressing(false));
    assert_eq!(rig.read(0x08) & 1, 0);
    rig.write(reg::CTRLDSSEGMENT, 1);
    assert_eq!(rig.read(reg::CTRLDSSEGMENT), 0);
    let mut queue = rig.open(OUT1, 0);
    let buffer = rig.buffer(64);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
    rig.settle();
    assert!(is_done(rig.token(qtd)), "structures are found where they are");
}

#[test]
fn ehci_reg_14_the_frame_list_size_is_programmable() {
    let (mut m, _) = bare(1);
    assert_ne!(m.read32(0x08) & 2, 0, "PFLF");
    for size in [0, 1, 2] {
        m.write32(reg::USBCMD, size << 2);
        assert_eq!(m.read32(reg::USBCMD) >> 2 & 3, size);
    }
}

#[test]
fn ehci_reg_15_the_asynchronous_schedule_follows_its_enable() {
    let mut rig = Rig::new();
    let mut queue = rig.open(IN1, 0);
    let buffer = rig.buffer(512);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
    rig.settle();
    assert_ne!(rig.tokens(), 0);
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.tokens();
    rig.driver.machine.advance_millis(10);
    assert_eq!(rig.tokens(), 0);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.settle();
    assert_ne!(rig.tokens(), 0);
}

#[test]
fn ehci_reg_16_the_periodic_schedule_follows_its_enable_at_frame_boundaries() {
    let mut rig = Rig::new();
    let mut queue = rig.open_interrupt(IN3, 0xff, 1);
    let buffer = rig.buffer(64);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)]);
    rig.driver.disable(cmd::PERIODIC, sts::PERIODIC);
    rig.tokens();
    rig.driver.machine.advance_millis(5);
    assert_eq!(rig.tokens(), 0, "none after PSS = 0");

    while rig.read(reg::FRINDEX) & 7 != 3 {
        rig.driver.machine.advance_micros(25);
    }
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | cmd::PERIODIC);
    for _ in 0..4 {
        assert_eq!(rig.status() & sts::PERIODIC, 0);
        assert_eq!(rig.tokens(), 0, "none before microframe 0");
        rig.microframes(1);
    }
    rig.microframes(1);
    assert_ne!(rig.status() & sts::PERIODIC, 0);
    assert_ne!(rig.tokens(), 0);
}

#[test]
fn ehci_reg_17_everything_starts_with_one_write() {
    let (mut m, _) = bare(1);
    let list = m.alloc(4096, 4096);
    let head = m.alloc(0x60, 32);
    m.store_all(list, &[1; 1024]);
    m.store_all(head, &[head | 2, 1 << 15, 0, 0, 1, 1, token::HALTED]);
    m.write32(reg::PERIODICLISTBASE, list);
    m.write32(reg::ASYNCLISTADDR, head);
    m.write32(reg::USBCMD, cmd::RUN | cmd::PERIODIC | cmd::ASYNCHRONOUS);
    let all = sts::HALTED | sts::PERIODIC | sts::ASYNCHRONOUS;
    let on = sts::PERIODIC | sts::ASYNCHRONOUS;
    assert!(m.wait_millis(10, |m| m.read32(reg::USBSTS) & all == on));
}

#[test]
fn ehci_reg_18_no_register_reads_as_all_ones() {
    let (mut m, _) = bare(15);
    let check = |m: &mut crate::driver::machine::Machine<_>| {
        for offset in (0..0x1000).step_by(4) {
            assert_ne!(m.read32(offset), 0xffff_ffff, "at {offset:#x}");
        }
    };
    check(&mut m);
    for offset in (0x20..0xb0).step_by(4).filter(|o| *o != reg::CTRLDSSEGMENT) {
        m.write32(offset, !cmd::RESET);
    }
    check(&mut m);
    m.write32(reg::USBCMD, cmd::RESET);
    check(&mut m);
}

#[test]
fn ehci_reg_19_park_mode_is_offered_and_can_be_switched_off() {
    let (mut m, _) = bare(1);
    assert_ne!(m.read32(0x08) & 4, 0, "ASPC");
    assert_eq!(m.read32(reg::USBCMD) & 0xb00, 0xb00);
    for park in [0x000, 0x100, 0x900, 0xa00] {
        m.write32(reg::USBCMD, park);
        assert_eq!(m.read32(reg::USBCMD) & 0xb00, park);
    }
}

#[test]
fn ehci_reg_20_a_byte_write_touches_its_byte_only() {
    let mut rig = Rig::new();
    rig.write(reg::USBINTR, 0);
    rig.ports[0].detach();
    rig.settle();
    assert_eq!(rig.status() & 0x3f, sts::PORT);
    rig.driver.machine.write(reg::USBSTS + 1, &[0]);
    rig.driver.machine.write(reg::USBSTS + 2, &[0xff, 0xff]);
    assert_eq!(rig.status() & 0x3f, sts::PORT);
    rig.driver.machine.write(reg::USBSTS, &[0x3f]);
    assert_eq!(rig.status() & 0x3f, 0);
    let command = rig.read(reg::USBCMD);
    rig.driver.machine.write(reg::USBCMD + 2, &[0x10]);
    assert_eq!(rig.read(reg::USBCMD), command & !0xff_0000 | 0x10_0000);
    rig.driver.machine.write(reg::USBCMD + 1, &[0xff, 0xff]);
    assert_eq!(rig.read(reg::USBCMD), command & !0xff_0000 | 0x10_0000, "misaligned: ignored");
}

#[test]
fn a_two_dword_access_is_two_accesses() {
    let (mut m, _) = bare(1);
    let mut both = [0; 8];
    both[..4].copy_from_slice(&0x1234_5000u32.to_le_bytes());
    both[4..].copy_from_slice(&0x0765_4320u32.to_le_bytes());
    m.write(reg::PERIODICLISTBASE, &both);
    assert_eq!(m.read32(reg::PERIODICLISTBASE), 0x1234_5000);
    assert_eq!(m.read32(reg::ASYNCLISTADDR), 0x0765_4320);
    let mut back = [0; 8];
    m.read(reg::PERIODICLISTBASE, &mut back);
    assert_eq!(back, both);
}
