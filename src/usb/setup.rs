//! Setup packets (USB 2.0, 9.3).

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U16};

/// Standard request codes, `bRequest` (USB 2.0, table 9-4).
pub mod request {
    /// GET_STATUS.
    pub const GET_STATUS: u8 = 0;
    /// CLEAR_FEATURE.
    pub const CLEAR_FEATURE: u8 = 1;
    /// SET_FEATURE.
    pub const SET_FEATURE: u8 = 3;
    /// SET_ADDRESS.
    pub const SET_ADDRESS: u8 = 5;
    /// GET_DESCRIPTOR.
    pub const GET_DESCRIPTOR: u8 = 6;
    /// SET_DESCRIPTOR.
    pub const SET_DESCRIPTOR: u8 = 7;
    /// GET_CONFIGURATION.
    pub const GET_CONFIGURATION: u8 = 8;
    /// SET_CONFIGURATION.
    pub const SET_CONFIGURATION: u8 = 9;
    /// GET_INTERFACE.
    pub const GET_INTERFACE: u8 = 10;
    /// SET_INTERFACE.
    pub const SET_INTERFACE: u8 = 11;
}

/// Direction of the data stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Host to device.
    Out,
    /// Device to host.
    In,
}

/// Who defined a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestType {
    /// USB 2.0, chapter 9.
    Standard,
    /// A device class.
    Class,
    /// The vendor.
    Vendor,
    /// Reserved value 3.
    Reserved,
}

/// Whom a request addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The device.
    Device,
    /// The interface in the low byte of `wIndex`.
    Interface,
    /// The endpoint in the low byte of `wIndex`.
    Endpoint,
    /// Other, and the reserved values.
    Other,
}

/// The eight bytes of a SETUP transaction.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Serialize,
    Deserialize,
)]
#[serde(from = "[u8; 8]", into = "[u8; 8]")]
#[repr(C)]
pub struct SetupPacket {
    /// Direction, type and recipient.
    pub bm_request_type: u8,
    /// The request.
    pub b_request: u8,
    /// Its parameter.
    pub w_value: U16,
    /// Interface, endpoint or language.
    pub w_index: U16,
    /// Bytes in the data stage at most.
    pub w_length: U16,
}

impl From<[u8; 8]> for SetupPacket {
    fn from(bytes: [u8; 8]) -> Self {
        zerocopy::transmute!(bytes)
    }
}

impl From<SetupPacket> for [u8; 8] {
    fn from(setup: SetupPacket) -> Self {
        zerocopy::transmute!(setup)
    }
}

impl SetupPacket {
    /// Builds a packet from its fields.
    pub fn new(request_type: u8, request: u8, value: u16, index: u16, length: u16) -> Self {
        Self {
            bm_request_type: request_type,
            b_request: request,
            w_value: value.into(),
            w_index: index.into(),
            w_length: length.into(),
        }
    }

    /// Reads the eight bytes of a SETUP data packet; `None` if there are not eight.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::read_from_bytes(bytes).ok()
    }

    /// Direction of the data stage.
    pub const fn direction(&self) -> Direction {
        if self.bm_request_type & 0x80 != 0 { Direction::In } else { Direction::Out }
    }

    /// Who defined the request.
    pub const fn request_type(&self) -> RequestType {
        match self.bm_request_type >> 5 & 3 {
            0 => RequestType::Standard,
            1 => RequestType::Class,
            2 => RequestType::Vendor,
            _ => RequestType::Reserved,
        }
    }

    /// Whom it addresses.
    pub const fn recipient(&self) -> Recipient {
        match self.bm_request_type & 0x1f {
            0 => Recipient::Device,
            1 => Recipient::Interface,
            2 => Recipient::Endpoint,
            _ => Recipient::Other,
        }
    }

    /// `wValue`.
    pub const fn value(&self) -> u16 {
        self.w_value.get()
    }

    /// `wIndex`.
    pub const fn index(&self) -> u16 {
        self.w_index.get()
    }

    /// `wLength`.
    pub const fn length(&self) -> u16 {
        self.w_length.get()
    }

    /// High byte of `wValue`: the descriptor or report type.
    pub const fn value_high(&self) -> u8 {
        (self.value() >> 8) as u8
    }

    /// Low byte of `wValue`: the descriptor index or report id.
    pub const fn value_low(&self) -> u8 {
        self.value() as u8
    }
}
