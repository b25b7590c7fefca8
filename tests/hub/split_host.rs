//! A host that speaks to devices behind a hub's translator in splits.

use vm_usb::devices::hub::HubOptions;
use vm_usb::usb::{
    CompleteAnswer, CompleteSplit, EndpointAddress, Pid, SetupPacket, Speed, SplitPosition,
    SplitToken, StartAnswer, StartSplit, Toggle, TransferType,
};

use crate::driver::enumerate::Enumerated;
use crate::driver::host::{Device, HostDriver, Pipe, TransferError, setup_bytes};
use crate::driver::hub::HubDriver;
use crate::driver::scripted::Controls;
use crate::rig::{HUB, Rig, plug};

pub const NYET: CompleteAnswer = CompleteAnswer::Nyet;
pub const DATA: CompleteAnswer = CompleteAnswer::Data { last: true };
pub const MDATA: CompleteAnswer = CompleteAnswer::Data { last: false };

/// A rig whose host speaks to devices behind the hub's first port in splits.
pub struct SplitHost {
    pub rig: Rig,
    pub microframe: u64,
    toggles: std::collections::HashMap<(u8, EndpointAddress), Toggle>,
}

impl SplitHost {
    pub fn new(options: HubOptions) -> Self {
        Self { rig: Rig::new(Speed::High, options), microframe: 8000, toggles: Default::default() }
    }

    pub fn token(&self, device: &Device, endpoint: u8, pid: Pid, kind: TransferType) -> SplitToken {
        SplitToken {
            hub: HUB,
            port: 1,
            low_speed: device.speed == Speed::Low,
            transfer_type: kind,
            pid,
            device: device.address,
            endpoint,
        }
    }

    pub fn start(&mut self, token: SplitToken, toggle: Toggle, data: &[u8]) -> StartAnswer {
        self.start_part(token, SplitPosition::All, toggle, data)
    }

    pub fn start_part(
        &mut self,
        token: SplitToken,
        position: SplitPosition,
        toggle: Toggle,
        data: &[u8],
    ) -> StartAnswer {
        let (now, microframe) = (self.rig.host.now, self.microframe);
        let split = StartSplit { token, position, toggle, data, now, microframe };
        let answer = self.rig.host.link.with(|function| function.start_split(&split));
        answer.flatten().expect("the hub is there")
    }

    pub fn complete(&mut self, token: SplitToken) -> (CompleteAnswer, Vec<u8>) {
        let (now, microframe) = (self.rig.host.now, self.microframe);
        let split = CompleteSplit { token, now, microframe };
        let mut data = Vec::new();
        let answer = self.rig.host.link.with(|function| function.complete_split(&split, &mut data));
        (answer.flatten().expect("the hub is there"), data)
    }

    /// Both halves of a control or bulk transaction.
    pub fn exchange(
        &mut self,
        token: SplitToken,
        toggle: Toggle,
        data: &[u8],
    ) -> Result<Vec<u8>, TransferError> {
        assert_eq!(self.start(token, toggle, data), StartAnswer::Ack);
        match self.complete(token) {
            (CompleteAnswer::Ack | DATA, data) => Ok(data),
            (CompleteAnswer::Nak(_), _) => Err(TransferError::TimedOut),
            (CompleteAnswer::Stall, _) => Err(TransferError::Stall),
            (other, _) => panic!("unexpected answer {other:?}"),
        }
    }

    pub fn next_microframe(&mut self) {
        self.microframe += 1;
        self.rig.host.now = self.rig.host.now.after_micros(125);
    }

    /// Brings up the device behind port 1.
    pub fn enumerate(&mut self, address: u8) -> Enumerated {
        let hub: HubDriver = self.rig.hub;
        crate::driver::enumerate::enumerate_after(self, address, &mut |host| {
            hub.reset_port(host, 1)
        })
        .unwrap()
    }
}

impl HostDriver for SplitHost {
    fn ports(&mut self) -> usize {
        1
    }

    fn connected(&mut self, port: usize) -> bool {
        self.rig.host.connected(port)
    }

    fn reset_port(&mut self, port: usize) -> Option<Speed> {
        self.rig.host.reset_port(port)
    }

    fn control(
        &mut self,
        device: &Device,
        setup: SetupPacket,
        data: &[u8],
    ) -> Result<Vec<u8>, TransferError> {
        if device.speed == Speed::High {
            return self.rig.host.control(device, setup, data);
        }
        let token = |host: &Self, pid| host.token(device, 0, pid, TransferType::Control);
        let packet = setup_bytes(&setup);
        self.exchange(token(self, Pid::Setup), Toggle::Data0, &packet)?;
        let size = usize::from(device.control_packet);
        let (mut toggle, mut answer) = (Toggle::Data1, Vec::new());
        let into_host = setup.bm_request_type & 0x80 != 0;
        if into_host {
            while answer.len() < usize::from(setup.length()) {
                let part = self.exchange(token(self, Pid::In), toggle, &[])?;
                answer.extend(&part);
                toggle = toggle.after(1);
                if part.len() < size {
                    break;
                }
            }
            answer.truncate(setup.length().into());
        } else {
            for part in data.chunks(size) {
                self.exchange(token(self, Pid::Out), toggle, part)?;
                toggle = toggle.after(1);
            }
        }
        let status = if into_host && setup.length() != 0 { Pid::Out } else { Pid::In };
        self.exchange(token(self, status), Toggle::Data1, &[])?;
        Ok(answer)
    }

    fn send(&mut self, pipe: &Pipe, data: &[u8]) -> Result<(), TransferError> {
        let token = self.token(&pipe.device, pipe.endpoint.number(), Pid::Out, TransferType::Bulk);
        let key = (pipe.device.address, pipe.endpoint);
        for part in data.chunks(pipe.max_packet.into()) {
            let toggle = self.toggles.get(&key).copied().unwrap_or_default();
            self.exchange(token, toggle, part)?;
            self.toggles.insert(key, toggle.after(1));
        }
        Ok(())
    }

    fn receive(&mut self, pipe: &Pipe, len: usize) -> Result<Vec<u8>, TransferError> {
        let token = self.token(&pipe.device, pipe.endpoint.number(), Pid::In, TransferType::Bulk);
        let key = (pipe.device.address, pipe.endpoint);
        let mut data = Vec::new();
        while data.len() < len {
            let toggle = self.toggles.get(&key).copied().unwrap_or_default();
            let part = self.exchange(token, toggle, &[])?;
            self.toggles.insert(key, toggle.after(1));
            data.extend(&part);
            if part.len() < pipe.max_packet.into() {
                break;
            }
        }
        Ok(data)
    }

    fn poll(&mut self, pipe: &Pipe, len: usize, _millis: u64) -> Result<Vec<u8>, TransferError> {
        self.receive(pipe, len)
    }

    fn reset_toggle(&mut self, pipe: &Pipe) {
        self.toggles.remove(&(pipe.device.address, pipe.endpoint));
    }

    fn sleep_millis(&mut self, millis: u64) {
        for _ in 0..millis * 8 {
            self.next_microframe();
        }
    }
}

/// A host that has brought up a device of this speed behind port 1.
pub fn behind(speed: Speed, options: HubOptions) -> (SplitHost, Device, Controls) {
    let mut host = SplitHost::new(options);
    let controls = plug(&host.rig.ports[0], speed);
    let device = host.enumerate(5).device;
    controls.take_seen();
    (host, device, controls)
}

/// The same at full speed, behind a hub like any other.
pub fn full() -> (SplitHost, Device, Controls) {
    behind(Speed::Full, HubOptions::default())
}
