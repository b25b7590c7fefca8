//! OHCI-DONE: the done queue.

use vm_usb::ohci::Pacing;

use crate::driver::scripted::Answer;
use crate::rig::*;

/// A controller that hands the queue over where frames meet, as the specification has it.
fn exact() -> Rig {
    running_with(Pacing::Wire)
}

/// An OUT TD of eight bytes with a DelayInterrupt.
fn delayed(rig: &mut Rig, frames: u32) -> u32 {
    rig.buffered(td::OUT | td::delay(frames), 8).0
}

fn run(rig: &mut Rig, tds: &[u32]) -> u32 {
    let ed = rig.endpoint_ed(BULK_OUT, tds);
    rig.run_bulk(&[ed]);
    ed
}

fn wdh(rig: &mut Rig) -> bool {
    rig.status() & int::WDH != 0
}

#[test]
fn ohci_done_1_a_retired_td_is_reported_at_the_frames_end_at_the_latest() {
    let mut rig = exact();
    let td = delayed(&mut rig, 0);
    run(&mut rig, &[td]);
    assert_eq!(rig.m.read32(reg::DONE_HEAD), td);
    assert!(!wdh(&mut rig) && rig.done_head() == 0, "not before");
    rig.frames(1);
    assert_eq!((rig.done_head(), rig.m.read32(reg::DONE_HEAD)), (td, 0));
    assert!(wdh(&mut rig));

    let mut rig = running();
    let td = delayed(&mut rig, 0);
    run(&mut rig, &[td]);
    assert_eq!((rig.done_head(), rig.m.read32(reg::DONE_HEAD)), (td, 0), "at once");
    assert!(wdh(&mut rig));
}

#[test]
fn ohci_done_2_the_delay_is_honoured_and_limited() {
    for delay in 1..=6 {
        for (mut rig, frames) in [(exact(), delay + 1), (running(), delay)] {
            let td = delayed(&mut rig, delay);
            run(&mut rig, &[td]);
            rig.frames(u64::from(frames) - 1);
            assert!(!wdh(&mut rig), "{delay}");
            rig.frames(1);
            assert!(wdh(&mut rig) && rig.done_head() == td, "{delay}");
        }
    }
}

#[test]
fn ohci_done_3_the_shortest_delay_counts() {
    for (first, second) in [(6, 0), (0, 6)] {
        let mut rig = exact();
        let tds = [delayed(&mut rig, first), delayed(&mut rig, second)];
        run(&mut rig, &tds);
        rig.frames(1);
        assert!(wdh(&mut rig));
        assert_eq!((rig.done_head(), rig.next_td(tds[1])), (tds[1], tds[0]));
    }
    let mut rig = exact();
    let first = delayed(&mut rig, 6);
    let ed = run(&mut rig, &[first]);
    rig.frames(1);
    let second = rig.append(ed, [td::OUT, 0], 0);
    rig.ring_bulk();
    rig.frames(1);
    assert_eq!((rig.done_head(), rig.next_td(second)), (second, first));
}

#[test]
fn ohci_done_4_a_td_may_ask_for_no_interrupt() {
    let mut rig = running();
    let td = delayed(&mut rig, 7);
    let ed = run(&mut rig, &[td]);
    rig.frames(20);
    assert!(!wdh(&mut rig));
    assert_eq!(rig.head_p(ed), rig.m.load(ed + 4));
    assert_eq!((rig.m.read32(reg::DONE_HEAD), rig.done_head()), (td, 0));
    let second = rig.append(ed, [td::OUT, 0], 0);
    rig.ring_bulk();
    rig.frames(1);
    assert_eq!(
        (rig.done_head(), rig.next_td(second)),
        (second, td),
        "the next one brings it along"
    );
}

#[test]
fn ohci_done_5_an_error_is_reported_at_once() {
    let mut rig = running();
    rig.device.answer(BULK_OUT, [Answer::Stall]);
    let td = delayed(&mut rig, 7);
    run(&mut rig, &[td]);
    rig.frames(1);
    assert!(wdh(&mut rig));
    assert_eq!(rig.done_head(), td);
}

#[test]
fn ohci_done_6_a_queue_waits_until_the_last_was_acknowledged() {
    let mut rig = running();
    let first = delayed(&mut rig, 0);
    let ed = run(&mut rig, &[first]);
    rig.frames(1);
    assert!(wdh(&mut rig));
    // As drivers do: HccaDoneHead is zeroed well before WDH is cleared.
    rig.m.store(rig.hcca + hcca::DONE_HEAD, 0);
    let second = rig.append(ed, [td::OUT, 0], 0);
    let third = rig.append(ed, [td::OUT, 0], 0);
    rig.ring_bulk();
    rig.frames(10);
    assert_eq!(rig.done_head(), 0);
    assert_eq!((rig.m.read32(reg::DONE_HEAD), rig.next_td(third)), (third, second));
}

#[test]
fn ohci_done_7_acknowledging_lets_the_next_queue_out() {
    for mut rig in [exact(), running()] {
        let first = delayed(&mut rig, 0);
        let ed = run(&mut rig, &[first]);
        rig.frames(1);
        let second = rig.append(ed, [td::OUT, 0], 0);
        rig.ring_bulk();
        rig.frames(3);
        assert_eq!(rig.done_head(), first);
        rig.m.write32(reg::INTERRUPT_STATUS, int::WDH);
        rig.frames(1);
        assert!(wdh(&mut rig));
        assert_eq!((rig.done_head(), rig.next_td(second)), (second, 0));
    }
    let mut rig = exact();
    let first = delayed(&mut rig, 0);
    run(&mut rig, &[first]);
    rig.frames(1);
    rig.m.write32(reg::INTERRUPT_STATUS, int::WDH);
    assert!(!wdh(&mut rig), "clear stays clear");
}

#[test]
fn ohci_done_8_the_queue_is_last_in_first_out() {
    let mut rig = running();
    let tds = [0, 0, 0].map(|delay| delayed(&mut rig, delay));
    let ed = run(&mut rig, &tds);
    let [a, b, c] = tds;
    rig.frames(1);
    assert_eq!((rig.done_head(), rig.next_td(c), rig.next_td(b), rig.next_td(a)), (c, b, a, 0));
    assert_eq!(rig.head_p(ed), rig.m.load(ed + 4), "what C's NextTD was");
}

#[test]
fn ohci_done_9_nothing_retired_is_nothing_written() {
    let mut rig = running();
    rig.m.store(rig.hcca + hcca::DONE_HEAD, 0x5a5a_5a5a);
    rig.run_bulk(&[]);
    let (td, _) = rig.buffered(td::IN, 8);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_control(&[ed]);
    rig.frames(100);
    assert!(!wdh(&mut rig));
    assert_eq!(rig.done_head(), 0x5a5a_5a5a);
}

#[test]
fn ohci_done_10_the_low_bit_is_clear_when_the_queue_is_the_only_news() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH);
    let td = delayed(&mut rig, 0);
    run(&mut rig, &[td]);
    rig.frames(1);
    assert_eq!(rig.done_head(), td);
    assert_ne!(rig.status() & int::SF, 0, "SF is pending but not enabled");
}

#[test]
fn ohci_done_11_the_low_bit_says_that_there_is_more() {
    let mut rig = exact();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::WDH | int::SF);
    let td = delayed(&mut rig, 0);
    run(&mut rig, &[td]);
    rig.frames(1);
    assert_eq!(rig.done_head(), td | 1);
}

#[test]
fn ohci_done_12_software_reset_drops_the_queue() {
    let mut rig = exact();
    let td = delayed(&mut rig, 0);
    run(&mut rig, &[td]);
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    assert_eq!(rig.m.read32(reg::DONE_HEAD), 0);
    rig.m.write32(reg::HCCA, rig.hcca);
    rig.write_control(control::OPERATIONAL);
    rig.frames(10);
    assert!(!wdh(&mut rig));
    assert_eq!(rig.done_head(), 0);
}

#[test]
fn ohci_done_13_everything_is_final_when_the_driver_hears_of_it() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH);
    rig.device.answer(BULK_OUT, [Answer::Take(64), Answer::Nak]);
    let tds = [rig.out(&[1; 64]), rig.out(&[2; 8]), rig.out(&[3; 8])];
    let ed = run(&mut rig, &tds);
    let mut reported = Vec::new();
    while reported.len() < 3 {
        assert!(rig.m.wait_millis(10, |m| m.line));
        let mut at = rig.done_head() & !0xf;
        while at != 0 {
            assert_eq!((rig.cc(at), rig.cbp(at)), (0, 0));
            assert_ne!(rig.head_p(ed), at);
            reported.push(at);
            at = rig.next_td(at);
        }
        rig.m.write32(reg::INTERRUPT_STATUS, int::WDH);
    }
    reported.sort();
    assert_eq!(reported, tds);
}

/// What a driver does that queues the next transfer from its completion handler, before it has
/// acknowledged the interrupt; returns how often it was interrupted before it could leave.
fn interrupts_in_a_row(rig: &mut Rig, ed: u32) -> usize {
    let mut count = 0;
    while rig.m.line && count < 100 {
        count += 1;
        rig.m.store(rig.hcca + hcca::DONE_HEAD, 0);
        rig.append(ed, [td::OUT, 0], 0);
        rig.ring_bulk();
        rig.m.write32(reg::INTERRUPT_STATUS, int::WDH);
    }
    count
}

#[test]
fn a_driver_that_queues_from_its_handler_gets_out_of_it() {
    for pacing in [Pacing::RealTime, Pacing::Eager, Pacing::Wire] {
        let mut rig = running_with(pacing);
        rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH);
        let td = delayed(&mut rig, 0);
        let ed = run(&mut rig, &[td]);
        for _ in 0..10 {
            assert!(rig.m.wait_millis(2, |m| m.line), "{pacing:?}: and it goes on");
            assert!(interrupts_in_a_row(&mut rig, ed) <= 2, "{pacing:?}");
            rig.m.advance_nanos(100_000);
            assert!(!rig.m.line, "{pacing:?}: time for the rest of the system");
        }
    }
}

#[test]
fn two_endpoints_that_end_one_after_the_other_are_both_reported_at_once() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH);
    let first = delayed(&mut rig, 0);
    let ed = run(&mut rig, &[first]);
    for _ in 0..10 {
        // The second ends while the driver is in its handler for the first.
        let second = rig.append(ed, [td::OUT, 0], 0);
        rig.ring_bulk();
        rig.m.write32(reg::INTERRUPT_STATUS, int::WDH);
        assert_eq!(rig.done_head() & !0xf, second);
        rig.m.write32(reg::INTERRUPT_STATUS, int::WDH);
        assert!(!rig.m.line);
        let next = rig.append(ed, [td::OUT, 0], 0);
        rig.ring_bulk();
        assert_eq!(rig.done_head() & !0xf, next, "the driver was out of its handler");
    }
}
