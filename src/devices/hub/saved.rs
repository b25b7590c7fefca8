//! A hub in a snapshot, with everything behind it.

use serde::{Deserialize, Serialize};

use super::Hub;
use super::port::SavedPort;
use super::translator::TranslatorState;
use crate::snapshot::{Offset, RestoreError, SaveError, State};
use crate::time::Time;
use crate::topology::SocketState;
use crate::usb::Speed;

/// Name of the form.
const KIND: &str = "hub";

/// A [`Hub`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HubState {
    sockets: Vec<SocketState>,
    ports: Vec<SavedPort>,
    translators: Vec<TranslatorState>,
    speed: Speed,
    now: Offset,
    suspended: bool,
    over_current_change: bool,
    over_current: bool,
}

impl Hub {
    pub(super) fn save_tree(&self, now: Time) -> Result<State, SaveError> {
        let Self {
            // What it is.
            options: _,
            description: _,
            // Its place in the tree.
            upstream: _,
            notifier: _,
            sockets,
            ports,
            translators,
            speed,
            now: heard,
            suspended,
            over_current_change,
            over_current,
            // What the log knows is not the machine's.
            address: _,
            journal: _,
        } = self;
        let sockets = (1..).zip(sockets).map(|(number, socket): (u8, _)| {
            let state = socket.save_socket(now);
            state.map_err(|error| error.within(format_args!("hub port {number}")))
        });
        let state = HubState {
            sockets: sockets.collect::<Result<_, _>>()?,
            ports: ports.iter().map(|port| port.save(now)).collect(),
            translators: translators.iter().map(|translator| translator.save(now)).collect(),
            speed: *speed,
            now: Offset::of(*heard, now),
            suspended: *suspended,
            over_current_change: *over_current_change,
            over_current: *over_current,
        };
        State::of(KIND, &state)
    }

    pub(super) fn restore_tree(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        let HubState {
            sockets,
            ports,
            translators,
            speed,
            now: heard,
            suspended,
            over_current_change,
            over_current,
        } = state.to(KIND)?;
        let count = |ports: usize| format!("a hub with {ports} ports");
        RestoreError::same(count(ports.len()), count(self.ports.len()))?;
        RestoreError::same(count(sockets.len()), count(self.sockets.len()))?;
        for (number, (socket, state)) in (1u8..).zip(self.sockets.iter().zip(&sockets)) {
            let done = socket.restore_socket(state, now);
            done.map_err(|error| error.within(format_args!("hub port {number}")))?;
        }
        for (port, state) in self.ports.iter_mut().zip(&ports) {
            port.restore(state, now);
        }
        // One for each port is what alternate setting 1 stands for.
        let each = translators.len() == self.ports.len() && translators.len() != 1;
        RestoreError::check(
            each || translators.len() == 1,
            "a hub has one translator or as many as ports",
        )?;
        self.build_translators(each.into());
        for (translator, state) in self.translators.iter_mut().zip(translators) {
            translator.restore(state, now)?;
        }
        self.speed = speed;
        self.now = heard.at(now).min(now);
        self.suspended = suspended;
        self.over_current_change = over_current_change;
        self.over_current = over_current;
        Ok(())
    }
}
