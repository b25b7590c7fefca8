//! Lines in the log that a person can read: one for each change of state, and not too many of them.

use std::fmt;

use log::Level;

use crate::time::Time;

/// Most log lines a second, in the caller's time, that a guest can have one controller or one device
/// write. A controller with four devices takes some twenty when a driver starts; a guest that resets a
/// port in a loop would fill the host's disk.
pub(crate) const LINES_A_SECOND: u32 = 32;

/// The allowance of one author of lines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lines {
    /// When the second began.
    since: Time,
    written: u32,
    left_out: u32,
}

impl Lines {
    /// Writes a line about a change of state.
    pub(crate) fn info(&mut self, now: Time, line: fmt::Arguments<'_>) {
        self.write(Level::Info, now, line);
    }

    /// Writes a line about something that should not happen.
    pub(crate) fn warn(&mut self, now: Time, line: fmt::Arguments<'_>) {
        self.write(Level::Warn, now, line);
    }

    fn write(&mut self, level: Level, now: Time, line: fmt::Arguments<'_>) {
        if !log::log_enabled!(level) {
            return;
        }
        match self.admit(now) {
            None => {}
            Some(0) => log::log!(level, "{line}"),
            Some(left_out) => log::log!(level, "{line} ({left_out} lines before it left out)"),
        }
    }

    /// Whether there is room for a line, and how many were left out since the last.
    fn admit(&mut self, now: Time) -> Option<u32> {
        if now.nanos_since(self.since) >= 1_000_000_000 {
            self.since = now;
            self.written = 0;
        }
        if self.written >= LINES_A_SECOND {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.written = self.written.saturating_add(1);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// What a controller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControllerState {
    /// OHCI: reset signalling on its bus.
    Reset,
    Running,
    Suspended,
    Resuming,
    /// EHCI's HCHalted; OHCI after an unrecoverable error.
    Halted,
}

impl fmt::Display for ControllerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "reset",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Resuming => "resuming",
            Self::Halted => "halted",
        })
    }
}

/// What a root port is to its controller, or a port to its hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortState {
    /// No device, no power, or not this controller's.
    Empty,
    /// The other controller owns it.
    HandedOver,
    Connected,
    Resetting,
    Enabled,
    Suspended,
    Resuming,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty",
            Self::HandedOver => "handed over to the companion controller",
            Self::Connected => "a device is connected",
            Self::Resetting => "reset",
            Self::Enabled => "enabled",
            Self::Suspended => "suspended",
            Self::Resuming => "resuming",
        })
    }
}

/// What the log was told of a controller last.
#[derive(Debug)]
pub(crate) struct Journal {
    controller: &'static str,
    state: ControllerState,
    ports: PortJournal,
}

/// What the log was told of the ports of a controller or a hub last.
#[derive(Debug)]
pub(crate) struct PortJournal {
    ports: Vec<PortState>,
    lines: Lines,
}

impl Journal {
    /// A controller that is in `state` after power-on, as are its `ports`.
    pub(crate) fn new(
        controller: &'static str,
        state: ControllerState,
        ports: Vec<PortState>,
    ) -> Self {
        Self { controller, state, ports: PortJournal::new(ports) }
    }

    /// Whether anybody reads what [`note`](Self::note) writes. A log that is turned on later begins
    /// with what has changed by then.
    pub(crate) fn is_read() -> bool {
        log::max_level() >= log::LevelFilter::Info
    }

    /// Tells the log how the controller and its ports are, if they are not as they were.
    pub(crate) fn note(
        &mut self,
        now: Time,
        state: ControllerState,
        ports: impl Iterator<Item = PortState>,
    ) {
        if self.state != state {
            self.state = state;
            self.ports.lines.info(now, format_args!("{}: {state}", self.controller));
        }
        self.ports.note(now, self.controller, ports);
    }

    /// Warns of something that the guest did wrong.
    pub(crate) fn warn(&mut self, now: Time, line: fmt::Arguments<'_>) {
        self.ports.lines.warn(now, format_args!("{}: {line}", self.controller));
    }
}

impl PortJournal {
    /// The `ports` of a controller or a hub, as they are when it comes into being.
    pub(crate) fn new(ports: Vec<PortState>) -> Self {
        Self { ports, lines: Lines::default() }
    }

    /// Tells the log how the ports of `owner` are, if they are not as they were.
    pub(crate) fn note(
        &mut self,
        now: Time,
        owner: impl fmt::Display,
        ports: impl Iterator<Item = PortState>,
    ) {
        for ((known, is), number) in self.ports.iter_mut().zip(ports).zip(1u32..) {
            if *known != is {
                *known = is;
                self.lines.info(now, format_args!("{owner} port {number}: {is}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_to_so_many_lines_a_second_and_the_next_says_so() {
        let mut lines = Lines::default();
        let start = Time::from_nanos(5_000_000_000);
        for _ in 0..LINES_A_SECOND {
            assert_eq!(lines.admit(start), Some(0));
        }
        for n in 0..100 {
            assert_eq!(lines.admit(start.after_millis(n)), None);
        }
        assert_eq!(lines.admit(start.after_millis(1000)), Some(100));
        assert_eq!(lines.admit(start.after_millis(1001)), Some(0));
    }
}
