//! The addendum of revision 1.1: rules EHCI-LPM, EHCI-PORT-19, and what it adds to others.

use vm_usb::usb::{LinkAnswer, LinkSleep, Pid, Suspension};

use crate::driver::ehci::{Td, cmd, port, reg, sts};
use crate::driver::scripted::Seen;
use crate::rig::{ADDRESS, OUT1, Rig, is_done};

/// USBCMD.PPCEE and HIRD.
const PER_PORT: u32 = 1 << 15;
const HIRD: u32 = 24;
/// PORTSC.
const L1: u32 = 1 << 9;

fn suspend_status(status: u32) -> u32 {
    status >> 23 & 3
}

fn addressed(device: u8) -> u32 {
    u32::from(device) << 25
}

fn addendum() -> Rig {
    Rig::with(|ehci| ehci.with_addendum(true))
}

impl Rig {
    /// Asks the device of port 0 to sleep as long as HIRD says, and returns PORTSC.
    fn sleep(&mut self, hird: u32) -> u32 {
        let command = self.read(reg::USBCMD) & !(0xf << HIRD);
        self.write(reg::USBCMD, command | hird << HIRD);
        self.driver.set_port(0, addressed(ADDRESS) | L1, 0);
        self.controls.take_seen();
        self.driver.take_events();
        self.driver.set_port(0, port::SUSPEND, 0);
        self.driver.port(0)
    }

    /// Whether a transfer reaches the device.
    fn works(&mut self) -> bool {
        let buffer = self.buffer(64);
        let mut queue = self.open(OUT1, 0);
        let qtd = self.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
        self.settle();
        is_done(self.token(qtd))
    }
}

#[test]
fn ehci_cap_8_and_with_the_addendum_it_says_so() {
    let mut rig = addendum();
    assert_eq!(rig.read(0) >> 16, 0x0110);
    assert_eq!(rig.read(0x08) >> 16, 0xf, "prefetch, LPM, per-port change, 32 frames");
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | 0x0f00_f000);
    assert_eq!(rig.read(reg::USBCMD) & 0x0f00_f000, 0x0f00_f000);
    rig.write(reg::USBCMD, cmd::RESET);
    assert_eq!(rig.read(reg::USBCMD), 0x0008_0b00);
}

#[test]
fn ehci_reg_9_an_enable_for_each_port() {
    let mut rig = addendum();
    rig.write(reg::USBINTR, !0);
    assert_eq!(rig.read(reg::USBINTR), 0x0003_003f, "two ports");
}

#[test]
fn ehci_reg_14_a_list_of_32_frames() {
    let mut rig = addendum();
    // An interrupt queue head in entry 1 is met every 32 frames.
    let characteristics = rig.characteristics(OUT1, 64);
    let mut queue = rig.driver.queue(characteristics, 1 << 30 | 1, Some(1024));
    rig.driver.link_periodic(&queue, 1);
    rig.halt();
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | 3 << 2);
    assert_eq!(rig.read(reg::USBCMD) >> 2 & 3, 3);
    rig.write(reg::FRINDEX, 0);
    let buffer = rig.buffer(64);
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64); 4]);
    rig.resume();
    rig.driver.machine.advance_millis(100);
    assert_eq!(rig.packets().len(), 4, "frames 1, 33, 65 and 97");
    // And that is also how often the list begins again.
    rig.write(reg::USBSTS, sts::ROLLOVER);
    rig.driver.machine.advance_millis(27);
    assert_eq!(rig.status() & sts::ROLLOVER, 0);
    rig.driver.machine.advance_millis(2);
    assert_ne!(rig.status() & sts::ROLLOVER, 0, "frame 128");
}

#[test]
fn ehci_port_19_a_change_shows_port_by_port() {
    let mut rig = addendum();
    rig.ports[1].set_over_current(true);
    rig.driver.machine.run();
    assert_eq!(rig.status() >> 16, 0, "not before it is asked for");
    rig.driver.take_events();
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | PER_PORT);
    assert_eq!(rig.status() >> 16, 2, "OCC of the second port is 1");
    rig.write(reg::USBSTS, 0xffff_0000);
    assert_eq!(rig.status() >> 16, 2, "as long as it is");
    rig.driver.set_port(1, port::CHANGES, 0);
    assert_eq!(rig.status() >> 16, 0);
    rig.ports[0].detach();
    rig.driver.machine.run();
    assert_eq!(rig.status() & !(sts::ASYNCHRONOUS | sts::RECLAMATION), 1 << 16 | sts::PORT);
    rig.write(reg::USBSTS, sts::PORT);
    assert_eq!(rig.status() >> 16, 1);
    rig.write(reg::USBCMD, command);
    assert_eq!(rig.status() >> 16, 0);
}

#[test]
fn ehci_port_19_the_ports_bits_have_enables_of_their_own() {
    let mut rig = addendum();
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | PER_PORT);
    rig.write(reg::USBINTR, 1 << 17);
    rig.ports[0].set_over_current(true);
    rig.driver.machine.run();
    assert!(!rig.driver.machine.line, "only the second port was asked for");
    rig.ports[1].set_over_current(true);
    rig.driver.machine.run();
    assert!(rig.driver.machine.line);
    rig.driver.set_port(1, port::CHANGES, 0);
    assert!(!rig.driver.machine.line, "the change was acknowledged where it happened");
}

#[test]
fn ehci_lpm_1_a_device_that_agrees_sleeps() {
    let mut rig = addendum();
    rig.controls.answer_sleep(LinkAnswer::Ack);
    let status = rig.sleep(5);
    let token = LinkSleep { resume: 5, remote_wakeup: true };
    assert_eq!(rig.controls.take_seen(), [Seen::Sleep(token)], "one token");
    assert_eq!(suspend_status(status), 0);
    assert_ne!(status & port::SUSPEND, 0);
    assert_eq!(status & (0x7f << 25 | L1), addressed(ADDRESS) | L1);
    assert!(!rig.works(), "a sleeping device hears nothing");
}

#[test]
fn ehci_lpm_2_a_device_that_does_not_agree_stays_awake() {
    for (answer, code) in
        [(LinkAnswer::NotYet, 1), (LinkAnswer::Stall, 2), (LinkAnswer::Silence, 3)]
    {
        let mut rig = addendum();
        rig.controls.answer_sleep(answer);
        let status = rig.sleep(0);
        assert_eq!((suspend_status(status), status & port::SUSPEND), (code, 0), "{answer:?}");
        assert!(rig.works());
    }
    // Nor does one that was not asked: the token names a device.
    let mut rig = addendum();
    rig.controls.answer_sleep(LinkAnswer::Ack);
    rig.driver.set_port(0, addressed(ADDRESS + 1) | L1, 0);
    rig.driver.set_port(0, port::SUSPEND, 0);
    let status = rig.driver.port(0);
    assert_eq!((suspend_status(status), status & port::SUSPEND), (3, 0));
}

#[test]
fn ehci_lpm_3_software_or_time_ends_the_sleep() {
    for by_software in [true, false] {
        let mut rig = addendum();
        rig.controls.answer_sleep(LinkAnswer::Ack);
        rig.sleep(1);
        rig.controls.take_seen();
        rig.driver.set_port(0, port::RESUME, 0);
        rig.driver.machine.advance_micros(100);
        let status = rig.driver.port(0);
        let both = port::RESUME | port::SUSPEND;
        assert_eq!(status & both, both, "resume lasts 125 us");
        if by_software {
            rig.driver.set_port(0, 0, both);
        } else {
            rig.driver.machine.advance_micros(25);
        }
        assert_eq!(rig.driver.port(0) & (both | port::ENABLED), port::ENABLED);
        assert_eq!(rig.controls.take_seen(), [Seen::Suspension(Suspension::Resumed)]);
        assert_eq!(rig.driver.take_events(), 0, "no port change");
        assert!(rig.works());
    }
}

#[test]
fn ehci_lpm_4_the_device_ends_the_sleep() {
    let mut rig = addendum();
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command | PER_PORT);
    rig.controls.answer_sleep(LinkAnswer::Ack);
    rig.sleep(0);
    // The token gave it leave; DEVICE_REMOTE_WAKEUP is for the long sleep.
    rig.controls.remote_wakeup();
    rig.driver.machine.run();
    assert!(rig.driver.machine.line);
    let all = port::RESUME | port::SUSPEND | port::ENABLED;
    assert_eq!(rig.driver.port(0) & all, all);
    assert_eq!(rig.status() >> 16, 1, "the port has news");
    assert_eq!(rig.driver.take_events(), sts::PORT);
    rig.driver.set_port(0, 0, port::RESUME | port::SUSPEND);
    assert_eq!(rig.driver.port(0) & all, port::ENABLED);
    assert_eq!(rig.status() >> 16, 0);
    assert!(rig.works());
}

#[test]
fn ehci_lpm_5_without_l1_suspend_is_what_it_was() {
    let mut rig = addendum();
    rig.controls.answer_sleep(LinkAnswer::Ack);
    rig.driver.set_port(0, addressed(ADDRESS), L1);
    rig.controls.take_seen();
    rig.driver.set_port(0, port::SUSPEND, 0);
    assert_eq!(rig.controls.take_seen(), [Seen::Suspension(Suspension::Suspended)]);
    // And leave to wake is the feature's business again.
    rig.controls.remote_wakeup();
    rig.driver.machine.run();
    assert_eq!(rig.driver.port(0) & port::RESUME, 0);
}

#[test]
fn a_reset_of_the_port_ends_the_sleep() {
    let mut rig = addendum();
    rig.controls.answer_sleep(LinkAnswer::Ack);
    rig.sleep(15);
    rig.driver.set_port(0, port::RESUME, 0);
    rig.enumerate();
    assert!(rig.works());
}
