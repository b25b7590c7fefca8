//! What a controller must not do to a guest that is broken.

use vm_usb::usb::Pid;

use super::rig::{ADDRESS, OUT2, Rig, is_done};
use super::*;
use crate::driver::ehci::{HEAD, port, token};
use crate::log::lines_of;

#[test]
fn ehci_hg_49_a_long_or_circular_list_is_no_host_system_error() {
    let links: Vec<(usize, u32)> = (0..3000).map(|n| ((n + 1).min(2999), 0)).collect();
    let (mut rig, heads) = ring(&links);
    fill_frame_list(&mut rig, heads[0] | QUEUE_HEAD);
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    let work = work(&mut rig, |rig| each_microframe(rig, 800));
    assert!(work.most <= (8192 + 4096 + 1024) * LOOK, "{work:?}");
    assert_eq!(rig.status() & (sts::SYSTEM_ERROR | sts::HALTED), 0);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_50_one_broken_queue_head_does_not_stop_the_others() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    // EPS 3, packets of no bytes, more bytes than there are pages.
    let mut broken = Vec::new();
    for (max_packet, flags, len) in [(512, 1 << 12, 512), (0, 0, 512), (512, 0, 0x7fff)] {
        let mut queue = rig.driver.open(ADDRESS, 1, max_packet, flags);
        broken.push(rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, len)])[0]);
    }
    let mut queue = rig.open(OUT2, 0);
    let good = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512); 10]);
    let work = work(&mut rig, |rig| rig.driver.machine.advance_millis(2));
    assert!(work.most <= 20 * VISIT, "{work:?}");
    assert!(broken.iter().all(|qtd| rig.token(*qtd) & token::HALTED != 0));
    assert!(good.iter().all(|qtd| is_done(rig.token(*qtd))));
    assert_eq!(rig.status() & (sts::SYSTEM_ERROR | sts::HALTED), 0);
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_51_what_is_broken_is_left_as_it_is() {
    let (mut rig, heads) = ring(&[(1, HEAD), (2, 0), (1, 0)]);
    // Reserved bits set, links of odd types, halted with nonsense in the overlay.
    for head in &heads[1..] {
        let link = rig.load(*head);
        rig.store(*head, link | 3 << 3 | 2 << 1);
        rig.store(*head + 0x10, 0xdead_0000);
        rig.store(*head + 0x18, token::HALTED | 0x7fff << 16 | 7 << 12);
    }
    let node = rig.driver.machine.alloc(0x80, 32);
    rig.driver.machine.store_all(node, &[TERMINATE | 0x1e, !0, 0x5555_5555, !0x80]);
    fill_frame_list(&mut rig, node | 3 << 1);
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    let before = heads.iter().chain([&node]).map(|at| rig.driver.machine.bytes(*at, 0x60));
    let before: Vec<_> = before.collect();
    let work = work(&mut rig, |rig| each_microframe(rig, 80));
    assert!(work.most <= 4096 * 2, "{work:?}");
    let after = heads.iter().chain([&node]).map(|at| rig.driver.machine.bytes(*at, 0x60));
    assert_eq!(before, after.collect::<Vec<_>>());
    assert_works_after_reset(rig);
}

#[test]
fn ehci_hg_52_the_log_has_a_limit_a_second() {
    let mut rig = Rig::new();
    for seconds in 1..=3 {
        let lines = lines_of(|| {
            for _ in 0..100 * seconds {
                rig.write(reg::PORTSC, port::POWER | port::RESET);
                rig.driver.machine.advance_millis(5);
                rig.write(reg::PORTSC, port::POWER);
                rig.driver.machine.advance_millis(5);
                rig.write(reg::USBCMD, cmd::RESET);
                rig.write(reg::USBCMD, cmd::RUN);
                rig.write(reg::CONFIGFLAG, 1);
            }
        });
        // 32 of the controller's and 32 of the device's, in each second that was begun.
        assert!((1..=64 * (seconds + 1)).contains(&lines), "{lines} lines in {seconds} s");
    }
    assert_works_after_reset(rig);
}
