//! Saved state that was made up.

use vm_usb::snapshot;

use super::*;
use crate::driver::scripted::{Answer, Seen};
use crate::forge::forgeries;

fn save(rig: &Rig) -> Vec<u8> {
    snapshot::save(rig.m.now, &[("controller", &rig.m.controller)]).unwrap()
}

fn restore(rig: &mut Rig, bytes: &[u8]) -> bool {
    let now = rig.m.now;
    snapshot::restore(bytes, now, &mut [("controller", &mut rig.m.controller)]).is_ok()
}

#[test]
fn ohci_hg_67_forged_numbers_are_refused_or_harmless() {
    let mut rig = running();
    let td = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_periodic(&[ed]);
    rig.run_bulk(&[ed]);
    rig.frames(2);
    let mut restored = 0;
    for (what, bytes) in forgeries(&save(&rig)) {
        if restore(&mut rig, &bytes) {
            restored += 1;
            let work = work(&mut rig, |rig| rig.frames(2));
            assert!(work.calls < 200, "{what}: {work:?}");
        }
    }
    assert!(restored > 100, "{restored}");
    rig.m.reset();
    assert_works_after_reset(&mut rig);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_68_what_is_in_flight_is_not_saved() {
    let mut rig = running();
    rig.device.answer(BULK_IN, [Answer::Pending]);
    let (td, buffer) = rig.buffered(td::IN, 64);
    let ed = rig.endpoint_ed(BULK_IN, &[td]);
    rig.run_bulk(&[ed]);
    let before = rig.m.bytes(td, 16);
    let saved = save(&rig);
    assert_eq!(rig.m.bytes(td, 16), before, "memory is as after NAK");
    rig.device.take_seen();
    assert!(restore(&mut rig, &saved));
    assert_eq!(rig.device.take_seen(), [Seen::Cancel(BULK_IN)]);
    rig.device.answer(BULK_IN, [Answer::Data(vec![7; 64])]);
    let work = work(&mut rig, |rig| rig.frames(2));
    assert!(work.most <= 4 * VISIT + FRAME, "{work:?}");
    assert_eq!((rig.cc(td), rig.m.bytes(buffer, 64)), (0, vec![7; 64]), "it begins anew");
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_69_a_restored_controller_has_no_frames_to_make_up_for() {
    let mut rig = running();
    rig.frames(5);
    let saved = save(&rig);
    // An hour later.
    rig.m.now = rig.m.now.after_millis(3_600_000);
    assert!(restore(&mut rig, &saved));
    let (number, before) = (rig.frame_number(), rig.m.frames());
    let work = work(&mut rig, |rig| rig.frames(10));
    assert!(work.most <= 33 * FRAME, "{work:?}");
    assert_eq!(rig.frame_number().wrapping_sub(number), 10);
    let after = rig.m.frames();
    assert!(after.run + after.skipped - before.run - before.skipped <= 10);
    assert_alive(&mut rig);
}
