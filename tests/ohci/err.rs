//! OHCI-ERR: errors on the bus, in memory, and guests that mean harm.

use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_usb::usb::{BusError, Toggle};

use crate::driver::machine::RAM;
use crate::driver::scripted::Answer;
use crate::rig::*;

/// The controller still keeps time and answers.
fn assert_alive(rig: &mut Rig) {
    let before = rig.frame_number();
    rig.frames(10);
    assert_eq!(rig.frame_number().wrapping_sub(before), 10);
    assert_eq!(rig.m.read32(reg::REVISION), 0x10);
}

/// UnrecoverableError happened: nothing moves, registers respond, reset revives.
fn assert_dead_until_reset(rig: &mut Rig) {
    assert_ne!(rig.status() & int::UE, 0);
    let frame = rig.frame_number();
    rig.m.fill(rig.hcca + hcca::FRAME_NUMBER, &[0x5a; 4]);
    rig.frames(20);
    assert_eq!(rig.frame_number(), frame);
    assert_eq!(rig.hcca_frame(), 0x5a5a_5a5a);
    assert_eq!(rig.m.read32(reg::CONTROL), rig.control, "HCFS is kept");
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    assert_eq!(rig.status(), 0);
}

#[test]
fn ohci_err_1_the_third_silence_in_a_row_ends_a_td() {
    let mut rig = running();
    let (td, _) = rig.buffered(td::IN, 8);
    let next = rig.out(&[1; 8]);
    let ed = rig.ed(ed::control(99, 1, 64), &[td, next]);
    rig.run_bulk(&[ed]);
    for attempts in 1..3 {
        assert_eq!((rig.ec(td), rig.cc(td), rig.halted(ed)), (attempts, 0xf, false));
        rig.frames(1);
    }
    assert_eq!((rig.cc(td), rig.halted(ed)), (5, true));
    assert_eq!(rig.head_p(ed), next);
    rig.frames(1);
    assert_eq!(rig.done_head(), td);
}

#[test]
fn ohci_err_2_a_success_forgives_earlier_errors() {
    let mut rig = running();
    let error = || Answer::Error(BusError::Crc);
    let good = || Answer::Data(vec![1; 64]);
    rig.device.answer(BULK_IN, [error(), error()]);
    rig.device.answer(BULK_IN, [good(), Answer::Nak]);
    let (td, _) = rig.buffered(td::IN, 128);
    let ed = rig.ed(ed::control(ADDRESS, 1, 64), &[td]);
    // The device sends one packet at a time.
    rig.run_periodic(&[ed]);
    rig.frames(2);
    assert_eq!((rig.ec(td), rig.cc(td)), (2, 0xf));
    rig.frames(1);
    assert_eq!((rig.ec(td), rig.cc(td)), (0, 0xf));
    rig.device.answer(BULK_IN, [error(), error(), good()]);
    rig.frames(5);
    assert_eq!((rig.ec(td), rig.cc(td), rig.halted(ed)), (0, 0, false));
}

#[test]
fn ohci_err_3_a_stall_ends_a_td_at_once() {
    let mut rig = running();
    rig.device.answer(BULK_OUT, [Answer::Stall]);
    let td = rig.out(&[1; 8]);
    let word = rig.m.load(td);
    rig.m.store(td, word | 1 << 26);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!((rig.cc(td), rig.ec(td), rig.halted(ed)), (4, 1, true));
    rig.frames(5);
    assert_eq!(rig.transfers(), 1);
}

#[test]
fn ohci_err_4_too_much_data_is_an_overrun_and_stays_in_its_buffer() {
    // 100 bytes for a buffer of 70: the second packet is too long.
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Data(vec![7; 100])]);
    let buffer = rig.m.alloc(128, 128);
    let td = rig.td(td::IN, buffer, buffer + 69);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!((rig.cc(td), rig.halted(ed)), (8, true));
    assert_eq!(rig.m.bytes(buffer, 64), [7; 64]);
    assert_eq!(rig.m.bytes(buffer + 64, 64), [0; 64]);

    // A packet of 64 bytes where the host expects 8 at most.
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Data(vec![7; 64])]);
    let (td, buffer) = rig.buffered(td::IN, 64);
    let ed = rig.ed(ed::control(ADDRESS, 1, 8) | ed::IN, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!((rig.cc(td), rig.halted(ed)), (8, true));
    assert_eq!(rig.m.bytes(buffer + 8, 56), [0; 56]);
}

#[test]
fn ohci_err_5_three_repetitions_in_a_row_are_a_toggle_mismatch() {
    let mut rig = running();
    rig.device.answer(BULK_IN, vec![Answer::Error(BusError::ToggleMismatch); 3]);
    let (td, buffer) = rig.buffered(td::IN, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    rig.frames(3);
    assert_eq!((rig.cc(td), rig.halted(ed)), (3, true));
    assert_eq!(rig.m.bytes(buffer, 64), [0; 64]);
    assert!(!rig.carry(ed));
}

#[test]
fn ohci_err_6_what_is_queued_behind_an_error_stays() {
    let mut rig = running();
    rig.device.answer(BULK_OUT, [Answer::Stall]);
    let tds = [rig.out(&[1; 8]), rig.out(&[2; 8]), rig.out(&[3; 8])];
    let ed = rig.endpoint_ed(BULK_OUT, &tds);
    let before = (rig.m.bytes(tds[1], 16), rig.m.bytes(tds[2], 16));
    rig.run_bulk(&[ed]);
    rig.ring_bulk();
    rig.frames(10);
    assert_eq!((rig.m.bytes(tds[1], 16), rig.m.bytes(tds[2], 16)), before);
    clear_halt(&rig.ports[0], BULK_OUT);
    let head = rig.head_p(ed);
    rig.m.store(ed + 8, head);
    rig.ring_bulk();
    assert_eq!((rig.cc(tds[1]), rig.cc(tds[2])), (0, 0));
}

#[test]
fn ohci_err_7_descriptors_outside_memory_are_unrecoverable() {
    for nowhere in [RAM, 0x8000_0000, 0xffff_fff0] {
        for mut rig in led_to(nowhere) {
            assert_dead_until_reset(&mut rig);
        }
    }
}

#[test]
fn ohci_err_8_a_buffer_outside_memory_is_unrecoverable() {
    for (cbp, be) in [(RAM, RAM + 7), (RAM - 8, RAM + 7), (0x10_0ff8, 0x8000_0007)] {
        let mut rig = running();
        let td = rig.td(td::OUT, cbp, be);
        let ed = rig.endpoint_ed(BULK_OUT, &[td]);
        rig.run_bulk(&[ed]);
        assert_eq!(rig.cc(td), 0xf);
        assert_eq!(rig.transfers(), 0);
        assert_dead_until_reset(&mut rig);
    }
    // The last bytes of memory are memory.
    let mut rig = running();
    let td = rig.td(td::OUT, RAM - 8, RAM - 1);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cc(td), 0);
}

#[test]
fn ohci_err_9_reset_revives_the_controller() {
    let mut rig = running();
    rig.m.write32(reg::BULK_HEAD_ED, RAM);
    rig.enable(control::BLE);
    rig.ring_bulk();
    rig.write_control(control::RESET);
    rig.write_control(control::OPERATIONAL);
    rig.frames(3);
    assert_ne!(rig.status() & int::UE, 0, "moving the bus to another state does not");
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    rig.start();
    let td = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    rig.frames(1);
    assert_eq!((rig.cc(td), rig.status() & int::UE), (0, 0));
    assert_alive(&mut rig);
}

#[test]
fn ohci_err_10_a_circle_of_idle_endpoints_ends_the_frame() {
    for length in [1, 2, 3, 7, 100] {
        let mut rig = running();
        let eds: Vec<u32> = (0..length).map(|_| rig.endpoint_ed(BULK_OUT, &[])).collect();
        rig.link(&eds);
        rig.m.store(eds[length - 1] + 12, eds[0]);
        for register in [reg::CONTROL_HEAD_ED, reg::BULK_HEAD_ED] {
            rig.m.write32(register, eds[0]);
        }
        rig.enable(control::CLE | control::BLE);
        rig.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
        assert_eq!(rig.m.read32(reg::COMMAND_STATUS) & (command::CLF | command::BLF), 0);
        assert_alive(&mut rig);
        assert_eq!(rig.status() & int::UE, 0);
        // On the periodic list it is a list that never ends.
        for slot in 0..32 {
            rig.m.store(rig.hcca + 4 * slot, eds[0]);
        }
        rig.enable(control::PLE);
        rig.frames(3);
        assert_eq!(rig.status() & (int::SO | int::UE), int::SO);
        assert_alive(&mut rig);
    }
}

#[test]
fn ohci_err_10_a_circle_with_a_busy_endpoint_serves_it() {
    let mut rig = running();
    let tds: Vec<u32> = (0..50).map(|_| rig.td(td::OUT, 0, 0)).collect();
    let eds = [rig.endpoint_ed(SECOND_OUT, &[]), rig.endpoint_ed(BULK_OUT, &tds)];
    rig.link(&eds);
    rig.m.store(eds[1] + 12, eds[0]);
    rig.m.write32(reg::BULK_HEAD_ED, eds[0]);
    rig.enable(control::BLE);
    rig.ring_bulk();
    rig.frames(1);
    assert_eq!(rig.transfers(), 50);
    assert_alive(&mut rig);
}

#[test]
fn ohci_err_11_a_td_that_follows_itself_is_bounded() {
    let mut rig = running();
    let ed = rig.td_in_a_circle();
    rig.run_bulk(&[ed]);
    let first = rig.transfers();
    assert!((1..=2000).contains(&first));
    rig.frames(3);
    assert!(rig.transfers() <= 6000);
    assert_alive(&mut rig);
}

#[test]
fn ohci_err_12_no_packet_carries_bytes_if_none_may() {
    for endpoint in [BULK_OUT, BULK_IN] {
        let mut rig = running();
        let direction = if endpoint.is_in() { ed::IN } else { ed::OUT };
        let (td, _) = rig.buffered(0, 8);
        let ed = rig.ed(ed::control(ADDRESS, 1, 0) | direction, &[td]);
        rig.run_bulk(&[ed]);
        assert_alive(&mut rig);
        assert_eq!((rig.cc(td), rig.halted(ed)), (5, true), "and it does not stay for good");
        assert_eq!(rig.transfers(), 0);
    }
    let mut rig = running();
    let td = rig.td(td::OUT, 0, 0);
    let ed = rig.ed(ed::control(ADDRESS, 1, 0) | ed::OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.cc(td), 0, "no bytes need no room");
}

#[test]
fn ohci_err_13_nonsense_descriptors_are_survived() {
    // DP = 11 in an ED that leaves the direction open.
    let mut rig = running();
    let (td, _) = rig.buffered(3 << 19, 8);
    let ed = rig.ed(ed::control(ADDRESS, 1, 64), &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!((rig.cc(td), rig.halted(ed), rig.transfers()), (7, true, 0));
    assert_alive(&mut rig);
    // Isochronous format on the bulk list, and for a bulk endpoint on the periodic list.
    let mut rig = running();
    let ed = rig.ed(ed::control(ADDRESS, 1, 64) | ed::ISOCHRONOUS | ed::OUT, &[]);
    let td = rig.m.alloc(32, 32);
    rig.m.store(ed + 8, td);
    rig.run_bulk(&[ed]);
    rig.run_periodic(&[ed]);
    assert_alive(&mut rig);
    // General format for an isochronous endpoint; SETUP to one that is not for control.
    for (endpoint, dp) in [(4, td::OUT), (1, td::SETUP), (0, td::SETUP)] {
        let mut rig = running();
        let (td, _) = rig.buffered(dp, 5);
        let ed = rig.ed(ed::control(ADDRESS, endpoint, 64), &[td]);
        rig.run_bulk(&[ed]);
        assert_alive(&mut rig);
        assert_eq!(rig.cc(td), 5, "nobody answers");
    }
}

#[test]
fn ohci_err_14_a_very_long_list_is_bounded_and_served_in_the_end() {
    let mut rig = running();
    let mut eds: Vec<u32> = (0..15_000).map(|_| rig.m.alloc(16, 16)).collect();
    let td = rig.out(&[1; 8]);
    eds.push(rig.endpoint_ed(BULK_OUT, &[td]));
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    rig.run_bulk(&eds);
    assert_eq!(rig.cc(td), 0xf, "not in one go");
    assert_alive(&mut rig);
    assert!(rig.m.line);
    assert_eq!(rig.cc(td), 0);
}

#[test]
fn ohci_err_15_a_buffer_may_wrap_at_four_gigabytes() {
    let mut rig = running();
    let td = rig.td(td::OUT, 0xffff_fff0, 0xf);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_ne!(rig.status() & int::UE, 0, "there is no memory at the top here");
    let ranges = [(GuestAddress(0), RAM as usize), (GuestAddress(0xffff_f000), 0x1000)];
    let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
    let mut rig = running();
    rig.m.memory = memory;
    rig.m.fill(0xffff_fff0, &[1; 16]);
    rig.m.fill(0, &[2; 16]);
    let td = rig.td(td::OUT, 0xffff_fff0, 0xf);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.device.take_received(BULK_OUT), [[1; 16], [2; 16]].concat());
    assert_eq!((rig.cc(td), rig.cbp(td)), (0, 0));
}

#[test]
fn ohci_err_15_a_buffer_that_ends_before_it_begins_is_unrecoverable() {
    let mut rig = running();
    let td = rig.td(td::OUT, 0x10_1010, 0x10_1008);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.transfers(), 0);
    assert_dead_until_reset(&mut rig);
}

#[test]
fn ohci_err_17_data_may_land_on_its_own_descriptors() {
    for target in 0..3 {
        let mut rig = running();
        let (td, ed, dummy) = rig.td_onto_descriptors(target);
        rig.run_bulk(&[ed]);
        assert_eq!(rig.transfers(), 1);
        // The write-back is by what was read before the data came.
        assert_eq!(rig.head_p(ed), dummy);
        assert_eq!((rig.cc(td), rig.cbp(td)), (0, 0));
        rig.frames(10);
        assert_eq!(rig.m.read32(reg::REVISION), 0x10);
    }
}

#[test]
fn ohci_err_18_the_communications_area_may_lie_on_descriptors() {
    let mut rig = running();
    let td = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.enable(control::PLE | control::IE);
    for at in [ed, td] {
        rig.m.write32(reg::HCCA, at);
        rig.run_bulk(&[ed]);
        rig.frames(40);
        assert_eq!(rig.m.read32(reg::REVISION), 0x10);
    }
}

#[test]
fn ohci_err_19_storms_of_resets_change_nothing() {
    let mut rig = running();
    for n in 0..10_000u32 {
        match n % 4 {
            0 => rig.m.write32(reg::COMMAND_STATUS, command::HCR),
            1 => rig.m.write32(reg::CONTROL, ((n / 4) & 3) << 6),
            2 => rig.m.write32(PORT, port::PRS),
            _ => rig.m.advance_micros(7),
        }
    }
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    rig.m.write32(reg::HCCA, rig.hcca);
    rig.write_control(control::OPERATIONAL);
    rig.frames(2);
    let before = rig.frame_number();
    rig.frames(1000);
    assert_eq!(rig.frame_number().wrapping_sub(before), 1000);
    assert_ne!(rig.hcca_frame(), 0);
}

#[test]
fn a_device_that_repeats_its_last_packet_is_told_apart_by_the_toggle() {
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Data(vec![1; 64]), Answer::Data(vec![2; 64])]);
    let (first, _) = rig.buffered(td::IN | td::DATA0, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[first]);
    rig.run_bulk(&[ed]);
    assert_eq!(rig.offers(), [(Toggle::Data0, 64)]);
    // The host asks with DATA0 again: the device's DATA1 is taken for lost.
    let buffer = rig.m.alloc(64, 64);
    let second = rig.append(ed, [td::IN | td::DATA0, buffer], buffer + 63);
    rig.ring_bulk();
    assert_eq!((rig.ec(second), rig.cc(second)), (1, 0xf));
    assert_eq!(rig.m.bytes(buffer, 64), [0; 64]);
}
