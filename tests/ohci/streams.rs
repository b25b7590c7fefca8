//! A device whose bulk endpoints carry endless streams of known bytes, and take their time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use vm_usb::usb::{
    Configuration, Description, Endpoint, EndpointAddress, Interface, Notifier, Outcome, Pid,
    Readiness, Speeds, Status, Transfer, TransferType, UsbDevice,
};

/// What an endpoint does when it is asked next.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// Moves this many whole packets, then says NAK and promises to announce.
    Park(usize),
    /// Moves this many whole packets, then says NAK.
    Nak(usize),
    /// Begins, and goes on when asked again.
    Pend,
    /// IN: ends with this many bytes at most.
    Short(usize),
}

#[derive(Default)]
struct Lane {
    acts: VecDeque<Act>,
    /// Bytes moved so far: the stream's position.
    position: usize,
    /// OUT: the bytes.
    taken: Vec<u8>,
}

#[derive(Default)]
struct State {
    lanes: Vec<Lane>,
    notifier: Option<Notifier>,
    /// OUT bytes of endpoint n are answered on IN endpoint n, as a printer answers requests.
    echo: bool,
}

/// The test's hold on the device.
#[derive(Clone)]
pub struct Hold(Arc<Mutex<State>>);

fn lane(endpoint: EndpointAddress) -> usize {
    usize::from(endpoint.number()) * 2 + usize::from(endpoint.is_in())
}

/// Byte `at` of an endpoint's stream.
pub fn byte(endpoint: EndpointAddress, at: usize) -> u8 {
    (at * 7 + at / 256 + lane(endpoint) * 31) as u8
}

impl Hold {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn act(&self, endpoint: EndpointAddress, act: Act) {
        self.state().lanes[lane(endpoint)].acts.push_back(act);
    }

    pub fn forget_acts(&self) {
        for lane in &mut self.state().lanes {
            lane.acts.clear();
        }
    }

    pub fn announce(&self, endpoint: EndpointAddress) {
        let notifier = self.state().notifier.clone().unwrap();
        notifier.ready(endpoint);
    }

    /// What an OUT endpoint took so far.
    pub fn taken(&self, endpoint: EndpointAddress) -> Vec<u8> {
        self.state().lanes[lane(endpoint)].taken.clone()
    }

    /// How much an IN endpoint gave so far.
    pub fn given(&self, endpoint: EndpointAddress) -> usize {
        self.state().lanes[lane(endpoint)].position
    }
}

pub struct Streams {
    description: Description,
    hold: Hold,
}

impl Streams {
    pub fn new(echo: bool) -> (Box<Self>, Hold) {
        let state =
            State { lanes: (0..8).map(|_| Lane::default()).collect(), notifier: None, echo };
        let hold = Hold(Arc::new(Mutex::new(state)));
        let endpoints = (1..4)
            .flat_map(|n| [EndpointAddress::out(n), EndpointAddress::r#in(n)])
            .map(|address| Endpoint::new(address, TransferType::Bulk, 64, 0))
            .collect();
        let description = Description {
            vendor: 0x1209,
            product: 2,
            release: 1,
            class: [0xff, 0, 0],
            control_packet: 64,
            manufacturer: String::new(),
            name: "Streams".into(),
            serial: String::new(),
            speeds: Speeds::Full(vec![Configuration {
                value: 1,
                self_powered: true,
                remote_wakeup: false,
                max_power: 0,
                interfaces: vec![Interface { endpoints, ..Interface::default() }],
            }]),
        };
        (Box::new(Self { description, hold: hold.clone() }), hold)
    }
}

impl State {
    /// Moves up to `limit` bytes.
    fn go(
        &mut self,
        endpoint: EndpointAddress,
        transfer: &mut Transfer<'_>,
        limit: usize,
    ) -> usize {
        let mut count = transfer.buffer.len().min(limit);
        let reply = EndpointAddress::out(endpoint.number());
        if self.echo && endpoint.is_in() {
            let answered = self.lanes[lane(endpoint)].position;
            count = count.min(self.lanes[lane(reply)].taken.len() - answered);
        }
        let lane = &mut self.lanes[lane(endpoint)];
        if transfer.pid == Pid::In {
            let bytes: Vec<u8> = (0..count).map(|n| byte(endpoint, lane.position + n)).collect();
            transfer.buffer.write(0, &bytes);
        } else {
            let mut bytes = vec![0; count];
            transfer.buffer.read(0, &mut bytes);
            lane.taken.extend(bytes);
        }
        lane.position += count;
        if self.echo && !endpoint.is_in() {
            self.notifier.as_ref().unwrap().ready(EndpointAddress::r#in(endpoint.number()));
        }
        count
    }
}

impl UsbDevice for Streams {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.hold.state().notifier = Some(notifier);
    }

    fn configured(&mut self, _value: u8) {}

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let mut state = self.hold.state();
        let act = state.lanes[lane(endpoint)].acts.pop_front();
        let asked = transfer.buffer.len();
        let waits = |state: &mut State, transfer: &mut Transfer<'_>, packets: usize, readiness| {
            // The last packet of a transfer completes it: NAK only what leaves some.
            let whole = (asked.saturating_sub(1) / 64).min(packets) * 64;
            let bytes = state.go(endpoint, transfer, whole);
            Outcome { bytes, status: Status::Nak(readiness) }
        };
        match act {
            None if state.echo && endpoint.is_in() => {
                match state.go(endpoint, transfer, usize::MAX) {
                    0 => Outcome::PARK,
                    bytes => Outcome::complete(bytes),
                }
            }
            None => Outcome::complete(state.go(endpoint, transfer, usize::MAX)),
            Some(Act::Park(packets)) => waits(&mut state, transfer, packets, Readiness::Announced),
            Some(Act::Nak(packets)) => waits(&mut state, transfer, packets, Readiness::Poll),
            Some(Act::Pend) => Outcome::PENDING,
            Some(Act::Short(limit)) if transfer.pid == Pid::In => {
                Outcome::complete(state.go(endpoint, transfer, limit))
            }
            Some(Act::Short(_)) => Outcome::complete(state.go(endpoint, transfer, usize::MAX)),
        }
    }
}
