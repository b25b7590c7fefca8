use super::*;
use crate::devices::loopback::{Loopback, Pattern};
use crate::devices::storage::{RamDisk, Serial, Storage};
use crate::usb::Toggle;

const OUT: EndpointAddress = EndpointAddress::out(2);

fn disk() -> Storage {
    Storage::new(RamDisk::zeroed(8), Serial::from_name("disk"))
}

/// It takes whatever is sent.
fn sink() -> Loopback {
    let mut device = Loopback::new(Pattern::Unchecked);
    device.configured(3);
    device
}

fn offer(device: &mut impl UsbDevice, len: usize) -> Outcome {
    let mut buffer = vec![0; len];
    device.transfer(
        OUT,
        &mut Transfer {
            pid: Pid::Out,
            endpoint: 2,
            max_packet: 64,
            toggle: Toggle::Data0,
            now: Time::ZERO,
            buffer: &mut buffer,
        },
    )
}

#[test]
fn a_script_is_followed_transfer_by_transfer_and_then_ends() {
    let script = [Some(Fault::Nak), None, Some(Fault::Error(BusError::Crc)), Some(Fault::Stall)];
    let mut device = Faulty::scripted(disk(), script.map(|fault| (OUT, fault)));
    let injected = device.injected();
    assert_eq!(offer(&mut device, 31), Outcome::NAK);
    assert_eq!(offer(&mut device, 31), Outcome::complete(31), "an invalid wrapper, but taken");
    assert_eq!(offer(&mut device, 31), Outcome::failed(0, BusError::Crc));
    assert_eq!(offer(&mut device, 31), Outcome::STALL);
    assert_eq!(injected.count(), 3);
}

#[test]
fn an_error_after_some_packets_lets_the_device_see_just_those() {
    let fail = |packets| Some(Fault::ErrorAfter(packets, BusError::Timeout));
    let mut device = Faulty::scripted(disk(), [(OUT, fail(1)), (OUT, fail(9)), (OUT, fail(0))]);
    // The first packet is no command: the disk takes it and then only stalls.
    assert_eq!(offer(&mut device, 200), Outcome::failed(64, BusError::Timeout));
    assert_eq!(offer(&mut device, 200), Outcome::STALL, "what the device says goes first");
    assert_eq!(offer(&mut device, 200), Outcome::failed(0, BusError::Timeout));
}

#[test]
fn a_transfer_waits_until_it_is_finished_and_is_served_then() {
    let script = [Some(Fault::Pending), Some(Fault::Park), Some(Fault::Park)];
    let mut device = Faulty::scripted(sink(), script.map(|fault| (OUT, fault)));
    let waiting = device.waiting();
    for answer in [Outcome::PENDING, Outcome::PARK] {
        assert!(!waiting.any());
        assert_eq!(offer(&mut device, 31), answer);
        assert_eq!(offer(&mut device, 31), answer, "whoever asks early hears the same");
        assert!(waiting.any());
        waiting.finish();
        assert_eq!(offer(&mut device, 31), Outcome::complete(31));
    }
    assert_eq!(offer(&mut device, 31), Outcome::PARK);
    device.cancel(OUT);
    assert!(!waiting.any(), "the host gave it up");
}

#[test]
fn a_short_transfer_has_no_more_packets_than_said() {
    let short = |packets| Some(Fault::Short(packets));
    let mut device = Faulty::scripted(sink(), [(OUT, short(2)), (OUT, short(0))]);
    assert_eq!(offer(&mut device, 200), Outcome::complete(128));
    assert_eq!(offer(&mut device, 200), Outcome::complete(64), "one packet is moved at least");
}

#[test]
fn a_device_that_hangs_is_silent_until_it_is_reset() {
    let mut device = Faulty::scripted(sink(), [(OUT, Some(Fault::Hang))]);
    assert_eq!(offer(&mut device, 31), Outcome::TIMEOUT);
    assert_eq!(offer(&mut device, 31), Outcome::TIMEOUT);
    device.configured(0);
    assert_eq!(offer(&mut device, 31), Outcome::complete(31));
}

#[test]
fn the_same_seed_brings_the_same_faults() {
    let odds = Odds { nak: 100, stall: 50, error: 100, ..Odds::default() };
    let faults = |seed| {
        let mut device = Faulty::seeded(disk(), seed, odds);
        (0..2000).map(|_| device.draw(OUT)).collect::<Vec<_>>()
    };
    assert_eq!(faults(7), faults(7));
    assert_ne!(faults(7), faults(8));
    let all = faults(7);
    let count = |fault| all.iter().filter(|drawn| **drawn == Some(fault)).count();
    assert!((150..250).contains(&count(Fault::Nak)), "a tenth of 2000");
    assert!((60..140).contains(&count(Fault::Stall)));
    assert!(count(Fault::ErrorAfter(2, BusError::Crc)) > 0);
}
