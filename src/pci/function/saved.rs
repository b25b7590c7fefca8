//! The function in a snapshot.

use serde::{Deserialize, Serialize};
use vm_memory::GuestMemory;

use super::{Outputs, PciFunction};
use crate::controller::HostController;
use crate::pci::config_space::SIZE;
use crate::pci::message::Cause;
use crate::pci::{InterruptLine, type0};
use crate::snapshot::{Offset, RestoreError, SaveError, Snapshot, State};
use crate::time::Time;

/// Name of the form.
const KIND: &str = "PCI function";

/// A [`PciFunction`] and its controller.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionState {
    #[serde(with = "hex::serde")]
    config: Vec<u8>,
    bar_size: u32,
    /// A message that could not be sent.
    unsent: bool,
    last_run: Offset,
    controller: State,
}

impl<M, C, L> Snapshot for PciFunction<M, C, L>
where
    M: GuestMemory + ?Sized,
    C: HostController<M>,
    L: InterruptLine,
{
    fn save(&self, now: Time) -> Result<State, SaveError> {
        let Self {
            config,
            // Configuration space tells.
            identity: _,
            bar_size,
            controller,
            // The line is the VMM's, which knows its levels.
            line: _,
            outputs: Outputs { level: _, pme: _, message },
            last_run,
            memory: _,
            // The statistics of this process.
            counts: _,
        } = self;
        let state = FunctionState {
            config: config.save(),
            bar_size: *bar_size,
            unsent: message.due().is_some(),
            last_run: Offset::of(*last_run, now),
            controller: controller.save(now)?,
        };
        State::of(KIND, &state)
    }

    /// The line is told of its level, as after any other call, and a message that was still to be sent
    /// is sent.
    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        let FunctionState { config, bar_size, unsent, last_run, controller } = state.to(KIND)?;
        RestoreError::check(config.len() == SIZE, "configuration space has 256 bytes")?;
        RestoreError::same(type0::identity(&config), type0::identity(&self.config.save()))?;
        let bar = |size: u32| format!("a BAR of {size} bytes");
        RestoreError::same(bar(bar_size), bar(self.bar_size))?;
        self.controller.restore(&controller, now)?;
        self.config.restore(&config);
        self.outputs.message.owe(unsent, now);
        self.last_run = last_run.at(now);
        self.settle(Cause::Other, now);
        Ok(())
    }
}
