//! The controller: what happens when, and what happens next.

mod saved;

use vm_memory::GuestMemory;

use super::async_schedule::AsyncSchedule;
use super::clock::{FrameClock, Microframe};
use super::debug_port::DebugPort;
use super::engine::Engine;
use super::interrupts::Interrupts;
use super::periodic_schedule::{Budget, Next, PeriodicSchedule};
use super::polling::Polling;
use super::ports::{PortEvents, RootPort};
use super::spec::{MICROFRAMES, UsbCmd, offset, usbsts};
use super::structures::Structures;
use super::waiting::{Schedule, Waiting};
use crate::controller::{Context, Frames, HostController, Interrupt};
use crate::dma::{Dma, DmaError};
use crate::journal::{ControllerState, Journal};
use crate::time::Time;
use crate::topology::PortLink;

/// HCCPARAMS.EECP: where the legacy support capability lies in PCI configuration space.
pub const EECP: u8 = 0xa0;

/// Size of the register window in bytes.
const WINDOW: u64 = 0x1000;
/// Microframes caught up after a pause, 128 frames: drivers queue isochronous transfers for up to
/// about as long, and a busy host comes back tens of milliseconds late. What is older is skipped, as a
/// bus does not send late what it missed; half of the shortest frame list is the most that cannot be
/// mistaken for what the driver queued since.
const CATCH_UP: u64 = 1024;
/// Microframes after the start of a longer pause in which the split transactions that it interrupted
/// are completed: those of the frame they were started in, and of the next (EHCI 4.12.2.1). Otherwise
/// what a device behind a translator had just said would be lost, and its endpoint halted.
const SPLIT_TAIL: u64 = 2 * MICROFRAMES;
/// Bounds in ms of the interval at which an idle periodic schedule is looked at: a driver links a
/// queue head without telling the controller, right after other activity as a rule. The longest keeps an
/// idle tablet at two wake-ups a second, and is what a person may wait who opens a second device after
/// two seconds in which nothing happened.
const IDLE_LOOK: (u64, u64) = (1, 500);

/// Most root ports of a controller (EHCI 2.2.3).
const MOST_PORTS: usize = 15;

/// An EHCI controller.
#[derive(Debug)]
pub struct Ehci {
    pub(super) ports: Vec<RootPort>,
    /// Whether a companion controller shares the ports.
    pub(super) companion: bool,
    /// Whether structures have 64-bit buffer pointers (HCCPARAMS bit 0).
    pub(super) wide: bool,
    pub(super) usbcmd: UsbCmd,
    /// CTRLDSSEGMENT.
    pub(super) segment: u32,
    /// CONFIGFLAG.
    pub(super) configured: bool,
    pub(super) halted: bool,
    pub(super) clock: FrameClock,
    pub(super) interrupts: Interrupts,
    pub(super) asynchronous: AsyncSchedule,
    pub(super) periodic: PeriodicSchedule,
    /// Whether this is revision 1.1 (HCCPARAMS 19:16).
    pub(super) addendum: bool,
    /// USBCMD.IAAD: a ring that has not been answered.
    pub(super) doorbell: bool,
    /// The registers of the debug port, if there is one.
    pub(super) debug: Option<DebugPort>,
    waiting: Waiting,
    polling: Polling,
    /// The first microframe not yet carried out.
    next_microframe: Microframe,
    /// The microframe as of the last look at the clock.
    last_microframe: Microframe,
    turn: u64,
    /// When anything last happened that may lead to new work.
    last_activity: Time,
    /// When to look at the asynchronous schedule, and at the periodic one.
    next_look: Time,
    next_periodic: Time,
    /// Whether the guest lets the controller master the bus.
    has_dma: bool,
    wakeup: bool,
    frames: Frames,
    journal: Journal,
}

impl Ehci {
    /// A controller with these root ports, 1 to 15 of them, in the state after power-on. If a
    /// companion shares them, it serves all of them.
    ///
    /// A sixteenth port and those after it stay unconnected: HCSPARAMS has room for 15.
    pub fn new(ports: Vec<PortLink>) -> Self {
        let companion = ports.iter().any(PortLink::is_shared);
        let ports: Vec<_> = ports.into_iter().take(MOST_PORTS).map(RootPort::new).collect();
        let states = ports.iter().map(|port| port.state(companion)).collect();
        Self {
            ports,
            companion,
            wide: true,
            usbcmd: UsbCmd::at_reset(),
            segment: 0,
            configured: false,
            halted: true,
            clock: FrameClock::default(),
            interrupts: Interrupts::new(),
            asynchronous: AsyncSchedule::default(),
            periodic: PeriodicSchedule::default(),
            addendum: false,
            doorbell: false,
            debug: Some(DebugPort::default()),
            waiting: Waiting::default(),
            polling: Polling::default(),
            next_microframe: 0,
            last_microframe: 0,
            turn: 0,
            last_activity: Time::ZERO,
            next_look: Time::ZERO,
            next_periodic: Time::ZERO,
            has_dma: false,
            wakeup: false,
            frames: Frames::default(),
            journal: Journal::new("EHCI", ControllerState::Halted, states),
        }
    }

    /// Sets how often the asynchronous schedule is looked at.
    #[must_use]
    pub fn with_polling(mut self, polling: Polling) -> Self {
        self.polling = polling;
        self
    }

    /// Whether completions are reported as soon as the interrupt threshold allows (the default), or
    /// with the end of the frame. The latter is for measuring what the former gains.
    #[must_use]
    pub fn with_prompt_commit(mut self, prompt: bool) -> Self {
        self.interrupts.set_prompt(prompt);
        self
    }

    /// Whether the controller addresses 64 bits (HCCPARAMS bit 0, EHCI appendix B; the default). A
    /// guest then lays its structures out in their long form.
    #[must_use]
    pub fn with_64bit_addressing(mut self, wide: bool) -> Self {
        self.wide = wide;
        self
    }

    /// Whether the controller is one of revision 1.1, with the whole addendum: link power management
    /// (L1), a change bit and an enable for each port in USBSTS and USBINTR, a frame list of 32 entries,
    /// and the enables of a prefetch that is never needed. The default is 1.0, which drivers know best.
    #[must_use]
    pub fn with_addendum(mut self, addendum: bool) -> Self {
        self.addendum = addendum;
        if addendum {
            let ports = u32::try_from(self.ports.len()).unwrap_or(0);
            let bits = 1u32.wrapping_shl(ports).wrapping_sub(1);
            self.interrupts.add_ports(bits.wrapping_shl(usbsts::FIRST_PORT));
        }
        self
    }

    /// Whether root port 1 is a debug port (EHCI appendix C; the default): debuggers and early consoles
    /// reach the device there without a schedule.
    #[must_use]
    pub fn with_debug_port(mut self, debug: bool) -> Self {
        self.debug = debug.then(DebugPort::default);
        self
    }

    /// HCRESET and power-on (EHCI 2.3.1): everything stops, nothing is written back, and the ports go
    /// to the companion. Devices see no reset.
    pub(super) fn reset_registers(&mut self) {
        self.forget_transfers();
        self.usbcmd = UsbCmd::at_reset();
        self.segment = 0;
        self.configured = false;
        self.halted = true;
        self.clock = FrameClock::default();
        self.interrupts.reset();
        self.asynchronous = AsyncSchedule::default();
        self.periodic = PeriodicSchedule::default();
        self.doorbell = false;
        self.debug = self.debug.take().map(|_| DebugPort::default());
        self.ports.iter_mut().for_each(RootPort::reset);
    }

    /// USBCMD.R/S 0 to 1.
    pub(super) fn start(&mut self, now: Time) {
        self.halted = false;
        self.clock.start(now);
        self.next_microframe = self.clock.microframe(now);
        self.last_microframe = self.next_microframe;
        self.periodic.active = false;
    }

    /// USBCMD.R/S 1 to 0. The current transaction has always ended by now.
    pub(super) fn halt(&mut self, now: Time) {
        self.clock.stop(now);
        self.halted = true;
        self.periodic.active = false;
        self.forget_transfers();
    }

    fn forget_transfers(&mut self) {
        self.waiting.clear(&self.ports, Schedule::Asynchronous);
        self.waiting.clear(&self.ports, Schedule::Periodic);
    }

    /// USBCMD.ASE 1 to 0: nothing is sent any more, and nobody is waited for.
    pub(super) fn stop_asynchronous(&mut self) {
        self.waiting.clear(&self.ports, Schedule::Asynchronous);
    }

    /// USBSTS.ASS.
    pub(super) fn asynchronous_runs(&self) -> bool {
        !self.halted && self.usbcmd.asynchronous_enable()
    }

    /// The guest or a device did something that may lead to new work: look at once, and then often.
    pub(super) fn note_activity(&mut self, now: Time) {
        self.last_activity = now;
        self.next_look = now;
        // Work that a driver adds without regard to the isochronous threshold may be due two
        // microframes from now (EHCI 4.7.2.1).
        let soon = self.clock.begin(self.clock.microframe(now).saturating_add(2));
        self.next_periodic = self.next_periodic.min(soon);
    }

    /// What happened at the port with index `at`.
    pub(super) fn port_event(&mut self, at: usize, events: PortEvents) {
        if events.lost {
            self.waiting.clear_port(&self.ports, at);
        }
        if events.change {
            self.interrupts.raise(usbsts::PORT_CHANGE);
        }
        self.wakeup |= events.wakeup;
    }

    /// Looks at the sockets, and at what their devices have to say.
    fn poll_ports(&mut self, now: Time) {
        for at in 0..self.ports.len() {
            let Some(port) = self.ports.get_mut(at) else {
                break;
            };
            let events = port.poll(self.configured, now);
            let mut any = events.change || events.lost;
            for endpoint in port.take_ready() {
                any |= self.waiting.ready(at, endpoint);
            }
            self.port_event(at, events);
            if any {
                self.note_activity(now);
            }
        }
    }

    /// USBSTS 31:16: which ports have a change to tell of (EHCI 1.1).
    fn show_port_changes(&mut self) {
        if !self.addendum {
            return;
        }
        let mut bits = 0u32;
        if self.usbcmd.per_port_change_enable() {
            for port in self.ports.iter().rev() {
                bits = bits.wrapping_shl(1) | u32::from(port.has_news());
            }
        }
        self.interrupts.show_ports(bits.wrapping_shl(usbsts::FIRST_PORT));
    }

    /// Brings everything that is a matter of time up to `now`: FRINDEX, the periodic schedule, reports.
    /// Every call from outside begins with it, so nothing is ever seen half a frame old.
    pub(super) fn catch_up<M: GuestMemory + ?Sized>(&mut self, context: &Context<'_, M>) {
        self.has_dma = context.dma().is_some();
        self.turn = self.turn.wrapping_add(1);
        self.poll_ports(context.now);
        self.show_port_changes();
        if !self.halted
            && let Err(error) = self.pass_time(context)
        {
            self.host_system_error(context.now, error);
        }
        self.report(context);
    }

    fn pass_time<M: GuestMemory + ?Sized>(
        &mut self,
        context: &Context<'_, M>,
    ) -> Result<(), DmaError> {
        let now = self.clock.microframe(context.now);
        if now < self.next_microframe {
            return Ok(());
        }
        let rollover = self.usbcmd.rollover_bit();
        let last = std::mem::replace(&mut self.last_microframe, now);
        if now.wrapping_shr(rollover) != last.wrapping_shr(rollover) {
            self.interrupts.raise(usbsts::FRAME_LIST_ROLLOVER);
        }
        let mut at = self.next_microframe.max(now.saturating_sub(CATCH_UP - 1));
        if self.periodic.active {
            // Nothing was due before the look that was asked for.
            let due = self.clock.microframe(self.next_periodic).max(self.next_microframe);
            let skipped = at.saturating_sub(due);
            self.frames.skipped = self.frames.skipped.saturating_add(skipped);
        }
        let interrupted = std::mem::replace(&mut self.next_microframe, now.saturating_add(1));
        let mut worked = false;
        let mut budget = Budget::turn();
        if at > interrupted
            && self.periodic.active
            && let Some(dma) = context.dma()
        {
            let last = interrupted.saturating_add(SPLIT_TAIL).min(at).saturating_sub(1);
            let periodic = self.periodic;
            let mut engine = self.engine(dma, context.now);
            periodic.complete_splits(&mut engine, interrupted, last, &mut budget)?;
        }
        // Frame by frame: PSE counts at frame boundaries (EHCI 4.6).
        while at <= now {
            if at.is_multiple_of(MICROFRAMES) {
                self.periodic.active = self.usbcmd.periodic_enable();
                self.periodic.entries = self.usbcmd.frame_list_entries();
            }
            let to = now.min(at | (MICROFRAMES - 1));
            if self.periodic.active
                && let Some(dma) = context.dma()
            {
                let periodic = self.periodic;
                let mut engine = self.engine(dma, context.now);
                worked |= periodic.run(&mut engine, at, to, &mut budget)?;
            }
            at = to.saturating_add(1);
        }
        let Frames { run, skipped } = self.frames;
        self.frames = Frames {
            run: run.saturating_add(budget.ran()),
            skipped: skipped.saturating_add(budget.missed()),
        };
        if worked {
            self.next_periodic = context.now;
        }
        Ok(())
    }

    fn engine<'a, M: GuestMemory + ?Sized>(
        &'a mut self,
        dma: Dma<'a, M>,
        now: Time,
    ) -> Engine<'a, M> {
        Engine {
            memory: Structures {
                dma,
                segment: u64::from(self.segment).wrapping_shl(32),
                wide: self.wide,
            },
            ports: &self.ports,
            waiting: &mut self.waiting,
            interrupts: &mut self.interrupts,
            now,
            microframe: self.clock.microframe(now),
            turn: self.turn,
        }
    }

    /// Carries out the asynchronous schedule.
    fn run_asynchronous<M: GuestMemory + ?Sized>(&mut self, context: &Context<'_, M>) {
        let Some(dma) = context.dma().filter(|_| self.asynchronous_runs()) else {
            return;
        };
        let now = context.now;
        let mut asynchronous = self.asynchronous;
        let park = self.usbcmd.parked();
        let turn = asynchronous.run(&mut self.engine(dma, now), park);
        self.asynchronous = asynchronous;
        match turn {
            Ok(turn) => {
                if turn.progress {
                    self.note_activity(now);
                }
                if !turn.more {
                    self.next_look = self.polling.next(now, self.last_activity, turn.ring);
                    let microframe = self.clock.microframe(now);
                    let retry = self.waiting.next_retry(Schedule::Asynchronous, microframe);
                    if let Some(retry) = retry {
                        self.next_look = self.next_look.min(self.clock.begin(retry));
                    }
                }
            }
            Err(error) => self.host_system_error(now, error),
        }
    }

    /// Looks when the periodic schedule has work next.
    fn look_ahead<M: GuestMemory + ?Sized>(&mut self, context: &Context<'_, M>) {
        let now = context.now;
        let Some(dma) = context.dma().filter(|_| self.periodic.active && !self.halted) else {
            return;
        };
        if now < self.next_periodic {
            return;
        }
        let (periodic, from) = (self.periodic, self.next_microframe);
        let next = periodic.look_ahead(&mut self.engine(dma, now), from);
        let (shortest, longest) = IDLE_LOOK;
        let quiet = now.nanos_since(self.last_activity) / 4;
        let idle = now.after_nanos(
            quiet.clamp(shortest.saturating_mul(1_000_000), longest.saturating_mul(1_000_000)),
        );
        self.next_periodic = match next {
            Next::At(microframe) => self.clock.begin(microframe).min(idle),
            Next::Never => idle,
        };
    }

    /// Answers the doorbell and reports events, if the threshold allows.
    pub(super) fn report<M: GuestMemory + ?Sized>(&mut self, context: &Context<'_, M>) {
        let now = context.now;
        if !self.doorbell && !self.interrupts.holds() {
            return;
        }
        let frame = self.clock.microframe(now) / MICROFRAMES;
        let frame_end = self.clock.begin(frame.saturating_add(1).saturating_mul(MICROFRAMES));
        if !self.interrupts.may_report(now, frame_end) {
            return;
        }
        if self.doorbell {
            self.doorbell = false;
            let mut asynchronous = self.asynchronous;
            match context.dma().filter(|_| self.asynchronous_runs()) {
                Some(dma) => {
                    let walk = asynchronous.advance(&mut self.engine(dma, now));
                    self.asynchronous = asynchronous;
                    if let Err(error) = walk {
                        self.host_system_error(now, error);
                    }
                }
                None => self.stop_asynchronous(),
            }
            self.interrupts.post(usbsts::ASYNC_ADVANCE);
        }
        self.interrupts.report(now, self.usbcmd.interrupt_threshold());
    }

    /// A structure or a buffer was not in guest RAM: the controller stops (EHCI 4.15.2.4).
    fn host_system_error(&mut self, now: Time, error: DmaError) {
        self.journal.warn(
            now,
            format_args!("host system error, the schedule leads out of guest RAM: {error}"),
        );
        self.usbcmd.set_run(false);
        self.halt(now);
        self.interrupts.raise(usbsts::HOST_SYSTEM_ERROR);
    }

    /// Tells the log what has changed.
    fn note_state(&mut self, now: Time) {
        if Journal::is_read() {
            let state =
                if self.halted { ControllerState::Halted } else { ControllerState::Running };
            let companion = self.companion;
            self.journal.note(now, state, self.ports.iter().map(|port| port.state(companion)));
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let report =
            (self.doorbell || self.interrupts.holds()).then(|| self.interrupts.next_report());
        let running = !self.halted;
        let rollover = (running && self.interrupts.enable() & usbsts::FRAME_LIST_ROLLOVER != 0)
            .then(|| {
                let bit = self.usbcmd.rollover_bit();
                let next = self.last_microframe.wrapping_shr(bit).saturating_add(1);
                self.clock.begin(next.wrapping_shl(bit))
            });
        let works = running && self.has_dma;
        let asynchronous = (works && self.usbcmd.asynchronous_enable()).then_some(self.next_look);
        let periodic = match (self.usbcmd.periodic_enable(), self.periodic.active) {
            _ if !works => None,
            (true, true) => Some(self.next_periodic),
            (false, false) => None,
            _ => {
                let frame = self.next_microframe.next_multiple_of(MICROFRAMES);
                Some(self.clock.begin(frame))
            }
        };
        let resume = self.ports.iter().filter_map(RootPort::resume_ends).min();
        [report, rollover, asynchronous, periodic, resume].into_iter().flatten().min()
    }
}

impl<M: GuestMemory + ?Sized> HostController<M> for Ehci {
    fn window(&self) -> u64 {
        WINDOW
    }

    fn read(&mut self, context: &Context<'_, M>, offset: u64, data: &mut [u8]) {
        self.catch_up(context);
        self.note_activity(context.now);
        self.read_registers(offset, data, context.now);
        self.note_state(context.now);
    }

    fn write(&mut self, context: &Context<'_, M>, offset: u64, data: &[u8]) {
        self.catch_up(context);
        self.write_registers(offset, data, context.now);
        self.note_activity(context.now);
        // The write may have started the clock, rung the doorbell or uncovered an event.
        self.catch_up(context);
        self.note_state(context.now);
    }

    fn run(&mut self, context: &Context<'_, M>) {
        self.catch_up(context);
        self.run_asynchronous(context);
        self.report(context);
        self.look_ahead(context);
        self.note_state(context.now);
    }

    fn deadline(&self) -> Option<Time> {
        self.next_deadline()
    }

    fn interrupt(&mut self) -> Interrupt {
        self.interrupts.output()
    }

    fn take_wakeup(&mut self) -> bool {
        std::mem::take(&mut self.wakeup)
    }

    fn debug_registers(&self) -> Option<u16> {
        self.debug.as_ref().and_then(|_| u16::try_from(offset::DEBUG).ok())
    }

    fn frames(&self) -> Frames {
        self.frames
    }

    fn reset(&mut self, now: Time) {
        self.reset_registers();
        self.note_state(now);
    }
}
