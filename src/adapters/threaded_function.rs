//! A function with a thread of its own.

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use vm_memory::GuestAddressSpace;

use super::MonotonicClock;
use crate::controller::HostController;
use crate::pci::{InterruptLine, PciFunction};
use crate::time::Time;
use crate::usb::Wake;

/// A [`PciFunction`] that vCPU threads share with a thread that runs it when its deadline has come or
/// a device has something to say.
///
/// For a VMM without an event loop to join, or whose vCPU threads may not make system calls for
/// timers: here they only ever wake a sleeping thread. While nothing is scheduled the thread sleeps.
///
/// Dropping it ends the thread, and drops the function with it.
pub struct ThreadedFunction<A: GuestAddressSpace, C, L> {
    shared: Arc<Shared<A, C, L>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<A: GuestAddressSpace, C, L> {
    function: Mutex<PciFunction<A::M, C, L>>,
    memory: A,
    clock: MonotonicClock,
    bell: Arc<Bell>,
}

/// What the thread sleeps on. Its lock is taken last and for an instant, so a device may ring from
/// inside a call of the function.
struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
}

struct BellState {
    mode: Mode,
    /// A device has something to say.
    woken: bool,
    /// The function's deadline.
    deadline: Option<Time>,
    /// Until when the thread sleeps if nobody rings: [`AWAKE`] if it does not.
    sleeps_until: Time,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Running,
    Paused,
    Stopped,
}

const AWAKE: Time = Time::ZERO;
const FOREVER: Time = Time::from_nanos(u64::MAX);

impl<A: GuestAddressSpace, C, L> fmt::Debug for ThreadedFunction<A, C, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadedFunction").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl<A, C, L> ThreadedFunction<A, C, L>
where
    A: GuestAddressSpace + Send + Sync + 'static,
    C: HostController<A::M> + 'static,
    L: InterruptLine + 'static,
{
    /// Gives `function`, which masters `memory` and lives by `clock`, a thread called `name`.
    ///
    /// # Errors
    /// If the process may not start another thread.
    pub fn new(
        name: &str,
        function: PciFunction<A::M, C, L>,
        memory: A,
        clock: MonotonicClock,
    ) -> io::Result<Self> {
        let bell = Arc::new(Bell {
            state: Mutex::new(BellState {
                mode: Mode::Running,
                woken: false,
                deadline: function.deadline(),
                sleeps_until: AWAKE,
            }),
            rung: Condvar::new(),
        });
        let shared = Arc::new(Shared { function: Mutex::new(function), memory, clock, bell });
        let theirs = shared.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || theirs.serve())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Makes the thread run the function; for [`Port::subscribe`](crate::topology::Port::subscribe) on
    /// each port of the controller.
    pub fn wake(&self) -> Arc<dyn Wake> {
        self.shared.bell.clone()
    }

    /// Guest read of configuration space.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        self.with(|function, memory, now| function.config_read(memory, now, offset, data));
    }

    /// Guest write to configuration space.
    pub fn config_write(&self, offset: u64, data: &[u8]) {
        self.with(|function, memory, now| function.config_write(memory, now, offset, data));
    }

    /// Guest read at `offset` in BAR 0.
    pub fn bar_read(&self, offset: u64, data: &mut [u8]) {
        self.with(|function, memory, now| function.bar_read(memory, now, offset, data));
    }

    /// Guest write at `offset` in BAR 0.
    pub fn bar_write(&self, offset: u64, data: &[u8]) {
        self.with(|function, memory, now| function.bar_write(memory, now, offset, data));
    }

    /// Bus reset of the function.
    pub fn reset(&self) {
        self.with(|function, _, now| function.reset(now));
    }

    /// Lets the thread rest: when this returns, it does not touch guest memory until
    /// [`resume`](Self::resume). The vCPUs have to be paused by others.
    pub fn pause(&self) {
        self.shared.bell.set_mode(Mode::Paused);
        // A turn that began before holds the lock; the next one sees the mode.
        drop(self.shared.lock());
    }

    /// Lets the thread go on. Time has passed meanwhile: the controller makes up for what it can.
    pub fn resume(&self) {
        self.shared.bell.set_mode(Mode::Running);
    }

    /// Anything else: calls `action` with the function, guest memory and the time; afterwards the
    /// thread follows the function's new deadline.
    pub fn with<R>(
        &self,
        action: impl FnOnce(&mut PciFunction<A::M, C, L>, &A::M, Time) -> R,
    ) -> R {
        self.shared.with(&mut self.shared.lock(), action)
    }
}

impl<A: GuestAddressSpace, C, L> Shared<A, C, L> {
    fn lock(&self) -> MutexGuard<'_, PciFunction<A::M, C, L>> {
        self.function.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A, C, L> Shared<A, C, L>
where
    A: GuestAddressSpace,
    C: HostController<A::M>,
    L: InterruptLine,
{
    fn with<R>(
        &self,
        function: &mut PciFunction<A::M, C, L>,
        action: impl FnOnce(&mut PciFunction<A::M, C, L>, &A::M, Time) -> R,
    ) -> R {
        let memory = self.memory.memory();
        let result = action(function, &memory, self.clock.now());
        self.bell.follow(function.deadline());
        result
    }

    /// The thread.
    fn serve(&self) {
        while self.bell.wait(self.clock) {
            let mut function = self.lock();
            if self.bell.running() {
                self.with(&mut function, |function, memory, now| function.run(memory, now));
            }
        }
    }
}

impl<A: GuestAddressSpace, C, L> Drop for ThreadedFunction<A, C, L> {
    fn drop(&mut self) {
        self.shared.bell.set_mode(Mode::Stopped);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of a USB controller has ended early, by a panic");
        }
    }
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> bool {
        self.lock().mode == Mode::Running
    }

    fn set_mode(&self, mode: Mode) {
        let mut state = self.lock();
        state.mode = mode;
        // Whoever rang may have been heard, but the pause came before the turn.
        state.woken = true;
        drop(state);
        self.rung.notify_one();
    }

    /// The function's deadline is now `deadline`. One that moves away wakes nobody: the thread finds
    /// out when it looks.
    fn follow(&self, deadline: Option<Time>) {
        let mut state = self.lock();
        state.deadline = deadline;
        let sooner = deadline.is_some_and(|deadline| deadline < state.sleeps_until);
        drop(state);
        if sooner {
            self.rung.notify_one();
        }
    }

    /// Sleeps until the function has to run; `false` when the thread has to end.
    fn wait(&self, clock: MonotonicClock) -> bool {
        let mut state = self.lock();
        loop {
            let now = clock.now();
            let until = match state.mode {
                Mode::Stopped => return false,
                Mode::Paused => FOREVER,
                Mode::Running => {
                    let due = state.deadline.is_some_and(|deadline| deadline <= now);
                    if std::mem::take(&mut state.woken) || due {
                        return true;
                    }
                    state.deadline.unwrap_or(FOREVER)
                }
            };
            state.sleeps_until = until;
            state = if until == FOREVER {
                self.rung.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                let slept = self.rung.wait_timeout(state, until.since(now));
                slept.unwrap_or_else(PoisonError::into_inner).0
            };
            state.sleeps_until = AWAKE;
        }
    }
}

impl Wake for Bell {
    fn wake(&self) {
        let mut state = self.lock();
        state.woken = true;
        let asleep = state.sleeps_until != AWAKE;
        drop(state);
        if asleep {
            self.rung.notify_one();
        }
    }
}

#[cfg(test)]
#[path = "threaded_function_tests.rs"]
mod tests;
