//! Identity and capability registers (EHCI 2.1, 2.2): rules EHCI-CAP.

use vm_usb::pci::Placement;
use vm_usb::topology::Port;

use crate::driver::ehci::{cmd, port, reg};
use crate::pci::Pci;
use crate::rig::bare;

fn alone() -> Pci {
    Pci::running(vec![Port::high_speed_only(); 1], Placement::default())
}

#[test]
fn ehci_cap_1_configuration_space_says_ehci() {
    let mut pci = alone();
    assert_eq!([0x09, 0x0a, 0x0b].map(|at| pci.config8(at)), [0x20, 0x03, 0x0c]);
    assert_eq!(pci.config8(0x60), 0x20, "SBRN");
    assert_eq!(pci.config8(0x61), 0x20, "FLADJ");
    assert_eq!(pci.config8(0x0e), 0);
    let multi = Placement { multi_function: true, ..Placement::default() };
    assert_eq!(Pci::running(vec![Port::shared()], multi).config8(0x0e), 0x80);
}

#[test]
fn ehci_cap_2_the_first_dword() {
    let (mut m, _) = bare(1);
    let (mut byte, mut word) = ([0; 1], [0; 2]);
    m.read(0, &mut byte);
    m.read(2, &mut word);
    let dword = m.read32(0);
    assert_eq!(dword & 0xff, 0x20);
    assert_eq!(byte[0], 0x20);
    assert_eq!(dword >> 8 & 0xff, 0);
    assert_eq!(dword >> 16, 0x0100);
    assert_eq!(u16::from_le_bytes(word), 0x0100);
}

#[test]
fn ehci_cap_3_capability_registers_read_in_any_size_and_never_change() {
    let (mut m, _) = bare(3);
    let before: Vec<u32> = (0..0x20).step_by(4).map(|at| m.read32(at)).collect();
    for (n, dword) in before.iter().enumerate() {
        for lane in 0..4 {
            let mut byte = [0];
            m.read(4 * n as u64 + lane, &mut byte);
            assert_eq!(byte[0], dword.to_le_bytes()[lane as usize]);
        }
        for half in 0..2 {
            let mut word = [0; 2];
            m.read(4 * n as u64 + 2 * half, &mut word);
            assert_eq!(u16::from_le_bytes(word), (dword >> (16 * half)) as u16);
        }
        m.write32(4 * n as u64, 0xffff_ffff);
        m.write32(4 * n as u64, 0);
    }
    let after: Vec<u32> = (0..0x20).step_by(4).map(|at| m.read32(at)).collect();
    assert_eq!(after, before);
}

#[test]
fn ehci_cap_4_as_many_port_registers_as_ports() {
    for count in [1, 2, 6, 15] {
        let (mut m, _) = bare(count);
        assert_eq!(m.read32(0x04) & 0xf, count as u32);
        for n in 0..count as u64 {
            assert_eq!(m.read32(reg::PORTSC + 4 * n), port::OWNER);
        }
        // Behind the fifteenth comes the debug port.
        let behind = reg::PORTSC + 4 * count as u64;
        if count < 15 {
            m.write32(behind, 0xffff_ffff);
            assert_eq!(m.read32(behind), 0);
        }
    }
}

#[test]
fn ehci_cap_5_companions_are_counted() {
    let (mut m, _) = bare(4);
    assert_eq!(m.read32(0x04) >> 8 & 0xff, 0, "neither N_CC nor N_PCC");
    let mut pci = Pci::new(vec![Port::shared(), Port::shared()], Placement::default());
    pci.set_config16(4, 6);
    let parameters = pci.read32(0x04);
    let (ports, per, companions) =
        (parameters & 0xf, parameters >> 8 & 0xf, parameters >> 12 & 0xf);
    assert!(ports <= per * companions);
}

#[test]
fn ehci_cap_6_there_is_no_port_route() {
    let (mut m, _) = bare(4);
    assert_eq!(m.read32(0x04) >> 7 & 1, 0, "PRR");
    assert_eq!([m.read32(0x0c), m.read32(0x10)], [0, 0]);
}

#[test]
fn ehci_cap_7_the_legacy_capability_has_a_list_of_its_own() {
    let mut pci = alone();
    let eecp = pci.read32(0x08) >> 8 & 0xff;
    assert_eq!(eecp, u32::from(vm_usb::ehci::EECP));
    assert!(eecp >= 0x40 && eecp.is_multiple_of(4));
    assert_eq!(pci.config8(eecp.into()), 1);
    for id in 0..=0xff {
        assert_ne!(pci.capability(id), Some(eecp.into()));
    }
}

#[test]
fn ehci_cap_8_nothing_of_the_addendum() {
    let (mut m, _) = bare(1);
    assert_eq!(m.read32(0x08) >> 16, 0);
    m.write32(reg::USBCMD, !cmd::RESET & !cmd::RUN);
    assert_eq!(m.read32(reg::USBCMD) & 0x0f00_f000, 0);
    m.write32(reg::CONFIGFLAG, 1);
    m.write32(reg::PORTSC, !port::OWNER);
    assert_eq!(m.read32(reg::PORTSC) & 0xff80_0200, 0);
}

#[test]
fn ehci_cap_9_the_operating_system_takes_over() {
    let mut pci = alone();
    let eecp = u64::from(vm_usb::ehci::EECP);
    assert_eq!(pci.config8(eecp + 2), 0);
    pci.set_config(eecp + 3, &[1]);
    assert_eq!(pci.config32(eecp) >> 16, 0x0100);
    pci.write32(reg::USBCMD, cmd::RESET);
    pci.set_power_state(3);
    pci.set_power_state(0);
    assert_eq!(pci.config32(eecp) >> 16, 0x0100);
    assert_ne!(pci.config32(eecp + 4) >> 29 & 1, 0, "ownership changed");
    pci.set_config(eecp + 4, &0x0000_203fu32.to_le_bytes());
    let control = pci.config32(eecp + 4);
    assert_eq!(control & 0xffff, 0x203f);
    assert_ne!(control >> 29 & 1, 0, "zeros keep it");
    pci.set_config(eecp + 4, &0xffff_0000u32.to_le_bytes());
    let control = pci.config32(eecp + 4);
    assert_eq!(control & 0xffff, 0);
    assert_eq!(control >> 29, 0, "ones clear it");
}

#[test]
fn a_driver_is_told_to_leave_itself_a_frame_for_isochronous_work() {
    let (mut m, _) = bare(1);
    let hccparams = m.read32(0x08);
    assert_eq!(hccparams >> 4 & 0xf, 7, "microframes, none of them for a cache of whole frames");
}
