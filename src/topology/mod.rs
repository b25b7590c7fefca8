//! Where devices are plugged in, and who owns the socket.

mod port;

pub use port::{AttachError, Host, Port, PortLink, PortView, Refused};
