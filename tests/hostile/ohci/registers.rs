//! Storms of register writes, and accesses that no driver makes.

use vm_usb::ohci::{Ohci, PowerSwitching};
use vm_usb::topology::Host;

use super::*;

#[test]
fn ohci_hg_32_an_interrupt_that_nobody_acknowledges_is_one() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    rig.frames(1);
    assert!(rig.m.line);
    rig.m.interrupts.clear();
    let work = work(&mut rig, |rig| rig.frames(200));
    assert!(work.most <= 33 * FRAME, "{work:?}");
    assert!(rig.m.line);
    assert_eq!(rig.m.interrupts.len(), 0, "no message is repeated");
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_33_a_register_write_is_one_message_at_most() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::SF);
    rig.frames(1);
    rig.m.interrupts.clear();
    let work = work(&mut rig, |rig| {
        for _ in 0..1000 {
            rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE);
            rig.m.write32(reg::INTERRUPT_DISABLE, int::MIE);
        }
    });
    assert_eq!(work.accesses, 0);
    assert!(rig.m.interrupts.iter().filter(|(_, interrupt)| interrupt.event).count() <= 1000);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_34_resets_and_state_changes_do_not_make_frames_faster() {
    let mut rig = running();
    let work = work(&mut rig, |rig| {
        for n in 0..10_000u32 {
            match n % 3 {
                0 => rig.m.write32(reg::COMMAND_STATUS, command::HCR),
                1 => rig.m.write32(reg::CONTROL, (n / 3 % 4) << 6),
                _ => rig.m.advance_micros(7),
            }
        }
    });
    assert!(work.most <= FRAME, "{work:?}");
    assert!(work.accesses <= 10_000, "no start of frame comes sooner than 1 ms: {work:?}");
    rig.start();
    rig.frames(2);
    let before = rig.frame_number();
    rig.frames(1000);
    assert_eq!(rig.frame_number().wrapping_sub(before), 1000);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_35_reset_signalling_over_and_over_costs_a_look_at_each_port() {
    let mut rig = running();
    let work = work(&mut rig, |rig| {
        for n in 0..10_000 {
            let state = if n % 2 == 0 { control::RESET } else { control::OPERATIONAL };
            rig.m.write32(reg::CONTROL, state);
        }
    });
    assert_eq!(work.accesses, 0);
    assert_eq!(rig.port() & (port::CCS | port::PES | port::PRS), port::CCS);
    assert_works_after_reset(&mut rig);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_36_a_port_that_is_being_reset_is_not_reset_again() {
    let mut rig = running();
    let work = work(&mut rig, |rig| {
        for _ in 0..100 {
            rig.m.write32(PORT, port::PRS);
            rig.m.advance_nanos(99_000);
        }
        rig.m.advance_nanos(200_000);
    });
    assert!(work.most <= FRAME, "{work:?}");
    assert_eq!(rig.port() & (port::PRS | port::PES | port::PRSC), port::PES | port::PRSC);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_37_a_port_that_resumes_has_one_timer() {
    let mut rig = running();
    rig.m.write32(PORT, port::PSS);
    rig.frames(1);
    let work = work(&mut rig, |rig| {
        for _ in 0..230 {
            rig.m.write32(PORT, port::CLEAR_SUSPEND);
            rig.m.advance_nanos(99_000);
        }
        rig.frames(1);
    });
    assert!(work.most <= FRAME, "{work:?}");
    assert_eq!(rig.port() & (port::PSS | port::PSSC), port::PSSC, "over after 23 ms, not later");
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_38_power_on_and_off_is_a_state_not_a_queue() {
    let mut rig = running();
    let links = rig.ports.iter().map(|port| port.link(Host::Classic)).collect();
    rig.m.controller = Ohci::new(links).with_power_switching(PowerSwitching::PerPort);
    let work = work(&mut rig, |rig| {
        for _ in 0..1000 {
            rig.m.write32(PORT, port::PPS);
            rig.m.write32(PORT, port::CLEAR_POWER);
        }
        rig.m.write32(PORT, port::PPS);
    });
    assert_eq!(work.accesses, 0);
    assert_eq!(rig.port() & (port::PPS | port::CCS), port::PPS | port::CCS);
    rig.start();
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_39_no_frame_interval_makes_frames_shorter() {
    let mut rig = running();
    for interval in [0, 1, 0x3fff] {
        rig.m.write32(reg::FM_INTERVAL, interval);
        let run = rig.m.frames().run;
        let work = work(&mut rig, |rig| {
            rig.m.write32(reg::INTERRUPT_ENABLE, int::SF | int::MIE);
            for n in 0..1000 {
                rig.m.write32(reg::FM_INTERVAL, interval ^ n << 31);
                rig.m.advance_micros(20);
            }
        });
        assert!(work.most <= FRAME, "{work:?}");
        assert!(rig.m.frames().run - run <= 20, "20 ms have 20 frames");
    }
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_40_registers_that_ration_the_wire_stop_nothing() {
    for value in [0, 1, 0x3fff, !0] {
        let mut rig = running();
        rig.m.write32(reg::FM_INTERVAL, value);
        rig.m.write32(reg::PERIODIC_START, value);
        rig.m.write32(reg::LS_THRESHOLD, value);
        let td = rig.out(&[1; 8]);
        let ed = rig.endpoint_ed(BULK_OUT, &[td]);
        let work = work(&mut rig, |rig| {
            rig.run_bulk(&[ed]);
            rig.frames(2);
        });
        assert!(work.most <= 2 * VISIT + FRAME, "{work:?}");
        assert_eq!(rig.cc(td), 0, "{value:#x}");
        assert_alive(&mut rig);
    }
}

#[test]
fn ohci_hg_41_frame_numbers_are_compared_in_16_bits() {
    // The frame that follows, and starting frames as far from it as can be.
    for (distance, retired) in [(0x8000, false), (0x7fff, true), (1, true), (0xffff, false)] {
        let mut rig = running();
        let next = rig.frame_number().wrapping_add(1);
        let buffer = rig.m.alloc(16, 16);
        let start = next.wrapping_sub(distance);
        let td = iso_td(&mut rig, start, (buffer, buffer + 7), &[0], 0xe000);
        let ed = iso_ed(&mut rig, ed::OUT, &[td]);
        rig.run_periodic(&[ed]);
        let work = work(&mut rig, |rig| rig.frames(1));
        assert!(work.most <= VISIT + FRAME, "{work:?}");
        assert_eq!(rig.cc(td) == 8, retired, "{distance:#x}");
        assert_alive(&mut rig);
    }
}

#[test]
fn ohci_hg_42_43_what_cannot_be_written_is_not() {
    let mut rig = running();
    let fixed = [reg::REVISION, reg::PERIOD_CURRENT_ED, reg::DONE_HEAD, reg::FM_NUMBER];
    let before = fixed.map(|register| rig.m.read32(register));
    let ports = rig.m.read32(reg::RH_DESCRIPTOR_A) & 0xff;
    let work = work(&mut rig, |rig| {
        for register in fixed.into_iter().chain([reg::FM_REMAINING, reg::RH_DESCRIPTOR_A]) {
            rig.m.write32(register, !0);
        }
        // Behind the last port, and behind all registers.
        for register in (PORT + 4 * u64::from(ports)..0x1000).step_by(4) {
            rig.m.write32(register, !0);
            assert_eq!(rig.m.read32(register), 0, "{register:#x}");
        }
    });
    assert_eq!(work.accesses, 0);
    assert_eq!(fixed.map(|register| rig.m.read32(register)), before);
    assert_eq!(rig.m.read32(reg::RH_DESCRIPTOR_A) & 0xff, ports);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_63_aligned_dwords_are_registers() {
    let mut rig = running();
    rig.m.write32(reg::PERIODIC_START, 0x1234);
    assert_eq!(rig.m.read32(reg::PERIODIC_START), 0x1234);
}

#[test]
fn ohci_hg_64_eight_bytes_are_two_registers() {
    let mut rig = running();
    rig.m.write32(reg::PERIODIC_START, 0x1234);
    let mut data = [0; 8];
    rig.m.read(reg::PERIODIC_START, &mut data);
    assert_eq!(data, [0x34, 0x12, 0, 0, 0x28, 0x06, 0, 0], "HcLSThreshold follows");
    let work = work(&mut rig, |rig| rig.m.write(reg::PERIODIC_START, &[0xff; 8]));
    assert_eq!(work.accesses, 0);
    rig.m.read(reg::PERIODIC_START, &mut data);
    assert_eq!(data, [0xff, 0x3f, 0, 0, 0xff, 0x0f, 0, 0]);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_65_66_parts_read_as_parts_and_run_no_command() {
    let mut rig = running();
    let before = rig.m.read32(reg::RH_DESCRIPTOR_A).to_le_bytes();
    for len in [1, 2, 3] {
        for at in 0..=4 - len {
            let mut data = vec![0; len];
            rig.m.read(reg::RH_DESCRIPTOR_A + at as u64, &mut data);
            assert_eq!(data, before[at..at + len]);
        }
    }
    // Across a dword, across the end of the window, and of no size that there is.
    for (offset, len) in [(0x01, 4), (0x02, 4), (0x03, 2), (0xffe, 4), (0xfff, 2), (4, 16)] {
        let mut data = vec![0xaa; len];
        rig.m.read(offset, &mut data);
        assert_eq!(data, vec![0; len], "{offset:#x} {len}");
    }
    let port = rig.port();
    let work = work(&mut rig, |rig| {
        for offset in 0..0x100 {
            for len in [1, 2, 3, 5, 7, 16] {
                rig.m.write(offset, &vec![0xff; len]);
            }
            if offset % 4 != 0 {
                rig.m.write(offset, &[0xff; 4]);
            }
        }
    });
    assert_eq!(work.accesses, 0);
    assert_eq!(rig.port(), port);
    assert_eq!(rig.m.read32(reg::CONTROL), rig.control);
    assert_alive(&mut rig);
}
