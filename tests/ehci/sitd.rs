//! Split isochronous transfers (EHCI 4.12.3): rules EHCI-SITD.

use vm_usb::usb::{CompleteAnswer, SplitPosition, TransferType};

use crate::driver::ehci::{TERMINATE, sts};
use crate::rig::pattern;
use crate::translator::{DEVICE, HUB, PORT, Rig, Seen, data, part, plain};

const ACTIVE: u32 = 1 << 7;
const ERR: u32 = 1 << 6;
const ERROR: u32 = 1 << 3;
const COMPLETING: u32 = 1 << 1;
const IOC: u32 = 1 << 31;

/// A siTD to be.
struct SiTd {
    input: bool,
    s_mask: u8,
    c_mask: u8,
    total: u32,
    /// Page 0 with the offset, then page 1.
    pages: [u32; 2],
    position: u32,
    count: u32,
    flags: u32,
    back: u32,
}

impl SiTd {
    fn out(s_mask: u8, pages: [u32; 2], total: u32, position: u32, count: u32) -> Self {
        let (c_mask, back) = (0, TERMINATE);
        Self { input: false, s_mask, c_mask, total, pages, position, count, flags: 0, back }
    }

    fn r#in(s_mask: u8, c_mask: u8, pages: [u32; 2], total: u32) -> Self {
        let (position, count, flags, back) = (0, 0, 0, TERMINATE);
        Self { input: true, s_mask, c_mask, total, pages, position, count, flags, back }
    }

    fn dwords(&self) -> [u32; 7] {
        [
            TERMINATE,
            u32::from(self.input) << 31
                | u32::from(PORT) << 24
                | u32::from(HUB) << 16
                | 4 << 8
                | u32::from(DEVICE),
            u32::from(self.c_mask) << 8 | u32::from(self.s_mask),
            self.flags | self.total << 16 | ACTIVE,
            self.pages[0],
            self.pages[1] | self.position << 3 | self.count,
            self.back,
        ]
    }

    /// Puts it into memory and into a frame.
    fn link(&self, rig: &mut Rig, frame: u32) -> u32 {
        let address = rig.driver.machine.alloc(0x40, 32);
        rig.driver.machine.store_all(address, &self.dwords());
        let entry = rig.driver.frame_list + 4 * frame;
        rig.store(entry, address | 2 << 1);
        address
    }
}

fn state(rig: &Rig, sitd: u32) -> u32 {
    rig.load(sitd + 0x0c)
}

fn total(rig: &Rig, sitd: u32) -> u32 {
    state(rig, sitd) >> 16 & 0x3ff
}

/// Position and bytes of each start-split seen.
fn starts(seen: &[Seen]) -> Vec<(SplitPosition, Vec<u8>, u64)> {
    let starts = seen.iter().filter_map(|seen| match seen {
        Seen::Start { position, data, at, .. } => Some((*position, data.clone(), at % 8)),
        Seen::Complete { .. } => None,
    });
    starts.collect()
}

#[test]
fn ehci_sitd_1_a_packet_in_one_start_split() {
    let mut rig = Rig::new();
    let bytes = pattern(100);
    let buffer = rig.buffer(0x2000);
    rig.driver.machine.fill(buffer + 16, &bytes);
    let td = SiTd::out(0x04, [buffer + 16, buffer + 0x1000], 100, 0, 1).link(&mut rig, 0);
    rig.go();
    rig.microframes(8);
    let seen = rig.seen();
    assert_eq!(starts(&seen), [(SplitPosition::All, bytes, 2)]);
    let token = seen[0].token();
    assert_eq!(token.transfer_type, TransferType::Isochronous);
    assert_eq!((token.hub, token.port, token.device, token.endpoint), (HUB, PORT, DEVICE, 4));
    assert_eq!(state(&rig, td) & 0xff, 0);
    assert_eq!((total(&rig, td), rig.load(td + 0x14) & 7), (0, 0));
}

#[test]
fn ehci_sitd_2_a_packet_in_three_start_splits() {
    let mut rig = Rig::new();
    let bytes = pattern(500);
    let buffer = rig.buffer(0x2000);
    rig.driver.machine.fill(buffer, &bytes);
    let td = SiTd::out(0x0e, [buffer, buffer + 0x1000], 500, 1, 3).link(&mut rig, 0);
    rig.go();
    rig.microframes(8);
    let seen = rig.seen();
    assert_eq!(
        starts(&seen),
        [
            (SplitPosition::Begin, bytes[..188].to_vec(), 1),
            (SplitPosition::Middle, bytes[188..376].to_vec(), 2),
            (SplitPosition::End, bytes[376..].to_vec(), 3),
        ]
    );
    assert_eq!(seen.len(), 3, "no complete-split");
    assert_eq!(state(&rig, td) & 0xff, 0);
}

#[test]
fn ehci_sitd_3_an_empty_packet() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(0x2000);
    let td = SiTd::out(0x01, [buffer, buffer + 0x1000], 0, 0, 1).link(&mut rig, 0);
    rig.go();
    rig.microframes(8);
    assert_eq!(starts(&rig.seen()), [(SplitPosition::All, vec![], 0)]);
    assert_eq!(state(&rig, td) & ACTIVE, 0);
}

#[test]
fn ehci_sitd_4_in() {
    let mut rig = Rig::new();
    let bytes = pattern(60);
    let buffer = rig.buffer(0x2000);
    let td = SiTd::r#in(0x01, 0x7c, [buffer, buffer + 0x1000], 200).link(&mut rig, 0);
    rig.complete([plain(CompleteAnswer::Nyet), data(&bytes)]);
    rig.go();
    rig.microframes(16);
    assert_eq!(rig.brief(), [('S', 0), ('C', 2), ('C', 3)]);
    assert_eq!(rig.bytes(buffer, 60), bytes);
    assert_eq!(state(&rig, td) & (0xff & !COMPLETING), 0);
    assert_eq!(total(&rig, td), 140);
}

#[test]
fn ehci_sitd_5_parts_are_stored_one_after_the_other() {
    let mut rig = Rig::new();
    let bytes = pattern(300);
    let buffer = rig.buffer(0x2000);
    let td = SiTd::r#in(0x01, 0x7c, [buffer, buffer + 0x1000], 300).link(&mut rig, 0);
    rig.complete([part(&bytes[..188]), data(&bytes[188..])]);
    rig.go();
    rig.microframes(8);
    assert_eq!(rig.bytes(buffer, 300), bytes);
    assert_eq!((state(&rig, td) & ACTIVE, total(&rig, td)), (0, 0));
}

#[test]
fn ehci_sitd_6_nothing_by_the_last_complete_split_is_no_error() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(0x2000);
    let td = SiTd::r#in(0x01, 0x1c, [buffer, buffer + 0x1000], 300).link(&mut rig, 0);
    rig.go();
    rig.microframes(8);
    assert_eq!(rig.brief(), [('S', 0), ('C', 2), ('C', 3), ('C', 4)]);
    assert_eq!(state(&rig, td) & (0xff & !COMPLETING), 0);
    assert_eq!(total(&rig, td), 300);
    assert_eq!(rig.driver.take_events(), 0);
}

#[test]
fn ehci_sitd_7_err() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(0x2000);
    let td = SiTd::r#in(0x01, 0x1c, [buffer, buffer + 0x1000], 300).link(&mut rig, 0);
    rig.complete([plain(CompleteAnswer::Err)]);
    rig.go();
    rig.microframes(8);
    assert_eq!(state(&rig, td) & (0xff & !COMPLETING), ERR);
    assert_eq!(rig.driver.take_events(), sts::ERROR);
}

#[test]
fn ehci_sitd_8_three_tries_at_once() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(0x2000);
    let td = SiTd::r#in(0x01, 0x1c, [buffer, buffer + 0x1000], 300).link(&mut rig, 0);
    rig.complete(vec![plain(CompleteAnswer::Silence); 3]);
    rig.go();
    rig.microframes(8);
    assert_eq!(rig.brief(), [('S', 0), ('C', 2), ('C', 2), ('C', 2)]);
    assert_eq!(state(&rig, td) & (0xff & !COMPLETING), ERROR);
    assert_eq!(rig.driver.take_events(), sts::ERROR);
}

#[test]
fn ehci_sitd_9_the_buffer_crosses_a_page() {
    let mut rig = Rig::new();
    let bytes = pattern(300);
    let buffer = rig.buffer(0x4000);
    let pages = [buffer + 0xfc0, buffer + 0x3000];
    let td = SiTd::r#in(0x01, 0x7c, pages, 300).link(&mut rig, 0);
    rig.complete([part(&bytes[..188]), data(&bytes[188..])]);
    rig.go();
    rig.microframes(8);
    assert_eq!(rig.bytes(buffer + 0xfc0, 0x40), bytes[..0x40]);
    assert_eq!(rig.bytes(buffer + 0x3000, 300 - 0x40), bytes[0x40..]);
    assert_ne!(state(&rig, td) & 1 << 30, 0, "P");
    assert_eq!(rig.load(td + 0x10) & 0xfff, 300 - 0x40);
}

#[test]
fn ehci_sitd_10_ioc() {
    for flags in [0, IOC] {
        let mut rig = Rig::new();
        let buffer = rig.buffer(0x2000);
        let td = SiTd { flags, ..SiTd::r#in(0x01, 0x1c, [buffer, buffer + 0x1000], 300) };
        td.link(&mut rig, 0);
        rig.complete([data(&[1; 10])]);
        rig.go();
        rig.microframes(8);
        let expected = if flags == 0 { 0 } else { sts::INT };
        assert_eq!(rig.driver.take_events(), expected, "short is no event");
    }
}

#[test]
fn ehci_sitd_11_completions_over_the_end_of_a_frame() {
    let mut rig = Rig::new();
    let bytes = pattern(40);
    let buffer = rig.buffer(0x4000);
    let first = SiTd::r#in(0x40, 0x03, [buffer, buffer + 0x1000], 100).link(&mut rig, 0);
    let second = SiTd {
        flags: COMPLETING,
        back: first,
        ..SiTd::r#in(0x40, 0x03, [buffer + 0x2000, buffer + 0x3000], 100)
    };
    let second = second.link(&mut rig, 1);
    let third = SiTd {
        flags: COMPLETING,
        back: second,
        ..SiTd::r#in(0x40, 0x03, [buffer + 0x2000, buffer + 0x3000], 100)
    };
    third.link(&mut rig, 2);
    rig.complete([plain(CompleteAnswer::Nyet), data(&bytes), data(&bytes)]);
    rig.go();
    rig.microframes(18);
    assert_eq!(rig.brief(), [('S', 6), ('C', 0), ('C', 1), ('S', 6), ('C', 0)]);
    assert_eq!(state(&rig, first) & ACTIVE, 0);
    assert_eq!(rig.bytes(buffer, 40), bytes);
    assert_eq!(state(&rig, second) & ACTIVE, 0);
    assert_eq!(rig.bytes(buffer + 0x2000, 40), bytes);
}

#[test]
fn ehci_int_12_a_short_split_packet_raises_nothing() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(0x2000);
    SiTd::r#in(0x01, 0x1c, [buffer, buffer + 0x1000], 300).link(&mut rig, 0);
    rig.complete([data(&[1; 10])]);
    rig.go();
    rig.microframes(8);
    assert_eq!(rig.driver.take_events(), 0);
}
