//! The keyboard: six keys and eight modifiers at once, five light-emitting diodes.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::class::{Boot, Hid, Identity, Reports};
use super::shared::Shared;
use super::{InputError, Key, QUEUE};
use crate::usb::Speed;

/// A keyboard.
pub type Keyboard = Hid<Keys>;

/// Usage that fills a report when more keys are down than it has room for (HID 1.11, C).
const ERROR_ROLL_OVER: u8 = 0x01;
/// Keys besides the modifiers that a report has room for.
const ROOM: usize = 6;

impl Keyboard {
    /// A keyboard for the given speed; one for high speed works at full speed, too.
    pub fn new(speed: Speed) -> Self {
        let identity = Identity { product: 0x0002, name: "Keyboard", interval: 8 };
        Self::with_reports(Keys::default(), speed, identity)
    }

    /// The embedder's side.
    pub fn handle(&self) -> KeyboardHandle {
        KeyboardHandle { shared: self.shared() }
    }
}

/// The light-emitting diodes of a keyboard (HID Usage Tables, 11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Leds(u8);

impl Leds {
    /// Num Lock.
    pub const fn num_lock(self) -> bool {
        self.0 & 0x01 != 0
    }

    /// Caps Lock.
    pub const fn caps_lock(self) -> bool {
        self.0 & 0x02 != 0
    }

    /// Scroll Lock.
    pub const fn scroll_lock(self) -> bool {
        self.0 & 0x04 != 0
    }

    /// Compose.
    pub const fn compose(self) -> bool {
        self.0 & 0x08 != 0
    }

    /// Kana.
    pub const fn kana(self) -> bool {
        self.0 & 0x10 != 0
    }
}

/// The embedder's side of a [`Keyboard`]. Clones are the same keyboard.
#[derive(Clone, Debug)]
pub struct KeyboardHandle {
    shared: Shared<Keys>,
}

impl KeyboardHandle {
    /// A key goes down. Nothing happens if it is down.
    ///
    /// # Errors
    /// If the guest will not see it.
    pub fn press(&self, key: Key) -> Result<(), InputError> {
        self.shared.input(|keys| keys.press(key))
    }

    /// A key comes up. Nothing happens if it is not down.
    pub fn release(&self, key: Key) {
        // Nothing is down before the guest has configured the keyboard.
        let _ = self.shared.input(|keys| {
            keys.release(key);
            Ok(())
        });
    }

    /// What the guest shows; all off after a reset.
    pub fn leds(&self) -> Leds {
        self.shared.lock().reports.leds
    }
}

/// A key went down or came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Event {
    Press(Key),
    Release(Key),
}

/// The reports of a [`Keyboard`].
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// Events the host has not seen. Together with `down` they are never more than [`QUEUE`], so that
    /// there is room for each release.
    queue: VecDeque<Event>,
    /// Keys that are down for the embedder.
    down: Vec<Key>,
    /// Keys that are down for the host, in the order in which it was told.
    shown: Vec<Key>,
    leds: Leds,
}

impl Keys {
    fn press(&mut self, key: Key) -> Result<(), InputError> {
        if self.down.contains(&key) {
            return Ok(());
        }
        // This event, and the release that will follow it.
        if self.queue.len().saturating_add(self.down.len()).saturating_add(2) > QUEUE {
            return Err(InputError::Full);
        }
        self.down.push(key);
        self.queue.push_back(Event::Press(key));
        Ok(())
    }

    fn release(&mut self, key: Key) {
        if self.down.contains(&key) {
            self.down.retain(|down| *down != key);
            self.queue.push_back(Event::Release(key));
        }
    }
}

impl Reports for Keys {
    /// The boot keyboard's report as a descriptor (HID 1.11, B.1), for all usages of the page.
    const DESCRIPTOR: &'static [u8] = &[
        0x05, 0x01, // Usage Page (Generic Desktop)
        0x09, 0x06, // Usage (Keyboard)
        0xa1, 0x01, // Collection (Application)
        0x05, 0x07, //   Usage Page (Keyboard)
        0x19, 0xe0, //   Usage Minimum (Left Control)
        0x29, 0xe7, //   Usage Maximum (Right GUI)
        0x15, 0x00, //   Logical Minimum (0)
        0x25, 0x01, //   Logical Maximum (1)
        0x75, 0x01, //   Report Size (1)
        0x95, 0x08, //   Report Count (8)
        0x81, 0x02, //   Input (Data, Variable, Absolute): modifiers
        0x75, 0x08, //   Report Size (8)
        0x95, 0x01, //   Report Count (1)
        0x81, 0x01, //   Input (Constant)
        0x05, 0x08, //   Usage Page (LEDs)
        0x19, 0x01, //   Usage Minimum (Num Lock)
        0x29, 0x05, //   Usage Maximum (Kana)
        0x75, 0x01, //   Report Size (1)
        0x95, 0x05, //   Report Count (5)
        0x91, 0x02, //   Output (Data, Variable, Absolute)
        0x75, 0x03, //   Report Size (3)
        0x95, 0x01, //   Report Count (1)
        0x91, 0x01, //   Output (Constant)
        0x05, 0x07, //   Usage Page (Keyboard)
        0x19, 0x00, //   Usage Minimum (0)
        0x2a, 0xff, 0x00, // Usage Maximum (255)
        0x26, 0xff, 0x00, // Logical Maximum (255)
        0x75, 0x08, //   Report Size (8)
        0x95, 0x06, //   Report Count (6)
        0x81, 0x00, //   Input (Data, Array)
        0xc0, // End Collection
    ];

    const BOOT: Boot = Boot::Keyboard;

    /// 500 ms, as HID 1.11, 7.2.4 recommends for keyboards.
    const IDLE: u8 = 125;

    fn waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        match self.queue.pop_front()? {
            Event::Press(key) => self.shown.push(key),
            Event::Release(key) => self.shown.retain(|shown| *shown != key),
        }
        Some(self.current())
    }

    fn current(&self) -> Vec<u8> {
        let modifiers = self.shown.iter().filter_map(|key| key.modifier());
        let keys = self.shown.iter().filter(|key| key.modifier().is_none());
        let mut report = vec![modifiers.fold(0, |byte, bit| byte | bit), 0];
        if keys.clone().count() > ROOM {
            report.extend([ERROR_ROLL_OVER; ROOM]);
        } else {
            report.extend(keys.map(|key| key.usage()).chain([0; ROOM]).take(ROOM));
        }
        report
    }

    fn output(&mut self, report: &[u8]) -> bool {
        match report {
            [leds] => {
                self.leds = Leds(*leds);
                true
            }
            _ => false,
        }
    }

    fn last_output(&self) -> Option<Vec<u8>> {
        Some(vec![self.leds.0])
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn is_possible(&self) -> bool {
        self.queue.len().saturating_add(self.down.len()) <= QUEUE && self.shown.len() <= QUEUE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        name.parse().unwrap()
    }

    #[test]
    fn each_event_is_a_report_in_the_order_given() {
        let mut keys = Keys::default();
        for name in ["leftshift", "a", "b"] {
            keys.press(key(name)).unwrap();
        }
        keys.release(key("a"));
        keys.release(key("leftshift"));
        let reports: Vec<_> = std::iter::from_fn(|| keys.next()).collect();
        let report = |modifiers, first, second| vec![modifiers, 0, first, second, 0, 0, 0, 0];
        assert_eq!(
            reports,
            [report(2, 0, 0), report(2, 4, 0), report(2, 4, 5), report(2, 5, 0), report(0, 5, 0)]
        );
        assert_eq!(keys.current(), report(0, 5, 0));
    }

    #[test]
    fn seven_keys_at_once_are_a_roll_over_until_one_comes_up() {
        let mut keys = Keys::default();
        let seven = ["a", "b", "c", "d", "e", "f", "g"];
        for name in seven {
            keys.press(key(name)).unwrap();
        }
        keys.press(key("rightalt")).unwrap();
        while keys.next().is_some() {}
        assert_eq!(keys.current(), [0x40, 0, 1, 1, 1, 1, 1, 1]);
        keys.release(key("c"));
        keys.next();
        assert_eq!(keys.current(), [0x40, 0, 4, 5, 7, 8, 9, 10]);
    }

    #[test]
    fn a_full_queue_refuses_presses_but_no_release_is_lost() {
        let mut keys = Keys::default();
        let all: Vec<_> = (0x04..=0xdf).filter_map(Key::from_usage).collect();
        let mut refused = None;
        for round in 0..QUEUE {
            let key = all[round % 100];
            if keys.press(key).is_err() {
                refused = Some(round);
                break;
            }
            // Every other key stays down.
            if round % 2 == 0 {
                keys.release(key);
            }
        }
        assert!(refused.is_some());
        for key in &all {
            keys.release(*key);
        }
        assert!(keys.queue.len() <= QUEUE);
        while keys.next().is_some() {}
        assert_eq!(keys.current(), [0; 8], "nothing stays down");
        keys.press(all[0]).unwrap();
    }
}
