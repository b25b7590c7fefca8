//! OHCI-RH: over-current, and root hubs whose power is switched.

use vm_usb::ohci::{Ohci, OverCurrentProtection, PowerSwitching};
use vm_usb::topology::Host;
use vm_usb::usb::Speed;

use crate::rig::*;

const STATUS: u64 = reg::RH_STATUS;
const SECOND: u64 = PORT + 4;
/// HcRhDescriptorA.
const PSM: u32 = 1 << 8;
const NPS: u32 = 1 << 9;
const OCPM: u32 = 1 << 11;
const NOCP: u32 = 1 << 12;
/// HcRhStatus.
const OCI: u32 = 1 << 1;
const OCIC: u32 = 1 << 17;
const SET_GLOBAL_POWER: u32 = 1 << 16;
const ON: u32 = port::PPS | port::CCS | port::PES;

/// A running controller whose driver chose these modes, its ports powered.
fn with_modes(modes: u32) -> Rig {
    let mut rig = running();
    rig.m.write32(reg::RH_DESCRIPTOR_A, modes);
    rig.m.write32(reg::RH_DESCRIPTOR_B, 0b110 << 16);
    rig.clear_status();
    rig
}

impl Rig {
    fn over_current(&mut self, index: usize, present: bool) {
        self.ports[index].set_over_current(present);
        self.m.run();
    }

    /// RHSC is news; acknowledges it.
    fn took_rhsc(&mut self) -> bool {
        let rhsc = self.status() & int::RHSC != 0;
        self.m.write32(reg::INTERRUPT_STATUS, int::RHSC);
        rhsc
    }
}

#[test]
fn ohci_rh_20_without_protection_over_current_goes_unnoticed() {
    let mut rig = running();
    assert_eq!(rig.m.read32(reg::RH_DESCRIPTOR_A) & (NOCP | NPS), NOCP | NPS);
    rig.over_current(0, true);
    assert_eq!((rig.port(), rig.m.read32(STATUS), rig.took_rhsc()), (ON, 0, false));
}

#[test]
fn ohci_rh_21_a_port_with_over_current_loses_its_power() {
    let mut rig = with_modes(PSM | OCPM);
    rig.over_current(0, true);
    assert_eq!(rig.port(), port::POCI | port::OCIC | port::PESC);
    assert!(rig.took_rhsc());
    assert_eq!(rig.m.read32(SECOND), port::PPS, "the other port has its own circuit");
    assert_eq!(rig.m.read32(STATUS), 0);
    let td = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.device.take_seen();
    rig.run_bulk(&[ed]);
    rig.frames(4);
    assert_eq!((rig.cc(td), rig.transfers()), (5, 0), "nobody answers");
}

#[test]
fn ohci_rh_22_watched_as_a_whole_the_hub_loses_its_power() {
    let mut rig = with_modes(0);
    rig.over_current(1, true);
    assert_eq!(rig.m.read32(STATUS), OCI | OCIC);
    assert!(rig.took_rhsc());
    assert_eq!(rig.port(), port::PESC, "no indicator of its own");
    assert_eq!(rig.m.read32(SECOND), 0);
    rig.over_current(0, true);
    rig.over_current(1, false);
    assert_eq!((rig.m.read32(STATUS), rig.took_rhsc()), (OCI | OCIC, false), "one circuit");
}

#[test]
fn ohci_rh_23_there_is_no_power_before_the_cause_is_gone() {
    let mut rig = with_modes(PSM | OCPM);
    rig.over_current(0, true);
    rig.m.write32(PORT, port::OCIC | port::PESC);
    rig.took_rhsc();
    rig.m.write32(PORT, port::PPS);
    assert_eq!((rig.port(), rig.took_rhsc()), (port::POCI, false));
    rig.over_current(0, false);
    assert_eq!(rig.port(), port::OCIC, "power comes back only by a command");
    assert!(rig.took_rhsc());
    rig.m.write32(PORT, port::OCIC);
    rig.m.write32(PORT, port::PPS);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::CSC);
    assert!(rig.took_rhsc());

    let mut rig = with_modes(0);
    rig.over_current(1, true);
    rig.m.write32(STATUS, SET_GLOBAL_POWER);
    assert_eq!(rig.port() & port::PPS, 0);
    rig.over_current(1, false);
    assert_eq!(rig.m.read32(STATUS), OCIC);
    rig.m.write32(STATUS, SET_GLOBAL_POWER);
    assert_eq!(rig.port() & port::PPS, port::PPS);
}

#[test]
fn ohci_rh_24_a_port_whose_power_is_not_switched_is_only_disabled() {
    for (modes, poci) in [(NPS | OCPM, port::POCI | port::OCIC), (NPS, 0)] {
        let mut rig = with_modes(modes);
        rig.over_current(0, true);
        assert_eq!(rig.port(), port::PPS | port::CCS | port::PESC | poci);
        rig.over_current(0, false);
        rig.m.write32(PORT, port::OCIC | port::PESC);
        rig.enable_port();
        assert_eq!(rig.port(), ON);
    }
}

#[test]
fn ohci_rh_25_each_over_current_change_is_cleared_on_its_own() {
    let mut rig = with_modes(PSM | OCPM);
    rig.over_current(0, true);
    rig.over_current(1, true);
    rig.m.write32(PORT, port::OCIC);
    assert_eq!(rig.port(), port::POCI | port::PESC);
    assert_eq!(rig.m.read32(SECOND), port::POCI | port::OCIC);

    let mut rig = with_modes(0);
    rig.over_current(0, true);
    rig.m.write32(STATUS, 0);
    assert_eq!(rig.m.read32(STATUS), OCI | OCIC);
    rig.m.write32(STATUS, OCIC);
    assert_eq!(rig.m.read32(STATUS), OCI);
}

#[test]
fn ohci_rh_26_the_driver_may_turn_protection_on_and_off_at_any_time() {
    let mut rig = with_modes(PSM | NOCP);
    rig.over_current(0, true);
    assert_eq!((rig.port(), rig.took_rhsc()), (ON, false));
    rig.m.write32(reg::RH_DESCRIPTOR_A, PSM | OCPM);
    assert_eq!(rig.port(), port::POCI | port::OCIC | port::PESC);
    assert!(rig.took_rhsc());
    rig.m.write32(PORT, port::OCIC);
    rig.m.write32(reg::RH_DESCRIPTOR_A, PSM);
    assert_eq!(rig.port(), port::OCIC | port::PESC);
    assert_eq!(rig.m.read32(STATUS), OCI | OCIC, "now the hub's as a whole");
    rig.m.write32(STATUS, OCIC);
    rig.m.write32(reg::RH_DESCRIPTOR_A, PSM | NOCP);
    assert_eq!(rig.m.read32(STATUS), OCIC);
}

#[test]
fn ohci_rh_27_over_current_is_noticed_on_an_idle_bus_and_wakes_nobody() {
    let mut rig = with_modes(PSM | OCPM);
    rig.m.write32(STATUS, 1 << 15);
    rig.write_control(control::SUSPEND | control::RWE);
    rig.clear_status();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::RHSC);
    rig.over_current(1, true);
    assert_eq!(rig.status(), int::RHSC);
    assert!(rig.m.line);
    assert_eq!(rig.m.read32(reg::CONTROL) & control::HCFS, control::SUSPEND);
    assert!(!rig.m.take_wakeup());
    // A reset of the controller leaves the hub alone; a reset of the function shows it afresh.
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    assert_eq!(rig.m.read32(SECOND), port::POCI | port::OCIC);
    rig.m.reset();
    assert_eq!(rig.m.read32(SECOND) & (port::POCI | port::OCIC), 0);
}

#[test]
fn ohci_rh_28_the_root_hub_comes_out_of_reset_as_it_was_built() {
    for (switching, protection, modes, ppcm) in [
        (PowerSwitching::None, OverCurrentProtection::None, NPS | NOCP, 0),
        (PowerSwitching::Global, OverCurrentProtection::Global, 0, 0),
        (PowerSwitching::PerPort, OverCurrentProtection::PerPort, PSM | OCPM, 0b110),
    ] {
        let mut rig = cold(Speed::Full);
        let links = rig.ports.iter().map(|port| port.link(Host::Classic)).collect();
        rig.m.controller = Ohci::new(links)
            .with_power_switching(switching)
            .with_over_current_protection(protection);
        for _ in 0..2 {
            let a = rig.m.read32(reg::RH_DESCRIPTOR_A);
            assert_eq!(a & (NPS | PSM | OCPM | NOCP), modes, "{switching:?}");
            assert_eq!(rig.m.read32(reg::RH_DESCRIPTOR_B), ppcm << 16);
            let powered = if modes & NPS != 0 { port::PPS } else { 0 };
            assert_eq!(rig.m.read32(SECOND) & port::PPS, powered);
            // What every driver does, and what Linux does for each port.
            rig.m.write32(STATUS, SET_GLOBAL_POWER);
            rig.m.write32(PORT, port::PPS);
            assert_eq!(rig.port() & (port::PPS | port::CCS), port::PPS | port::CCS);
            rig.m.write32(reg::RH_DESCRIPTOR_A, !0);
            rig.m.reset();
        }
    }
}

#[test]
fn ohci_rh_29_a_suspended_port_leaves_the_others_alone() {
    let mut rig = running();
    let (other, controls) = device(Speed::Full);
    rig.ports[1].attach(other).unwrap();
    rig.m.run();
    rig.m.write32(SECOND, port::PRS);
    rig.m.advance_millis(10);
    configure(&rig.ports[1], ADDRESS + 1);
    let tds = [rig.out(&[1; 8]), rig.out(&[2; 8])];
    let ed = rig.endpoint_ed(BULK_OUT, &tds[..1]);
    rig.run_bulk(&[ed]);
    assert_eq!((rig.cc(tds[0]), rig.carry(ed)), (0, true));
    rig.m.write32(PORT, port::PSS);

    let theirs = rig.out(&[3; 8]);
    let others = rig.ed(ed::control(ADDRESS + 1, 1, 64) | ed::OUT, &[theirs]);
    rig.run_bulk(&[others]);
    assert_eq!(rig.cc(theirs), 0, "the other port's device goes on");
    assert_eq!(controls.take_transfers().len(), 1);

    rig.m.write32(PORT, port::CLEAR_SUSPEND);
    rig.m.advance_millis(30);
    rig.device.take_seen();
    let buffer = rig.m.alloc(64, 64);
    let td = rig.append(ed, [td::OUT, buffer], buffer + 7);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cc(td), 0, "the device kept its address and its toggle");
    assert_eq!(rig.offers().len(), 1);
}
