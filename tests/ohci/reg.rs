//! OHCI-REG: the registers and how they are accessed.

use vm_usb::usb::Speed;

use crate::driver::scripted::Seen;
use crate::rig::*;

const STATES: [u32; 4] = [control::RESET, control::RESUME, control::OPERATIONAL, control::SUSPEND];

#[test]
fn ohci_reg_1_the_revision_cannot_be_written() {
    let mut rig = cold(Speed::Full);
    assert_eq!(rig.m.read32(reg::REVISION), 0x10);
    rig.m.write32(reg::REVISION, !0);
    assert_eq!(rig.m.read32(reg::REVISION), 0x10, "nor are there legacy registers");
}

#[test]
fn ohci_reg_2_hardware_reset_clears_the_registers() {
    let mut rig = running();
    rig.enable(control::PLE | control::CLE | control::RWC | control::IR);
    rig.m.write32(reg::INTERRUPT_ENABLE, !0);
    rig.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
    rig.frames(2);
    rig.m.reset();
    for register in [reg::CONTROL, reg::INTERRUPT_ENABLE, reg::COMMAND_STATUS, reg::HCCA] {
        assert_eq!(rig.m.read32(register), 0, "{register:#x}");
    }
    assert_eq!(rig.status() & !int::RHSC, 0, "only the device is news");
    assert!(!rig.m.line);
}

#[test]
fn ohci_reg_3_software_reset_is_over_at_the_next_read() {
    let mut rig = running();
    rig.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
    rig.m.write32(reg::COMMAND_STATUS, command::HCR | command::CLF);
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS), 0);
}

#[test]
fn ohci_reg_4_software_reset_leaves_suspend_and_the_wakeup_connection() {
    let mut rig = running();
    rig.enable(control::PLE | control::IE | control::CLE | control::BLE | control::CBSR_3);
    rig.enable(control::RWC | control::RWE);
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    assert_eq!(rig.m.read32(reg::CONTROL), control::SUSPEND | control::RWC);
}

#[test]
fn ohci_reg_5_software_reset_clears_pointers_and_interrupts() {
    let mut rig = running();
    let td = rig.td(td::OUT | td::delay(6), 0, 0);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.m.write32(reg::CONTROL_HEAD_ED, ed);
    rig.m.write32(reg::CONTROL_CURRENT_ED, ed);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.m.read32(reg::DONE_HEAD), td);
    rig.frames(1);
    assert!(rig.m.line);
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    assert!(!rig.m.line, "when the write is over");
    for register in (reg::INTERRUPT_STATUS..=reg::DONE_HEAD).step_by(4) {
        assert_eq!(rig.m.read32(register), 0, "{register:#x}");
    }
}

#[test]
fn ohci_reg_6_software_reset_restores_the_nominal_frame() {
    let mut rig = running();
    rig.m.write32(reg::FM_INTERVAL, 1 << 31 | 0x1234);
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    assert_eq!(rig.m.read32(reg::FM_INTERVAL), 0x2778_2edf);
}

#[test]
fn ohci_reg_7_software_reset_leaves_the_root_hub_alone() {
    let mut rig = running();
    rig.m.write32(reg::RH_DESCRIPTOR_A, 0x1200_1b00);
    rig.m.write32(reg::RH_DESCRIPTOR_B, 0x0002_0002);
    rig.m.write32(reg::RH_STATUS, 1 << 15);
    let registers: Vec<u64> = (reg::RH_DESCRIPTOR_A..=PORT + 4).step_by(4).collect();
    let before: Vec<u32> = registers.iter().map(|r| rig.m.read32(*r)).collect();
    rig.device.take_seen();
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    rig.m.advance_millis(20);
    let after: Vec<u32> = registers.iter().map(|r| rig.m.read32(*r)).collect();
    assert_eq!(before, after);
    assert_eq!(rig.device.take_seen(), [], "no bus reset");
}

#[test]
fn ohci_reg_8_commands_are_set_by_ones_only() {
    let mut rig = running();
    rig.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
    rig.m.write32(reg::COMMAND_STATUS, 0);
    rig.m.write32(reg::COMMAND_STATUS, command::SOC);
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS), command::CLF | command::BLF);
}

#[test]
fn ohci_reg_9_status_bits_are_cleared_by_ones_and_set_by_none() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_STATUS, !0);
    assert_eq!(rig.status(), 0);
    rig.m.write32(reg::INTERRUPT_STATUS, int::FNO);
    assert_eq!(rig.status(), 0);
    rig.frames(1);
    rig.ports[1].attach(device(Speed::Full).0).unwrap();
    rig.m.run();
    assert_eq!(rig.status(), int::SF | int::RHSC);
    rig.m.write32(reg::INTERRUPT_STATUS, int::SF);
    assert_eq!(rig.status(), int::RHSC);
}

#[test]
fn ohci_reg_10_enable_and_disable_share_one_mask() {
    let mut rig = cold(Speed::Full);
    rig.m.write32(reg::INTERRUPT_ENABLE, !0);
    assert_eq!(rig.m.read32(reg::INTERRUPT_ENABLE), 0xc000_007f);
    rig.m.write32(reg::INTERRUPT_DISABLE, int::MIE | int::SF);
    for register in [reg::INTERRUPT_ENABLE, reg::INTERRUPT_DISABLE] {
        assert_eq!(rig.m.read32(register), 0x4000_007f & !int::SF);
    }
}

#[test]
fn ohci_reg_11_the_hcca_shows_its_alignment() {
    let mut rig = cold(Speed::Full);
    rig.m.write32(reg::HCCA, !0);
    assert_eq!(rig.m.read32(reg::HCCA), 0xffff_ff00);
}

#[test]
fn ohci_reg_12_list_pointers_have_no_low_bits() {
    let mut rig = cold(Speed::Full);
    for register in (reg::CONTROL_HEAD_ED..=reg::BULK_CURRENT_ED).step_by(4) {
        rig.m.write32(register, !0);
        assert_eq!(rig.m.read32(register), 0xffff_fff0, "{register:#x}");
    }
}

#[test]
fn ohci_reg_13_the_controllers_own_registers_ignore_writes() {
    let mut rig = running();
    rig.frames(3);
    rig.write_control(control::SUSPEND);
    for register in [reg::PERIOD_CURRENT_ED, reg::DONE_HEAD, reg::FM_REMAINING, reg::FM_NUMBER] {
        let before = rig.m.read32(register);
        rig.m.write32(register, !0);
        rig.m.advance_millis(3);
        assert_eq!(rig.m.read32(register), before, "{register:#x}");
    }
}

#[test]
fn ohci_reg_14_the_frame_interval_reads_as_written_in_every_state() {
    let mut rig = cold(Speed::Full);
    for state in STATES {
        rig.write_control(state);
        for value in [0, !0, 0xa778_2edf, 0x2778_2ee0] {
            rig.m.write32(reg::FM_INTERVAL, value);
            assert_eq!(rig.m.read32(reg::FM_INTERVAL), value & !0xc000);
        }
    }
}

#[test]
fn ohci_reg_15_periodic_start_and_low_speed_threshold() {
    let mut rig = cold(Speed::Full);
    assert_eq!(rig.m.read32(reg::LS_THRESHOLD), 0x628);
    assert_eq!(rig.m.read32(reg::PERIODIC_START), 0);
    rig.m.write32(reg::PERIODIC_START, !0);
    rig.m.write32(reg::LS_THRESHOLD, 0x123);
    assert_eq!(rig.m.read32(reg::PERIODIC_START), 0x3fff);
    assert_eq!(rig.m.read32(reg::LS_THRESHOLD), 0x123);
}

#[test]
fn ohci_reg_16_descriptor_a_is_writable_but_for_the_facts() {
    let mut rig = cold(Speed::Full);
    for state in STATES {
        rig.write_control(state);
        rig.m.write32(reg::RH_DESCRIPTOR_A, !0);
        assert_eq!(rig.m.read32(reg::RH_DESCRIPTOR_A), 0xff00_1b02);
        rig.m.write32(reg::RH_DESCRIPTOR_A, 0);
        assert_eq!(rig.m.read32(reg::RH_DESCRIPTOR_A), 2);
    }
}

#[test]
fn ohci_reg_17_there_is_nothing_beyond_the_last_port() {
    let mut rig = running();
    let before = rig.m.controller_registers();
    for offset in (PORT + 8..0x1000).step_by(4) {
        rig.m.write32(offset, !0);
        assert_eq!(rig.m.read32(offset), 0, "{offset:#x}");
    }
    assert_eq!(rig.m.controller_registers(), before);
}

#[test]
fn ohci_reg_18_odd_accesses_run_no_command() {
    let mut rig = running();
    let before = rig.m.controller_registers();
    for offset in 0..0x1010 {
        for len in [1, 2, 3, 4, 5, 7, 8, 16] {
            let whole = offset % 4 == 0 && (len == 4 || len == 8);
            let mut data = vec![0xff; len];
            if !whole {
                rig.m.write(offset, &data);
            }
            rig.m.read(offset, &mut data);
        }
    }
    assert_eq!(rig.m.controller_registers(), before);
    assert_eq!(rig.device.take_seen(), [] as [Seen; 0]);

    let mut byte = [0];
    rig.m.read(reg::FM_INTERVAL + 1, &mut byte);
    assert_eq!(byte, [0x2e], "a byte of a register");
    let mut two = [0; 8];
    rig.m.read(reg::CONTROL, &mut two);
    assert_eq!(two, [0x80, 0, 0, 0, 0, 0, 0, 0], "two registers at once");
    let mut across = [0xff; 4];
    rig.m.read(reg::FM_INTERVAL + 2, &mut across);
    assert_eq!(across, [0; 4], "parts of two are none");
}
