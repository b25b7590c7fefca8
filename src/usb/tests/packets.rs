//! Packets of data endpoints, and their toggles (USB 2.0, 8.6).

use super::*;

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
