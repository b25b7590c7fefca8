//! Ports shared with a companion controller (EHCI 4.2): rules EHCI-COMP.

use vm_usb::ehci::Ehci;
use vm_usb::topology::{Host, Port, PortLink};
use vm_usb::usb::Speed;

use crate::driver::ehci::{EhciDriver, cmd, port, reg, sts};
use crate::driver::host::HostDriver;
use crate::driver::machine::Machine;
use crate::driver::scripted::Scripted;
use crate::rig::controller;

/// A controller with two shared ports, and the companion's side of them.
fn shared() -> (Machine<Ehci>, Vec<Port>, Vec<PortLink>) {
    let ports = vec![Port::shared(), Port::shared()];
    let companion = ports.iter().map(|port| port.link(Host::Classic)).collect();
    (Machine::new(controller(&ports)), ports, companion)
}

fn plug(port: &Port, speed: Speed) {
    port.attach(Box::new(Scripted::new(speed).0)).unwrap();
}

fn powered(m: &mut Machine<Ehci>) {
    for n in 0..2 {
        let register = reg::PORTSC + 4 * n;
        let value = m.read32(register) & !port::CHANGES;
        m.write32(register, value | port::POWER);
    }
}

#[test]
fn ehci_comp_1_before_configflag_everything_is_the_companions() {
    let (mut m, ports, companion) = shared();
    powered(&mut m);
    plug(&ports[0], Speed::High);
    m.run();
    for n in 0..2 {
        assert_eq!(m.read32(reg::PORTSC + 4 * n), port::OWNER | port::POWER);
    }
    assert_eq!(m.read32(reg::USBSTS) & sts::PORT, 0);
    assert_eq!(companion[0].view().device, Some(Speed::Full));
    m.write32(reg::PORTSC, port::POWER);
    assert_ne!(m.read32(reg::PORTSC) & port::OWNER, 0, "PO cannot be cleared now");
}

#[test]
fn ehci_comp_2_configflag_takes_the_ports() {
    let (mut m, ports, companion) = shared();
    powered(&mut m);
    plug(&ports[0], Speed::High);
    plug(&ports[1], Speed::Low);
    m.run();
    m.write32(reg::CONFIGFLAG, 1);
    for (n, line) in [(0, port::LINE_J), (1, port::LINE_K)] {
        let expected = port::CONNECT | port::CONNECT_CHANGE | port::POWER | line;
        assert_eq!(m.read32(reg::PORTSC + 4 * n), expected);
        assert_eq!(companion[n as usize].view().device, None, "gone for the companion");
    }
    assert_ne!(m.read32(reg::USBSTS) & sts::PORT, 0);
}

#[test]
fn ehci_comp_3_configflag_gives_them_back() {
    let (mut m, ports, companion) = shared();
    powered(&mut m);
    plug(&ports[0], Speed::High);
    m.write32(reg::CONFIGFLAG, 1);
    m.write32(reg::CONFIGFLAG, 0);
    for n in 0..2 {
        let status = m.read32(reg::PORTSC + 4 * n);
        assert_eq!(status & (port::OWNER | port::CONNECT), port::OWNER);
    }
    assert_eq!(companion[0].view().device, Some(Speed::Full));
}

#[test]
fn ehci_comp_4_a_full_speed_device_is_handed_over() {
    let (m, ports, companion) = shared();
    let mut driver = EhciDriver::new(m);
    plug(&ports[0], Speed::Full);
    driver.sleep_millis(100);
    // Acknowledge, so that the change by the hand-over shows.
    let status = driver.port(0);
    driver.machine.write32(reg::PORTSC, status);
    driver.take_events();
    assert_eq!(driver.reset_port(0), None, "not at high speed: the driver sets PO");
    let status = driver.port(0);
    let bits = port::OWNER | port::CONNECT | port::CONNECT_CHANGE | port::ENABLED;
    assert_eq!(status & bits, port::OWNER | port::CONNECT_CHANGE);
    assert_eq!(driver.take_events(), sts::PORT);
    assert_eq!(companion[0].view().device, Some(Speed::Full));
    let speed = companion[0].with(|function| function.bus_reset(companion[0].fastest()));
    assert_eq!(speed, Some(Speed::Full), "it works there");
}

#[test]
fn ehci_comp_5_an_emptied_port_comes_back() {
    let (m, ports, _) = shared();
    let mut driver = EhciDriver::new(m);
    plug(&ports[0], Speed::Full);
    driver.sleep_millis(100);
    driver.reset_port(0);
    driver.machine.run();
    assert_ne!(driver.port(0) & port::OWNER, 0);
    ports[0].detach();
    driver.machine.run();
    assert_eq!(driver.port(0) & (port::OWNER | port::CONNECT), 0);
    plug(&ports[0], Speed::High);
    driver.machine.run();
    assert_ne!(driver.port(0) & port::CONNECT, 0);
    assert_eq!(driver.reset_port(0), Some(Speed::High));
    // A device swapped while the companion owns the port.
    driver.set_port(0, port::OWNER, port::ENABLED);
    assert_ne!(driver.port(0) & port::OWNER, 0);
    ports[0].detach();
    plug(&ports[0], Speed::High);
    driver.machine.run();
    assert_eq!(driver.port(0) & (port::OWNER | port::CONNECT), port::CONNECT);
}

#[test]
fn ehci_comp_6_the_companion_has_all_ports_in_order() {
    let (mut m, ports, companion) = shared();
    let parameters = m.read32(0x04);
    assert_eq!(parameters & 0xf, 2, "N_PORTS");
    assert_eq!(parameters >> 7 & 1, 0, "PRR");
    assert_eq!(parameters >> 8 & 0xf, 2, "N_PCC");
    assert_eq!(parameters >> 12 & 0xf, 1, "N_CC");
    plug(&ports[1], Speed::Full);
    assert_eq!(companion[0].view().device, None);
    assert_eq!(companion[1].view().device, Some(Speed::Full));
}

#[test]
fn ehci_comp_7_an_event_outlives_the_acknowledgement_of_the_same_write() {
    let (m, ports, _) = shared();
    let mut driver = EhciDriver::new(m);
    plug(&ports[0], Speed::Full);
    driver.sleep_millis(1);
    assert_ne!(driver.port(0) & port::CONNECT_CHANGE, 0);
    driver.machine.write32(reg::PORTSC, port::POWER | port::OWNER | port::CONNECT_CHANGE);
    assert_ne!(driver.port(0) & port::CONNECT_CHANGE, 0);
}

#[test]
fn ehci_comp_8_a_reset_does_not_disturb_the_companions_device() {
    let (m, ports, companion) = shared();
    let mut driver = EhciDriver::new(m);
    plug(&ports[0], Speed::Full);
    driver.sleep_millis(1);
    driver.reset_port(0);
    companion[0].with(|function| function.bus_reset(Speed::Full));
    let before = companion[0].view();
    driver.machine.write32(reg::USBCMD, cmd::RESET);
    driver.machine.advance_millis(10);
    assert_eq!(companion[0].view(), before, "the same device, still there");
}

#[test]
fn a_port_without_companion_hides_a_device_that_is_given_away() {
    // The port owner bit works all the same; nobody sees the device then.
    let ports = vec![Port::high_speed_only()];
    let mut driver = EhciDriver::new(Machine::new(controller(&ports)));
    plug(&ports[0], Speed::High);
    driver.sleep_millis(1);
    driver.set_port(0, port::OWNER, 0);
    assert_eq!(driver.port(0) & (port::OWNER | port::CONNECT), port::OWNER);
    driver.set_port(0, 0, port::OWNER);
    assert_eq!(driver.port(0) & (port::OWNER | port::CONNECT), port::CONNECT);
}
