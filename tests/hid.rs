//! A keyboard and a tablet behind a bus without any controller, as their drivers meet them.

mod driver;

use driver::direct::DirectHost;
use driver::enumerate::{Enumerated, enumerate};
use driver::hid::{BOOT_PROTOCOL, HidDriver, REPORT_PROTOCOL};
use driver::host::{HostDriver, TransferError};
use vm_usb::devices::hid::{
    Button, InputError, Key, Keyboard, KeyboardHandle, QUEUE, Tablet, TabletHandle,
};
use vm_usb::usb::{Outcome, Pid, Speed, Suspension};

fn key(name: &str) -> Key {
    name.parse().unwrap()
}

fn start(host: &mut DirectHost) -> (Enumerated, HidDriver) {
    let enumerated = enumerate(host, 0, 3).unwrap();
    let driver = HidDriver::bind(&enumerated).unwrap();
    (enumerated, driver)
}

/// A keyboard whose driver, like an operating system's, wants reports of changes only.
fn keyboard() -> (DirectHost, HidDriver, KeyboardHandle) {
    let keyboard = Keyboard::new(Speed::Full);
    let handle = keyboard.handle();
    let mut host = DirectHost::new(Speed::Full, keyboard);
    let (_, driver) = start(&mut host);
    driver.set_idle(&mut host, 0).unwrap();
    (host, driver, handle)
}

fn tablet() -> (DirectHost, HidDriver, TabletHandle) {
    let tablet = Tablet::new(Speed::High);
    let handle = tablet.handle();
    let mut host = DirectHost::new(Speed::High, tablet);
    let (_, driver) = start(&mut host);
    (host, driver, handle)
}

fn poll(host: &mut DirectHost, driver: &HidDriver) -> Outcome {
    host.transact(&driver.input, Pid::In, &mut vec![0; 8])
}

#[test]
fn a_keyboard_enumerates_at_every_speed_with_a_boot_interface() {
    for (speed, interval) in [(Speed::Low, 10), (Speed::Full, 8), (Speed::High, 7)] {
        let mut host = DirectHost::new(speed, Keyboard::new(speed));
        let (enumerated, driver) = start(&mut host);
        assert_eq!(enumerated.device.speed, speed);
        assert_eq!(enumerated.product, "Keyboard");
        assert_eq!(enumerated.interfaces[0].class, [3, 1, 1]);
        assert_eq!(driver.input.interval, interval, "8 ms, or 10 at low speed");
        let descriptor = driver.report_descriptor(&mut host).unwrap();
        assert_eq!(descriptor.len(), usize::from(driver.descriptor_len));
        assert_eq!(descriptor[..6], [0x05, 0x01, 0x09, 0x06, 0xa1, 0x01]);
    }
    // A high-speed keyboard works on a full-speed bus.
    let mut host = DirectHost::new(Speed::Full, Keyboard::new(Speed::High));
    assert_eq!(start(&mut host).0.device.speed, Speed::Full);
}

#[test]
fn a_tablet_enumerates_at_every_speed_without_a_boot_interface() {
    for (speed, interval) in [(Speed::Low, 10), (Speed::Full, 4), (Speed::High, 6)] {
        let mut host = DirectHost::new(speed, Tablet::new(speed));
        let (enumerated, driver) = start(&mut host);
        assert_eq!(enumerated.interfaces[0].class, [3, 0, 0]);
        assert_eq!(driver.input.interval, interval, "4 ms, or 10 at low speed");
        assert_eq!(driver.protocol(&mut host), Ok(REPORT_PROTOCOL));
        let boot = driver.set_protocol(&mut host, BOOT_PROTOCOL);
        assert_eq!(boot, Err(TransferError::Stall));
    }
}

#[test]
fn the_reports_are_as_long_as_the_report_descriptors_say() {
    let (mut host, driver, _) = keyboard();
    let bits = input_bits(&driver.report_descriptor(&mut host).unwrap());
    let report = driver.get(&mut host, 0x01, 0x0100, 64).unwrap();
    assert_eq!(bits, report.len() * 8);

    let (mut host, driver, _) = tablet();
    let bits = input_bits(&driver.report_descriptor(&mut host).unwrap());
    let report = driver.get(&mut host, 0x01, 0x0100, 64).unwrap();
    assert_eq!(bits, report.len() * 8);
}

/// Bits of the input report that a report descriptor describes (HID 1.11, 6.2.2); its collections must
/// be closed.
fn input_bits(descriptor: &[u8]) -> usize {
    let (mut size, mut count, mut bits, mut depth) = (0, 0, 0, 0);
    let mut rest = descriptor;
    while let Some((prefix, after)) = rest.split_first() {
        let len = [0, 1, 2, 4][usize::from(prefix & 3)];
        let value = after[..len].iter().rev().fold(0, |v, byte| v << 8 | usize::from(*byte));
        match prefix & 0xfc {
            0x74 => size = value,
            0x94 => count = value,
            0x80 => bits += size * count,
            0xa0 => depth += 1,
            0xc0 => depth -= 1,
            _ => {}
        }
        rest = &after[len..];
    }
    assert_eq!(depth, 0);
    bits
}

#[test]
fn keys_arrive_as_reports_in_order() {
    let (mut host, driver, keys) = keyboard();
    keys.press(key("leftshift")).unwrap();
    keys.press(key("h")).unwrap();
    keys.release(key("h"));
    keys.release(key("leftshift"));
    for expected in [[2, 0, 0, 0], [2, 0, 0x0b, 0], [2, 0, 0, 0], [0, 0, 0, 0]] {
        let report = driver.report(&mut host, 10).unwrap();
        assert_eq!(report[..4], expected);
    }
    assert_eq!(driver.report(&mut host, 100), Err(TransferError::TimedOut));
}

#[test]
fn with_nothing_to_say_the_endpoint_is_parked_until_a_key_is_pressed() {
    let (mut host, driver, keys) = keyboard();
    host.link.take_ready().for_each(drop);
    assert_eq!(poll(&mut host, &driver), Outcome::PARK);
    assert_eq!(host.link.take_ready().count(), 0);
    keys.press(key("a")).unwrap();
    assert_eq!(host.link.take_ready().collect::<Vec<_>>(), [driver.input.endpoint]);
    keys.release(key("a"));
    assert_eq!(host.link.take_ready().count(), 0, "once is enough while it is not parked");
    assert_eq!(poll(&mut host, &driver), Outcome::complete(8));
}

#[test]
fn the_idle_rate_repeats_the_last_report() {
    let (mut host, driver, keys) = keyboard();
    // As firmware does for key repeat: every 36 ms.
    driver.set_idle(&mut host, 9).unwrap();
    assert_eq!(driver.get(&mut host, 0x02, 0, 1), Ok(vec![9]));
    keys.press(key("a")).unwrap();
    assert_eq!(driver.report(&mut host, 0).unwrap()[2], 4);
    for _ in 0..3 {
        assert_eq!(driver.report(&mut host, 35), Err(TransferError::TimedOut));
        assert_eq!(poll(&mut host, &driver).bytes, 0, "35 ms are not enough");
        assert_eq!(driver.report(&mut host, 1).unwrap()[2], 4, "36 ms are");
    }
    // A change is told at once, and the time starts again.
    keys.release(key("a"));
    assert_eq!(driver.report(&mut host, 0).unwrap()[2], 0);
    assert_eq!(driver.report(&mut host, 35), Err(TransferError::TimedOut));
    // Without an idle rate: never again.
    driver.set_idle(&mut host, 0).unwrap();
    assert_eq!(driver.report(&mut host, 10_000), Err(TransferError::TimedOut));
}

#[test]
fn a_new_idle_rate_reaches_an_endpoint_that_is_parked() {
    let (mut host, driver, _keys) = keyboard();
    assert_eq!(poll(&mut host, &driver), Outcome::PARK);
    host.link.take_ready().for_each(drop);
    driver.set_idle(&mut host, 1).unwrap();
    assert_eq!(host.link.take_ready().count(), 1, "the controller polls again");
    assert_eq!(poll(&mut host, &driver), Outcome::NAK, "and goes on to poll");
    host.sleep_millis(4);
    assert_eq!(poll(&mut host, &driver), Outcome::complete(8));
}

#[test]
fn a_keyboard_starts_with_an_idle_duration_of_500_ms() {
    let mut host = DirectHost::new(Speed::Low, Keyboard::new(Speed::Low));
    let (_, driver) = start(&mut host);
    assert_eq!(driver.get(&mut host, 0x02, 0, 1), Ok(vec![125]));
    assert_eq!(driver.report(&mut host, 499), Err(TransferError::TimedOut));
    assert_eq!(driver.report(&mut host, 1), Ok(vec![0; 8]));
}

#[test]
fn diodes_follow_set_report() {
    let (mut host, driver, keys) = keyboard();
    driver.set_leds(&mut host, 0b101).unwrap();
    let leds = keys.leds();
    assert!(leds.num_lock() && leds.scroll_lock());
    assert!(!leds.caps_lock() && !leds.compose() && !leds.kana());
    assert_eq!(driver.get(&mut host, 0x01, 0x0200, 8), Ok(vec![0b101]));
    let wrong = driver.set(&mut host, 0x09, 0x0200, &[1, 2]);
    assert_eq!(wrong, Err(TransferError::Stall), "two bytes");
    let wrong = driver.set(&mut host, 0x09, 0x0300, &[1]);
    assert_eq!(wrong, Err(TransferError::Stall), "a feature report");
    assert_eq!(keys.leds(), leds);
}

#[test]
fn the_boot_protocol_can_be_chosen_and_ends_with_a_reset() {
    let (mut host, driver, keys) = keyboard();
    assert_eq!(driver.protocol(&mut host), Ok(REPORT_PROTOCOL));
    driver.set_protocol(&mut host, BOOT_PROTOCOL).unwrap();
    assert_eq!(driver.protocol(&mut host), Ok(BOOT_PROTOCOL));
    keys.press(key("enter")).unwrap();
    assert_eq!(driver.report(&mut host, 10).unwrap(), [0, 0, 0x28, 0, 0, 0, 0, 0]);
    assert_eq!(driver.set_protocol(&mut host, 2), Err(TransferError::Stall));
    let (_, driver) = start(&mut host);
    assert_eq!(driver.protocol(&mut host), Ok(REPORT_PROTOCOL));
}

#[test]
fn a_reset_drops_what_waits_and_lets_go_of_every_key() {
    let (mut host, driver, keys) = keyboard();
    keys.press(key("a")).unwrap();
    driver.report(&mut host, 10).unwrap();
    keys.press(key("b")).unwrap();
    let (_, driver) = start(&mut host);
    driver.set_idle(&mut host, 0).unwrap();
    keys.release(key("a"));
    keys.release(key("b"));
    assert_eq!(driver.report(&mut host, 1000), Err(TransferError::TimedOut));
    keys.press(key("c")).unwrap();
    assert_eq!(driver.report(&mut host, 10).unwrap()[2..4], [6, 0]);
}

#[test]
fn events_need_a_guest_that_listens() {
    let keyboard = Keyboard::new(Speed::Full);
    let keys = keyboard.handle();
    assert_eq!(keys.press(key("a")), Err(InputError::NotConfigured));
    keys.release(key("a"));
    let mut host = DirectHost::new(Speed::Full, keyboard);
    assert_eq!(keys.press(key("a")), Err(InputError::NotConfigured), "plugged in is not enough");
    start(&mut host);
    let refused = (0..=QUEUE).find_map(|n| {
        let press = keys.press(key(if n % 2 == 0 { "a" } else { "b" }));
        keys.release(key(if n % 2 == 0 { "a" } else { "b" }));
        press.err()
    });
    assert_eq!(refused, Some(InputError::Full));
}

#[test]
fn so_many_events_wait_and_no_more() {
    let (mut host, driver, keys) = keyboard();
    let stroke = |keys: &KeyboardHandle, n: usize| {
        let key = key(if n.is_multiple_of(2) { "a" } else { "b" });
        keys.press(key).map(|()| keys.release(key))
    };
    // Each is two events.
    for n in 0..QUEUE / 2 {
        stroke(&keys, n).unwrap();
    }
    assert_eq!(stroke(&keys, 0), Err(InputError::Full));
    // Two of them taken make room for one more.
    driver.report(&mut host, 10).unwrap();
    assert_eq!(stroke(&keys, 0), Err(InputError::Full));
    driver.report(&mut host, 10).unwrap();
    stroke(&keys, 0).unwrap();
    assert_eq!(stroke(&keys, 1), Err(InputError::Full));
}

#[test]
fn input_wakes_a_suspended_host_that_allowed_it() {
    let (mut host, driver, keys) = keyboard();
    host.suspension(Suspension::Suspended);
    keys.press(key("space")).unwrap();
    assert!(!host.link.take_remote_wakeup(), "not allowed");

    let allow = vm_usb::usb::SetupPacket::new(0x00, 3, 1, 0, 0);
    host.control(&driver.device, allow, &[]).unwrap();
    host.suspension(Suspension::Resumed);
    while driver.report(&mut host, 0).is_ok() {}
    host.suspension(Suspension::Suspended);
    assert!(!host.link.take_remote_wakeup(), "nothing happened yet");
    keys.release(key("space"));
    assert!(host.link.take_remote_wakeup());
    host.suspension(Suspension::Resumed);
    assert_eq!(driver.report(&mut host, 10), Ok(vec![0; 8]), "and the event is there");
}

#[test]
fn a_host_without_room_for_a_report_does_not_lose_it() {
    let (mut host, driver, keys) = keyboard();
    keys.press(key("a")).unwrap();
    assert_eq!(driver.input.max_packet, 8);
    assert_eq!(host.receive(&driver.input, 4), Err(TransferError::Babble));
    assert_eq!(driver.report(&mut host, 10).unwrap()[2], 4);
}

#[test]
fn the_tablet_reports_where_the_pointer_is() {
    let (mut host, driver, tablet) = tablet();
    tablet.move_to(0x1234, Tablet::MAX).unwrap();
    tablet.press(Button::Right).unwrap();
    tablet.scroll(-1, 2).unwrap();
    tablet.release(Button::Right);
    for expected in [
        [0, 0x34, 0x12, 0xff, 0x7f, 0, 0],
        [2, 0x34, 0x12, 0xff, 0x7f, 0, 0],
        [2, 0x34, 0x12, 0xff, 0x7f, 0xff, 2],
        [0, 0x34, 0x12, 0xff, 0x7f, 0, 0],
    ] {
        assert_eq!(driver.report(&mut host, 10).unwrap(), expected);
    }
    assert_eq!(poll(&mut host, &driver), Outcome::PARK, "no idle rate by default");
    let state = driver.get(&mut host, 0x01, 0x0100, 8).unwrap();
    assert_eq!(state, [0, 0x34, 0x12, 0xff, 0x7f, 0, 0]);
}

#[test]
fn requests_to_another_interface_are_refused() {
    let (mut host, mut driver, keys) = keyboard();
    driver.interface = 1;
    assert_eq!(driver.set_leds(&mut host, 1), Err(TransferError::Stall));
    assert_eq!(driver.report_descriptor(&mut host), Err(TransferError::Stall));
    assert_eq!(keys.leds(), Default::default());
}
