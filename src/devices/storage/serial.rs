//! The serial number that the bulk-only transport demands.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A serial number as a bulk-only device must have one: at least twelve of `0`-`9` and `A`-`F`, the
/// last twelve of which no other device with the same vendor and product shares (Bulk-Only
/// Transport 1.0, 4.1.1). Guests tell disks apart by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Serial(String);

/// Text that is not a [`Serial`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{0}\" is not a serial number for a disk: give {min} to {max} hexadecimal digits",
    min = Serial::MIN,
    max = Serial::MAX
)]
pub struct SerialError(String);

impl Serial {
    /// Fewest digits.
    pub const MIN: usize = 12;
    /// Most digits: what INQUIRY data and string descriptors both have room for.
    pub const MAX: usize = 32;

    /// The serial number of the disk that the embedder calls `name`: always the same one, and another
    /// one for every other name.
    pub fn from_name(name: &str) -> Self {
        Self(format!("{:016X}", fnv1a(name.as_bytes())))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// 60 bits that stand for the serial number where there is no room for it.
    pub(super) fn condensed(&self) -> u64 {
        fnv1a(self.0.as_bytes()) >> 4
    }
}

impl FromStr for Serial {
    type Err = SerialError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let length = Self::MIN..=Self::MAX;
        if length.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(Self(text.to_ascii_uppercase()))
        } else {
            Err(SerialError(text.to_owned()))
        }
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The 64-bit FNV-1a hash: short, and the same in every build.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hexadecimal_digits_in_sufficient_number_make_a_serial() {
        let serial: Serial = "0123456789ab".parse().unwrap();
        assert_eq!(serial.as_str(), "0123456789AB");
        assert!("0123456789A".parse::<Serial>().is_err());
        assert!("0123456789AG".parse::<Serial>().is_err());
        assert!("0".repeat(32).parse::<Serial>().is_ok());
        assert!("0".repeat(33).parse::<Serial>().is_err());
        assert_eq!(
            "disk".parse::<Serial>().unwrap_err().to_string(),
            "\"disk\" is not a serial number for a disk: give 12 to 32 hexadecimal digits"
        );
    }

    #[test]
    fn a_name_gives_the_same_serial_every_time_and_another_one_for_each_disk() {
        assert_eq!(Serial::from_name("a"), Serial::from_name("a"));
        assert_ne!(Serial::from_name("a"), Serial::from_name("b"));
        assert!(Serial::from_name("").as_str().parse::<Serial>().is_ok());
    }
}
