//! Endpoint addresses and data toggles.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An endpoint's number and direction, as in `bEndpointAddress` (USB 2.0, 9.6.6).
///
/// Endpoint 0 is addressed in either direction; both name the one control endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
pub struct EndpointAddress(u8);

impl EndpointAddress {
    /// The control endpoint.
    pub const CONTROL: Self = Self(0);

    /// IN endpoint `number` (the low four bits count).
    pub const fn r#in(number: u8) -> Self {
        Self(0x80 | (number & 0xf))
    }

    /// OUT endpoint `number` (the low four bits count).
    pub const fn out(number: u8) -> Self {
        Self(number & 0xf)
    }

    /// From the byte used in descriptors and requests; reserved bits are dropped.
    pub const fn from_byte(byte: u8) -> Self {
        Self(byte & 0x8f)
    }

    /// The byte used in descriptors and requests.
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// 0 to 15.
    pub const fn number(self) -> u8 {
        self.0 & 0xf
    }

    /// Whether data goes from the device to the host.
    pub const fn is_in(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// 0 to 31, distinct for each endpoint: OUT 0 to 15, then IN 0 to 15.
    pub(crate) const fn index(self) -> u32 {
        (self.number() as u32) | ((self.is_in() as u32) << 4)
    }

    /// The inverse of [`index`](Self::index).
    pub(crate) const fn from_index(index: u32) -> Self {
        Self((index as u8 & 0xf) | ((index as u8 & 0x10) << 3))
    }
}

/// `endpoint 0`, `endpoint 1 IN`, `endpoint 2 OUT`.
impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.number(), self.is_in()) {
            (0, _) => f.write_str("endpoint 0"),
            (number, true) => write!(f, "endpoint {number} IN"),
            (number, false) => write!(f, "endpoint {number} OUT"),
        }
    }
}

impl From<u8> for EndpointAddress {
    fn from(byte: u8) -> Self {
        Self::from_byte(byte)
    }
}

impl From<EndpointAddress> for u8 {
    fn from(endpoint: EndpointAddress) -> Self {
        endpoint.byte()
    }
}

/// A data toggle (USB 2.0, 8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Toggle {
    /// DATA0.
    #[default]
    Data0,
    /// DATA1.
    Data1,
}

impl Toggle {
    /// DATA1 for `true`.
    pub const fn from_bit(bit: bool) -> Self {
        if bit { Self::Data1 } else { Self::Data0 }
    }

    /// `true` for DATA1.
    pub const fn bit(self) -> bool {
        matches!(self, Self::Data1)
    }

    /// The toggle after `packets` more packets.
    #[must_use]
    pub const fn after(self, packets: usize) -> Self {
        Self::from_bit(self.bit() ^ (packets & 1 == 1))
    }
}
