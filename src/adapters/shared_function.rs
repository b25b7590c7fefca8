//! A function between vCPU threads and an event loop.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_manager::{EventOps, EventSet, EventSubscriber, Events};
use vm_memory::GuestAddressSpace;

use super::alarm::Alarm;
use super::{MonotonicClock, WakeFd};
use crate::controller::HostController;
use crate::pci::{InterruptLine, PciFunction};
use crate::time::Time;
use crate::usb::Wake;

/// A [`PciFunction`] that vCPU threads and an event loop share.
///
/// vCPU threads pass on the guest's accesses. The event loop, to which the function is added as a
/// subscriber, runs it when its deadline has come (a timerfd) or a device has something to say (an
/// eventfd, [`wake`](Self::wake)). While neither happens nothing runs and no timer is armed.
///
/// Guest memory is any [`GuestAddressSpace`]: an `Arc` of the memory, or a `GuestMemoryAtomic` if it
/// changes while the guest runs.
///
/// ```no_run
/// use std::sync::Arc;
/// use event_manager::{EventManager, EventSubscriber, SubscriberOps};
/// use vm_memory::{GuestAddress, GuestMemoryMmap};
/// use vm_usb::adapters::{MonotonicClock, SharedFunction};
/// use vm_usb::controller::HostController;
/// use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
///
/// # fn embed<C, L>(controller: C, line: L) -> Result<(), Box<dyn std::error::Error>>
/// # where C: HostController<GuestMemoryMmap> + 'static, L: InterruptLine + 'static {
/// let memory = Arc::new(GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 64 << 20)])?);
/// let function = PciFunction::new(Identity::ehci(), Placement::default(), controller, line);
/// let function = Arc::new(SharedFunction::new(function, memory, MonotonicClock::new())?);
///
/// let mut events = EventManager::<Arc<dyn EventSubscriber>>::new()?;
/// events.add_subscriber(function.clone());
/// // vCPU threads: function.mmio_read(address, &mut data), function.mmio_write(address, &data)
/// loop {
///     events.run()?;
/// }
/// # }
/// ```
pub struct SharedFunction<A: GuestAddressSpace, C, L> {
    state: Mutex<State<A, C, L>>,
    memory: A,
    clock: MonotonicClock,
    wake: Arc<WakeFd>,
    timer: RawFd,
}

struct State<A: GuestAddressSpace, C, L> {
    function: PciFunction<A::M, C, L>,
    alarm: Alarm,
}

impl<A: GuestAddressSpace, C, L> fmt::Debug for SharedFunction<A, C, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedFunction").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl<A, C, L> SharedFunction<A, C, L>
where
    A: GuestAddressSpace,
    C: HostController<A::M>,
    L: InterruptLine,
{
    /// Shares `function`, which masters `memory` and lives by `clock`.
    ///
    /// # Errors
    /// If the process may not open two more file descriptors.
    pub fn new(
        function: PciFunction<A::M, C, L>,
        memory: A,
        clock: MonotonicClock,
    ) -> io::Result<Self> {
        let alarm = Alarm::new()?;
        let timer = alarm.as_raw_fd();
        Ok(Self {
            state: Mutex::new(State { function, alarm }),
            memory,
            clock,
            wake: Arc::new(WakeFd::new()?),
            timer,
        })
    }

    /// Makes the loop run the function; for [`Port::subscribe`](crate::topology::Port::subscribe) on
    /// each port of the controller.
    pub fn wake(&self) -> Arc<dyn Wake> {
        self.wake.clone()
    }

    /// Guest read of configuration space.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        self.with(|function, memory, now| function.config_read(memory, now, offset, data));
    }

    /// Guest write to configuration space.
    pub fn config_write(&self, offset: u64, data: &[u8]) {
        self.with(|function, memory, now| function.config_write(memory, now, offset, data));
    }

    /// Guest read of guest-physical `address`; `false` if BAR 0 is not there.
    pub fn mmio_read(&self, address: u64, data: &mut [u8]) -> bool {
        self.with(|function, memory, now| {
            let offset = offset_in_bar(function.bar_address(), function.bar_size(), address);
            let Some(offset) = offset else { return false };
            function.bar_read(memory, now, offset, data);
            true
        })
    }

    /// Guest write to guest-physical `address`; `false` if BAR 0 is not there.
    pub fn mmio_write(&self, address: u64, data: &[u8]) -> bool {
        self.with(|function, memory, now| {
            let offset = offset_in_bar(function.bar_address(), function.bar_size(), address);
            let Some(offset) = offset else { return false };
            function.bar_write(memory, now, offset, data);
            true
        })
    }

    /// Bus reset of the function.
    pub fn reset(&self) {
        self.with(|function, _, now| function.reset(now));
    }

    /// Anything else: calls `action` with the function, guest memory and the time, then arms the timer
    /// to the function's deadline.
    pub fn with<R>(
        &self,
        action: impl FnOnce(&mut PciFunction<A::M, C, L>, &A::M, Time) -> R,
    ) -> R {
        let memory = self.memory.memory();
        let mut state = self.lock();
        let now = self.clock.now();
        let State { function, alarm } = &mut *state;
        let result = action(function, &memory, now);
        alarm.follow(function.deadline(), now);
        result
    }

    /// Stops the function until the guard is dropped: vCPU threads wait in their accesses and the event
    /// loop in its turn. To save a machine, or to restore one, pause its vCPUs and all of its functions
    /// first.
    ///
    /// A thread that has paused the function must not use it but through the guard.
    pub fn pause(&self) -> Paused<'_, A, C, L> {
        Paused { shared: self, state: self.lock() }
    }

    /// The timer has gone off. It may be early, since a deadline that moved away left it alone.
    fn timer_went_off(&self) {
        let memory = self.memory.memory();
        let mut state = self.lock();
        let now = self.clock.now();
        let State { function, alarm } = &mut *state;
        if function.deadline().is_some_and(|deadline| deadline <= now) {
            function.run(&memory, now);
        }
        alarm.went_off(function.deadline(), now);
    }

    fn lock(&self) -> MutexGuard<'_, State<A, C, L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`SharedFunction`] that stands still. When this is dropped it goes on: it takes a turn, which
/// brings it up to the time and to what a restore has put into it.
pub struct Paused<'a, A, C, L>
where
    A: GuestAddressSpace,
    C: HostController<A::M>,
    L: InterruptLine,
{
    shared: &'a SharedFunction<A, C, L>,
    state: MutexGuard<'a, State<A, C, L>>,
}

impl<A, C, L> Paused<'_, A, C, L>
where
    A: GuestAddressSpace,
    C: HostController<A::M>,
    L: InterruptLine,
{
    /// What time it is for the function: the `now` of a snapshot.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// The function, to save.
    pub fn function(&self) -> &PciFunction<A::M, C, L> {
        &self.state.function
    }

    /// The function, to restore.
    pub fn function_mut(&mut self) -> &mut PciFunction<A::M, C, L> {
        &mut self.state.function
    }
}

impl<A, C, L> fmt::Debug for Paused<'_, A, C, L>
where
    A: GuestAddressSpace,
    C: HostController<A::M>,
    L: InterruptLine,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paused").field("clock", &self.shared.clock).finish_non_exhaustive()
    }
}

impl<A, C, L> Drop for Paused<'_, A, C, L>
where
    A: GuestAddressSpace,
    C: HostController<A::M>,
    L: InterruptLine,
{
    fn drop(&mut self) {
        let memory = self.shared.memory.memory();
        let now = self.shared.clock.now();
        let State { function, alarm } = &mut *self.state;
        function.run(&memory, now);
        alarm.follow(function.deadline(), now);
    }
}

/// Where in a BAR at `bar` of `size` bytes `address` is.
fn offset_in_bar(bar: Option<u32>, size: u32, address: u64) -> Option<u64> {
    let offset = address.checked_sub(bar?.into())?;
    (offset < u64::from(size)).then_some(offset)
}

impl<A, C, L> EventSubscriber for SharedFunction<A, C, L>
where
    A: GuestAddressSpace,
    C: HostController<A::M>,
    L: InterruptLine,
{
    fn init(&self, ops: &mut EventOps<'_>) {
        for source in [self.timer, self.wake.as_raw_fd()] {
            if let Err(error) = ops.add(Events::new_raw(source, EventSet::IN)) {
                log::error!("the event loop does not watch the controller: {error:?}");
            }
        }
    }

    fn process(&self, events: Events, _: &mut EventOps<'_>) {
        if events.fd() == self.timer {
            self.timer_went_off();
        } else {
            self.wake.take();
            self.with(|function, memory, now| function.run(memory, now));
        }
    }
}

#[cfg(test)]
#[path = "shared_function_tests.rs"]
mod tests;
