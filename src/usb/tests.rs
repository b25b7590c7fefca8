//! Chapter 9 of USB 2.0 as a host meets it, token by token.

mod control;
mod packets;
mod requests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::*;
use crate::time::Time;

/// What the device behind was told, and what it answers.
#[derive(Debug, Default)]
struct Log {
    configured: Vec<u8>,
    selected: Vec<(u8, u8)>,
    requests: Vec<(SetupPacket, Vec<u8>)>,
    cancelled: Vec<EndpointAddress>,
    cleared: Vec<EndpointAddress>,
    answers: VecDeque<Answer>,
    received: Vec<u8>,
}

/// How the next transfer goes; without one, IN is NAKed and OUT taken.
#[derive(Clone, Debug)]
enum Answer {
    Send(Vec<u8>),
    Outcome(Outcome),
}

/// A device with two configurations; the first has an interface with two alternate settings.
struct Probe {
    description: Description,
    log: Arc<Mutex<Log>>,
}

const BULK_IN: EndpointAddress = EndpointAddress::r#in(1);
const BULK_OUT: EndpointAddress = EndpointAddress::out(2);
const INTERRUPT_IN: EndpointAddress = EndpointAddress::r#in(3);

fn endpoint(address: EndpointAddress, kind: TransferType, max_packet: u16) -> Endpoint {
    Endpoint::new(address, kind, max_packet, 1)
}

fn configurations(bulk: u16) -> Vec<Configuration> {
    let interface = |number, alternate, endpoints| Interface {
        number,
        alternate,
        class: [0xff, 1, 2],
        name: "Main".into(),
        class_descriptors: vec![4, 0x41, 0xaa, 0xbb],
        endpoints,
    };
    let pair = vec![
        endpoint(BULK_IN, TransferType::Bulk, bulk),
        endpoint(BULK_OUT, TransferType::Bulk, bulk),
    ];
    let configuration = |value, interfaces| Configuration {
        value,
        self_powered: value == 1,
        remote_wakeup: true,
        max_power: 100,
        interfaces,
    };
    let interrupt = vec![endpoint(INTERRUPT_IN, TransferType::Interrupt, 8)];
    vec![
        configuration(1, vec![interface(0, 0, pair.clone()), interface(0, 1, interrupt)]),
        configuration(7, vec![interface(0, 0, pair)]),
    ]
}

fn probe(speed: Speed) -> (Function, Arc<Mutex<Log>>) {
    let log = Arc::new(Mutex::new(Log::default()));
    let description = Description {
        vendor: 0x1209,
        product: 0x000f,
        release: 0x0203,
        class: [0, 0, 0],
        control_packet: 8,
        manufacturer: "Maker".into(),
        name: "Probe".into(),
        serial: "S1".into(),
        speeds: match speed {
            Speed::High => Speeds::High { high: configurations(512), full: configurations(64) },
            _ => Speeds::Full(configurations(64)),
        },
    };
    let device = Probe { description, log: log.clone() };
    let mut function = Function::new(Box::new(device), Notifier::new(Arc::default()));
    function.bus_reset(speed);
    (function, log)
}

impl UsbDevice for Probe {
    fn description(&self) -> &Description {
        &self.description
    }

    fn configured(&mut self, value: u8) {
        self.log.lock().unwrap().configured.push(value);
    }

    fn interface_selected(&mut self, interface: u8, alternate: u8) {
        self.log.lock().unwrap().selected.push((interface, alternate));
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        let mut log = self.log.lock().unwrap();
        log.requests.push((*request, data.clone()));
        match request.b_request {
            0x20 => Control::Done,
            0x21 => {
                data.extend((0..100).map(|n| n as u8));
                Control::Done
            }
            _ => Control::Stall,
        }
    }

    fn transfer(&mut self, _endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let mut log = self.log.lock().unwrap();
        match (log.answers.pop_front(), transfer.pid) {
            (Some(Answer::Send(bytes)), _) => transfer.send(&bytes),
            (Some(Answer::Outcome(outcome)), _) => outcome,
            (None, Pid::In) => Outcome::NAK,
            (None, _) => {
                let mut bytes = vec![0; transfer.buffer.len()];
                transfer.buffer.read(0, &mut bytes);
                log.received.extend(&bytes);
                Outcome::complete(bytes.len())
            }
        }
    }

    fn cancel(&mut self, endpoint: EndpointAddress) {
        self.log.lock().unwrap().cancelled.push(endpoint);
    }

    fn halt_cleared(&mut self, endpoint: EndpointAddress) {
        self.log.lock().unwrap().cleared.push(endpoint);
    }
}

fn token(
    function: &mut Function,
    pid: Pid,
    endpoint: u8,
    max_packet: u16,
    toggle: Toggle,
    buffer: &mut Vec<u8>,
) -> Outcome {
    let now = Time::ZERO;
    function.transact(Transfer { pid, endpoint, max_packet, toggle, now, buffer })
}

fn send_setup(function: &mut Function, setup: [u8; 8]) -> Outcome {
    token(function, Pid::Setup, 0, 8, Toggle::Data0, &mut setup.to_vec())
}

fn ask(function: &mut Function, len: usize) -> (Outcome, Vec<u8>) {
    let mut buffer = vec![0xee; len];
    let outcome = token(function, Pid::In, 0, 8, Toggle::Data1, &mut buffer);
    (outcome, buffer)
}

fn give(function: &mut Function, bytes: &[u8]) -> Outcome {
    token(function, Pid::Out, 0, 8, Toggle::Data1, &mut bytes.to_vec())
}

/// Setup bytes.
fn setup(kind: u8, code: u8, value: u16, index: u16, length: u16) -> [u8; 8] {
    let ([v0, v1], [i0, i1]) = (value.to_le_bytes(), index.to_le_bytes());
    let [l0, l1] = length.to_le_bytes();
    [kind, code, v0, v1, i0, i1, l0, l1]
}

/// A whole control transfer; `None` for a STALL.
fn control(function: &mut Function, bytes: [u8; 8]) -> Option<Vec<u8>> {
    assert_eq!(send_setup(function, bytes), Outcome::complete(8), "a SETUP is never refused");
    let length = u16::from_le_bytes([bytes[6], bytes[7]]);
    if bytes[0] & 0x80 == 0 || length == 0 {
        let (outcome, _) = ask(function, 0);
        return match outcome.status {
            Status::Complete => Some(vec![]),
            Status::Stall => None,
            other => panic!("{other:?}"),
        };
    }
    let (outcome, mut data) = ask(function, length.into());
    if outcome.status == Status::Stall {
        return None;
    }
    data.truncate(outcome.bytes);
    assert_eq!(give(function, &[]), Outcome::complete(0));
    Some(data)
}

fn configure(function: &mut Function, value: u16) {
    assert!(control(function, setup(0x00, request::SET_CONFIGURATION, value, 0, 0)).is_some());
}

// Control transfers (8.5.3).
