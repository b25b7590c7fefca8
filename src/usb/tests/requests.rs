//! Standard requests and descriptors (USB 2.0, chapter 9).

use super::*;

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
