//! OHCI-LEG and what of OHCI-OWN needs system management: ports 60h and 64h, and who owns the
//! controller, as firmware with a USB keyboard and a program for DOS see them.

use vm_usb::ohci::{LegacyInterrupts, LegacyPort, Ohci};
use vm_usb::topology::Host;
use vm_usb::usb::Speed;

use crate::rig::*;

use LegacyPort::{Command, Data};

const HCE_CONTROL: u64 = 0x100;
const HCE_INPUT: u64 = 0x104;
const HCE_OUTPUT: u64 = 0x108;
const HCE_STATUS: u64 = 0x10c;

/// HceControl.
const ENABLE: u32 = 1 << 0;
const INTERRUPT: u32 = 1 << 1;
const CHARACTER_PENDING: u32 = 1 << 2;
const IRQ_EN: u32 = 1 << 3;
const EXTERNAL_IRQ_EN: u32 = 1 << 4;
const GATE_A20_SEQUENCE: u32 = 1 << 5;
const IRQ1_ACTIVE: u32 = 1 << 6;
const IRQ12_ACTIVE: u32 = 1 << 7;
const A20_STATE: u32 = 1 << 8;
/// HceStatus.
const OUTPUT_FULL: u32 = 1 << 0;
const INPUT_FULL: u32 = 1 << 1;
const CMD_DATA: u32 = 1 << 3;
const AUX_OUTPUT_FULL: u32 = 1 << 5;

const KEYBOARD: LegacyInterrupts = LegacyInterrupts { irq1: true, irq12: false };
const MOUSE: LegacyInterrupts = LegacyInterrupts { irq1: false, irq12: true };
const NEITHER: LegacyInterrupts = LegacyInterrupts { irq1: false, irq12: false };

fn with_legacy_support() -> Rig {
    let mut rig = cold(Speed::Full);
    let links = rig.ports.iter().map(|port| port.link(Host::Classic)).collect();
    rig.m.controller = Ohci::new(links).with_legacy_support();
    rig.start();
    rig
}

impl Rig {
    fn smi(&self) -> bool {
        self.m.controller.system_management_interrupt()
    }

    fn irqs(&self) -> LegacyInterrupts {
        self.m.controller.legacy_interrupts()
    }

    fn inb(&mut self, port: LegacyPort) -> Option<u8> {
        self.m.controller.read_legacy_port(port)
    }

    fn outb(&mut self, port: LegacyPort, byte: u8) -> bool {
        self.m.controller.write_legacy_port(port, byte)
    }

    fn hce_status(&mut self) -> u32 {
        self.m.read32(HCE_STATUS)
    }
}

#[test]
fn ohci_leg_1_the_registers_are_an_option() {
    let mut rig = running();
    for register in [HCE_CONTROL, HCE_INPUT, HCE_OUTPUT, HCE_STATUS] {
        rig.m.write32(register, !0);
        assert_eq!(rig.m.read32(register), 0);
    }
    assert_eq!((rig.inb(Data), rig.outb(Data, 1), rig.smi()), (None, false, false));

    let mut rig = with_legacy_support();
    assert_eq!(rig.m.read32(reg::REVISION), 0x110);
    // A character is pending, and there is room for it.
    let control = 0x13d | INTERRUPT;
    let written =
        [(HCE_CONTROL, control), (HCE_INPUT, 0xff), (HCE_OUTPUT, 0xff), (HCE_STATUS, 0xff)];
    for (register, holds) in written {
        assert_eq!(rig.m.read32(register), 0);
        rig.m.write32(register, !0);
        assert_eq!(rig.m.read32(register), holds, "{register:#x}");
    }
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    assert_eq!(rig.m.read32(HCE_OUTPUT), 0xff, "the driver's reset is not the firmware's");
    rig.m.reset();
    for register in [HCE_CONTROL, HCE_INPUT, HCE_OUTPUT, HCE_STATUS] {
        assert_eq!(rig.m.read32(register), 0);
    }
    assert_eq!(rig.m.read32(reg::REVISION), 0x110);
}

#[test]
fn ohci_leg_2_ports_are_the_controllers_while_emulation_is_enabled() {
    assert_eq!(LegacyPort::from_address(0x60), Some(Data));
    assert_eq!(LegacyPort::from_address(0x64), Some(Command));
    assert_eq!(LegacyPort::from_address(0x61), None);
    let mut rig = with_legacy_support();
    assert_eq!((rig.inb(Data), rig.inb(Command), rig.outb(Data, 5)), (None, None, false));
    assert_eq!((rig.m.read32(HCE_INPUT), rig.hce_status()), (0, 0));
    rig.m.write32(HCE_CONTROL, ENABLE);
    assert_eq!((rig.inb(Data), rig.inb(Command), rig.outb(Data, 5)), (Some(0), Some(0), true));
}

#[test]
fn ohci_leg_3_a_byte_to_a_port_calls_the_emulating_code() {
    for (port, command) in [(Data, 0), (Command, CMD_DATA)] {
        let mut rig = with_legacy_support();
        rig.m.write32(HCE_CONTROL, ENABLE);
        assert!(!rig.smi());
        rig.outb(port, 0xed);
        assert!(rig.smi());
        assert_eq!(rig.m.read32(HCE_CONTROL), ENABLE | INTERRUPT);
        assert_eq!((rig.m.read32(HCE_INPUT), rig.hce_status()), (0xed, INPUT_FULL | command));
        assert_eq!(
            rig.inb(Command),
            Some((INPUT_FULL | command) as u8),
            "the program sees it busy"
        );
        assert!(!rig.m.line, "it is nothing for the host");
        // The emulating code has dealt with it.
        rig.m.write32(HCE_STATUS, 0);
        assert!(!rig.smi());
    }
}

#[test]
fn ohci_leg_4_a_key_is_a_byte_an_interrupt_and_a_call_for_the_next() {
    let mut rig = with_legacy_support();
    rig.m.write32(HCE_CONTROL, ENABLE | IRQ_EN);
    // The emulating code has a scan code of two bytes.
    rig.m.write32(HCE_OUTPUT, 0xe0);
    rig.m.write32(HCE_STATUS, OUTPUT_FULL);
    rig.m.write32(HCE_CONTROL, ENABLE | IRQ_EN | CHARACTER_PENDING);
    assert_eq!((rig.irqs(), rig.smi()), (KEYBOARD, false));
    assert_eq!(rig.m.read32(HCE_OUTPUT), 0xe0, "looked at through the register, it stays");
    assert_eq!(rig.irqs(), KEYBOARD);
    assert_eq!((rig.inb(Command), rig.inb(Data)), (Some(OUTPUT_FULL as u8), Some(0xe0)));
    assert_eq!((rig.irqs(), rig.smi(), rig.hce_status()), (NEITHER, true, 0));
    rig.m.write32(HCE_OUTPUT, 0x48);
    rig.m.write32(HCE_STATUS, OUTPUT_FULL);
    rig.m.write32(HCE_CONTROL, ENABLE | IRQ_EN);
    assert_eq!((rig.irqs(), rig.inb(Data)), (KEYBOARD, Some(0x48)));
    assert_eq!((rig.irqs(), rig.smi()), (NEITHER, false), "nothing more to come");
}

#[test]
fn ohci_leg_5_a_byte_of_the_mouse_has_its_own_line() {
    let mut rig = with_legacy_support();
    rig.m.write32(HCE_STATUS, OUTPUT_FULL | AUX_OUTPUT_FULL);
    rig.m.write32(HCE_CONTROL, ENABLE);
    assert_eq!(rig.irqs(), NEITHER, "polled");
    rig.m.write32(HCE_CONTROL, ENABLE | IRQ_EN);
    assert_eq!(rig.irqs(), MOUSE);
    rig.m.write32(HCE_CONTROL, IRQ_EN);
    assert_eq!(rig.irqs(), NEITHER, "not emulated");
}

#[test]
fn ohci_leg_6_only_a_change_of_gate_a20_is_worth_an_interrupt() {
    let mut rig = with_legacy_support();
    rig.m.write32(HCE_CONTROL, ENABLE | A20_STATE);
    let enabled = ENABLE | A20_STATE;
    rig.outb(Command, 0xd1);
    assert_eq!(rig.m.read32(HCE_CONTROL), enabled | GATE_A20_SEQUENCE);
    assert_eq!((rig.m.read32(HCE_INPUT), rig.hce_status()), (0xd1, CMD_DATA));
    rig.outb(Data, 0xdf);
    assert!(!rig.smi(), "the gate is open already");
    rig.outb(Command, 0xff);
    assert_eq!((rig.m.read32(HCE_CONTROL), rig.hce_status()), (enabled, CMD_DATA));

    rig.outb(Command, 0xd1);
    rig.outb(Data, 0xdd);
    assert!(rig.smi(), "it is to be closed");
    assert_eq!((rig.m.read32(HCE_INPUT), rig.hce_status()), (0xdd, INPUT_FULL));
    assert_eq!(rig.m.read32(HCE_CONTROL), enabled | GATE_A20_SEQUENCE | INTERRUPT);
    rig.m.write32(HCE_STATUS, 0);

    rig.outb(Command, 0x20);
    assert!(rig.smi(), "any other command ends the sequence");
    assert_eq!(rig.m.read32(HCE_CONTROL) & GATE_A20_SEQUENCE, 0);
    rig.m.write32(HCE_STATUS, 0);
    rig.outb(Command, 0xff);
    assert!(rig.smi(), "outside the sequence FFh is a command as any other");
}

#[test]
fn ohci_leg_7_the_keyboard_controllers_own_interrupts_can_be_caught() {
    let mut rig = with_legacy_support();
    rig.m.controller.set_legacy_interrupts(KEYBOARD);
    assert_eq!((rig.irqs(), rig.smi()), (KEYBOARD, false), "passed on");
    rig.m.write32(HCE_CONTROL, EXTERNAL_IRQ_EN);
    assert!(rig.smi(), "its rise was noted, and needs no emulation");
    assert_eq!(rig.m.read32(HCE_CONTROL), EXTERNAL_IRQ_EN | IRQ1_ACTIVE | INTERRUPT);
    rig.m.write32(HCE_CONTROL, EXTERNAL_IRQ_EN | IRQ1_ACTIVE);
    assert!(!rig.smi());
    rig.m.controller.set_legacy_interrupts(KEYBOARD);
    assert!(!rig.smi(), "it is an edge");
    rig.m.write32(HCE_CONTROL, EXTERNAL_IRQ_EN | ENABLE);
    rig.m.controller.set_legacy_interrupts(MOUSE);
    assert_eq!((rig.irqs(), rig.smi()), (NEITHER, true), "emulation holds it back");
    assert_eq!(rig.m.read32(HCE_CONTROL) & (IRQ1_ACTIVE | IRQ12_ACTIVE), IRQ12_ACTIVE);
    rig.m.reset();
    assert_eq!((rig.irqs(), rig.smi()), (MOUSE, false));
}

#[test]
fn ohci_own_4_a_driver_asks_the_firmware_for_the_controller() {
    let mut rig = with_legacy_support();
    // The firmware owns it, and has its interrupts.
    rig.write_control(control::OPERATIONAL | control::IR);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH);
    assert!(!rig.smi());
    // The operating system's driver.
    rig.m.write32(reg::INTERRUPT_ENABLE, int::OC);
    rig.m.write32(reg::COMMAND_STATUS, command::OCR);
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS) & command::OCR, command::OCR);
    assert!(rig.smi());
    assert!(!rig.m.line);
    // The firmware's answer.
    assert_eq!(rig.status() & int::OC, int::OC);
    rig.m.write32(reg::INTERRUPT_STATUS, int::OC);
    assert!(!rig.smi());
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS) & command::OCR, command::OCR, "not yet");
    rig.write_control(control::OPERATIONAL);
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS) & command::OCR, 0);
    // And back, when the operating system leaves.
    rig.m.write32(reg::COMMAND_STATUS, command::OCR);
    assert!(rig.smi() && !rig.m.line, "never the host's, wherever the others go");
    rig.m.write32(reg::INTERRUPT_STATUS, int::OC);
    rig.write_control(control::OPERATIONAL | control::IR);
    assert_eq!(rig.m.read32(reg::COMMAND_STATUS) & command::OCR, 0);
}

#[test]
fn ohci_own_5_routing_sends_every_event_to_system_management() {
    let mut rig = with_legacy_support();
    rig.m.write32(reg::INTERRUPT_ENABLE, int::SF);
    rig.write_control(control::OPERATIONAL | control::IR);
    rig.frames(1);
    assert!(!rig.smi(), "not enabled as a whole");
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE);
    assert!(rig.smi() && !rig.m.line);
    rig.write_control(control::OPERATIONAL);
    assert!(!rig.smi() && rig.m.line);
    rig.write_control(control::OPERATIONAL | control::IR);
    rig.m.write32(reg::INTERRUPT_STATUS, int::SF);
    assert!(!rig.smi());
    rig.frames(1);
    assert!(rig.smi(), "frames are run for it as for the host");
}

#[test]
fn ohci_own_6_a_request_does_not_outlive_a_software_reset() {
    let mut rig = with_legacy_support();
    rig.write_control(control::OPERATIONAL | control::IR);
    rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::OC);
    rig.m.write32(reg::COMMAND_STATUS, command::OCR);
    rig.m.write32(reg::COMMAND_STATUS, command::HCR);
    assert_eq!((rig.m.read32(reg::COMMAND_STATUS), rig.smi()), (0, false));
    assert_eq!(rig.m.read32(reg::CONTROL), control::SUSPEND | control::IR, "nor does it decide");
}
