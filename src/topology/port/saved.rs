//! A socket and what is in it, in a snapshot.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Host, Port, Socket};
use crate::snapshot::{RestoreError, SaveError, Snapshot, State};
use crate::time::Time;
use crate::usb::{FunctionState, MailboxState};

/// Name of the form.
const KIND: &str = "port";

/// A [`Port`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SocketState {
    wiring: Wiring,
    owner: Host,
    over_current: bool,
    generation: u64,
    mailbox: MailboxState,
    device: Option<Box<FunctionState>>,
}

/// Which controllers a port is wired to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wiring {
    high: bool,
    classic: bool,
}

impl fmt::Display for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.high, self.classic) {
            (true, true) => "a port that two controllers share",
            (true, false) => "a port of a high-speed controller",
            (false, _) => "a port of a full-speed controller or a hub",
        })
    }
}

impl Port {
    /// The socket's state. A hub calls this for its ports; a VMM through [`Snapshot`].
    pub(crate) fn save_socket(&self, now: Time) -> Result<SocketState, SaveError> {
        let socket = self.lock();
        let Socket { function, high, classic, owner, over_current, generation, observer: _ } =
            &*socket;
        let device = function.as_ref().map(|function| function.save(now)).transpose()?;
        Ok(SocketState {
            wiring: Wiring { high: *high, classic: *classic },
            owner: *owner,
            over_current: *over_current,
            generation: *generation,
            mailbox: self.mailbox.save(),
            device: device.map(Box::new),
        })
    }

    pub(crate) fn restore_socket(
        &self,
        state: &SocketState,
        now: Time,
    ) -> Result<(), RestoreError> {
        let SocketState { wiring, owner, over_current, generation, mailbox, device } = state;
        let mut socket = self.lock();
        RestoreError::same(*wiring, Wiring { high: socket.high, classic: socket.classic })?;
        let wired = match owner {
            Host::High => wiring.high,
            Host::Classic => wiring.classic,
        };
        RestoreError::check(wired, "a controller owns the port that is not wired to it")?;
        match (device, &mut socket.function) {
            (None, None) => {}
            (Some(saved), Some(function)) => function.restore(saved, now)?,
            (None, Some(function)) => {
                return Err(RestoreError::mismatch("no device", function.name()));
            }
            (Some(saved), None) => {
                return Err(RestoreError::mismatch(saved.name(), "no device"));
            }
        }
        socket.owner = *owner;
        socket.over_current = *over_current;
        socket.generation = *generation;
        drop(socket);
        self.mailbox.restore(*mailbox);
        Ok(())
    }
}

impl Snapshot for Port {
    fn save(&self, now: Time) -> Result<State, SaveError> {
        State::of(KIND, &self.save_socket(now)?)
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        self.restore_socket(&state.to(KIND)?, now)
    }
}
