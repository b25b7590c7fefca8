//! What the policies of frame pacing promise, and the printer of docs/design.md in a simulator.

use vm_usb::ohci::Pacing;
use vm_usb::usb::Speed;

use crate::model::{Habit, Model};
use crate::rig::*;

/// Milliseconds for a request of six bytes and its answer, on average.
fn round_trip(pacing: Pacing, habit: Habit) -> f64 {
    round_trips(pacing, habit).0
}

/// The same, and the interrupts that go with it.
fn round_trips(pacing: Pacing, habit: Habit) -> (f64, f64) {
    const ROUNDS: u32 = 1000;
    let mut model = Model::new(pacing, habit, true);
    let (output, input) = (0, 1);
    let start = model.rig.m.now;
    for _ in 0..ROUNDS {
        model.submit(input, 64);
        model.submit(output, 6);
        let until = model.rig.m.now.after_millis(20);
        assert!(model.run(until, |model| model.is_idle(input) && model.is_idle(output)));
    }
    assert_eq!(model.moved(input).len(), 6 * ROUNDS as usize);
    model.assert_memory_intact();
    let millis = model.rig.m.now.nanos_since(start) as f64 / 1e6;
    (millis / f64::from(ROUNDS), model.interrupts as f64 / f64::from(ROUNDS))
}

#[test]
fn a_request_and_the_answer_to_it_are_reported_together() {
    for pacing in [Pacing::RealTime, Pacing::Eager] {
        let (_, interrupts) = round_trips(pacing, Habit::LeaveLinked);
        assert!(interrupts < 1.1, "{pacing:?}: {interrupts} interrupts a round");
        let (_, interrupts) = round_trips(pacing, Habit::UnlinkAtOnce);
        assert!(interrupts < 2.1, "{pacing:?}: {interrupts} interrupts a round, one for unlinking");
    }
}

#[test]
fn a_printers_status_poll_takes_a_frame_where_real_hardware_takes_two() {
    let millis = round_trip(Pacing::RealTime, Habit::UnlinkAtOnce);
    assert!((0.9..=1.1).contains(&millis), "{millis} ms: one frame, for unlinking");
    let millis = round_trip(Pacing::RealTime, Habit::LeaveLinked);
    assert!(millis < 0.01, "{millis} ms: nothing to wait for");
}

#[test]
fn an_eager_controller_answers_a_driver_that_unlinks_at_once() {
    let millis = round_trip(Pacing::Eager, Habit::UnlinkAtOnce);
    assert!(millis < 0.05, "{millis} ms");
    let millis = round_trip(Pacing::Eager, Habit::LeaveLinked);
    assert!(millis < 0.01, "{millis} ms");
}

#[test]
fn a_wire_shows_what_unlinking_at_once_costs() {
    let unlinked = round_trip(Pacing::Wire, Habit::UnlinkAtOnce);
    let linked = round_trip(Pacing::Wire, Habit::LeaveLinked);
    assert!((1.8..=2.1).contains(&unlinked), "{unlinked} ms");
    assert!((0.9..=1.1).contains(&linked), "{linked} ms");
}

#[test]
fn a_wire_carries_nineteen_bulk_packets_a_frame() {
    let mut rig = running_with(Pacing::Wire);
    let td = rig.td(td::OUT, 0x60_0000, 0x60_1fff);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.m.write32(reg::BULK_HEAD_ED, ed);
    rig.m.write32(reg::COMMAND_STATUS, command::BLF);
    // In the middle of a frame there is time for half of it.
    rig.enable(control::BLE);
    assert_eq!(rig.offers().len(), 9);
    for _ in 0..3 {
        rig.frames(1);
        assert_eq!(rig.offers().iter().map(|offer| offer.1).collect::<Vec<_>>(), [64; 19]);
    }
    rig.frames(5);
    assert_eq!(rig.cc(td), 0);
}

#[test]
fn a_wire_takes_eight_times_as_long_at_low_speed() {
    let mut rig = cold(Speed::Low);
    let links = rig.ports.iter().map(|p| p.link(vm_usb::topology::Host::Classic)).collect();
    rig.m.controller = vm_usb::ohci::Ohci::new(links).with_pacing(Pacing::Wire);
    rig.start();
    let td = rig.td(td::OUT, 0x60_0000, 0x60_00ff);
    let ed = rig.ed(ed::control(ADDRESS, 1, 8) | ed::OUT | ed::LOW_SPEED, &[td]);
    rig.run_bulk(&[ed]);
    rig.offers();
    rig.frames(1);
    assert_eq!(rig.offers().len(), 8, "of 8 * (8 + 13) bytes each");
}

#[test]
fn a_wire_that_cannot_finish_its_periodic_list_overruns() {
    let mut rig = running_with(Pacing::Wire);
    let eds: Vec<u32> = (0..30)
        .map(|_| {
            let td = rig.td(td::OUT | td::DATA0, 0x60_0000, 0x60_003f);
            rig.endpoint_ed(BULK_OUT, &[td])
        })
        .collect();
    rig.run_periodic(&eds);
    rig.frames(1);
    assert_eq!(eds.iter().filter(|ed| rig.head_p(**ed) == rig.m.load(**ed + 4)).count(), 19);
    rig.frames(1);
    assert_eq!(rig.status() & int::SO, int::SO);
}

#[test]
fn a_driver_that_keeps_start_of_frame_enabled_gets_frames_of_a_millisecond() {
    let mut rig = running_with(Pacing::Eager);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    let before = rig.frame_number();
    let end = rig.m.now.after_millis(1000);
    while rig.m.now < end {
        if rig.m.line {
            rig.m.read32(reg::INTERRUPT_STATUS);
            rig.m.write32(reg::INTERRUPT_STATUS, int::SF);
        }
        rig.m.now = rig.m.deadline().unwrap().max(rig.m.now.after_nanos(100));
        rig.m.run();
    }
    let frames = rig.frame_number().wrapping_sub(before);
    assert!((1000..=1010).contains(&frames), "{frames}");
}

/// What Linux does when it unlinks: enable StartofFrame, flush with a read, note the frame number in
/// memory, and go on in its handler, which looks for further interrupts before it ends.
#[test]
fn a_driver_in_its_handler_finds_the_frame_over_at_its_second_next_access_and_not_before() {
    let mut rig = running_with(Pacing::Eager);
    rig.m.advance_micros(100);
    rig.clear_status();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    rig.m.read32(reg::CONTROL);
    let noted = rig.hcca_frame();
    rig.m.advance_micros(40);
    assert_eq!(rig.hcca_frame(), noted, "the driver may not have read it yet");
    let status = rig.m.read32(reg::INTERRUPT_STATUS);
    assert_eq!(status & int::SF, int::SF, "it has, or it would not be here");
    assert_eq!(rig.hcca_frame(), noted.wrapping_add(1));
    assert!(rig.m.line);
}

#[test]
fn a_driver_that_leaves_after_it_noted_the_number_is_interrupted_soon() {
    let mut rig = running_with(Pacing::Eager);
    rig.m.advance_micros(100);
    rig.clear_status();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    rig.m.read32(reg::CONTROL);
    rig.m.advance_micros(59);
    assert!(!rig.m.line);
    rig.m.advance_micros(2);
    assert!(rig.m.line);
}

#[test]
fn no_frame_is_cut_short_under_isochronous_transfers() {
    let mut rig = running_with(Pacing::Eager);
    let td = rig.m.alloc(32, 32);
    let start = u32::from(rig.frame_number()) + 100;
    rig.m.store_all(td, &[td::NOT_ACCESSED | start, 0x60_0000, 0, 0x60_0000, 0xe000]);
    let ed = rig.ed(ed::control(ADDRESS, 4, 1023) | ed::OUT | ed::ISOCHRONOUS, &[]);
    let dummy = rig.m.load(ed + 4);
    rig.m.store(td + 8, dummy);
    rig.m.store(ed + 8, td);
    rig.run_periodic(&[ed]);
    rig.frames(2);
    for _ in 0..20 {
        rig.m.write32(reg::INTERRUPT_DISABLE, int::SF);
        rig.clear_status();
        rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
        rig.m.read32(reg::CONTROL);
        let before = rig.frame_number();
        rig.m.advance_micros(300);
        assert!(rig.frame_number().wrapping_sub(before) <= 1);
        rig.m.advance_micros(700);
        assert_eq!(rig.frame_number().wrapping_sub(before), 1);
    }
}

#[test]
fn an_idle_controller_wakes_its_host_rarely() {
    let wakeups = |rig: &mut Rig| {
        let end = rig.m.now.after_millis(10_000);
        let mut count = 0;
        rig.m.run();
        while let Some(deadline) = rig.m.deadline().filter(|deadline| *deadline < end) {
            rig.m.now = deadline.max(rig.m.now.after_nanos(100));
            rig.m.run();
            count += 1;
        }
        rig.m.now = end;
        count / 10
    };
    let mut rig = running();
    rig.frames(100);
    assert!(wakeups(&mut rig) <= 8, "frames run");
    // A keyboard that has nothing to say.
    rig.device.answer(INTERRUPT_IN, [crate::driver::scripted::Answer::Park]);
    let (td, _) = rig.buffered(td::IN | td::ROUNDING, 8);
    let ed = rig.endpoint_ed(INTERRUPT_IN, &[td]);
    rig.run_periodic(&[ed]);
    rig.frames(100);
    let count = wakeups(&mut rig);
    assert!(count <= 63, "{count} a second");
    rig.write_control(control::SUSPEND);
    assert_eq!(wakeups(&mut rig), 0);
}
