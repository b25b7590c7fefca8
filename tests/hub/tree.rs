//! Devices behind hubs behind hubs.

use vm_usb::devices::hub::HubOptions;
use vm_usb::topology::{AttachError, Port};
use vm_usb::usb::{EndpointAddress, Speed};

use crate::driver::direct::DirectHost;
use crate::driver::enumerate::enumerate;
use crate::driver::host::{HostDriver, TransferError};
use crate::driver::hub::{HubDriver, feature};
use crate::driver::scripted::{Answer, Seen};
use crate::rig::{Rig, hub, plug};

const IN1: EndpointAddress = EndpointAddress::r#in(1);

fn options(speed: Speed) -> HubOptions {
    HubOptions { speed, ..HubOptions::default() }
}

/// Plugs hubs into each other's port 4; returns the innermost hub's ports.
fn nest(first: &Port, hubs: usize, speed: Speed) -> Vec<Port> {
    let mut port = first.clone();
    let mut ports = Vec::new();
    for _ in 0..hubs {
        let (hub, inner) = hub(options(speed));
        port.attach(Box::new(hub)).unwrap();
        port = inner[3].clone();
        ports = inner;
    }
    ports
}

#[test]
fn a_device_behind_five_hubs_works() {
    for speed in [Speed::Full, Speed::High] {
        let (first, ports) = hub(options(speed));
        let inner = nest(&ports[3], 4, speed);
        let controls = plug(&inner[6], speed);
        let mut host = DirectHost::new(speed, first);
        let mut hub = enumerate(&mut host, 0, 1).unwrap();
        let mut driver = HubDriver::start(&mut host, &hub).unwrap();
        for address in 2..=5 {
            hub = driver.enumerate(&mut host, 4, address).unwrap();
            assert_eq!(hub.device.speed, speed);
            driver = HubDriver::start(&mut host, &hub).unwrap();
        }
        let found = driver.enumerate(&mut host, 7, 6).unwrap();
        assert_eq!((found.product.as_str(), found.device.speed), ("Scripted", speed));
        let input = found.pipe(&found.interfaces[0].endpoints[1]);
        controls.answer(IN1, [Answer::Data(vec![7; 1000])]);
        assert_eq!(host.receive(&input, 4096).unwrap(), [7; 1000]);
        let _ = host.link.take_ready().count();
        controls.announce(IN1);
        assert_eq!(host.link.take_ready().collect::<Vec<_>>(), [IN1], "through five hubs");
    }
}

#[test]
fn a_sixth_hub_and_a_hub_in_itself_are_refused() {
    let root = Port::classic();
    let inner = nest(&root, 5, Speed::Full);
    let (sixth, _) = hub(options(Speed::Full));
    let refused = inner[0].attach(Box::new(sixth)).unwrap_err();
    assert_eq!(refused.reason, AttachError::Depth(6));

    // The same, built from the leaves.
    let (above, ports) = hub(options(Speed::Full));
    nest(&ports[0], 3, Speed::Full);
    let inner = nest(&Port::classic(), 2, Speed::Full);
    let refused = inner[0].attach(Box::new(above)).unwrap_err();
    assert_eq!(refused.reason, AttachError::Depth(6));

    let (outer, ports) = hub(options(Speed::Full));
    let inner = nest(&ports[0], 2, Speed::Full);
    let refused = inner[5].attach(Box::new(outer)).unwrap_err();
    assert_eq!(refused.reason, AttachError::Loop);
    Port::classic().attach(refused.device).unwrap();
}

#[test]
fn pulling_a_hub_takes_what_is_behind_it_away() {
    let mut rig = Rig::high();
    let inner = nest(&rig.ports[3], 1, Speed::High);
    let controls = plug(&inner[0], Speed::High);
    let hub = rig.hub.enumerate(&mut rig.host, 4, 3).unwrap();
    let driver = HubDriver::start(&mut rig.host, &hub).unwrap();
    let found = driver.enumerate(&mut rig.host, 1, 4).unwrap();
    let input = found.pipe(&found.interfaces[0].endpoints[1]);
    controls.answer(IN1, [Answer::Pending]);
    assert_eq!(rig.host.receive(&input, 64), Err(TransferError::TimedOut));
    controls.take_seen();
    let _ = rig.host.link.take_ready().count();

    let pulled = rig.ports[3].detach().unwrap();
    assert_eq!(controls.take_seen(), [Seen::Cancel(IN1), Seen::Configured(0)]);
    assert_eq!(rig.host.receive(&input, 64), Err(TransferError::NoAnswer));
    assert!(rig.host.link.take_ready().any(|e| e == IN1), "whoever waits for it is told");
    assert_eq!(rig.changes(), Some(vec![1 << 4]));
    rig.clear(4, feature::C_CONNECTION);

    // Back in another port, it must be set up again.
    rig.ports[5].attach(pulled).unwrap();
    assert_eq!(rig.host.receive(&input, 64), Err(TransferError::NoAnswer));
    let hub = rig.hub.enumerate(&mut rig.host, 6, 3).unwrap();
    let driver = HubDriver::start(&mut rig.host, &hub).unwrap();
    driver.enumerate(&mut rig.host, 1, 4).unwrap();
    controls.answer(IN1, [Answer::Data(vec![1])]);
    assert_eq!(rig.host.receive(&input, 64).unwrap(), [1]);
}

#[test]
fn packets_pass_enabled_ports_that_are_awake() {
    let mut rig = Rig::high();
    let controls = plug(&rig.ports[0], Speed::High);
    let found = rig.hub.enumerate(&mut rig.host, 1, 3).unwrap();
    let input = found.pipe(&found.interfaces[0].endpoints[1]);
    controls.answer(IN1, vec![Answer::Data(vec![5]); 3]);
    assert_eq!(rig.host.receive(&input, 64).unwrap(), [5]);
    rig.set(1, feature::SUSPEND);
    assert_eq!(rig.host.receive(&input, 64), Err(TransferError::NoAnswer));
    rig.clear(1, feature::SUSPEND);
    rig.host.sleep_millis(20);
    rig.status(1);
    assert_eq!(rig.host.receive(&input, 64).unwrap(), [5]);
    rig.clear(1, feature::ENABLE);
    assert_eq!(rig.host.receive(&input, 64), Err(TransferError::NoAnswer));
}

#[test]
fn a_cancellation_finds_its_device_whatever_the_port_does() {
    let mut rig = Rig::high();
    let controls = plug(&rig.ports[0], Speed::High);
    let found = rig.hub.enumerate(&mut rig.host, 1, 3).unwrap();
    let input = found.pipe(&found.interfaces[0].endpoints[1]);
    controls.answer(IN1, [Answer::Pending, Answer::Pending]);
    assert_eq!(rig.host.receive(&input, 64), Err(TransferError::TimedOut));
    controls.take_seen();
    rig.host.link.with(|function| function.cancel_at(4, IN1));
    assert_eq!(controls.take_seen(), [], "that is another device");
    rig.host.link.with(|function| function.cancel_at(3, IN1));
    assert_eq!(controls.take_seen(), [Seen::Cancel(IN1)]);
    assert_eq!(rig.host.receive(&input, 64), Err(TransferError::TimedOut));
    controls.take_seen();
    rig.set(1, feature::SUSPEND);
    assert_eq!(controls.take_seen()[0], Seen::Cancel(IN1), "a sleeping bus carries nothing");
}

#[test]
fn high_speed_packets_do_not_reach_slow_devices() {
    let mut rig = Rig::high();
    plug(&rig.ports[0], Speed::Full);
    assert_eq!(rig.hub.reset_port(&mut rig.host, 1), Some(Speed::Full));
    assert!(rig.host.link.with(|f| f.reach(0, |_| ())).unwrap().is_none());
    plug(&rig.ports[1], Speed::High);
    assert_eq!(rig.hub.reset_port(&mut rig.host, 2), Some(Speed::High));
    let speed = rig.host.link.with(|f| f.reach(0, |f| f.speed())).unwrap();
    assert_eq!(speed, Some(Speed::High));
}
