//! Buffers that wrap, end before they begin, or lie on what describes them.

use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::*;
use crate::driver::machine::RAM;

#[test]
fn ohci_hg_14_pages_of_a_buffer_have_nothing_to_do_with_each_other() {
    let ranges = [(GuestAddress(0), RAM as usize), (GuestAddress(0xffff_f000), 0x1000)];
    let mut rig = running();
    rig.m.memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
    rig.m.fill(0xffff_fff0, &[1; 16]);
    rig.m.fill(0, &[2; 16]);
    let td = rig.td(td::OUT, 0xffff_fff0, 0xf);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    let work = work(&mut rig, |rig| rig.run_bulk(&[ed]));
    assert!(work.most <= 2 * VISIT + FRAME, "{work:?}");
    assert_eq!(rig.device.take_received(BULK_OUT), [[1; 16], [2; 16]].concat());
    assert_eq!((rig.cc(td), rig.cbp(td)), (0, 0));
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_15_a_buffer_that_ends_before_it_begins_is_empty_or_an_error() {
    let mut rig = running();
    let td = rig.td(td::OUT, 0x10_1010, 0x10_100f);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.run_bulk(&[ed]);
    assert_eq!((rig.cc(td), rig.device.take_received(BULK_OUT).len()), (0, 0), "one below CBP");
    let td = rig.td(td::OUT, 0x10_1010, 0x10_100e);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.device.take_seen();
    let work = work(&mut rig, |rig| rig.run_bulk(&[ed]));
    assert!(work.most <= 2 * VISIT + FRAME, "{work:?}");
    assert_eq!((rig.cc(td), rig.transfers()), (0xf, 0));
    assert_dead_until_reset(&mut rig);
}

#[test]
fn ohci_hg_16_no_buffer_is_longer_than_two_pages() {
    let mut rig = running();
    // The distance is 15 MiB; the offsets in the pages are what counts.
    let td = rig.td(td::OUT, 0x10_0000, 0xff_ffff);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    let work = work(&mut rig, |rig| rig.run_bulk(&[ed]));
    assert!(work.most <= 2 * VISIT + FRAME, "{work:?}");
    assert_eq!(rig.device.take_received(BULK_OUT).len(), 8192);
    assert_eq!(rig.cc(td), 0);
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_17_18_packets_that_cannot_be_are_not_sent() {
    // Offsets that go back; a last one behind BE; a slot of 1,024 bytes; one over MPS.
    let mut rig = running();
    let buffer = rig.m.alloc(0x2000, 0x1000);
    let ends = (buffer, buffer + 99);
    let cases: [(&[u32], (u32, u32), u32); 4] = [
        (&[0x200, 0x100], ends, 1023),
        (&[0x300], ends, 1023),
        (&[0, 0x400], (buffer, buffer + 0x4ff), 1023),
        (&[0], (buffer, buffer + 199), 100),
    ];
    for (offsets, ends, mps) in cases {
        let frame = rig.frame_number().wrapping_add(1);
        let td = iso_td(&mut rig, frame, ends, offsets, 0xe000);
        let word = ed::control(ADDRESS, 4, mps as u16) | ed::OUT | ed::ISOCHRONOUS;
        let ed = rig.ed(word, &[td]);
        rig.run_periodic(&[ed]);
        let work = work(&mut rig, |rig| rig.frames(1));
        assert!(work.most <= VISIT + FRAME, "{work:?}");
        assert_eq!(psw(&rig, td, 0), (8, 0), "{offsets:x?}");
        assert_eq!(rig.transfers(), 0, "{offsets:x?}");
    }
    assert_alive(&mut rig);
}

#[test]
fn ohci_hg_19_a_status_word_that_is_none_is_an_offset_all_the_same() {
    for top in [0, 0x2000, 0x8000, 0xc000] {
        let mut rig = running();
        let frame = rig.frame_number().wrapping_add(1);
        let buffer = rig.m.alloc(0x100, 0x1000);
        let td = iso_td(&mut rig, frame, (buffer, buffer + 99), &[0], top);
        let ed = iso_ed(&mut rig, ed::OUT, &[td]);
        rig.run_periodic(&[ed]);
        let work = work(&mut rig, |rig| rig.frames(1));
        assert!(work.most <= VISIT + FRAME, "{work:?}");
        assert_eq!((rig.cc(td), psw(&rig, td, 0)), (0, (0, 0)));
        assert_eq!(rig.device.take_received(ISO_OUT).len(), 100);
        assert_alive(&mut rig);
    }
}

#[test]
fn ohci_hg_27_data_that_lands_on_its_own_descriptors_changes_nothing_of_its_transfer() {
    for target in 0..3 {
        let mut rig = running();
        let (td, ed, dummy) = rig.td_onto_descriptors(target);
        let work = work(&mut rig, |rig| rig.run_bulk(&[ed]));
        assert!(work.most <= 2 * VISIT + FRAME, "{work:?}");
        assert_eq!(rig.transfers(), 1);
        assert_eq!((rig.head_p(ed), rig.cc(td), rig.cbp(td)), (dummy, 0, 0));
        rig.frames(10);
        assert_works_after_reset(&mut rig);
    }
}

#[test]
fn ohci_hg_28_the_communications_area_may_lie_on_descriptors() {
    let mut rig = running();
    let td = rig.out(&[1; 8]);
    let ed = rig.endpoint_ed(BULK_OUT, &[td]);
    rig.enable(control::PLE | control::IE);
    for at in [ed, td, rig.hcca] {
        rig.m.write32(reg::HCCA, at);
        if at == rig.hcca {
            // The interrupt table leads into itself.
            for slot in 0..32 {
                rig.m.store(rig.hcca + 4 * slot, rig.hcca + 16 * (slot % 8));
            }
        }
        let work = work(&mut rig, |rig| {
            rig.run_bulk(&[ed]);
            rig.frames(40);
        });
        assert!(work.most <= 1024 + 16 * VISIT + FRAME, "{work:?}");
        assert_works_after_reset(&mut rig);
    }
}
