//! USB host controllers and devices for virtual machine monitors.

#![forbid(unsafe_code)]
// Everything below is computed from values a guest chooses.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

#[cfg(any(feature = "event-manager", feature = "kvm"))]
pub mod adapters;
pub mod controller;
pub mod devices;
pub mod dma;
pub mod ehci;
pub mod ohci;
pub mod pci;
pub mod time;
pub mod topology;
pub mod usb;
