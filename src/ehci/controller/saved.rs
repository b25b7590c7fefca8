//! The controller in a snapshot.

use serde::{Deserialize, Serialize};

use super::Ehci;
use crate::ehci::async_schedule::AsyncState;
use crate::ehci::clock::{FrameClock, Microframe};
use crate::ehci::debug_port::DebugPort;
use crate::ehci::interrupts::InterruptState;
use crate::ehci::periodic_schedule::PeriodicSchedule;
use crate::ehci::ports::SavedPort;
use crate::ehci::spec::UsbCmd;
use crate::snapshot::{Offset, RestoreError, SaveError, Snapshot, State};
use crate::time::Time;

/// Name of the form.
const KIND: &str = "EHCI controller";

/// The microframe before which every saved one lies: in 4 million years.
const HORIZON: Microframe = 1 << 60;

/// An [`Ehci`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EhciState {
    ports: Vec<SavedPort>,
    companion: bool,
    wide: bool,
    addendum: bool,
    usbcmd: UsbCmd,
    segment: u32,
    configured: bool,
    halted: bool,
    clock: FrameClock<Offset>,
    interrupts: InterruptState,
    asynchronous: AsyncState,
    periodic: PeriodicSchedule,
    debug: Option<DebugPort>,
    doorbell: bool,
    next_microframe: Microframe,
    last_microframe: Microframe,
    wakeup: bool,
}

impl Snapshot for Ehci {
    fn save(&self, now: Time) -> Result<State, SaveError> {
        let Self {
            ports,
            companion,
            wide,
            addendum,
            usbcmd,
            segment,
            configured,
            halted,
            clock,
            interrupts,
            asynchronous,
            periodic,
            debug,
            doorbell,
            // Every endpoint is asked again.
            waiting: _,
            // The owner's choice.
            polling: _,
            next_microframe,
            last_microframe,
            // Only compared with what waits.
            turn: _,
            // After a restore both schedules are looked at.
            last_activity: _,
            next_look: _,
            next_periodic: _,
            // Learned with every call.
            has_dma: _,
            wakeup,
            // The statistics and the log of this process.
            frames: _,
            journal: _,
        } = self;
        let state = EhciState {
            ports: ports.iter().map(|port| port.save(now)).collect(),
            companion: *companion,
            wide: *wide,
            addendum: *addendum,
            usbcmd: *usbcmd,
            segment: *segment,
            configured: *configured,
            halted: *halted,
            clock: clock.save(now),
            interrupts: interrupts.save(now),
            asynchronous: asynchronous.save(),
            periodic: *periodic,
            debug: debug.clone(),
            doorbell: *doorbell,
            next_microframe: *next_microframe,
            last_microframe: *last_microframe,
            wakeup: *wakeup,
        };
        State::of(KIND, &state)
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        let EhciState {
            ports,
            companion,
            wide,
            addendum,
            usbcmd,
            segment,
            configured,
            halted,
            clock,
            interrupts,
            asynchronous,
            periodic,
            debug,
            doorbell,
            next_microframe,
            last_microframe,
            wakeup,
        } = state.to(KIND)?;
        let build = |ports: usize, companion, wide, addendum, debug: bool| {
            let companion = if companion { "a companion" } else { "no companion" };
            let bits = if wide { 64 } else { 32 };
            let debug = if debug { "a debug port" } else { "no debug port" };
            let revision = if addendum { "1.1" } else { "1.0" };
            format!(
                "revision {revision}, {ports} ports, {companion}, {bits}-bit addresses and {debug}"
            )
        };
        let debug_port = self.debug.is_some();
        RestoreError::same(
            build(ports.len(), companion, wide, addendum, debug.is_some()),
            build(self.ports.len(), self.companion, self.wide, self.addendum, debug_port),
        )?;
        let clock = clock.restored(now);
        let moments = [clock.microframe(now), next_microframe, last_microframe];
        let sound = moments.iter().all(|microframe| *microframe < HORIZON);
        RestoreError::check(sound, "no controller has run for so long")?;
        RestoreError::check(periodic.entries <= 1024, "no frame list is that long")?;
        self.forget_transfers();
        for (port, state) in self.ports.iter_mut().zip(ports) {
            port.restore(state, now);
        }
        self.usbcmd = usbcmd;
        self.segment = segment;
        self.configured = configured;
        self.halted = halted;
        self.clock = clock;
        self.interrupts.restore(interrupts, now);
        self.asynchronous.restore(asynchronous);
        self.periodic = periodic;
        self.debug = debug.map(DebugPort::restored);
        self.doorbell = doorbell;
        self.next_microframe = next_microframe;
        self.last_microframe = last_microframe;
        self.wakeup = wakeup;
        // Nothing waits for a device: both schedules are looked at in the next call.
        self.last_activity = now;
        self.next_look = now;
        self.next_periodic = now;
        self.has_dma = true;
        Ok(())
    }
}
