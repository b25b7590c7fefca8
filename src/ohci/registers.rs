//! The operational registers (OHCI 1.0a, 7): values, masks and what accesses do.

use serde::{Deserialize, Serialize};

use super::controller::Ohci;
use super::spec::register::*;
use super::spec::{
    FM_INTERVAL_RESET, HcCommandStatus, HcControl, HcFmInterval, Interrupts, LS_THRESHOLD_RESET,
    POINTER,
};
use crate::time::Time;

/// HcRevision: OHCI 1.0a.
const REVISION: u32 = 0x10;
/// HcRevision, L: there are legacy keyboard registers.
const LEGACY: u32 = 0x100;
/// HcHCCA: 256-byte alignment, which drivers find out by writing ones.
const HCCA_ALIGNMENT: u32 = 0xffff_ff00;
/// HcPeriodicStart, bits that exist.
const PERIODIC_START: u32 = 0x3fff;
/// HcLSThreshold, bits that exist.
const LS_THRESHOLD: u32 = 0xfff;

/// Registers that hold what was written to them, and the interrupt registers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Registers {
    pub(super) control: HcControl,
    pub(super) status: Interrupts,
    pub(super) mask: Interrupts,
    pub(super) hcca: u32,
    pub(super) fm_interval: HcFmInterval,
    /// SchedulingOverrunCount.
    pub(super) soc: u8,
    /// OwnershipChangeRequest.
    pub(super) ocr: bool,
    periodic_start: u32,
    ls_threshold: u32,
}

impl Default for Registers {
    fn default() -> Self {
        Self {
            control: HcControl::new(),
            status: Interrupts::new(),
            mask: Interrupts::new(),
            hcca: 0,
            fm_interval: HcFmInterval::from_bits(FM_INTERVAL_RESET),
            soc: 0,
            ocr: false,
            periodic_start: 0,
            ls_threshold: LS_THRESHOLD_RESET.into(),
        }
    }
}

impl Registers {
    /// The registers as they were saved. SchedulingOverrunCount has two bits.
    pub(super) fn restored(self) -> Self {
        Self { soc: self.soc & 3, ..self }
    }

    /// Events happened; they are latched whether enabled or not.
    pub(super) fn raise(&mut self, events: Interrupts) {
        self.status = Interrupts::from_bits(self.status.into_bits() | events.into_bits());
    }

    /// Whether one of `events` has happened and is enabled.
    fn is_pending(&self, events: u32) -> bool {
        self.mask.mie() && self.status.into_bits() & self.mask.into_bits() & events != 0
    }

    /// The host interrupt's condition (7.1.4). With InterruptRouting set it is system management's.
    pub(super) fn interrupts(&self) -> bool {
        self.is_pending(Interrupts::HOST) && !self.control.ir()
    }

    /// The same for system management, whose OwnershipChange always is (7.1.4).
    pub(super) fn interrupts_system_management(&self) -> bool {
        self.is_pending(Interrupts::new().with_oc(true).into_bits())
            || (self.is_pending(Interrupts::HOST) && self.control.ir())
    }

    /// Whether `events` would interrupt the host and have not happened yet.
    pub(super) fn waits_for(&self, events: Interrupts) -> bool {
        let awaited = self.mask.into_bits() & !self.status.into_bits() & events.into_bits();
        awaited != 0 && self.mask.mie() && !self.control.ir()
    }
}

/// Number of the port, from 0, whose status register is at `offset`.
fn port_at(offset: u64) -> Option<usize> {
    let port = offset.checked_sub(HC_RH_PORT_STATUS)? / 4;
    usize::try_from(port).ok()
}

impl Ohci {
    /// A read of any size. Whole dwords are what the specification defines; parts of one read as its
    /// bytes, two of them as two, and anything else as zero.
    pub(super) fn read_window(&mut self, now: Time, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let dword = offset & !3;
        let first = self.read_register(now, dword).to_le_bytes();
        let within = usize::try_from(offset & 3).unwrap_or(0);
        match data.len() {
            1..=4 => {
                if let Some(bytes) = first.get(within..within.saturating_add(data.len())) {
                    data.copy_from_slice(bytes);
                }
            }
            8 if within == 0 => {
                let second = self.read_register(now, dword.wrapping_add(4)).to_le_bytes();
                data.iter_mut()
                    .zip(first.into_iter().chain(second))
                    .for_each(|(to, from)| *to = from);
            }
            _ => {}
        }
    }

    /// A write of any size. Only whole aligned dwords have an effect: no command is carried out from
    /// bytes that were not written.
    pub(super) fn write_window(&mut self, now: Time, offset: u64, data: &[u8]) {
        if offset & 3 != 0 || !matches!(data.len(), 4 | 8) {
            return;
        }
        let (dwords, _) = data.as_chunks::<4>();
        let offsets = (offset..).step_by(4);
        for (offset, bytes) in offsets.zip(dwords) {
            self.write_register(now, offset, u32::from_le_bytes(*bytes));
        }
    }

    fn read_register(&self, now: Time, offset: u64) -> u32 {
        let registers = &self.registers;
        match offset {
            HC_REVISION if self.legacy.is_some() => REVISION | LEGACY,
            HC_REVISION => REVISION,
            HC_CONTROL => registers.control.into_bits(),
            HC_COMMAND_STATUS => HcCommandStatus::new()
                .with_clf(self.control.filled)
                .with_blf(self.bulk.filled)
                .with_ocr(registers.ocr)
                .with_soc(registers.soc)
                .into_bits(),
            HC_INTERRUPT_STATUS => registers.status.into_bits(),
            HC_INTERRUPT_ENABLE | HC_INTERRUPT_DISABLE => registers.mask.into_bits(),
            HC_HCCA => registers.hcca,
            // A periodic list is served in one go: between accesses none is in service.
            HC_PERIOD_CURRENT_ED => 0,
            HC_CONTROL_HEAD_ED => self.control.head,
            HC_CONTROL_CURRENT_ED => self.control.current,
            HC_BULK_HEAD_ED => self.bulk.head,
            HC_BULK_CURRENT_ED => self.bulk.current,
            HC_DONE_HEAD => self.done.head(),
            HC_FM_INTERVAL => registers.fm_interval.into_bits(),
            HC_FM_REMAINING => self.clock.remaining(now, registers.fm_interval).into_bits(),
            HC_FM_NUMBER => self.clock.number().into(),
            HC_PERIODIC_START => registers.periodic_start,
            HC_LS_THRESHOLD => registers.ls_threshold,
            HC_RH_DESCRIPTOR_A => self.hub.descriptor_a().into_bits(),
            HC_RH_DESCRIPTOR_B => self.hub.descriptor_b().into_bits(),
            HC_RH_STATUS => self.hub.status().into_bits(),
            HCE_CONTROL.. => self.legacy.map_or(0, |legacy| legacy.read(offset)),
            _ => port_at(offset)
                .and_then(|port| self.hub.port_status(port))
                .map_or(0, |status| status.into_bits()),
        }
    }

    fn write_register(&mut self, now: Time, offset: u64, value: u32) {
        match offset {
            HC_CONTROL => self.write_control(now, value),
            HC_COMMAND_STATUS => self.write_command(now, HcCommandStatus::from_bits(value)),
            HC_INTERRUPT_STATUS => {
                let status = self.registers.status.into_bits() & !value;
                self.registers.status = Interrupts::from_bits(status);
            }
            HC_INTERRUPT_ENABLE => {
                let before = self.registers.mask;
                let mask = before.into_bits() | (value & Interrupts::MASK);
                self.registers.mask = Interrupts::from_bits(mask);
                if self.registers.mask.sf() && !before.sf() {
                    self.clock.may_wait(now, true);
                }
            }
            HC_INTERRUPT_DISABLE => {
                let mask = self.registers.mask.into_bits() & !value;
                self.registers.mask = Interrupts::from_bits(mask);
            }
            HC_HCCA => self.registers.hcca = value & HCCA_ALIGNMENT,
            HC_CONTROL_HEAD_ED => self.control.head = value & POINTER,
            HC_CONTROL_CURRENT_ED => self.control.write_current(value & POINTER),
            HC_BULK_HEAD_ED => self.bulk.head = value & POINTER,
            HC_BULK_CURRENT_ED => self.bulk.write_current(value & POINTER),
            HC_FM_INTERVAL => {
                self.registers.fm_interval =
                    HcFmInterval::from_bits(value & HcFmInterval::WRITABLE);
            }
            HC_PERIODIC_START => self.registers.periodic_start = value & PERIODIC_START,
            HC_LS_THRESHOLD => self.registers.ls_threshold = value & LS_THRESHOLD,
            HC_RH_DESCRIPTOR_A => {
                let rhsc = self.hub.write_descriptor_a(value);
                self.registers.raise(Interrupts::new().with_rhsc(rhsc));
            }
            HC_RH_DESCRIPTOR_B => self.hub.write_descriptor_b(value),
            HC_RH_STATUS => {
                let rhsc = self.hub.write_status(value);
                self.registers.raise(Interrupts::new().with_rhsc(rhsc));
            }
            HCE_CONTROL.. => {
                if let Some(legacy) = &mut self.legacy {
                    legacy.write(offset, value);
                }
            }
            // Read only: HcRevision, the periodic pointer, the done head, the frame counters. Drivers
            // write zero to some of them.
            _ => {
                if let Some(port) = port_at(offset) {
                    let rhsc = self.hub.write_port(port, value, now);
                    self.registers.raise(Interrupts::new().with_rhsc(rhsc));
                    self.rung = true;
                }
            }
        }
        self.pay_attention();
    }

    fn write_control(&mut self, now: Time, value: u32) {
        let before = self.registers.control;
        let after = HcControl::from_bits(value & HcControl::WRITABLE);
        self.registers.control = after.with_hcfs(before.hcfs());
        if after.ir() != before.ir() {
            // The controller has changed hands (7.1.3, OCR).
            self.registers.ocr = false;
        }
        self.set_state(after.hcfs(), now);
        self.rung |= (after.cle() && !before.cle()) || (after.ble() && !before.ble());
    }

    fn write_command(&mut self, now: Time, command: HcCommandStatus) {
        if command.hcr() {
            // Done within the write: the next read shows zero in all bits, as SeaBIOS expects.
            self.software_reset(now);
            return;
        }
        self.control.filled |= command.clf();
        self.bulk.filled |= command.blf();
        self.rung |= command.clf() || command.blf();
        match command.ocr() {
            true if self.legacy.is_some() => {
                self.registers.ocr = true;
                self.registers.raise(Interrupts::new().with_oc(true));
            }
            // There is no system management to ask: the controller changes hands at once.
            true => self.registers.control.set_ir(false),
            false => {}
        }
    }
}
