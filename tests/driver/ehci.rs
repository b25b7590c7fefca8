//! A driver for an EHCI controller, along the lines of a real one.
//!
//! New transfers go into the old dummy qTD of a queue, whose token is stored last; a queue head
//! leaves the asynchronous schedule by two rings of the doorbell; interrupt queue heads hang in the
//! frame list, slow ones before fast ones.

mod host;
mod spec;
mod td;

use std::collections::{BTreeMap, HashMap};

use vm_memory::GuestMemoryMmap;
use vm_usb::controller::HostController;
use vm_usb::ehci::Ehci;
use vm_usb::usb::{Direction, EndpointAddress, Pid, SetupPacket, Speed, request};

use super::host::{Background, Device, HostDriver, Pipe, TransferError, setup_bytes};
use super::machine::Machine;

pub use self::spec::*;
pub use self::td::Td;

/// Most accesses to guest memory in one call of a controller: 8192 periodic elements, 1024 visits of
/// queue heads and 4096 elements looked ahead at, with the accesses that each takes at most.
pub const MOST_ACCESSES: u64 = 8192 * 24 + 1024 * 64 + 4096 * 24;

/// What the controller writes to in a queue head: where, and how much (EHCI 3.6, appendix B).
const OVERLAY: (u32, u32) = (0x0c, 0x38);
/// Entries of the frame list.
pub const FRAMES: u32 = 1024;
/// Bytes of a QH and of a qTD in their longest form.
const STRUCTURE: u32 = 0x60;
/// How long the driver waits for a control or bulk transfer.
const PATIENCE_MILLIS: u64 = 5_000;

/// A queue head and its queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    pub head: u32,
    /// The inactive qTD at the queue's end.
    pub dummy: u32,
    /// QH dword 1 and 2.
    pub characteristics: u32,
    pub capabilities: u32,
    /// Frames between visits, for an interrupt queue.
    pub period: Option<u32>,
}

/// The driver, with the machine it runs on.
pub struct EhciDriver<C = Ehci> {
    pub machine: Machine<C>,
    /// The head of the asynchronous ring: halted, and never given work.
    pub ring: u32,
    /// The dummy of the ring's head, where short reads end.
    pub stop: u32,
    pub frame_list: u32,
    queues: BTreeMap<(u8, u8), Queue>,
    /// Period of each interrupt queue head.
    periods: HashMap<u32, u32>,
    /// The hub with the transaction translator of each full- or low-speed device, and its port.
    translators: HashMap<u8, (u8, u8)>,
    /// USBSTS events seen by the interrupt handler.
    pub events: Vec<u32>,
    /// Times the interrupt handler found something to do.
    pub interrupts: u64,
    /// Times it was told of a change at a port.
    pub port_changes: u64,
    /// qTDs of transfers that are over.
    free: Vec<u32>,
    /// Memory for the data of one transfer: where, and how much.
    scratch: (u32, u32),
}

impl<C: HostController<GuestMemoryMmap>> EhciDriver<C> {
    /// Takes the controller over: halt, reset, schedules, run, ports (EHCI 4.1).
    pub fn new(machine: Machine<C>) -> Self {
        let mut driver = Self {
            machine,
            ring: 0,
            stop: 0,
            frame_list: 0,
            queues: BTreeMap::new(),
            periods: HashMap::new(),
            translators: HashMap::new(),
            events: Vec::new(),
            interrupts: 0,
            port_changes: 0,
            free: Vec::new(),
            scratch: (0, 0),
        };
        driver.start();
        driver
    }

    fn start(&mut self) {
        let m = &mut self.machine;
        let capabilities = m.read32(0);
        assert_eq!(capabilities & 0xff, 0x20, "CAPLENGTH");
        m.write32(reg::USBINTR, 0);
        let command = m.read32(reg::USBCMD);
        m.write32(reg::USBCMD, command & !cmd::RUN);
        assert!(m.wait_millis(2, |m| m.read32(reg::USBSTS) & sts::HALTED != 0), "halts");
        m.write32(reg::USBCMD, cmd::RESET);
        assert!(m.wait_millis(250, |m| m.read32(reg::USBCMD) & cmd::RESET == 0), "resets");

        self.frame_list = m.alloc(4 * FRAMES, 0x1000);
        for n in 0..FRAMES {
            m.store(self.frame_list + 4 * n, TERMINATE);
        }
        self.ring = m.alloc(STRUCTURE, 32);
        self.stop = m.alloc(STRUCTURE, 32);
        m.store_all(self.stop, &[TERMINATE, TERMINATE, token::HALTED]);
        m.store_all(
            self.ring,
            &[self.ring | QUEUE_HEAD, HEAD | HIGH_SPEED, 1 << 30, 0, TERMINATE, self.stop],
        );
        m.store(self.ring + 0x18, token::HALTED);

        m.write32(reg::PERIODICLISTBASE, self.frame_list);
        m.write32(reg::ASYNCLISTADDR, self.ring);
        m.write32(reg::USBCMD, cmd::RUN | cmd::ITC_1);
        m.write32(reg::CONFIGFLAG, 1);
        assert!(m.wait_millis(5, |m| m.read32(reg::USBSTS) & sts::HALTED == 0), "runs");
        m.write32(reg::USBINTR, 0x37);
        for n in 0..self.ports() {
            self.set_port(n, port::POWER, 0);
        }
        self.machine.advance_millis(20);
    }

    /// Sets bits of a port's register, then clears others, without acknowledging changes.
    pub fn set_port(&mut self, n: usize, set: u32, clear: u32) {
        let register = reg::PORTSC + 4 * n as u64;
        let value = self.machine.read32(register) & !port::CHANGES;
        self.machine.write32(register, (value | set) & !clear);
    }

    pub fn port(&mut self, n: usize) -> u32 {
        self.machine.read32(reg::PORTSC + 4 * n as u64)
    }

    /// The interrupt handler: acknowledges, and looks again until nothing is left.
    pub fn service(&mut self) {
        while self.machine.line {
            let status = self.machine.read32(reg::USBSTS) & 0x3f;
            self.machine.write32(reg::USBSTS, status);
            self.events.push(status);
            self.interrupts += 1;
            self.port_changes += u64::from(status & sts::PORT != 0);
        }
    }

    /// Takes all events seen by the interrupt handler, ORed.
    pub fn take_events(&mut self) -> u32 {
        self.service();
        self.events.drain(..).fold(0, |all, event| all | event)
    }

    /// Lets time pass, serving interrupts, until `done`; false if `millis` go by first.
    pub fn wait(&mut self, millis: u64, mut done: impl FnMut(&mut Machine<C>) -> bool) -> bool {
        let begin = self.machine.now;
        loop {
            self.service();
            if done(&mut self.machine) {
                return true;
            }
            let waited = self.machine.now.since(begin).as_millis();
            if waited >= u128::from(millis) {
                return false;
            }
            // Look closely at first, less so when it takes longer.
            self.machine.advance_micros(match waited {
                ..20 => 10,
                20..200 => 200,
                _ => 2_000,
            });
        }
    }

    /// Makes a queue, not yet in any schedule.
    pub fn queue(&mut self, characteristics: u32, capabilities: u32, period: Option<u32>) -> Queue {
        let head = self.new_dummy();
        let dummy = self.new_dummy();
        let m = &mut self.machine;
        m.store_all(head, &[TERMINATE, characteristics, capabilities, 0, dummy, TERMINATE, 0]);
        if let Some(period) = period {
            self.periods.insert(head, period);
        }
        Queue { head, dummy, characteristics, capabilities, period }
    }

    /// A device is gone: its queues leave the schedules, and their memory is the driver's again.
    pub fn forget(&mut self, address: u8) {
        let gone: Vec<_> = self.queues.keys().copied().filter(|key| key.0 == address).collect();
        for queue in gone.iter().filter_map(|key| self.queues.remove(key)).collect::<Vec<_>>() {
            match queue.period {
                None => self.unlink(&queue),
                Some(_) => self.unlink_periodic(&queue),
            }
            self.periods.remove(&queue.head);
            self.free.extend([queue.head, queue.dummy]);
        }
        self.translators.remove(&address);
    }

    fn new_dummy(&mut self) -> u32 {
        let free = self.free.pop();
        let dummy = free.unwrap_or_else(|| self.machine.alloc(STRUCTURE, 32));
        // What was a queue head has pointers where a qTD has the high halves of its own.
        self.machine.fill(dummy, &[0; STRUCTURE as usize]);
        self.machine.store_all(dummy, &[TERMINATE, TERMINATE, token::HALTED]);
        dummy
    }

    /// Memory for the data of the one transfer that the driver has under way.
    fn scratch(&mut self, len: u32) -> u32 {
        if self.scratch.1 < len {
            self.scratch = (self.machine.alloc(len, 0x1000), len);
        }
        self.scratch.0
    }

    /// Makes a queue for an endpoint of a high-speed device and links it.
    pub fn open(&mut self, address: u8, endpoint: u8, max_packet: u16, extra: u32) -> Queue {
        let characteristics = u32::from(address)
            | u32::from(endpoint) << 8
            | HIGH_SPEED
            | u32::from(max_packet) << 16
            | extra;
        let queue = self.queue(characteristics, 1 << 30, None);
        self.link(&queue);
        queue
    }

    /// Puts a queue head into the ring's memory, right behind the ring's head.
    pub fn insert(&mut self, queue: &Queue) {
        let m = &mut self.machine;
        m.lent.lend(queue.head + OVERLAY.0, OVERLAY.1);
        let next = m.load(self.ring);
        m.store(queue.head, next);
        m.store(self.ring, queue.head | QUEUE_HEAD);
    }

    /// Links a queue head into the asynchronous ring and has the ring carried out.
    pub fn link(&mut self, queue: &Queue) {
        self.insert(queue);
        self.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    }

    /// Switches a schedule on and waits for its status.
    pub fn enable(&mut self, enable: u32, status: u32) {
        let command = self.machine.read32(reg::USBCMD);
        if command & enable == 0 {
            self.machine.write32(reg::USBCMD, command | enable);
        }
        let on = self.wait(3, |m| m.read32(reg::USBSTS) & status != 0);
        assert!(on, "the schedule starts");
    }

    /// Switches a schedule off and waits for its status.
    pub fn disable(&mut self, enable: u32, status: u32) {
        let command = self.machine.read32(reg::USBCMD);
        self.machine.write32(reg::USBCMD, command & !enable);
        let off = self.wait(3, |m| m.read32(reg::USBSTS) & status == 0);
        assert!(off, "the schedule stops");
    }

    /// Takes a queue head out of the ring's memory; the controller may still hold on to it.
    pub fn cut_out(&mut self, queue: &Queue) {
        let m = &mut self.machine;
        let mut at = self.ring;
        loop {
            let next = m.load(at) & !0x1f;
            if next == queue.head {
                break;
            }
            assert_ne!(next, self.ring, "the queue is in the ring");
            at = next;
        }
        let behind = m.load(queue.head);
        m.store(at, behind);
    }

    /// Rings the doorbell and waits for the answer.
    pub fn ring_doorbell(&mut self) {
        let command = self.machine.read32(reg::USBCMD);
        self.events.clear();
        self.machine.write32(reg::USBCMD, command | cmd::DOORBELL);
        let end = self.machine.now.after_millis(10);
        loop {
            self.service();
            if self.events.iter().any(|e| e & sts::ADVANCE != 0) {
                return;
            }
            assert!(self.machine.now < end, "the watchdog barks: no IAA after 10 ms");
            self.machine.advance_micros(10);
        }
    }

    /// Unlinks a queue head; afterwards its memory is the driver's.
    pub fn unlink(&mut self, queue: &Queue) {
        self.cut_out(queue);
        self.ring_doorbell();
        self.ring_doorbell();
        self.machine.lent.take_back(queue.head + OVERLAY.0);
    }

    /// Links an interrupt queue head into every `period`-th frame, behind slower ones.
    pub fn link_periodic(&mut self, queue: &Queue, phase: u32) {
        let period = queue.period.expect("an interrupt queue");
        self.machine.lent.lend(queue.head + OVERLAY.0, OVERLAY.1);
        for frame in (phase..FRAMES).step_by(period as usize) {
            let mut at = self.frame_list + 4 * frame;
            loop {
                let here = self.machine.load(at);
                let next = here & !0x1f;
                let slower = here & TERMINATE == 0
                    && next != queue.head
                    && self.periods.get(&next).is_none_or(|p| *p >= period);
                if !slower {
                    if next != queue.head || here & TERMINATE != 0 {
                        self.machine.store(queue.head, here);
                        self.machine.store(at, queue.head | QUEUE_HEAD);
                    }
                    break;
                }
                at = next;
            }
        }
        self.enable(cmd::PERIODIC, sts::PERIODIC);
    }

    /// Takes an interrupt queue head out of the frame list and lets the controller forget it.
    pub fn unlink_periodic(&mut self, queue: &Queue) {
        let behind = self.machine.load(queue.head);
        for frame in 0..FRAMES {
            let mut at = self.frame_list + 4 * frame;
            loop {
                let here = self.machine.load(at);
                if here & TERMINATE != 0 {
                    break;
                }
                if here & !0x1f == queue.head {
                    self.machine.store(at, behind);
                    break;
                }
                at = here & !0x1f;
            }
        }
        self.machine.advance_micros(1_125);
        self.machine.lent.take_back(queue.head + OVERLAY.0);
    }

    /// Appends qTDs to a queue: the first takes the place of the old dummy, whose token is stored
    /// last. Returns their addresses; the queue ends in a new dummy.
    pub fn submit(&mut self, queue: &mut Queue, tds: &[Td]) -> Vec<u32> {
        let mut places = vec![queue.dummy];
        for _ in tds {
            places.push(self.new_dummy());
        }
        let m = &mut self.machine;
        for (n, td) in tds.iter().enumerate().rev() {
            m.store(places[n], places[n + 1]);
            m.store(places[n] + 4, td.alternate.unwrap_or(TERMINATE));
            m.store_all(places[n] + 0x0c, &td.pages());
            m.lent.lend(places[n] + 8, 4);
            m.lent.lend(td.buffer, td.len);
            m.store(places[n] + 8, td.token());
        }
        queue.dummy = places.pop().expect("one more than qTDs");
        places
    }

    /// What a driver puts into the overlay of an unlinked queue head before it links it again: the
    /// queue begins at `first`, toggle and ping state stay.
    pub fn restart(&mut self, queue: &Queue, first: u32) {
        let m = &mut self.machine;
        let kept = m.load(queue.head + 0x18) & (token::TOGGLE | token::PING);
        m.store(queue.head + 0x10, first);
        m.store(queue.head + 0x14, TERMINATE);
        m.store(queue.head + 0x18, kept);
    }

    /// A control or bulk IN/OUT buffer as qTDs of up to 20 KiB; short reads stop at the driver's own
    /// dummy, except in the last one.
    pub fn data(&self, pid: Pid, buffer: u32, len: u32, max_packet: u32) -> Vec<Td> {
        let mut tds = Vec::new();
        let mut done = 0;
        loop {
            let at = buffer + done;
            let room = 0x5000 - (at & 0xfff);
            let left = len - done;
            let take = if left <= room { left } else { room - room % max_packet };
            let mut td = Td::new(pid, at, take);
            done += take;
            if done < len && pid == Pid::In {
                td = td.alternate(self.stop);
            }
            tds.push(td);
            if done == len {
                return tds;
            }
        }
    }

    fn error(&self, token: u32) -> Option<TransferError> {
        if token & token::HALTED == 0 {
            return None;
        }
        Some(if token & token::BABBLE != 0 {
            TransferError::Babble
        } else if token & token::ERROR != 0 && token::cerr(token) == 0 {
            TransferError::NoAnswer
        } else {
            TransferError::Stall
        })
    }

    /// Has qTDs carried out; returns how many bytes are left of those up to the one that ended it.
    fn transfer(
        &mut self,
        queue: &mut Queue,
        tds: &[Td],
        millis: u64,
    ) -> Result<Ended, TransferError> {
        let qtds = self.submit(queue, tds);
        self.wait(millis, |m| ended(m, &qtds).is_some());
        self.end(queue, tds, qtds)
    }

    /// Cleans up after a transfer, or withdraws it if it is not over.
    fn end(&mut self, queue: &Queue, tds: &[Td], qtds: Vec<u32>) -> Result<Ended, TransferError> {
        let mut end = ended(&self.machine, &qtds);
        if self.events.iter().any(|e| e & sts::SYSTEM_ERROR != 0) {
            return Err(TransferError::ControllerDied);
        }
        let halted = end.and_then(|e| self.error(e.token)).is_some();
        let stopped = end.is_none_or(|e| e.at + 1 < tds.len());
        if halted || stopped {
            // Nothing of this transfer may be carried out any more.
            match queue.period {
                None => self.unlink(queue),
                Some(_) => self.unlink_periodic(queue),
            }
            // It may have come to its end while it was withdrawn.
            end = ended(&self.machine, &qtds);
            self.restart(queue, queue.dummy);
            match queue.period {
                None => self.link(queue),
                Some(_) => self.link_periodic(queue, 0),
            }
        }
        for (td, qtd) in tds.iter().zip(&qtds) {
            self.machine.lent.take_back(qtd + 8);
            self.machine.lent.take_back(td.buffer);
        }
        self.free.extend(qtds);
        let end = end.ok_or(TransferError::TimedOut)?;
        self.error(end.token).map_or(Ok(end), Err)
    }

    /// Isochronous packets of a full-speed device, one in each of the next frames: sends those of an OUT
    /// endpoint, and has those of an IN endpoint replaced by what came in their frame, cut to their
    /// length (EHCI 3.4, 4.12.3).
    pub fn isochronous(
        &mut self,
        pipe: &Pipe,
        packets: &mut [Vec<u8>],
    ) -> Result<(), TransferError> {
        const SITD: u32 = 2 << 1;
        const ERRORS: u32 = 0x7c;
        self.enable(cmd::PERIODIC, sts::PERIODIC);
        let input = pipe.endpoint.is_in();
        let (hub, port) = self.translators.get(&pipe.device.address).copied().unwrap_or((0, 0));
        let endpoint = u32::from(input) << 31
            | u32::from(port) << 24
            | u32::from(hub) << 16
            | u32::from(pipe.endpoint.number()) << 8
            | u32::from(pipe.device.address);
        // Far enough ahead that the first is not late.
        let start = (self.machine.read32(reg::FRINDEX) >> 3) + 3;
        let mut placed = Vec::new();
        for (n, packet) in packets.iter().enumerate() {
            let m = &mut self.machine;
            let (buffer, sitd) = (m.alloc_bytes(packet, 0x1000), m.alloc(0x40, 32));
            let entry = self.frame_list + 4 * ((start + n as u32) % FRAMES);
            let before = m.load(entry);
            let starts = (packet.len() as u32).div_ceil(188);
            let (masks, position) = match (input, starts) {
                (true, _) => (0xfc01, 0),
                (false, 1) => (1, 1),
                (false, _) => ((1 << starts) - 1, 1 << 3 | starts),
            };
            let state = (packet.len() as u32) << 16 | 1 << 7;
            m.store_all(sitd, &[before, endpoint, masks, state, buffer, position, TERMINATE]);
            m.store(entry, sitd | SITD);
            placed.push((buffer, sitd, entry, before));
        }
        self.machine.advance_millis(packets.len() as u64 + 5);
        self.service();
        for ((buffer, sitd, entry, before), packet) in placed.into_iter().zip(packets) {
            let m = &mut self.machine;
            m.store(entry, before);
            let state = m.load(sitd + 0x0c);
            if state & 1 << 7 != 0 {
                return Err(TransferError::TimedOut);
            }
            if state & ERRORS != 0 {
                return Err(TransferError::NoAnswer);
            }
            if input {
                let received = packet.len() - (state >> 16 & 0x3ff) as usize;
                *packet = m.bytes(buffer, received);
            }
        }
        Ok(())
    }
}

/// How qTDs that were submitted in a row ended, if they did.
fn ended<C: HostController<GuestMemoryMmap>>(m: &Machine<C>, qtds: &[u32]) -> Option<Ended> {
    for (n, qtd) in qtds.iter().enumerate() {
        let token = m.load(qtd + 8);
        if token & token::ACTIVE != 0 {
            return None;
        }
        let last = n + 1 == qtds.len();
        if last || token & token::HALTED != 0 || token::total(token) != 0 {
            return Some(Ended { token, at: n });
        }
    }
    None
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    /// Token of the qTD that ended it, and which one that was.
    token: u32,
    at: usize,
}

/// The control endpoint of a device that has just been reset.
pub fn fresh_device() -> Device {
    Device { address: 0, speed: Speed::High, control_packet: 64 }
}

/// A bulk endpoint.
pub fn bulk(device: Device, endpoint: EndpointAddress, max_packet: u16) -> Pipe {
    Pipe { device, endpoint, max_packet, interval: 0 }
}
