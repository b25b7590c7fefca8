//! Interrupts (EHCI 4.15): rules EHCI-INT.

use vm_usb::pci::Placement;
use vm_usb::time::Time;
use vm_usb::topology::Port;
use vm_usb::usb::{BusError, Pid, Speed};

use crate::driver::ehci::{Queue, Td, cmd, reg, sts, token};
use crate::driver::scripted::{Answer, Scripted};
use crate::pci::Pci;
use crate::rig::{IN1, IN3, OUT1, Rig, bare, is_done, pattern};

/// Sets the interrupt threshold, in microframes.
fn set_threshold(rig: &mut Rig, microframes: u32) {
    let command = rig.read(reg::USBCMD) & !0xff_0000;
    rig.write(reg::USBCMD, command | microframes << 16);
}

/// Submits a transfer with IOC that completes at the next look, and looks.
fn complete_one(rig: &mut Rig, queue: &mut Queue) -> Time {
    let buffer = rig.buffer(64);
    let qtd = rig.submit(queue, &[Td::new(Pid::Out, buffer, 64).ioc()])[0];
    rig.driver.machine.run();
    while !is_done(rig.token(qtd)) {
        rig.driver.machine.advance_micros(1);
    }
    rig.driver.machine.now
}

#[test]
fn ehci_int_1_everything_is_in_memory_when_the_interrupt_comes() {
    let mut rig = Rig::new();
    let data = pattern(512);
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(data.clone())]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512).ioc()])[0];
    while !rig.driver.machine.line {
        assert_eq!(rig.driver.machine.interrupts.last().map(|i| i.1.asserted), Some(false));
        rig.driver.machine.advance_nanos(200);
    }
    assert!(is_done(rig.token(qtd)) && is_done(rig.overlay(&queue)));
    assert_eq!(rig.driver.machine.bytes(buffer, 512), data);
    assert_eq!(rig.status() & 0x3f, sts::INT);
}

#[test]
fn ehci_int_2_the_line_is_status_and_enable() {
    let mut rig = Rig::new();
    rig.write(reg::USBINTR, 0);
    // All six events: completion with error, port change, rollover, system error, doorbell.
    let mut queue = rig.open(IN1, 0);
    let buffer = rig.buffer(64);
    rig.controls.answer(IN1, [Answer::Stall]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64).ioc()]);
    rig.ports[0].detach();
    rig.driver.machine.advance_millis(1);
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | cmd::DOORBELL);
    rig.driver.machine.advance_millis(1_100);
    let ring = rig.driver.ring;
    rig.store(ring, 0xfff0_0000);
    rig.driver.machine.advance_millis(10);
    assert_eq!(rig.status() & 0x3f, 0x3f);
    for enable in 0..=0x3f {
        rig.write(reg::USBINTR, enable);
        assert_eq!(rig.driver.machine.line, enable != 0);
    }
    rig.write(reg::USBINTR, 0x3f);
    for bit in 0..6 {
        assert!(rig.driver.machine.line);
        rig.write(reg::USBSTS, 1 << bit);
        for enable in 0..=0x3f {
            rig.write(reg::USBINTR, enable);
            let line = rig.driver.machine.line;
            assert_eq!(line, rig.status() & enable & 0x3f != 0);
        }
    }
    assert!(!rig.driver.machine.line);
}

#[test]
fn ehci_int_3_an_event_after_the_acknowledgement_is_a_new_one() {
    let mut rig = Rig::new();
    let mut queue = rig.open(OUT1, 0);
    complete_one(&mut rig, &mut queue);
    rig.driver.machine.advance_millis(1);
    assert!(rig.driver.machine.line);
    rig.write(reg::USBSTS, sts::INT);
    assert!(!rig.driver.machine.line);
    rig.driver.machine.interrupts.clear();
    complete_one(&mut rig, &mut queue);
    rig.driver.machine.advance_millis(1);
    assert!(rig.driver.machine.line);
    let events = rig.driver.machine.interrupts.iter().filter(|(_, i)| i.event).count();
    assert_eq!(events, 1, "one message");
}

#[test]
fn ehci_int_4_a_stream_of_completions_is_reported_at_the_threshold() {
    let mut rig = Rig::new();
    set_threshold(&mut rig, 8);
    rig.driver.machine.advance_millis(10);
    rig.driver.machine.interrupts.clear();
    let mut queue = rig.open_interrupt(IN3, 0xff, 1);
    let buffer = rig.buffer(64);
    rig.controls.answer(IN3, vec![Answer::Data(vec![1; 64]); 80]);
    let qtds = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64).ioc(); 80]);
    let mut done_at = vec![None; qtds.len()];
    let mut reports = vec![];
    while rig.driver.machine.now.nanos_since(Time::ZERO) != 0 && reports.len() < 10 {
        rig.driver.machine.advance_micros(25);
        for (qtd, done) in qtds.iter().zip(&mut done_at) {
            if done.is_none() && is_done(rig.token(*qtd)) {
                *done = Some(rig.driver.machine.now);
            }
        }
        if rig.driver.machine.line {
            let at = rig.driver.machine.interrupts.last().unwrap().0;
            reports.push(at);
            rig.write(reg::USBSTS, sts::INT);
        }
    }
    for pair in reports.windows(2) {
        let spacing = pair[1].nanos_since(pair[0]);
        assert!(spacing >= 1_000_000, "{spacing} ns");
        assert!(spacing <= 1_100_000, "each at most 8 microframes after its event: {spacing} ns");
    }
    assert!(done_at.iter().flatten().count() >= 72);
}

#[test]
fn ehci_int_5_after_a_quiet_time_a_completion_is_reported_at_once() {
    let mut rig = Rig::new();
    set_threshold(&mut rig, 1);
    let mut queue = rig.open(OUT1, 0);
    for offset in [0, 17, 60, 111] {
        rig.driver.machine.advance_millis(10);
        rig.driver.machine.advance_micros(offset);
        rig.driver.machine.interrupts.clear();
        let done = complete_one(&mut rig, &mut queue);
        rig.driver.machine.advance_micros(125);
        let (at, _) = rig.driver.machine.interrupts[0];
        assert!(at.nanos_since(done) <= 125_000);
        rig.driver.take_events();
    }
    // Also when a device says out of the blue that it is done.
    let buffer = rig.buffer(64);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Pending, Answer::Data(vec![1; 64])]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64).ioc()]);
    rig.driver.machine.advance_millis(7);
    rig.driver.machine.advance_micros(33);
    rig.controls.announce(IN1);
    rig.driver.machine.run();
    assert!(rig.driver.machine.line, "in the very turn");
}

#[test]
fn ehci_int_6_the_next_report_keeps_its_distance() {
    let mut rig = Rig::new();
    set_threshold(&mut rig, 8);
    let mut queue = rig.open(OUT1, 0);
    rig.driver.machine.advance_millis(10);
    rig.driver.machine.interrupts.clear();
    let first = complete_one(&mut rig, &mut queue);
    rig.driver.machine.advance_micros(125);
    assert!(rig.driver.machine.line, "at once");
    rig.write(reg::USBSTS, sts::INT);
    complete_one(&mut rig, &mut queue);
    rig.driver.machine.advance_millis(3);
    let raised: Vec<Time> = rig
        .driver
        .machine
        .interrupts
        .iter()
        .filter(|(_, i)| i.asserted)
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(raised.len(), 2);
    assert!(raised[0].nanos_since(first) <= 125_000);
    let spacing = raised[1].nanos_since(raised[0]);
    assert!((1_000_000..=1_125_000).contains(&spacing), "{spacing} ns");
}

#[test]
fn ehci_int_7_the_handler_reads_the_present_frame_index() {
    let mut rig = Rig::new();
    rig.set_frame_index(0);
    let begin = rig.driver.machine.now;
    let mut queue = rig.open(IN1, 0);
    let buffer = rig.buffer(64);
    rig.controls.answer(IN1, [Answer::Pending, Answer::Data(vec![1; 64])]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64).ioc()]);
    rig.driver.machine.advance_millis(3);
    // The host sleeps; the device wakes it in the middle of a frame.
    rig.driver.machine.now = begin.after_micros(3_000 + 800 + 33);
    rig.controls.announce(IN1);
    rig.driver.machine.run();
    assert!(rig.driver.machine.line);
    let expected = rig.driver.machine.now.nanos_since(begin) / 125_000;
    assert_eq!(u64::from(rig.read(reg::FRINDEX)), expected);
}

#[test]
fn ehci_int_8_a_port_change_does_not_wait() {
    let mut rig = Rig::new();
    set_threshold(&mut rig, 64);
    let mut queue = rig.open(OUT1, 0);
    complete_one(&mut rig, &mut queue);
    rig.driver.machine.advance_micros(200);
    rig.driver.take_events();
    rig.ports[0].detach();
    rig.driver.machine.run();
    assert!(rig.driver.machine.line);
    assert_eq!(rig.status() & 0x3f, sts::PORT);
}

#[test]
fn ehci_int_9_rollover_of_each_list_size() {
    for (size, microframes) in [(0u32, 0x2000u32), (1, 0x1000), (2, 0x800)] {
        let (mut m, _) = bare(1);
        m.write32(reg::FRINDEX, microframes - 80);
        m.write32(reg::USBINTR, sts::ROLLOVER);
        m.write32(reg::USBCMD, cmd::RUN | size << 2 | 64 << 16);
        m.advance_micros(9_900);
        assert_eq!(m.read32(reg::USBSTS) & sts::ROLLOVER, 0);
        m.interrupts.clear();
        m.advance_micros(200);
        assert!(m.line, "the controller asked to be run for it");
        assert_eq!(m.interrupts[0].0.nanos_since(Time::from_nanos(1_000_000_000)), 10_000_000);
        m.write32(reg::USBSTS, sts::ROLLOVER);
        // A whole list further on, once.
        m.advance_micros(u64::from(microframes) * 125 - 300);
        assert!(!m.line);
        m.advance_micros(300);
        assert!(m.line);
    }
}

#[test]
fn ehci_int_10_halts_raise_the_error_interrupt() {
    let halts = [
        vec![Answer::Error(BusError::Timeout); 3],
        vec![Answer::Stall],
        vec![Answer::Error(BusError::Babble)],
    ];
    for answers in halts {
        for ioc in [false, true] {
            let mut rig = Rig::new();
            let buffer = rig.buffer(64);
            let mut queue = rig.open(IN1, 0);
            rig.controls.answer(IN1, answers.clone());
            let td = Td::new(Pid::In, buffer, 64);
            let qtd = rig.submit(&mut queue, &[if ioc { td.ioc() } else { td }])[0];
            rig.driver.machine.advance_millis(2);
            assert_ne!(rig.token(qtd) & token::HALTED, 0);
            let expected = if ioc { sts::INT | sts::ERROR } else { sts::ERROR };
            assert_eq!(rig.driver.take_events(), expected);
        }
    }
}

#[test]
fn ehci_int_11_an_error_that_is_made_good_raises_nothing() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(64);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Error(BusError::Timeout), Answer::Data(vec![1; 64])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)])[0];
    rig.driver.machine.advance_millis(2);
    assert!(is_done(rig.token(qtd)));
    assert_ne!(rig.token(qtd) & token::ERROR, 0, "XactErr sticks");
    assert_eq!(rig.driver.take_events(), 0);
}

#[test]
fn ehci_int_13_complete_transfers_without_ioc_raise_nothing() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(1024);
    let (mut out, mut r#in) = (rig.open(OUT1, 0), rig.open(IN1, 0));
    rig.controls.answer(IN1, [Answer::Data(vec![1; 1024])]);
    let out = rig.submit(&mut out, &[Td::new(Pid::Out, buffer, 600)])[0];
    let r#in = rig.submit(&mut r#in, &[Td::new(Pid::In, buffer, 1024)])[0];
    rig.driver.machine.advance_millis(2);
    assert!(is_done(rig.token(out)) && is_done(rig.token(r#in)));
    assert_eq!(rig.driver.take_events(), 0);
    assert_eq!(rig.status() & 0x3f, 0);
}

/// A running controller with one empty port.
fn running() -> Pci {
    Pci::running(vec![Port::high_speed_only()], Placement::default())
}

fn plug(pci: &mut Pci) {
    pci.ports[0].attach(Box::new(Scripted::new(Speed::High).0)).unwrap();
    pci.run();
}

#[test]
fn ehci_int_14_a_bit_that_stays_sends_one_message() {
    let mut pci = running();
    let msi = pci.capability(5).expect("message signalled interrupts");
    pci.set_config(msi + 4, &0xfee0_1000u32.to_le_bytes());
    pci.set_config16(msi + 2, 1);
    plug(&mut pci);
    assert_eq!(pci.told(|t| t.messages), 1);
    pci.advance_millis(5);
    assert_eq!(pci.told(|t| t.messages), 1);
    pci.write32(reg::USBCMD, cmd::RUN | cmd::DOORBELL);
    assert_eq!(pci.told(|t| t.messages), 1, "the driver may be about to look at the status");
    pci.advance_millis(1);
    assert_eq!(pci.told(|t| t.messages), 2, "a second bit, one more");
    pci.advance_millis(5);
    assert_eq!(pci.told(|t| t.messages), 2);
    assert_eq!(pci.told(|t| t.levels.len()), 0, "no INTx");
}

#[test]
fn ehci_int_15_interrupt_disable_hides_the_line_not_the_status() {
    let mut pci = running();
    pci.set_config16(4, 0x406);
    plug(&mut pci);
    assert_eq!(pci.told(|t| t.levels.len()), 0);
    assert_ne!(pci.config16(6) & 8, 0);
    pci.set_config16(4, 0x6);
    assert_eq!(pci.told(|t| t.levels.clone()), [true]);
    pci.write32(reg::USBSTS, 0x3f);
    assert_eq!(pci.told(|t| t.levels.clone()), [true, false]);
    assert_eq!(pci.config16(6) & 8, 0);
}

/// Microseconds of one disk command (31 bytes out, 4 KiB in, 13 bytes in) for a driver that submits
/// each transfer from its interrupt handler, 20 us after the interrupt.
fn command_micros(prompt: bool) -> u128 {
    const COMMANDS: u128 = 50;
    let mut rig = Rig::with(|ehci| ehci.with_prompt_commit(prompt));
    let (mut out, mut r#in) = (rig.open(OUT1, 4), rig.open(IN1, 4));
    let buffer = rig.buffer(4096);
    let begin = rig.driver.machine.now;
    for _ in 0..COMMANDS {
        rig.controls.answer(IN1, [Answer::Data(vec![1; 4096]), Answer::Data(vec![2; 13])]);
        for (pid, len) in [(Pid::Out, 31), (Pid::In, 4096), (Pid::In, 13)] {
            let queue = if pid == Pid::Out { &mut out } else { &mut r#in };
            let qtd = rig.submit(queue, &[Td::new(pid, buffer, len).ioc()])[0];
            while !rig.driver.machine.line {
                rig.driver.machine.advance_micros(5);
            }
            assert!(is_done(rig.token(qtd)));
            rig.driver.service();
            rig.driver.machine.advance_micros(20);
        }
    }
    rig.driver.machine.now.since(begin).as_micros() / COMMANDS
}

#[test]
fn prompt_reports_save_the_wait_for_the_frame() {
    let (prompt, late) = (command_micros(true), command_micros(false));
    assert!(late >= 3_000, "three frames: {late} us");
    assert!(prompt * 18 <= late * 10, "{prompt} us instead of {late} us");
}
