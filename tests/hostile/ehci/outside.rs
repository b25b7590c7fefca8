//! What lies outside the controller: memory that goes away, saved state, devices, the clock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_usb::controller::{Context, HostController};
use vm_usb::snapshot;
use vm_usb::usb::{
    BusError, Description, EndpointAddress, Outcome, Pid, Speed, Status, Transfer, UsbDevice,
};

use super::rig::{IN1, OUT1, Rig, is_done, pattern};
use super::*;
use crate::driver::machine::RAM;
use crate::driver::recorder::Recorder;
use crate::driver::scripted::{Answer, Scripted, Seen};
use crate::forge::forgeries;

#[test]
fn ehci_hg_37_memory_that_goes_away_is_a_host_system_error() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(OUT1, 0);
    let whole = rig.driver.machine.memory.clone();
    // The guest gives all but its first pages back.
    let rest = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)]);
    rig.driver.machine.memory = rest;
    let gone = work(&mut rig, |rig| rig.driver.machine.advance_millis(10));
    assert!(gone.most <= 8 * LOOK, "{gone:?}");
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0);
    rig.driver.machine.memory = whole;
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_37_every_change_of_memory_goes_through_its_interface() {
    // What tracks dirty pages sees what the interface is asked for: nothing else may change.
    let mut rig = Rig::new();
    let mut queue = rig.open(IN1, 0);
    let buffer = rig.buffer(0x5000);
    rig.controls.answer(IN1, [Answer::Data(pattern(0x4000))]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer + 0x123, 0x4100)])[0];
    let before = rig.driver.machine.bytes(0, RAM as usize);
    let accesses = rig.driver.machine.record(1000);
    let after = rig.driver.machine.bytes(0, RAM as usize);
    assert!(is_done(rig.token(qtd)));
    let mut changed = 0;
    for (at, (old, new)) in before.iter().zip(&after).enumerate() {
        if old != new {
            changed += 1;
            let told = accesses.iter().any(|access| access.write && access.touches(at as u32, 1));
            assert!(told, "{at:#x}");
        }
    }
    assert!(changed > 0x3000);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_38_forged_state_is_refused_or_harmless() {
    let mut rig = Rig::new();
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    let buffer = rig.buffer(512);
    rig.controls.answer(IN1, [Answer::Pending]);
    let mut queue = rig.open(IN1, 4);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
    rig.driver.machine.advance_millis(1);
    let now = rig.driver.machine.now;
    let saved = snapshot::save(now, &[("controller", &rig.driver.machine.controller)]).unwrap();
    let restore = |rig: &mut Rig, bytes: &[u8]| {
        let now = rig.driver.machine.now;
        let parts = &mut [("controller", &mut rig.driver.machine.controller as &mut _)];
        snapshot::restore(bytes, now, parts).is_ok()
    };
    // What is in flight begins anew.
    rig.controls.take_seen();
    assert!(restore(&mut rig, &saved));
    rig.driver.machine.advance_millis(1);
    let seen = rig.controls.take_seen();
    assert_eq!(seen[0], Seen::Cancel(IN1), "{seen:?}");
    assert!(matches!(seen[1], Seen::Transfer { .. }), "{seen:?}");
    let mut restored = 0;
    for (what, bytes) in forgeries(&saved) {
        if restore(&mut rig, &bytes) {
            restored += 1;
            let work = work(&mut rig, |rig| rig.driver.machine.advance_millis(2));
            assert!(work.calls < 1000, "{what}: {work:?}");
        }
    }
    assert!(restored > 50, "{restored}");
    rig.driver.machine.reset();
    assert_works_after_reset(rig);
}

/// A device that says whatever it likes about transfers it has never seen.
struct Liar {
    honest: Scripted,
    lies: Arc<Mutex<VecDeque<Outcome>>>,
}

impl UsbDevice for Liar {
    fn description(&self) -> &Description {
        self.honest.description()
    }

    fn configured(&mut self, _: u8) {}

    fn transfer(&mut self, _: EndpointAddress, _: &mut Transfer<'_>) -> Outcome {
        self.lies.lock().unwrap().pop_front().unwrap_or(Outcome::NAK)
    }
}

#[test]
fn ehci_hg_39_a_device_may_claim_what_it_likes() {
    let statuses = [
        Status::Complete,
        Status::Stall,
        Status::Error(BusError::Timeout),
        Status::Error(BusError::Babble),
        Status::Pending,
    ];
    for status in statuses {
        for bytes in [1, 511, 513, 0x5000, 0x5001, usize::MAX] {
            let mut rig = Rig::new();
            let (honest, _) = Scripted::new(Speed::High);
            let lies = Arc::<Mutex<VecDeque<Outcome>>>::default();
            lies.lock().unwrap().extend(vec![Outcome { bytes, status }; 4]);
            rig.ports[0].detach();
            rig.ports[0].attach(Box::new(Liar { honest, lies })).map_err(|r| r.reason).unwrap();
            rig.driver.machine.run();
            rig.enumerate();
            let buffer = rig.buffer(0x6000);
            rig.driver.machine.fill(buffer, &[0x55; 0x6000]);
            let mut queue = rig.open(IN1, 4);
            let work = work(&mut rig, |rig| {
                rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 0x1000)]);
                rig.driver.machine.advance_millis(5);
            });
            assert!(work.most <= 8 * VISIT, "{status:?} {bytes}: {work:?}");
            let t = rig.load(queue.head + 0x18);
            assert!(t >> 16 & 0x7fff <= 0x1000, "{status:?} {bytes}: {t:#x}");
            assert_eq!(rig.driver.machine.bytes(buffer, 0x6000), [0x55; 0x6000]);
            assert_eq!(rig.status() & (sts::HALTED | sts::SYSTEM_ERROR), 0);
        }
    }
    // More than was asked for, readiness of what nobody waits for, and twice, and after a cancel.
    let mut rig = Rig::new();
    let buffer = rig.buffer(0x1000);
    rig.driver.machine.fill(buffer, &[0x55; 0x1000]);
    let mut queue = rig.open(IN1, 4);
    rig.controls.announce(IN1);
    rig.controls.answer(IN1, [Answer::Pending, Answer::Data(vec![7; 2000])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 700)])[0];
    rig.driver.machine.advance_millis(1);
    (0..1000).for_each(|_| rig.controls.announce(IN1));
    let late = work(&mut rig, |rig| rig.driver.machine.advance_millis(1));
    assert!(late.most <= 2 * VISIT, "{late:?}");
    assert!(!is_done(rig.token(qtd)), "babble");
    assert_eq!(rig.driver.machine.bytes(buffer + 700, 0x500), [0x55; 0x500]);
    rig.driver.unlink(&queue);
    let before = rig.driver.machine.bytes(buffer, 0x1000);
    rig.controls.answer(IN1, [Answer::Data(vec![9; 512])]);
    rig.controls.announce(IN1);
    rig.driver.machine.advance_millis(2);
    assert_eq!(rig.driver.machine.bytes(buffer, 0x1000), before);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_40_a_clock_that_jumps() {
    let mut rig = Rig::new();
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    for nanos in [3_600_000_000_000, u64::MAX / 2, u64::MAX / 4, u64::MAX] {
        let jump = work(&mut rig, |rig| {
            rig.driver.machine.now = rig.driver.machine.now.after_nanos(nanos);
            rig.driver.machine.run();
            rig.status();
        });
        assert!(jump.most <= 4096, "an empty list: {jump:?}");
        let _ = rig.driver.machine.deadline();
    }
}

#[test]
fn ehci_hg_53_a_device_may_speak_while_a_register_is_written() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 4);
    rig.controls.answer(IN1, vec![Answer::Park; 100_000]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
    let (now, memory) = (rig.driver.machine.now, rig.driver.machine.memory.clone());
    let (controls, controller) =
        (rig.controls.clone(), Mutex::new(&mut rig.driver.machine.controller));
    let hammer = || {
        for n in 0..500 {
            let recorder = Recorder::new(&memory);
            let context = Context::new(&recorder, now.after_micros(n * 10));
            let mut controller = controller.lock().unwrap();
            controller.write(&context, reg::USBSTS, &0x3f_u32.to_le_bytes());
            controller.run(&context);
            assert!(recorder.into_log().len() as u64 <= MOST_ACCESSES);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(hammer);
        scope.spawn(hammer);
        scope.spawn(|| (0..2_000).for_each(|_| controls.announce(IN1)));
    });
    rig.driver.machine.advance_millis(10);
    assert_works_after_reset(rig);
}
