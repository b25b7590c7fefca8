//! OHCI-UNLINK: drivers take their memory back, at once or late.

use vm_usb::ohci::Pacing;
use vm_usb::usb::Toggle;

use crate::driver::scripted::{Answer, Controls, Seen};
use crate::rig::*;

const PATTERN: u8 = 0x5a;

pub fn skip(rig: &mut Rig, ed: u32) {
    let word = rig.m.load(ed);
    rig.m.store(ed, word | ed::SKIP);
}

pub fn unskip(rig: &mut Rig, ed: u32) {
    let word = rig.m.load(ed);
    rig.m.store(ed, word & !ed::SKIP);
}

/// Waits for a start of frame the way Linux does.
pub fn wait_for_frame(rig: &mut Rig) -> u64 {
    rig.m.write32(reg::INTERRUPT_STATUS, int::SF);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    rig.m.read32(reg::CONTROL);
    let tick = (rig.hcca_frame() as u16).wrapping_add(1);
    let before = rig.m.now;
    loop {
        assert!(rig.m.wait_millis(5, |m| m.line), "no start of frame");
        let passed = (rig.hcca_frame() as u16).wrapping_sub(tick) < 0x8000;
        rig.m.write32(reg::INTERRUPT_STATUS, int::SF);
        if passed {
            rig.m.write32(reg::INTERRUPT_DISABLE, int::SF);
            return rig.m.now.nanos_since(before);
        }
    }
}

pub fn fill(rig: &mut Rig, areas: &[(u32, u32)]) {
    for (at, len) in areas {
        rig.m.fill(*at, &vec![PATTERN; *len as usize]);
    }
}

pub fn assert_intact(rig: &mut Rig, areas: &[(u32, u32)]) {
    for _ in 0..100 {
        rig.frames(1);
        for (at, len) in areas {
            assert_eq!(rig.m.bytes(*at, *len as usize), vec![PATTERN; *len as usize]);
        }
    }
    assert_eq!(rig.status() & int::UE, 0);
}

pub fn cancels(device: &Controls) -> usize {
    device.take_seen().iter().filter(|seen| matches!(seen, Seen::Cancel(_))).count()
}

#[test]
fn ohci_unlink_1_a_skipped_endpoint_is_left_alone() {
    let mut rig = running();
    let (td, _) = rig.buffered(td::IN, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    rig.frames(3);
    skip(&mut rig, ed);
    rig.frames(1);
    rig.device.take_seen();
    let before = (rig.m.bytes(ed, 16), rig.m.bytes(td, 16));
    rig.device.answer(BULK_IN, [Answer::Data(vec![1; 64])]);
    rig.frames(20);
    assert_eq!(rig.transfers(), 0);
    assert_eq!((rig.m.bytes(ed, 16), rig.m.bytes(td, 16)), before);
}

#[test]
fn ohci_unlink_2_a_transfer_goes_on_where_it_was() {
    let mut rig = running();
    let data: Vec<u8> = (0..=255).collect();
    let td = rig.out(&data);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.device.answer(BULK_OUT, [Answer::Take(64), Answer::Nak]);
    rig.run_bulk(&[ed]);
    skip(&mut rig, ed);
    rig.frames(2);
    unskip(&mut rig, ed);
    rig.ring_bulk();
    assert_eq!(rig.cc(td), 0);
    assert_eq!(rig.device.take_received(BULK_OUT), data);
    assert_eq!(rig.offers().last(), Some(&(Toggle::Data1, 192)));
}

#[test]
fn ohci_unlink_3_memory_of_an_idle_endpoint_is_the_drivers_again() {
    for pacing in [Pacing::RealTime, Pacing::Eager] {
        let mut rig = running_with(pacing);
        let (td, _) = rig.buffered(td::IN, 8);
        let stays = rig.endpoint_ed(SECOND_IN, &[td]);
        let goes = rig.endpoint_ed(BULK_OUT, &[]);
        rig.run_control(&[goes, stays]);
        rig.frames(2);
        skip(&mut rig, goes);
        rig.m.write32(reg::CONTROL_HEAD_ED, stays);
        wait_for_frame(&mut rig);
        let areas = [(goes, 16)];
        fill(&mut rig, &areas);
        assert_intact(&mut rig, &areas);
    }
}

#[test]
fn ohci_unlink_4_memory_of_a_waiting_transfer_is_the_drivers_again() {
    for answer in [Answer::Nak, Answer::Park, Answer::Pending] {
        let mut rig = running();
        let (td, buffer) = rig.buffered(td::IN, 64);
        let (other, _) = rig.buffered(td::IN, 8);
        let goes = rig.endpoint_ed(BULK_IN, &[td]);
        let dummy = rig.m.load(goes + 4);
        let stays = rig.endpoint_ed(SECOND_IN, &[other]);
        rig.device.answer(BULK_IN, [answer]);
        rig.run_bulk(&[goes, stays]);
        rig.frames(2);
        skip(&mut rig, goes);
        rig.m.write32(reg::BULK_HEAD_ED, stays);
        wait_for_frame(&mut rig);
        let areas = [(goes, 16), (td, 16), (dummy, 16), (buffer, 64)];
        fill(&mut rig, &areas);
        rig.device.forget(BULK_IN);
        rig.device.answer(BULK_IN, [Answer::Data(vec![1; 64])]);
        rig.device.announce(BULK_IN);
        assert_intact(&mut rig, &areas);
        assert_eq!(rig.status() & int::WDH, 0);
    }
}

#[test]
fn ohci_unlink_5_the_device_learns_that_nobody_waits_any_more() {
    // Skipped; taken off the list; off a list that goes on; its list disabled.
    for way in 0..4 {
        let mut rig = running();
        let (td, buffer) = rig.buffered(td::IN, 64);
        let (other, _) = rig.buffered(td::IN, 8);
        let ed = rig.endpoint_ed(BULK_IN, &[td]);
        let stays = rig.endpoint_ed(SECOND_IN, &[other]);
        rig.device.answer(BULK_IN, [Answer::Pending]);
        rig.run_bulk(&[ed, stays]);
        rig.frames(3);
        assert_eq!(cancels(&rig.device), 0);
        match way {
            0 => skip(&mut rig, ed),
            1 => rig.m.write32(reg::BULK_HEAD_ED, 0),
            2 => rig.m.write32(reg::BULK_HEAD_ED, stays),
            _ => rig.disable(control::BLE),
        }
        let before = rig.m.bytes(0, 4 << 20);
        rig.frames(1);
        assert_eq!(cancels(&rig.device), 1, "way {way}");
        rig.device.answer(BULK_IN, [Answer::Data(vec![1; 64])]);
        rig.device.announce(BULK_IN);
        rig.frames(20);
        assert_eq!(rig.m.bytes(buffer, 64), [0; 64]);
        assert_eq!(rig.status() & int::WDH, 0);
        let after = rig.m.bytes(0, 4 << 20);
        let frame = (rig.hcca + hcca::FRAME_NUMBER) as usize;
        assert!(after[..frame] == before[..frame] && after[frame + 4..] == before[frame + 4..]);
    }
}

#[test]
fn ohci_unlink_6_what_stops_the_bus_stops_the_device() {
    let ways: [fn(&mut Rig); 7] = [
        |rig| rig.m.write32(reg::COMMAND_STATUS, command::HCR),
        |rig| rig.write_control(control::SUSPEND | control::BLE),
        |rig| rig.write_control(control::RESET | control::BLE),
        |rig| rig.m.write32(PORT, port::CLEAR_ENABLE),
        |rig| rig.m.write32(PORT, port::PRS),
        |rig| rig.m.write32(PORT, port::PSS),
        |rig| drop(rig.ports[0].detach()),
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let mut rig = running();
        let (td, buffer) = rig.buffered(td::IN, 64);
        let ed = rig.endpoint_ed(BULK_IN, &[td]);
        rig.device.answer(BULK_IN, [Answer::Pending, Answer::Data(vec![1; 64])]);
        rig.run_bulk(&[ed]);
        way(&mut rig);
        assert_eq!(cancels(&rig.device), 1, "way {n}: when it is done");
        rig.device.announce(BULK_IN);
        rig.frames(10);
        assert_eq!(rig.m.bytes(buffer, 64), [0; 64]);
    }
}

#[test]
fn ohci_unlink_7_an_idle_endpoint_may_stay_linked() {
    let mut rig = running();
    let (td, _) = rig.buffered(td::IN, 8);
    let live = rig.endpoint_ed(SECOND_IN, &[td]);
    let idle = rig.endpoint_ed(BULK_IN, &[]);
    rig.run_bulk(&[idle, live]);
    let before = rig.m.bytes(idle, 16);
    rig.frames(1000);
    assert_eq!(rig.m.bytes(idle, 16), before);
    assert!(rig.endpoints_seen().iter().all(|endpoint| *endpoint == 2));
    rig.device.answer(SECOND_IN, [Answer::Data(vec![1; 8])]);
    rig.frames(1);
    assert_eq!(rig.cc(td), 0);
}

#[test]
fn ohci_unlink_8_a_list_of_idle_endpoints_stops() {
    let mut rig = running();
    let td = rig.out(&[1; 8]);
    let eds = [rig.endpoint_ed(BULK_OUT, &[td]), rig.endpoint_ed(BULK_IN, &[])];
    rig.run_bulk(&eds);
    rig.frames(2);
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS), 0);
    assert_eq!(rig.m.read32(reg::BULK_CURRENT_ED), 0);
    // Nobody reads them any more: a link to nowhere does no harm.
    rig.m.store(eds[0] + 12, 0xdead_0000);
    rig.frames(300);
    assert_eq!(rig.status() & int::UE, 0);
}

#[test]
fn ohci_unlink_9_a_doorbell_is_all_an_idle_endpoint_needs() {
    for bulk in [true, false] {
        let mut rig = running();
        let ed = rig.endpoint_ed(BULK_OUT, &[]);
        if bulk {
            rig.run_bulk(&[ed])
        } else {
            rig.run_control(&[ed])
        }
        rig.frames(100);
        let td = rig.append(ed, [td::OUT, 0], 0);
        if bulk {
            rig.ring_bulk()
        } else {
            rig.ring_control()
        }
        assert_eq!((rig.transfers(), rig.cc(td)), (1, 0), "within the write");
    }
}

#[test]
fn ohci_unlink_10_a_thousand_transfers_with_pauses_are_all_done_once() {
    let mut rig = running();
    let ed = rig.endpoint_ed(BULK_OUT, &[]);
    rig.run_bulk(&[ed]);
    let mut pause = 12_345u64;
    for n in 0..1000u32 {
        let buffer = 0x70_0000 + 4 * (n & 0xff);
        rig.m.store(buffer, n);
        let td = rig.append(ed, [td::OUT, buffer], buffer + 3);
        rig.ring_bulk();
        assert!(rig.m.wait_millis(3, |m| m.read32(reg::INTERRUPT_STATUS) & int::WDH != 0));
        assert_eq!(rig.done_head() & !0xf, td);
        rig.m.write32(reg::INTERRUPT_STATUS, int::WDH);
        assert_eq!(rig.device.take_received(BULK_OUT), n.to_le_bytes());
        pause = pause.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        rig.m.advance_micros((pause >> 40) % 300_000 / (1 + u64::from(n % 7) * 40));
    }
    rig.frames(10);
    assert!(rig.device.take_received(BULK_OUT).is_empty());
}

#[test]
fn ohci_unlink_11_a_periodic_endpoint_needs_no_doorbell() {
    let mut rig = running();
    let ed = rig.endpoint_ed(BULK_OUT, &[]);
    rig.run_periodic(&[ed]);
    rig.frames(5);
    for idle in [0, 3, 20] {
        rig.frames(idle);
        let td = rig.append(ed, [td::OUT, 0], 0);
        rig.frames(1);
        assert_eq!(rig.cc(td), 0, "after {idle} idle frames");
    }
    // A driver that was silent for long has to wait, but not for ever.
    rig.frames(500);
    let td = rig.append(ed, [td::OUT, 0], 0);
    rig.m.now = rig.m.deadline().unwrap();
    rig.m.run();
    assert_eq!(rig.cc(td), 0);
    // The look after the next comes within an eighth of the time that nothing has happened.
    for (quiet, frames) in [(40, 16), (800, 100), (10_000, 128)] {
        rig.m.write32(reg::INTERRUPT_STATUS, 0);
        rig.frames(quiet);
        let until = rig.m.deadline().unwrap().nanos_since(rig.m.now);
        assert!(until <= frames * 1_000_000, "{until} ns after {quiet} frames");
    }
    // Whatever the slot, it is looked at.
    for slot in 0..32 {
        for at in 0..32 {
            rig.m.store(rig.hcca + 4 * at, if at == slot { ed } else { 0 });
        }
        rig.frames(3000);
        let td = rig.append(ed, [td::OUT, 0], 0);
        rig.frames(128 + 32);
        assert_eq!(rig.cc(td), 0, "in slot {slot}");
    }
}

#[test]
fn ohci_unlink_18_a_disabled_list_is_not_read() {
    let mut rig = running();
    let (waiting, _) = rig.buffered(td::IN, 8);
    let ed = rig.endpoint_ed(SECOND_IN, &[waiting]);
    rig.run_control(&[ed]);
    rig.frames(3);
    rig.disable(control::CLE);
    rig.frames(1);
    rig.device.take_seen();
    // A link to nowhere would be noticed.
    rig.m.store(ed + 12, 0xdead_0000);
    rig.m.store(waiting, 0);
    rig.frames(10);
    assert_eq!((rig.status() & int::UE, rig.transfers()), (0, 0));
    rig.m.store(ed + 12, 0);
    let td = rig.out(&[1; 8]);
    let first = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.m.store(first + 12, ed);
    rig.m.write32(reg::CONTROL_HEAD_ED, first);
    rig.m.write32(reg::CONTROL_CURRENT_ED, 0);
    rig.enable(control::CLE);
    rig.ring_control();
    assert_eq!(rig.endpoints_seen()[..2], [1, 2]);
}

#[test]
fn ohci_unlink_19_a_list_survives_that_its_current_endpoint_is_taken_out() {
    let mut rig = running();
    let tds: Vec<u32> = (0..1500).map(|_| rig.td(td::OUT, 0, 0)).collect();
    let more: Vec<u32> = (0..1500).map(|_| rig.td(td::OUT, 0, 0)).collect();
    let eds = [
        rig.endpoint_ed(BULK_OUT, &tds),
        rig.endpoint_ed(BULK_IN, &[]),
        rig.endpoint_ed(SECOND_OUT, &more),
    ];
    rig.run_bulk(&eds);
    rig.device.take_seen();
    // The budget of the frame ended in the middle of the list. Whatever is current goes.
    let current = rig.m.read32(reg::BULK_CURRENT_ED);
    let at = eds.iter().position(|ed| *ed == current);
    let gone = at.unwrap_or(1);
    skip(&mut rig, eds[gone]);
    let rest: Vec<u32> = eds.iter().copied().filter(|ed| *ed != eds[gone]).collect();
    let head = rig.link(&rest);
    rig.m.write32(reg::BULK_HEAD_ED, head);
    wait_for_frame(&mut rig);
    fill(&mut rig, &[(eds[gone], 16)]);
    assert_intact(&mut rig, &[(eds[gone], 16)]);
    assert!(rest.iter().all(|ed| rig.head_p(*ed) == rig.m.load(ed + 4)), "all is served");
}

#[test]
fn ohci_unlink_19_a_list_that_was_stopped_in_the_middle_forgets_where() {
    let mut rig = running();
    let zeros =
        |rig: &mut Rig, count| -> Vec<u32> { (0..count).map(|_| rig.td(td::OUT, 0, 0)).collect() };
    let (one, many, more) = (zeros(&mut rig, 1), zeros(&mut rig, 1500), zeros(&mut rig, 1500));
    let first = rig.endpoint_ed(BULK_OUT, &many);
    let goes = rig.endpoint_ed(BULK_IN, &[]);
    let last = rig.endpoint_ed(SECOND_OUT, &more);
    // One TD of the control list makes the frame's budget end after the first bulk endpoint.
    let control_ed = rig.endpoint_ed(BULK_OUT, &one);
    rig.run_control(&[control_ed]);
    rig.run_bulk(&[first, goes, last]);
    assert_eq!(rig.m.read32(reg::BULK_CURRENT_ED), goes);
    rig.disable(control::BLE);
    rig.frames(2);
    rig.link(&[first, last]);
    // The driver does not write the current pointer. Following it would lead nowhere.
    fill(&mut rig, &[(goes, 16)]);
    rig.frames(2);
    rig.enable(control::BLE);
    rig.ring_bulk();
    assert_intact(&mut rig, &[(goes, 16)]);
    assert!([first, last].iter().all(|ed| rig.head_p(*ed) == rig.m.load(ed + 4)));
}

#[test]
fn ohci_unlink_19_a_current_pointer_the_driver_forgot_is_not_followed() {
    let mut rig = running();
    let (waiting, _) = rig.buffered(td::IN, 8);
    let stays = rig.endpoint_ed(SECOND_IN, &[waiting]);
    let goes = rig.endpoint_ed(BULK_IN, &[]);
    rig.run_bulk(&[stays, goes]);
    rig.m.write32(reg::BULK_CURRENT_ED, goes);
    rig.frames(1);
    rig.m.store(stays + 12, 0);
    rig.frames(1);
    let areas = [(goes, 16)];
    fill(&mut rig, &areas);
    assert_intact(&mut rig, &areas);
    assert!(rig.transfers() >= 100);
}

#[test]
fn ohci_unlink_20_a_periodic_endpoint_leaves_with_its_slots() {
    let mut rig = running();
    let (td, buffer) = rig.buffered(td::IN, 8);
    let ed = rig.endpoint_ed(INTERRUPT_IN, &[td]);
    rig.device.answer(INTERRUPT_IN, [Answer::Pending]);
    rig.run_periodic(&[ed]);
    rig.frames(3);
    for slot in 0..32 {
        rig.m.store(rig.hcca + 4 * slot, 0);
    }
    rig.frames(1);
    rig.device.take_seen();
    let areas = [(ed, 16), (td, 16), (buffer, 8)];
    fill(&mut rig, &areas);
    rig.device.announce(INTERRUPT_IN);
    assert_intact(&mut rig, &areas);
    assert_eq!(rig.device.take_seen(), [Seen::Cancel(INTERRUPT_IN)]);
}

#[test]
fn ohci_unlink_21_the_frame_a_driver_waits_for_comes() {
    for pacing in [Pacing::RealTime, Pacing::Eager] {
        let mut rig = running_with(pacing);
        for micros in [0, 1, 400, 499, 501, 999, 50_000, 300_000] {
            rig.m.advance_micros(micros);
            let nanos = wait_for_frame(&mut rig);
            let limit = if pacing == Pacing::Eager { 300_000 } else { 2_000_000 };
            assert!(nanos <= limit, "{nanos} ns, {pacing:?}");
        }
    }
}

#[test]
fn ohci_unlink_22_what_was_retired_is_reported_though_its_endpoint_is_gone() {
    let mut rig = running();
    let td = rig.td(td::OUT | td::delay(6), 0, 0);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    skip(&mut rig, ed);
    rig.m.write32(reg::BULK_HEAD_ED, 0);
    rig.disable(control::BLE);
    wait_for_frame(&mut rig);
    fill(&mut rig, &[(ed, 16)]);
    rig.frames(7);
    assert_ne!(rig.status() & int::WDH, 0);
    assert_eq!(rig.done_head() & !0xf, td);
}

#[test]
fn ohci_unlink_23_transfers_to_a_device_that_left_end() {
    for answer in [Answer::Nak, Answer::Park, Answer::Pending] {
        let mut rig = running();
        let (td, _) = rig.buffered(td::IN, 64);
        let ed = rig.endpoint_ed(BULK_IN, &[td]);
        rig.device.answer(BULK_IN, [answer]);
        rig.run_bulk(&[ed]);
        rig.frames(3);
        rig.ports[0].detach().unwrap();
        rig.m.run();
        rig.frames(4);
        assert_eq!((rig.cc(td), rig.halted(ed)), (5, true));
        assert_eq!(rig.done_head() & !0xf, td);
    }
}

#[test]
fn an_endpoint_that_never_answers_delays_no_other() {
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Pending]);
    let (stuck, _) = rig.buffered(td::IN, 64);
    let first = rig.endpoint_ed(BULK_IN, &[stuck]);
    let second = rig.endpoint_ed(SECOND_OUT, &[]);
    rig.run_bulk(&[first, second]);
    for n in 0..100u32 {
        let td = rig.append(second, [td::OUT, 0x70_0000], 0x70_0fff);
        rig.ring_bulk();
        assert_eq!(rig.cc(td), 0, "{n}: within the doorbell");
    }
    assert_eq!(rig.device.take_received(SECOND_OUT).len(), 100 * 4096);
    assert_eq!(rig.device.take_transfers().iter().filter(|t| t.1 == 1).count(), 1);
    assert_eq!(rig.cc(stuck), 0xf);
}

#[test]
fn endpoints_that_never_answer_delay_no_list() {
    let mut rig = running();
    // One on each list; the default pipe itself always answers.
    let stuck = [BULK_IN, SECOND_IN, INTERRUPT_IN].map(|endpoint| {
        rig.device.answer(endpoint, [Answer::Pending]);
        let (td, _) = rig.buffered(td::IN, 64);
        (td, rig.endpoint_ed(endpoint, &[td]))
    });
    let requests = rig.ed(ed::control(ADDRESS, 0, 64), &[]);
    let bulk = rig.endpoint_ed(SECOND_OUT, &[]);
    let periodic = rig.endpoint_ed(BULK_OUT, &[]);
    rig.run_bulk(&[stuck[0].1, bulk]);
    rig.run_control(&[stuck[1].1, requests]);
    rig.run_periodic(&[stuck[2].1, periodic]);
    let setup = rig.m.alloc_bytes(&[0x80, 0, 0, 0, 0, 0, 2, 0], 16);
    let buffer = rig.m.alloc(4096, 4096);
    for n in 0..50 {
        let request = [
            rig.append(requests, [td::SETUP | td::DATA0, setup], setup + 7),
            rig.append(requests, [td::IN | td::DATA1 | td::ROUNDING, buffer], buffer + 1),
            rig.append(requests, [td::OUT | td::DATA1, 0], 0),
        ];
        rig.ring_control();
        assert!(request.iter().all(|td| rig.cc(*td) == 0), "{n}: a request within its doorbell");
        let sent = rig.append(bulk, [td::OUT, buffer], buffer + 4095);
        rig.ring_bulk();
        assert_eq!(rig.cc(sent), 0, "{n}: bulk within its doorbell");
        let packet = rig.append(periodic, [td::OUT, buffer], buffer + 7);
        rig.frames(1);
        assert_eq!(rig.cc(packet), 0, "{n}: a packet a frame");
    }
    assert_eq!(rig.device.take_received(SECOND_OUT).len(), 50 * 4096);
    assert_eq!(rig.device.take_received(BULK_OUT).len(), 50 * 8);
    assert!(stuck.iter().all(|(td, _)| rig.cc(*td) == 0xf));
    let asked = rig.device.take_transfers();
    for number in 1..4 {
        let times = asked.iter().filter(|t| t.0 == vm_usb::usb::Pid::In && t.1 == number).count();
        assert_eq!(times, 1, "endpoint {number} is asked once");
    }
}
