//! Signalling speeds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The speed a device signals at (USB 2.0, 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Speed {
    /// 1.5 Mbit/s.
    Low,
    /// 12 Mbit/s.
    Full,
    /// 480 Mbit/s.
    High,
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low speed (1.5 Mbit/s)",
            Self::Full => "full speed (12 Mbit/s)",
            Self::High => "high speed (480 Mbit/s)",
        })
    }
}
