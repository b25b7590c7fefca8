//! The test device, as Linux's `usbtest` driver and an echo client meet it.

mod driver;

use std::num::{NonZeroU32, NonZeroUsize};

use driver::direct::DirectHost;
use driver::enumerate::{Enumerated, clear_halt, device_request, enumerate};
use driver::host::{HostDriver, Pipe, TransferError};
use vm_usb::devices::loopback::{
    BACKLOG, Counters, ECHO, Isochronous, Loopback, LoopbackOptions, Messages, Pattern,
};
use vm_usb::time::Time;
use vm_usb::usb::{
    EndpointAddress, Outcome, Pid, Readiness, SetupPacket, Speed, Status, Toggle, Transfer,
    UsbDevice, request,
};

fn plug(speed: Speed, options: impl Into<LoopbackOptions>) -> (DirectHost, Enumerated, Counters) {
    let device = Loopback::new(options);
    let counters = device.counters();
    let mut host = DirectHost::new(speed, device);
    let enumerated = enumerate(&mut host, 0, 9).unwrap();
    (host, enumerated, counters)
}

/// The pipes of one alternate setting with these endpoint attributes: IN, OUT.
fn pipes(enumerated: &Enumerated, alternate: u8, attributes: u8) -> (Pipe, Pipe) {
    let mut interfaces = enumerated.interfaces.iter();
    let interface = interfaces.find(|i| i.alternate == alternate).unwrap();
    let find = |input| {
        let mut endpoints = interface.endpoints.iter();
        endpoints.find(|e| e.attributes == attributes && e.address.is_in() == input).unwrap()
    };
    (enumerated.pipe(find(true)), enumerated.pipe(find(false)))
}

const BULK: u8 = 2;
const INTERRUPT: u8 = 3;
const ISOCHRONOUS: u8 = 1;

fn select(host: &mut DirectHost, enumerated: &Enumerated, alternate: u16) {
    let setup = SetupPacket::new(0x01, request::SET_INTERFACE, alternate, 0, 0);
    host.control(&enumerated.device, setup, &[]).unwrap();
}

#[test]
fn it_is_gadget_zero_with_source_and_sink_first() {
    for speed in [Speed::Full, Speed::High] {
        let (_, enumerated, _) = plug(speed, Pattern::Zeros);
        assert_eq!(enumerated.id(), (0x0525, 0xa4a0));
        assert_eq!(enumerated.configuration, 3);
        let settings: Vec<_> = enumerated.interfaces.iter().map(|i| i.alternate).collect();
        assert_eq!(settings, [0, 1, 2]);
        assert_eq!(enumerated.descriptor[17], 2, "bNumConfigurations");
    }
}

#[test]
fn the_source_and_the_sink_keep_to_the_pattern_in_every_packet() {
    for (speed, packet) in [(Speed::Full, 64), (Speed::High, 512)] {
        let (mut host, enumerated, counters) = plug(speed, Pattern::Mod63);
        let (input, output) = pipes(&enumerated, 0, BULK);
        let expected: Vec<_> = (0..8192).map(|n| (n % packet % 63) as u8).collect();
        assert_eq!(host.receive(&input, 8192).unwrap(), expected);
        host.send(&output, &expected).unwrap();
        host.send(&output, &expected[..700]).unwrap();
        assert_eq!((counters.sent(), counters.received()), (8192, 8892));
    }
}

#[test]
fn the_sink_halts_at_a_byte_that_does_not_fit() {
    let (mut host, enumerated, counters) = plug(Speed::High, Pattern::Zeros);
    let (_, output) = pipes(&enumerated, 0, BULK);
    let mut data = vec![0; 2048];
    data[1030] = 1;
    let outcome = host.transact(&output, Pid::Out, &mut data);
    assert_eq!(outcome, Outcome { bytes: 1024, status: Status::Stall });
    assert_eq!(host.send(&output, &[0; 4]), Err(TransferError::Stall));
    clear_halt(&mut host, &output).unwrap();
    host.send(&output, &[0; 4]).unwrap();
    assert_eq!(counters.received(), 1028);

    let (mut host, enumerated, _) = plug(Speed::High, Pattern::Unchecked);
    let (_, output) = pipes(&enumerated, 0, BULK);
    host.send(&output, &[7; 1000]).unwrap();
}

#[test]
fn a_host_that_asks_for_part_of_a_packet_sees_babble() {
    let (mut host, enumerated, _) = plug(Speed::High, Pattern::Zeros);
    let (input, _) = pipes(&enumerated, 0, BULK);
    assert_eq!(host.receive(&input, 1000), Err(TransferError::Babble));
}

#[test]
fn control_writes_of_any_length_can_be_read_back() {
    let (mut host, enumerated, _) = plug(Speed::Full, Pattern::Zeros);
    let device = enumerated.device;
    for len in [0u16, 1, 63, 64, 65, 4096, 65535] {
        let data: Vec<_> = (0..len).map(|n| n.wrapping_add(5) as u8).collect();
        let write = SetupPacket::new(0x40, 0x5b, 0, 0, len);
        host.control(&device, write, &data).unwrap();
        let read = SetupPacket::new(0xc0, 0x5c, 0, 0, len);
        assert_eq!(host.control(&device, read, &[]).unwrap(), data);
    }
    for wrong in [
        SetupPacket::new(0x40, 0x5b, 1, 0, 4),
        SetupPacket::new(0x40, 0x5b, 0, 1, 4),
        SetupPacket::new(0x41, 0x5b, 0, 0, 4),
        SetupPacket::new(0x40, 0x5d, 0, 0, 4),
    ] {
        assert_eq!(host.control(&device, wrong, &[0; 4]), Err(TransferError::Stall));
    }
}

#[test]
fn setting_2_has_an_interrupt_pair() {
    for speed in [Speed::Full, Speed::High] {
        let (mut host, enumerated, _) = plug(speed, Pattern::Mod63);
        let (input, output) = pipes(&enumerated, 2, INTERRUPT);
        assert_eq!(host.poll(&input, 64, 0), Err(TransferError::NoAnswer), "not selected");
        select(&mut host, &enumerated, 2);
        let report = host.poll(&input, 64, 0).unwrap();
        assert_eq!(report[60..], [60, 61, 62, 0]);
        host.send(&output, &report).unwrap();
    }
}

#[test]
fn setting_1_has_an_isochronous_pair() {
    let (mut host, enumerated, counters) = plug(Speed::High, Pattern::Mod63);
    select(&mut host, &enumerated, 1);
    let (input, output) = pipes(&enumerated, 1, ISOCHRONOUS);
    assert_eq!(input.max_packet, 1024);
    let now = host.now;
    let exchange = |pipe: &Pipe, pid| {
        let mut buffer = vec![0xee; 1024];
        let outcome = host.link.with(|function| {
            function.isochronous(Transfer {
                pid,
                endpoint: pipe.endpoint.number(),
                max_packet: 1024,
                toggle: Toggle::Data0,
                now,
                buffer: &mut buffer,
            })
        });
        (outcome.unwrap(), buffer)
    };
    let (outcome, data) = exchange(&input, Pid::In);
    assert_eq!((outcome, data[1023]), (Outcome::complete(1024), (1023 % 63) as u8));
    assert_eq!(exchange(&output, Pid::Out).0, Outcome::complete(1024));
    assert_eq!((counters.sent(), counters.received()), (1024, 1024));
}

#[test]
fn the_isochronous_pair_can_be_a_cameras_or_one_that_fits_a_translators_frame() {
    let max_packets = |isochronous, speed| {
        let options = LoopbackOptions { isochronous, ..LoopbackOptions::default() };
        let (_, enumerated, _) = plug(speed, options);
        let interface = enumerated.interfaces.iter().find(|i| i.alternate == 1).unwrap();
        let pair = interface.endpoints.iter().filter(|e| e.attributes == ISOCHRONOUS);
        pair.map(|e| (e.max_packet, e.interval)).collect::<Vec<_>>()
    };
    let camera = Isochronous::new(1024, 3, 1).unwrap();
    assert_eq!(max_packets(camera, Speed::High), [(0x1400, 1); 2]);
    assert_eq!(max_packets(camera, Speed::Full), [(1023, 1); 2]);
    let small = Isochronous::new(752, 1, 4).unwrap();
    assert_eq!(max_packets(small, Speed::Full), [(752, 4); 2]);
    for (packet, packets, interval) in
        [(0, 1, 1), (1025, 1, 1), (8, 0, 1), (8, 4, 1), (8, 1, 0), (8, 1, 17)]
    {
        assert_eq!(Isochronous::new(packet, packets, interval), None);
    }
}

/// A source of messages, at a pace in Mbit/s.
fn messages(bytes: usize, pace: Option<u32>) -> LoopbackOptions {
    let bytes = NonZeroUsize::new(bytes).unwrap();
    let pace = pace.and_then(NonZeroU32::new);
    LoopbackOptions { messages: Some(Messages { bytes, pace }), ..LoopbackOptions::default() }
}

#[test]
fn a_source_of_messages_ends_each_with_a_short_packet() {
    let messages = |bytes| messages(bytes, None);
    let (mut host, enumerated, _) = plug(Speed::High, messages(1500));
    let (input, _) = pipes(&enumerated, 0, BULK);
    for _ in 0..3 {
        assert_eq!(host.receive(&input, 20 << 10).unwrap().len(), 1500);
    }
    // A host that asks for less gets the message in pieces.
    let lengths = [1024, 512, 1024].map(|asked| host.receive(&input, asked).unwrap().len());
    assert_eq!(lengths, [1024, 476, 1024]);

    let (mut host, enumerated, _) = plug(Speed::High, messages(1024));
    let (input, _) = pipes(&enumerated, 0, BULK);
    assert_eq!(host.receive(&input, 4096).unwrap().len(), 1024);
    let lengths = [1024, 1024, 1024].map(|asked| host.receive(&input, asked).unwrap().len());
    assert_eq!(lengths, [1024, 0, 1024], "an empty packet ends a message of whole ones");
}

/// The device in its other configuration.
fn echo() -> (DirectHost, Pipe, Pipe) {
    let (mut host, enumerated, _) = plug(Speed::High, Pattern::Zeros);
    device_request(&mut host, &enumerated.device, request::SET_CONFIGURATION, 2).unwrap();
    let (input, output) = pipes(&enumerated, 0, BULK);
    host.reset_toggle(&input);
    host.reset_toggle(&output);
    (host, input, output)
}

#[test]
fn transfers_come_back_as_they_were_cut() {
    let (mut host, input, output) = echo();
    let data: Vec<_> = (0..1200u32).map(|n| n as u8).collect();
    host.send(&output, &data[..6]).unwrap();
    host.send(&output, &data).unwrap();
    host.send(&output, &[]).unwrap();
    assert_eq!(host.receive(&input, 512).unwrap(), data[..6]);
    assert_eq!(host.receive(&input, 4096).unwrap(), data);
    assert!(host.receive(&input, 512).unwrap().is_empty());
    assert_eq!(host.receive(&input, 512), Err(TransferError::TimedOut));
}

#[test]
fn whole_packets_wait_for_what_follows_them() {
    let (mut host, input, output) = echo();
    host.send(&output, &[1; 1024]).unwrap();
    let mut buffer = vec![0; 2048];
    let outcome = host.transact(&input, Pid::In, &mut buffer);
    assert_eq!(outcome, Outcome { bytes: 1024, status: Status::Nak(Readiness::Announced) });
    host.link.take_ready().for_each(drop);
    host.send(&output, &[2; 100]).unwrap();
    assert_eq!(host.link.take_ready().collect::<Vec<_>>(), [input.endpoint]);
    assert_eq!(host.receive(&input, 1024).unwrap(), [2; 100]);
    // A transfer of whole packets that its buffer holds exactly needs no end.
    host.send(&output, &[3; 1024]).unwrap();
    assert_eq!(host.receive(&input, 1024).unwrap(), [3; 1024]);
    assert_eq!(host.receive(&input, 512), Err(TransferError::TimedOut));
}

#[test]
fn packets_that_are_no_whole_ones_for_the_reader_end_its_transfer() {
    let (mut host, input, output) = echo();
    let narrow = Pipe { max_packet: 4, ..output };
    host.send(&narrow, &[1; 4]).unwrap();
    let mut buffer = vec![0; 2048];
    assert_eq!(host.transact(&input, Pid::In, &mut buffer), Outcome::complete(4));
}

#[test]
fn a_host_that_only_sends_is_held_back_until_it_reads() {
    let (mut host, input, output) = echo();
    host.piece = 16 << 10;
    for _ in 0..ECHO / (16 << 10) {
        host.send(&output, &vec![5; 16 << 10]).unwrap();
    }
    assert_eq!(host.transact(&output, Pid::Out, &mut vec![6; 512]), Outcome::PARK);
    host.link.take_ready().for_each(drop);
    assert_eq!(host.receive(&input, ECHO).unwrap(), vec![5; ECHO]);
    assert_eq!(host.link.take_ready().collect::<Vec<_>>(), [EndpointAddress::out(2)]);
    host.send(&output, &[6; 10]).unwrap();
    assert_eq!(host.receive(&input, 512).unwrap(), [6; 10]);
}

#[test]
fn transfers_without_bytes_do_not_pile_up_without_end() {
    let (mut host, input, output) = echo();
    let taken = (0..10_000).take_while(|_| host.send(&output, &[]).is_ok()).count();
    assert_eq!(taken, 1024, "that many wait");
    for _ in 0..taken {
        assert!(host.receive(&input, 512).unwrap().is_empty());
    }
    host.send(&output, &[1]).unwrap();
}

#[test]
fn a_message_is_ended_by_the_device_it_is_restored_into() {
    let messages = |bytes| messages(bytes, None);
    let send = |device: &mut Loopback| {
        let mut buffer = vec![0; 1024];
        let mut transfer = Transfer {
            pid: Pid::In,
            endpoint: 1,
            max_packet: 512,
            toggle: Toggle::Data0,
            now: Time::ZERO,
            buffer: &mut buffer,
        };
        device.transfer(EndpointAddress::r#in(1), &mut transfer).bytes
    };
    let mut first = Loopback::new(messages(1500));
    first.configured(3);
    assert_eq!(send(&mut first), 1024);
    let state = first.save(Time::ZERO).unwrap();
    let mut second = Loopback::new(messages(1500));
    second.restore(&state, Time::ZERO).unwrap();
    assert_eq!(send(&mut second), 476);
    let refused = Loopback::new(messages(1000)).restore(&state, Time::ZERO).unwrap_err();
    assert!(refused.to_string().contains("messages of 1500 bytes"), "{refused}");
}

/// What a host gets that asks at `now`, in one piece.
fn ask(device: &mut Loopback, now: Time, len: usize) -> Outcome {
    let mut buffer = vec![0; len];
    let mut transfer = Transfer {
        pid: Pid::In,
        endpoint: 1,
        max_packet: 512,
        toggle: Toggle::Data0,
        now,
        buffer: &mut buffer,
    };
    device.transfer(EndpointAddress::r#in(1), &mut transfer)
}

/// 12,000 bytes at 200 Mbit/s come every 480 us.
const PERIOD: u64 = 480;

#[test]
fn messages_at_a_pace_come_in_their_own_time() {
    let mut device = Loopback::new(messages(12_000, Some(200)));
    device.configured(3);
    let at = |micros| Time::from_nanos(micros * 1_000);
    let mut came = 0;
    for micros in (0..1_000_000).step_by(7) {
        match ask(&mut device, at(micros), 20 << 10) {
            Outcome::NAK => {}
            outcome => {
                assert_eq!(outcome, Outcome::complete(12_000));
                came += 1;
                assert!(came * PERIOD <= micros, "message {came} came early, at {micros} us");
            }
        }
    }
    assert_eq!(came, 1_000_000 / PERIOD, "none is lost while the host keeps asking");
}

#[test]
fn a_message_at_a_pace_that_has_begun_is_there_to_its_end() {
    let mut device = Loopback::new(messages(1_500, Some(12)));
    device.configured(3);
    assert_eq!(ask(&mut device, Time::ZERO, 1024), Outcome::NAK, "none has come yet");
    let pieces = [1_000_000; 4].map(|nanos| ask(&mut device, Time::from_nanos(nanos), 1024));
    let [first, last] = [1024, 476].map(Outcome::complete);
    assert_eq!(pieces, [first, last, Outcome::NAK, Outcome::NAK]);
}

#[test]
fn what_a_host_does_not_fetch_in_time_is_lost_but_for_a_backlog() {
    for (bytes, most) in [(12_000, BACKLOG / 12_000), (BACKLOG, 1), (BACKLOG + 1, 1)] {
        let mut device = Loopback::new(messages(bytes, Some(200)));
        device.configured(3);
        let mut come_by = |seconds: u64| {
            let now = Time::from_nanos(seconds * 1_000_000_000);
            (0..100).take_while(|_| ask(&mut device, now, 128 << 10) != Outcome::NAK).count()
        };
        assert_eq!(come_by(0), 0);
        assert_eq!(come_by(3_600), most, "messages of {bytes} bytes");
        assert_eq!(come_by(3_600), 0);
        assert_eq!(come_by(u64::MAX / 1_000_000_000), most, "whatever the clock shows");
        device.configured(3);
        assert_eq!(ask(&mut device, Time::from_nanos(u64::MAX), 20 << 10), Outcome::NAK);
    }
}

#[test]
fn messages_that_wait_are_part_of_a_snapshot() {
    let mut first = Loopback::new(messages(12_000, Some(200)));
    first.configured(3);
    let at = |micros| Time::from_nanos(micros * 1_000);
    assert_eq!(ask(&mut first, at(0), 20 << 10), Outcome::NAK);
    assert_eq!(ask(&mut first, at(3 * PERIOD + 100), 20 << 10), Outcome::complete(12_000));
    let state = first.save(at(3 * PERIOD + 100)).unwrap();
    // The clock of the other host shows something else.
    let mut second = Loopback::new(messages(12_000, Some(200)));
    second.restore(&state, at(1_000_100)).unwrap();
    for _ in 0..2 {
        assert_eq!(ask(&mut second, at(1_000_100), 20 << 10), Outcome::complete(12_000));
    }
    assert_eq!(ask(&mut second, at(1_000_000 + PERIOD - 1), 20 << 10), Outcome::NAK);
    assert_eq!(ask(&mut second, at(1_000_000 + PERIOD), 20 << 10), Outcome::complete(12_000));

    for other in [messages(12_000, Some(201)), messages(12_000, None)] {
        let refused = Loopback::new(other).restore(&state, at(0)).unwrap_err().to_string();
        assert!(refused.contains("messages of 12000 bytes at 200 Mbit/s"), "{refused}");
    }
}
