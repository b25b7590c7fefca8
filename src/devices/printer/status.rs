//! The status request and its reply.

use serde::{Deserialize, Serialize};

use super::Paper;

/// The packet that asks for a [`StatusReply`].
pub const STATUS_REQUEST: [u8; 6] = *b"\x1bSTAT?";

/// The answer to [`STATUS_REQUEST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatusReply {
    /// The paper.
    pub paper: Paper,
    /// Which question since the reset this answers, modulo 256; the first is 1.
    pub sequence: u8,
    /// Bytes of print data that came before the question since the reset, modulo 2^32.
    pub printed: u32,
}

impl StatusReply {
    /// Six bytes: the port status as GET_PORT_STATUS has it, the sequence number, and the count in
    /// little-endian order.
    pub const fn to_bytes(self) -> [u8; 6] {
        let [a, b, c, d] = self.printed.to_le_bytes();
        [self.paper.port_status(), self.sequence, a, b, c, d]
    }
}
