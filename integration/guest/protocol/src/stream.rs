//! Streams of transfers through usbfs, with several queued at once.

use serde::{Deserialize, Serialize};

/// What each request to the kernel (URB) of a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamShape {
    /// A bulk transfer with room for this many bytes.
    Bulk {
        /// The room.
        bytes: usize,
    },
    /// Isochronous packets, one for each interval of the endpoint.
    Isochronous {
        /// How many.
        packets: usize,
        /// Bytes of each; with several packets a microframe, of all of those.
        bytes: usize,
    },
}

/// A stream to or from each of some endpoints at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// The alternate setting that has the endpoints.
    pub alternate: u8,
    /// The endpoints as `bEndpointAddress` has them.
    pub endpoints: Vec<u8>,
    /// What each request is.
    pub shape: StreamShape,
    /// Requests queued at each endpoint.
    pub queued: usize,
    /// How long it goes on.
    pub milliseconds: u64,
}

/// What came of a stream at one endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streamed {
    /// Requests that came back.
    pub requests: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// From the first submission to the last completion.
    pub nanoseconds: u64,
    /// Isochronous packets, or bulk transfers, that went well.
    pub good: u64,
    /// Isochronous packets whose time had passed before they were sent: `EXDEV`.
    pub late: u64,
    /// Those that failed in another way.
    pub failed: u64,
}

impl Streamed {
    /// In megabytes (10^6 bytes) a second.
    #[must_use]
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1e3 / (self.nanoseconds.max(1) as f64)
    }
}
