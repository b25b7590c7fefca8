//! What the user of a guest does, as lines of text.
//!
//! ```text
//! key KEYBOARD KEY down|up
//! tap KEYBOARD KEY
//! move TABLET X Y
//! button TABLET left|right|middle|side|extra down|up
//! scroll TABLET UP RIGHT
//! ```

use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use vm_usb::devices::hid::{
    Button, InputError, Key, KeyError, KeyboardHandle, Tablet, TabletHandle,
};

/// A device that takes input.
#[derive(Clone, Debug)]
pub enum InputDevice {
    /// Takes keys.
    Keyboard(KeyboardHandle),
    /// Takes positions and buttons.
    Tablet(TabletHandle),
}

type Named = Vec<(String, InputDevice)>;

/// All of them, by name, while they are plugged in. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    devices: Arc<Mutex<Named>>,
}

/// What is wrong with a line.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LineError {
    /// Not one of the lines above.
    #[error(
        "not understood: say key ID KEY down|up, tap ID KEY, move ID X Y, button ID NAME down|up, or \
         scroll ID UP RIGHT"
    )]
    Form,
    /// No such device.
    #[error("there is no {kind} with id \"{id}\"")]
    NoDevice {
        /// What it should be.
        kind: &'static str,
        /// Its name.
        id: String,
    },
    /// No such key.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// No such button.
    #[error("no button is called \"{0}\": there are left, right, middle, side, extra")]
    Button(String),
    /// Neither down nor up.
    #[error("\"{0}\" is neither down nor up")]
    Direction(String),
    /// Not a coordinate.
    #[error("\"{0}\" is not a coordinate: they go from 0 to {max}", max = Tablet::MAX)]
    Coordinate(String),
    /// Not a number of notches.
    #[error("\"{0}\" is not a number of notches: they go from -127 to 127")]
    Notches(String),
    /// The guest does not see it.
    #[error("{0}")]
    Refused(#[from] InputError),
}

impl Inputs {
    /// Adds a device.
    pub fn add(&self, id: String, device: InputDevice) {
        self.lock().push((id, device));
    }

    /// Removes the device, if there is one.
    pub fn remove(&self, id: &str) {
        self.lock().retain(|(name, _)| name != id);
    }

    fn lock(&self) -> MutexGuard<'_, Named> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a line.
    ///
    /// # Errors
    /// If the line means nothing or the guest does not take the event.
    pub fn carry_out(&self, line: &str) -> Result<(), LineError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["key", id, key, direction] => {
                let (keyboard, key) = (self.keyboard(id)?, key.parse()?);
                if down(direction)? {
                    keyboard.press(key)?;
                } else {
                    keyboard.release(key);
                }
            }
            ["tap", id, key] => {
                let (keyboard, key): (_, Key) = (self.keyboard(id)?, key.parse()?);
                keyboard.press(key)?;
                keyboard.release(key);
            }
            ["move", id, x, y] => {
                let (tablet, x, y) = (self.tablet(id)?, coordinate(x)?, coordinate(y)?);
                tablet.move_to(x, y)?;
            }
            ["button", id, name, direction] => {
                let (tablet, button) = (self.tablet(id)?, button(name)?);
                if down(direction)? {
                    tablet.press(button)?;
                } else {
                    tablet.release(button);
                }
            }
            ["scroll", id, up, right] => {
                let (tablet, up, right) = (self.tablet(id)?, notches(up)?, notches(right)?);
                tablet.scroll(up, right)?;
            }
            _ => return Err(LineError::Form),
        }
        Ok(())
    }

    fn find(&self, id: &str) -> Option<InputDevice> {
        self.lock().iter().find(|(name, _)| name == id).map(|(_, device)| device.clone())
    }

    fn keyboard(&self, id: &str) -> Result<KeyboardHandle, LineError> {
        match self.find(id) {
            Some(InputDevice::Keyboard(keyboard)) => Ok(keyboard),
            _ => Err(LineError::NoDevice { kind: "keyboard", id: id.to_owned() }),
        }
    }

    fn tablet(&self, id: &str) -> Result<TabletHandle, LineError> {
        match self.find(id) {
            Some(InputDevice::Tablet(tablet)) => Ok(tablet),
            _ => Err(LineError::NoDevice { kind: "tablet", id: id.to_owned() }),
        }
    }
}

fn down(word: &str) -> Result<bool, LineError> {
    match word {
        "down" => Ok(true),
        "up" => Ok(false),
        other => Err(LineError::Direction(other.to_owned())),
    }
}

fn coordinate(word: &str) -> Result<u16, LineError> {
    let number = u16::from_str(word).ok().filter(|number| *number <= Tablet::MAX);
    number.ok_or_else(|| LineError::Coordinate(word.to_owned()))
}

fn notches(word: &str) -> Result<i8, LineError> {
    let number = i8::from_str(word).ok().filter(|number| *number != i8::MIN);
    number.ok_or_else(|| LineError::Notches(word.to_owned()))
}

fn button(word: &str) -> Result<Button, LineError> {
    Ok(match word {
        "left" => Button::Left,
        "right" => Button::Right,
        "middle" => Button::Middle,
        "side" => Button::Side,
        "extra" => Button::Extra,
        other => return Err(LineError::Button(other.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_usb::devices::hid::Keyboard;
    use vm_usb::topology::Port;
    use vm_usb::usb::Speed;

    #[test]
    fn each_line_reaches_its_device_or_says_why_not() {
        let keyboard = Keyboard::new(Speed::Full);
        let tablet = Tablet::new(Speed::Full);
        let inputs = Inputs::default();
        inputs.add("k".into(), InputDevice::Keyboard(keyboard.handle()));
        inputs.add("t".into(), InputDevice::Tablet(tablet.handle()));
        let ports = [Port::classic(), Port::classic()];
        ports[0].attach(Box::new(keyboard)).unwrap();
        ports[1].attach(Box::new(tablet)).unwrap();

        let nobody = Err(LineError::Refused(InputError::NotConfigured));
        for line in [
            "key k a down",
            "  tap  k enter ",
            "move t 0 32767",
            "button t left down",
            "scroll t -1 127",
        ] {
            assert_eq!(inputs.carry_out(line), nobody, "{line}");
        }
        for line in ["key k a up", "button t extra up"] {
            assert_eq!(inputs.carry_out(line), Ok(()), "{line}: nothing is down");
        }
        for (line, wanted) in [
            ("", "not understood"),
            ("key k a", "not understood"),
            ("key t a down", "there is no keyboard with id \"t\""),
            ("move k 1 2", "there is no tablet with id \"k\""),
            ("tap k nokey", "no key is called \"nokey\""),
            ("key k a sideways", "\"sideways\" is neither down nor up"),
            ("move t 0 32768", "\"32768\" is not a coordinate"),
            ("move t -1 0", "\"-1\" is not a coordinate"),
            ("button t top down", "no button is called \"top\""),
            ("scroll t -128 0", "\"-128\" is not a number of notches"),
        ] {
            let error = inputs.carry_out(line).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{line}: {error}");
        }
    }
}
