//! An OHCI driver in the manner of the ones that guests run: endpoint queues that end in a dummy TD,
//! a done queue that is reversed, and both ways of unlinking an idle endpoint.

mod host;
mod spec;

use std::collections::{BTreeMap, HashMap};

use vm_memory::GuestMemoryMmap;
use vm_usb::controller::HostController;
use vm_usb::ohci::Ohci;
use vm_usb::time::Time;
use vm_usb::usb::{SetupPacket, Speed};

use super::host::{Background, Device, HostDriver, Pipe, TransferError, setup_bytes};
use super::machine::Machine;

pub use self::spec::*;

/// What a driver does with an endpoint whose queue ran empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Unlinks it at once, as Linux does.
    Unlink,
    /// Leaves it linked.
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListKind {
    Control,
    Bulk,
    Periodic { interval: u32 },
}

/// An endpoint's queue.
#[derive(Clone, Copy, Debug)]
struct Endpoint {
    ed: u32,
    dummy: u32,
    list: ListKind,
    linked: bool,
}

/// A TD to queue: dword 0 without condition code and delay, and its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub control: u32,
    pub buffer: u32,
    pub len: u32,
}

/// A transfer that is under way.
#[derive(Clone, Debug)]
pub struct Flight {
    key: (u8, u8),
    tds: Vec<u32>,
}

/// What a retired TD said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Retired {
    cc: u32,
    moved: u32,
}

/// Most accesses to guest memory in one call of a controller: the frames that one call catches up with,
/// and the one under way; in each 4096 EDs of two lists, as many looked through to find the current one,
/// 1024 periodic EDs, 1024 transactions and 256 late TDs, with the accesses that each takes at most.
pub const MOST_ACCESSES: u64 = (32 + 1) * (4 * 4096 * 4 + 1024 * 4 + (1024 + 256) * 24 + 64);

/// Size of the driver's buffer: the most that it moves in one go.
const BUFFER: u32 = 64 << 10;
/// Most bytes in a TD.
const TD_BYTES: u32 = 4096;
/// How long control and bulk transfers are waited for.
const PATIENCE_MILLIS: u64 = 5_000;

/// The driver.
pub struct OhciDriver<C = Ohci> {
    pub machine: Machine<C>,
    pub idle: Idle,
    pub hcca: u32,
    pub died: bool,
    /// Times the interrupt handler ran.
    pub interrupts: u64,
    hc_control: u32,
    endpoints: BTreeMap<(u8, u8), Endpoint>,
    /// Linked EDs of the control and of the bulk list, in order.
    control_list: Vec<u32>,
    bulk_list: Vec<u32>,
    /// Linked periodic EDs with their interval in frames.
    periodic: Vec<(u32, u32)>,
    free_tds: Vec<u32>,
    /// Buffer start and length of each TD that is queued.
    queued: HashMap<u32, (u32, u32)>,
    retired: HashMap<u32, Retired>,
    buffer: u32,
}

impl<C: HostController<GuestMemoryMmap>> OhciDriver<C> {
    /// Takes a controller over and starts it.
    pub fn new(controller: C) -> Self {
        Self::start(Machine::new(controller))
    }

    /// Starts the controller of `machine`, as Linux does.
    pub fn start(mut machine: Machine<C>) -> Self {
        let hcca = machine.alloc(256, 256);
        let buffer = machine.alloc(BUFFER, 4096);
        let m = &mut machine;
        m.write32(reg::INTERRUPT_DISABLE, int::MIE);
        m.write32(reg::CONTROL, control::RESET);
        m.advance_millis(50);
        let fm_interval = m.read32(reg::FM_INTERVAL);
        m.write32(reg::COMMAND_STATUS, command::HCR);
        assert_eq!(m.read32(reg::COMMAND_STATUS), 0, "reset ends within the write");
        m.write32(reg::CONTROL_HEAD_ED, 0);
        m.write32(reg::BULK_HEAD_ED, 0);
        m.lent.lend(hcca + hcca::FRAME_NUMBER, 8);
        m.write32(reg::HCCA, hcca);
        let fi = fm_interval & 0x3fff;
        let fsmps = (6 * (fi - 210)) / 7;
        m.write32(reg::FM_INTERVAL, ((fm_interval & 1 << 31) ^ (1 << 31)) | fsmps << 16 | fi);
        m.write32(reg::PERIODIC_START, fi * 9 / 10);
        let hc_control = control::OPERATIONAL | control::CBSR_3;
        m.write32(reg::CONTROL, hc_control);
        m.write32(reg::INTERRUPT_STATUS, !0);
        m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::UE | int::RD | int::WDH);
        m.write32(reg::RH_STATUS, 1 << 16);
        m.advance_millis(10);
        Self {
            machine,
            idle: Idle::Keep,
            hcca,
            died: false,
            interrupts: 0,
            hc_control,
            endpoints: BTreeMap::new(),
            control_list: Vec::new(),
            bulk_list: Vec::new(),
            periodic: Vec::new(),
            free_tds: Vec::new(),
            queued: HashMap::new(),
            retired: HashMap::new(),
            buffer,
        }
    }

    fn new_td(&mut self) -> u32 {
        self.free_tds.pop().unwrap_or_else(|| self.machine.alloc(16, 16))
    }

    /// The endpoint's queue, made and linked if need be.
    fn endpoint(&mut self, pipe: &Pipe, list: ListKind) -> (u8, u8) {
        let key = (pipe.device.address, pipe.endpoint.byte());
        if !self.endpoints.contains_key(&key) {
            let (ed, dummy) = (self.new_td(), self.new_td());
            self.machine.store_all(ed, &[0, dummy, dummy, 0]);
            self.endpoints.insert(key, Endpoint { ed, dummy, list, linked: false });
        }
        let endpoint = self.endpoints[&key];
        let direction = match list {
            ListKind::Control => 0,
            _ if pipe.endpoint.is_in() => ed::IN,
            _ => ed::OUT,
        };
        let speed = if pipe.device.speed == Speed::Low { ed::LOW_SPEED } else { 0 };
        let word = ed::control(key.0, pipe.endpoint.number(), pipe.max_packet);
        self.machine.store(endpoint.ed, word | direction | speed);
        if !endpoint.linked {
            self.link(endpoint);
            self.endpoints.get_mut(&key).unwrap().linked = true;
        }
        key
    }

    fn link(&mut self, endpoint: Endpoint) {
        self.machine.lent.lend(endpoint.ed + 8, 4);
        let (list, head, current, enable) = match endpoint.list {
            ListKind::Control => {
                let registers = (reg::CONTROL_HEAD_ED, reg::CONTROL_CURRENT_ED, control::CLE);
                (&mut self.control_list, registers.0, registers.1, registers.2)
            }
            ListKind::Bulk => {
                let registers = (reg::BULK_HEAD_ED, reg::BULK_CURRENT_ED, control::BLE);
                (&mut self.bulk_list, registers.0, registers.1, registers.2)
            }
            ListKind::Periodic { interval } => {
                self.periodic.push((endpoint.ed, interval));
                self.rebuild_table();
                return self.enable(control::PLE | control::IE);
            }
        };
        self.machine.store(endpoint.ed + 12, 0);
        let last = list.last().copied();
        list.push(endpoint.ed);
        match last {
            Some(last) => self.machine.store(last + 12, endpoint.ed),
            None => {
                self.machine.write32(head, endpoint.ed);
                self.machine.write32(current, 0);
                self.enable(enable);
            }
        }
    }

    fn enable(&mut self, lists: u32) {
        if self.hc_control & lists != lists {
            self.hc_control |= lists;
            self.machine.write32(reg::CONTROL, self.hc_control);
        }
    }

    /// Links the periodic EDs: in each slot the ones with long intervals first, so that the shorter
    /// ones can be shared.
    fn rebuild_table(&mut self) {
        let mut order = self.periodic.clone();
        order.sort_by_key(|(_, interval)| std::cmp::Reverse(*interval));
        for slot in 0..32 {
            let due: Vec<u32> = order
                .iter()
                .filter(|(_, interval)| slot % interval == 0)
                .map(|(ed, _)| *ed)
                .collect();
            self.machine.store(self.hcca + 4 * slot, due.first().copied().unwrap_or(0));
            for (n, ed) in due.iter().enumerate() {
                self.machine.store(ed + 12, due.get(n + 1).copied().unwrap_or(0));
            }
        }
    }

    /// Queues TDs on an endpoint and rings the doorbell; returns their addresses.
    fn submit(&mut self, key: (u8, u8), pieces: &[Piece]) -> Vec<u32> {
        let endpoint = self.endpoints[&key];
        let mut tds = Vec::new();
        let mut at = endpoint.dummy;
        for (n, piece) in pieces.iter().enumerate() {
            let next = self.new_td();
            let last = n + 1 == pieces.len();
            let delay = td::delay(if last { 0 } else { 6 });
            let (start, end) = match piece.len {
                0 => (0, 0),
                len => (piece.buffer, piece.buffer + len - 1),
            };
            self.machine
                .store_all(at, &[piece.control | delay | td::NOT_ACCESSED, start, next, end]);
            self.machine.lent.lend(at, 12);
            self.machine.lent.lend(piece.buffer, piece.len);
            self.queued.insert(at, (piece.buffer, piece.len));
            tds.push(at);
            at = next;
        }
        self.endpoints.get_mut(&key).unwrap().dummy = at;
        self.machine.store(endpoint.ed + 4, at);
        match endpoint.list {
            ListKind::Control => self.machine.write32(reg::COMMAND_STATUS, command::CLF),
            ListKind::Bulk => self.machine.write32(reg::COMMAND_STATUS, command::BLF),
            ListKind::Periodic { .. } => {}
        }
        tds
    }

    /// The interrupt handler.
    pub fn handle_interrupt(&mut self) {
        self.interrupts += 1;
        loop {
            let enabled = self.machine.read32(reg::INTERRUPT_ENABLE);
            let status = self.machine.read32(reg::INTERRUPT_STATUS) & enabled;
            if status == 0 {
                return;
            }
            if status & int::UE != 0 {
                self.died = true;
                self.machine.write32(reg::CONTROL, control::RESET);
            }
            if status & int::WDH != 0 {
                self.take_done_queue();
            }
            self.machine.write32(reg::INTERRUPT_STATUS, status);
            self.machine.write32(reg::INTERRUPT_ENABLE, int::MIE);
        }
    }

    fn take_done_queue(&mut self) {
        let mut at = self.machine.load(self.hcca + hcca::DONE_HEAD) & !0xf;
        self.machine.store(self.hcca + hcca::DONE_HEAD, 0);
        assert_ne!(at, 0, "WDH without a done queue");
        while at != 0 {
            let [word, cbp, next, be] = self.machine.load_all(at);
            let (start, len) = self.queued.remove(&at).expect("a TD is reported once");
            self.machine.lent.take_back(at);
            self.machine.lent.take_back(start);
            let moved = match cbp {
                _ if len == 0 => 0,
                0 => be - start + 1,
                cbp => cbp - start,
            };
            self.retired.insert(at, Retired { cc: td::cc(word), moved });
            at = next & !0xf;
        }
    }

    /// Lets time pass until `done` or `until`, handling interrupts.
    fn wait(&mut self, until: Time, mut done: impl FnMut(&Self) -> bool) -> bool {
        loop {
            self.machine.run();
            while self.machine.line && !self.died {
                self.handle_interrupt();
            }
            if done(self) {
                return true;
            }
            if self.died || self.machine.now >= until {
                return false;
            }
            let now = self.machine.now;
            let next = self.machine.deadline().unwrap_or(until).max(now.after_nanos(100));
            self.machine.now = next.min(until);
        }
    }

    /// Waits for a start of frame that is later than the present frame, as Linux does before it uses
    /// an unlinked ED again.
    fn wait_for_frame(&mut self) {
        self.machine.write32(reg::INTERRUPT_STATUS, int::SF);
        self.machine.write32(reg::INTERRUPT_ENABLE, int::SF);
        self.machine.read32(reg::CONTROL);
        let frame = |driver: &Self| driver.machine.load(driver.hcca + hcca::FRAME_NUMBER) as u16;
        let tick = frame(self).wrapping_add(1);
        let until = self.machine.now.after_millis(10);
        let passed = self.wait(until, |driver| frame(driver).wrapping_sub(tick) < 0x8000);
        assert!(passed || self.died, "no start of frame for 10 ms");
        self.machine.write32(reg::INTERRUPT_DISABLE, int::SF);
    }

    /// Isochronous packets, one in each of the next frames: sends those of an OUT endpoint, and has those
    /// of an IN endpoint replaced by what came in their frame, cut to their length.
    pub fn isochronous(
        &mut self,
        pipe: &Pipe,
        packets: &mut [Vec<u8>],
    ) -> Result<(), TransferError> {
        let m = &mut self.machine;
        let buffers: Vec<u32> = packets.iter().map(|p| m.alloc_bytes(p, 0x1000)).collect();
        let tds: Vec<u32> = packets.iter().map(|_| m.alloc(32, 32)).collect();
        let (dummy, ed) = (m.alloc(32, 32), m.alloc(16, 16));
        // Far enough ahead that the first is not late.
        let start = m.read32(reg::FM_NUMBER).wrapping_add(3);
        for (n, packet) in packets.iter().enumerate() {
            let next = tds.get(n + 1).copied().unwrap_or(dummy);
            let frame = start.wrapping_add(n as u32) & 0xffff;
            let end = buffers[n] + packet.len() as u32 - 1;
            m.store_all(tds[n], &[td::NOT_ACCESSED | frame, buffers[n], next, end, 0xe000]);
            self.queued.insert(tds[n], (0, 0));
        }
        let direction = if pipe.endpoint.is_in() { ed::IN } else { ed::OUT };
        let word = ed::control(pipe.device.address, pipe.endpoint.number(), pipe.max_packet);
        m.store_all(ed, &[word | direction | ed::ISOCHRONOUS, dummy, tds[0], 0]);
        self.periodic.push((ed, 1));
        self.rebuild_table();
        self.enable(control::PLE | control::IE);
        let until = self.machine.now.after_millis(packets.len() as u64 + 20);
        let done = self.wait(until, |driver| tds.iter().all(|td| driver.retired.contains_key(td)));
        self.periodic.retain(|(one, _)| *one != ed);
        self.rebuild_table();
        self.wait_for_frame();
        for (n, packet) in packets.iter_mut().enumerate() {
            self.queued.remove(&tds[n]);
            self.retired.remove(&tds[n]);
            let status = self.machine.load(tds[n] + 16);
            match (done, status >> 12 & 0xf) {
                (false, _) => return Err(TransferError::TimedOut),
                (_, 0 | 9) if pipe.endpoint.is_in() => {
                    *packet = self.machine.bytes(buffers[n], (status & 0x7ff) as usize);
                }
                (_, 0) => {}
                _ => return Err(TransferError::NoAnswer),
            }
        }
        Ok(())
    }

    /// Takes the endpoint off its list, and leaves its queue empty.
    fn unlink(&mut self, key: (u8, u8)) {
        let endpoint = self.endpoints[&key];
        let word = self.machine.load(endpoint.ed);
        self.machine.store(endpoint.ed, word | ed::SKIP);
        let next = self.machine.load(endpoint.ed + 12);
        let (list, head, enable) = match endpoint.list {
            ListKind::Control => (&mut self.control_list, reg::CONTROL_HEAD_ED, control::CLE),
            ListKind::Bulk => (&mut self.bulk_list, reg::BULK_HEAD_ED, control::BLE),
            ListKind::Periodic { .. } => {
                self.periodic.retain(|(ed, _)| *ed != endpoint.ed);
                self.rebuild_table();
                (&mut Vec::new(), 0, 0)
            }
        };
        if let Some(at) = list.iter().position(|ed| *ed == endpoint.ed) {
            list.remove(at);
            let empty = list.is_empty();
            match at.checked_sub(1).map(|before| list[before]) {
                Some(before) => self.machine.store(before + 12, next),
                None if empty => {
                    self.hc_control &= !enable;
                    self.machine.write32(reg::CONTROL, self.hc_control);
                }
                None => self.machine.write32(head, next),
            }
        }
        self.wait_for_frame();
        self.empty(endpoint);
        self.machine.lent.take_back(endpoint.ed + 8);
        self.machine.store(endpoint.ed + 12, 0);
        self.endpoints.get_mut(&key).unwrap().linked = false;
    }

    /// A device is gone: its endpoints leave the lists, and their memory is the driver's again.
    pub fn forget(&mut self, address: u8) {
        let keys: Vec<_> = self.endpoints.keys().copied().filter(|key| key.0 == address).collect();
        for key in keys {
            if self.endpoints[&key].linked {
                self.unlink(key);
            }
            let endpoint = self.endpoints.remove(&key).unwrap();
            self.free_tds.extend([endpoint.dummy, endpoint.ed]);
        }
    }

    /// Drops what is left on a queue that the controller does not look at.
    fn empty(&mut self, endpoint: Endpoint) {
        let head = self.machine.load(endpoint.ed + 8);
        let mut at = head & !0xf;
        while at != endpoint.dummy {
            let next = self.machine.load(at + 8) & !0xf;
            self.machine.lent.take_back(at);
            if let Some((buffer, _)) = self.queued.remove(&at) {
                self.machine.lent.take_back(buffer);
            }
            self.free_tds.push(at);
            at = next;
        }
        self.machine.store(endpoint.ed + 8, endpoint.dummy | (head & ed::CARRY));
        let word = self.machine.load(endpoint.ed);
        self.machine.store(endpoint.ed, word & !ed::SKIP);
    }

    /// A whole transfer: queues it, waits, cleans up; returns the bytes each TD moved.
    fn transfer(
        &mut self,
        key: (u8, u8),
        pieces: &[Piece],
        millis: u64,
    ) -> Result<Vec<u32>, TransferError> {
        if self.died {
            return Err(TransferError::ControllerDied);
        }
        let flight = Flight { key, tds: self.submit(key, pieces) };
        let until = self.machine.now.after_millis(millis);
        self.wait(until, |driver| driver.has_landed(&flight));
        self.end(flight)
    }

    /// Whether a transfer is over.
    pub fn has_landed(&self, flight: &Flight) -> bool {
        let last = flight.tds.last().is_none_or(|last| self.retired.contains_key(last));
        last || flight.tds.iter().any(|td| self.retired.get(td).is_some_and(|td| td.cc != 0))
    }

    /// Cleans up after a transfer, or withdraws it if it is not over; returns the bytes each TD moved.
    pub fn end(&mut self, flight: Flight) -> Result<Vec<u32>, TransferError> {
        let Flight { key, tds } = flight;
        let endpoint = self.endpoints[&key];
        if self.died {
            return Err(TransferError::ControllerDied);
        }
        let finished = tds.iter().any(|td| self.retired.get(td).is_some_and(|td| td.cc != 0))
            || tds.iter().all(|td| self.retired.contains_key(td));
        let halted = self.machine.load(endpoint.ed + 8) & ed::HALTED != 0;
        if !finished || self.idle == Idle::Unlink {
            self.unlink(key);
        } else if halted {
            let word = self.machine.load(endpoint.ed);
            self.machine.store(endpoint.ed, word | ed::SKIP);
            self.wait_for_frame();
            self.empty(endpoint);
        }
        let results: Vec<_> = tds.iter().map_while(|td| self.retired.remove(td)).collect();
        for td in &tds[..results.len()] {
            self.free_tds.push(*td);
        }
        // It may have come to its end while it was withdrawn.
        let whole = results.len() == tds.len();
        let moved = || results.iter().map(|td| td.moved).collect();
        match results.last().map(|td| td.cc) {
            Some(0) if whole => Ok(moved()),
            Some(9) => Ok(moved()),
            Some(4) => Err(TransferError::Stall),
            Some(8) => Err(TransferError::Babble),
            None | Some(0) if !finished => Err(TransferError::TimedOut),
            _ => Err(TransferError::NoAnswer),
        }
    }

    /// The TDs of a run of data in the driver's buffer.
    fn pieces(&self, control: u32, len: u32) -> Vec<Piece> {
        let count = len.div_ceil(TD_BYTES).max(1);
        (0..count)
            .map(|n| {
                let rounding = if n + 1 == count { td::ROUNDING } else { 0 };
                let start = n * TD_BYTES;
                Piece {
                    control: control | rounding,
                    buffer: self.buffer + start,
                    len: (len - start).min(TD_BYTES),
                }
            })
            .collect()
    }
}

/// The interval that the periodic table can do: a power of two, no longer than asked for.
fn frames(interval: u8) -> u32 {
    let interval = u32::from(interval.clamp(1, 32));
    1 << interval.ilog2()
}

impl Machine<Ohci> {
    /// All registers that do not move by themselves.
    pub fn controller_registers(&mut self) -> Vec<u32> {
        let moving = [reg::FM_REMAINING, reg::FM_NUMBER, reg::INTERRUPT_STATUS];
        let registers = (0..reg::RH_PORT_STATUS + 60).step_by(4);
        registers.filter(|r| !moving.contains(r)).map(|r| self.read32(r)).collect()
    }
}
