//! OHCI-OWN: who owns the controller.

use crate::rig::*;

#[test]
fn ohci_own_1_the_wakeup_connection_survives_what_the_driver_does() {
    let mut rig = running();
    rig.m.reset();
    assert_eq!(rig.m.read32(reg::CONTROL), 0);
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS), 0);
    rig.write_control(control::RWC);
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    assert_eq!(rig.m.read32(reg::CONTROL), control::SUSPEND | control::RWC);
    for state in [control::OPERATIONAL, control::SUSPEND, control::RESUME, control::RESET] {
        rig.write_control(state | control::RWC);
        assert_eq!(rig.m.read32(reg::CONTROL), state | control::RWC);
    }
}

#[test]
fn ohci_own_2_the_controller_changes_hands_at_once() {
    let mut rig = running();
    rig.write_control(control::OPERATIONAL | control::IR);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::OC);
    rig.m.write32(reg::COMMAND_STATUS, command::OCR);
    assert_eq!(rig.m.read32(reg::CONTROL) & control::IR, 0);
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS) & command::OCR, 0);
    assert_eq!(rig.status() & int::OC, 0);
    assert!(!rig.m.line);
}

#[test]
fn ohci_own_3_system_managements_interrupts_are_not_the_hosts() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    rig.frames(1);
    assert!(rig.m.line);
    rig.write_control(control::OPERATIONAL | control::IR);
    assert!(!rig.m.line);
    rig.frames(5);
    assert!(!rig.m.line);
    rig.write_control(control::OPERATIONAL);
    assert!(rig.m.line);
}
