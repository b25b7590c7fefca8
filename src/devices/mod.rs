//! Devices to plug in.
//!
//! Each implements [`UsbDevice`](crate::usb::UsbDevice) and knows nothing of host controllers:
//! attach it to a [`Port`](crate::topology::Port) of whichever serves its speed.

pub mod debug;
pub mod faulty;
pub mod full_speed;
pub mod hid;
pub mod hub;
pub mod loopback;
pub mod printer;
pub mod storage;

/// The authors' guide, whose code must work.
#[cfg(doctest)]
#[doc = include_str!("../../docs/devices.md")]
struct Guide;
