//! Hostile guests of an OHCI controller.
#![allow(dead_code, reason = "the rig has more than these stories need")]

#[path = "../../ohci/rig.rs"]
pub mod rig;

mod buffers;
mod descriptors;
mod ground;
mod lists;
mod races;
mod registers;
mod saved;
mod time;

use crate::driver::machine::Work;
use crate::driver::ohci::MOST_ACCESSES;
use rig::*;

/// Accesses that the frame itself takes: the frame number, the interrupt table, the done queue.
const FRAME: u64 = 8;
/// Most accesses that one ED takes with one TD: both are read, and what changed is written.
const VISIT: u64 = 16;

/// The work of `story`, in which no call does more than any call may.
fn work(rig: &mut Rig, story: impl FnOnce(&mut Rig)) -> Work {
    rig.m.count_work();
    story(rig);
    let work = rig.m.take_work();
    assert!(work.most <= MOST_ACCESSES, "{work:?}");
    work
}

/// The controller still keeps time, answers, and works after a reset of its own.
fn assert_alive(rig: &mut Rig) {
    let before = rig.frame_number();
    rig.frames(10);
    assert_eq!(rig.frame_number().wrapping_sub(before), 10);
    assert_eq!(rig.m.read32(reg::REVISION), 0x10);
    assert_works_after_reset(rig);
}

/// HostControllerReset restores full function.
fn assert_works_after_reset(rig: &mut Rig) {
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    rig.device.forget(BULK_OUT);
    rig.device.forget(BULK_IN);
    rig.start();
    clear_halt(&rig.ports[0], BULK_OUT);
    let td = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    rig.frames(1);
    assert_eq!((rig.cc(td), rig.status() & int::UE), (0, 0));
}

/// UnrecoverableError: nothing is accessed any more, registers answer, and only a reset revives.
fn assert_dead_until_reset(rig: &mut Rig) {
    assert_ne!(rig.status() & int::UE, 0);
    let frame = rig.frame_number();
    let work = work(rig, |rig| rig.frames(20));
    assert_eq!((work.accesses, rig.frame_number()), (0, frame));
    assert_works_after_reset(rig);
}

/// EDs of an endpoint on pages of their own, so that reading each of them is an access that counts.
fn scattered_eds(rig: &mut Rig, count: usize) -> Vec<u32> {
    let dummy = rig.m.alloc(16, 16);
    (0..count)
        .map(|_| {
            let at = rig.m.alloc(16, 0x1000);
            rig.m.store_all(at, &[ed::control(ADDRESS, 1, 64) | ed::OUT, dummy, dummy, 0]);
            at
        })
        .collect()
}

/// An isochronous TD that begins in `frame` with packets at these offsets (13-bit page form), whose
/// PacketStatusWords have these top bits.
fn iso_td(rig: &mut Rig, frame: u16, (bp0, be): (u32, u32), offsets: &[u32], top: u32) -> u32 {
    let td = rig.m.alloc(32, 32);
    let count = offsets.len() as u32 - 1;
    rig.m.store_all(td, &[td::NOT_ACCESSED | count << 24 | u32::from(frame), bp0, 0, be]);
    let mut words = [0; 4];
    for (n, offset) in offsets.iter().enumerate() {
        words[n / 2] |= (top | offset) << (16 * (n & 1));
    }
    rig.m.store_all(td + 16, &words);
    td
}

/// An isochronous ED of the device.
fn iso_ed(rig: &mut Rig, direction: u32, tds: &[u32]) -> u32 {
    let max_packet = 1023;
    rig.ed(ed::control(ADDRESS, 4, max_packet) | direction | ed::ISOCHRONOUS, tds)
}

/// PacketStatusWord of packet `n`: condition code and size.
fn psw(rig: &Rig, td: u32, n: u32) -> (u32, u32) {
    let half = rig.m.load(td + 16 + 4 * (n / 2)) >> (16 * (n & 1)) & 0xffff;
    (half >> 12, half & 0xfff)
}
