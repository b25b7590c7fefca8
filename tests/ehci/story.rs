//! A driver's story from power-on to data.

use vm_usb::usb::{BusError, SetupPacket, Speed, request};

use crate::driver::host::{HostDriver, TransferError};
use crate::driver::scripted::Answer;
use crate::rig::{IN1, IN3, OUT1, Rig, pattern};

#[test]
fn a_driver_reads_the_descriptors_of_a_device_it_has_enumerated() {
    let mut rig = Rig::new();
    let device = rig.device;
    let read = |kind: u16, len| SetupPacket::new(0x80, request::GET_DESCRIPTOR, kind << 8, 0, len);
    let descriptor = rig.driver.control(&device, read(1, 18), &[]).unwrap();
    assert_eq!(descriptor.len(), 18);
    assert_eq!(descriptor[8..12], [0x09, 0x12, 0x01, 0x00]);
    let header = rig.driver.control(&device, read(2, 9), &[]).unwrap();
    let total = u16::from_le_bytes([header[2], header[3]]);
    let whole = rig.driver.control(&device, read(2, 4096), &[]).unwrap();
    assert_eq!(whole.len(), usize::from(total), "a short data stage goes on to the status stage");
    let stalled = rig.driver.control(&device, SetupPacket::new(0xc0, 1, 0, 0, 4), &[]);
    assert_eq!(stalled, Err(TransferError::Stall));
    let again = rig.driver.control(&device, read(1, 18), &[]).unwrap();
    assert_eq!(again, descriptor, "the control endpoint works after a request error");
}

#[test]
fn bulk_data_goes_both_ways_without_a_wrong_byte() {
    let mut rig = Rig::new();
    let (to, from) = (rig.bulk(OUT1), rig.bulk(IN1));
    for len in [0, 1, 511, 512, 513, 4096, 20_480, 20_481, 65_536, 100_001] {
        let data = pattern(len);
        rig.driver.send(&to, &data).unwrap();
        assert_eq!(rig.controls.take_received(OUT1), data, "{len} bytes out");
        rig.controls.answer(IN1, [Answer::Data(data.clone())]);
        let got = rig.driver.receive(&from, len).unwrap();
        assert!(got == data, "{len} bytes in");
    }
}

#[test]
fn a_read_that_ends_early_in_a_chain_of_qtds_leaves_the_queue_usable() {
    let mut rig = Rig::new();
    let from = rig.bulk(IN1);
    for round in 0..20 {
        let data = pattern(1_000 + round);
        rig.controls.answer(IN1, [Answer::Data(data.clone())]);
        assert_eq!(rig.driver.receive(&from, 32 << 10).unwrap(), data);
    }
}

#[test]
fn a_device_that_waits_for_its_own_backend_answers_later() {
    let mut rig = Rig::new();
    let from = rig.bulk(IN1);
    rig.controls.answer(IN1, [Answer::Pending, Answer::Data(vec![9; 700])]);
    // Nobody announces anything: the driver gives up, and the device hears of it.
    let begin = rig.driver.machine.now;
    assert_eq!(rig.driver.receive(&from, 1024), Err(TransferError::TimedOut));
    assert!(rig.driver.machine.now.since(begin).as_secs() >= 5);
    let seen = rig.controls.take_seen();
    assert_eq!(seen.len(), 2, "offered once, cancelled once: {seen:?}");
    assert_eq!(rig.driver.receive(&from, 1024).unwrap(), vec![9; 700]);
}

#[test]
fn reports_of_an_interrupt_endpoint_arrive_within_its_interval() {
    let mut rig = Rig::new();
    let keys = rig.interrupt(IN3, 4);
    assert_eq!(rig.driver.poll(&keys, 8, 20), Err(TransferError::TimedOut));
    rig.controls.answer(IN3, [Answer::Data(vec![0, 0, 4, 0, 0, 0, 0, 0])]);
    let begin = rig.driver.machine.now;
    assert_eq!(rig.driver.poll(&keys, 8, 20).unwrap(), [0, 0, 4, 0, 0, 0, 0, 0]);
    assert!(rig.driver.machine.now.since(begin).as_micros() <= 1_300);
}

#[test]
fn errors_reach_the_driver_and_the_endpoint_recovers() {
    let mut rig = Rig::new();
    let from = rig.bulk(IN1);
    rig.controls.answer(IN1, [Answer::Stall]);
    assert_eq!(rig.driver.receive(&from, 512), Err(TransferError::Stall));
    let clear = SetupPacket::new(2, request::CLEAR_FEATURE, 0, 0x81, 0);
    let device = rig.device;
    rig.driver.control(&device, clear, &[]).unwrap();
    rig.driver.reset_toggle(&from);
    let timeouts = vec![Answer::Error(BusError::Timeout); 3];
    rig.controls.answer(IN1, timeouts);
    assert_eq!(rig.driver.receive(&from, 512), Err(TransferError::NoAnswer));
    rig.controls.answer(IN1, [Answer::Data(vec![1; 600])]);
    assert_eq!(rig.driver.receive(&from, 512).unwrap(), [1; 512]);
    assert_eq!(rig.driver.receive(&from, 512).unwrap(), [1; 88]);
    assert_eq!(rig.driver.reset_port(1), None::<Speed>, "nothing is plugged in there");
}
