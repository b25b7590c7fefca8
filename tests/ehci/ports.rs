//! Root ports (EHCI 2.3.9, 4.2, 4.3): rules EHCI-PORT.

use vm_usb::topology::{Host, Port};
use vm_usb::usb::{Pid, Speed, Suspension};

use crate::driver::ehci::{EhciDriver, Td, cmd, port, reg, sts, token};
use crate::driver::host::HostDriver;
use crate::driver::machine::Machine;
use crate::driver::scripted::{Answer, Scripted, Seen};
use crate::rig::{OUT1, Rig, controller, is_done};

/// A driver whose controller shares its ports with a companion, so that any device may be plugged in.
fn shared(count: usize) -> (EhciDriver, Vec<Port>) {
    let ports: Vec<Port> = (0..count).map(|_| Port::shared()).collect();
    (EhciDriver::new(Machine::new(controller(&ports))), ports)
}

fn plug(port: &Port, speed: Speed) -> crate::driver::scripted::Controls {
    let (device, controls) = Scripted::new(speed);
    port.attach(Box::new(device)).unwrap();
    controls
}

#[test]
fn ehci_port_1_plugging_shows() {
    for (speed, line) in
        [(Speed::High, port::LINE_J), (Speed::Full, port::LINE_J), (Speed::Low, port::LINE_K)]
    {
        let (mut driver, ports) = shared(2);
        plug(&ports[1], speed);
        driver.machine.run();
        assert!(driver.machine.line);
        assert_eq!(driver.machine.read32(reg::USBSTS) & 0x3f, sts::PORT);
        let expected = port::CONNECT | port::CONNECT_CHANGE | port::POWER | line;
        assert_eq!(driver.port(1), expected);
        assert_eq!(driver.port(0), port::POWER);
    }
}

#[test]
fn ehci_port_2_reset_enables_a_high_speed_device() {
    let (mut driver, ports) = shared(1);
    let controls = plug(&ports[0], Speed::High);
    driver.machine.advance_millis(100);
    controls.take_seen();
    driver.set_port(0, port::RESET, port::ENABLED);
    driver.machine.advance_millis(50);
    assert_ne!(driver.port(0) & port::RESET, 0);
    assert_eq!(driver.port(0) & port::LINE, 0, "SE0");
    driver.set_port(0, 0, port::RESET);
    let status = driver.port(0);
    assert_eq!(status & (port::RESET | port::ENABLED), port::ENABLED);
    assert_eq!(controls.take_seen(), [Seen::Configured(0)], "one reset");
    assert_eq!(ports[0].link(Host::High).with(|f| f.speed()), Some(Speed::High));
}

#[test]
fn ehci_port_3_reset_does_not_enable_a_full_speed_device() {
    let (mut driver, ports) = shared(1);
    plug(&ports[0], Speed::Full);
    driver.machine.advance_millis(100);
    driver.set_port(0, port::RESET, port::ENABLED);
    driver.machine.advance_millis(50);
    driver.set_port(0, 0, port::RESET);
    let status = driver.port(0);
    assert_eq!(status & (port::RESET | port::ENABLED | port::CONNECT), port::CONNECT);
}

#[test]
fn ehci_port_4_reset_raises_nothing() {
    let (mut driver, ports) = shared(1);
    plug(&ports[0], Speed::High);
    driver.machine.advance_millis(100);
    driver.take_events();
    let status = driver.port(0);
    driver.machine.write32(reg::PORTSC, status);
    assert_eq!(driver.port(0) & port::CHANGES, 0);
    driver.set_port(0, port::RESET, port::ENABLED);
    driver.machine.advance_millis(50);
    driver.set_port(0, 0, port::RESET);
    driver.machine.advance_millis(1);
    assert_eq!(driver.port(0) & port::CHANGES, 0);
    assert_eq!(driver.take_events(), 0);
}

#[test]
fn ehci_port_5_software_disables_and_never_enables() {
    let mut rig = Rig::new();
    rig.driver.set_port(1, port::ENABLED, 0);
    assert_eq!(rig.driver.port(1) & port::ENABLED, 0);
    rig.driver.set_port(0, 0, port::ENABLED);
    assert_eq!(rig.driver.port(0) & (port::ENABLED | port::ENABLE_CHANGE), 0);
    rig.driver.set_port(0, port::ENABLED, 0);
    assert_eq!(rig.driver.port(0) & port::ENABLED, 0);
    let buffer = rig.buffer(64);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
    rig.driver.machine.advance_millis(2);
    assert_ne!(rig.token(qtd) & token::ERROR, 0, "nobody answers");
    assert_eq!(rig.packets(), []);
}

#[test]
fn ehci_port_6_unplugging_shows() {
    let mut rig = Rig::new();
    rig.ports[0].detach();
    rig.driver.machine.run();
    assert!(rig.driver.machine.line);
    assert_eq!(rig.driver.port(0), port::CONNECT_CHANGE | port::POWER);
    assert_eq!(rig.driver.take_events(), sts::PORT);
}

#[test]
fn ehci_port_7_babble_at_the_end_of_a_frame_disables_the_port() {
    let mut rig = Rig::new();
    rig.ports[0].babble();
    rig.driver.machine.run();
    assert!(rig.driver.machine.line);
    let status = rig.driver.port(0);
    let expected = port::CONNECT | port::ENABLE_CHANGE | port::POWER | port::LINE_J;
    assert_eq!(status, expected);
    assert_eq!(rig.driver.take_events(), sts::PORT);
}

#[test]
fn ehci_port_8_change_bits_clear_one_by_one() {
    let mut rig = Rig::new();
    rig.ports[0].babble();
    rig.driver.machine.run();
    rig.ports[0].set_over_current(true);
    rig.ports[0].detach();
    rig.driver.machine.run();
    assert_eq!(rig.driver.port(0) & port::CHANGES, port::CHANGES);
    rig.write(reg::PORTSC, port::POWER);
    assert_eq!(rig.driver.port(0) & port::CHANGES, port::CHANGES, "zeros keep them");
    let mut left = port::CHANGES;
    for bit in [port::OVER_CURRENT_CHANGE, port::CONNECT_CHANGE, port::ENABLE_CHANGE] {
        rig.write(reg::PORTSC, port::POWER | bit);
        left &= !bit;
        assert_eq!(rig.driver.port(0) & port::CHANGES, left);
    }
}

#[test]
fn ehci_port_9_a_suspended_port_is_quiet() {
    let mut rig = Rig::new();
    rig.driver.set_port(0, port::SUSPEND, 0);
    assert_ne!(rig.driver.port(0) & port::SUSPEND, 0);
    assert_eq!(rig.controls.take_seen(), [Seen::Suspension(Suspension::Suspended)]);
    let buffer = rig.buffer(64);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
    rig.driver.machine.advance_millis(2);
    assert_eq!(rig.controls.take_seen(), []);
    assert_ne!(rig.token(qtd) & token::ERROR, 0);
    rig.driver.set_port(0, 0, port::SUSPEND);
    assert_ne!(rig.driver.port(0) & port::SUSPEND, 0, "writing 0 alone changes nothing");
    // A port that is not enabled cannot be suspended.
    rig.driver.set_port(1, port::SUSPEND, 0);
    assert_eq!(rig.driver.port(1) & port::SUSPEND, 0);
}

#[test]
fn ehci_port_10_software_resumes() {
    let mut rig = Rig::new();
    rig.driver.set_port(0, port::RESUME, 0);
    assert_eq!(rig.driver.port(0) & port::RESUME, 0, "only a suspended port");
    rig.driver.set_port(0, port::SUSPEND, 0);
    rig.driver.set_port(0, port::RESUME, 0);
    assert_eq!(rig.driver.port(0) & (port::RESUME | port::SUSPEND), port::RESUME | port::SUSPEND);
    rig.driver.machine.advance_millis(20);
    rig.driver.set_port(0, 0, port::RESUME | port::SUSPEND);
    assert!(
        rig.driver.wait(2, |m| { m.read32(reg::PORTSC) & (port::RESUME | port::SUSPEND) == 0 })
    );
    assert_ne!(rig.driver.port(0) & port::ENABLED, 0);
    assert_eq!(rig.driver.take_events(), 0, "no port change");
    let seen = rig.controls.take_seen();
    assert_eq!(seen.last(), Some(&Seen::Suspension(Suspension::Resumed)));
    let buffer = rig.buffer(64);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
    rig.settle();
    assert!(is_done(rig.token(qtd)));
}

/// Lets the device wake its host.
fn enable_remote_wakeup(rig: &mut Rig) {
    use vm_usb::usb::{SetupPacket, request};
    let device = rig.device;
    let feature = SetupPacket::new(0, request::SET_FEATURE, 1, 0, 0);
    rig.driver.control(&device, feature, &[]).unwrap();
    rig.driver.sleep_millis(1);
    rig.driver.take_events();
}

#[test]
fn ehci_port_11_a_device_wakes_its_host() {
    let mut rig = Rig::new();
    enable_remote_wakeup(&mut rig);
    rig.driver.set_port(0, port::SUSPEND, 0);
    rig.controls.remote_wakeup();
    rig.driver.machine.run();
    assert!(rig.driver.machine.line);
    let status = rig.driver.port(0);
    let all = port::RESUME | port::SUSPEND | port::ENABLED;
    assert_eq!(status & all, all);
    assert_eq!(rig.driver.take_events(), sts::PORT);
    rig.driver.machine.advance_millis(20);
    rig.driver.set_port(0, 0, port::RESUME);
    assert_eq!(rig.driver.port(0) & all, port::ENABLED);
    // Without leave of the host it stays asleep, and an old wish is not kept.
    rig.controls.remote_wakeup();
    rig.driver.machine.run();
    rig.driver.set_port(0, port::SUSPEND, 0);
    rig.driver.machine.advance_millis(5);
    assert_eq!(rig.driver.port(0) & port::RESUME, 0);
}

#[test]
fn ehci_port_12_a_halted_controller_notices() {
    let mut rig = Rig::new();
    enable_remote_wakeup(&mut rig);
    rig.driver.set_port(0, port::SUSPEND, 0);
    rig.halt();
    rig.controls.remote_wakeup();
    rig.driver.machine.run();
    assert!(rig.driver.machine.line, "wake-up");
    rig.driver.take_events();
    plug(&rig.ports[1], Speed::High);
    rig.driver.machine.run();
    assert!(rig.driver.machine.line, "plugging");
    assert_eq!(rig.driver.take_events(), sts::PORT);
}

#[test]
fn ehci_port_13_port_power() {
    let mut rig = Rig::new();
    assert_ne!(rig.read(0x04) & 1 << 4, 0, "PPC");
    rig.write(reg::PORTSC, 0);
    assert_eq!(rig.driver.port(0), 0);
    assert_eq!(rig.controls.take_seen(), [Seen::Configured(0)], "the device lost its state");
    rig.write(reg::PORTSC, port::RESET);
    assert_eq!(rig.driver.port(0), 0, "nothing works without power");
    rig.driver.take_events();
    rig.write(reg::PORTSC, port::POWER);
    let expected = port::CONNECT | port::CONNECT_CHANGE | port::POWER | port::LINE_J;
    assert_eq!(rig.driver.port(0), expected);
    assert_eq!(rig.driver.take_events(), sts::PORT);
}

#[test]
fn ehci_port_14_over_current() {
    let mut rig = Rig::new();
    rig.ports[0].set_over_current(true);
    rig.driver.machine.run();
    let current = port::OVER_CURRENT | port::OVER_CURRENT_CHANGE;
    assert_eq!(rig.driver.port(0) & (current | port::ENABLED), current);
    assert_eq!(rig.driver.take_events(), sts::PORT);
    rig.driver.set_port(0, port::OVER_CURRENT_CHANGE, 0);
    assert_eq!(rig.driver.port(0) & current, port::OVER_CURRENT);
    rig.ports[0].set_over_current(false);
    rig.driver.machine.run();
    assert_eq!(rig.driver.port(0) & current, port::OVER_CURRENT_CHANGE);
    assert_eq!(rig.driver.take_events(), sts::PORT);
}

#[test]
fn ehci_port_15_reset_of_a_suspended_port() {
    let mut rig = Rig::new();
    rig.driver.set_port(0, port::SUSPEND, 0);
    rig.driver.set_port(0, port::RESUME, 0);
    rig.driver.set_port(0, port::RESET, port::ENABLED);
    assert_eq!(rig.driver.port(0) & (port::SUSPEND | port::RESUME), 0);
    rig.driver.machine.advance_millis(50);
    rig.driver.set_port(0, 0, port::RESET);
    assert_eq!(rig.driver.port(0) & (port::ENABLED | port::RESET), port::ENABLED);
}

#[test]
fn ehci_port_16_only_new_changes_raise_the_port_event() {
    let mut rig = Rig::new();
    rig.ports[0].detach();
    rig.driver.machine.run();
    rig.write(reg::USBSTS, sts::PORT);
    rig.driver.machine.advance_millis(5);
    assert_eq!(rig.status() & sts::PORT, 0);
    assert_ne!(rig.driver.port(0) & port::CONNECT_CHANGE, 0);
    plug(&rig.ports[0], Speed::High);
    rig.driver.machine.run();
    assert_eq!(rig.status() & sts::PORT, 0, "the change bit was 1 already");
    rig.ports[0].set_over_current(true);
    rig.driver.machine.run();
    assert_ne!(rig.status() & sts::PORT, 0);
}

#[test]
fn ehci_port_17_wake_enables_and_test_field_are_stored() {
    let mut rig = Rig::new();
    let before = rig.driver.port(0);
    for bits in [1 << 20, 1 << 21, 1 << 22, 3 << 16] {
        rig.driver.set_port(1, bits, 0);
        assert_eq!(rig.driver.port(1) & 0x7f_0000, bits);
        rig.driver.set_port(1, 0, bits);
    }
    rig.driver.set_port(1, 0x7f_0000, 0);
    assert_eq!(rig.driver.port(0), before, "other ports are not disturbed");
    rig.write(reg::USBCMD, cmd::RESET);
    assert_eq!(rig.driver.port(1) & 0x7f_0000, 0);
}

#[test]
fn a_port_that_sends_test_patterns_sends_nothing_else() {
    for mode in 1..=4u32 {
        let mut rig = Rig::new();
        let buffer = rig.buffer(64);
        let mut queue = rig.open(OUT1, 0);
        rig.driver.set_port(0, mode << 16, 0);
        let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
        rig.driver.machine.advance_millis(2);
        assert_eq!(rig.packets(), []);
        assert_ne!(rig.token(qtd) & token::ERROR, 0, "nobody answers");
        // A reset of the controller ends it (EHCI 4.14).
        rig.write(reg::USBCMD, cmd::RESET);
        assert_eq!(rig.driver.port(0) >> 16 & 0xf, 0);
    }
}

#[test]
fn a_port_can_be_forced_on() {
    let mut rig = Rig::new();
    // With nothing plugged in, as for a look at the signals of the port.
    rig.halt();
    rig.driver.set_port(1, 5 << 16, 0);
    assert_ne!(rig.driver.port(1) & port::ENABLED, 0);
    assert_eq!(rig.driver.port(0) >> 16 & 0xf, 0, "no other port is touched");
    // A device that never agreed to high speed does not follow.
    let (mut driver, ports) = shared(1);
    plug(&ports[0], Speed::Full);
    driver.machine.run();
    driver.set_port(0, 5 << 16, 0);
    assert_eq!(driver.port(0) & port::ENABLED, 0);
}

#[test]
fn ehci_port_18_unplugging_in_the_middle_of_a_reset() {
    let mut rig = Rig::new();
    rig.driver.set_port(0, port::RESET, port::ENABLED);
    rig.driver.machine.advance_millis(10);
    rig.ports[0].detach();
    rig.driver.machine.advance_millis(10);
    let status = rig.driver.port(0);
    assert_eq!(status & (port::CONNECT | port::CONNECT_CHANGE), port::CONNECT_CHANGE);
    rig.driver.set_port(0, 0, port::RESET);
    assert_eq!(rig.driver.port(0) & (port::ENABLED | port::RESET), 0);
}

#[test]
fn a_device_swapped_between_two_looks_is_a_new_one() {
    let mut rig = Rig::new();
    rig.ports[0].detach();
    plug(&rig.ports[0], Speed::High);
    rig.driver.machine.run();
    let status = rig.driver.port(0);
    let bits = port::CONNECT | port::CONNECT_CHANGE | port::ENABLED;
    assert_eq!(status & bits, port::CONNECT | port::CONNECT_CHANGE);
    rig.enumerate();
}

#[test]
fn the_address_of_a_device_is_its_own_after_reset() {
    // Two devices: resetting one leaves the other alone.
    let mut rig = Rig::new();
    let controls = plug(&rig.ports[1], Speed::High);
    rig.driver.sleep_millis(1);
    assert_eq!(rig.driver.reset_port(1), Some(Speed::High));
    controls.take_seen();
    let pipe = rig.bulk(OUT1);
    rig.controls.answer(OUT1, [Answer::Take(64)]);
    rig.driver.send(&pipe, &[1; 64]).unwrap();
    assert_eq!(rig.controls.take_received(OUT1), [1; 64]);
    assert_eq!(controls.take_seen(), []);
}
