//! A hub as its driver sees it: descriptors, requests and ports (USB 2.0, 11.5 and 11.23 to 11.24).

use vm_usb::devices::hub::{Hub, HubError, HubOptions, PowerSwitching, Translators};
use vm_usb::usb::{
    EndpointAddress, Outcome, Pid, SetupPacket, Speed, Suspension, Toggle, Transfer, request,
};

use crate::driver::direct::DirectHost;
use crate::driver::enumerate::enumerate;
use crate::driver::host::{HostDriver, TransferError};
use crate::driver::hub::{bit, feature};
use crate::driver::scripted::Seen;
use crate::rig::{HUB, Rig, hub, plug};

const IDLE: u16 = bit::POWER;
const CONNECTED: u16 = bit::POWER | bit::CONNECTION;
const ENABLED: u16 = CONNECTED | bit::ENABLE;

#[test]
fn a_hub_of_seven_ports_describes_itself() {
    let mut rig = Rig::high();
    let get = SetupPacket::new(0xa0, request::GET_DESCRIPTOR, 0x2900, 0, 71);
    let device = rig.hub.device;
    let descriptor = rig.host.control(&device, get, &[]).unwrap();
    assert_eq!(descriptor, [9, 0x29, 7, 0x89, 0, 1, 0, 0, 0xff]);
    let ganged = HubOptions { power: PowerSwitching::Ganged, ports: 15, ..HubOptions::default() };
    let mut rig = Rig::new(Speed::High, ganged);
    let device = rig.hub.device;
    let descriptor = rig.host.control(&device, get, &[]).unwrap();
    assert_eq!(descriptor, [11, 0x29, 15, 0x80, 0, 1, 0, 0, 0, 0xff, 0xff]);
}

#[test]
fn a_hub_says_how_many_translators_it_has_at_high_speed_only() {
    let multiple = HubOptions { translators: Translators::Multiple, ..HubOptions::default() };
    for (options, protocol) in [(HubOptions::default(), 1), (multiple, 2)] {
        let mut host = DirectHost::new(Speed::High, hub(options.clone()).0);
        let found = enumerate(&mut host, 0, HUB).unwrap();
        assert_eq!(found.descriptor[4..7], [9, 0, protocol]);
        let interfaces: Vec<_> =
            found.interfaces.iter().map(|i| (i.alternate, i.class[2])).collect();
        let expected: &[_] = if protocol == 1 { &[(0, 0)] } else { &[(0, 1), (1, 2)] };
        assert_eq!(interfaces, expected);

        let mut host = DirectHost::new(Speed::Full, hub(options).0);
        let found = enumerate(&mut host, 0, HUB).unwrap();
        assert_eq!(found.descriptor[4..7], [9, 0, 0]);
        assert_eq!(found.interfaces.len(), 1);
    }
}

#[test]
fn a_hub_that_cannot_be_is_refused_in_one_line() {
    let ports = |ports| HubOptions { ports, ..HubOptions::default() };
    let error = Hub::new(ports(16)).err();
    assert_eq!(error, Some(HubError::Ports(16)));
    assert_eq!(error.unwrap().to_string(), "a hub cannot have 16 ports: choose 1 to 15");
    assert_eq!(Hub::new(ports(0)).err(), Some(HubError::Ports(0)));
    let slow = HubOptions { speed: Speed::Low, ..HubOptions::default() };
    assert_eq!(Hub::new(slow).err(), Some(HubError::LowSpeed));
}

#[test]
fn a_port_shows_nothing_before_it_has_power() {
    let (hub, ports) = hub(HubOptions::default());
    plug(&ports[2], Speed::Full);
    let mut host = DirectHost::new(Speed::High, hub);
    let found = enumerate(&mut host, 0, HUB).unwrap();
    let get = SetupPacket::new(0xa3, request::GET_STATUS, 0, 3, 4);
    assert_eq!(host.control(&found.device, get, &[]).unwrap(), [0; 4]);
    let power = SetupPacket::new(0x23, request::SET_FEATURE, feature::POWER, 3, 0);
    host.control(&found.device, power, &[]).unwrap();
    assert_eq!(host.control(&found.device, get, &[]).unwrap(), [1, 1, 1, 0]);
}

#[test]
fn plugging_and_pulling_is_told_by_the_status_change_endpoint() {
    let mut rig = Rig::high();
    assert_eq!(rig.changes(), None, "NAK, never a packet of no bytes");
    plug(&rig.ports[3], Speed::Low);
    assert_eq!(rig.changes(), Some(vec![1 << 4]));
    assert_eq!(rig.changes(), Some(vec![1 << 4]), "until it is acknowledged");
    assert_eq!(rig.status(4), (CONNECTED | bit::LOW_SPEED, 1));
    rig.clear(4, feature::C_CONNECTION);
    assert_eq!(rig.changes(), None);
    rig.ports[3].detach().unwrap();
    assert_eq!(rig.changes(), Some(vec![1 << 4]));
    assert_eq!(rig.status(4), (IDLE, 1));
    rig.clear(4, feature::C_CONNECTION);
    plug(&rig.ports[3], Speed::Full);
    rig.clear(4, feature::C_CONNECTION);
    rig.ports[3].detach().unwrap();
    plug(&rig.ports[3], Speed::Full);
    assert_eq!(rig.status(4), (CONNECTED, 1), "a quick exchange is a change");
}

#[test]
fn a_reset_takes_ten_milliseconds_and_finds_the_speed() {
    for (bus, device, speed_bits) in [
        (Speed::High, Speed::High, bit::HIGH_SPEED),
        (Speed::High, Speed::Full, 0),
        (Speed::High, Speed::Low, bit::LOW_SPEED),
        (Speed::Full, Speed::High, 0),
        (Speed::Full, Speed::Low, bit::LOW_SPEED),
    ] {
        let mut rig = Rig::new(bus, HubOptions::default());
        plug(&rig.ports[0], device);
        rig.clear(1, feature::C_CONNECTION);
        let low = speed_bits & bit::LOW_SPEED;
        assert_eq!(rig.status(1), (CONNECTED | low, 0), "high speed shows after the reset only");
        rig.set(1, feature::RESET);
        rig.host.sleep_millis(9);
        assert_eq!(rig.status(1).0, CONNECTED | bit::RESET | low);
        rig.host.sleep_millis(1);
        assert_eq!(rig.status(1), (ENABLED | speed_bits, 0x10), "{device} behind {bus}");
        assert_eq!(rig.changes(), Some(vec![2]));
        rig.clear(1, feature::C_RESET);
        rig.clear(1, feature::ENABLE);
        assert_eq!(rig.status(1), (CONNECTED | low, 0));
    }
}

/// One look at the status change endpoint.
fn poll(rig: &mut Rig) -> Outcome {
    let (now, mut buffer) = (rig.host.now, vec![0; 1]);
    let transfer = Transfer {
        pid: Pid::In,
        endpoint: 1,
        max_packet: 1,
        toggle: Toggle::Data0,
        now,
        buffer: &mut buffer,
    };
    rig.host.link.with(|function| function.transact(transfer)).unwrap()
}

#[test]
fn a_host_that_waits_for_the_end_of_a_reset_polls_and_otherwise_parks() {
    let mut rig = Rig::high();
    plug(&rig.ports[0], Speed::Full);
    rig.clear(1, feature::C_CONNECTION);
    assert_eq!(poll(&mut rig), Outcome::PARK);
    let _ = rig.host.link.take_ready().count();
    rig.set(1, feature::RESET);
    let ready: Vec<_> = rig.host.link.take_ready().collect();
    assert!(ready.contains(&EndpointAddress::r#in(1)), "the parked endpoint is to be asked");
    assert_eq!(poll(&mut rig), Outcome::NAK);
    rig.host.sleep_millis(10);
    assert_eq!(poll(&mut rig), Outcome::complete(1));
}

#[test]
fn suspending_a_port_suspends_its_device_and_resuming_takes_twenty_milliseconds() {
    let mut rig = Rig::high();
    let controls = plug(&rig.ports[0], Speed::High);
    rig.hub.enumerate(&mut rig.host, 1, 3).unwrap();
    controls.take_seen();
    rig.set(1, feature::SUSPEND);
    assert_eq!(rig.status(1), (ENABLED | bit::HIGH_SPEED | bit::SUSPEND, 0));
    assert_eq!(controls.take_seen(), [Seen::Suspension(Suspension::Suspended)]);
    rig.clear(1, feature::SUSPEND);
    rig.host.sleep_millis(19);
    assert_eq!(rig.status(1), (ENABLED | bit::HIGH_SPEED | bit::SUSPEND, 0));
    rig.host.sleep_millis(1);
    assert_eq!(rig.status(1), (ENABLED | bit::HIGH_SPEED, 4));
    assert_eq!(controls.take_seen(), [Seen::Suspension(Suspension::Resumed)]);
}

#[test]
fn a_device_wakes_its_port_and_a_suspended_hub_wakes_the_host() {
    let mut rig = Rig::high();
    let controls = plug(&rig.ports[0], Speed::High);
    let device = rig.hub.enumerate(&mut rig.host, 1, 3).unwrap().device;
    let allow = SetupPacket::new(0, request::SET_FEATURE, 1, 0, 0);
    rig.host.control(&device, allow, &[]).unwrap();

    rig.set(1, feature::SUSPEND);
    controls.remote_wakeup();
    rig.status(1);
    rig.host.sleep_millis(20);
    assert_eq!(rig.status(1), (ENABLED | bit::HIGH_SPEED, 4), "the hub resumes the port itself");
    assert!(!rig.host.link.take_remote_wakeup(), "the hub's own bus is awake");
    rig.clear(1, feature::C_SUSPEND);

    controls.take_seen();
    rig.host.suspension(Suspension::Suspended);
    assert_eq!(controls.take_seen(), [Seen::Suspension(Suspension::Suspended)]);
    plug(&rig.ports[1], Speed::Full);
    assert!(!rig.host.link.take_remote_wakeup(), "plugging wakes nobody unless allowed");
    controls.remote_wakeup();
    assert!(rig.host.link.take_remote_wakeup(), "what the device signals goes through");
    rig.host.suspension(Suspension::Resumed);
    assert_eq!(rig.status(1), (ENABLED | bit::HIGH_SPEED, 0));

    let hub = rig.hub.device;
    rig.host.control(&hub, allow, &[]).unwrap();
    rig.host.suspension(Suspension::Suspended);
    plug(&rig.ports[2], Speed::Full);
    assert!(rig.host.link.take_remote_wakeup());
    assert!(!rig.host.link.take_remote_wakeup(), "once");
}

#[test]
fn power_is_switched_one_by_one_or_for_the_gang() {
    let mut rig = Rig::high();
    let controls = plug(&rig.ports[0], Speed::High);
    rig.hub.enumerate(&mut rig.host, 1, 3).unwrap();
    controls.take_seen();
    rig.clear(1, feature::POWER);
    assert_eq!(rig.status(1).0, 0);
    assert_eq!(controls.take_seen(), [Seen::Configured(0)], "its power is gone");

    let ganged = HubOptions { power: PowerSwitching::Ganged, ports: 2, ..HubOptions::default() };
    let mut rig = Rig::new(Speed::High, ganged);
    let controls = plug(&rig.ports[0], Speed::High);
    rig.hub.enumerate(&mut rig.host, 1, 3).unwrap();
    controls.take_seen();
    rig.clear(1, feature::POWER);
    assert_eq!(rig.status(1).0, 0);
    assert_eq!(controls.take_seen(), [], "the other port keeps the switch closed");
    rig.clear(2, feature::POWER);
    assert_eq!(controls.take_seen(), [Seen::Configured(0)]);
}

#[test]
fn over_current_turns_the_port_off_and_is_reported_for_port_or_hub() {
    let mut rig = Rig::high();
    plug(&rig.ports[0], Speed::High);
    rig.hub.enumerate(&mut rig.host, 1, 3).unwrap();
    rig.ports[0].set_over_current(true);
    assert_eq!(rig.changes(), Some(vec![2]));
    assert_eq!(rig.status(1), (bit::OVER_CURRENT, 8));
    rig.ports[0].set_over_current(false);
    rig.clear(1, feature::C_OVER_CURRENT);
    rig.set(1, feature::POWER);
    assert_eq!(rig.status(1).0, CONNECTED);

    let ganged = HubOptions { power: PowerSwitching::Ganged, ..HubOptions::default() };
    let mut rig = Rig::new(Speed::High, ganged);
    rig.ports[4].set_over_current(true);
    assert_eq!(rig.changes().map(|bits| bits[0] & 1), Some(1));
    let hub = rig.hub.device;
    let get = SetupPacket::new(0xa0, request::GET_STATUS, 0, 0, 4);
    assert_eq!(rig.host.control(&hub, get, &[]).unwrap(), [2, 0, 2, 0]);
    let clear = SetupPacket::new(0x20, request::CLEAR_FEATURE, 1, 0, 0);
    rig.host.control(&hub, clear, &[]).unwrap();
    assert_eq!(rig.host.control(&hub, get, &[]).unwrap(), [2, 0, 0, 0]);
    assert_eq!(rig.status(1).0, 0, "the whole gang is off");
}

#[test]
fn a_device_that_talks_past_the_frame_has_its_port_disabled() {
    let mut rig = Rig::high();
    plug(&rig.ports[0], Speed::High);
    rig.hub.enumerate(&mut rig.host, 1, 3).unwrap();
    rig.ports[0].babble();
    assert_eq!(rig.status(1), (CONNECTED, 2));
    rig.clear(1, feature::C_ENABLE);
    assert_eq!(rig.status(1), (CONNECTED, 0));
}

#[test]
fn indicators_and_test_modes_are_selected_by_the_high_byte_of_the_index() {
    let mut rig = Rig::high();
    rig.set(0x0201, feature::INDICATOR);
    assert_eq!(rig.status(1).0, IDLE | bit::INDICATOR);
    rig.set(0x0001, feature::INDICATOR);
    assert_eq!(rig.status(1).0, IDLE);
    let refused = Err(TransferError::Stall);
    assert_eq!(rig.hub.set(&mut rig.host, 0x0401, feature::INDICATOR), refused);
    assert_eq!(rig.hub.set(&mut rig.host, 0x0601, feature::TEST), refused);
    rig.set(0x0401, feature::TEST);
    assert_eq!(rig.status(1).0, IDLE | bit::TEST);
    plug(&rig.ports[1], Speed::High);
    rig.hub.enumerate(&mut rig.host, 2, 3).unwrap();
    assert_eq!(rig.hub.set(&mut rig.host, 0x0402, feature::TEST), refused, "it is in use");
}

#[test]
fn what_a_hub_cannot_do_is_a_request_error() {
    let mut rig = Rig::high();
    let hub = rig.hub.device;
    for (request_type, code, value, index) in [
        (0xa3, request::GET_STATUS, 0, 0),
        (0xa3, request::GET_STATUS, 0, 8),
        (0x23, request::SET_FEATURE, feature::ENABLE, 1),
        (0x23, request::SET_FEATURE, 0, 1),
        (0x23, request::CLEAR_FEATURE, feature::RESET, 1),
        (0x23, request::SET_FEATURE, 99, 1),
        (0x20, request::CLEAR_FEATURE, 2, 0),
        (0xa0, request::GET_DESCRIPTOR, 0x3000, 0),
        (0xa3, 2, 0, 1),
        (0x23, 9, 0, 2),
        (0xc0, 1, 0, 0),
    ] {
        let setup =
            SetupPacket::new(request_type, code, value, index, u16::from(request_type >> 7) * 4);
        assert_eq!(rig.host.control(&hub, setup, &[]), Err(TransferError::Stall), "{setup:?}");
    }
    assert_eq!(rig.status(7).0, IDLE, "the hub works on");
}

#[test]
fn commands_to_a_port_in_the_wrong_state_do_nothing() {
    let mut rig = Rig::high();
    rig.set(1, feature::SUSPEND);
    rig.clear(1, feature::SUSPEND);
    rig.clear(1, feature::ENABLE);
    assert_eq!(rig.status(1), (IDLE, 0));
    rig.clear(1, feature::POWER);
    rig.set(1, feature::RESET);
    rig.host.sleep_millis(20);
    assert_eq!(rig.status(1), (0, 0));
    rig.set(2, feature::RESET);
    rig.host.sleep_millis(20);
    assert_eq!(rig.status(2), (IDLE, 0x10), "nobody is there");
}
