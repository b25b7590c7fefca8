//! What carrying out a schedule takes, and the way to the devices.

use super::clock::Microframe;
use super::interrupts::Interrupts;
use super::ports::RootPort;
use super::structures::Structures;
use super::waiting::Waiting;
use crate::time::Time;
use crate::usb::{CompleteAnswer, CompleteSplit, Function, Outcome, StartAnswer, StartSplit};

/// What carrying out a schedule takes.
pub(super) struct Engine<'a, M: ?Sized> {
    pub memory: Structures<'a, M>,
    pub ports: &'a [RootPort],
    pub waiting: &'a mut Waiting,
    pub interrupts: &'a mut Interrupts,
    pub now: Time,
    pub microframe: Microframe,
    /// Which turn of the controller this is.
    pub turn: u64,
}

impl<M: ?Sized> Engine<'_, M> {
    /// Addresses the device with `address` behind an enabled port, and says which port that is:
    /// nobody answers for an address that no device has.
    pub(super) fn offer(
        &self,
        address: u8,
        action: impl FnOnce(&mut Function) -> Outcome,
    ) -> (Option<usize>, Outcome) {
        let mut action = Some(action);
        let answer = self.first_answer(|function| {
            function.reach(address, |function| action.take().map(|action| action(function)))?
        });
        answer.map_or((None, Outcome::TIMEOUT), |(port, outcome)| (Some(port), outcome))
    }

    /// Sends a start-split to the hub it names.
    pub(super) fn start_split(&self, split: &StartSplit<'_>) -> (Option<usize>, StartAnswer) {
        let answer = self.first_answer(|function| function.start_split(split));
        answer.map_or((None, StartAnswer::Silence), |(port, answer)| (Some(port), answer))
    }

    /// Sends a complete-split to the hub it names.
    pub(super) fn complete_split(
        &self,
        split: &CompleteSplit,
        data: &mut Vec<u8>,
    ) -> (Option<usize>, CompleteAnswer) {
        let answer = self.first_answer(|function| function.complete_split(split, data));
        answer.map_or((None, CompleteAnswer::Silence), |(port, answer)| (Some(port), answer))
    }

    /// Asks what is behind the enabled ports, one after the other, until something answers.
    fn first_answer<R>(
        &self,
        mut ask: impl FnMut(&mut Function) -> Option<R>,
    ) -> Option<(usize, R)> {
        let mut ports = self.ports.iter().enumerate().filter(|(_, port)| port.carries_traffic());
        ports.find_map(|(at, port)| Some((at, port.link().with(&mut ask)??)))
    }
}
