//! OHCI-PM: the states of the bus, and power.

use vm_usb::usb::{Speed, Suspension};

use crate::driver::scripted::Seen;
use crate::rig::*;

fn hcfs(rig: &mut Rig) -> u32 {
    rig.m.read32(reg::CONTROL) & control::HCFS
}

/// Allows the device to wake the host, behind the controller's back.
fn allow_wakeup(rig: &Rig) {
    set_feature(&rig.ports[0], 1);
}

fn suspended() -> Rig {
    let mut rig = running();
    allow_wakeup(&rig);
    rig.write_control(control::SUSPEND);
    rig.clear_status();
    rig
}

#[test]
fn ohci_pm_1_nothing_moves_on_a_suspended_bus() {
    let mut rig = running();
    let td = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.m.write32(reg::BULK_HEAD_ED, ed);
    rig.write_control(control::SUSPEND | control::BLE | control::PLE);
    let registers = rig.m.controller_registers();
    let memory = rig.m.bytes(0, 4 << 20);
    rig.ring_bulk();
    rig.frames(100);
    assert_eq!(rig.transfers(), 0);
    assert!(rig.m.bytes(0, 4 << 20) == memory);
    rig.m.write32(reg::BULK_HEAD_ED, 0);
    rig.m.write32(reg::BULK_HEAD_ED, ed);
    let now = rig.m.controller_registers();
    let changed = now.iter().zip(&registers).filter(|(a, b)| a != b).count();
    assert_eq!(changed, 1, "only BLF, which the driver set");
}

#[test]
fn ohci_pm_2_resume_lasts_until_the_driver_ends_it() {
    let mut rig = suspended();
    rig.write_control(control::RESUME);
    rig.m.advance_millis(33);
    assert_eq!(hcfs(&mut rig), control::RESUME);
    assert_eq!(rig.status() & int::RD, 0);
}

#[test]
fn ohci_pm_3_a_device_wakes_the_bus() {
    let mut rig = suspended();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::RD);
    rig.device.remote_wakeup();
    rig.m.run();
    assert_eq!(hcfs(&mut rig), control::RESUME);
    assert_eq!(rig.status() & int::RD, int::RD);
    assert!(rig.m.line);
}

#[test]
fn ohci_pm_3_a_device_without_permission_wakes_nobody() {
    let mut rig = running();
    rig.write_control(control::SUSPEND);
    rig.device.remote_wakeup();
    rig.m.run();
    assert_eq!((hcfs(&mut rig), rig.status() & int::RD), (control::SUSPEND, 0));
}

#[test]
fn ohci_pm_4_a_connection_wakes_the_bus_if_the_driver_said_so() {
    let mut rig = suspended();
    rig.m.write32(reg::RH_STATUS, 1 << 15);
    rig.ports[1].attach(device(Speed::Full).0).unwrap();
    rig.m.run();
    assert_eq!(hcfs(&mut rig), control::RESUME);
    assert_eq!(rig.status(), int::RD | int::RHSC);
    assert_ne!(rig.m.read32(PORT + 4) & port::CSC, 0);
}

#[test]
fn ohci_pm_5_a_connection_alone_does_not_wake_the_bus() {
    let mut rig = suspended();
    rig.ports[1].attach(device(Speed::Full).0).unwrap();
    rig.m.run();
    assert_eq!(hcfs(&mut rig), control::SUSPEND);
    assert_eq!(rig.status(), int::RHSC);
    assert_ne!(rig.m.read32(PORT + 4) & port::CSC, 0);
}

#[test]
fn ohci_pm_6_frames_go_on_after_a_resume() {
    let mut rig = running();
    let tds = [rig.out(&[1; 8]), rig.out(&[2; 8])];
    let ed = rig.endpoint_ed(BULK_OUT, &tds[..1]);
    rig.run_periodic(&[ed]);
    rig.frames(5);
    let number = rig.frame_number();
    rig.write_control(control::SUSPEND | control::PLE);
    rig.frames(100);
    rig.write_control(control::RESUME | control::PLE);
    rig.frames(20);
    let (buffer, _) = (rig.m.alloc(64, 64), ());
    rig.append(ed, [td::OUT, buffer], buffer + 7);
    rig.device.take_seen();
    rig.write_control(control::OPERATIONAL | control::PLE);
    assert_eq!(rig.frame_number(), number);
    rig.m.advance_micros(1001);
    assert_eq!(rig.frame_number(), number + 1);
    rig.frames(2);
    assert_eq!(rig.transfers(), 1);
}

#[test]
fn ohci_pm_7_the_reset_state_resets_the_devices() {
    for before in [control::OPERATIONAL, control::SUSPEND, control::RESUME] {
        let mut rig = running();
        rig.write_control(before);
        rig.device.take_seen();
        rig.write_control(control::RESET);
        assert!(rig.device.take_seen().contains(&Seen::Configured(0)));
        assert_eq!(rig.port(), port::PPS | port::CCS);
        let memory = rig.m.bytes(0, 4 << 20);
        rig.frames(10);
        assert!(rig.m.bytes(0, 4 << 20) == memory);
    }
}

#[test]
fn ohci_pm_8_software_reset_needs_no_resume() {
    let mut rig = running();
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    rig.m.write32(reg::HCCA, rig.hcca);
    rig.write_control(control::OPERATIONAL);
    rig.frames(2);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES);
    let td = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cc(td), 0, "the device kept its address");
    let suspended = Seen::Suspension(Suspension::Suspended);
    assert!(!rig.device.take_seen().contains(&suspended));
}

#[test]
fn ohci_pm_9_global_resume_resumes_suspended_ports() {
    let mut rig = running();
    rig.m.write32(PORT, port::PSS);
    rig.write_control(control::SUSPEND);
    assert_ne!(rig.port() & port::PSS, 0);
    rig.write_control(control::RESUME);
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES);
    let suspensions = rig.device.take_seen();
    assert_eq!(
        suspensions,
        [Suspension::Suspended, Suspension::Resumed].map(Seen::Suspension),
        "each once"
    );
}

#[test]
fn ohci_pm_10_without_bus_mastering_the_schedule_stands_still() {
    let mut rig = running();
    let (waiting, _) = rig.buffered(td::IN, 8);
    let ed = rig.endpoint_ed(BULK_IN, &[waiting]);
    rig.run_bulk(&[ed]);
    rig.device.take_seen();
    rig.m.bus_master = false;
    rig.m.run();
    let memory = rig.m.bytes(0, 4 << 20);
    let number = rig.frame_number();
    rig.ring_bulk();
    rig.frames(50);
    assert!(rig.m.bytes(0, 4 << 20) == memory);
    assert_eq!((rig.transfers(), rig.status() & int::UE), (0, 0));
    assert_eq!(rig.m.deadline(), None, "nor is there anything to wake up for");
    assert_eq!(rig.frame_number().wrapping_sub(number), 50, "time passes");
    rig.m.bus_master = true;
    rig.device.answer(BULK_IN, [crate::driver::scripted::Answer::Data(vec![1; 8])]);
    rig.m.run();
    rig.frames(1);
    assert_eq!(rig.cc(waiting), 0);
}

#[test]
fn ohci_pm_11_the_wake_signal_has_an_enable_of_its_own() {
    for enable in [0, control::RWE] {
        let mut rig = suspended();
        rig.write_control(control::SUSPEND | enable);
        rig.device.remote_wakeup();
        rig.m.run();
        assert_eq!(rig.status() & int::RD, int::RD);
        assert_eq!(rig.m.take_wakeup(), enable != 0);
        assert!(!rig.m.take_wakeup(), "once");
    }
}

#[test]
fn a_device_wakes_its_suspended_port_on_a_running_bus() {
    let mut rig = running();
    allow_wakeup(&rig);
    rig.m.write32(PORT, port::PSS);
    rig.clear_status();
    rig.device.remote_wakeup();
    rig.m.run();
    assert_eq!(rig.status() & int::RD, int::RD);
    assert_eq!(hcfs(&mut rig), control::OPERATIONAL);
    rig.m.advance_millis(30);
    assert_eq!(rig.port() & (port::PSS | port::PSSC), port::PSSC);
}

#[test]
fn a_suspended_bus_needs_no_attention() {
    let mut rig = suspended();
    rig.m.run();
    assert_eq!(rig.m.deadline(), None);
}

#[test]
fn ohci_pm_12_a_device_that_leaves_wakes_the_bus_too() {
    for drwe in [false, true] {
        let mut rig = suspended();
        rig.m.write32(reg::RH_STATUS, if drwe { 1 << 15 } else { 1 << 31 });
        rig.ports[0].detach().unwrap();
        rig.m.run();
        let state = if drwe { control::RESUME } else { control::SUSPEND };
        assert_eq!(hcfs(&mut rig), state);
        assert_eq!(rig.status(), int::RHSC | if drwe { int::RD } else { 0 });
        assert_eq!(rig.port(), port::PPS | port::CSC | port::PESC);
    }
}

#[test]
fn ohci_pm_13_a_device_on_a_suspended_port_wakes_a_suspended_bus() {
    let mut rig = running();
    allow_wakeup(&rig);
    rig.m.write32(PORT, port::PSS);
    rig.write_control(control::SUSPEND | control::RWE);
    rig.clear_status();
    rig.device.take_seen();
    rig.device.remote_wakeup();
    rig.m.run();
    assert_eq!(hcfs(&mut rig), control::RESUME);
    assert_eq!(rig.status(), int::RD);
    assert!(rig.m.take_wakeup());
    assert_eq!(rig.port(), port::PPS | port::CCS | port::PES, "the bus resumes as a whole");
    assert_eq!(rig.device.take_seen(), [Seen::Suspension(Suspension::Resumed)]);
    // The driver ends it, and the device is as it was.
    rig.m.advance_millis(20);
    rig.write_control(control::OPERATIONAL);
    rig.frames(2);
    let td = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cc(td), 0);
}

#[test]
fn ohci_pm_14_a_device_that_came_during_suspend_is_there_after_resume() {
    let mut rig = suspended();
    let (device, controls) = device(Speed::Low);
    rig.ports[1].attach(device).unwrap();
    rig.m.run();
    rig.write_control(control::RESUME);
    rig.m.advance_millis(20);
    rig.write_control(control::OPERATIONAL);
    let second = PORT + 4;
    assert_eq!(rig.m.read32(second), port::PPS | port::CCS | port::CSC | port::LSDA);
    rig.m.write32(second, port::PRS);
    rig.m.advance_millis(10);
    assert_ne!(rig.m.read32(second) & port::PES, 0);
    assert!(controls.take_seen().contains(&Seen::Configured(0)));
}
