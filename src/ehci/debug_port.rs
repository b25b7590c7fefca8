//! The debug port (EHCI appendix C): single transactions by hand with the device at root port 1,
//! beside the schedules, without guest memory and interrupts.

use serde::{Deserialize, Serialize};

use super::ports::{PortEvents, RootPort};
use super::spec::{DebugAddress, DebugControl, DebugPids, debug, pid};
use crate::time::Time;
use crate::usb::{Function, Outcome, Pid, Readiness, Status, Toggle, Transfer};

/// Bytes in the data registers, and the largest packet of a debug endpoint (EHCI C.3.2).
const PACKET: u8 = 8;

/// ERROR with exception 001: no answer, or one that cannot be made out (EHCI C.3.1).
const TRANSACTION_ERROR: u8 = 0b001;
/// ERROR with exception 010: the port was in no state to send anything.
const HARDWARE_ERROR: u8 = 0b010;

/// The registers. OWNER and ENABLED are the [`RootPort`]'s, which they change.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DebugPort {
    control: DebugControl,
    pids: DebugPids,
    data: u64,
    address: DebugAddress,
}

impl Default for DebugPort {
    fn default() -> Self {
        Self {
            control: DebugControl::new(),
            pids: DebugPids::new(),
            data: 0,
            address: DebugAddress::new().with_device(0x7f).with_endpoint(1),
        }
    }
}

/// What came of a transaction: the PID received and how many bytes, or the exception.
type Answer = Result<(u8, u8), u8>;

impl DebugPort {
    /// The registers as they were saved.
    pub(super) fn restored(mut self) -> Self {
        self.control.set_len(self.control.len().min(PACKET));
        self
    }

    /// A register, given the port it belongs to.
    pub(super) fn read(&self, at: u64, port: &RootPort) -> u32 {
        match at {
            debug::CONTROL => {
                self.control.with_owner(port.claimed()).with_enabled(port.debugging()).into()
            }
            debug::PIDS => self.pids.into(),
            debug::DATA => self.data as u32,
            debug::DATA_HIGH => (self.data >> 32) as u32,
            debug::ADDRESS => self.address.into(),
            _ => 0,
        }
    }

    /// The bits of `mask` in a register become those of `value`.
    pub(super) fn write(
        &mut self,
        at: u64,
        (value, mask): (u32, u32),
        now: Time,
        port: &mut RootPort,
    ) -> PortEvents {
        let wide = |half: u32| u64::from(half);
        let mut events = PortEvents::default();
        match at {
            debug::CONTROL => events = self.write_control(value, mask, now, port),
            debug::PIDS => {
                let mask = mask & DebugPids::WRITABLE;
                self.pids = ((u32::from(self.pids) & !mask) | (value & mask)).into();
            }
            debug::DATA => self.data = (self.data & !wide(mask)) | wide(value & mask),
            debug::DATA_HIGH => {
                let (value, mask) = (wide(value & mask) << 32, wide(mask) << 32);
                self.data = (self.data & !mask) | value;
            }
            debug::ADDRESS => {
                let mask = mask & DebugAddress::WRITABLE;
                self.address = ((u32::from(self.address) & !mask) | (value & mask)).into();
            }
            _ => {}
        }
        events
    }

    fn write_control(
        &mut self,
        value: u32,
        mask: u32,
        now: Time,
        port: &mut RootPort,
    ) -> PortEvents {
        let old = self.read(debug::CONTROL, port);
        let wanted = DebugControl::from((old & !mask) | (value & mask));
        let asked = DebugControl::from(value & mask);
        let mut events = port.claim(wanted.owner());
        events.merge(port.set_debugging(wanted.enabled()));
        self.control.set_in_use(wanted.in_use());
        self.control.set_write(wanted.write());
        self.control.set_len(wanted.len().min(PACKET));
        if asked.done() {
            self.control.set_done(false);
        }
        if asked.go() {
            let answer =
                if port.takes_debug() { self.transact(now, port) } else { Err(HARDWARE_ERROR) };
            self.conclude(answer);
        }
        events
    }

    /// Shows how the transaction went (EHCI C.4).
    fn conclude(&mut self, answer: Answer) {
        let (received, len) = answer.unwrap_or_default();
        self.pids.set_received(received);
        if !self.control.write() {
            self.control.set_len(len);
        }
        self.control.set_error(answer.is_err());
        self.control.set_exception(answer.err().unwrap_or(0));
        self.control.set_done(true);
    }

    /// One transaction with the addressed device.
    fn transact(&mut self, now: Time, port: &RootPort) -> Answer {
        let token = match (self.pids.token(), self.control.write()) {
            (pid::OUT, true) => Pid::Out,
            (pid::SETUP, true) => Pid::Setup,
            (pid::IN, false) => Pid::In,
            // Nobody knows what that is for.
            _ => return Err(TRANSACTION_ERROR),
        };
        let address = self.address.device();
        let reached = port.link().with(|function| {
            function.reach(address, |function| match token {
                Pid::In => self.receive(now, function),
                _ => self.send(now, token, function),
            })
        });
        reached.flatten().unwrap_or(Err(TRANSACTION_ERROR))
    }

    /// Sends the data registers.
    fn send(&self, now: Time, token: Pid, function: &mut Function) -> Answer {
        let toggle = match self.pids.data() {
            pid::DATA0 => Toggle::Data0,
            pid::DATA1 => Toggle::Data1,
            _ => return Err(TRANSACTION_ERROR),
        };
        let len = usize::from(self.control.len());
        let mut bytes = self.data.to_le_bytes().to_vec();
        bytes.truncate(len);
        match self.offer(now, token, toggle, function, &mut bytes) {
            Outcome { bytes, status: Status::Complete } if bytes == len => Ok((pid::ACK, 0)),
            // What is not taken whole is not acknowledged.
            Outcome { status: Status::Complete, .. } => Ok((pid::NAK, 0)),
            outcome => refusal(outcome),
        }
    }

    /// Asks for up to as many bytes as the data registers hold. The toggle is not checked.
    fn receive(&mut self, now: Time, function: &mut Function) -> Answer {
        let toggle = function.next_toggle(self.address.endpoint());
        let mut bytes = vec![0; self.control.len().into()];
        match self.offer(now, Pid::In, toggle, function, &mut bytes) {
            Outcome { bytes: len, status: Status::Complete } => {
                let mut data = [0; PACKET as usize];
                data.iter_mut().zip(bytes.iter().take(len)).for_each(|(to, from)| *to = *from);
                self.data = u64::from_le_bytes(data);
                let len = u8::try_from(len.min(bytes.len())).unwrap_or(PACKET);
                Ok((if toggle.bit() { pid::DATA1 } else { pid::DATA0 }, len))
            }
            outcome => refusal(outcome),
        }
    }

    fn offer(
        &self,
        now: Time,
        token: Pid,
        toggle: Toggle,
        function: &mut Function,
        bytes: &mut Vec<u8>,
    ) -> Outcome {
        let endpoint = self.address.endpoint();
        let max_packet = if endpoint == 0 { 64 } else { PACKET.into() };
        let transfer = Transfer { pid: token, endpoint, max_packet, toggle, now, buffer: bytes };
        let outcome = function.transact(transfer);
        if outcome.status == Status::Pending {
            // There is one attempt: whoever has begun may as well stop.
            function.cancel_transfer(token, endpoint);
        }
        outcome
    }
}

/// What a transaction without success shows.
fn refusal(outcome: Outcome) -> Answer {
    match outcome.status {
        Status::Nak(Readiness::Poll | Readiness::Announced) | Status::Pending => Ok((pid::NAK, 0)),
        Status::Stall => Ok((pid::STALL, 0)),
        Status::Complete | Status::Error(_) => Err(TRANSACTION_ERROR),
    }
}
