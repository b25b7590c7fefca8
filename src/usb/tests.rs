//! Chapter 9 of USB 2.0 as a host meets it, token by token.

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
    Endpoint { address, transfer_type: kind, max_packet, interval: 1 }
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

#[test]
fn a_descriptor_longer_than_the_packet_arrives_piece_by_piece_in_order() {
    let (mut function, _) = probe(Speed::Full);
    send_setup(&mut function, setup(0x80, request::GET_DESCRIPTOR, 0x0100, 0, 18));
    let pieces: Vec<_> = [8, 8, 2].map(|len| ask(&mut function, len).1).concat();
    assert_eq!(pieces, function.device().description().device_descriptor(Speed::Full));
    assert_eq!(ask(&mut function, 8).0, Outcome::complete(0), "no more data: a packet of no bytes");
    assert_eq!(give(&mut function, &[]), Outcome::complete(0));
}

#[test]
fn the_host_may_end_the_data_stage_early() {
    let (mut function, _) = probe(Speed::Full);
    send_setup(&mut function, setup(0x80, request::GET_DESCRIPTOR, 0x0100, 0, 18));
    ask(&mut function, 8);
    assert_eq!(give(&mut function, &[]), Outcome::complete(0));
}

#[test]
fn an_answer_is_cut_to_the_length_the_host_asked_for() {
    let (mut function, _) = probe(Speed::Full);
    let answer = control(&mut function, setup(0xc0, 0x21, 0, 0, 10)).unwrap();
    assert_eq!(answer, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let answer = control(&mut function, setup(0xc0, 0x21, 0, 0, 4096)).unwrap();
    assert_eq!(answer.len(), 100, "and not padded to it");
}

#[test]
fn a_request_with_data_is_carried_out_once_in_its_status_stage() {
    let (mut function, log) = probe(Speed::Full);
    send_setup(&mut function, setup(0x40, 0x20, 1, 2, 12));
    assert_eq!(give(&mut function, &[1; 8]), Outcome::complete(8));
    assert_eq!(give(&mut function, &[2; 4]), Outcome::complete(4));
    assert!(log.lock().unwrap().requests.is_empty(), "not before the host asks for the status");
    assert_eq!(ask(&mut function, 0).0, Outcome::complete(0));
    // The handshake was lost and the host asks again.
    assert_eq!(ask(&mut function, 0).0, Outcome::complete(0));
    let requests = &log.lock().unwrap().requests;
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].1, [&[1; 8][..], &[2; 4]].concat());
}

#[test]
fn a_new_setup_abandons_a_request_that_is_not_complete() {
    let (mut function, log) = probe(Speed::Full);
    send_setup(&mut function, setup(0x40, 0x20, 0, 0, 12));
    give(&mut function, &[1; 8]);
    assert!(control(&mut function, setup(0x80, request::GET_STATUS, 0, 0, 2)).is_some());
    assert!(log.lock().unwrap().requests.is_empty());
}

#[test]
fn data_that_was_not_announced_stalls_until_the_next_setup() {
    let (mut function, log) = probe(Speed::Full);
    // More than wLength.
    send_setup(&mut function, setup(0x40, 0x20, 0, 0, 4));
    assert_eq!(give(&mut function, &[1; 8]), Outcome::STALL);
    assert_eq!(ask(&mut function, 0).0, Outcome::STALL);
    // The status before all of wLength.
    send_setup(&mut function, setup(0x40, 0x20, 0, 0, 12));
    give(&mut function, &[1; 8]);
    assert_eq!(ask(&mut function, 0).0, Outcome::STALL);
    // A data stage where there is none.
    send_setup(&mut function, setup(0x40, 0x20, 0, 0, 0));
    assert_eq!(give(&mut function, &[1; 8]), Outcome::STALL);
    assert_eq!(ask(&mut function, 0).0, Outcome::STALL);
    assert!(log.lock().unwrap().requests.is_empty());
    assert!(control(&mut function, setup(0x80, request::GET_STATUS, 0, 0, 2)).is_some());
}

#[test]
fn before_any_setup_the_control_endpoint_stalls() {
    let (mut function, _) = probe(Speed::Full);
    assert_eq!(ask(&mut function, 8).0, Outcome::STALL);
    assert_eq!(give(&mut function, &[]), Outcome::STALL);
}

#[test]
fn a_setup_packet_of_another_length_is_not_answered() {
    let (mut function, _) = probe(Speed::Full);
    for len in [0, 7, 9] {
        let outcome = token(&mut function, Pid::Setup, 0, 64, Toggle::Data0, &mut vec![0; len]);
        assert_eq!(outcome, Outcome::TIMEOUT);
    }
}

#[test]
fn the_largest_length_a_setup_can_name_is_collected_but_nothing_beyond() {
    let (mut function, log) = probe(Speed::Full);
    send_setup(&mut function, setup(0x40, 0x20, 0, 0, u16::MAX));
    assert_eq!(give(&mut function, &vec![3; 65535]), Outcome::complete(65535));
    assert_eq!(ask(&mut function, 0).0, Outcome::complete(0));
    assert_eq!(log.lock().unwrap().requests[0].1.len(), 65535);
}

#[test]
fn a_buffer_that_ends_inside_a_packet_of_the_answer_sees_babble() {
    let (mut function, _) = probe(Speed::Full);
    send_setup(&mut function, setup(0x80, request::GET_DESCRIPTOR, 0x0100, 0, 18));
    assert_eq!(ask(&mut function, 12).0, Outcome::failed(8, BusError::Babble));
}

// Standard requests (9.4).

#[test]
fn the_new_address_holds_after_the_status_stage() {
    let (mut function, _) = probe(Speed::Full);
    send_setup(&mut function, setup(0x00, request::SET_ADDRESS, 42, 0, 0));
    assert_eq!(function.address(), 0);
    assert_eq!(ask(&mut function, 0).0, Outcome::complete(0));
    assert_eq!(function.address(), 42);
    for impossible in [128, 256 + 5] {
        let bytes = setup(0x00, request::SET_ADDRESS, impossible, 0, 0);
        assert_eq!(control(&mut function, bytes), None);
        assert_eq!(function.address(), 42);
    }
    function.bus_reset(Speed::Full);
    assert_eq!(function.address(), 0);
}

#[test]
fn a_configuration_brings_its_endpoints_and_takes_them_away() {
    let (mut function, log) = probe(Speed::Full);
    let get = setup(0x80, request::GET_CONFIGURATION, 0, 0, 1);
    assert_eq!(control(&mut function, get), Some(vec![0]));
    let out =
        |function: &mut Function| token(function, Pid::Out, 2, 64, Toggle::Data0, &mut vec![1; 4]);
    assert_eq!(out(&mut function), Outcome::TIMEOUT, "not configured");
    configure(&mut function, 7);
    assert_eq!(control(&mut function, get), Some(vec![7]));
    assert_eq!(out(&mut function), Outcome::complete(4));
    assert_eq!(control(&mut function, setup(0x00, request::SET_CONFIGURATION, 3, 0, 0)), None);
    assert_eq!(control(&mut function, get), Some(vec![7]), "an unknown one changes nothing");
    configure(&mut function, 0);
    assert_eq!(out(&mut function), Outcome::TIMEOUT);
    assert_eq!(log.lock().unwrap().configured, [0, 7, 0]);
}

#[test]
fn setting_the_same_configuration_again_starts_its_toggles_and_halts_afresh() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    token(&mut function, Pid::Out, 2, 64, Toggle::Data0, &mut vec![1; 4]);
    log.lock().unwrap().answers.push_back(Answer::Outcome(Outcome::STALL));
    token(&mut function, Pid::In, 1, 64, Toggle::Data0, &mut vec![0; 4]);
    configure(&mut function, 1);
    token(&mut function, Pid::Out, 2, 64, Toggle::Data0, &mut vec![2; 4]);
    assert_eq!(log.lock().unwrap().received, [1, 1, 1, 1, 2, 2, 2, 2]);
    let not_halted = token(&mut function, Pid::In, 1, 64, Toggle::Data0, &mut vec![0; 4]);
    assert_eq!(not_halted, Outcome::NAK);
}

#[test]
fn an_alternate_setting_exchanges_the_endpoints() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    log.lock().unwrap().answers.push_back(Answer::Outcome(Outcome::PENDING));
    let pending = token(&mut function, Pid::In, 1, 64, Toggle::Data0, &mut vec![0; 4]);
    assert_eq!(pending, Outcome::PENDING);

    let select =
        |alternate, interface| setup(0x01, request::SET_INTERFACE, alternate, interface, 0);
    let get = setup(0x81, request::GET_INTERFACE, 0, 0, 1);
    assert_eq!(control(&mut function, get), Some(vec![0]));
    assert!(control(&mut function, select(1, 0)).is_some());
    assert_eq!(control(&mut function, get), Some(vec![1]));
    assert_eq!(log.lock().unwrap().selected, [(0, 1)]);
    assert_eq!(log.lock().unwrap().cancelled, [BULK_IN], "nothing is left pending");
    let bulk = token(&mut function, Pid::In, 1, 64, Toggle::Data0, &mut vec![0; 4]);
    assert_eq!(bulk, Outcome::TIMEOUT);
    let interrupt = token(&mut function, Pid::In, 3, 8, Toggle::Data0, &mut vec![0; 8]);
    assert_eq!(interrupt, Outcome::NAK);
    for unknown in [select(2, 0), select(0, 1), select(0x100, 0), select(0, 0x100)] {
        assert_eq!(control(&mut function, unknown), None);
    }
    assert_eq!(control(&mut function, get), Some(vec![1]));
    configure(&mut function, 1);
    assert_eq!(control(&mut function, get), Some(vec![0]), "a configuration starts with setting 0");
}

#[test]
fn status_tells_of_power_remote_wakeup_and_halts() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    let device = setup(0x80, request::GET_STATUS, 0, 0, 2);
    assert_eq!(control(&mut function, device), Some(vec![1, 0]), "self powered");
    let wakeup = |code| setup(0x00, code, 1, 0, 0);
    control(&mut function, wakeup(request::SET_FEATURE)).unwrap();
    assert_eq!(control(&mut function, device), Some(vec![3, 0]));
    assert!(function.remote_wakeup_enabled());
    control(&mut function, wakeup(request::CLEAR_FEATURE)).unwrap();
    assert_eq!(control(&mut function, device), Some(vec![1, 0]));
    configure(&mut function, 7);
    assert_eq!(control(&mut function, device), Some(vec![0, 0]), "the other is bus powered");

    let of_endpoint = setup(0x82, request::GET_STATUS, 0, 0x81, 2);
    assert_eq!(control(&mut function, of_endpoint), Some(vec![0, 0]));
    log.lock().unwrap().answers.push_back(Answer::Outcome(Outcome::STALL));
    token(&mut function, Pid::In, 1, 64, Toggle::Data0, &mut vec![0; 4]);
    assert_eq!(control(&mut function, of_endpoint), Some(vec![1, 0]));
    let of = |kind, index| setup(kind, request::GET_STATUS, 0, index, 2);
    assert_eq!(control(&mut function, of(0x82, 0x80)), Some(vec![0, 0]), "endpoint 0");
    assert_eq!(control(&mut function, of(0x81, 0)), Some(vec![0, 0]), "interface 0");
    assert_eq!(control(&mut function, of(0x82, 0x85)), None, "no such endpoint");
    assert_eq!(control(&mut function, of(0x81, 1)), None, "no such interface");
    function.bus_reset(Speed::Full);
    assert_eq!(control(&mut function, of(0x81, 0)), None, "not configured");
}

#[test]
fn a_halted_endpoint_stalls_until_the_host_clears_it_and_starts_again_with_data0() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    let set = setup(0x02, request::SET_FEATURE, 0, 0x02, 0);
    let clear = setup(0x02, request::CLEAR_FEATURE, 0, 0x02, 0);
    let out =
        |function: &mut Function, toggle| token(function, Pid::Out, 2, 64, toggle, &mut vec![9; 4]);
    out(&mut function, Toggle::Data0);
    control(&mut function, set).unwrap();
    assert_eq!(out(&mut function, Toggle::Data1), Outcome::STALL);
    control(&mut function, clear).unwrap();
    assert_eq!(log.lock().unwrap().cleared, [BULK_OUT]);
    out(&mut function, Toggle::Data0);
    assert_eq!(log.lock().unwrap().received.len(), 8);
    // Clearing resets the toggle of an endpoint that was not halted, too (9.4.5).
    control(&mut function, clear).unwrap();
    out(&mut function, Toggle::Data0);
    assert_eq!(log.lock().unwrap().received.len(), 12);
}

#[test]
fn test_mode_exists_at_high_speed_only() {
    let test = setup(0x00, request::SET_FEATURE, 2, 0x0400, 0);
    assert!(control(&mut probe(Speed::High).0, test).is_some());
    assert_eq!(control(&mut probe(Speed::Full).0, test), None);
}

#[test]
fn what_chapter_9_does_not_answer_goes_to_the_device_and_stalls_if_it_says_so() {
    let (mut function, log) = probe(Speed::Full);
    for bytes in [
        setup(0x00, request::SET_DESCRIPTOR, 0x0100, 0, 0),
        setup(0x80, request::GET_DESCRIPTOR, 0x2200, 0, 8),
        setup(0x81, request::GET_DESCRIPTOR, 0x2200, 0, 8),
        setup(0x82, 12, 0, 0x81, 2),
        setup(0x80, request::SET_ADDRESS, 5, 0, 2),
        setup(0x21, 0x0a, 0, 0, 0),
        setup(0xe3, 0xff, 0, 0, 1),
    ] {
        assert_eq!(control(&mut function, bytes), None);
    }
    assert_eq!(log.lock().unwrap().requests.len(), 7);
    assert_eq!(function.address(), 0);
}

// Descriptors (9.6).

#[test]
fn a_device_of_two_speeds_describes_the_present_one_and_the_other() {
    let (mut function, _) = probe(Speed::High);
    let get = |kind: u16, len| setup(0x80, request::GET_DESCRIPTOR, kind << 8, 0, len);
    let device = control(&mut function, get(1, 18)).unwrap();
    assert_eq!(device[..8], [18, 1, 0x00, 0x02, 0, 0, 0, 64]);
    assert_eq!(device[8..], [0x09, 0x12, 0x0f, 0x00, 0x03, 0x02, 1, 2, 3, 2]);
    let qualifier = control(&mut function, get(6, 10)).unwrap();
    assert_eq!(qualifier, [10, 6, 0x00, 0x02, 0, 0, 0, 8, 2, 0]);

    let here = control(&mut function, get(2, 255)).unwrap();
    let other = control(&mut function, get(7, 255)).unwrap();
    assert_eq!((here[1], other[1]), (2, 7));
    assert_eq!(here.len(), usize::from(u16::from_le_bytes([here[2], here[3]])));
    // The bulk endpoints follow the configuration, the interface and its class descriptor.
    assert_eq!(here[9 + 9 + 4..][..7], [7, 5, 0x81, 2, 0, 2, 1]);
    assert_eq!(other[9 + 9 + 4..][..7], [7, 5, 0x81, 2, 64, 0, 1]);

    function.bus_reset(Speed::Full);
    assert_eq!(function.speed(), Speed::Full);
    assert_eq!(control(&mut function, get(1, 18)).unwrap()[7], 8);
    assert_eq!(control(&mut function, get(6, 10)).unwrap()[7], 64);
    assert_eq!(control(&mut function, get(2, 255)).unwrap()[9 + 9 + 4..][4..6], [64, 0]);
}

#[test]
fn a_device_of_one_speed_has_no_qualifier() {
    let (mut function, _) = probe(Speed::Full);
    let get = |kind: u16| setup(0x80, request::GET_DESCRIPTOR, kind << 8, 0, 10);
    assert_eq!(control(&mut function, get(6)), None);
    assert_eq!(control(&mut function, get(7)), None);
    assert_eq!(control(&mut function, get(1)).unwrap()[2..4], [0x10, 0x01]);
}

#[test]
fn a_configuration_counts_interfaces_not_settings() {
    let (function, _) = probe(Speed::Full);
    let description = function.device().description();
    let bytes = description.configuration_descriptor(Speed::Full, 0).unwrap();
    assert_eq!(bytes[4..9], [1, 1, 0, 0xe0, 50], "one interface, value 1, 100 mA");
    let second = description.configuration_descriptor(Speed::Full, 1).unwrap();
    assert_eq!(second[5..8], [7, 0, 0xa0], "bus powered, remote wakeup");
    assert_eq!(description.configuration_descriptor(Speed::Full, 2), None);
}

#[test]
fn strings_are_numbered_once_each_and_unknown_ones_do_not_exist() {
    let (mut function, _) = probe(Speed::Full);
    let get = |index: u16| setup(0x80, request::GET_DESCRIPTOR, 0x0300 | index, 0x0409, 255);
    assert_eq!(control(&mut function, get(0)), Some(vec![4, 3, 0x09, 0x04]));
    let maker: Vec<_> = [12, 3].into_iter().chain("Maker".bytes().flat_map(|b| [b, 0])).collect();
    assert_eq!(control(&mut function, get(1)), Some(maker));
    assert_eq!(control(&mut function, get(4)).unwrap()[2], b'M', "the interfaces' name");
    assert_eq!(control(&mut function, get(5)), None, "which all three settings share");
}

#[test]
fn a_string_too_long_for_its_descriptor_is_cut_between_characters() {
    let mut description = probe(Speed::Full).0.device().description().clone();
    description.name = "x".repeat(125) + "\u{1f600}";
    let bytes = description.string_descriptor(2).unwrap();
    assert_eq!(usize::from(bytes[0]), bytes.len());
    let units: Vec<_> =
        bytes[2..].chunks(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]])).collect();
    assert_eq!(String::from_utf16(&units).unwrap(), "x".repeat(125));
}

// Data endpoints (8.6).

#[test]
fn an_out_packet_that_is_repeated_is_taken_once() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    let mut out =
        |toggle, byte: u8| token(&mut function, Pid::Out, 2, 64, toggle, &mut vec![byte; 4]);
    assert_eq!(out(Toggle::Data0, 1), Outcome::complete(4));
    // The handshake was lost: the host sends the same packet again.
    assert_eq!(out(Toggle::Data0, 1), Outcome::complete(4));
    assert_eq!(out(Toggle::Data1, 2), Outcome::complete(4));
    assert_eq!(log.lock().unwrap().received, [1, 1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn an_in_packet_with_the_wrong_toggle_is_lost_and_the_next_one_is_not() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    log.lock().unwrap().answers.extend([1, 2].map(|byte| Answer::Send(vec![byte; 4])));
    let mut buffer = vec![0; 4];
    let lost = token(&mut function, Pid::In, 1, 64, Toggle::Data1, &mut buffer);
    assert_eq!(lost, Outcome::failed(0, BusError::ToggleMismatch));
    assert_eq!(buffer, [0; 4]);
    let next = token(&mut function, Pid::In, 1, 64, Toggle::Data1, &mut buffer);
    assert_eq!((next, buffer), (Outcome::complete(4), vec![2; 4]));
}

#[test]
fn a_packet_lost_before_a_stall_does_not_hide_the_stall() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    let stalled = Outcome { bytes: 64, status: Status::Stall };
    log.lock().unwrap().answers.push_back(Answer::Outcome(stalled));
    let mut buffer = vec![0; 128];
    let lost = token(&mut function, Pid::In, 1, 64, Toggle::Data1, &mut buffer);
    assert_eq!(lost, Outcome::failed(0, BusError::ToggleMismatch));
    let next = token(&mut function, Pid::In, 1, 64, Toggle::Data1, &mut buffer);
    assert_eq!(next, Outcome::STALL);
}

#[test]
fn toggles_follow_every_packet_of_a_transfer() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    // Three packets, the last one short.
    log.lock().unwrap().answers.extend([Answer::Send(vec![5; 130]), Answer::Send(vec![6; 1])]);
    let mut buffer = vec![0; 512];
    let first = token(&mut function, Pid::In, 1, 64, Toggle::Data0, &mut buffer);
    assert_eq!(first, Outcome::complete(130));
    let second = token(&mut function, Pid::In, 1, 64, Toggle::Data1, &mut buffer);
    assert_eq!((second, buffer[0]), (Outcome::complete(1), 6));
}

#[test]
fn a_host_that_expects_smaller_packets_sees_babble_and_one_that_expects_larger_ones_short_packets()
{
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    log.lock().unwrap().answers.extend(vec![Answer::Send(vec![5; 200]); 2]);
    let babble = token(&mut function, Pid::In, 1, 32, Toggle::Data0, &mut vec![0; 512]);
    assert_eq!(babble, Outcome::failed(0, BusError::Babble));
    let mut buffer = vec![0; 512];
    let short = token(&mut function, Pid::In, 1, 512, Toggle::Data0, &mut buffer);
    assert_eq!(short, Outcome::complete(64));
    assert_eq!(buffer[..65], [vec![5; 64], vec![0]].concat());
}

#[test]
fn a_packet_before_a_stall_arrives_whatever_size_the_host_believes_in() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    let stalled = Outcome { bytes: 64, status: Status::Stall };
    log.lock().unwrap().answers.push_back(Answer::Outcome(stalled));
    let outcome = token(&mut function, Pid::In, 1, 32, Toggle::Data0, &mut vec![0; 512]);
    assert_eq!(outcome, Outcome::failed(0, BusError::Babble), "it does not fit");
    let next = token(&mut function, Pid::In, 1, 64, Toggle::Data0, &mut vec![0; 512]);
    assert_eq!(next, Outcome::STALL);
}

#[test]
fn endpoints_the_device_lacks_do_not_answer() {
    let (mut function, _) = probe(Speed::Full);
    configure(&mut function, 1);
    for (pid, number) in [(Pid::In, 2), (Pid::Out, 1), (Pid::In, 15), (Pid::Setup, 1)] {
        let outcome = token(&mut function, pid, number, 64, Toggle::Data0, &mut vec![0; 8]);
        assert_eq!(outcome, Outcome::TIMEOUT);
    }
}

#[test]
fn a_reset_or_a_new_configuration_gives_up_what_is_pending_once() {
    let (mut function, log) = probe(Speed::Full);
    configure(&mut function, 1);
    let pend = |function: &mut Function| {
        log.lock().unwrap().answers.push_back(Answer::Outcome(Outcome::PENDING));
        token(function, Pid::In, 1, 64, Toggle::Data0, &mut vec![0; 4])
    };
    assert_eq!(pend(&mut function), Outcome::PENDING);
    function.cancel(BULK_IN);
    function.cancel(BULK_IN);
    function.cancel(BULK_OUT);
    assert_eq!(log.lock().unwrap().cancelled, [BULK_IN]);
    pend(&mut function);
    configure(&mut function, 1);
    pend(&mut function);
    function.bus_reset(Speed::Full);
    assert_eq!(log.lock().unwrap().cancelled, [BULK_IN; 3]);
    configure(&mut function, 1);
    pend(&mut function);
    drop(function.into_device());
    assert_eq!(log.lock().unwrap().cancelled, [BULK_IN; 4]);
}
