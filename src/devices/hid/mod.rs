//! Human interface devices (HID 1.11): a keyboard and a tablet, and what any other one needs.
//!
//! [`Keyboard`] and [`Tablet`] go into a port; their [`handle`](Keyboard::handle) stays with the
//! embedder, which feeds it with what its user does, from any thread:
//!
//! ```
//! use vm_usb::devices::hid::{Key, Keyboard};
//! use vm_usb::topology::Port;
//! use vm_usb::usb::Speed;
//!
//! let port = Port::classic();
//! let keyboard = Keyboard::new(Speed::Full);
//! let keys = keyboard.handle();
//! port.attach(Box::new(keyboard)).map_err(|refused| refused.reason)?;
//!
//! let enter: Key = "enter".parse()?;
//! if let Err(reason) = keys.press(enter) {
//!     println!("{reason}"); // no guest has configured the keyboard yet
//! }
//! keys.release(enter);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Events
//! Every event becomes a report of its own, in the order in which it was given; only movements of
//! the tablet that directly follow each other become one. At most [`QUEUE`] wait for the guest. When
//! they do, further presses and movements are refused, but never a release: room for it is set aside
//! when its press is accepted, so no key or button stays down because a guest was slow.
//!
//! A bus reset or a new configuration drops what waits and lets go of everything that is down; before
//! the guest has configured the device, events are refused.
//!
//! # Idle rate
//! With an idle duration of 0 the interrupt endpoint is parked while there is nothing to say, and an
//! idle device costs nothing. With any other duration (a keyboard starts with 500 ms, firmware sets a
//! shorter one and builds key repeat on it) the endpoint asks to be polled instead, and each poll
//! brings the time by which the last report is due again.
//!
//! # Choices
//! Light-emitting diodes arrive by SET_REPORT alone, without an interrupt OUT endpoint, as with most
//! keyboards. The boot protocol's report and the keyboard's own are one and the same. The tablet has no
//! boot protocol: there is none for absolute positions.

mod class;
mod key;
mod keyboard;
mod shared;
mod tablet;

pub use class::{Boot, Hid, Reports};
pub use key::{Key, KeyError};
pub use keyboard::{Keyboard, KeyboardHandle, Keys, Leds};
pub use shared::InputError;
pub use tablet::{Button, Pointer, Tablet, TabletHandle};

/// Most events that wait for the guest to take them.
pub const QUEUE: usize = 512;
