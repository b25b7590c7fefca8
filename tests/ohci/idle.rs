//! What a guest that does nothing costs: how often its controller must be run.

use std::sync::{Arc, Mutex};

use vm_memory::GuestMemoryMmap;
use vm_usb::controller::{Context, HostController};
use vm_usb::devices::hid::{Key, Keyboard, KeyboardHandle};
use vm_usb::ohci::Ohci;
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{Speed, Wake};

use crate::driver::machine::Machine;
use crate::driver::scripted::Controls;
use crate::rig::*;

/// A keyboard that a driver polls: its ED in every eighth slot, with a TD that waits for a key.
struct Idle {
    rig: Rig,
    ed: u32,
    keyboard: KeyboardHandle,
}

fn with_keyboard(speed: Speed) -> Idle {
    let port = Port::classic();
    let keyboard = Keyboard::new(speed);
    let handle = keyboard.handle();
    port.attach(Box::new(keyboard)).map_err(|refused| refused.reason).unwrap();
    let mut m = Machine::new(Ohci::new(vec![port.link(Host::Classic)]));
    let hcca = m.alloc(256, 256);
    let mut rig = Rig { m, ports: vec![port], device: Controls::default(), hcca, control: 0 };
    rig.start();
    // SET_IDLE: reports only when a key moves, as every driver wants it.
    request(&rig.ports[0], [0x21, 0x0a, 0, 0, 0, 0, 0, 0]);
    let slow = if speed == Speed::Low { ed::LOW_SPEED } else { 0 };
    let ed = rig.ed(ed::control(ADDRESS, 1, 8) | ed::IN | slow, &[]);
    rig.append_in(ed, 8);
    for slot in (0..32).step_by(8) {
        rig.m.store(hcca + 4 * slot, ed);
    }
    rig.enable(control::PLE);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH | int::RHSC | int::UE | int::RD);
    Idle { rig, ed, keyboard: handle }
}

impl Idle {
    /// How often the controller asks to be run in so many milliseconds in which nothing happens.
    fn wakeups(&mut self, millis: u64) -> u64 {
        let m = &mut self.rig.m;
        let end = m.now.after_millis(millis);
        let mut count = 0;
        while let Some(deadline) = m.deadline().filter(|deadline| *deadline <= end) {
            m.now = deadline.max(m.now);
            m.run();
            count += 1;
            assert!(!m.line, "there is nothing to report");
        }
        m.now = end;
        count
    }

    /// What Linux does every 275 ms while an endpoint has a transfer queued: it compares
    /// HccaFrameNumber with the last one, and reads HcDoneHead.
    fn watchdog(&mut self, before: u32) -> u32 {
        let number = self.rig.hcca_frame();
        assert_ne!(number, before, "the controller seems dead");
        self.rig.m.read32(reg::DONE_HEAD);
        number
    }
}

#[test]
fn a_keyboard_that_nobody_touches_costs_eight_wakeups_a_second() {
    for speed in [Speed::Low, Speed::Full] {
        let mut idle = with_keyboard(speed);
        let settling = idle.wakeups(2000);
        assert!(settling <= 100, "{settling} in the first two seconds");
        let per_minute = idle.wakeups(60_000);
        assert!(per_minute <= 8 * 60, "{per_minute} in a minute");
    }
}

#[test]
fn a_key_is_reported_at_once_however_long_nothing_happened() {
    let mut idle = with_keyboard(Speed::Low);
    idle.wakeups(10_000);
    idle.keyboard.press(Key::from_usage(4).unwrap()).unwrap();
    // The device wakes the loop, which runs the controller at its deadline then.
    idle.rig.m.run();
    idle.rig.m.advance_millis(9);
    assert!(idle.rig.m.line, "within the endpoint's interval");
    assert_eq!(idle.rig.status() & int::WDH, int::WDH);
    idle.rig.m.write32(reg::INTERRUPT_STATUS, int::WDH);
    idle.rig.append_in(idle.ed, 8);
    // The driver is expected to go on for a while, then less and less.
    idle.rig.m.advance_millis(40);
    assert!(idle.wakeups(1000) <= 64);
    idle.wakeups(1000);
    assert!(idle.wakeups(1000) <= 8);
}

#[test]
fn a_driver_that_looks_at_the_frame_number_sees_it_move() {
    let mut idle = with_keyboard(Speed::Low);
    let mut number = idle.watchdog(u32::MAX);
    for _ in 0..100 {
        idle.wakeups(275);
        number = idle.watchdog(number);
    }
    // Nor may it be old for one that does not touch a register.
    for _ in 0..1000 {
        idle.wakeups(37);
        let before = idle.rig.hcca_frame() as u16;
        let age = idle.rig.m.deadline().unwrap().nanos_since(idle.rig.m.now) / 1_000_000;
        assert!(age <= 128);
        idle.wakeups(128);
        assert_ne!(idle.rig.hcca_frame() as u16, before);
    }
}

#[test]
fn a_suspended_bus_costs_nothing_and_a_key_still_wakes_it() {
    let mut idle = with_keyboard(Speed::Low);
    set_feature(&idle.rig.ports[0], 1);
    idle.wakeups(1000);
    idle.rig.write_control(control::SUSPEND | control::PLE | control::RWE);
    assert_eq!(idle.wakeups(3_600_000), 0);
    assert_eq!(idle.rig.m.deadline(), None);
    idle.keyboard.press(Key::from_usage(4).unwrap()).unwrap();
    idle.rig.m.run();
    assert!(idle.rig.m.line && idle.rig.m.take_wakeup());
    assert_eq!(idle.rig.m.read32(reg::CONTROL) & control::HCFS, control::RESUME);
}

#[test]
fn a_suspended_port_costs_no_more_than_an_empty_one() {
    let mut idle = with_keyboard(Speed::Low);
    // A driver takes its transfers back first: nobody would answer them.
    let word = idle.rig.m.load(idle.ed);
    idle.rig.m.store(idle.ed, word | ed::SKIP);
    idle.rig.m.write32(PORT, port::PSS);
    idle.wakeups(2000);
    assert!(idle.wakeups(60_000) <= 8 * 60);
}

/// A loop that looks the moment it is woken, before the hand that plugs a device in has let go.
#[derive(Default)]
struct Quick(Mutex<Option<Ohci>>);

fn no_memory() -> Context<'static, GuestMemoryMmap> {
    Context::without_dma(Time::from_nanos(1_000_000))
}

impl Wake for Quick {
    fn wake(&self) {
        if let Some(ohci) = &mut *self.0.lock().unwrap() {
            ohci.run(&no_memory());
        }
    }
}

#[test]
fn a_loop_that_is_quicker_than_the_hand_still_sees_the_device() {
    let port = Port::classic();
    let quick = Arc::new(Quick::default());
    // It may well be there before its controller is.
    port.subscribe(quick.clone());
    let mut ohci = Ohci::new(vec![port.link(Host::Classic)]);
    for (register, value) in [
        (reg::CONTROL, control::OPERATIONAL),
        (reg::RH_STATUS, 1 << 16),
        (reg::INTERRUPT_ENABLE, int::MIE | int::RHSC),
    ] {
        ohci.write(&no_memory(), register, &value.to_le_bytes());
    }
    let line = |ohci: &mut Ohci| HostController::<GuestMemoryMmap>::interrupt(ohci).asserted;
    assert!(!line(&mut ohci));
    *quick.0.lock().unwrap() = Some(ohci);
    port.attach(Box::new(Keyboard::new(Speed::Full))).map_err(|refused| refused.reason).unwrap();
    let mut ohci = quick.0.lock().unwrap().take().unwrap();
    assert!(line(&mut ohci), "nobody rings a second time");
}
