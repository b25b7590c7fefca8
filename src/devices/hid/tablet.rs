//! The tablet: an absolute position, five buttons, a wheel in two directions.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::class::{Boot, Hid, Identity, Reports};
use super::shared::Shared;
use super::{InputError, QUEUE};
use crate::usb::Speed;

/// A tablet: the pointer goes where the embedder's pointer is.
pub type Tablet = Hid<Pointer>;

impl Tablet {
    /// The largest coordinate; 0 is at the left and at the top.
    pub const MAX: u16 = 32767;

    /// A tablet for the given speed; one for high speed works at full speed, too.
    pub fn new(speed: Speed) -> Self {
        let identity = Identity { product: 0x0003, name: "Tablet", interval: 4 };
        Self::with_reports(Pointer::default(), speed, identity)
    }

    /// The embedder's side.
    pub fn handle(&self) -> TabletHandle {
        TabletHandle { shared: self.shared() }
    }
}

/// A button.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Button {
    /// The primary one.
    Left,
    /// The secondary one.
    Right,
    /// The wheel.
    Middle,
    /// Back.
    Side,
    /// Forward.
    Extra,
}

impl Button {
    const fn bit(self) -> u8 {
        match self {
            Self::Left => 0x01,
            Self::Right => 0x02,
            Self::Middle => 0x04,
            Self::Side => 0x08,
            Self::Extra => 0x10,
        }
    }
}

/// The embedder's side of a [`Tablet`]. Clones are the same tablet.
#[derive(Clone, Debug)]
pub struct TabletHandle {
    shared: Shared<Pointer>,
}

impl TabletHandle {
    /// The pointer is at `x`, `y`, each 0 to [`Tablet::MAX`]; larger values are at the edge.
    ///
    /// # Errors
    /// If the guest will not see it.
    pub fn move_to(&self, x: u16, y: u16) -> Result<(), InputError> {
        self.shared.input(|pointer| pointer.move_to(x, y))
    }

    /// A button goes down. Nothing happens if it is down.
    ///
    /// # Errors
    /// If the guest will not see it.
    pub fn press(&self, button: Button) -> Result<(), InputError> {
        self.shared.input(|pointer| pointer.press(button))
    }

    /// A button comes up. Nothing happens if it is not down.
    pub fn release(&self, button: Button) {
        // Nothing is down before the guest has configured the tablet.
        let _ = self.shared.input(|pointer| {
            pointer.release(button);
            Ok(())
        });
    }

    /// The wheel turns by `up` notches away from the user and `right` notches to the right, each -127
    /// to 127.
    ///
    /// # Errors
    /// If the guest will not see it.
    pub fn scroll(&self, up: i8, right: i8) -> Result<(), InputError> {
        self.shared.input(|pointer| pointer.scroll(up, right))
    }
}

/// What one report says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    buttons: u8,
    x: u16,
    y: u16,
    wheel: i8,
    pan: i8,
}

impl Step {
    /// The state that this step leads to: turning the wheel leaves nothing behind.
    fn settled(self) -> Self {
        Self { wheel: 0, pan: 0, ..self }
    }

    fn report(self) -> Vec<u8> {
        let [x_low, x_high] = self.x.to_le_bytes();
        let [y_low, y_high] = self.y.to_le_bytes();
        vec![
            self.buttons,
            x_low,
            x_high,
            y_low,
            y_high,
            self.wheel.cast_unsigned(),
            self.pan.cast_unsigned(),
        ]
    }
}

/// The reports of a [`Tablet`].
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pointer {
    /// Reports the host has not seen. Together with the buttons that are down they are never more
    /// than [`QUEUE`], so that there is room for each release.
    queue: VecDeque<Step>,
    /// Where the last report that was added leads.
    latest: Step,
    /// Where the last report that the host has seen leads.
    shown: Step,
}

impl Pointer {
    /// Adds a report, if besides it `releases` more of them will fit.
    fn push(&mut self, step: Step, releases: u32) -> Result<(), InputError> {
        let needed = self.queue.len().saturating_add(1).saturating_add(releases as usize);
        if needed > QUEUE {
            return Err(InputError::Full);
        }
        self.queue.push_back(step);
        self.latest = step.settled();
        Ok(())
    }

    fn down(&self) -> u32 {
        self.latest.buttons.count_ones()
    }

    fn move_to(&mut self, x: u16, y: u16) -> Result<(), InputError> {
        let (x, y) = (x.min(Tablet::MAX), y.min(Tablet::MAX));
        let step = Step { x, y, ..self.latest };
        if step == self.latest {
            return Ok(());
        }
        // The last report may go there directly, unless something happened where it goes now.
        let before = self.queue.iter().rev().nth(1).copied().unwrap_or(self.shown);
        let mergeable =
            |last: &&mut Step| **last == last.settled() && last.buttons == before.buttons;
        if let Some(last) = self.queue.back_mut().filter(mergeable) {
            *last = step;
            self.latest = step;
            return Ok(());
        }
        self.push(step, self.down())
    }

    fn press(&mut self, button: Button) -> Result<(), InputError> {
        let buttons = self.latest.buttons | button.bit();
        if buttons == self.latest.buttons {
            return Ok(());
        }
        self.push(Step { buttons, ..self.latest }, buttons.count_ones())
    }

    fn release(&mut self, button: Button) {
        let buttons = self.latest.buttons & !button.bit();
        if buttons != self.latest.buttons {
            // It fits: that was seen to when the button went down.
            let _ = self.push(Step { buttons, ..self.latest }, buttons.count_ones());
        }
    }

    fn scroll(&mut self, up: i8, right: i8) -> Result<(), InputError> {
        let (wheel, pan) = (up.max(-127), right.max(-127));
        if (wheel, pan) == (0, 0) {
            return Ok(());
        }
        self.push(Step { wheel, pan, ..self.latest }, self.down())
    }
}

impl Reports for Pointer {
    const DESCRIPTOR: &'static [u8] = &[
        0x05, 0x01, // Usage Page (Generic Desktop)
        0x09, 0x02, // Usage (Mouse)
        0xa1, 0x01, // Collection (Application)
        0x09, 0x01, //   Usage (Pointer)
        0xa1, 0x00, //   Collection (Physical)
        0x05, 0x09, //     Usage Page (Button)
        0x19, 0x01, //     Usage Minimum (1)
        0x29, 0x05, //     Usage Maximum (5)
        0x15, 0x00, //     Logical Minimum (0)
        0x25, 0x01, //     Logical Maximum (1)
        0x75, 0x01, //     Report Size (1)
        0x95, 0x05, //     Report Count (5)
        0x81, 0x02, //     Input (Data, Variable, Absolute)
        0x75, 0x03, //     Report Size (3)
        0x95, 0x01, //     Report Count (1)
        0x81, 0x01, //     Input (Constant)
        0x05, 0x01, //     Usage Page (Generic Desktop)
        0x09, 0x30, //     Usage (X)
        0x09, 0x31, //     Usage (Y)
        0x26, 0xff, 0x7f, // Logical Maximum (32767)
        0x35, 0x00, //     Physical Minimum (0)
        0x46, 0xff, 0x7f, // Physical Maximum (32767)
        0x75, 0x10, //     Report Size (16)
        0x95, 0x02, //     Report Count (2)
        0x81, 0x02, //     Input (Data, Variable, Absolute)
        0x09, 0x38, //     Usage (Wheel)
        0x15, 0x81, //     Logical Minimum (-127)
        0x25, 0x7f, //     Logical Maximum (127)
        0x45, 0x00, //     Physical Maximum (0): as the logical one
        0x75, 0x08, //     Report Size (8)
        0x95, 0x01, //     Report Count (1)
        0x81, 0x06, //     Input (Data, Variable, Relative)
        0x05, 0x0c, //     Usage Page (Consumer)
        0x0a, 0x38, 0x02, // Usage (AC Pan)
        0x81, 0x06, //     Input (Data, Variable, Relative)
        0xc0, //   End Collection
        0xc0, // End Collection
    ];

    const BOOT: Boot = Boot::No;

    const IDLE: u8 = 0;

    fn waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let step = self.queue.pop_front()?;
        self.shown = step.settled();
        Some(step.report())
    }

    fn current(&self) -> Vec<u8> {
        self.shown.report()
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn is_possible(&self) -> bool {
        self.queue.len().saturating_add(self.down() as usize) <= QUEUE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(pointer: &mut Pointer) -> Vec<[u8; 7]> {
        std::iter::from_fn(|| pointer.next()).map(|report| report.try_into().unwrap()).collect()
    }

    #[test]
    fn movements_in_a_row_become_one_but_never_move_a_click() {
        let mut pointer = Pointer::default();
        for x in 1..=100 {
            pointer.move_to(x, 2 * x).unwrap();
        }
        pointer.press(Button::Left).unwrap();
        pointer.move_to(300, 0).unwrap();
        pointer.move_to(301, 0).unwrap();
        pointer.release(Button::Left);
        pointer.move_to(7, 7).unwrap();
        assert_eq!(
            reports(&mut pointer),
            [
                [0, 100, 0, 200, 0, 0, 0],
                [1, 100, 0, 200, 0, 0, 0],
                [1, 45, 1, 0, 0, 0, 0],
                [0, 45, 1, 0, 0, 0, 0],
                [0, 7, 0, 7, 0, 0, 0],
            ]
        );
    }

    #[test]
    fn the_wheel_turns_where_the_pointer_is_and_leaves_nothing_behind() {
        let mut pointer = Pointer::default();
        pointer.move_to(1, 1).unwrap();
        pointer.scroll(1, 0).unwrap();
        pointer.scroll(-128, 3).unwrap();
        pointer.move_to(2, 2).unwrap();
        assert_eq!(
            reports(&mut pointer),
            [
                [0, 1, 0, 1, 0, 0, 0],
                [0, 1, 0, 1, 0, 1, 0],
                [0, 1, 0, 1, 0, 0x81, 3],
                [0, 2, 0, 2, 0, 0, 0],
            ]
        );
        assert_eq!(pointer.current(), [0, 2, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn the_edge_is_the_farthest_a_pointer_goes() {
        let mut pointer = Pointer::default();
        pointer.move_to(u16::MAX, 40000).unwrap();
        assert_eq!(reports(&mut pointer), [[0, 0xff, 0x7f, 0xff, 0x7f, 0, 0]]);
        pointer.move_to(u16::MAX, 40000).unwrap();
        assert!(!pointer.waiting(), "it did not move");
    }

    #[test]
    fn a_full_queue_refuses_presses_but_no_release_is_lost() {
        let mut pointer = Pointer::default();
        let buttons = [Button::Left, Button::Right, Button::Middle, Button::Side, Button::Extra];
        for button in buttons {
            pointer.press(button).unwrap();
        }
        while pointer.scroll(1, 0).is_ok() {}
        assert_eq!(pointer.move_to(5, 5), Err(InputError::Full));
        for button in buttons {
            pointer.release(button);
        }
        assert_eq!(pointer.queue.len(), QUEUE);
        while pointer.next().is_some() {}
        assert_eq!(pointer.current()[0], 0);
    }
}
