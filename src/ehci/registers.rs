//! The register file (EHCI 2.2, 2.3).

use super::controller::{EECP, Ehci};
use super::ports::{PortRules, RootPort};
use super::spec::{
    CAPLENGTH, HCIVERSION, HCIVERSION_ADDENDUM, HccParams, HcsParams, UsbCmd, debug, offset, usbsts,
};
use crate::time::Time;

/// FRINDEX 13:0.
const FRINDEX: u64 = 0x3fff;

/// HCCPARAMS, Isochronous Scheduling Threshold: what a driver adds must lie so many microframes ahead.
/// Nothing is held back here, but a guest needs time from reading FRINDEX to linking its first iTD, and
/// with a threshold of 0 Linux leaves itself as little as 250 us.
const ISOCHRONOUS_THRESHOLD: u8 = 7;

impl Ehci {
    /// A guest read. Accesses of 1, 2, 4 and 8 bytes at their own alignment work (8 at that of 4);
    /// others read as zero.
    pub(super) fn read_registers(&self, at: u64, data: &mut [u8], now: Time) {
        data.fill(0);
        if !is_aligned(at, data.len()) {
            return;
        }
        let first = at % 4;
        let mut dword = at & !3;
        for chunk in data.chunks_mut(4) {
            let bytes = self.register(dword, now).to_le_bytes();
            let lanes = bytes.iter().skip(first as usize);
            chunk.iter_mut().zip(lanes).for_each(|(into, from)| *into = *from);
            dword = dword.wrapping_add(4);
        }
    }

    /// A guest write: only the bytes written count, as with byte enables on the bus.
    pub(super) fn write_registers(&mut self, at: u64, data: &[u8], now: Time) {
        if !is_aligned(at, data.len()) {
            return;
        }
        let first = at % 4;
        let mut dword = at & !3;
        for chunk in data.chunks(4) {
            let (mut value, mut mask) = ([0; 4], [0; 4]);
            let lanes = value.iter_mut().zip(&mut mask).skip(first as usize);
            for ((value, mask), byte) in lanes.zip(chunk) {
                (*value, *mask) = (*byte, 0xff);
            }
            self.set_register(dword, u32::from_le_bytes(value), u32::from_le_bytes(mask), now);
            dword = dword.wrapping_add(4);
        }
    }

    fn register(&self, at: u64, now: Time) -> u32 {
        match at {
            offset::CAPLENGTH_HCIVERSION => {
                let version = if self.addendum { HCIVERSION_ADDENDUM } else { HCIVERSION };
                u32::from(version) << 16 | CAPLENGTH as u32
            }
            offset::HCSPARAMS => self.hcsparams().into(),
            offset::HCCPARAMS => self.hccparams().into(),
            offset::USBCMD => self.usbcmd.with_doorbell(self.doorbell).into(),
            offset::USBSTS => self.usbsts(),
            offset::USBINTR => self.interrupts.enable(),
            offset::FRINDEX => (self.clock.microframe(now) & FRINDEX) as u32,
            offset::CTRLDSSEGMENT => self.segment,
            offset::PERIODICLISTBASE => self.periodic.base,
            offset::ASYNCLISTADDR => self.asynchronous.address,
            offset::CONFIGFLAG => self.configured.into(),
            _ => match (debug_offset(at), &self.debug, self.ports.first()) {
                (Some(at), Some(debug), Some(port)) => debug.read(at, port),
                _ => self.port_at(at).and_then(|n| self.ports.get(n)).map_or(0, RootPort::read),
            },
        }
    }

    fn hcsparams(&self) -> HcsParams {
        let ports = u8::try_from(self.ports.len()).unwrap_or(15);
        HcsParams::new()
            .with_n_ports(ports)
            .with_port_power_control(true)
            .with_companions(self.companion.into())
            .with_ports_per_companion(if self.companion { ports } else { 0 })
            .with_debug_port(self.debug.is_some().into())
    }

    fn hccparams(&self) -> HccParams {
        HccParams::new()
            .with_addressing_64bit(self.wide)
            .with_programmable_frame_list(true)
            .with_asynchronous_park(true)
            .with_isochronous_scheduling_threshold(ISOCHRONOUS_THRESHOLD)
            .with_eecp(EECP)
            .with_hardware_prefetch(self.addendum)
            .with_link_power_management(self.addendum)
            .with_per_port_change(self.addendum)
            .with_short_frame_list(self.addendum)
    }

    fn usbsts(&self) -> u32 {
        let mut value = self.interrupts.status();
        for (on, bit) in [
            (self.halted, usbsts::HC_HALTED),
            (self.asynchronous.reclamation, usbsts::RECLAMATION),
            (self.periodic.active, usbsts::PERIODIC_STATUS),
            (self.asynchronous_runs(), usbsts::ASYNCHRONOUS_STATUS),
        ] {
            if on {
                value |= bit;
            }
        }
        value
    }

    /// Index of the port whose PORTSC is at this offset.
    fn port_at(&self, at: u64) -> Option<usize> {
        let index = at.checked_sub(offset::PORTSC)? / 4;
        usize::try_from(index).ok().filter(|n| *n < self.ports.len())
    }

    /// The bits of `mask` in a register become those of `value`.
    fn set_register(&mut self, at: u64, value: u32, mask: u32, now: Time) {
        let merge = |old: u32| (old & !mask) | (value & mask);
        match at {
            offset::USBCMD => self.write_usbcmd(value, mask, now),
            offset::USBSTS => self.interrupts.acknowledge(value & mask),
            offset::USBINTR => self.interrupts.set_enable(merge(self.interrupts.enable())),
            offset::FRINDEX => {
                // Ignored while running (EHCI 2.3.4).
                let old = (self.clock.microframe(now) & FRINDEX) as u32;
                self.clock.set(merge(old));
            }
            offset::CTRLDSSEGMENT if self.wide => self.segment = merge(self.segment),
            offset::PERIODICLISTBASE => {
                self.periodic.base = merge(self.periodic.base) & !0xfff;
            }
            // Software may write it only while the schedule is off (EHCI 2.3.7).
            offset::ASYNCLISTADDR if !self.asynchronous_runs() => {
                self.asynchronous.address = merge(self.asynchronous.address) & !0x1f;
            }
            offset::CONFIGFLAG => self.write_configflag(merge(self.configured.into()) & 1 != 0),
            _ => {
                if let (Some(at), Some(debug), Some(port)) =
                    (debug_offset(at), &mut self.debug, self.ports.first_mut())
                {
                    let events = debug.write(at, (value, mask), now, port);
                    self.port_event(0, events);
                    return;
                }
                let rules = self.port_rules(now);
                if let Some(n) = self.port_at(at)
                    && let Some(port) = self.ports.get_mut(n)
                {
                    let events = port.write(value, mask, &rules);
                    self.port_event(n, events);
                }
            }
        }
    }

    fn write_usbcmd(&mut self, value: u32, mask: u32, now: Time) {
        let old = self.usbcmd;
        let merged = (u32::from(old) & !mask) | (value & mask);
        let writable = if self.addendum { UsbCmd::WRITABLE_ADDENDUM } else { UsbCmd::WRITABLE };
        let new = UsbCmd::from(merged & writable);
        if UsbCmd::from(value & mask).host_controller_reset() {
            self.reset_registers();
            return;
        }
        self.usbcmd = new;
        // A ring stays until it is answered: writing 0 takes nothing back (EHCI 2.3.1).
        self.doorbell |= UsbCmd::from(value & mask).doorbell();
        match (old.run(), new.run()) {
            (false, true) => self.start(now),
            (true, false) => self.halt(now),
            _ => {}
        }
        if old.asynchronous_enable() && !new.asynchronous_enable() {
            self.stop_asynchronous();
        }
    }

    fn port_rules(&self, now: Time) -> PortRules {
        let lpm = self.addendum.then(|| self.usbcmd.resume_duration());
        PortRules { configured: self.configured, lpm, now }
    }

    fn write_configflag(&mut self, configured: bool) {
        if configured == self.configured {
            return;
        }
        self.configured = configured;
        for n in 0..self.ports.len() {
            if let Some(events) = self.ports.get_mut(n).map(|port| port.route(configured)) {
                self.port_event(n, events);
            }
        }
    }
}

/// Offset among the debug port's registers.
fn debug_offset(at: u64) -> Option<u64> {
    at.checked_sub(offset::DEBUG).filter(|at| *at < debug::SIZE)
}

fn is_aligned(at: u64, len: usize) -> bool {
    match len {
        1 => true,
        2 => at.is_multiple_of(2),
        4 | 8 => at.is_multiple_of(4),
        _ => false,
    }
}
