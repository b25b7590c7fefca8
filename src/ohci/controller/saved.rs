//! The controller in a snapshot.

use serde::{Deserialize, Serialize};

use super::{Budget, Ohci};
use crate::controller::Interrupt;
use crate::ohci::done_queue::DoneQueue;
use crate::ohci::frame::ClockState;
use crate::ohci::legacy::Legacy;
use crate::ohci::lists::{ListState, ServiceRatio};
use crate::ohci::registers::Registers;
use crate::ohci::root_hub::HubState;
use crate::snapshot::{RestoreError, SaveError, Snapshot, State};
use crate::time::Time;

/// Name of the form.
const KIND: &str = "OHCI controller";

/// An [`Ohci`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OhciState {
    registers: Registers,
    control: ListState,
    bulk: ListState,
    ratio: ServiceRatio,
    done: DoneQueue,
    legacy: Option<Legacy>,
    hub: HubState,
    clock: ClockState,
    frames: u32,
    streaming_until: u32,
    overrun: bool,
    dead: bool,
    line: Interrupt,
    wakeup: bool,
}

impl Snapshot for Ohci {
    fn save(&self, now: Time) -> Result<State, SaveError> {
        let Self {
            registers,
            control,
            bulk,
            ratio,
            done,
            legacy,
            hub,
            clock,
            // What was left of the frame under way; it is full again.
            budget: _,
            frames,
            // After a restore all lists are looked at.
            attentive_until: _,
            streaming_until,
            overrun,
            rung: _,
            dead,
            // Learned with every call.
            mastering: _,
            line,
            wakeup,
            // The statistics and the log of this process.
            counts: _,
            attendance: _,
            journal: _,
        } = self;
        let state = OhciState {
            registers: *registers,
            control: control.save(),
            bulk: bulk.save(),
            ratio: *ratio,
            done: *done,
            legacy: *legacy,
            hub: hub.save(now),
            clock: clock.save(now),
            frames: *frames,
            streaming_until: *streaming_until,
            overrun: *overrun,
            dead: *dead,
            line: *line,
            wakeup: *wakeup,
        };
        State::of(KIND, &state)
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        let OhciState {
            registers,
            control,
            bulk,
            ratio,
            done,
            legacy,
            hub,
            clock,
            frames,
            streaming_until,
            overrun,
            dead,
            line,
            wakeup,
        } = state.to(KIND)?;
        let registers_of = |legacy: Option<Legacy>| match legacy {
            Some(_) => "legacy keyboard registers",
            None => "no legacy keyboard registers",
        };
        RestoreError::same(registers_of(legacy), registers_of(self.legacy))?;
        self.legacy = legacy;
        self.hub.restore(&hub, now)?;
        self.registers = registers.restored();
        self.control.restore(control);
        self.bulk.restore(bulk);
        self.ratio = ratio;
        self.done = done;
        self.attendance.start();
        self.clock.restore(clock, now);
        self.budget = Budget::new(self.clock.pacing());
        self.frames = frames;
        self.streaming_until = streaming_until;
        self.overrun = overrun;
        self.dead = dead;
        self.line = line;
        self.wakeup = wakeup;
        // Nothing is in flight and nobody waits: every endpoint is asked, those of the control and
        // bulk lists in the next call, the periodic ones in their frames.
        self.rung = true;
        self.mastering = true;
        self.pay_attention();
        Ok(())
    }
}
