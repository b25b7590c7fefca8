//! What the lab on the host and the agent in the guest say to each other.
//!
//! One JSON value a line, over the guest's second serial port: the agent opens with [`Hello`], the host then sends
//! one [`Request`] at a time and the agent answers each with one [`Answer`]. The kernel's log has the first serial
//! port for itself, so neither side has to tell the two apart.

mod gadgets;
mod hotplug;
mod pattern;
mod report;
mod request;
mod stream;

pub use gadgets::{Page, TestPattern, UsbTest, UsbTestOutcome};
pub use hotplug::{Pluggable, Pulled, printed_byte};
pub use pattern::{Block, Pattern, WritePlan};
pub use report::{
    Controller, Disk, InputEvent, InterruptMode, Inventory, Latencies, Placement, Reloaded,
    Throughput, Traffic, UsbDevice,
};
pub use request::{Answer, Direction, Hello, Reply, Request};
pub use stream::{Stream, StreamShape, Streamed};

/// A PCI address as sysfs writes it, for example `0000:00:04.0`.
///
/// The host chooses the slot of every controller, so this is the one name both sides have for "the disk behind that
/// controller".
pub type PciAddress = String;

/// Writes `value` as one line.
///
/// # Errors
/// The writer's own error.
pub fn send<T: serde::Serialize>(
    writer: &mut impl std::io::Write,
    value: &T,
) -> std::io::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    writer.write_all(line.as_bytes())?;
    writer.flush()
}

/// Reads one line's value.
///
/// # Errors
/// Says what the line was when it is not a `T`.
pub fn parse<T: serde::de::DeserializeOwned>(line: &str) -> Result<T, String> {
    serde_json::from_str(line.trim())
        .map_err(|error| format!("not a line of this protocol ({error}): {}", line.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_line() {
        let request = Request::Sha256 { controller: "0000:00:04.0".into() };
        let mut line = Vec::new();
        send(&mut line, &request).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(parse::<Request>(&line).unwrap(), request);
    }

    #[test]
    fn a_failure_survives_the_line() {
        let answer: Answer = Err("no disk".into());
        let mut line = Vec::new();
        send(&mut line, &answer).unwrap();
        assert_eq!(parse::<Answer>(std::str::from_utf8(&line).unwrap()).unwrap(), answer);
    }

    #[test]
    fn a_torn_line_is_named() {
        let error = parse::<Request>("{\"Sha").unwrap_err();
        assert!(error.contains("{\"Sha"), "{error}");
    }
}
