//! A driver's day with the OHCI controller: enumeration, control, bulk and interrupt transfers.

mod driver;

use driver::enumerate::enumerate;
use driver::host::{Device, HostDriver, Pipe, TransferError};
use driver::ohci::{Idle, OhciDriver};
use driver::scripted::{Answer, Controls, Scripted};
use vm_usb::ohci::{Ohci, Pacing};
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{EndpointAddress, Speed};

fn plugged(speed: Speed, pacing: Pacing) -> (OhciDriver, Controls, Port) {
    let (device, controls) = Scripted::new(speed);
    let ports = [Port::classic(), Port::classic()];
    ports[1].attach(Box::new(device)).map_err(|refused| refused.reason).unwrap();
    let links = ports.iter().map(|port| port.link(Host::Classic)).collect();
    let driver = OhciDriver::new(Ohci::new(links).with_pacing(pacing));
    let [_, port] = ports;
    (driver, controls, port)
}

fn pipe(device: Device, endpoint: EndpointAddress, interval: u8) -> Pipe {
    let max_packet = if device.speed == Speed::Low { 8 } else { 64 };
    Pipe { device, endpoint, max_packet, interval }
}

#[test]
fn a_driver_enumerates_full_and_low_speed_devices() {
    for speed in [Speed::Low, Speed::Full, Speed::High] {
        for idle in [Idle::Keep, Idle::Unlink] {
            let (mut driver, _, _) = plugged(speed, Pacing::RealTime);
            driver.idle = idle;
            assert!(!driver.connected(0));
            assert!(driver.connected(1));
            let found = enumerate(&mut driver, 1, 5).unwrap();
            assert_eq!(found.product, "Scripted");
            assert_eq!(found.device.speed, speed.min(Speed::Full));
            assert_eq!(found.interfaces[0].endpoints.len(), 6);
        }
    }
}

#[test]
fn bulk_data_arrives_whole_and_in_order_with_either_way_of_unlinking() {
    for pacing in [Pacing::RealTime, Pacing::Eager] {
        for idle in [Idle::Keep, Idle::Unlink] {
            let (mut driver, controls, _) = plugged(Speed::Full, pacing);
            driver.idle = idle;
            let device = enumerate(&mut driver, 1, 7).unwrap().device;
            let output = pipe(device, EndpointAddress::out(1), 0);
            let input = pipe(device, EndpointAddress::r#in(1), 0);
            for len in [0, 1, 63, 64, 65, 4096, 4097, 100_000] {
                let data: Vec<u8> = (0..len).map(|n: usize| (n * 7 + n / 251) as u8).collect();
                driver.send(&output, &data).unwrap();
                assert_eq!(controls.take_received(output.endpoint), data);
                controls.answer(input.endpoint, [Answer::Data(data.clone())]);
                assert_eq!(driver.receive(&input, len.max(1)).unwrap(), data);
            }
        }
    }
}

#[test]
fn a_stall_is_reported_and_the_endpoint_works_again_after_clear_halt() {
    let (mut driver, controls, _) = plugged(Speed::Full, Pacing::RealTime);
    let device = enumerate(&mut driver, 1, 7).unwrap().device;
    let input = pipe(device, EndpointAddress::r#in(2), 0);
    controls.answer(input.endpoint, [Answer::Data(vec![1; 64]), Answer::Stall]);
    assert_eq!(driver.receive(&input, 64).unwrap(), [1; 64]);
    assert_eq!(driver.receive(&input, 64), Err(TransferError::Stall));
    assert_eq!(driver.receive(&input, 64), Err(TransferError::Stall), "until it is cleared");
    driver::enumerate::clear_halt(&mut driver, &input).unwrap();
    controls.answer(input.endpoint, [Answer::Data(vec![2; 10])]);
    assert_eq!(driver.receive(&input, 64).unwrap(), [2; 10]);
}

#[test]
fn an_interrupt_endpoint_is_polled_until_it_has_a_report() {
    let (mut driver, controls, _) = plugged(Speed::Low, Pacing::RealTime);
    let device = enumerate(&mut driver, 1, 3).unwrap().device;
    let input = pipe(device, EndpointAddress::r#in(3), 8);
    controls.answer(input.endpoint, [Answer::Nak, Answer::Nak, Answer::Data(vec![1, 2, 3])]);
    let before = driver.machine.now;
    assert_eq!(driver.poll(&input, 8, 100).unwrap(), [1, 2, 3]);
    let millis = driver.machine.now.nanos_since(before) / 1_000_000;
    assert!((17..=26).contains(&millis), "three polls, 8 ms apart: {millis} ms");
    assert_eq!(driver.poll(&input, 8, 100), Err(TransferError::TimedOut));
    controls.answer(input.endpoint, [Answer::Data(vec![9])]);
    assert_eq!(driver.poll(&input, 8, 100).unwrap(), [9]);
}

#[test]
fn a_device_that_went_away_does_not_answer() {
    let (mut driver, controls, port) = plugged(Speed::Full, Pacing::RealTime);
    let device = enumerate(&mut driver, 1, 3).unwrap().device;
    let input = pipe(device, EndpointAddress::r#in(1), 0);
    controls.answer(input.endpoint, [Answer::Data(vec![5])]);
    assert_eq!(driver.receive(&input, 64).unwrap(), [5]);
    port.detach().unwrap();
    assert_eq!(driver.receive(&input, 64), Err(TransferError::NoAnswer));
    assert!(!driver.connected(1));
}
