//! A driver's program, and what comes of it on each bus.

use vm_usb::usb::{EndpointAddress, SetupPacket, request};

use crate::buses::{Bus, FULL_SPEED, Wiring};
use crate::driver::enumerate::Enumerated;
use crate::driver::host::{Pipe, TransferError};
use crate::witness::{Reply, Saw, vendor};

/// One thing that a driver does.
#[derive(Clone, Debug)]
pub enum Step {
    /// A request with a data stage to the device, of so many bytes.
    Put(u16),
    /// A request that asks for so many bytes, of a device that has so many.
    Get(u16, u16),
    /// A request that the device does not know.
    Refused(u16),
    /// Bytes to bulk endpoint 1 or 2; how the device answers.
    Send(u8, usize, Vec<Reply>),
    /// Bytes from bulk endpoint 1 or 2: packets asked for, bytes the device has.
    Receive(u8, usize, usize, Vec<Reply>),
    /// A packet to, or from, interrupt endpoint 3.
    Tell(usize, Vec<Reply>),
    Poll(usize, Vec<Reply>),
    /// Nothing is there to be polled.
    PollInVain,
    /// Isochronous packets of these sizes, to or from endpoint 4. Full speed only.
    Stream(Vec<u16>),
    Hear(Vec<u16>),
    /// CLEAR_FEATURE(ENDPOINT_HALT) of an endpoint, IN or OUT.
    ClearHalt(u8, bool),
    /// GET_STATUS of an endpoint.
    Status(u8, bool),
    /// SET_FEATURE(ENDPOINT_HALT).
    SetHalt(u8, bool),
    Configure,
    Pause(u16),
    Pull,
    /// Plugs the device in again, if it is pulled, and enumerates it.
    Plug,
}

/// What a program is, and on which buses it can be compared.
#[derive(Clone, Debug)]
pub struct Program {
    /// High speed is compared too: by bytes, as its packets are larger.
    pub high: bool,
    pub steps: Vec<Step>,
}

/// What the driver was told of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Got(Vec<u8>),
    Failed(TransferError),
    /// There was no device: each bus has its own way of saying so.
    Gone,
    /// The device's identity and endpoints.
    Found((u16, u16), Vec<(u8, u8)>),
    NotFound,
}

/// What came of a program: after each step what the driver was told, and what the device saw.
pub type Account = Vec<(Told, Vec<Saw>)>;

/// A driver that carries out a program on one bus.
struct Player {
    bus: Bus,
    found: Option<Enumerated>,
    wiring: Wiring,
    high: bool,
    /// Counts bytes, so that no two transfers carry the same.
    seed: usize,
}

fn endpoint(number: u8, input: bool) -> EndpointAddress {
    if input { EndpointAddress::r#in(number) } else { EndpointAddress::out(number) }
}

impl Player {
    fn pattern(&mut self, len: usize) -> Vec<u8> {
        self.seed += 1;
        (0..len).map(|n| (n * 7 + n / 251 + self.seed * 31) as u8).collect()
    }

    fn pipe(&self, address: EndpointAddress) -> Option<Pipe> {
        let found = self.found.as_ref()?;
        let endpoints = &found.interfaces[0].endpoints;
        let endpoint = endpoints.iter().find(|e| e.address == address)?;
        // The interval of a bulk endpoint is none.
        let interval = if endpoint.attributes & 3 == 2 { 0 } else { endpoint.interval };
        Some(Pipe { interval, ..found.pipe(endpoint) })
    }

    /// A request to the device; after a failure there may be no device.
    fn request(&mut self, setup: SetupPacket, data: &[u8]) -> Told {
        let Some(device) = self.found.as_ref().map(|found| found.device) else {
            return Told::Gone;
        };
        let result = self.bus.driver.host().control(&device, setup, data);
        self.told(result)
    }

    fn told(&self, result: Result<Vec<u8>, TransferError>) -> Told {
        match result {
            Ok(data) => Told::Got(data),
            Err(_) if !self.bus.is_plugged() => Told::Gone,
            Err(error) => Told::Failed(error),
        }
    }

    /// A transfer, whose device answers so.
    fn transfer(
        &mut self,
        address: EndpointAddress,
        replies: &[Reply],
        act: impl FnOnce(&mut Bus, &Pipe) -> Result<Vec<u8>, TransferError>,
    ) -> Told {
        let Some(pipe) = self.pipe(address) else { return Told::Gone };
        self.bus.diary.reply(address, replies);
        let result = act(&mut self.bus, &pipe);
        self.bus.diary.settle();
        self.told(result)
    }

    /// A device has `say` bytes for a host that asks for `ask`.
    fn receive(
        &mut self,
        address: EndpointAddress,
        (ask, say): (usize, usize),
        replies: &[Reply],
    ) -> Told {
        let message = self.pattern(say);
        self.transfer(address, replies, |bus, pipe| {
            bus.diary.say(address, message);
            let host = bus.driver.host();
            if pipe.interval == 0 { host.receive(pipe, ask) } else { host.poll(pipe, ask, 500) }
        })
    }

    fn send(&mut self, address: EndpointAddress, len: usize, replies: &[Reply]) -> Told {
        let data = self.pattern(len);
        self.transfer(address, replies, |bus, pipe| {
            bus.driver.host().send(pipe, &data).map(|()| Vec::new())
        })
    }

    /// Isochronous packets of these sizes, which the device has to say or the host has.
    fn stream(&mut self, input: bool, sizes: &[u16]) -> Told {
        // There is no handshake: not every bus can tell.
        if !self.bus.is_plugged() {
            return Told::Gone;
        }
        let address = endpoint(4, input);
        let mut packets: Vec<_> = sizes.iter().map(|size| self.pattern((*size).into())).collect();
        if input {
            for packet in &mut packets {
                let heard = std::mem::replace(packet, vec![0; 1023]);
                self.bus.diary.say(address, heard);
            }
        }
        self.transfer(address, &[], |bus, pipe| {
            bus.driver.isochronous(pipe, &mut packets)?;
            let cut = |packet: Vec<u8>| [(packet.len() as u16).to_le_bytes().to_vec(), packet];
            Ok(if input { packets.into_iter().flat_map(cut).flatten().collect() } else { vec![] })
        })
    }

    fn reset_toggle(&mut self, address: EndpointAddress) {
        if let Some(pipe) = self.pipe(address) {
            self.bus.driver.host().reset_toggle(&pipe);
        }
    }

    fn step(&mut self, step: &Step) -> Told {
        match step {
            Step::Put(len) => {
                let data = self.pattern((*len).into());
                self.request(SetupPacket::new(0x40, vendor::PUT, 0, 0, *len), &data)
            }
            Step::Get(ask, has) => {
                let index = self.seed as u16;
                self.request(SetupPacket::new(0xc0, vendor::GET, *has, index, *ask), &[])
            }
            Step::Refused(len) => {
                self.request(SetupPacket::new(0xc0, vendor::REFUSE, 0, 0, *len), &[])
            }
            Step::Send(number, len, replies) => self.send(endpoint(*number, false), *len, replies),
            Step::Receive(number, packets, say, replies) => {
                self.receive(endpoint(*number, true), (packets * 512, *say), replies)
            }
            Step::Tell(len, replies) => self.send(endpoint(3, false), *len, replies),
            Step::Poll(say, replies) => self.receive(endpoint(3, true), (64, *say), replies),
            Step::PollInVain => self
                .transfer(endpoint(3, true), &[], |bus, pipe| bus.driver.host().poll(pipe, 64, 40)),
            // There is no such endpoint where high speed is compared.
            Step::Stream(_) | Step::Hear(_) if self.high => Told::Gone,
            Step::Stream(sizes) => self.stream(false, sizes),
            Step::Hear(sizes) => self.stream(true, sizes),
            Step::ClearHalt(number, input) => {
                let address = endpoint(*number, *input);
                let told = self.request(
                    SetupPacket::new(2, request::CLEAR_FEATURE, 0, address.byte().into(), 0),
                    &[],
                );
                if told == Told::Got(Vec::new()) {
                    self.reset_toggle(address);
                }
                told
            }
            Step::SetHalt(number, input) => {
                let address = endpoint(*number, *input).byte().into();
                self.request(SetupPacket::new(2, request::SET_FEATURE, 0, address, 0), &[])
            }
            Step::Status(number, input) => {
                let address = endpoint(*number, *input).byte().into();
                self.request(SetupPacket::new(0x82, request::GET_STATUS, 0, address, 2), &[])
            }
            Step::Configure => {
                let set = SetupPacket::new(0, request::SET_CONFIGURATION, 1, 0, 0);
                let told = self.request(set, &[]);
                if told == Told::Got(Vec::new()) {
                    for number in 1..=3 {
                        self.reset_toggle(endpoint(number, false));
                        self.reset_toggle(endpoint(number, true));
                    }
                }
                told
            }
            Step::Pause(millis) => {
                self.bus.driver.host().sleep_millis((*millis).into());
                Told::Got(Vec::new())
            }
            Step::Pull => {
                if self.bus.is_plugged() {
                    self.bus.pull();
                }
                Told::Gone
            }
            Step::Plug => {
                if self.bus.is_plugged() {
                    self.bus.pull();
                }
                self.found = self.bus.plug().ok();
                match &self.found {
                    Some(found) => {
                        assert_eq!(found.device.speed, self.wiring.speed());
                        let endpoints = found.interfaces[0].endpoints.iter();
                        let endpoints = endpoints.filter(|e| e.attributes & 3 != 1);
                        let endpoints = endpoints.map(|e| (e.address.byte(), e.attributes));
                        Told::Found(found.id(), endpoints.collect())
                    }
                    None => Told::NotFound,
                }
            }
        }
    }
}

impl Program {
    /// Carries the program out.
    fn play(&self, wiring: Wiring) -> Account {
        let unit = if self.high { 512 } else { 64 };
        let bus = Bus::new(wiring, unit);
        let mut player = Player { bus, found: None, wiring, high: self.high, seed: 0 };
        let steps = [Step::Plug];
        let steps = steps.iter().chain(&self.steps);
        steps.map(|step| (player.step(step), player.bus.diary.take())).collect()
    }

    /// Asserts that all buses give the same account.
    pub fn check(&self) {
        let high = self.high.then_some(Wiring::High);
        self.check_on(&[&FULL_SPEED[1..], high.as_slice()].concat());
    }

    /// Asserts that these give the account that the first does.
    pub fn check_on(&self, others: &[Wiring]) {
        let first = self.play(FULL_SPEED[0]);
        for wiring in others {
            let other = self.play(*wiring);
            if *wiring == Wiring::High {
                self.compare(&bytes_only(first.clone()), &bytes_only(other), *wiring);
            } else {
                self.compare(&first, &other, *wiring);
            }
        }
    }

    fn compare(&self, first: &Account, other: &Account, wiring: Wiring) {
        for (n, (one, two)) in first.iter().zip(other).enumerate() {
            let step = n.checked_sub(1).map(|n| &self.steps[n]);
            assert_eq!(
                one, two,
                "step {n}, {step:?}: {:?} on the left, {wiring:?} on the right, program {self:?}",
                FULL_SPEED[0]
            );
        }
    }
}

/// An account without what depends on the size of packets: the bytes that follow each other on one
/// endpoint become one.
fn bytes_only(account: Account) -> Account {
    let merge = |saw: Vec<Saw>| {
        let mut merged: Vec<Saw> = Vec::new();
        for one in saw {
            match (one, merged.last_mut()) {
                (
                    Saw::Packet { endpoint, data: more, .. },
                    Some(Saw::Packet { endpoint: last, data, .. }),
                ) if *last == endpoint => {
                    data.extend(more);
                }
                (Saw::Packet { endpoint, data, .. }, _) => {
                    merged.push(Saw::Packet { endpoint, toggle: false, data });
                }
                (other, _) => merged.push(other),
            }
        }
        merged
    };
    account.into_iter().map(|(told, saw)| (told, merge(saw))).collect()
}
