//! Isochronous and split descriptors with nonsense in them.

use vm_usb::usb::{EndpointAddress, Pid};

use super::rig::{ADDRESS, Rig};
use super::translator::{self, DEVICE, HUB, PORT};
use super::*;
use crate::driver::scripted::{Answer, Seen};

const ACTIVE: u32 = 1 << 31;
const BUFFER_ERROR: u32 = 1 << 30;
const IN4: EndpointAddress = EndpointAddress::r#in(4);

/// An iTD whose eight slots are `transaction`, in every frame; this packet size and Multi.
fn itd(rig: &mut Rig, transaction: u32, input: bool, mps: u32, multi: u32) -> u32 {
    let at = rig.driver.machine.alloc(0x80, 0x1000);
    let page = rig.driver.machine.alloc(0x7000, 0x1000);
    rig.driver.machine.store_all(at, &[TERMINATE]);
    rig.driver.machine.store_all(at + 4, &[transaction; 8]);
    let pages: [u32; 7] = std::array::from_fn(|n| page + 0x1000 * n as u32);
    rig.driver.machine.store_all(at + 0x24, &pages);
    rig.store(at + 0x24, pages[0] | 4 << 8 | u32::from(ADDRESS));
    rig.store(at + 0x28, pages[1] | u32::from(input) << 11 | mps);
    rig.store(at + 0x2c, pages[2] | multi);
    fill_frame_list(rig, at);
    at
}

/// Sizes and packet sizes of the transfers that the device saw.
fn transfers(rig: &Rig) -> Vec<(usize, u16)> {
    let seen = rig.controls.take_seen().into_iter();
    seen.filter_map(|seen| match seen {
        Seen::Transfer { len, max_packet, .. } => Some((len, max_packet)),
        _ => None,
    })
    .collect()
}

#[test]
fn ehci_hg_18_an_itds_length_is_cut_to_its_packets() {
    for (length, mps, multi, expected) in [
        (0xfff, 1024, 3, (3072, 1024)),
        (0xfff, 0x7ff, 3, (3072, 1024)),
        (0xfff, 64, 2, (128, 64)),
        (0xfff, 64, 0, (64, 64)),
        (0xfff, 0, 3, (0, 0)),
    ] {
        let mut rig = streaming();
        itd(&mut rig, ACTIVE | length << 16, false, mps, multi);
        rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
        let work = work(&mut rig, |rig| rig.microframes(16));
        assert!(work.most <= 16 * VISIT + 4096, "{work:?}");
        let seen = transfers(&rig);
        assert!(!seen.is_empty() && seen.len() <= 8, "{seen:?}");
        assert!(seen.iter().all(|seen| *seen == expected), "{length} {mps} {multi}: {seen:?}");
        assert_works_after_reset(rig);
    }
}

#[test]
fn ehci_hg_17_an_itd_that_leaves_its_pages_is_a_buffer_error() {
    // Page select 7; and 3,072 bytes from the middle of page 6.
    for place in [7 << 12, 6 << 12 | 0x800] {
        let mut rig = streaming();
        rig.controls.answer(IN4, vec![Answer::Data(vec![1; 3072]); 8]);
        let at = itd(&mut rig, ACTIVE | 0xc00 << 16 | place, true, 1024, 3);
        rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
        let work = work(&mut rig, |rig| rig.microframes(16));
        assert!(work.most <= 16 * VISIT + 4096, "{work:?}");
        let slots: [u32; 8] = rig.driver.machine.load_all(at + 4);
        assert!(slots.iter().all(|slot| slot & (ACTIVE | BUFFER_ERROR) == BUFFER_ERROR));
        assert_eq!(transfers(&rig), []);
        assert_works_after_reset(rig);
    }
}

/// The microframe of a split token.
fn moment(seen: &translator::Seen) -> u64 {
    match seen {
        translator::Seen::Start { at, .. } | translator::Seen::Complete { at, .. } => *at,
    }
}

/// A siTD of 1,023 bytes with this T-count, position and page bit, in frame 0 and with this back pointer.
fn sitd(rig: &mut translator::Rig, position: u32, state: u32, back: u32) -> u32 {
    let at = rig.driver.machine.alloc(0x40, 32);
    let page = rig.buffer(0x2000);
    let endpoint = u32::from(PORT) << 24 | u32::from(HUB) << 16 | 4 << 8 | u32::from(DEVICE);
    let words =
        [TERMINATE, endpoint, 0xff, state | 1023 << 16 | 1 << 7, page, (page + 0x1000) | position];
    rig.driver.machine.store_all(at, &words);
    rig.store(at + 0x18, back);
    let list = rig.driver.frame_list;
    rig.store(list, at | 2 << 1);
    at
}

#[test]
fn ehci_hg_19_a_sitd_sends_one_start_split_a_microframe_and_six_at_most() {
    for count in 0..8 {
        for position in 0..4 {
            let mut rig = translator::Rig::new();
            let at = sitd(&mut rig, position << 3 | count, 0, TERMINATE);
            rig.driver.machine.count_work();
            rig.go();
            rig.microframes(9);
            let work = rig.driver.machine.take_work();
            assert!(work.most <= 4 * VISIT + 4096, "{work:?}");
            let mut moments: Vec<u64> = rig.seen().iter().map(moment).collect();
            let sent = moments.len();
            moments.dedup();
            assert_eq!(sent, moments.len(), "one a microframe");
            assert!(sent <= 6 && (count != 0 || sent == 0), "T-count {count}: {sent}");
            assert_eq!(rig.load(at + 0x0c) & 1 << 7, 0, "and it ends");
        }
    }
    // P with garbage in page 1.
    let mut rig = translator::Rig::new();
    let at = sitd(&mut rig, 2, 1 << 30, TERMINATE);
    rig.store(at + 0x14, 0xfebf_0000 | 2);
    let work = work_of(&mut rig.driver.machine, |m| {
        let command = m.read32(reg::USBCMD);
        m.write32(reg::USBCMD, command | cmd::RUN);
        m.advance_millis(2);
    });
    assert!(work.most <= 4 * VISIT + 4096, "{work:?}");
    assert_ne!(rig.driver.take_events() & sts::SYSTEM_ERROR, 0);
}

#[test]
fn ehci_hg_8_a_back_pointer_is_followed_once_and_read_as_a_sitd() {
    // To itself, to another that leads back, to a queue head, to nothing, and outside RAM.
    for kind in 0..5 {
        let mut rig = translator::Rig::new();
        let at = sitd(&mut rig, 0, 1 << 1, TERMINATE);
        // An IN that completes what the frame before has started.
        let endpoint = rig.load(at + 4);
        rig.store(at + 4, endpoint | 1 << 31);
        rig.store(at + 8, 0xff << 8 | 1);
        let other = rig.driver.machine.alloc(0x60, 32);
        let words: [u32; 6] = rig.driver.machine.load_all(at);
        rig.driver.machine.store_all(other, &words);
        rig.store(other + 0x18, at);
        let back = [at, other, rig.driver.ring, TERMINATE, 0xfff0_0000][kind];
        rig.store(at + 0x18, back);
        for frame in 0..8 {
            let list = rig.driver.frame_list;
            rig.store(list + 4 * frame, at | 2 << 1);
        }
        let work = work_of(&mut rig.driver.machine, |m| {
            let command = m.read32(reg::USBCMD);
            m.write32(reg::USBCMD, command | cmd::RUN);
            m.advance_millis(8);
        });
        assert!(work.most <= 16 * VISIT + 4096, "{kind}: {work:?}");
        let seen = rig.seen();
        let tokens = seen.chunk_by(|a, b| moment(a) == moment(b)).map(<[_]>::len).max();
        assert!(tokens.is_none_or(|tokens| tokens <= 2), "{kind}: {tokens:?} in a microframe");
    }
}

#[test]
fn ehci_hg_20_nonsense_in_the_masks_of_a_split_is_one_packet_a_microframe() {
    for (s_mask, c_mask) in
        [(0, 0), (0, 0xff), (0xff, 0), (0xff, 0xff), (0x03, 0x03), (0x81, 0x42), (0x10, 0x10)]
    {
        let mut rig = translator::Rig::new();
        let mut queue = rig.interrupt(1, s_mask, c_mask);
        let buffer = rig.buffer(64);
        rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8)]);
        let work = work_of(&mut rig.driver.machine, |m| {
            let command = m.read32(reg::USBCMD);
            m.write32(reg::USBCMD, command | cmd::RUN);
            for _ in 0..64 {
                m.advance_micros(125);
            }
        });
        assert!(work.most <= 2 * VISIT + 4096, "{s_mask:#x} {c_mask:#x}: {work:?}");
        let mut at: Vec<u64> = rig.seen().iter().map(moment).collect();
        let sent = at.len();
        at.dedup();
        assert_eq!(sent, at.len(), "{s_mask:#x} {c_mask:#x}");
        assert_eq!(rig.driver.take_events() & sts::SYSTEM_ERROR, 0);
    }
}
