//! Legacy support (OHCI 1.0a, appendix B): a USB keyboard and mouse behind ports 60h and 64h, for
//! software that knows no USB, with the help of code in system management mode.

use serde::{Deserialize, Serialize};

use super::controller::Ohci;
use super::spec::register::{HCE_CONTROL, HCE_INPUT, HCE_OUTPUT, HCE_STATUS};
use super::spec::{HceControl, HceStatus};

/// The first byte of the sequence that switches gate A20: "write the output port".
const WRITE_OUTPUT_PORT: u8 = 0xd1;
/// The last one, which does nothing.
const NO_OPERATION: u8 = 0xff;
/// Gate A20 in the byte for the output port.
const GATE_A20: u8 = 0x02;

/// An I/O port of a keyboard controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyPort {
    /// Port 60h: bytes from and to keyboard and mouse.
    Data,
    /// Port 64h: status when read, commands to the keyboard controller when written.
    Command,
}

impl LegacyPort {
    /// The port at an I/O address; `None` if it is none of the two.
    pub const fn from_address(address: u16) -> Option<Self> {
        match address {
            0x60 => Some(Self::Data),
            0x64 => Some(Self::Command),
            _ => None,
        }
    }
}

/// The levels of a keyboard controller's two interrupt lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LegacyInterrupts {
    /// IRQ 1, the keyboard's.
    pub irq1: bool,
    /// IRQ 12, the mouse's.
    pub irq12: bool,
}

/// The registers, and the lines of the keyboard controller beside them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Legacy {
    control: HceControl,
    input: u8,
    output: u8,
    status: HceStatus,
    external: LegacyInterrupts,
}

impl Legacy {
    /// Hardware reset; lines from outside stay as they are.
    pub(super) fn after_reset(self) -> Self {
        Self { external: self.external, ..Self::default() }
    }

    /// A register, without side effect (B.3).
    pub(super) fn read(self, offset: u64) -> u32 {
        match offset {
            HCE_CONTROL => {
                self.control.with_emulation_interrupt(self.emulation_interrupt()).into_bits()
            }
            HCE_INPUT => self.input.into(),
            HCE_OUTPUT => self.output.into(),
            HCE_STATUS => self.status.into_bits().into(),
            _ => 0,
        }
    }

    /// A write to a register. Nothing but the register changes (B.3).
    pub(super) fn write(&mut self, offset: u64, value: u32) {
        let [byte, ..] = value.to_le_bytes();
        match offset {
            HCE_CONTROL => {
                let kept = self.control.into_bits() & HceControl::CLEARED & !value;
                self.control = HceControl::from_bits(kept | (value & HceControl::WRITABLE));
            }
            HCE_INPUT => self.input = byte,
            HCE_OUTPUT => self.output = byte,
            HCE_STATUS => self.status = HceStatus::from_bits(byte),
            _ => {}
        }
    }

    /// Whether something calls for the emulating code (B.2).
    fn emulation_interrupt(self) -> bool {
        let ports = self.status.input_full()
            || (self.control.character_pending() && !self.status.output_full());
        let external = self.control.irq1_active() || self.control.irq12_active();
        (self.control.emulation_enable() && ports) || (self.control.external_irq_en() && external)
    }

    /// A read of an I/O port (B.2, table of emulated registers).
    fn read_port(&mut self, port: LegacyPort) -> Option<u8> {
        self.control.emulation_enable().then(|| match port {
            LegacyPort::Data => {
                self.status.set_output_full(false);
                self.output
            }
            LegacyPort::Command => self.status.into_bits(),
        })
    }

    /// A write to an I/O port; `false` if it is not this controller's. Only what would move gate A20
    /// is worth an interrupt: programs write the same value to it over and over (B.2).
    fn write_port(&mut self, port: LegacyPort, byte: u8) -> bool {
        if !self.control.emulation_enable() {
            return false;
        }
        self.input = byte;
        let in_sequence = self.control.gate_a20_sequence();
        let noticed = match port {
            LegacyPort::Command => {
                self.control.set_gate_a20_sequence(byte == WRITE_OUTPUT_PORT);
                byte != WRITE_OUTPUT_PORT && !(in_sequence && byte == NO_OPERATION)
            }
            LegacyPort::Data => !in_sequence || (byte & GATE_A20 != 0) != self.control.a20_state(),
        };
        self.status.set_cmd_data(port == LegacyPort::Command);
        if noticed {
            self.status.set_input_full(true);
        }
        true
    }

    /// The keyboard controller's lines moved.
    fn set_external(&mut self, lines: LegacyInterrupts) {
        let rose = |now: bool, before: bool| now && !before;
        if rose(lines.irq1, self.external.irq1) {
            self.control.set_irq1_active(true);
        }
        if rose(lines.irq12, self.external.irq12) {
            self.control.set_irq12_active(true);
        }
        self.external = lines;
    }

    /// What the interrupt controller is to see.
    fn interrupts(self) -> LegacyInterrupts {
        if !self.control.emulation_enable() {
            return self.external;
        }
        let full = self.control.irq_en() && self.status.output_full();
        let mouse = self.status.aux_output_full();
        LegacyInterrupts { irq1: full && !mouse, irq12: full && mouse }
    }
}

/// Legacy support. Without [`with_legacy_support`](Self::with_legacy_support) the ports are nobody's,
/// and no interrupt is system management's.
impl Ohci {
    /// The same controller with the legacy keyboard registers and a pin for system management
    /// interrupts, for a VMM whose firmware runs code in system management mode.
    ///
    /// Besides the registers the VMM wires up: accesses to the I/O ports 60h and 64h
    /// ([`read_legacy_port`](Self::read_legacy_port), [`write_legacy_port`](Self::write_legacy_port)),
    /// the interrupt lines of its keyboard controller, which end here
    /// ([`set_legacy_interrupts`](Self::set_legacy_interrupts)) and go on to the interrupt controller
    /// from here ([`legacy_interrupts`](Self::legacy_interrupts)), and
    /// [`system_management_interrupt`](Self::system_management_interrupt), to be looked at after every
    /// access to registers or ports and after every run.
    #[must_use]
    pub fn with_legacy_support(mut self) -> Self {
        self.legacy = Some(Legacy::default());
        self
    }

    /// A read of a byte from port 60h or 64h. `None` while EmulationEnable is clear: then the access
    /// is the keyboard controller's.
    pub fn read_legacy_port(&mut self, port: LegacyPort) -> Option<u8> {
        self.legacy.as_mut()?.read_port(port)
    }

    /// A write of a byte to port 60h or 64h. `false` while EmulationEnable is clear: then the access
    /// is the keyboard controller's.
    pub fn write_legacy_port(&mut self, port: LegacyPort, byte: u8) -> bool {
        self.legacy.as_mut().is_some_and(|legacy| legacy.write_port(port, byte))
    }

    /// The levels that the VMM's own keyboard controller drives. A rise is what ExternalIRQEn looks
    /// for.
    pub fn set_legacy_interrupts(&mut self, lines: LegacyInterrupts) {
        if let Some(legacy) = &mut self.legacy {
            legacy.set_external(lines);
        }
    }

    /// The levels that the interrupt controller is to see: while EmulationEnable is set those of the
    /// emulated keyboard and mouse, else those of the VMM's keyboard controller. Low without legacy
    /// support.
    pub fn legacy_interrupts(&self) -> LegacyInterrupts {
        self.legacy.map_or(LegacyInterrupts::default(), Legacy::interrupts)
    }

    /// The level of the system management interrupt: the emulation's condition, OwnershipChange, and
    /// with InterruptRouting every enabled event (OHCI 1.0a, 7.1.2, 7.1.4 and appendix B.2).
    pub fn system_management_interrupt(&self) -> bool {
        self.legacy.is_some_and(Legacy::emulation_interrupt)
            || (self.legacy.is_some() && self.registers.interrupts_system_management())
    }
}
