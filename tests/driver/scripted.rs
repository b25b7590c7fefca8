//! A device whose answers a test writes down beforehand and whose observations it reads afterwards.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use vm_usb::usb::{
    BusError, Configuration, Control, Description, Endpoint, EndpointAddress, Interface,
    LinkAnswer, LinkSleep, Notifier, Outcome, Pid, SetupPacket, Speed, Speeds, Status, Suspension,
    Toggle, Transfer, TransferType, UsbDevice,
};

/// One answer of an endpoint.
#[derive(Clone, Debug)]
pub enum Answer {
    /// IN: this data, cut into packets; what the host does not ask for now is sent next time.
    Data(Vec<u8>),
    /// OUT: take up to this many bytes, then go on with the next answer.
    Take(usize),
    /// NAK, to be asked again.
    Nak,
    /// NAK, with a promise to announce readiness.
    Park,
    /// Begun; offered again after `Scripted::announce`.
    Pending,
    Stall,
    Error(BusError),
}

/// What the device saw at an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// One transfer as it was offered, and how it was answered.
    Transfer {
        pid: Pid,
        endpoint: u8,
        max_packet: u16,
        toggle: Toggle,
        len: usize,
        outcome: Outcome,
    },
    Cancel(EndpointAddress),
    Configured(u8),
    Suspension(Suspension),
    /// The request to sleep in L1.
    Sleep(LinkSleep),
    Request(SetupPacket, Vec<u8>),
}

#[derive(Default)]
struct Script {
    /// An endpoint whose answers are used up takes OUT data and NAKs IN tokens.
    answers: HashMap<u8, VecDeque<Answer>>,
    seen: Vec<Seen>,
    received: HashMap<u8, Vec<u8>>,
    /// Answers to class and vendor requests, in order; used up means STALL.
    requests: VecDeque<Vec<u8>>,
    notifier: Option<Notifier>,
    /// The answer to requests to sleep.
    sleep: LinkAnswer,
}

/// The test's hold on a [`Scripted`] device, wherever it is plugged in.
#[derive(Clone, Default)]
pub struct Controls {
    script: Arc<Mutex<Script>>,
}

impl Controls {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// Appends answers of one endpoint.
    pub fn answer(&self, endpoint: EndpointAddress, answers: impl IntoIterator<Item = Answer>) {
        self.script().answers.entry(endpoint.byte()).or_default().extend(answers);
    }

    /// Appends an answer to a class or vendor request.
    pub fn answer_request(&self, data: &[u8]) {
        self.script().requests.push_back(data.to_vec());
    }

    /// Sets the answer to requests to sleep in L1.
    pub fn answer_sleep(&self, answer: LinkAnswer) {
        self.script().sleep = answer;
    }

    /// Forgets the answers an endpoint has left.
    pub fn forget(&self, endpoint: EndpointAddress) {
        self.script().answers.remove(&endpoint.byte());
    }

    /// Tells the host that an endpoint has something to say.
    pub fn announce(&self, endpoint: EndpointAddress) {
        let notifier = self.script().notifier.clone();
        notifier.expect("the device is plugged in").ready(endpoint);
    }

    /// Asks for resume signalling.
    pub fn remote_wakeup(&self) {
        let notifier = self.script().notifier.clone();
        notifier.expect("the device is plugged in").remote_wakeup();
    }

    /// Everything the device saw since the last look.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.script().seen)
    }

    /// The transfers among what the device saw since the last look: PID, endpoint, length, outcome.
    pub fn take_transfers(&self) -> Vec<(Pid, u8, usize, Outcome)> {
        self.take_seen()
            .into_iter()
            .filter_map(|seen| match seen {
                Seen::Transfer { pid, endpoint, len, outcome, .. } => {
                    Some((pid, endpoint, len, outcome))
                }
                _ => None,
            })
            .collect()
    }

    /// The bytes an OUT endpoint took since the last look.
    pub fn take_received(&self, endpoint: EndpointAddress) -> Vec<u8> {
        self.script().received.remove(&endpoint.byte()).unwrap_or_default()
    }
}

/// The device: bulk endpoints 1 and 2 and interrupt endpoint 3, each IN and OUT.
pub struct Scripted {
    description: Description,
    controls: Controls,
}

impl Scripted {
    /// A device that works at `speed`, and at full speed if that is high.
    pub fn new(speed: Speed) -> (Self, Controls) {
        let controls = Controls::default();
        let description = Description {
            vendor: 0x1209,
            product: 0x0001,
            release: 0x0100,
            class: [0xff, 0, 0],
            control_packet: if speed == Speed::Low { 8 } else { 64 },
            manufacturer: "vm-usb".into(),
            name: "Scripted".into(),
            serial: "1".into(),
            speeds: match speed {
                Speed::Low => Speeds::Low(vec![configuration(Speed::Low)]),
                Speed::Full => Speeds::Full(vec![configuration(Speed::Full)]),
                Speed::High => Speeds::High {
                    high: vec![configuration(Speed::High)],
                    full: vec![configuration(Speed::Full)],
                },
            },
        };
        (Self { description, controls: controls.clone() }, controls)
    }

    /// Changes what the device is, before it is plugged in.
    pub fn description_mut(&mut self) -> &mut Description {
        &mut self.description
    }
}

fn configuration(speed: Speed) -> Configuration {
    let (bulk, interrupt) = match speed {
        Speed::Low => (8, 8),
        Speed::Full => (64, 64),
        Speed::High => (512, 64),
    };
    let endpoint =
        |address, transfer_type, max_packet| Endpoint::new(address, transfer_type, max_packet, 1);
    let pair = |number, kind, size| {
        [EndpointAddress::out(number), EndpointAddress::r#in(number)]
            .map(|address| endpoint(address, kind, size))
    };
    Configuration {
        value: 1,
        self_powered: true,
        remote_wakeup: true,
        max_power: 0,
        interfaces: vec![Interface {
            class: [0xff, 0, 0],
            endpoints: [
                pair(1, TransferType::Bulk, bulk),
                pair(2, TransferType::Bulk, bulk),
                pair(3, TransferType::Interrupt, interrupt),
            ]
            .concat(),
            ..Interface::default()
        }],
    }
}

impl Script {
    fn transfer(&mut self, address: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let answers = self.answers.entry(address.byte()).or_default();
        let answer = answers.pop_front().unwrap_or(match transfer.pid {
            Pid::In => Answer::Nak,
            _ => Answer::Take(usize::MAX),
        });
        match answer {
            Answer::Data(bytes) => {
                let outcome = transfer.send(&bytes);
                if outcome.status == Status::Complete && outcome.bytes < bytes.len() {
                    answers.push_front(Answer::Data(bytes[outcome.bytes..].to_vec()));
                }
                outcome
            }
            Answer::Take(limit) => {
                let mut bytes = vec![0; transfer.buffer.len().min(limit)];
                transfer.buffer.read(0, &mut bytes);
                self.received.entry(address.byte()).or_default().extend(&bytes);
                Outcome::complete(bytes.len())
            }
            Answer::Nak => Outcome::NAK,
            Answer::Park => Outcome::PARK,
            Answer::Pending => Outcome::PENDING,
            Answer::Stall => Outcome::STALL,
            Answer::Error(error) => Outcome::failed(0, error),
        }
    }
}

impl UsbDevice for Scripted {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.controls.script().notifier = Some(notifier);
    }

    fn configured(&mut self, value: u8) {
        self.controls.script().seen.push(Seen::Configured(value));
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        let mut script = self.controls.script();
        script.seen.push(Seen::Request(*request, data.clone()));
        match script.requests.pop_front() {
            Some(answer) => {
                *data = answer;
                Control::Done
            }
            None => Control::Stall,
        }
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let mut script = self.controls.script();
        let outcome = script.transfer(endpoint, transfer);
        script.seen.push(Seen::Transfer {
            pid: transfer.pid,
            endpoint: transfer.endpoint,
            max_packet: transfer.max_packet,
            toggle: transfer.toggle,
            len: transfer.buffer.len(),
            outcome,
        });
        outcome
    }

    fn isochronous(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        self.transfer(endpoint, transfer)
    }

    fn cancel(&mut self, endpoint: EndpointAddress) {
        self.controls.script().seen.push(Seen::Cancel(endpoint));
    }

    fn sleep(&mut self, sleep: LinkSleep) -> LinkAnswer {
        let mut script = self.controls.script();
        script.seen.push(Seen::Sleep(sleep));
        script.sleep
    }

    fn suspension(&mut self, suspension: Suspension) {
        self.controls.script().seen.push(Seen::Suspension(suspension));
    }
}
