//! A host without a controller: it moves transfers straight between a test and the device in a port,
//! in pieces as large as a controller would hand over.

use std::collections::HashMap;

use vm_usb::time::Time;
use vm_usb::topology::{Host, Port, PortLink};
use vm_usb::usb::{
    BusError, EndpointAddress, Outcome, Pid, Readiness, SetupPacket, Speed, Status, Suspension,
    Toggle, Transfer, UsbDevice,
};

use super::host::{Device, HostDriver, Pipe, TransferError, setup_bytes};

/// One port, and a driver's toggles.
pub struct DirectHost {
    pub port: Port,
    pub link: PortLink,
    pub now: Time,
    /// Most bytes of one transfer.
    pub piece: usize,
    toggles: HashMap<(u8, EndpointAddress), Toggle>,
}

impl DirectHost {
    /// A host that offers up to `speed`, with `device` plugged in.
    pub fn new(speed: Speed, device: impl UsbDevice + 'static) -> Self {
        let (port, host) = match speed {
            Speed::High => (Port::high_speed_only(), Host::High),
            _ => (Port::classic(), Host::Classic),
        };
        port.attach(Box::new(device)).map_err(|refused| refused.reason).unwrap();
        Self {
            link: port.link(host),
            port,
            now: Time::from_nanos(1_000_000_000),
            piece: 16 << 10,
            toggles: HashMap::new(),
        }
    }

    /// The driver goes on where that of `other` stopped.
    pub fn adopt_toggles(&mut self, other: &Self) {
        self.toggles = other.toggles.clone();
    }

    /// One transfer to `pipe` as a controller would offer it.
    pub fn transact(&mut self, pipe: &Pipe, pid: Pid, buffer: &mut Vec<u8>) -> Outcome {
        let key = (pipe.device.address, pipe.endpoint);
        let toggle = self.toggles.get(&key).copied().unwrap_or_default();
        let asked = buffer.len();
        let outcome = self.offer(pipe, pid, toggle, buffer);
        let packets = outcome.packets(pid, asked, pipe.max_packet);
        self.toggles.insert(key, toggle.after(packets));
        outcome
    }

    fn offer(&mut self, pipe: &Pipe, pid: Pid, toggle: Toggle, buffer: &mut Vec<u8>) -> Outcome {
        let now = self.now;
        let outcome = self.link.with(|function| {
            function.reach(pipe.device.address, |function| {
                function.transact(Transfer {
                    now,
                    pid,
                    endpoint: pipe.endpoint.number(),
                    max_packet: pipe.max_packet,
                    toggle,
                    buffer,
                })
            })
        });
        outcome.flatten().unwrap_or(Outcome::TIMEOUT)
    }

    /// The bus goes idle or comes back.
    pub fn suspension(&mut self, suspension: Suspension) {
        self.link.with(|function| function.suspension(suspension));
    }

    /// A stage of a control transfer; returns the bytes moved.
    fn stage(
        &mut self,
        pipe: &Pipe,
        pid: Pid,
        toggle: Toggle,
        buffer: &mut Vec<u8>,
    ) -> Result<usize, TransferError> {
        let outcome = self.offer(pipe, pid, toggle, buffer);
        finished(outcome).map(|()| outcome.bytes)
    }
}

/// How often a transfer that failed or was NAKed is tried again before the host gives up.
struct Patience {
    errors: u32,
    naks: u32,
}

impl Patience {
    /// As controllers have it: three errors in a row.
    const NEW: Self = Self { errors: 3, naks: 100 };

    /// Whether to offer the rest of the transfer again.
    fn again(&mut self, outcome: Outcome) -> bool {
        if outcome.bytes != 0 {
            self.errors = Self::NEW.errors;
        }
        let left = match outcome.status {
            Status::Error(BusError::Babble) => return false,
            Status::Error(_) => &mut self.errors,
            Status::Nak(Readiness::Poll) => &mut self.naks,
            _ => return false,
        };
        *left = left.saturating_sub(1);
        *left != 0
    }
}

fn finished(outcome: Outcome) -> Result<(), TransferError> {
    match outcome.status {
        Status::Complete => Ok(()),
        Status::Nak(_) | Status::Pending => Err(TransferError::TimedOut),
        Status::Stall => Err(TransferError::Stall),
        Status::Error(BusError::Babble) => Err(TransferError::Babble),
        Status::Error(_) => Err(TransferError::NoAnswer),
    }
}

impl HostDriver for DirectHost {
    fn ports(&mut self) -> usize {
        1
    }

    fn connected(&mut self, _port: usize) -> bool {
        self.link.view().device.is_some()
    }

    fn reset_port(&mut self, _port: usize) -> Option<Speed> {
        self.toggles.clear();
        let fastest = self.link.fastest();
        self.link.with(|function| function.bus_reset(fastest))
    }

    fn control(
        &mut self,
        device: &Device,
        setup: SetupPacket,
        data: &[u8],
    ) -> Result<Vec<u8>, TransferError> {
        let pipe = Pipe::control(device);
        let mut packet = setup_bytes(&setup).to_vec();
        self.stage(&pipe, Pid::Setup, Toggle::Data0, &mut packet)?;
        let mut answer = Vec::new();
        let status = if setup.bm_request_type & 0x80 != 0 && setup.length() != 0 {
            answer = vec![0; setup.length().into()];
            let count = self.stage(&pipe, Pid::In, Toggle::Data1, &mut answer)?;
            answer.truncate(count);
            Pid::Out
        } else {
            if !data.is_empty() {
                self.stage(&pipe, Pid::Out, Toggle::Data1, &mut data.to_vec())?;
            }
            Pid::In
        };
        self.stage(&pipe, status, Toggle::Data1, &mut Vec::new())?;
        Ok(answer)
    }

    fn send(&mut self, pipe: &Pipe, data: &[u8]) -> Result<(), TransferError> {
        let mut rest = data;
        let mut patience = Patience::NEW;
        loop {
            let mut piece = rest[..rest.len().min(self.piece)].to_vec();
            let outcome = self.transact(pipe, Pid::Out, &mut piece);
            rest = &rest[outcome.bytes..];
            if patience.again(outcome) {
                continue;
            }
            finished(outcome)?;
            if rest.is_empty() {
                return Ok(());
            }
            assert_ne!(outcome.bytes, 0, "a device that takes no bytes says NAK");
        }
    }

    fn receive(&mut self, pipe: &Pipe, len: usize) -> Result<Vec<u8>, TransferError> {
        let mut data = Vec::new();
        let mut patience = Patience::NEW;
        loop {
            let asked = (len - data.len()).min(self.piece);
            let mut piece = vec![0; asked];
            let outcome = self.transact(pipe, Pid::In, &mut piece);
            data.extend(&piece[..outcome.bytes]);
            if patience.again(outcome) {
                continue;
            }
            finished(outcome)?;
            if outcome.bytes < asked || data.len() == len {
                return Ok(data);
            }
        }
    }

    fn poll(&mut self, pipe: &Pipe, len: usize, millis: u64) -> Result<Vec<u8>, TransferError> {
        let mut waited = 0;
        loop {
            match self.receive(pipe, len) {
                Err(TransferError::TimedOut) if waited < millis => {
                    self.sleep_millis(1);
                    waited += 1;
                }
                result => return result,
            }
        }
    }

    fn reset_toggle(&mut self, pipe: &Pipe) {
        self.toggles.remove(&(pipe.device.address, pipe.endpoint));
    }

    fn sleep_millis(&mut self, millis: u64) {
        self.now = self.now.after_millis(millis);
    }
}
