//! Whoever owns the controller: runs it when it must be run and never otherwise, lets the world happen
//! to it between any two calls, and holds every call to the rules.

use std::panic::resume_unwind;
use std::sync::Arc;

use vm_memory::GuestMemoryMmap;
use vm_usb::controller::{Context, HostController, Interrupt};
use vm_usb::snapshot::Snapshot;
use vm_usb::time::Time;

use crate::driver::lent::Lent;
use crate::driver::recorder::{Access, Recorder};
use crate::model::Model;
use crate::world::{Bell, Happening, Shared};

/// The driver is gone in the middle of what it did; this is what unwinds it.
pub struct Crash;

/// Most turns in a row that find nothing to do at one moment and still ask for another.
const IDLE_TURNS: u32 = 4;
/// The registers are compared with the interrupt line after one in so many calls.
const LOOK: u64 = 6;
/// One in so many turns is one that nobody asked for.
const NEEDLESS: u64 = 16;

/// A controller with its owner.
pub struct Owner<C> {
    inner: C,
    shared: Shared,
    bell: Arc<Bell>,
    memory: GuestMemoryMmap,
    lent: Lent,
    /// The controller's clock less the guest's, in nanoseconds.
    ahead: i64,
    asserted: bool,
    event: bool,
    /// A message that the driver has not followed yet, if it hears messages only.
    messages: bool,
    message: bool,
    idle: (Time, u32),
}

impl<C: Model> Owner<C> {
    pub fn new(shared: Shared, memory: GuestMemoryMmap, lent: Lent) -> Self {
        let mut world = shared.lock();
        let (inner, bell, messages) = (world.build(), world.bell.clone(), world.plan.messages);
        drop(world);
        Self {
            inner,
            shared,
            bell,
            memory,
            lent,
            ahead: 0,
            asserted: false,
            event: false,
            messages,
            message: false,
            idle: (Time::ZERO, 0),
        }
    }

    fn clock(&self, guest: Time) -> Time {
        Time::from_nanos(guest.as_nanos().saturating_add_signed(self.ahead))
    }

    /// Lets the world happen.
    fn happen(&mut self, guest: Time) {
        let now = self.clock(guest);
        let mut world = self.shared.lock();
        match world.before::<C>(now) {
            Happening::Nothing => {}
            Happening::Restart => {
                // The new host's clock may be young or old.
                let scale = world.dice.below(44);
                let clock = Time::from_nanos(world.dice.below(1 << (10 + scale)));
                world.tell(|| format!("restart: {now:?} becomes {clock:?}"));
                world.restart(&mut self.inner, now, clock);
                self.ahead = clock.as_nanos() as i64 - guest.as_nanos() as i64;
            }
            Happening::Pause(nanos) => {
                world.count.pauses += 1;
                world.tell(|| format!("pause of {nanos} ns"));
                self.ahead = self.ahead.saturating_add_unsigned(nanos);
            }
            Happening::Crash => {
                world.count.crashes += 1;
                world.mortal = false;
                world.tell(|| "crash".into());
                drop(world);
                resume_unwind(Box::new(Crash));
            }
        }
    }

    /// One call of the controller, held to the rules; says what it accessed.
    fn call<R>(
        &mut self,
        dma: bool,
        guest: Time,
        action: impl FnOnce(&mut C, &Context<'_, Recorder<'_>>) -> R,
    ) -> (R, Vec<Access>) {
        let now = self.clock(guest);
        let recorder = Recorder::new(&self.memory);
        let context = if dma { Context::new(&recorder, now) } else { Context::without_dma(now) };
        let result = action(&mut self.inner, &context);
        let log = recorder.into_log();
        for access in log.iter().filter(|access| access.write && access.len != 0) {
            let lent = self.lent.covers(access.address, access.len);
            assert!(lent, "{access:x?} is in memory that is the guest's");
        }
        assert!(log.len() <= C::MOST_ACCESSES, "{} accesses to memory in one call", log.len());
        let Interrupt { asserted, event } =
            HostController::<GuestMemoryMmap>::interrupt(&mut self.inner);
        self.asserted = asserted;
        self.event |= event;
        self.message |= event;
        (result, log)
    }

    /// Another processor of the guest looks at the registers: the line is what they say.
    fn look(&mut self, dma: bool, guest: Time) {
        let mut read = |offset| {
            let mut data = [0; 4];
            self.call(dma, guest, |inner, context| inner.read(context, offset, &mut data));
            u32::from_le_bytes(data)
        };
        let condition = C::condition(&mut read);
        assert_eq!(self.asserted, condition, "the interrupt line is what the registers say");
    }

    /// A call, with the world before it and a look after it.
    fn turn<R>(
        &mut self,
        context: &Context<'_, GuestMemoryMmap>,
        action: impl FnOnce(&mut C, &Context<'_, Recorder<'_>>) -> R,
    ) -> (R, Vec<Access>) {
        let (dma, guest) = (context.dma().is_some(), context.now);
        let (result, log) = self.call(dma, guest, action);
        let now = self.clock(guest);
        let mut world = self.shared.lock();
        world.after(now);
        world.note(log.len() as u64);
        world.tell(|| {
            let deadline = HostController::<GuestMemoryMmap>::deadline(&self.inner);
            let (line, finish) = (self.asserted, world.deadline());
            format!("{now:?}: {} accesses, line {line}, next {deadline:?}, {finish:?}", log.len())
        });
        world.count.most_accesses = world.count.most_accesses.max(log.len());
        let look = world.dice.below(LOOK) == 0;
        drop(world);
        if look {
            self.look(dma, guest);
        }
        (result, log)
    }

    fn deadline_of_all(&self) -> Option<Time> {
        let own = HostController::<GuestMemoryMmap>::deadline(&self.inner);
        own.into_iter().chain(self.shared.lock().deadline()).min()
    }
}

/// The owner saves and restores the controller itself.
impl<C> Snapshot for Owner<C> {}

impl<C: Model> HostController<GuestMemoryMmap> for Owner<C> {
    fn window(&self) -> u64 {
        HostController::<GuestMemoryMmap>::window(&self.inner)
    }

    fn read(&mut self, context: &Context<'_, GuestMemoryMmap>, offset: u64, data: &mut [u8]) {
        self.happen(context.now);
        // Whatever happens from here on is worth another message.
        self.message &= offset != C::STATUS;
        self.turn(context, |inner, context| inner.read(context, offset, data));
    }

    fn write(&mut self, context: &Context<'_, GuestMemoryMmap>, offset: u64, data: &[u8]) {
        self.happen(context.now);
        self.turn(context, |inner, context| inner.write(context, offset, data));
    }

    /// The guest lets time pass: the owner does what it has to.
    fn run(&mut self, context: &Context<'_, GuestMemoryMmap>) {
        self.happen(context.now);
        let now = self.clock(context.now);
        let due = HostController::<GuestMemoryMmap>::deadline(&self.inner);
        let due = due.is_some_and(|deadline| deadline <= now);
        let needless = self.shared.lock().dice.below(NEEDLESS) == 0;
        if !(self.bell.take() || due || needless) {
            return;
        }
        let (_, log) = self.turn(context, |inner, context| inner.run(context));
        let again = HostController::<GuestMemoryMmap>::deadline(&self.inner);
        let idle = again.is_some_and(|deadline| deadline <= now)
            && context.dma().is_some()
            && !log.iter().any(|access| access.write)
            && !self.bell.rang();
        self.idle = match (idle, self.idle) {
            (true, (at, turns)) if at == now => (now, turns + 1),
            (true, _) => (now, 1),
            (false, _) => (now, 0),
        };
        assert!(self.idle.1 < IDLE_TURNS, "asks to run at once, again and again, and does nothing");
    }

    fn deadline(&self) -> Option<Time> {
        if self.bell.rang() {
            return Some(Time::ZERO);
        }
        let deadline = self.deadline_of_all()?;
        Some(Time::from_nanos(deadline.as_nanos().saturating_add_signed(-self.ahead)))
    }

    fn interrupt(&mut self) -> Interrupt {
        let asserted = if self.messages { self.message } else { self.asserted };
        Interrupt { asserted, event: std::mem::take(&mut self.event) }
    }

    fn reset(&mut self, now: Time) {
        let now = self.clock(now);
        HostController::<GuestMemoryMmap>::reset(&mut self.inner, now);
        (self.message, self.event) = (false, false);
    }
}
