//! Where devices are plugged in, and who owns the socket.

mod port;

pub(crate) use port::SocketState;
pub use port::{AttachError, Host, Port, PortLink, PortView, Refused};
