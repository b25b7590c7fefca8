//! OHCI-INT: the interrupt condition.

use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_usb::ohci::Ohci;
use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::Speed;

use crate::rig::*;

#[test]
fn ohci_int_1_the_master_enable_gates_the_line() {
    let mut rig = running();
    rig.frames(1);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::SF);
    assert!(!rig.m.line);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE);
    assert!(rig.m.line);
    rig.m.write32(reg::INTERRUPT_DISABLE, int::MIE);
    assert!(!rig.m.line);
    assert_eq!(rig.status(), int::SF);
}

#[test]
fn ohci_int_2_enabling_a_pending_event_raises_the_line_at_once() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE);
    rig.frames(1);
    assert!(!rig.m.line);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::SF);
    assert!(rig.m.line);
}

#[test]
fn ohci_int_3_the_line_falls_with_the_last_event() {
    let mut rig = running();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF | int::RHSC);
    rig.frames(1);
    rig.ports[1].attach(device(Speed::Full).0).unwrap();
    rig.m.run();
    rig.m.write32(reg::INTERRUPT_STATUS, int::SF);
    assert!(rig.m.line);
    rig.m.write32(reg::INTERRUPT_STATUS, int::RHSC);
    assert!(!rig.m.line);
}

#[test]
fn ohci_int_4_each_rise_is_one_message() {
    let mut rig = running();
    rig.m.interrupts.clear();
    let messages = |rig: &Rig| rig.m.interrupts.iter().filter(|(_, i)| i.event).count();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::SF | int::RHSC);
    rig.frames(5);
    assert_eq!(messages(&rig), 1);
    rig.ports[1].attach(device(Speed::Full).0).unwrap();
    rig.frames(5);
    assert_eq!(messages(&rig), 1, "more events while it is high are none");
    rig.m.write32(reg::INTERRUPT_STATUS, int::SF | int::RHSC);
    assert_eq!(messages(&rig), 1);
    rig.frames(3);
    assert_eq!(messages(&rig), 2);
    // A rise that is due to the driver's own write counts.
    rig.m.write32(reg::INTERRUPT_DISABLE, int::MIE);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE);
    assert_eq!(messages(&rig), 3);
}

#[test]
fn ohci_int_6_root_hub_changes_are_an_edge() {
    let mut rig = running();
    rig.ports[0].detach().unwrap();
    rig.m.run();
    assert_eq!(rig.status() & int::RHSC, int::RHSC);
    assert_ne!(rig.port() & port::CSC, 0);
    rig.m.write32(reg::INTERRUPT_STATUS, int::RHSC);
    rig.frames(10);
    assert_eq!(rig.status() & int::RHSC, 0, "though the change bits are still set");
    rig.ports[0].attach(device(Speed::Full).0).unwrap();
    rig.m.run();
    assert_eq!(rig.status() & int::RHSC, int::RHSC);
}

/// What a function drives.
#[derive(Default)]
struct Line {
    level: bool,
    messages: u32,
}

impl InterruptLine for Line {
    fn set_level(&mut self, asserted: bool) {
        self.level = asserted;
    }

    fn message(&mut self, _address: u64, _data: u32) {
        self.messages += 1;
    }
}

#[test]
fn ohci_int_5_the_pci_command_register_can_disable_the_pin() {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
    let port = Port::classic();
    let ohci = Ohci::new(vec![port.link(Host::Classic)]);
    let mut f = PciFunction::new(Identity::ohci(), Placement::default(), ohci, Line::default());
    let now = Time::from_nanos(1);
    f.config_write(&memory, now, 4, &6u16.to_le_bytes());
    let enable = (int::MIE | int::RHSC).to_le_bytes();
    f.bar_write(&memory, now, reg::INTERRUPT_ENABLE, &enable);
    port.attach(device(Speed::Full).0).unwrap();
    f.run(&memory, now);
    assert!(f.line().level);
    f.config_write(&memory, now, 4, &0x406u16.to_le_bytes());
    assert!(!f.line().level);
    let mut status = [0; 4];
    f.bar_read(&memory, now, reg::INTERRUPT_STATUS, &mut status);
    assert_eq!(u32::from_le_bytes(status), int::RHSC);
    f.config_write(&memory, now, 4, &6u16.to_le_bytes());
    assert!(f.line().level);
    assert_eq!(f.line().messages, 0);
}
