//! OHCI-HCCA: the communications area.

use crate::rig::*;

#[test]
fn ohci_hcca_1_the_frame_number_is_in_memory_before_the_interrupt() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    let first = rig.hcca_frame() + 1;
    for number in first..first + 10 {
        rig.clear_status();
        assert!(rig.m.wait_millis(2, |m| m.line));
        assert_eq!(rig.hcca_frame(), number);
        assert_eq!(rig.m.read32(reg::FM_NUMBER), number);
    }
}

#[test]
fn ohci_hcca_2_the_pad_is_zeroed_with_the_frame_number() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF);
    rig.clear_status();
    rig.m.fill(rig.hcca + hcca::FRAME_NUMBER + 2, &0xbad1u16.to_le_bytes());
    rig.frames(1);
    assert_eq!(rig.hcca_frame(), u32::from(rig.frame_number()));
}

#[test]
fn ohci_hcca_3_each_frame_serves_its_own_slot() {
    let mut rig = running();
    let first = u32::from(rig.frame_number()) + 1;
    for slot in 0..32 {
        let td = rig.out(&[slot as u8]);
        let toggle = if (slot ^ first) & 1 == 0 { td::DATA0 } else { td::DATA1 };
        let word = rig.m.load(td);
        rig.m.store(td, word | toggle);
        let ed = rig.endpoint_ed(BULK_OUT, &[td]);
        rig.m.store(rig.hcca + 4 * slot, ed);
    }
    rig.enable(control::PLE);
    for _ in 0..32 {
        rig.frames(1);
        let slot = rig.frame_number() & 31;
        assert_eq!(rig.device.take_received(BULK_OUT), [slot as u8]);
    }
}

#[test]
fn ohci_hcca_4_an_empty_slot_costs_nothing() {
    let mut rig = running();
    rig.enable(control::PLE);
    let before = rig.m.bytes(0, 8 << 20);
    rig.frames(64);
    let mut after = rig.m.bytes(0, 8 << 20);
    let at = (rig.hcca + hcca::FRAME_NUMBER) as usize;
    after[at..at + 4].copy_from_slice(&before[at..at + 4]);
    assert!(after == before, "no other byte of memory changes");
    assert_eq!(rig.transfers(), 0);
}

#[test]
fn ohci_hcca_5_the_interrupt_table_is_the_drivers() {
    let mut rig = running();
    let pattern: Vec<u8> = (0..128u8).map(|n| n.wrapping_mul(5) ^ 3).collect();
    rig.m.fill(rig.hcca, &pattern);
    rig.frames(100);
    assert_eq!(rig.m.bytes(rig.hcca, 128), pattern);
    assert_eq!(rig.m.bytes(rig.hcca + 0x88, 120), [0; 120]);
}

#[test]
fn ohci_hcca_6_nothing_is_written_outside_operational() {
    let mut rig = running();
    for state in [control::SUSPEND, control::RESUME, control::RESET] {
        rig.write_control(state);
        rig.m.store(rig.hcca + hcca::FRAME_NUMBER, 0x5a5a_5a5a);
        rig.frames(300);
        assert_eq!(rig.hcca_frame(), 0x5a5a_5a5a);
    }
    rig.write_control(control::OPERATIONAL);
    rig.frames(2);
    assert_eq!(rig.hcca_frame(), u32::from(rig.frame_number()));
}

#[test]
fn ohci_hcca_7_another_area_takes_over() {
    let mut rig = running();
    let old = rig.hcca;
    let new = rig.m.alloc(256, 256);
    rig.m.write32(reg::HCCA, new);
    rig.frames(2);
    rig.m.fill(old, &[0x5a; 256]);
    rig.frames(10);
    assert_eq!(rig.m.bytes(old, 256), [0x5a; 256]);
    let number = rig.frame_number();
    assert_eq!(rig.m.load(new + hcca::FRAME_NUMBER), u32::from(number));
}
