//! Storms of register writes, and accesses that no driver makes.

use vm_usb::devices::debug::{DebugConsole, DebugDevice};
use vm_usb::topology::Port;
use vm_usb::usb::{Pid, Wake};

use super::rig::{OUT1, Rig, is_done};
use super::*;
use crate::driver::early_console::ctrl;
use crate::driver::ehci::{HEAD, port};

#[test]
fn ehci_hg_25_a_doorbell_that_rings_all_the_time_is_one_walk_a_write() {
    // A ring of 500 queue heads; rings are answered within the write, by one walk round.
    let links: Vec<(usize, u32)> =
        (0..500).map(|n| ((n + 1) % 500, if n == 0 { HEAD } else { 0 })).collect();
    let (mut rig, _) = ring(&links);
    let command = rig.read(reg::USBCMD);
    let storm = work(&mut rig, |rig| {
        for _ in 0..1_000 {
            rig.write(reg::USBCMD, command | cmd::DOORBELL);
        }
    });
    assert!(storm.most <= 4 * 500 * LOOK, "{storm:?}");
    rig.driver.machine.advance_millis(1);
    assert_ne!(rig.driver.take_events() & sts::ADVANCE, 0);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_26_storms_of_commands() {
    let mut rig = Rig::new();
    let command = rig.read(reg::USBCMD);
    let storm = work(&mut rig, |rig| {
        for n in 0..2_000 {
            let toggled = match n % 4 {
                0 => command | cmd::DOORBELL,
                1 => command ^ cmd::RUN,
                2 => command ^ cmd::ASYNCHRONOUS,
                _ => command | cmd::PERIODIC,
            };
            rig.write(reg::USBCMD, toggled);
            rig.write(reg::USBCMD, command);
        }
    });
    assert!(storm.most <= 2 * 1024 + VISIT, "{storm:?}");
    let buffer = rig.buffer(64);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
    let resets = work(&mut rig, |rig| {
        for _ in 0..2_000 {
            rig.write(reg::USBCMD, cmd::RESET);
            rig.write(reg::USBCMD, cmd::RUN);
        }
    });
    assert_eq!(resets.accesses, 0);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_27_storms_at_a_port_while_devices_come_and_go() {
    let mut rig = Rig::new();
    let register = reg::PORTSC;
    let storm = work(&mut rig, |rig| {
        for n in 0..5_000u32 {
            let bits = [port::RESET, port::POWER, port::OWNER, port::SUSPEND, port::RESUME];
            rig.write(register, bits[n as usize % 5] | if n % 3 == 0 { port::POWER } else { 0 });
            if n % 7 == 0 {
                rig.write(reg::CONFIGFLAG, n & 1);
            }
            if n % 11 == 0 {
                let device = rig.ports[0].detach();
                rig.driver.machine.run();
                rig.ports[0].attach(device.unwrap()).map_err(|refused| refused.reason).unwrap();
            }
        }
    });
    // A walk of the ring, or a look at an empty frame list.
    assert!(storm.most <= 2 * 1024, "{storm:?}");
    rig.write(register, port::POWER);
    rig.driver.machine.advance_millis(1);
    rig.write(register, port::CHANGES | port::POWER);
    assert_eq!(rig.read(register) & port::CHANGES, 0, "bits, not queues");
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_29_accesses_of_every_size_and_place() {
    let mut rig = Rig::new();
    let sizes = work(&mut rig, |rig| {
        let m = &mut rig.driver.machine;
        for offset in (0..0x100).chain(0xff0..0x1010) {
            for len in [0, 1, 2, 3, 4, 5, 7, 8, 9, 16] {
                let mut data = vec![0xaa; len];
                m.read(offset, &mut data);
                let aligned = match len {
                    1 | 2 | 4 => offset % len as u64 == 0,
                    8 => offset % 4 == 0,
                    _ => false,
                };
                assert!(aligned || data.iter().all(|byte| *byte == 0), "{offset:#x} {len}");
                // HCRESET aside, which would end the story.
                if !aligned {
                    m.write(offset, &vec![0xff; len]);
                }
            }
        }
    });
    assert!(sizes.most <= VISIT, "{sizes:?}");
    // Eight bytes are two registers, low first.
    rig.halt();
    let m = &mut rig.driver.machine;
    m.write(reg::PERIODICLISTBASE, &0x0765_4320_1234_5000u64.to_le_bytes());
    assert_eq!(
        (m.read32(reg::PERIODICLISTBASE), m.read32(reg::ASYNCLISTADDR)),
        (0x1234_5000, 0x0765_4320)
    );
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_34_interrupts_are_governed_by_the_threshold() {
    let mut rig = Rig::new();
    let command = rig.read(reg::USBCMD);
    rig.write(reg::USBCMD, command & !(0xff << 16) | 1 << 16);
    let mut queue = rig.unlinked(OUT1);
    rig.submit(&mut queue, &[Td::new(Pid::Out, 0, 0).ioc(); 4_000]);
    rig.driver.insert(&queue);
    rig.driver.machine.interrupts.clear();
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let storm = work(&mut rig, |rig| {
        for _ in 0..80 {
            rig.driver.machine.advance_micros(125);
            rig.write(reg::USBSTS, 0x3f);
            rig.write(reg::USBINTR, 0);
            rig.write(reg::USBINTR, 0x37);
        }
    });
    assert!(storm.most <= 256 * VISIT, "{storm:?}");
    let events = rig.driver.machine.interrupts.iter().filter(|(_, one)| one.event).count();
    // One a microframe, and one for each time that the enables are switched on.
    assert!(events <= 2 * 81 + 2, "{events}");
    assert_works_after_reset(rig);
}

struct Deaf;

impl DebugConsole for Deaf {
    fn attached(&mut self, _: std::sync::Arc<dyn Wake>) {}

    fn write(&mut self, _: &[u8]) {}

    fn read(&mut self, _: &mut [u8]) -> usize {
        0
    }
}

#[test]
fn ehci_hg_35_a_debug_port_makes_one_transaction_a_write() {
    const AT: u64 = 0xa0;
    let ports = vec![Port::high_speed_only()];
    ports[0].attach(Box::new(DebugDevice::new(Deaf))).map_err(|r| r.reason).unwrap();
    let mut m = Machine::new(controller(&ports));
    m.count_work();
    // GO while nothing is enabled, with every length.
    for len in 0..16 {
        m.write32(AT, ctrl::GO | len);
        assert_eq!(m.read32(AT) >> 7 & 7, 0b010, "exception: hardware error");
        assert!(m.read32(AT) & 0xf <= 8);
    }
    m.write32(AT, ctrl::CLAIM);
    m.advance_millis(1);
    for n in 0..2_000u32 {
        m.write32(AT + 4, n.wrapping_mul(0x9e37_79b9));
        m.write32(AT + 0x10, n << 8 & 0x7f00 | n & 0xf);
        m.write32(AT, ctrl::CLAIM | ctrl::GO | n & 0x1f);
        assert!(m.read32(AT) & 0xf <= 8);
        m.write32(reg::USBCMD, if n % 2 == 0 { cmd::RUN } else { cmd::RUN | cmd::ASYNCHRONOUS });
    }
    let work = m.take_work();
    // What the guest has as its ring is zeroes: a queue head that leads to itself.
    assert!(work.most <= 8 * LOOK, "{work:?}");
    m.write32(reg::USBCMD, cmd::RESET);
    assert_eq!(m.read32(AT), 0);
}
