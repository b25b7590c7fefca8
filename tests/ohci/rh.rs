//! OHCI-RH: the root hub.

use vm_usb::usb::{Speed, Suspension};

use crate::driver::scripted::{Answer, Seen};
use crate::rig::*;

const STATUS: u64 = reg::RH_STATUS;
const NPS: u32 = 1 << 9;
const PSM: u32 = 1 << 8;
const SET_GLOBAL_POWER: u32 = 1 << 16;
const CLEAR_GLOBAL_POWER: u32 = 1;

/// An OUT TD to the device, tried for three frames; returns its condition code.
fn send(rig: &mut Rig) -> u32 {
    let td = rig.out(&[1; 8]);
    let word = rig.m.load(td);
    rig.m.store(td, word | td::DATA0);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    rig.frames(4);
    rig.cc(td)
}

fn resets(rig: &Rig) -> usize {
    let seen = rig.device.take_seen();
    seen.iter().filter(|seen| **seen == Seen::Configured(0)).count()
}

#[test]
fn ohci_rh_1_a_new_device_is_connected_but_not_enabled() {
    for speed in [Speed::Low, Speed::Full, Speed::High] {
        let mut rig = running();
        rig.ports[1].attach(device(speed).0).unwrap();
        rig.m.run();
        let low = if speed == Speed::Low { port::LSDA } else { 0 };
        assert_eq!(rig.m.read32(PORT + 4), port::CCS | port::CSC | port::PPS | low);
        assert_eq!(rig.status() & int::RHSC, int::RHSC);
    }
}

#[test]
fn ohci_rh_2_a_device_that_leaves_takes_the_enable_along() {
    let mut rig = running();
    rig.ports[0].detach().unwrap();
    rig.m.run();
    assert_eq!(rig.port(), port::PPS | port::CSC | port::PESC);
    assert_eq!(rig.status() & int::RHSC, int::RHSC);
}

#[test]
fn ohci_rh_2_a_quick_replug_is_another_device() {
    let mut rig = running();
    let device = rig.ports[0].detach().unwrap();
    rig.ports[0].attach(device).unwrap();
    rig.m.run();
    assert_eq!(rig.port(), port::PPS | port::CCS | port::CSC | port::PESC);
}

#[test]
fn ohci_rh_3_reset_can_be_seen() {
    let mut rig = running();
    rig.m.write32(PORT, port::PRS);
    for _ in 0..9 {
        assert_eq!(rig.port() & (port::PRS | port::PRSC), port::PRS);
        rig.m.advance_millis(1);
    }
}

#[test]
fn ohci_rh_4_reset_enables_the_port() {
    let mut rig = running();
    rig.m.write32(PORT, port::CLEAR_ENABLE);
    rig.clear_status();
    rig.m.write32(PORT, port::PRS);
    assert_eq!(rig.status() & int::RHSC, 0);
    rig.m.advance_millis(10);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES | port::PRSC);
    assert_eq!(rig.status() & int::RHSC, int::RHSC);
    assert_eq!(resets(&rig), 1);
    assert_eq!(send(&mut rig), 5, "the device is back at address 0");
}

#[test]
fn ohci_rh_5_an_empty_port_is_not_reset() {
    let mut rig = running();
    rig.m.write32(PORT + 4, port::PRS);
    assert_eq!(rig.m.read32(PORT + 4), port::PPS | port::CSC);
    assert_eq!(rig.status() & int::RHSC, int::RHSC);
}

#[test]
fn ohci_rh_6_the_driver_can_enable_a_port() {
    let mut rig = running();
    rig.m.write32(PORT, port::CLEAR_ENABLE);
    rig.m.write32(PORT, port::PES);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES);
    rig.m.write32(PORT + 4, port::PES);
    assert_eq!(rig.m.read32(PORT + 4), port::PPS | port::CSC);
    assert_eq!(send(&mut rig), 0);
}

#[test]
fn ohci_rh_7_the_driver_can_disable_a_port() {
    let mut rig = running();
    rig.m.write32(PORT, port::CLEAR_ENABLE);
    assert_eq!(rig.port(), port::PPS | port::CCS);
}

#[test]
fn ohci_rh_8_nothing_reaches_a_suspended_device() {
    let mut rig = running();
    rig.m.write32(PORT, port::PSS);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES | port::PSS);
    assert_eq!(rig.device.take_seen(), [Seen::Suspension(Suspension::Suspended)]);
    assert_eq!(send(&mut rig), 5);
    assert_eq!(rig.device.take_seen(), []);
}

#[test]
fn ohci_rh_9_resume_takes_its_time() {
    let mut rig = running();
    rig.m.write32(PORT, port::CLEAR_SUSPEND);
    rig.m.advance_millis(40);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES, "nothing to resume");
    rig.m.write32(PORT, port::PSS);
    rig.clear_status();
    rig.m.write32(PORT, port::CLEAR_SUSPEND);
    rig.m.advance_millis(19);
    assert_eq!(rig.port() & (port::PSS | port::PSSC), port::PSS);
    rig.m.advance_millis(11);
    assert_eq!(rig.port() & (port::PSS | port::PSSC), port::PSSC);
    assert_eq!(rig.status() & int::RHSC, int::RHSC);
    assert_eq!(send(&mut rig), 0);
    assert!(rig.device.take_seen().contains(&Seen::Suspension(Suspension::Resumed)));
}

#[test]
fn ohci_rh_10_reset_ends_a_suspension() {
    let mut rig = running();
    rig.m.write32(PORT, port::PSS);
    rig.m.write32(PORT, port::PRS);
    rig.m.advance_millis(10);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES | port::PRSC);
}

#[test]
fn ohci_rh_11_each_change_bit_is_cleared_on_its_own() {
    let mut rig = running();
    rig.m.write32(PORT, port::PSS);
    rig.m.write32(PORT, port::CLEAR_SUSPEND);
    rig.m.advance_millis(30);
    let device = rig.ports[0].detach().unwrap();
    rig.ports[0].attach(device).unwrap();
    rig.m.run();
    let mut expected = port::PPS | port::CCS | port::CSC | port::PESC | port::PSSC;
    assert_eq!(rig.port(), expected);
    rig.m.write32(PORT, 0);
    assert_eq!(rig.port(), expected);
    for change in [port::PSSC, port::CSC, port::PESC] {
        rig.m.write32(PORT, change);
        expected &= !change;
        assert_eq!(rig.port(), expected);
    }
    rig.enable_port();
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES, "PRSC too");
}

#[test]
fn ohci_rh_12_without_switching_ports_are_always_powered() {
    let mut rig = running();
    rig.m.write32(PORT, port::CLEAR_POWER);
    rig.m.write32(STATUS, CLEAR_GLOBAL_POWER);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES);
    assert_eq!(send(&mut rig), 0);
}

#[test]
fn ohci_rh_13_global_power_switches_all_ports() {
    let mut rig = running();
    rig.m.write32(reg::RH_DESCRIPTOR_A, 0);
    assert_eq!(rig.port() & port::PPS, port::PPS, "as before");
    rig.m.write32(PORT, port::CLEAR_POWER);
    assert_eq!(rig.port() & port::PPS, port::PPS, "not by the port's own command");
    rig.m.write32(STATUS, CLEAR_GLOBAL_POWER);
    assert_eq!(rig.port(), port::PESC);
    assert_eq!(rig.m.read32(PORT + 4), 0);
    rig.m.write32(STATUS, SET_GLOBAL_POWER);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::CSC | port::PESC);
    assert_eq!(rig.m.read32(PORT + 4), port::PPS);
}

#[test]
fn ohci_rh_14_a_port_obeys_its_own_power_commands_or_the_global_ones() {
    let mut rig = running();
    let powered = |rig: &mut Rig| [PORT, PORT + 4].map(|p| rig.m.read32(p) & port::PPS != 0);
    rig.m.write32(reg::RH_DESCRIPTOR_A, PSM);
    rig.m.write32(reg::RH_DESCRIPTOR_B, 1 << 17);
    rig.m.write32(STATUS, CLEAR_GLOBAL_POWER);
    assert_eq!(powered(&mut rig), [true, false]);
    rig.m.write32(PORT, port::CLEAR_POWER);
    rig.m.write32(PORT + 4, port::PPS);
    assert_eq!(powered(&mut rig), [false, false]);
    rig.m.write32(STATUS, SET_GLOBAL_POWER);
    assert_eq!(powered(&mut rig), [false, true]);
    rig.m.write32(PORT, port::PPS);
    assert_eq!(powered(&mut rig), [true, true]);
}

#[test]
fn ohci_rh_15_power_reveals_what_is_plugged_in() {
    for reveal in [
        (STATUS, SET_GLOBAL_POWER),
        // The only thing that GRUB does.
        (reg::RH_DESCRIPTOR_A, NPS),
    ] {
        let mut rig = running();
        rig.m.write32(reg::RH_DESCRIPTOR_A, 0);
        rig.m.write32(STATUS, CLEAR_GLOBAL_POWER);
        rig.m.write32(PORT, port::PESC);
        rig.ports[0].detach().unwrap();
        rig.ports[0].attach(device(Speed::Low).0).unwrap();
        rig.m.run();
        rig.clear_status();
        assert_eq!(rig.port(), 0);
        rig.m.write32(reveal.0, reveal.1);
        let potpgt = rig.m.read32(reg::RH_DESCRIPTOR_A) >> 24;
        rig.m.advance_millis(u64::from(potpgt) * 2);
        assert_eq!(rig.port(), port::PPS | port::CCS | port::CSC | port::LSDA);
        assert_eq!(rig.status() & int::RHSC, int::RHSC);
    }
}

#[test]
fn ohci_rh_16_the_hub_status_register() {
    let mut rig = running();
    assert_eq!(rig.m.read32(STATUS), 0);
    rig.m.write32(STATUS, 1 << 15);
    assert_eq!(rig.m.read32(STATUS), 1 << 15);
    rig.m.write32(STATUS, 0);
    assert_eq!(rig.m.read32(STATUS), 1 << 15);
    rig.m.write32(STATUS, SET_GLOBAL_POWER | 1 << 17);
    assert_eq!(rig.m.read32(STATUS), 1 << 15);
    rig.m.write32(STATUS, 1 << 31);
    assert_eq!(rig.m.read32(STATUS), 0);
}

#[test]
fn ohci_rh_17_nobody_answers_behind_a_disabled_port() {
    let mut rig = running();
    rig.m.write32(PORT, port::CLEAR_ENABLE);
    assert_eq!(send(&mut rig), 5);
    assert_eq!(rig.device.take_seen(), []);
}

#[test]
fn ohci_rh_18_a_device_may_leave_during_its_reset() {
    let mut rig = running();
    rig.m.write32(PORT, port::PRS);
    rig.m.advance_millis(3);
    rig.ports[0].detach().unwrap();
    rig.m.advance_millis(17);
    let status = rig.port();
    assert_eq!(status & (port::PRS | port::CCS | port::PES), 0);
    assert_eq!(status & (port::CSC | port::PRSC), port::CSC | port::PRSC);
}

#[test]
fn ohci_rh_19_a_storm_of_resets_does_not_hold_the_port() {
    let mut rig = running();
    let mut last_free = 0;
    for millis in 0..100 {
        rig.m.write32(PORT, port::PRS);
        rig.m.advance_micros(500);
        rig.m.advance_micros(500);
        if rig.port() & port::PRS == 0 {
            last_free = millis;
        }
        assert!(millis - last_free < 20, "at {millis} ms");
    }
    assert!(resets(&rig) <= 11);
}

#[test]
fn a_device_that_parked_an_endpoint_is_asked_again_after_reset() {
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Park, Answer::Data(vec![3; 8])]);
    let (td, _) = rig.buffered(td::IN, 8);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cc(td), 0xf);
    let word = rig.m.load(ed);
    rig.m.store(ed, word | ed::SKIP);
    rig.enable_port();
    configure(&rig.ports[0], ADDRESS);
    rig.m.store(ed, word);
    rig.ring_bulk();
    assert_eq!(rig.cc(td), 0);
}
