//! Devices behind hubs through the controllers.

use vm_usb::devices::hub::{HubOptions, Translation, Translators};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{EndpointAddress, SetupPacket, Speed};

use crate::driver::ehci::EhciDriver;
use crate::driver::enumerate::{Enumerated, enumerate};
use crate::driver::host::{Background, HostDriver, Pipe, TransferError};
use crate::driver::hub::{HubDriver, feature};
use crate::driver::machine::Machine;
use crate::driver::ohci::OhciDriver;
use crate::driver::scripted::{Answer, Controls, Seen};
use crate::rig::{HUB, hub, plug};

const IN1: EndpointAddress = EndpointAddress::r#in(1);
const OUT1: EndpointAddress = EndpointAddress::out(1);
const IN3: EndpointAddress = EndpointAddress::r#in(3);

fn pipe(found: &Enumerated, endpoint: EndpointAddress) -> Pipe {
    let endpoints = &found.interfaces[0].endpoints;
    let endpoint = endpoints.iter().find(|e| e.address == endpoint).unwrap();
    // The interval of a bulk endpoint is no interval.
    let interval = if endpoint.attributes == 2 { 0 } else { endpoint.interval };
    Pipe { interval, ..found.pipe(endpoint) }
}

/// Two devices of this speed behind a hub: both work, and neither is in the other's way.
///
/// `gone` is what the driver is told of a device that was pulled.
fn story(host: &mut dyn HostDriver, ports: &[Port], speed: Speed, gone: TransferError) {
    assert!(host.connected(0));
    let found = enumerate(host, 0, HUB).unwrap();
    let hub = HubDriver::start(host, &found).unwrap();
    assert_eq!(hub.wait(host, 600), Err(TransferError::TimedOut));
    let devices: Vec<(Controls, Enumerated)> = [3, 4]
        .into_iter()
        .map(|port| {
            let controls = plug(&ports[usize::from(port) - 1], speed);
            let told = hub.wait(host, 600).unwrap();
            assert_eq!(told, [1 << port], "the hub tells of port {port}");
            let found = hub.enumerate(host, port, port as u8).unwrap();
            assert_eq!(found.device.speed, speed);
            (controls, found)
        })
        .collect();

    // Not a whole number of packets at any speed: a short one ends the transfer.
    let data: Vec<u8> = (0..=255).cycle().take(3001).collect();
    for (controls, found) in &devices {
        host.send(&pipe(found, OUT1), &data).unwrap();
        assert_eq!(controls.take_received(OUT1), data);
        controls.answer(IN1, [Answer::Data(data.clone())]);
        assert_eq!(host.receive(&pipe(found, IN1), 4096).unwrap(), data);
    }

    // One device parks its endpoint; the same endpoint of the other is asked all the same.
    let [(first, one), (second, two)] = &devices[..] else { panic!("there are two") };
    first.answer(IN3, [Answer::Park, Answer::Data(vec![1])]);
    assert_eq!(host.poll(&pipe(one, IN3), 8, 20), Err(TransferError::TimedOut));
    second.answer(IN3, [Answer::Data(vec![2])]);
    assert_eq!(host.poll(&pipe(two, IN3), 8, 20).unwrap(), [2]);
    first.announce(IN3);
    assert_eq!(host.poll(&pipe(one, IN3), 8, 20).unwrap(), [1]);

    // A transfer that the driver gives up is cancelled at the device behind the hub.
    first.take_seen();
    first.answer(IN1, [Answer::Pending]);
    assert_eq!(host.receive(&pipe(one, IN1), 64), Err(TransferError::TimedOut));
    let seen = first.take_seen();
    assert_eq!(seen.last(), Some(&Seen::Cancel(IN1)), "{seen:?}");

    // A device that is pulled does not answer any more.
    ports[2].detach().unwrap();
    assert_eq!(hub.wait(host, 600).unwrap(), [1 << 3]);
    hub.clear(host, 3, feature::C_CONNECTION).unwrap();
    assert_eq!(host.receive(&pipe(one, IN1), 64), Err(gone));
    second.answer(IN1, [Answer::Data(vec![8; 9])]);
    assert_eq!(host.receive(&pipe(two, IN1), 64).unwrap(), [8; 9]);
}

#[test]
fn full_and_low_speed_devices_behind_a_full_speed_hub_work_on_ohci() {
    for speed in [Speed::Full, Speed::Low] {
        let (hub, ports) = hub(HubOptions { speed: Speed::Full, ..HubOptions::default() });
        let root = Port::classic();
        root.attach(Box::new(hub)).unwrap();
        let mut driver = OhciDriver::new(Ohci::new(vec![root.link(Host::Classic)]));
        story(&mut driver, &ports, speed, TransferError::NoAnswer);
    }
}

#[test]
fn high_speed_devices_behind_a_high_speed_hub_work_on_ehci() {
    let (hub, ports) = hub(HubOptions::default());
    let root = Port::high_speed_only();
    root.attach(Box::new(hub)).unwrap();
    let ehci = Ehci::new(vec![root.link(Host::High)]);
    let mut driver = EhciDriver::new(Machine::new(ehci));
    driver.sleep_millis(1);
    story(&mut driver, &ports, Speed::High, TransferError::NoAnswer);
}

#[test]
fn full_and_low_speed_devices_behind_a_high_speed_hub_work_on_ehci_through_its_translator() {
    let translators = [
        (Translators::Single, Translation::Prompt),
        (Translators::Single, Translation::Wire),
        (Translators::Multiple, Translation::Prompt),
    ];
    for (translators, translation) in translators {
        for speed in [Speed::Full, Speed::Low] {
            let options = HubOptions { translators, translation, ..HubOptions::default() };
            let (hub, ports) = hub(options);
            let root = Port::high_speed_only();
            root.attach(Box::new(hub)).unwrap();
            let ehci = Ehci::new(vec![root.link(Host::High)]);
            let mut driver = EhciDriver::new(Machine::new(ehci));
            driver.sleep_millis(1);
            // The translator answers STALL for a device that does not (USB 2.0, 11.17.1).
            story(&mut driver, &ports, speed, TransferError::Stall);
        }
    }
}

/// An endpoint promises to announce what it has to say. A request gives it something, of which it tells
/// nobody: whoever sent the request asks again.
fn a_request_has_parked_endpoints_asked_again(
    host: &mut impl Background,
    ports: &[Port],
    speed: Speed,
) {
    assert!(host.connected(0));
    let found = enumerate(host, 0, HUB).unwrap();
    let hub = HubDriver::start(host, &found).unwrap();
    let controls = plug(&ports[4], speed);
    hub.wait(host, 600).unwrap();
    let found = hub.enumerate(host, 5, 5).unwrap();
    for endpoint in [IN1, IN3] {
        let pipe = pipe(&found, endpoint);
        controls.answer(endpoint, [Answer::Park]);
        let flight = host.begin_receive(&pipe);
        host.sleep_millis(20);
        controls.take_seen();
        controls.answer(endpoint, [Answer::Data(vec![7; 5])]);
        host.sleep_millis(20);
        assert_eq!(controls.take_transfers(), [], "{endpoint} at {speed:?} speed is parked");
        controls.answer_request(&[]);
        host.control(&found.device, SetupPacket::new(0x40, 1, 0, 0, 0), &[]).unwrap();
        host.sleep_millis(20);
        assert!(host.has_ended(&flight), "{endpoint} at {speed:?} speed is asked again");
        assert_eq!(host.finish(flight).unwrap(), [7; 5]);
    }
}

#[test]
fn a_request_to_a_device_behind_any_hub_has_its_parked_endpoints_asked_again() {
    for speed in [Speed::Full, Speed::Low] {
        let (hub, ports) = hub(HubOptions { speed: Speed::Full, ..HubOptions::default() });
        let root = Port::classic();
        root.attach(Box::new(hub)).unwrap();
        let mut driver = OhciDriver::new(Ohci::new(vec![root.link(Host::Classic)]));
        a_request_has_parked_endpoints_asked_again(&mut driver, &ports, speed);
    }
    for (translation, speed) in [
        (Translation::Prompt, Speed::High),
        (Translation::Prompt, Speed::Full),
        (Translation::Wire, Speed::Full),
        (Translation::Prompt, Speed::Low),
    ] {
        let (hub, ports) = hub(HubOptions { translation, ..HubOptions::default() });
        let root = Port::high_speed_only();
        root.attach(Box::new(hub)).unwrap();
        let mut driver = EhciDriver::new(Machine::new(Ehci::new(vec![root.link(Host::High)])));
        driver.sleep_millis(1);
        a_request_has_parked_endpoints_asked_again(&mut driver, &ports, speed);
    }
}
