//! The controller as a whole: what happens on a register access, when time passes, and when a device
//! has something to say.

mod saved;

use vm_memory::GuestMemory;

use super::budget::Budget;
use super::done_queue::DoneQueue;
use super::frame::{CATCH_UP_FRAMES, FrameClock, Pacing};
use super::isochronous::{Attendance, IsochronousLosses};
use super::legacy::Legacy;
use super::lists::{self, List, Service, ServiceRatio};
use super::registers::Registers;
use super::root_hub::{OverCurrentProtection, PowerSwitching, RootHub};
use super::spec::{Hcfs, Interrupts, hcca};
use super::transaction::{Bus, LONGEST_INTERVAL};
use super::{ListKind, Unrecoverable, periodic};
use crate::controller::{Context, Frames, HostController, Interrupt};
use crate::dma::{Dma, Page};
use crate::journal::{ControllerState, Journal};
use crate::time::Time;
use crate::topology::PortLink;

/// Size of the register window (OHCI 1.0a, appendix A: at least 4 KiB).
const WINDOW: u64 = 0x1000;

/// Frames between two updates of HccaFrameNumber while nobody waits for a frame. Linux declares a
/// controller dead whose number stands still for 275 ms; any register access also updates it.
const IDLE_FRAMES: u64 = 128;

/// The same while the periodic lists are enabled and somebody did something lately. A driver may queue a
/// TD for a periodic endpoint without a register write; nearly all follow an interrupt, after which every
/// frame is looked at for a while. The longer nothing happens, the less it is to be expected: a look is
/// put off by an eighth of the time that has passed quietly, up to [`IDLE_FRAMES`].
const IDLE_PERIODIC_FRAMES: u64 = 16;
const QUIET_SHARE: u64 = 8;

/// The same while a device has isochronous endpoints selected: a driver reads the frame number in
/// memory to schedule its first packets. Linux rounds eight frames from there down to the endpoint's
/// interval, which may leave it one.
const STREAM_FRAMES: u64 = 1;

/// How often the lists are run for one doorbell when a device, served at one endpoint, has something to
/// say at another at once: a request and its answer are two, and the driver hears of both together.
/// More than a few would keep the guest in its register write.
const REPARTEES: usize = 4;

/// An OHCI host controller.
///
/// ```
/// use vm_memory::{GuestAddress, GuestMemoryMmap};
/// use vm_usb::controller::{Context, HostController};
/// use vm_usb::ohci::Ohci;
/// use vm_usb::time::Time;
/// use vm_usb::topology::{Host, Port};
///
/// let port = Port::classic();
/// let mut ohci = Ohci::new(vec![port.link(Host::Classic)]);
/// let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
/// let mut revision = [0; 4];
/// ohci.read(&Context::new(&memory, Time::ZERO), 0, &mut revision);
/// assert_eq!(u32::from_le_bytes(revision), 0x10);
/// ```
#[derive(Debug)]
pub struct Ohci {
    pub(super) registers: Registers,
    pub(super) control: List,
    pub(super) bulk: List,
    ratio: ServiceRatio,
    pub(super) done: DoneQueue,
    pub(super) hub: RootHub,
    pub(super) clock: FrameClock,
    budget: Budget,
    attendance: Attendance,
    /// Frames so far, for ages; unlike HcFmNumber it does not wrap soon.
    frames: u32,
    /// The frame until which every frame's periodic list is looked at.
    attentive_until: u32,
    /// The frame until which frames keep their length for isochronous transfers.
    streaming_until: u32,
    /// The periodic list of the frame under way was not finished.
    overrun: bool,
    /// A doorbell rang: control and bulk lists are to be run.
    pub(super) rung: bool,
    /// UnrecoverableError: nothing but reset helps.
    dead: bool,
    /// The function may master the bus, as far as is known.
    mastering: bool,
    line: Interrupt,
    /// Resume signalling that may wake the system.
    wakeup: bool,
    /// The legacy keyboard registers, with the pin for system management interrupts.
    pub(super) legacy: Option<Legacy>,
    /// Frames run and skipped, for statistics.
    counts: Frames,
    journal: Journal,
}

impl Ohci {
    /// A controller whose root hub has the given 1 to 15 ports, in order; more are ignored.
    pub fn new(ports: Vec<PortLink>) -> Self {
        let hub = RootHub::new(ports);
        let states = hub.states().collect();
        Self {
            registers: Registers::default(),
            control: List::new(ListKind::Control),
            bulk: List::new(ListKind::Bulk),
            ratio: ServiceRatio::default(),
            done: DoneQueue::default(),
            hub,
            clock: FrameClock::new(Pacing::default()),
            budget: Budget::new(Pacing::default()),
            attendance: Attendance::default(),
            frames: 0,
            attentive_until: 0,
            streaming_until: 0,
            overrun: false,
            rung: false,
            dead: false,
            mastering: true,
            line: Interrupt::default(),
            wakeup: false,
            legacy: None,
            counts: Frames::default(),
            journal: Journal::new("OHCI", ControllerState::Reset, states),
        }
    }

    /// The same controller with another frame pacing.
    #[must_use]
    pub fn with_pacing(mut self, pacing: Pacing) -> Self {
        self.clock = FrameClock::new(pacing);
        self
    }

    /// The same controller whose root hub comes out of reset with this power switching; its ports are
    /// powered, or not, as after reset.
    #[must_use]
    pub fn with_power_switching(mut self, switching: PowerSwitching) -> Self {
        self.hub.set_power_modes(Some(switching), None);
        self.hub.reset();
        self
    }

    /// The same controller whose root hub comes out of reset with this over-current protection.
    #[must_use]
    pub fn with_over_current_protection(mut self, protection: OverCurrentProtection) -> Self {
        self.hub.set_power_modes(None, Some(protection));
        self.hub.reset();
        self
    }

    /// Isochronous packets that were lost since power-on.
    pub fn isochronous_losses(&self) -> IsochronousLosses {
        self.attendance.losses
    }

    /// Whether frames and lists run.
    fn is_running(&self) -> bool {
        self.registers.control.hcfs() == Hcfs::Operational && !self.dead
    }

    /// Brings everything up to `now`: ports, devices, frames.
    fn catch_up<M: GuestMemory + ?Sized>(&mut self, context: &Context<'_, M>) {
        let now = context.now;
        let dma = context.dma();
        self.mastering = dma.is_some();
        self.hear(now);
        if !self.is_running() {
            return;
        }
        let due = self.clock.due(now);
        let Some(dma) = dma else {
            self.skip_frames(due);
            return;
        };
        let skipped = due.saturating_sub(CATCH_UP_FRAMES);
        self.skip_frames(skipped);
        for _ in skipped..due {
            let overflow = self.clock.skip(1, self.registers.fm_interval);
            self.frame(dma, overflow, now);
        }
    }

    /// Takes in what ports and devices have to say.
    fn hear(&mut self, now: Time) {
        let news = self.hub.poll(now, self.registers.control.hcfs());
        self.registers.raise(Interrupts::new().with_rhsc(news.changed).with_rd(news.resume));
        if news.bus_resumes {
            self.wakeup |= self.registers.control.rwe();
            self.registers.control.set_hcfs(Hcfs::Resume);
            self.hub.set_state(Hcfs::Resume);
        }
        if news.ready {
            self.rung = true;
            self.pay_attention();
        }
    }

    /// Time passed in which no frame was run: the host was late, or the function may not use the bus.
    fn skip_frames(&mut self, frames: u64) {
        if frames != 0 {
            let fno = self.clock.skip(frames, self.registers.fm_interval);
            self.registers.raise(Interrupts::new().with_fno(fno));
            self.done.skip(frames);
            self.counts.skipped = self.counts.skipped.saturating_add(frames);
            self.attendance.skip();
            self.frames = self.frames.wrapping_add(u32::try_from(frames).unwrap_or(u32::MAX));
        }
    }

    /// Brings everything up to date for a register access. If the frame may end early by now it does:
    /// a driver in its handler sees that in the register it reads next and needs no other interrupt.
    fn accessed<M: GuestMemory + ?Sized>(&mut self, context: &Context<'_, M>) {
        self.catch_up(context);
        self.clock.is_accessed();
        self.hasten(context);
    }

    /// Ends the frame early if the driver only waits for that (Eager).
    fn hasten<M: GuestMemory + ?Sized>(&mut self, context: &Context<'_, M>) {
        if let (Some(at), Some(dma)) = (self.early_boundary(), context.dma())
            && at <= context.now
        {
            let overflow = self.clock.end_early(context.now, self.registers.fm_interval);
            self.frame(dma, overflow, context.now);
        }
    }

    /// A frame begins: the steps of OHCI 1.0a, 4.4.1 and 6.4.
    fn frame<M: GuestMemory + ?Sized>(&mut self, dma: Dma<'_, M>, overflow: bool, now: Time) {
        if self.dead {
            return;
        }
        self.frames = self.frames.wrapping_add(1);
        self.counts.run = self.counts.run.saturating_add(1);
        self.attendance.attend();
        self.budget = Budget::new(self.clock.pacing());
        self.rung = false;
        let result = self.begin_frame(dma, overflow);
        let result = result.and_then(|()| self.run_periodic(dma, now));
        let result = result.and_then(|()| self.run_lists(dma, true, now));
        let result = result.and_then(|()| self.hand_over_promptly(dma));
        self.check(result, now);
    }

    fn begin_frame<M: GuestMemory + ?Sized>(
        &mut self,
        dma: Dma<'_, M>,
        overflow: bool,
    ) -> Result<(), Unrecoverable> {
        let frame_number = self.hcca(hcca::FRAME_NUMBER);
        // The pad beside the number is written as zero with it.
        dma.store(frame_number, self.clock.number().into())?;
        let so = std::mem::take(&mut self.overrun);
        self.registers.soc = self.registers.soc.wrapping_add(so.into()) & 3;
        self.registers.raise(Interrupts::new().with_sf(true).with_fno(overflow).with_so(so));
        self.hand_over(dma, DoneQueue::take_due)?;
        self.done.end_frame();
        Ok(())
    }

    fn hcca(&self, offset: u64) -> u64 {
        u64::from(self.registers.hcca).wrapping_add(offset)
    }

    /// Gives the driver the done queue that `take` finds due, if the driver has taken the last one.
    fn hand_over<M: GuestMemory + ?Sized>(
        &mut self,
        dma: Dma<'_, M>,
        take: impl FnOnce(&mut DoneQueue) -> Option<u32>,
    ) -> Result<(), Unrecoverable> {
        if self.registers.status.wdh() {
            self.done.hold();
            return Ok(());
        }
        if let Some(head) = take(&mut self.done) {
            // Bit 0 tells the driver that there is more to see than the queue.
            let more = self.registers.status.into_bits()
                & self.registers.mask.into_bits()
                & Interrupts::HOST;
            dma.store(self.hcca(hcca::DONE_HEAD), head | u32::from(more != 0))?;
            self.registers.raise(Interrupts::new().with_wdh(true));
        }
        Ok(())
    }

    /// The same in the middle of a frame. The specification has it where frames meet (4.4.2.3), but a
    /// driver cannot tell, as long as the queue waits for WDH to be cleared; and the ones that unlink an
    /// endpoint at once need one frame for a transfer then, not two.
    fn hand_over_promptly<M: GuestMemory + ?Sized>(
        &mut self,
        dma: Dma<'_, M>,
    ) -> Result<(), Unrecoverable> {
        // A driver that is in its handler for something else hears of the queue when it acknowledges
        // that, and so of all that it has queued in between.
        let busy = self.registers.interrupts() && !self.registers.status.wdh();
        match self.clock.pacing() {
            Pacing::Wire => Ok(()),
            _ if busy => Ok(()),
            Pacing::RealTime | Pacing::Eager => self.hand_over(dma, DoneQueue::take_promptly),
        }
    }

    fn run_periodic<M: GuestMemory + ?Sized>(
        &mut self,
        dma: Dma<'_, M>,
        now: Time,
    ) -> Result<(), Unrecoverable> {
        let control = self.registers.control;
        let frames = self.frames;
        let (mut bus, _) = self.bus(dma, now);
        bus.recall(
            |list| match list {
                ListKind::Control => control.cle(),
                ListKind::Bulk => control.ble(),
                ListKind::Periodic => control.ple(),
            },
            frames,
        );
        if control.ple() {
            let (hcca, number) = (self.registers.hcca, self.clock.number());
            let (mut bus, _) = self.bus(dma, now);
            let served = periodic::run(&mut bus, hcca, number, frames, control.ie())?;
            self.overrun = served.overrun;
            if served.isochronous {
                self.streaming_until = frames.wrapping_add(LONGEST_INTERVAL);
            }
            if served.active || served.isochronous {
                self.pay_attention();
            }
        }
        Ok(())
    }

    /// Runs the control and the bulk list.
    fn run_lists<M: GuestMemory + ?Sized>(
        &mut self,
        dma: Dma<'_, M>,
        begins: bool,
        now: Time,
    ) -> Result<(), Unrecoverable> {
        let control = self.registers.control;
        let service = Service { control: control.cle(), bulk: control.ble(), cbsr: control.cbsr() };
        let before = self.done.head();
        let (mut bus, lists) = self.bus(dma, now);
        if begins {
            lists.control.begin_frame();
            lists.bulk.begin_frame();
        }
        let result = lists::run(&mut bus, lists.control, lists.bulk, lists.ratio, service);
        if self.done.head() != before {
            self.clock.may_wait(now, false);
            self.pay_attention();
        }
        result
    }

    fn bus<'a, 'm, M: GuestMemory + ?Sized>(
        &'a mut self,
        dma: Dma<'m, M>,
        now: Time,
    ) -> (Bus<'a, 'm, M>, Lists<'a>) {
        (
            Bus {
                dma,
                eds: Page::unknown(),
                hub: &mut self.hub,
                done: &mut self.done,
                budget: &mut self.budget,
                attendance: &mut self.attendance,
                now,
            },
            Lists { control: &mut self.control, bulk: &mut self.bulk, ratio: &mut self.ratio },
        )
    }

    /// Acts on what a register write or a device announced, now rather than in the next frame.
    fn answer_doorbell<M: GuestMemory + ?Sized>(&mut self, context: &Context<'_, M>) {
        if !self.is_running() || !self.clock.in_frame() {
            return;
        }
        let Some(dma) = context.dma() else { return };
        let mut result = Ok(());
        for _ in 0..REPARTEES {
            if result.is_err() || !std::mem::take(&mut self.rung) {
                break;
            }
            self.budget.limit_to(self.clock.thousandths_left(context.now));
            result = self.run_lists(dma, false, context.now);
            self.hear(context.now);
        }
        let result = result.and_then(|()| self.hand_over_promptly(dma));
        self.check(result, context.now);
    }

    /// UnrecoverableError stops all processing (6.5.9); registers go on working.
    fn check(&mut self, result: Result<(), Unrecoverable>, now: Time) {
        let Err(error) = result else { return };
        self.dead = true;
        self.registers.raise(Interrupts::new().with_ue(true));
        self.stop(now);
        self.journal.warn(now, format_args!("stopped until it is reset: {error}"));
    }

    /// Tells the log what has changed.
    fn note_state(&mut self, now: Time) {
        if Journal::is_read() {
            let state = match self.registers.control.hcfs() {
                _ if self.dead => ControllerState::Halted,
                Hcfs::Reset => ControllerState::Reset,
                Hcfs::Resume => ControllerState::Resuming,
                Hcfs::Operational => ControllerState::Running,
                Hcfs::Suspend => ControllerState::Suspended,
            };
            self.journal.note(now, state, self.hub.states());
        }
    }

    /// For a while, every frame's periodic list is looked at.
    pub(super) fn pay_attention(&mut self) {
        self.attentive_until = self.frames.wrapping_add(LONGEST_INTERVAL);
    }

    /// Frames and lists stop: nothing of what devices were asked may reach memory any more.
    pub(super) fn stop(&mut self, now: Time) {
        self.clock.stop(now, self.registers.fm_interval);
        self.hub.retain_flights(|_| false);
    }

    /// The driver moved the bus to `hcfs`.
    pub(super) fn set_state(&mut self, hcfs: Hcfs, now: Time) {
        let before = self.registers.control.hcfs();
        if before == hcfs {
            return;
        }
        self.registers.control.set_hcfs(hcfs);
        if before == Hcfs::Operational {
            self.stop(now);
        }
        if hcfs == Hcfs::Operational && !self.dead {
            self.clock.start(now, self.registers.fm_interval);
            self.done.start();
            self.attendance.start();
        }
        self.hub.set_state(hcfs);
    }

    /// HostControllerReset (7.1.3): all but the root hub, interrupt routing and remote wakeup
    /// connection; the bus is not reset.
    pub(super) fn software_reset(&mut self, now: Time) {
        let control = self.registers.control;
        self.stop(now);
        self.registers = Registers::default();
        self.registers.control.set_hcfs(Hcfs::Suspend);
        self.registers.control.set_ir(control.ir());
        self.registers.control.set_rwc(control.rwc());
        self.control = List::new(ListKind::Control);
        self.bulk = List::new(ListKind::Bulk);
        self.ratio = ServiceRatio::default();
        self.done = DoneQueue::default();
        self.clock.reset();
        self.overrun = false;
        self.rung = false;
        self.dead = false;
    }

    /// Follows the interrupt condition; a rise is an event of its own.
    fn update_line(&mut self) {
        let asserted = self.registers.interrupts();
        self.line.event |= asserted && !self.line.asserted;
        self.line.asserted = asserted;
    }

    /// When an early boundary is allowed and somebody waits for it.
    fn early_boundary(&self) -> Option<Time> {
        let waits = self.registers.waits_for(Interrupts::new().with_sf(true))
            || (self.done.is_due() && !self.registers.status.wdh());
        let streams = self.is_before(self.streaming_until);
        self.clock.early_boundary().filter(|_| waits && !streams && self.is_running())
    }

    /// Whether a frame at most [`LONGEST_INTERVAL`] ahead is still to come.
    fn is_before(&self, frame: u32) -> bool {
        (1..=LONGEST_INTERVAL).contains(&frame.wrapping_sub(self.frames))
    }

    /// Whether the next frame end matters to somebody.
    fn wants_frame(&self) -> bool {
        let control = self.registers.control;
        self.clock.awaits_first()
            || self.registers.waits_for(Interrupts::new().with_sf(true))
            || self.overrun
            || (self.done.is_waiting() && !self.registers.status.wdh())
            || (control.cle() && self.control.wants_frame())
            || (control.ble() && self.bulk.wants_frame())
            || (control.ple() && self.is_before(self.attentive_until))
            || self.hub.has_flights()
    }

    /// Frames after which the periodic lists must be looked at although nobody did anything.
    fn periodic_look(&self) -> u64 {
        let quiet = u64::from(self.frames.wrapping_sub(self.attentive_until));
        (quiet / QUIET_SHARE).clamp(IDLE_PERIODIC_FRAMES, IDLE_FRAMES)
    }

    /// When the next frame must begin.
    fn frame_deadline(&self) -> Option<Time> {
        if !self.is_running() || !self.mastering {
            return None;
        }
        let mut frames = match () {
            () if self.wants_frame() => 0,
            () if self.registers.control.ple() => self.periodic_look().saturating_sub(1),
            () => IDLE_FRAMES.saturating_sub(1),
        };
        if self.hub.may_stream() {
            frames = frames.min(STREAM_FRAMES.saturating_sub(1));
        }
        if self.registers.waits_for(Interrupts::new().with_fno(true)) {
            frames = frames.min(self.clock.until_overflow());
        }
        let boundary = self.clock.boundary(frames);
        self.early_boundary().into_iter().chain(boundary).min()
    }
}

/// The lists, beside the bus that serves them.
struct Lists<'a> {
    control: &'a mut List,
    bulk: &'a mut List,
    ratio: &'a mut ServiceRatio,
}

impl<M: GuestMemory + ?Sized> HostController<M> for Ohci {
    fn window(&self) -> u64 {
        WINDOW
    }

    fn read(&mut self, context: &Context<'_, M>, offset: u64, data: &mut [u8]) {
        self.accessed(context);
        self.answer_doorbell(context);
        self.read_window(context.now, offset, data);
        self.clock.was_read(context.now);
        self.update_line();
        self.note_state(context.now);
    }

    fn write(&mut self, context: &Context<'_, M>, offset: u64, data: &[u8]) {
        self.accessed(context);
        self.update_line();
        self.write_window(context.now, offset, data);
        self.update_line();
        self.catch_up(context);
        self.answer_doorbell(context);
        self.update_line();
        self.note_state(context.now);
    }

    fn run(&mut self, context: &Context<'_, M>) {
        self.catch_up(context);
        self.hasten(context);
        self.answer_doorbell(context);
        self.update_line();
        self.note_state(context.now);
    }

    fn deadline(&self) -> Option<Time> {
        self.frame_deadline().into_iter().chain(self.hub.deadline()).min()
    }

    fn interrupt(&mut self) -> Interrupt {
        let line = self.line;
        self.line.event = false;
        line
    }

    fn take_wakeup(&mut self) -> bool {
        std::mem::take(&mut self.wakeup)
    }

    fn frames(&self) -> Frames {
        self.counts
    }

    fn reset(&mut self, now: Time) {
        self.software_reset(now);
        self.registers = Registers::default();
        self.hub.reset();
        self.attendance = Attendance::default();
        self.legacy = self.legacy.map(Legacy::after_reset);
        self.line = Interrupt::default();
        self.wakeup = false;
        self.mastering = true;
        self.note_state(now);
    }
}
