//! The two ways in which drivers treat the endpoints of a list, as event-driven as the real ones:
//! interrupt handler, unlinking by start of frame, and a slow watchdog.

use std::collections::VecDeque;

use vm_usb::ohci::{Ohci, Pacing};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::EndpointAddress;

use crate::driver::machine::Machine;
use crate::driver::scripted::Controls;
use crate::rig::*;
use crate::streams::{Hold, Streams};

/// What becomes of an endpoint whose queue ran empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// It is unlinked at once; it can be used again after a start of frame.
    UnlinkAtOnce,
    /// It stays linked; a watchdog that runs every 275 ms unlinks it after 10 ms of idleness.
    LeaveLinked,
}

const WATCHDOG_MILLIS: u64 = 275;
const IDLE_MILLIS: u32 = 10;
const PATTERN: u8 = 0xa5;
/// Condition codes.
const NO_ANSWER: u32 = 5;
const DATA_UNDERRUN: u32 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unlinked,
    Linked,
    Unlinking { tick: u16 },
}

/// A TD of a transfer.
#[derive(Clone, Copy, Debug)]
struct Request {
    td: u32,
    buffer: u32,
    len: u32,
    /// The transfer's last.
    last: bool,
}

/// When an endpoint ran empty, on a clock of 32 bits that wraps: 0 says that it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IdleUntil(u32);

impl IdleUntil {
    const BUSY: Self = Self(0);

    /// Idle from `now` on: the moment at which it has been idle for long. It is never 0, or an endpoint
    /// that ran empty just then would stay linked for ever.
    fn from(now: u32) -> Self {
        Self(now.wrapping_add(IDLE_MILLIS).max(1))
    }

    fn is_over(self, now: u32) -> bool {
        self != Self::BUSY && now.wrapping_sub(self.0) < 1 << 31
    }
}

#[derive(Debug)]
struct Endpoint {
    address: EndpointAddress,
    ed: u32,
    dummy: u32,
    state: State,
    queue: VecDeque<Request>,
    /// The queue is given up as soon as the controller cannot look at it any more.
    cancelled: usize,
    idle: IdleUntil,
    /// What was acknowledged: bytes received, or bytes sent.
    moved: Vec<u8>,
    /// Position in the stream that is sent next.
    sent: usize,
}

pub struct Model {
    pub rig: Rig,
    pub device: Hold,
    habit: Habit,
    endpoints: Vec<Endpoint>,
    /// Linked EDs, in order.
    list: Vec<u32>,
    watchdog: Time,
    /// Added to the time of day for the clock that wraps.
    clock_offset: u32,
    /// Memory that is the driver's again, filled with a pattern.
    taken_back: Vec<(u32, u32)>,
    /// The port is being reset: nobody answers.
    resetting: bool,
    pub interrupts: u64,
}

impl Model {
    pub fn new(pacing: Pacing, habit: Habit, echo: bool) -> Self {
        let port = Port::classic();
        let (device, hold) = Streams::new(echo);
        port.attach(device).unwrap();
        let ohci = Ohci::new(vec![port.link(Host::Classic)]).with_pacing(pacing);
        let mut m = Machine::new(ohci);
        let hcca = m.alloc(256, 256);
        let device = Controls::default();
        let mut rig = Rig { m, ports: vec![port], device, hcca, control: 0 };
        rig.start();
        rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH | int::UE);
        let endpoints = (1..4)
            .flat_map(|n| [EndpointAddress::out(n), EndpointAddress::r#in(n)])
            .map(|address| {
                let (ed, dummy) = (rig.m.alloc(16, 16), rig.m.alloc(16, 16));
                let direction = if address.is_in() { ed::IN } else { ed::OUT };
                let word = ed::control(ADDRESS, address.number(), 64) | direction;
                rig.m.store_all(ed, &[word, dummy, dummy, 0]);
                Endpoint {
                    address,
                    ed,
                    dummy,
                    state: State::Unlinked,
                    queue: VecDeque::new(),
                    cancelled: 0,
                    idle: IdleUntil::BUSY,
                    moved: Vec::new(),
                    sent: 0,
                }
            })
            .collect();
        let watchdog = rig.m.now;
        Self {
            rig,
            device: hold,
            habit,
            endpoints,
            list: Vec::new(),
            watchdog,
            clock_offset: 0,
            taken_back: Vec::new(),
            resetting: false,
            interrupts: 0,
        }
    }

    /// Lets frames pass until HcFmNumber is `frames` before its wrap to 0, and sets the driver's own clock
    /// as many milliseconds before its own.
    pub fn begin_before_wrap(&mut self, frames: u16) {
        let number = self.rig.frame_number();
        self.rig.frames(u64::from(frames.wrapping_neg().wrapping_sub(number)));
        self.clock_offset = 0;
        self.clock_offset = u32::from(frames).wrapping_neg().wrapping_sub(self.clock());
        self.watchdog = self.rig.m.now;
        self.rig.clear_status();
    }

    /// The driver's clock in milliseconds.
    fn clock(&self) -> u32 {
        let millis = self.rig.m.now.nanos_since(Time::ZERO) / 1_000_000;
        (millis as u32).wrapping_add(self.clock_offset)
    }

    pub fn count(&self) -> usize {
        self.endpoints.len()
    }

    pub fn address(&self, n: usize) -> EndpointAddress {
        self.endpoints[n].address
    }

    /// Bytes acknowledged at an endpoint so far.
    pub fn moved(&self, n: usize) -> &[u8] {
        &self.endpoints[n].moved
    }

    pub fn is_idle(&self, n: usize) -> bool {
        self.endpoints[n].queue.is_empty()
    }

    pub fn all_idle(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.queue.is_empty())
    }

    /// Queues a transfer of one TD.
    pub fn submit(&mut self, n: usize, len: u32) {
        self.submit_all(n, &[len]);
    }

    /// Queues a transfer of several TDs of these lengths: for OUT the next bytes of the endpoint's
    /// stream. Only the last of IN TDs may end short without halting the ED.
    pub fn submit_all(&mut self, n: usize, lens: &[u32]) {
        let m = &mut self.rig.m;
        let endpoint = &mut self.endpoints[n];
        for (place, len) in lens.iter().enumerate() {
            let last = place + 1 == lens.len();
            let len = *len;
            let buffer = m.alloc(len, 64);
            let mut word = td::IN | if last { td::ROUNDING } else { 0 };
            if !endpoint.address.is_in() {
                let start = endpoint.sent;
                let bytes: Vec<u8> =
                    (start..start + len as usize).map(|at| stream(endpoint.address, at)).collect();
                endpoint.sent += len as usize;
                m.fill(buffer, &bytes);
                word = td::OUT;
            }
            let delay = td::delay(if last { 0 } else { 6 });
            let (td, dummy) = (endpoint.dummy, m.alloc(16, 16));
            m.store_all(td, &[word | delay | td::NOT_ACCESSED, buffer, dummy, buffer + len - 1]);
            endpoint.dummy = dummy;
            endpoint.queue.push_back(Request { td, buffer, len, last });
        }
        endpoint.idle = IdleUntil::BUSY;
        m.store(endpoint.ed + 4, endpoint.dummy);
        match endpoint.state {
            State::Unlinked => self.link(n),
            State::Linked => self.rig.ring_bulk(),
            // It is scheduled again when the controller has let go of it.
            State::Unlinking { .. } => {}
        }
    }

    fn link(&mut self, n: usize) {
        let ed = self.endpoints[n].ed;
        self.endpoints[n].state = State::Linked;
        self.rig.m.store(ed + 12, 0);
        match self.list.last() {
            Some(last) => self.rig.m.store(last + 12, ed),
            None => {
                self.rig.m.write32(reg::BULK_HEAD_ED, ed);
                self.rig.m.write32(reg::BULK_CURRENT_ED, 0);
                self.rig.enable(control::BLE);
            }
        }
        self.list.push(ed);
        self.rig.ring_bulk();
    }

    /// Gives the queue of an endpoint up.
    pub fn cancel(&mut self, n: usize) {
        let endpoint = &mut self.endpoints[n];
        endpoint.cancelled = endpoint.queue.len();
        if endpoint.state == State::Linked && endpoint.cancelled != 0 {
            self.unlink(n);
        }
    }

    fn unlink(&mut self, n: usize) {
        let ed = self.endpoints[n].ed;
        let word = self.rig.m.load(ed);
        self.rig.m.store(ed, word | ed::SKIP);
        let at = self.list.iter().position(|linked| *linked == ed).unwrap();
        self.list.remove(at);
        let next = self.rig.m.load(ed + 12);
        match at.checked_sub(1) {
            Some(before) => self.rig.m.store(self.list[before] + 12, next),
            None if self.list.is_empty() => self.rig.disable(control::BLE),
            None => self.rig.m.write32(reg::BULK_HEAD_ED, next),
        }
        self.rig.m.write32(reg::INTERRUPT_STATUS, int::SF);
        self.rig.m.write32(reg::INTERRUPT_ENABLE, int::SF);
        self.rig.m.read32(reg::CONTROL);
        let tick = (self.rig.hcca_frame() as u16).wrapping_add(1);
        self.endpoints[n].state = State::Unlinking { tick };
    }

    /// Lets time pass up to `until`, or until `done`.
    pub fn run(&mut self, until: Time, mut done: impl FnMut(&Self) -> bool) -> bool {
        loop {
            self.rig.m.run();
            while self.rig.m.line {
                self.handle_interrupt();
            }
            if self.rig.m.now >= self.watchdog {
                self.watchdog = self.rig.m.now.after_millis(WATCHDOG_MILLIS);
                self.sweep();
            }
            if done(self) {
                return true;
            }
            let now = self.rig.m.now;
            if now >= until {
                return false;
            }
            let next = self.rig.m.deadline().unwrap_or(until).max(now.after_nanos(100));
            self.rig.m.now = next.min(until).min(self.watchdog.max(now.after_nanos(100)));
        }
    }

    pub fn run_micros(&mut self, micros: u64) {
        self.run(self.rig.m.now.after_micros(micros), |_| false);
    }

    fn sweep(&mut self) {
        for n in 0..self.endpoints.len() {
            let endpoint = &self.endpoints[n];
            let idle = endpoint.idle.is_over(self.clock());
            if endpoint.state == State::Linked && endpoint.queue.is_empty() && idle {
                self.unlink(n);
            }
        }
    }

    fn handle_interrupt(&mut self) {
        self.interrupts += 1;
        let status = self.rig.status() & self.rig.m.read32(reg::INTERRUPT_ENABLE);
        assert_eq!(status & int::UE, 0, "an honest driver's controller does not die");
        if status & int::WDH != 0 {
            self.take_done_queue();
        }
        self.finish_unlinks();
        let unlinking = |e: &Endpoint| matches!(e.state, State::Unlinking { .. });
        if !self.endpoints.iter().any(unlinking) {
            self.rig.m.write32(reg::INTERRUPT_DISABLE, int::SF);
        }
        // As Linux does: what was seen is acknowledged once it has been acted upon.
        self.rig.m.write32(reg::INTERRUPT_STATUS, status);
        self.rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE);
    }

    fn take_done_queue(&mut self) {
        let mut reported = Vec::new();
        let mut at = self.rig.done_head() & !0xf;
        self.rig.m.store(self.rig.hcca + hcca::DONE_HEAD, 0);
        while at != 0 {
            reported.push(at);
            at = self.rig.next_td(at);
        }
        for td in reported.into_iter().rev() {
            let owns = |e: &Endpoint| e.queue.front().is_some_and(|request| request.td == td);
            let n = self.endpoints.iter().position(owns).expect("each TD once, and in order");
            let request = self.endpoints[n].queue.pop_front().unwrap();
            self.endpoints[n].cancelled = self.endpoints[n].cancelled.saturating_sub(1);
            self.account(n, request);
            match self.rig.cc(td) {
                0 => {}
                DATA_UNDERRUN if !request.last => self.end_short(n),
                code => {
                    assert_eq!((code, self.resetting), (NO_ANSWER, true), "a port in reset only");
                    self.rewrite_unsent(n);
                }
            }
            self.take_back(request);
            let ran_empty = self.endpoints[n].queue.is_empty();
            if ran_empty {
                self.endpoints[n].idle = IdleUntil::from(self.clock());
            }
            let linked = self.endpoints[n].state == State::Linked;
            if ran_empty && linked && self.habit == Habit::UnlinkAtOnce {
                self.unlink(n);
            }
        }
    }

    /// Notes what a TD moved.
    fn account(&mut self, n: usize, request: Request) {
        let moved = match self.rig.cbp(request.td) {
            0 => request.len,
            cbp => cbp - request.buffer,
        };
        let bytes = self.rig.m.bytes(request.buffer, moved as usize);
        self.endpoints[n].moved.extend(bytes);
    }

    /// The memory of a finished or cancelled transfer is put to another use.
    fn take_back(&mut self, request: Request) {
        for (at, len) in [(request.td, 16), (request.buffer, request.len)] {
            self.rig.m.fill(at, &vec![PATTERN; len as usize]);
            self.taken_back.push((at, len));
        }
    }

    fn finish_unlinks(&mut self) {
        let frame = self.rig.hcca_frame() as u16;
        for n in 0..self.endpoints.len() {
            let State::Unlinking { tick } = self.endpoints[n].state else { continue };
            if frame.wrapping_sub(tick) >= 0x8000 {
                continue;
            }
            let ed = self.endpoints[n].ed;
            let front = self.endpoints[n].queue.front().map_or(self.endpoints[n].dummy, |r| r.td);
            if self.rig.head_p(ed) != front {
                // Something was retired and is not reported yet: look again in the next frame.
                continue;
            }
            self.drop_cancelled(n);
            let word = self.rig.m.load(ed);
            self.rig.m.store(ed, word & !ed::SKIP);
            self.rig.m.store(ed + 12, 0);
            self.endpoints[n].state = State::Unlinked;
            if !self.endpoints[n].queue.is_empty() {
                self.link(n);
            }
        }
    }

    fn drop_cancelled(&mut self, n: usize) {
        let ed = self.endpoints[n].ed;
        let mut dropped = Vec::new();
        for _ in 0..std::mem::take(&mut self.endpoints[n].cancelled) {
            let request = self.endpoints[n].queue.pop_front().unwrap();
            let control = self.rig.m.load(request.td);
            if control >> 24 & 2 != 0 {
                // Some of it went through: the toggle to go on with is the TD's.
                let carry = if control >> 24 & 1 != 0 { ed::CARRY } else { 0 };
                let head = self.rig.head_p(ed);
                self.rig.m.store(ed + 8, head | carry);
            }
            self.account(n, request);
            dropped.push(request);
        }
        if dropped.is_empty() {
            return;
        }
        let head = self.endpoints[n].queue.front().map_or(self.endpoints[n].dummy, |r| r.td);
        let carry = self.rig.m.load(ed + 8) & ed::CARRY;
        self.rig.m.store(ed + 8, head | carry);
        self.rewrite_unsent(n);
        for request in dropped {
            self.take_back(request);
        }
    }

    /// What was not sent is sent by the transfers that are still queued.
    fn rewrite_unsent(&mut self, n: usize) {
        let endpoint = &mut self.endpoints[n];
        if endpoint.address.is_in() {
            return;
        }
        let mut at = endpoint.moved.len();
        for request in &endpoint.queue {
            let bytes: Vec<u8> =
                (at..at + request.len as usize).map(|at| stream(endpoint.address, at)).collect();
            self.rig.m.fill(request.buffer, &bytes);
            at += request.len as usize;
        }
        endpoint.sent = at;
    }

    /// A TD that is not its transfer's last ended short and halted the ED: the transfer is over, and its
    /// other TDs are taken off the queue.
    fn end_short(&mut self, n: usize) {
        let ed = self.endpoints[n].ed;
        assert!(self.rig.halted(ed));
        loop {
            let rest = self.endpoints[n].queue.pop_front().expect("a transfer has a last TD");
            self.endpoints[n].cancelled = self.endpoints[n].cancelled.saturating_sub(1);
            assert_eq!(self.rig.cc(rest.td), 0xf, "behind a halt nothing is done");
            self.take_back(rest);
            if rest.last {
                break;
            }
        }
        let head = self.endpoints[n].queue.front().map_or(self.endpoints[n].dummy, |r| r.td);
        let carry = self.rig.m.load(ed + 8) & ed::CARRY;
        self.rig.m.store(ed + 8, head | carry);
        if self.endpoints[n].state == State::Linked {
            self.rig.ring_bulk();
        }
    }

    /// Resets the port under whatever is in flight, gives up what is queued, and sets the device up
    /// anew.
    pub fn reset_port(&mut self) {
        self.resetting = true;
        self.rig.m.write32(PORT, port::PRS);
        self.run_micros(11_000);
        for n in 0..self.count() {
            self.cancel(n);
        }
        let until = self.rig.m.now.after_millis(20);
        let unlinked =
            |m: &Self| m.endpoints.iter().all(|e| !matches!(e.state, State::Unlinking { .. }));
        assert!(self.run(until, unlinked), "unlinking takes two frames");
        self.resetting = false;
        assert_eq!(self.rig.port() & (port::PRS | port::PES), port::PES);
        self.rig.m.write32(PORT, port::PRSC);
        configure(&self.rig.ports[0], ADDRESS);
        // All toggles are back at DATA0, and halts are over.
        for n in 0..self.count() {
            assert!(self.is_idle(n));
            let (ed, dummy) = (self.endpoints[n].ed, self.endpoints[n].dummy);
            self.rig.m.store(ed + 8, dummy);
        }
    }

    /// Resets the controller under whatever is in flight: all memory is the driver's again at once, and
    /// it finds out for itself how far things went.
    pub fn reset_controller(&mut self) {
        self.rig.m.write32(reg::COMMAND_STATUS, command::HCR);
        // As Linux does: HcFmNumber starts at 0 again.
        self.rig.m.store_all(self.rig.hcca + hcca::FRAME_NUMBER, &[0, 0]);
        self.list.clear();
        for n in 0..self.count() {
            let ed = self.endpoints[n].ed;
            // What was retired, reported or not.
            let head = self.rig.head_p(ed);
            while self.endpoints[n].queue.front().is_some_and(|r| r.td != head) {
                let request = self.endpoints[n].queue.pop_front().unwrap();
                self.account(n, request);
                self.take_back(request);
            }
            let halted = self.rig.halted(ed);
            self.endpoints[n].cancelled = self.endpoints[n].queue.len();
            self.drop_cancelled(n);
            let carry = self.rig.m.load(ed + 8) & ed::CARRY;
            assert!(!halted || self.endpoints[n].address.is_in(), "only short packets halt here");
            self.rig.m.store(ed + 8, self.endpoints[n].dummy | carry);
            let word = self.rig.m.load(ed);
            self.rig.m.store(ed, word & !ed::SKIP);
            self.endpoints[n].state = State::Unlinked;
            self.rebuild(n);
        }
        let hcca = self.rig.hcca;
        self.rig.m.write32(reg::HCCA, hcca);
        self.rig.write_control(control::OPERATIONAL);
        self.rig.m.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH | int::UE);
    }

    /// Gives an endpoint that is not linked another ED; the old one is put to another use.
    pub fn rebuild(&mut self, n: usize) {
        if self.endpoints[n].state != State::Unlinked {
            return;
        }
        let old = self.endpoints[n].ed;
        let words = self.rig.m.load_all::<4>(old);
        let new = self.rig.m.alloc(16, 16);
        self.rig.m.store_all(new, &words);
        self.rig.m.fill(old, &[PATTERN; 16]);
        self.taken_back.push((old, 16));
        self.endpoints[n].ed = new;
    }

    pub fn assert_memory_intact(&self) {
        for (at, len) in &self.taken_back {
            let bytes = self.rig.m.bytes(*at, *len as usize);
            assert!(bytes.iter().all(|byte| *byte == PATTERN), "{len} bytes at {at:#x}");
        }
    }
}

/// The bytes that the driver sends are the ones of the device's stream.
fn stream(endpoint: EndpointAddress, at: usize) -> u8 {
    crate::streams::byte(endpoint, at)
}
