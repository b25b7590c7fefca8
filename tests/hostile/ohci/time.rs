//! Time that stands still, and time that jumps.

use super::*;
use crate::driver::machine::Machine;

/// The host sleeps, then looks once.
fn sleep<C>(m: &mut Machine<C>, millis: u64)
where
    C: vm_usb::controller::HostController<vm_memory::GuestMemoryMmap>,
{
    m.now = m.now.after_millis(millis);
    m.run();
}

#[test]
fn ohci_hg_59_a_host_that_slept_runs_32_frames_and_skips_the_rest() {
    for (millis, run) in [(1, 1), (31, 31), (32, 32), (33, 32), (3_600_000, 32)] {
        let mut rig = running();
        let ed = rig.endpoint_ed(BULK_OUT, &[]);
        rig.run_periodic(&[ed]);
        let before = rig.m.frames();
        let work = work(&mut rig, |rig| sleep(&mut rig.m, millis));
        assert!(work.most <= 33 * (VISIT + FRAME), "{work:?}");
        let after = rig.m.frames();
        assert_eq!(after.run - before.run, run, "{millis} ms");
        assert_eq!(after.skipped - before.skipped, millis - run, "{millis} ms");
        assert_alive(&mut rig);
    }
}

#[test]
fn ohci_hg_60_skipped_frames_are_counted_and_told_once() {
    let mut rig = running();
    let td = rig.out(&[1; 8]);
    let word = rig.m.load(td);
    rig.m.store(td, word | td::delay(6));
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    let number = rig.frame_number();
    rig.clear_status();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    rig.m.interrupts.clear();
    let work = work(&mut rig, |rig| sleep(&mut rig.m, 0x9000));
    assert!(work.most <= 33 * (VISIT + FRAME), "{work:?}");
    assert_eq!(rig.frame_number(), number.wrapping_add(0x9000));
    assert_eq!(rig.hcca_frame() as u16, rig.frame_number());
    let told = int::SF | int::FNO | int::WDH;
    assert_eq!(rig.status() & told, told, "the delayed TD is due too");
    assert_eq!(rig.done_head() & !0xf, td);
    assert_eq!(rig.m.interrupts.iter().filter(|(_, interrupt)| interrupt.event).count(), 1);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_61_the_frame_number_never_goes_back() {
    let mut rig = running();
    let mut last = rig.frame_number();
    let mut passed = 0u32;
    for n in 0..500u64 {
        match n % 5 {
            0 => rig.m.write32(reg::CONTROL, control::SUSPEND),
            1 => rig.m.write32(reg::CONTROL, control::OPERATIONAL),
            2 => sleep(&mut rig.m, n * 7),
            3 => rig.m.run(),
            _ => rig.frames(2),
        }
        let number = rig.frame_number();
        let step = number.wrapping_sub(last);
        assert!(step < 0x8000, "{last} to {number}");
        (last, passed) = (number, passed + u32::from(step));
    }
    assert!(passed > 1000);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_62_a_clock_that_stands_still_has_no_frames() {
    let mut rig = running();
    let ed = rig.endpoint_ed(BULK_OUT, &[]);
    rig.run_periodic(&[ed]);
    rig.frames(1);
    let before = (rig.frame_number(), rig.m.frames());
    let work = work(&mut rig, |rig| (0..1000).for_each(|_| rig.m.run()));
    assert_eq!(work.accesses, 0);
    assert_eq!((rig.frame_number(), rig.m.frames()), before);
    assert_alive(&mut rig);
}
