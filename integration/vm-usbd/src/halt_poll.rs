//! Processor time that nobody else wants, spent on being there sooner.
//!
//! A guest adds a transfer to EHCI's ring by a store to memory; no register tells the controller. A loop
//! that looks often takes the processor from its guest, one that sleeps is late, and a processor left
//! with nothing to do goes to sleep itself: where the host is a virtual machine, waking it takes longer
//! than the transfer. So a thread of idle priority (`SCHED_IDLE`) watches the clock while the loop
//! sleeps. It runs only on a processor that would halt otherwise, gives way at once to anyone, and wakes
//! the loop at the controller's deadline to the microsecond, without a timer.
//!
//! Like KVM's `halt_poll_ns` it does so for a while after the guest was last heard of, and only as long
//! as that is worth it: a guest that is never heard of again within that while is soon not waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use log::warn;
use vm_usb::time::Time;

use crate::clock;
use crate::doorbell::Doorbell;

/// How long to keep a processor awake after a message, if nothing is said. A disk's guest is heard of every
/// 100 to 250 us; one that takes longer gains less, and is not worth a processor.
pub const DEFAULT: Duration = Duration::from_micros(500);

/// While the thread is known to run, the loop's timer is set no nearer than this after the last run: it is
/// for the case that the processor has found something else to do.
const BACKSTOP: Duration = Duration::from_millis(1);

/// A thread that has not run from one timer to the next is not to be counted on: there is other work.
const TRUSTED_FOR: u32 = 2;

/// Messages closer than this belong to one interrupt handler, and say nothing about the next.
const HANDLER: Duration = Duration::from_micros(50);

/// No deadline.
const NEVER: u64 = u64::MAX;

/// A loop's thread of idle priority.
pub struct HaltPoll {
    window: Window,
    /// How often the loop's timer has gone off since the thread was last seen to run.
    timers: u32,
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl HaltPoll {
    /// For the loop that sleeps on `doorbell`: for `longest` after a message, zero for never.
    pub fn new(longest: Duration, name: &str, doorbell: &Arc<Doorbell>) -> Self {
        let watch = Arc::new(Watch::default());
        let start = || {
            let (watch, doorbell) = (watch.clone(), doorbell.clone());
            let builder = thread::Builder::new().name(format!("{name} halt-poll"));
            let started = builder.spawn(move || watch.keep(&doorbell));
            started.map_err(|error| warn!("{name}: no thread for --halt-poll: {error}")).ok()
        };
        let thread = if longest.is_zero() { None } else { start() };
        Self { window: Window { longest, open: longest }, timers: TRUSTED_FOR, watch, thread }
    }

    /// A message came `gap` after the last.
    pub fn message(&mut self, gap: Duration) {
        self.window.message(gap);
    }

    /// Until when a processor is kept awake after a message at `last`.
    fn until(&self, last: Time) -> Time {
        last.after(self.window.open)
    }

    /// How long after its last run the loop's timer has to wait at least, if the thread can be counted on to
    /// wake it at `deadline`; the last message was at `last`.
    pub fn backstop(&mut self, deadline: Option<Time>, last: Time) -> Option<Duration> {
        self.look();
        let covered = deadline.is_some_and(|deadline| deadline < self.until(last));
        (self.timers < TRUSTED_FOR && covered).then_some(BACKSTOP)
    }

    /// The loop is going to sleep `now`, and has told its doorbell; the last message was at `last`.
    pub fn watch(&self, deadline: Option<Time>, last: Time, now: Time) {
        let until = self.until(last);
        if let Some(thread) = &self.thread
            && now < until
        {
            // Whoever sees it sees that the loop is asleep, too.
            self.watch.due.store(deadline.map_or(NEVER, Time::as_nanos), Ordering::Release);
            self.watch.until.store(until.as_nanos(), Ordering::Release);
            thread.thread().unpark();
        }
    }

    /// The loop's timer has gone off.
    pub fn timer_went_off(&mut self) {
        self.timers = self.timers.saturating_add(1);
        self.look();
    }

    /// Whether the thread has run.
    fn look(&mut self) {
        if self.watch.ran.swap(false, Ordering::Relaxed) {
            self.timers = 0;
        }
    }
}

impl Drop for HaltPoll {
    fn drop(&mut self) {
        self.watch.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
            // Nobody waits for it: on a busy host it may be long before it has a processor to end on.
        }
    }
}

/// How long after a message it is worth waiting for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    longest: Duration,
    open: Duration,
}

impl Window {
    /// A message came `gap` after the last: as long as it may be if the wait was worth it, half as long
    /// if it was not.
    fn message(&mut self, gap: Duration) {
        if gap > self.longest {
            self.open /= 2;
        } else if gap > HANDLER {
            self.open = self.longest;
        }
    }
}

/// What the loop and its thread tell each other.
struct Watch {
    /// When to ring, on the clock of [`clock`] in nanoseconds.
    due: AtomicU64,
    /// Until when to stay awake.
    until: AtomicU64,
    /// The thread has run since the loop last asked.
    ran: AtomicBool,
    stop: AtomicBool,
}

impl Default for Watch {
    fn default() -> Self {
        let (ran, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { due: AtomicU64::new(NEVER), until: AtomicU64::new(0), ran, stop }
    }
}

impl Watch {
    /// What the thread does.
    fn keep(&self, doorbell: &Doorbell) {
        if let Err(error) = vm_usb_idle_priority::take() {
            // With any other priority it would take the processor from the guest.
            warn!("--halt-poll is off: no idle priority ({error})");
            return;
        }
        while !self.stop.load(Ordering::Relaxed) {
            let now = clock::now().as_nanos();
            if self.until.load(Ordering::Acquire) <= now {
                thread::park();
                continue;
            }
            self.ran.store(true, Ordering::Relaxed);
            let due = self.due.load(Ordering::Relaxed);
            // Once for each deadline; the loop may have set the next one just now.
            let (seen, unseen) = (Ordering::Acquire, Ordering::Relaxed);
            if due <= now && self.due.compare_exchange(due, NEVER, seen, unseen).is_ok() {
                doorbell.nudge();
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn window() -> Window {
        Window { longest: US * 500, open: US * 500 }
    }

    #[test]
    fn a_guest_that_comes_back_in_time_is_waited_for_as_long_as_may_be() {
        let mut window = window();
        window.message(US * 501);
        assert_eq!(window.open, US * 250);
        window.message(US * 500);
        assert_eq!(window.open, US * 500);
    }

    #[test]
    fn a_guest_that_comes_once_a_millisecond_is_soon_not_waited_for() {
        let mut window = window();
        for _ in 0..10 {
            window.message(US * 1000);
            // The rest of its handler.
            window.message(US * 12);
            window.message(US * 12);
        }
        assert!(window.open < US, "{:?}", window.open);
    }

    /// A loop that sleeps on its doorbell alone.
    fn sleep(doorbell: &Doorbell, before: impl FnOnce()) {
        assert!(doorbell.fall_asleep());
        before();
        poll(&mut [PollFd::from_borrowed_fd(doorbell.event(), PollFlags::IN)], None).unwrap();
        doorbell.wake_up(true);
    }

    #[test]
    fn it_wakes_the_loop_at_each_deadline_and_not_before() {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let mut halt_poll = HaltPoll::new(Duration::from_secs(3600), "a", &doorbell);
        let mut now = clock::now();
        for _ in 0..3 {
            now = clock::now();
            let deadline = now.after_nanos(200_000);
            sleep(&doorbell, || halt_poll.watch(Some(deadline), now, now));
            assert!(clock::now() >= deadline);
            assert!(!doorbell.take(), "nobody rang");
        }
        assert_eq!(halt_poll.backstop(Some(now), now), Some(BACKSTOP));
    }

    #[test]
    fn a_thread_that_does_not_run_from_one_timer_to_the_next_is_not_counted_on() {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let mut halt_poll = HaltPoll::new(Duration::from_secs(3600), "a", &doorbell);
        let now = clock::now();
        assert_eq!(halt_poll.backstop(Some(now), now), None, "it has not been seen to run");
        sleep(&doorbell, || halt_poll.watch(Some(now), now, now));
        assert_eq!(halt_poll.backstop(Some(now), now), Some(BACKSTOP));
        // From here on it does not run.
        halt_poll.watch.stop.store(true, Ordering::Relaxed);
        let thread = halt_poll.thread.take().unwrap();
        thread.thread().unpark();
        thread.join().unwrap();
        halt_poll.watch.ran.store(false, Ordering::Relaxed);
        halt_poll.timer_went_off();
        assert_eq!(halt_poll.backstop(Some(now), now), Some(BACKSTOP), "it may have been about to");
        halt_poll.timer_went_off();
        assert_eq!(halt_poll.backstop(Some(now), now), None);
    }

    #[test]
    fn a_deadline_after_the_window_is_the_timers() {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let mut halt_poll = HaltPoll::new(Duration::from_secs(3600), "a", &doorbell);
        let now = clock::now();
        sleep(&doorbell, || halt_poll.watch(Some(now), now, now));
        let end = now.after_millis(3_600_000);
        assert_eq!(halt_poll.backstop(Some(now.after_millis(3_599_999)), now), Some(BACKSTOP));
        assert_eq!(halt_poll.backstop(Some(end), now), None);
        assert_eq!(halt_poll.backstop(None, now), None);
    }

    #[test]
    fn without_a_window_there_is_no_thread() {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let mut halt_poll = HaltPoll::new(Duration::ZERO, "a", &doorbell);
        assert!(halt_poll.thread.is_none());
        let now = clock::now();
        halt_poll.watch(Some(now), now, now);
        assert_eq!(halt_poll.backstop(Some(now), now), None);
    }
}
