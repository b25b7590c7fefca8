//! The stages of a control transfer (USB 2.0, 8.5.3).

use super::*;

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
