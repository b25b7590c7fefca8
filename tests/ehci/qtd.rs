//! Queue heads and qTDs (EHCI 4.10): rules EHCI-QTD.

use vm_usb::usb::{BusError, Pid, Toggle};

use crate::driver::ehci::{DTC, TERMINATE, Td, token};
use crate::driver::scripted::Answer;
use crate::rig::{IN1, OUT1, Rig, is_done, pattern};

#[test]
fn ehci_qtd_1_an_active_qtd_is_overlaid() {
    let mut rig = Rig::new();
    let mut queue = rig.open(IN1, 0);
    let buffer = rig.buffer(20_480);
    // Garbage that the overlay has to clear or to replace.
    rig.store(queue.head + 0x20, 0xff);
    rig.store(queue.head + 0x24, 0xfff);
    let stop = rig.driver.stop;
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 20_480).ioc().alternate(stop)])[0];
    rig.settle();
    assert_ne!(rig.packets().len(), 0);
    let qh: [u32; 12] = rig.driver.machine.load_all(queue.head);
    let td: [u32; 8] = rig.driver.machine.load_all(qtd);
    assert_eq!(qh[3], qtd, "Current");
    assert_eq!(qh[4..6], td[..2], "Next and Alternate Next");
    assert_eq!(qh[6], td[2], "token");
    assert_eq!(qh[7..], td[3..], "pages, C-prog-mask and FrameTag 0");
}

#[test]
fn ehci_qtd_2_an_inactive_qtd_is_looked_at_again_and_again() {
    let mut rig = Rig::new();
    let queue = rig.open(IN1, 0);
    rig.driver.machine.advance_millis(20);
    let before = rig.driver.machine.bytes(queue.head, 0x60);
    let accesses = rig.driver.machine.record(100_000);
    let looks = accesses.iter().filter(|a| a.touches(queue.dummy + 8, 4)).count();
    assert!((95..=205).contains(&looks), "about once a millisecond, not {looks} times");
    assert_eq!(rig.driver.machine.bytes(queue.head, 0x60), before);
}

#[test]
fn ehci_qtd_3_no_next_no_work() {
    let mut rig = Rig::new();
    let queue = rig.open(IN1, 0);
    rig.store(queue.head + 0x10, queue.dummy | TERMINATE);
    rig.store(queue.dummy + 8, Td::new(Pid::In, 0, 512).token());
    let before = rig.driver.machine.bytes(queue.head, 0x60);
    rig.driver.machine.advance_millis(5);
    assert_eq!(rig.driver.machine.bytes(queue.head, 0x60), before);
    assert_eq!(rig.packets(), []);
}

#[test]
fn ehci_qtd_4_where_the_toggle_comes_from() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(1024);
    // DTC = 0: it stays with the queue head, over qTD boundaries, whatever the qTDs say.
    let mut queue = rig.open(OUT1, 0);
    let tds = [
        Td::new(Pid::Out, buffer, 512).toggle(true),
        Td::new(Pid::Out, buffer, 1024).toggle(false),
        Td::new(Pid::Out, buffer, 512).toggle(true),
    ];
    rig.submit(&mut queue, &tds);
    rig.settle();
    let toggles: Vec<_> = rig.packets().iter().map(|p| p.toggle).collect();
    assert_eq!(toggles, [Toggle::Data0, Toggle::Data1, Toggle::Data1]);
    assert_eq!(rig.overlay(&queue) & token::TOGGLE, 0, "four packets later");
    rig.driver.unlink(&queue);

    // DTC = 1: from each qTD.
    let characteristics = rig.characteristics(OUT1, 512) | DTC;
    let mut queue = rig.driver.queue(characteristics, 1 << 30, None);
    rig.store(queue.head + 0x18, token::TOGGLE);
    let [first, second] = [false, true].map(|dt| Td::new(Pid::Out, buffer, 512).toggle(dt));
    rig.submit(&mut queue, &[first, second]);
    rig.driver.link(&queue);
    rig.settle();
    let toggles: Vec<_> = rig.packets().iter().map(|p| p.toggle).collect();
    assert_eq!(toggles, [Toggle::Data0, Toggle::Data1]);
}

#[test]
fn ehci_qtd_5_a_transfer_is_cut_into_packets_with_alternating_toggles() {
    let mut rig = Rig::new();
    let data = pattern(1025);
    let buffer = rig.buffer_of(&data);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 1025)])[0];
    rig.settle();
    let packets = rig.packets();
    assert_eq!((packets[0].len, packets[0].toggle), (1025, Toggle::Data0));
    assert_eq!(rig.controls.take_received(OUT1), data);
    assert!(is_done(rig.token(qtd)));
    assert_ne!(rig.token(qtd) & token::TOGGLE, 0, "512, 512 and 1 byte: DATA1 comes next");
    // The device agrees.
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 5)]);
    rig.settle();
    assert_eq!(rig.packets()[0].toggle, Toggle::Data1);
    assert_eq!(rig.controls.take_received(OUT1), data[..5]);
}

#[test]
fn ehci_qtd_6_whole_packets_are_not_followed_by_an_empty_one() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(1024);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 1024)])[0];
    rig.driver.machine.advance_millis(1);
    assert_eq!(rig.packets().len(), 1);
    assert_eq!(rig.token(qtd) & token::TOGGLE, 0, "two packets");
}

#[test]
fn ehci_qtd_7_no_bytes_are_a_transaction_too() {
    let mut rig = Rig::new();
    let (mut out, mut r#in) = (rig.open(OUT1, 0), rig.open(IN1, 0));
    rig.controls.answer(IN1, [Answer::Data(vec![])]);
    let out = rig.submit(&mut out, &[Td::new(Pid::Out, 0, 0)])[0];
    let r#in = rig.submit(&mut r#in, &[Td::new(Pid::In, 0, 0)])[0];
    rig.driver.machine.advance_millis(1);
    let packets = rig.packets();
    assert_eq!(packets.len(), 2, "one each: {packets:?}");
    for qtd in [out, r#in] {
        assert!(is_done(rig.token(qtd)));
        assert_ne!(rig.token(qtd) & token::TOGGLE, 0, "one packet");
    }
}

#[test]
fn ehci_qtd_8_a_control_transfer_is_three_pids_in_one_queue() {
    use crate::driver::host::HostDriver;
    use crate::driver::scripted::Seen;
    use vm_usb::usb::SetupPacket;
    let mut rig = Rig::new();
    let device = rig.device;
    let setup = SetupPacket::new(0xc0, 7, 0x1234, 0x5678, 4);
    rig.controls.answer_request(&[1, 2, 3, 4]);
    assert_eq!(rig.driver.control(&device, setup, &[]).unwrap(), [1, 2, 3, 4]);
    assert!(rig.controls.take_seen().contains(&Seen::Request(setup, vec![])));
    let out = SetupPacket::new(0x40, 8, 0, 0, 3);
    rig.controls.answer_request(&[]);
    rig.driver.control(&device, out, &[7, 8, 9]).unwrap();
    assert!(rig.controls.take_seen().contains(&Seen::Request(out, vec![7, 8, 9])));
}

#[test]
fn ehci_qtd_9_a_full_transfer_is_over() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(1024);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 1024])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 1024)])[0];
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(token::total(rig.token(qtd)), 0);
    assert_eq!(rig.packets().len(), 1);
}

#[test]
fn ehci_qtd_10_pages_may_lie_anywhere() {
    let mut rig = Rig::new();
    let data = pattern(9_000);
    let pages: Vec<u32> = (0..8).map(|_| rig.buffer(0x1000)).collect();
    for page in &pages {
        rig.driver.machine.fill(*page, &[0xee; 0x1000]);
    }
    let scattered = [pages[6] | 0xe01, pages[1], pages[4], pages[3], pages[0]];
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(data.clone())]);
    let qtd = queue.dummy;
    // Publish by hand: pages before the token.
    let td = Td::new(Pid::In, 0, 9_000);
    let dummy = rig.submit(&mut queue, &[])[..].first().copied();
    assert_eq!(dummy, None, "nothing was appended");
    rig.store(qtd, TERMINATE);
    rig.driver.machine.store_all(qtd + 0x0c, &scattered);
    rig.store(qtd + 8, td.token());
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
    let mut expected = data.as_slice();
    let mut inside = vec![];
    for (n, (start, len)) in
        [(0xe01, 0x1ff), (0, 0x1000), (0, 0x1000), (0, 9_000 - 0x21ff)].into_iter().enumerate()
    {
        let page = scattered[n] & !0xfff;
        let (part, rest) = expected.split_at(len);
        let page_bytes = rig.driver.machine.bytes(page, 0x1000);
        assert!(page_bytes[start..start + len] == *part, "part {n}");
        assert!(page_bytes[..start].iter().all(|b| *b == 0xee), "before part {n}");
        assert!(page_bytes[start + len..].iter().all(|b| *b == 0xee), "behind part {n}");
        expected = rest;
        inside.push(page);
    }
    for page in pages.iter().filter(|page| !inside.contains(page)) {
        assert!(rig.driver.machine.bytes(*page, 0x1000).iter().all(|b| *b == 0xee));
    }
    let t = rig.token(qtd);
    assert_eq!(token::c_page(t), 3);
    assert_eq!(rig.load(queue.head + 0x1c) & 0xfff, 9_000 - 0x21ff, "current offset");
}

#[test]
fn ehci_qtd_11_twenty_kilobytes_fit() {
    let mut rig = Rig::new();
    let data = pattern(20_480);
    let buffer = rig.buffer(20_480);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(data.clone())]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 20_480)])[0];
    rig.settle();
    assert!(is_done(rig.token(qtd)));
    assert!(rig.driver.machine.bytes(buffer, 20_480) == data);
}

#[test]
fn ehci_qtd_12_the_whole_token_is_written_back_and_nothing_else() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(8192);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 4_700])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 8192).ioc().cerr(2)])[0];
    let before: [u32; 13] = rig.driver.machine.load_all(qtd);
    rig.settle();
    let after: [u32; 13] = rig.driver.machine.load_all(qtd);
    assert_eq!(after[2], rig.overlay(&queue));
    assert_eq!(token::total(after[2]), 8192 - 4_700);
    assert_eq!(token::c_page(after[2]), 1);
    assert_eq!(after[2] & token::TOGGLE, 0, "ten packets");
    assert_ne!(after[2] & token::IOC, 0);
    for n in (0..13).filter(|n| *n != 2) {
        assert_eq!(after[n], before[n], "dword {n}");
    }
}

#[test]
fn ehci_qtd_13_progress_shows_in_the_overlay_only() {
    let mut rig = Rig::new();
    let data = pattern(4096);
    let buffer = rig.buffer_of(&data);
    let mut queue = rig.open(OUT1, 4);
    rig.controls.answer(OUT1, [Answer::Take(1536)]);
    rig.controls.answer(OUT1, vec![Answer::Nak; 100]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 4096)])[0];
    let before = rig.driver.machine.bytes(qtd, 0x34);
    rig.settle();
    assert_eq!(rig.driver.machine.bytes(qtd, 0x34), before);
    let t = rig.overlay(&queue);
    assert_eq!(token::total(t), 4096 - 1536);
    assert_ne!(t & token::TOGGLE, 0, "three packets");
    assert_eq!(rig.load(queue.head + 0x1c) & 0xfff, 1536);
}

#[test]
fn ehci_qtd_14_the_qtd_is_the_last_to_be_written() {
    let mut rig = Rig::new();
    let data = pattern(1000);
    let buffer = rig.buffer(1024);
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(data)]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 1024)])[0];
    let accesses = rig.driver.machine.record(100);
    // Where a token is stored, everything before it is final: find the order of the last stores.
    let last = |start: u32, len: u32| {
        accesses.iter().rposition(|a| a.write && a.touches(start, len)).expect("written")
    };
    let (data, overlay, token) = (last(buffer, 1024), last(queue.head, 0x44), last(qtd + 8, 4));
    assert!(data < overlay && overlay < token, "data, overlay, qTD");
}

#[test]
fn ehci_qtd_15_a_driver_may_retry_a_halted_qtd_in_place() {
    let mut rig = Rig::new();
    let data = pattern(6000);
    let buffer = rig.buffer_of(&data);
    let mut queue = rig.open(OUT1, 4);
    rig.controls.answer(OUT1, [Answer::Take(4608)]);
    rig.controls.answer(OUT1, vec![Answer::Error(BusError::Timeout); 3]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 6000)])[0];
    rig.driver.machine.advance_millis(2);
    let t = rig.token(qtd);
    assert_ne!(t & token::HALTED, 0);
    assert_eq!((token::cerr(t), token::total(t), token::c_page(t)), (0, 1392, 1));
    let again = t & !token::HALTED | token::ACTIVE | token::CERR_3;
    rig.store(qtd + 8, again);
    rig.store(queue.head + 0x18, again);
    rig.driver.machine.advance_millis(2);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(rig.controls.take_received(OUT1), data);
}

#[test]
fn ehci_qtd_16_a_linked_idle_queue_head_may_change_its_endpoint() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(OUT1, 0);
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)]);
    rig.settle();
    assert_eq!(rig.packets()[0].endpoint, 1);
    let changed = rig.characteristics(crate::rig::OUT2, 256);
    rig.store(queue.head + 4, changed);
    let kept = rig.overlay(&queue) & !token::TOGGLE;
    rig.store(queue.head + 0x18, kept);
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)]);
    rig.settle();
    let seen = rig.controls.take_seen();
    let expected = |s: &crate::driver::scripted::Seen| {
        matches!(s, crate::driver::scripted::Seen::Transfer { endpoint: 2, max_packet: 256, .. })
    };
    assert!(seen.iter().any(expected), "{seen:?}");
}

#[test]
fn ehci_qtd_17_the_token_is_read_before_what_it_guards() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)])[0];
    let accesses = rig.driver.machine.record(100);
    // One look takes all of it, the token first: that order is `Dma::load_guarded`'s, and tested there.
    let reads: Vec<_> = accesses.iter().filter(|a| !a.write && a.touches(qtd, 0x34)).collect();
    assert_eq!(reads.len(), 1, "{reads:?}");
    for offset in [0, 4, 8, 0xc, 0x10, 0x14, 0x18, 0x1c] {
        let covering = accesses.iter().filter(|a| !a.write && a.touches(qtd + offset, 4)).count();
        assert_eq!(covering, 1, "each dword once: {offset:#x}");
    }
}

#[test]
fn ehci_qtd_18_what_belongs_to_the_driver_is_never_written() {
    let mut rig = Rig::with(|ehci| ehci.with_64bit_addressing(false));
    let mut queue = rig.open(IN1, 4);
    let buffer = rig.buffer(20_480);
    rig.controls.answer(IN1, [Answer::Nak, Answer::Data(pattern(20_000))]);
    rig.driver.machine.fill(queue.head + 0x30, &[0xa5; 0x14]);
    let qtd = queue.dummy;
    rig.driver.machine.fill(qtd + 0x20, &[0xa5; 0x14]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 20_480)]);
    let accesses = rig.driver.machine.record(1_000);
    assert!(is_done(rig.token(qtd)));
    for access in accesses.iter().filter(|a| a.write) {
        assert!(!access.touches(queue.head, 0x0c), "QH dwords 0 to 2: {access:?}");
    }
    for access in accesses {
        assert!(!access.touches(queue.head + 0x30, 0x14), "behind a 32-bit QH: {access:?}");
        assert!(!access.touches(qtd + 0x20, 0x14), "behind a 32-bit qTD: {access:?}");
    }
}
