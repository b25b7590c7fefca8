//! Keys by usage and by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A key, as a usage of the HID keyboard page (HID Usage Tables, 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Key(u8);

/// Text that names no key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "no key is called \"{0}\": use Linux's names in lower case (\"a\", \"enter\", \"leftshift\", \
     \"f1\", \"kp0\") or a usage of the HID keyboard page (\"0x28\")"
)]
pub struct KeyError(String);

impl Key {
    /// The key with this usage: 0x04 to 0xe7. `None` for the others, which are no keys.
    pub const fn from_usage(usage: u8) -> Option<Self> {
        match usage {
            0x04..=0xe7 => Some(Self(usage)),
            _ => None,
        }
    }

    /// The usage.
    pub const fn usage(self) -> u8 {
        self.0
    }

    /// The name, if it has one.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(usage, _)| *usage == self.0).map(|(_, name)| *name)
    }

    /// The bit in the modifier byte of a report, for the eight keys that have one.
    pub(super) fn modifier(self) -> Option<u8> {
        let bit = self.0.checked_sub(0xe0)?;
        1u8.checked_shl(bit.into())
    }
}

impl TryFrom<u8> for Key {
    type Error = KeyError;

    fn try_from(usage: u8) -> Result<Self, Self::Error> {
        Self::from_usage(usage).ok_or_else(|| KeyError(format!("{usage:#04x}")))
    }
}

impl From<Key> for u8 {
    fn from(key: Key) -> Self {
        key.usage()
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = NAMES.iter().find(|(_, name)| *name == text).map(|(usage, _)| *usage);
        let number = text.strip_prefix("0x").and_then(|hex| u8::from_str_radix(hex, 16).ok());
        named.or(number).and_then(Self::from_usage).ok_or_else(|| KeyError(text.to_owned()))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#04x}", self.0),
        }
    }
}

/// Usages and the names that Linux's `input-event-codes.h` gives these keys.
const NAMES: &[(u8, &str)] = &[
    (0x04, "a"),
    (0x05, "b"),
    (0x06, "c"),
    (0x07, "d"),
    (0x08, "e"),
    (0x09, "f"),
    (0x0a, "g"),
    (0x0b, "h"),
    (0x0c, "i"),
    (0x0d, "j"),
    (0x0e, "k"),
    (0x0f, "l"),
    (0x10, "m"),
    (0x11, "n"),
    (0x12, "o"),
    (0x13, "p"),
    (0x14, "q"),
    (0x15, "r"),
    (0x16, "s"),
    (0x17, "t"),
    (0x18, "u"),
    (0x19, "v"),
    (0x1a, "w"),
    (0x1b, "x"),
    (0x1c, "y"),
    (0x1d, "z"),
    (0x1e, "1"),
    (0x1f, "2"),
    (0x20, "3"),
    (0x21, "4"),
    (0x22, "5"),
    (0x23, "6"),
    (0x24, "7"),
    (0x25, "8"),
    (0x26, "9"),
    (0x27, "0"),
    (0x28, "enter"),
    (0x29, "esc"),
    (0x2a, "backspace"),
    (0x2b, "tab"),
    (0x2c, "space"),
    (0x2d, "minus"),
    (0x2e, "equal"),
    (0x2f, "leftbrace"),
    (0x30, "rightbrace"),
    (0x31, "backslash"),
    (0x32, "hashtilde"),
    (0x33, "semicolon"),
    (0x34, "apostrophe"),
    (0x35, "grave"),
    (0x36, "comma"),
    (0x37, "dot"),
    (0x38, "slash"),
    (0x39, "capslock"),
    (0x3a, "f1"),
    (0x3b, "f2"),
    (0x3c, "f3"),
    (0x3d, "f4"),
    (0x3e, "f5"),
    (0x3f, "f6"),
    (0x40, "f7"),
    (0x41, "f8"),
    (0x42, "f9"),
    (0x43, "f10"),
    (0x44, "f11"),
    (0x45, "f12"),
    (0x46, "sysrq"),
    (0x47, "scrolllock"),
    (0x48, "pause"),
    (0x49, "insert"),
    (0x4a, "home"),
    (0x4b, "pageup"),
    (0x4c, "delete"),
    (0x4d, "end"),
    (0x4e, "pagedown"),
    (0x4f, "right"),
    (0x50, "left"),
    (0x51, "down"),
    (0x52, "up"),
    (0x53, "numlock"),
    (0x54, "kpslash"),
    (0x55, "kpasterisk"),
    (0x56, "kpminus"),
    (0x57, "kpplus"),
    (0x58, "kpenter"),
    (0x59, "kp1"),
    (0x5a, "kp2"),
    (0x5b, "kp3"),
    (0x5c, "kp4"),
    (0x5d, "kp5"),
    (0x5e, "kp6"),
    (0x5f, "kp7"),
    (0x60, "kp8"),
    (0x61, "kp9"),
    (0x62, "kp0"),
    (0x63, "kpdot"),
    (0x64, "102nd"),
    (0x65, "compose"),
    (0x66, "power"),
    (0x67, "kpequal"),
    (0x68, "f13"),
    (0x69, "f14"),
    (0x6a, "f15"),
    (0x6b, "f16"),
    (0x6c, "f17"),
    (0x6d, "f18"),
    (0x6e, "f19"),
    (0x6f, "f20"),
    (0x70, "f21"),
    (0x71, "f22"),
    (0x72, "f23"),
    (0x73, "f24"),
    (0x74, "open"),
    (0x75, "help"),
    (0x76, "props"),
    (0x77, "front"),
    (0x78, "stop"),
    (0x79, "again"),
    (0x7a, "undo"),
    (0x7b, "cut"),
    (0x7c, "copy"),
    (0x7d, "paste"),
    (0x7e, "find"),
    (0x7f, "mute"),
    (0x80, "volumeup"),
    (0x81, "volumedown"),
    (0x85, "kpcomma"),
    (0x87, "ro"),
    (0x88, "katakanahiragana"),
    (0x89, "yen"),
    (0x8a, "henkan"),
    (0x8b, "muhenkan"),
    (0x8c, "kpjpcomma"),
    (0x90, "hangeul"),
    (0x91, "hanja"),
    (0x92, "katakana"),
    (0x93, "hiragana"),
    (0x94, "zenkakuhankaku"),
    (0xb6, "kpleftparen"),
    (0xb7, "kprightparen"),
    (0xe0, "leftctrl"),
    (0xe1, "leftshift"),
    (0xe2, "leftalt"),
    (0xe3, "leftmeta"),
    (0xe4, "rightctrl"),
    (0xe5, "rightshift"),
    (0xe6, "rightalt"),
    (0xe7, "rightmeta"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_usages_lead_to_the_same_key_and_back() {
        for (usage, name) in NAMES {
            let key: Key = name.parse().unwrap();
            assert_eq!(key.usage(), *usage, "{name}");
            assert_eq!(key.to_string(), *name);
            assert_eq!(format!("{usage:#04x}").parse(), Ok(key));
        }
        assert_eq!("0xa5".parse::<Key>().unwrap().to_string(), "0xa5", "a key without a name");
    }

    #[test]
    fn what_is_no_key_is_refused_with_a_hint() {
        for text in ["", "A", "return", "0x00", "0x03", "0xe8", "0x1ff"] {
            let error = text.parse::<Key>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("no key is called \"{text}\": use ")), "{error}");
        }
    }

    #[test]
    fn the_eight_modifiers_have_a_bit_each() {
        let bits: Vec<_> = (0xe0..=0xe7).filter_map(|u| Key(u).modifier()).collect();
        assert_eq!(bits, [1, 2, 4, 8, 16, 32, 64, 128]);
        assert_eq!(Key(0x04).modifier(), None);
    }
}
