//! Transaction translators, as a high-speed controller speaks to them (USB 2.0, 11.14 to 11.22).

use vm_usb::devices::full_speed::FullSpeed;
use vm_usb::devices::hub::{HubOptions, Translation, Translators};
use vm_usb::usb::{
    BusError, CompleteAnswer, Configuration, Endpoint, EndpointAddress, Interface, Outcome, Pid,
    Readiness, SetupPacket, Speed, Speeds, SplitPosition, SplitToken, StartAnswer, StartSplit,
    Toggle, TransferType, request,
};

use crate::driver::host::{Device, HostDriver, Pipe, TransferError};
use crate::driver::hub::HubDriver;
use crate::driver::scripted::{Answer, Controls, Scripted, Seen};
use crate::rig::{HUB, Rig, hub, plug};
use crate::split_host::{DATA, MDATA, NYET, SplitHost, behind, full};

const IN1: EndpointAddress = EndpointAddress::r#in(1);
const IN3: EndpointAddress = EndpointAddress::r#in(3);
const OUT1: EndpointAddress = EndpointAddress::out(1);
const OUT3: EndpointAddress = EndpointAddress::out(3);
#[test]
fn slow_devices_behind_a_high_speed_hub_are_enumerated_and_move_data_in_splits() {
    for speed in [Speed::Full, Speed::Low] {
        let (mut host, device, controls) = behind(speed, HubOptions::default());
        assert_eq!(device.speed, speed);
        let max_packet = if speed == Speed::Low { 8 } else { 64 };
        let pipe = |endpoint| Pipe { device, endpoint, max_packet, interval: 0 };
        let data: Vec<u8> = (0..=255).cycle().take(1000).collect();
        host.send(&pipe(OUT1), &data).unwrap();
        assert_eq!(controls.take_received(OUT1), data);
        controls.answer(IN1, [Answer::Data(data.clone())]);
        assert_eq!(host.receive(&pipe(IN1), 1000).unwrap(), data);
        controls.answer(IN1, [Answer::Nak, Answer::Stall]);
        assert_eq!(host.receive(&pipe(IN1), 64), Err(TransferError::TimedOut));
        assert_eq!(host.receive(&pipe(IN1), 64), Err(TransferError::Stall));
    }
}

#[test]
fn each_packet_is_one_transaction_with_the_devices_own_toggle() {
    let (mut host, device, controls) = full();
    controls.answer(IN1, [Answer::Data(vec![1; 100])]);
    let token = host.token(&device, 1, Pid::In, TransferType::Bulk);
    assert_eq!(host.start(token, Toggle::Data0, &[]), StartAnswer::Ack);
    assert_eq!(host.complete(token), (DATA, vec![1; 64]));
    assert_eq!(host.start(token, Toggle::Data0, &[]), StartAnswer::Ack);
    let repeated = host.complete(token);
    assert_eq!(repeated, (CompleteAnswer::ToggleMismatch, vec![]), "36 bytes are lost");
    assert_eq!(host.start(token, Toggle::Data0, &[]), StartAnswer::Ack);
    assert_eq!(host.complete(token).0, CompleteAnswer::Nak(Readiness::Poll));
}

#[test]
fn two_buffers_are_all_a_translator_has_and_the_third_start_is_refused() {
    let (mut host, device, controls) = full();
    let tokens = [1, 2].map(|n| host.token(&device, n, Pid::Out, TransferType::Bulk));
    let third = host.token(&device, 1, Pid::In, TransferType::Bulk);
    for token in tokens {
        assert_eq!(host.start(token, Toggle::Data0, &[9; 10]), StartAnswer::Ack);
    }
    assert_eq!(host.start(third, Toggle::Data0, &[]), StartAnswer::Nak);
    assert_eq!(host.start(tokens[0], Toggle::Data0, &[9; 10]), StartAnswer::Ack, "a repetition");
    assert_eq!(controls.take_received(OUT1), [9; 10], "is not carried out twice");
    host.sleep_millis(1000);
    assert_eq!(host.complete(tokens[0]).0, CompleteAnswer::Ack, "results are kept");
    assert_eq!(host.start(third, Toggle::Data0, &[]), StartAnswer::Ack);
    assert_eq!(host.complete(tokens[0]).0, CompleteAnswer::Silence, "collected already");
}

#[test]
fn a_cleared_buffer_is_free_and_its_result_gone() {
    let (mut host, device, _) = full();
    let tokens = [1, 2].map(|n| host.token(&device, n, Pid::Out, TransferType::Bulk));
    for token in tokens {
        host.start(token, Toggle::Data0, &[9; 10]);
    }
    let hub = host.rig.hub.device;
    let mut clear =
        |value, port| host.rig.host.control(&hub, SetupPacket::new(0x23, 8, value, port, 0), &[]);
    // Device 5, bulk, endpoint 1: IN, then OUT of a port that has no translator of its own, then OUT.
    clear(0x8000 | 2 << 11 | 5 << 4 | 1, 1).unwrap();
    assert_eq!(clear(2 << 11 | 5 << 4 | 1, 2), Err(TransferError::Stall));
    let third = host.token(&device, 2, Pid::In, TransferType::Bulk);
    assert_eq!(host.start(third, Toggle::Data0, &[]), StartAnswer::Nak);
    let setup = SetupPacket::new(0x23, 8, 2 << 11 | 5 << 4 | 1, 1, 0);
    host.rig.host.control(&hub, setup, &[]).unwrap();
    assert_eq!(host.start(third, Toggle::Data0, &[]), StartAnswer::Ack);
    assert_eq!(host.complete(tokens[0]).0, CompleteAnswer::Silence);
    assert_eq!(host.complete(tokens[1]).0, CompleteAnswer::Ack);
}

#[test]
fn a_stopped_translator_tells_its_state_and_a_reset_one_works_again() {
    let (mut host, device, _) = full();
    let bulk = host.token(&device, 1, Pid::Out, TransferType::Bulk);
    let interrupt = host.token(&device, 3, Pid::In, TransferType::Interrupt);
    host.start(bulk, Toggle::Data0, &[1]);
    host.start(interrupt, Toggle::Data0, &[]);
    let hub = host.rig.hub.device;
    let state = SetupPacket::new(0xa3, 10, 0, 1, 8);
    assert_eq!(host.control(&hub, state, &[]), Err(TransferError::Stall), "it runs");
    host.control(&hub, SetupPacket::new(0x23, 11, 0, 1, 0), &[]).unwrap();
    assert_eq!(host.control(&hub, state, &[]).unwrap(), [1, 1]);
    assert_eq!(host.complete(bulk).0, CompleteAnswer::Silence);
    assert_eq!(host.start(bulk, Toggle::Data0, &[1]), StartAnswer::Silence);
    host.control(&hub, SetupPacket::new(0x23, 9, 0, 1, 0), &[]).unwrap();
    assert_eq!(host.complete(bulk).0, CompleteAnswer::Silence, "dropped");
    assert_eq!(host.start(bulk, Toggle::Data1, &[1]), StartAnswer::Ack);
}

#[test]
fn sixteen_periodic_transactions_are_in_hand_at_most() {
    for (started, in_hand) in [(15, 15), (16, 16), (17, 16)] {
        let (mut host, device, _) = full();
        for n in 0..started {
            let token = host.token(&device, 3, Pid::In, TransferType::Interrupt);
            host.start(SplitToken { device: 100 + n, ..token }, Toggle::Data0, &[]);
        }
        let hub = host.rig.hub.device;
        host.control(&hub, SetupPacket::new(0x23, 11, 0, 1, 0), &[]).unwrap();
        let state = SetupPacket::new(0xa3, 10, 0, 1, 8);
        assert_eq!(host.control(&hub, state, &[]).unwrap(), [0, in_hand], "{started} started");
    }
}

#[test]
fn a_bulk_transaction_that_fails_thrice_stalls_and_an_interrupt_one_errs() {
    let (mut host, device, controls) = full();
    // Twice is not thrice: the translator tries again by itself.
    let error = || Answer::Error(BusError::Timeout);
    controls.answer(IN1, [error(), error(), Answer::Data(vec![7; 3])]);
    controls.answer(IN1, [error(), error(), error()]);
    controls.answer(IN3, [Answer::Error(BusError::Crc)]);
    let bulk = host.token(&device, 1, Pid::In, TransferType::Bulk);
    let interrupt = host.token(&device, 3, Pid::In, TransferType::Interrupt);
    assert_eq!(host.start(bulk, Toggle::Data0, &[]), StartAnswer::Ack);
    assert_eq!(host.complete(bulk), (DATA, vec![7; 3]));
    assert_eq!(host.start(bulk, Toggle::Data1, &[]), StartAnswer::Ack);
    assert_eq!(host.complete(bulk).0, CompleteAnswer::Stall);
    assert_eq!(host.start(interrupt, Toggle::Data0, &[]), StartAnswer::Silence);
    host.microframe += 2;
    assert_eq!(host.complete(interrupt).0, CompleteAnswer::Err);
    let nobody = SplitToken { device: 99, ..bulk };
    assert_eq!(host.start(nobody, Toggle::Data0, &[]), StartAnswer::Ack, "the translator is there");
    assert_eq!(host.complete(nobody).0, CompleteAnswer::Stall);
    let fast = SplitToken { low_speed: true, ..bulk };
    host.start(fast, Toggle::Data0, &[]);
    assert_eq!(host.complete(fast).0, CompleteAnswer::Stall, "it is no low-speed device");
}

#[test]
fn a_device_at_work_is_asked_again_when_it_announces() {
    let (mut host, device, controls) = full();
    controls.answer(IN1, [Answer::Pending, Answer::Data(vec![4; 5])]);
    let token = host.token(&device, 1, Pid::In, TransferType::Bulk);
    let _ = host.rig.host.link.take_ready().count();
    host.start(token, Toggle::Data0, &[]);
    assert_eq!(host.complete(token).0, CompleteAnswer::Nak(Readiness::Announced));
    controls.announce(IN1);
    assert_eq!(host.rig.host.link.take_ready().collect::<Vec<_>>(), [IN1]);
    host.start(token, Toggle::Data0, &[]);
    assert_eq!(host.complete(token), (DATA, vec![4; 5]));

    controls.answer(IN1, [Answer::Pending]);
    host.start(token, Toggle::Data1, &[]);
    host.complete(token);
    controls.take_seen();
    host.rig.host.link.with(|function| function.cancel_at(5, IN1));
    assert_eq!(controls.take_seen(), [Seen::Cancel(IN1)]);
}

#[test]
fn a_promise_that_is_kept_before_the_host_hears_of_it_is_none() {
    // Whoever would ask again at the announcement does not wait for it yet, so it must not begin to.
    let (mut host, device, controls) = full();
    for (endpoint, kind) in [(1, TransferType::Bulk), (3, TransferType::Interrupt)] {
        let address = EndpointAddress::r#in(endpoint);
        let token = host.token(&device, endpoint, Pid::In, kind);
        for (announced, readiness) in [(false, Readiness::Announced), (true, Readiness::Poll)] {
            controls.answer(address, [Answer::Park]);
            host.start(token, Toggle::Data0, &[]);
            if announced {
                controls.announce(address);
            }
            host.microframe += 2;
            assert_eq!(host.complete(token).0, CompleteAnswer::Nak(readiness), "{kind:?}");
        }
    }
}

#[test]
fn a_promise_is_none_if_a_request_to_the_device_comes_before_the_host_hears_of_it() {
    // The request may have given the endpoint something to say, of which the device tells nobody: whoever
    // waits for an announcement is asked again at a request, but nobody waits for this one yet.
    for translators in [Translators::Single, Translators::Multiple] {
        let mut host = SplitHost::new(HubOptions { translators, ..HubOptions::default() });
        let controls = plug(&host.rig.ports[0], Speed::Full);
        let device = host.enumerate(5).device;
        for (endpoint, kind) in [(1, TransferType::Bulk), (3, TransferType::Interrupt)] {
            let address = EndpointAddress::r#in(endpoint);
            let token = host.token(&device, endpoint, Pid::In, kind);
            for (requested, readiness) in [
                (false, Readiness::Announced),
                (true, Readiness::Poll),
                (false, Readiness::Announced),
            ] {
                controls.answer(address, [Answer::Park]);
                host.start(token, Toggle::Data0, &[]);
                if requested {
                    controls.answer_request(&[]);
                    host.control(&device, SetupPacket::new(0x40, 1, 0, 0, 0), &[]).unwrap();
                }
                host.microframe += 2;
                assert_eq!(host.complete(token).0, CompleteAnswer::Nak(readiness), "{kind:?}");
            }
        }
    }
}

#[test]
fn at_the_pace_of_the_wire_a_result_takes_as_long_as_its_packets() {
    let options = HubOptions { translation: Translation::Wire, ..HubOptions::default() };
    let mut host = SplitHost::new(options);
    plug(&host.rig.ports[0], Speed::Full);
    assert_eq!(host.rig.hub.reset_port(&mut host.rig.host, 1), Some(Speed::Full));
    let device = Device { address: 0, speed: Speed::Full, control_packet: 64 };
    let setup = host.token(&device, 0, Pid::Setup, TransferType::Control);
    let get = [0x80, request::GET_DESCRIPTOR, 0, 1, 0, 0, 18, 0];
    assert_eq!(host.start(setup, Toggle::Data0, &get), StartAnswer::Ack);
    assert_eq!(host.complete(setup).0, NYET);
    // 8 + 13 bytes at 12 Mbit/s are 14 us.
    host.rig.host.now = host.rig.host.now.after_micros(13);
    assert_eq!(host.complete(setup).0, NYET);
    host.rig.host.now = host.rig.host.now.after_micros(2);
    assert_eq!(host.complete(setup).0, CompleteAnswer::Ack);
}

#[test]
fn an_interrupt_result_is_there_two_microframes_after_its_start() {
    let (mut host, device, controls) = full();
    let token = host.token(&device, 3, Pid::In, TransferType::Interrupt);
    assert_eq!(host.complete(token).0, NYET, "nothing is known of it");
    controls.answer(IN3, [Answer::Data(vec![1, 2, 3])]);
    assert_eq!(host.start(token, Toggle::Data0, &[]), StartAnswer::Silence);
    for _ in 0..2 {
        assert_eq!(host.complete(token).0, NYET);
        host.next_microframe();
    }
    assert_eq!(host.complete(token), (DATA, vec![1, 2, 3]));
    assert_eq!(host.complete(token).0, NYET, "once");

    host.start(token, Toggle::Data1, &[]);
    host.microframe += 2;
    assert_eq!(host.complete(token).0, CompleteAnswer::Nak(Readiness::Poll));
    let out = host.token(&device, 3, Pid::Out, TransferType::Interrupt);
    host.start(out, Toggle::Data0, &[7; 20]);
    host.microframe += 2;
    assert_eq!(host.complete(out).0, CompleteAnswer::Ack);
    assert_eq!(controls.take_received(OUT3), [7; 20]);
}

#[test]
fn a_periodic_result_that_nobody_collects_is_dropped() {
    let (mut host, device, controls) = full();
    let token = host.token(&device, 3, Pid::In, TransferType::Interrupt);
    controls.answer(IN3, [Answer::Data(vec![1]), Answer::Data(vec![2])]);
    host.start(token, Toggle::Data0, &[]);
    host.microframe += 5;
    assert_eq!(host.complete(token), (DATA, vec![1]), "the last moment");
    host.start(token, Toggle::Data1, &[]);
    host.microframe += 6;
    assert_eq!(host.complete(token).0, NYET);
}

#[test]
fn a_packet_that_spans_microframes_of_a_busy_bus_comes_in_parts() {
    let (mut host, device, controls) = full();
    controls.answer(IN3, [Answer::Data(vec![3; 64])]);
    let out = host.token(&device, 3, Pid::Out, TransferType::Interrupt);
    // Two outputs of 64 bytes leave room for 60.
    for endpoint in [3, 1] {
        host.start(SplitToken { endpoint, ..out }, Toggle::Data0, &[0; 64]);
    }
    let token = host.token(&device, 3, Pid::In, TransferType::Interrupt);
    host.start(token, Toggle::Data0, &[]);
    host.microframe += 2;
    assert_eq!(host.complete(token), (MDATA, vec![3; 60]));
    assert_eq!(host.complete(token).0, NYET, "the rest passes just now");
    host.next_microframe();
    assert_eq!(host.complete(token), (DATA, vec![3; 4]));
}

#[test]
fn a_host_whose_frame_index_jumps_back_is_served_from_there() {
    let (mut host, device, controls) = full();
    let token = host.token(&device, 3, Pid::In, TransferType::Interrupt);
    host.start(token, Toggle::Data0, &[]);
    host.microframe = 0;
    controls.answer(IN3, [Answer::Data(vec![1])]);
    assert_eq!(host.complete(token).0, NYET);
    host.start(token, Toggle::Data0, &[]);
    host.microframe += 2;
    assert_eq!(host.complete(token), (DATA, vec![1]));
}

#[test]
fn a_full_speed_hub_behind_the_translator_repeats_to_its_devices() {
    let mut host = SplitHost::new(HubOptions::default());
    let (inner, ports) = hub(HubOptions { speed: Speed::Full, ..HubOptions::default() });
    host.rig.ports[0].attach(Box::new(inner)).unwrap();
    for (port, speed, address) in [(1, Speed::Full, 6), (2, Speed::Low, 7)] {
        let controls = plug(&ports[port - 1], speed);
        let found = host.enumerate(5);
        assert_eq!(found.device.speed, Speed::Full);
        let inner = HubDriver::start(&mut host, &found).unwrap();
        let found = inner.enumerate(&mut host, port as u16, address).unwrap();
        assert_eq!(found.device.speed, speed);
        controls.answer(IN1, [Answer::Data(vec![9; 3])]);
        let input = found.pipe(&found.interfaces[0].endpoints[1]);
        assert_eq!(host.receive(&input, 64).unwrap(), [9; 3]);
    }
}

#[test]
fn a_device_kept_from_high_speed_is_reached_through_the_translator() {
    let mut host = SplitHost::new(HubOptions::default());
    let (device, controls) = Scripted::new(Speed::High);
    host.rig.ports[0].attach(Box::new(FullSpeed::new(Box::new(device)))).unwrap();
    let found = host.enumerate(5);
    assert_eq!(found.device.speed, Speed::Full);
    assert_eq!(found.descriptor[2..4], [0x10, 0x01], "an older device");
    controls.answer(IN1, [Answer::Data(vec![6; 70])]);
    let input = found.pipe(&found.interfaces[0].endpoints[1]);
    assert_eq!(host.receive(&input, 128).unwrap(), [6; 70]);
}

/// A full-speed device whose endpoint 4 is isochronous both ways.
fn streaming() -> (SplitHost, Device, Controls) {
    let mut host = SplitHost::new(HubOptions::default());
    let (mut scripted, controls) = Scripted::new(Speed::Full);
    let endpoint = |address| Endpoint::new(address, TransferType::Isochronous, 1023, 1);
    scripted.description_mut().speeds = Speeds::Full(vec![Configuration {
        value: 1,
        self_powered: true,
        remote_wakeup: false,
        max_power: 0,
        interfaces: vec![Interface {
            class: [0xff, 0, 0],
            endpoints: vec![endpoint(EndpointAddress::r#in(4)), endpoint(EndpointAddress::out(4))],
            ..Interface::default()
        }],
    }]);
    host.rig.ports[0].attach(Box::new(scripted)).unwrap();
    let device = host.enumerate(5).device;
    controls.take_seen();
    (host, device, controls)
}

#[test]
fn an_isochronous_packet_in_comes_in_slices_of_188_bytes() {
    let (mut host, device, controls) = streaming();
    let token = host.token(&device, 4, Pid::In, TransferType::Isochronous);
    for (len, slices) in [(0, vec![0]), (188, vec![188]), (500, vec![188, 188, 124])] {
        controls.answer(EndpointAddress::r#in(4), [Answer::Data(vec![6; len])]);
        assert_eq!(host.start(token, Toggle::Data0, &[]), StartAnswer::Silence);
        host.next_microframe();
        let last = slices.len() - 1;
        for (at, slice) in slices.into_iter().enumerate() {
            host.next_microframe();
            let answer = if at == last { DATA } else { MDATA };
            assert_eq!(host.complete(token), (answer, vec![6; slice]), "{len} bytes, part {at}");
        }
        host.sleep_millis(1);
    }
}

#[test]
fn an_isochronous_packet_out_is_put_together_or_dropped() {
    use SplitPosition::{All, Begin, End, Middle};
    let (mut host, device, controls) = streaming();
    let out = EndpointAddress::out(4);
    let token = host.token(&device, 4, Pid::Out, TransferType::Isochronous);
    let mut send = |parts: &[(SplitPosition, usize)], gap: u64| {
        for (position, len) in parts {
            let data = vec![*position as u8; *len];
            let answer = host.start_part(token, *position, Toggle::Data0, &data);
            assert_eq!(answer, StartAnswer::Silence);
            host.microframe += gap;
        }
    };
    send(&[(All, 100)], 1);
    assert_eq!(controls.take_received(out), [All as u8; 100]);
    send(&[(Begin, 188), (Middle, 188), (End, 124)], 1);
    let whole = [vec![Begin as u8; 188], vec![Middle as u8; 188], vec![End as u8; 124]].concat();
    assert_eq!(controls.take_received(out), whole);
    send(&[(Begin, 188), (End, 10)], 2);
    send(&[(Middle, 188), (End, 10)], 1);
    assert_eq!(controls.take_received(out), Vec::<u8>::new(), "a piece is missing");
    send(&[(All, 0)], 1);
    let empty = Seen::Transfer {
        pid: Pid::Out,
        endpoint: 4,
        max_packet: 1023,
        toggle: Toggle::Data0,
        len: 0,
        outcome: Outcome::complete(0),
    };
    assert_eq!(controls.take_seen().last(), Some(&empty));
}

#[test]
fn with_a_translator_for_each_port_one_port_does_not_hold_up_another() {
    let options = HubOptions { translators: Translators::Multiple, ..HubOptions::default() };
    let (mut host, device, _) = behind(Speed::Full, options);
    let busy = |host: &mut SplitHost| {
        for endpoint in [1, 2] {
            let token = host.token(&device, endpoint, Pid::Out, TransferType::Bulk);
            assert_eq!(host.start(token, Toggle::Data0, &[0; 8]), StartAnswer::Ack);
        }
        let token = host.token(&device, 1, Pid::In, TransferType::Bulk);
        let other = SplitToken { port: 2, ..token };
        (host.start(token, Toggle::Data0, &[]), host.start(other, Toggle::Data0, &[]))
    };
    assert_eq!(busy(&mut host), (StartAnswer::Nak, StartAnswer::Nak), "one translator");
    let hub = host.rig.hub.device;
    let select = SetupPacket::new(0x01, request::SET_INTERFACE, 1, 0, 0);
    host.control(&hub, select, &[]).unwrap();
    assert_eq!(busy(&mut host), (StartAnswer::Nak, StartAnswer::Ack));
    let nobody = host.token(&device, 1, Pid::In, TransferType::Bulk);
    let answer = host.start(SplitToken { port: 9, ..nobody }, Toggle::Data0, &[]);
    assert_eq!(answer, StartAnswer::Silence, "there is no such port");
}

#[test]
fn a_hub_on_a_slow_bus_translates_nothing() {
    let mut rig = Rig::new(Speed::Full, HubOptions::default());
    let token = SplitToken {
        hub: HUB,
        port: 1,
        low_speed: false,
        transfer_type: TransferType::Bulk,
        pid: Pid::In,
        device: 5,
        endpoint: 1,
    };
    let now = rig.host.now;
    let split = StartSplit {
        token,
        position: SplitPosition::All,
        toggle: Toggle::Data0,
        data: &[],
        now,
        microframe: 0,
    };
    let start = |split: &StartSplit<'_>| rig.host.link.with(|f| f.start_split(split)).unwrap();
    assert_eq!(start(&split), Some(StartAnswer::Silence));
    let other = StartSplit { token: SplitToken { hub: 77, ..token }, ..split };
    assert_eq!(start(&other), None);
    rig.host.sleep_millis(1);
}
