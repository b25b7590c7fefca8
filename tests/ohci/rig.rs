//! A running controller with one configured device, and descriptors made by hand.

use vm_usb::ohci::{Ohci, Pacing};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{
    Endpoint, EndpointAddress, Outcome, Pid, Speed, Speeds, Toggle, Transfer, TransferType,
};

use crate::driver::machine::Machine;
pub use crate::driver::ohci::{command, control, ed, hcca, int, port, reg, td};
use crate::driver::scripted::{Answer, Controls, Scripted, Seen};

/// Address of the device behind port 1.
pub const ADDRESS: u8 = 5;

pub const BULK_OUT: EndpointAddress = EndpointAddress::out(1);
pub const BULK_IN: EndpointAddress = EndpointAddress::r#in(1);
pub const SECOND_OUT: EndpointAddress = EndpointAddress::out(2);
pub const SECOND_IN: EndpointAddress = EndpointAddress::r#in(2);
pub const INTERRUPT_IN: EndpointAddress = EndpointAddress::r#in(3);
pub const ISO_OUT: EndpointAddress = EndpointAddress::out(4);
pub const ISO_IN: EndpointAddress = EndpointAddress::r#in(4);

/// Port 1's status register.
pub const PORT: u64 = reg::RH_PORT_STATUS;

pub struct Rig {
    pub m: Machine<Ohci>,
    pub ports: Vec<Port>,
    pub device: Controls,
    pub hcca: u32,
    /// What HcControl was last written.
    pub control: u32,
}

/// A scripted device with isochronous endpoints besides its others, unless it is a low-speed one.
pub fn device(speed: Speed) -> (Box<Scripted>, Controls) {
    let (mut device, controls) = Scripted::new(speed);
    if let Speeds::Full(configurations) = &mut device.description_mut().speeds {
        for address in [ISO_OUT, ISO_IN] {
            configurations[0].interfaces[0].endpoints.push(Endpoint::new(
                address,
                TransferType::Isochronous,
                1023,
                1,
            ));
        }
    }
    (Box::new(device), controls)
}

/// Sets the address and the configuration of the device in `port`, behind the controller's back.
pub fn configure(port: &Port, address: u8) {
    request(port, [0, 5, address, 0, 0, 0, 0, 0]);
    request(port, [0, 9, 1, 0, 0, 0, 0, 0]);
}

/// Ends the halt of an endpoint, behind the controller's back.
pub fn clear_halt(port: &Port, endpoint: EndpointAddress) {
    request(port, [2, 1, 0, 0, endpoint.byte(), 0, 0, 0]);
}

/// SET_FEATURE of the device, behind the controller's back.
pub fn set_feature(port: &Port, feature: u8) {
    request(port, [0, 3, feature, 0, 0, 0, 0, 0]);
}

/// A control transfer without data.
pub fn request(port: &Port, setup: [u8; 8]) {
    let link = port.link(Host::Classic);
    let stage = |pid, mut bytes: Vec<u8>| {
        let transfer = Transfer {
            pid,
            endpoint: 0,
            max_packet: 8,
            toggle: Toggle::Data1,
            buffer: &mut bytes,
            now: Time::ZERO,
        };
        let outcome = link.with(|function| function.transact(transfer)).unwrap();
        assert_eq!(outcome.status, Outcome::complete(0).status);
    };
    stage(Pid::Setup, setup.to_vec());
    stage(Pid::In, Vec::new());
}

/// A controller with two ports as it comes out of reset; a device of this speed in port 1.
pub fn cold(speed: Speed) -> Rig {
    let ports = vec![Port::classic(), Port::classic()];
    let (device, controls) = device(speed);
    ports[0].attach(device).map_err(|refused| refused.reason).unwrap();
    let links = ports.iter().map(|port| port.link(Host::Classic)).collect();
    let mut m = Machine::new(Ohci::new(links));
    let hcca = m.alloc(256, 256);
    Rig { m, ports, device: controls, hcca, control: 0 }
}

/// A controller in the middle of a frame, no list enabled, a full-speed device enabled and
/// configured at [`ADDRESS`].
pub fn running() -> Rig {
    running_at(Speed::Full)
}

pub fn running_at(speed: Speed) -> Rig {
    let mut rig = cold(speed);
    rig.start();
    rig
}

pub fn running_with(pacing: Pacing) -> Rig {
    let mut rig = cold(Speed::Full);
    rig.m.controller = {
        let links = rig.ports.iter().map(|port| port.link(Host::Classic)).collect();
        Ohci::new(links).with_pacing(pacing)
    };
    rig.start();
    rig
}

impl Rig {
    pub fn start(&mut self) {
        self.m.write32(reg::HCCA, self.hcca);
        self.write_control(control::OPERATIONAL);
        self.enable_port();
        configure(&self.ports[0], ADDRESS);
        self.m.advance_nanos(500_000);
        self.clear_status();
        self.device.take_seen();
    }

    /// Resets port 1, which enables it.
    pub fn enable_port(&mut self) {
        self.m.write32(PORT, port::PRS);
        self.m.advance_millis(10);
        assert_ne!(self.port() & port::PES, 0);
        self.m.write32(PORT, port::CSC | port::PRSC);
    }

    pub fn write_control(&mut self, value: u32) {
        self.control = value;
        self.m.write32(reg::CONTROL, value);
    }

    pub fn enable(&mut self, lists: u32) {
        self.write_control(self.control | lists);
    }

    pub fn disable(&mut self, lists: u32) {
        self.write_control(self.control & !lists);
    }

    pub fn port(&mut self) -> u32 {
        self.m.read32(PORT)
    }

    pub fn status(&mut self) -> u32 {
        self.m.read32(reg::INTERRUPT_STATUS)
    }

    pub fn clear_status(&mut self) {
        self.m.write32(reg::INTERRUPT_STATUS, !0);
    }

    pub fn frame_number(&mut self) -> u16 {
        self.m.read32(reg::FM_NUMBER) as u16
    }

    /// Goes on by `count` frames, from the middle of one to the middle of another.
    pub fn frames(&mut self, count: u64) {
        self.m.advance_millis(count);
    }

    /// A general TD; `control` without condition code.
    pub fn td(&mut self, control: u32, cbp: u32, be: u32) -> u32 {
        let address = self.m.alloc(16, 16);
        self.m.store_all(address, &[control | td::NOT_ACCESSED, cbp, 0, be]);
        address
    }

    /// A general TD for a buffer of `len` bytes of its own, on one page if it fits; returns both.
    pub fn buffered(&mut self, control: u32, len: u32) -> (u32, u32) {
        let buffer = self.m.alloc(len.max(16), len.clamp(16, 4096).next_power_of_two());
        let td = self.td(control, buffer, buffer + len - 1);
        (td, buffer)
    }

    /// An OUT TD that sends `bytes`.
    pub fn out(&mut self, bytes: &[u8]) -> u32 {
        let (td, buffer) = self.buffered(td::OUT, bytes.len() as u32);
        self.m.fill(buffer, bytes);
        td
    }

    /// An ED with `tds` in its queue, which ends in a dummy.
    pub fn ed(&mut self, control: u32, tds: &[u32]) -> u32 {
        let dummy = self.m.alloc(16, 16);
        let mut next = dummy;
        for td in tds.iter().rev() {
            self.m.store(*td + 8, next);
            next = *td;
        }
        let ed = self.m.alloc(16, 16);
        self.m.store_all(ed, &[control, dummy, next, 0]);
        ed
    }

    /// An ED of the device's bulk endpoint 1 or 2 or interrupt endpoint 3, OUT if there is any TD
    /// with that direction in `control`, else IN.
    pub fn endpoint_ed(&mut self, endpoint: EndpointAddress, tds: &[u32]) -> u32 {
        let direction = if endpoint.is_in() { ed::IN } else { ed::OUT };
        self.ed(ed::control(ADDRESS, endpoint.number(), 64) | direction, tds)
    }

    /// Appends a TD to an ED's queue the way drivers do: the dummy becomes the TD.
    pub fn append(&mut self, ed: u32, words: [u32; 2], be: u32) -> u32 {
        let dummy = self.m.load(ed + 4) & !0xf;
        let next = self.m.alloc(16, 16);
        self.m.store_all(dummy, &[words[0] | td::NOT_ACCESSED, words[1], next, be]);
        self.m.store(ed + 4, next);
        dummy
    }

    /// Appends an IN TD of `len` bytes; returns it and its buffer.
    pub fn append_in(&mut self, ed: u32, len: u32) -> (u32, u32) {
        let buffer = self.m.alloc(len, 64);
        let td = self.append(ed, [td::IN | td::ROUNDING, buffer], buffer + len - 1);
        (td, buffer)
    }

    /// Chains EDs; returns the first.
    pub fn link(&mut self, eds: &[u32]) -> u32 {
        for (n, ed) in eds.iter().enumerate() {
            self.m.store(*ed + 12, eds.get(n + 1).copied().unwrap_or(0));
        }
        eds.first().copied().unwrap_or(0)
    }

    /// Makes `eds` the bulk list, enables it and rings the doorbell.
    pub fn run_bulk(&mut self, eds: &[u32]) {
        let head = self.link(eds);
        self.m.write32(reg::BULK_HEAD_ED, head);
        self.m.write32(reg::BULK_CURRENT_ED, 0);
        self.enable(control::BLE);
        self.ring_bulk();
    }

    pub fn ring_bulk(&mut self) {
        self.m.write32(reg::COMMAND_STATUS, command::BLF);
    }

    /// Makes `eds` the control list, enables it and rings the doorbell.
    pub fn run_control(&mut self, eds: &[u32]) {
        let head = self.link(eds);
        self.m.write32(reg::CONTROL_HEAD_ED, head);
        self.m.write32(reg::CONTROL_CURRENT_ED, 0);
        self.enable(control::CLE);
        self.ring_control();
    }

    pub fn ring_control(&mut self) {
        self.m.write32(reg::COMMAND_STATUS, command::CLF);
    }

    /// Makes `eds` the periodic list of every frame and enables it.
    pub fn run_periodic(&mut self, eds: &[u32]) {
        let head = self.link(eds);
        for slot in 0..32 {
            self.m.store(self.hcca + 4 * slot, head);
        }
        self.enable(control::PLE | control::IE);
    }

    pub fn cc(&self, td: u32) -> u32 {
        self.m.load(td) >> 28
    }

    pub fn ec(&self, td: u32) -> u32 {
        self.m.load(td) >> 26 & 3
    }

    pub fn cbp(&self, td: u32) -> u32 {
        self.m.load(td + 4)
    }

    pub fn next_td(&self, td: u32) -> u32 {
        self.m.load(td + 8)
    }

    /// HeadP, without its low bits.
    pub fn head_p(&self, ed: u32) -> u32 {
        self.m.load(ed + 8) & !0xf
    }

    pub fn carry(&self, ed: u32) -> bool {
        self.m.load(ed + 8) & ed::CARRY != 0
    }

    pub fn halted(&self, ed: u32) -> bool {
        self.m.load(ed + 8) & ed::HALTED != 0
    }

    /// HccaDoneHead.
    pub fn done_head(&self) -> u32 {
        self.m.load(self.hcca + hcca::DONE_HEAD)
    }

    pub fn hcca_frame(&self) -> u32 {
        self.m.load(self.hcca + hcca::FRAME_NUMBER)
    }

    /// How many transfers the device saw since the last look.
    pub fn transfers(&self) -> usize {
        self.device.take_transfers().len()
    }

    /// Toggle and length of each transfer the device saw since the last look.
    pub fn offers(&self) -> Vec<(Toggle, usize)> {
        let seen = self.device.take_seen().into_iter();
        seen.filter_map(|seen| match seen {
            Seen::Transfer { toggle, len, .. } => Some((toggle, len)),
            _ => None,
        })
        .collect()
    }

    /// Endpoint numbers of the transfers the device saw since the last look.
    pub fn endpoints_seen(&self) -> Vec<u8> {
        self.device.take_transfers().into_iter().map(|(_, endpoint, ..)| endpoint).collect()
    }
    /// A bulk endpoint, not linked yet, whose TD follows itself.
    pub fn td_in_a_circle(&mut self) -> u32 {
        let td = self.td(td::OUT, 0, 0);
        let ed = self.endpoint_ed(BULK_OUT, &[]);
        self.m.store(td + 8, td);
        self.m.store(ed + 8, td);
        ed
    }

    /// A TD, at a bulk endpoint that is not linked yet, whose data lands on the TD itself, on its ED or
    /// on the HCCA; returns both and the dummy behind the TD. All bits of the data are set.
    pub fn td_onto_descriptors(&mut self, target: usize) -> (u32, u32, u32) {
        let td = self.m.alloc(16, 16);
        let ed = self.endpoint_ed(BULK_IN, &[]);
        let at = [td, ed, self.hcca + 0x40][target];
        self.m.store_all(td, &[td::IN | td::NOT_ACCESSED, at, 0, at + 63]);
        let dummy = self.m.load(ed + 4);
        self.m.store(td + 8, dummy);
        self.m.store(ed + 8, td);
        self.device.answer(BULK_IN, [Answer::Data(vec![0xff; 64])]);
        (td, ed, dummy)
    }
}

/// Controllers that were just led to `nowhere`: by HcHCCA, by a head pointer, by NextED and by HeadP.
pub fn led_to(nowhere: u32) -> [Rig; 4] {
    let mut by_hcca = running();
    by_hcca.m.write32(reg::HCCA, nowhere & !0xff);
    by_hcca.frames(1);

    let mut by_head = running();
    by_head.m.write32(reg::BULK_HEAD_ED, nowhere);
    by_head.enable(control::BLE);
    by_head.ring_bulk();

    let mut by_next_ed = running();
    let ed = by_next_ed.endpoint_ed(BULK_OUT, &[]);
    by_next_ed.m.store(ed + 12, nowhere);
    by_next_ed.m.write32(reg::CONTROL_HEAD_ED, ed);
    by_next_ed.enable(control::CLE);
    by_next_ed.ring_control();

    let mut by_head_p = running();
    let ed = by_head_p.endpoint_ed(BULK_OUT, &[]);
    by_head_p.m.store(ed + 8, nowhere);
    by_head_p.run_periodic(&[ed]);
    by_head_p.frames(1);

    [by_hcca, by_head, by_next_ed, by_head_p]
}
