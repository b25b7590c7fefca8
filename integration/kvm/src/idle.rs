//! What the machine costs while its guest sleeps.
//!
//! The guest says that it is about to sleep with a POST code. Then the event loop's turns and the processor
//! time are counted for some seconds, the figures are printed, and a key is struck on each keyboard, which is
//! what the guest waits for.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use event_manager::{EventOps, EventSet, EventSubscriber, Events};
use rustix::time::{ClockId, clock_gettime};
use vm_usb::adapters::WakeFd;
use vm_usb::devices::hid::Key;
use vm_usb::usb::Wake;
use vmm_sys_util::timerfd::TimerFd;

use crate::usb::Usb;

/// The POST code of a guest that is about to sleep.
pub(crate) const ASLEEP: u8 = 0x1d;

/// Left out at the beginning: a driver's last accesses are activity, after which the controllers look for
/// more at short intervals.
const SETTLE: Duration = Duration::from_secs(1);

/// HID usage of the key that wakes the guest: A.
const WAKING_KEY: u8 = 0x04;

/// A subscriber that measures a sleep.
pub(crate) struct Idle {
    length: Duration,
    asleep: Arc<WakeFd>,
    timer: Mutex<TimerFd>,
    begin: Mutex<Option<Mark>>,
    measured: AtomicBool,
    /// Turns of the event loop.
    turns: Arc<AtomicU64>,
    usb: Arc<Usb>,
}

/// Where the counters stand.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    /// Processor time of this thread, and of all.
    thread: Duration,
    process: Duration,
    turns: u64,
    /// Runs of the OHCI controller, and of the EHCI controller.
    runs: [u64; 2],
}

impl Idle {
    /// Measures for `length`. `turns` is counted by the event loop, in whose thread this must be served.
    pub(crate) fn new(
        length: Duration,
        turns: Arc<AtomicU64>,
        usb: Arc<Usb>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            length,
            asleep: Arc::new(WakeFd::new()?),
            timer: Mutex::new(TimerFd::new()?),
            begin: Mutex::new(None),
            measured: AtomicBool::new(false),
            turns,
            usb,
        })
    }

    /// To be woken when the guest says that it sleeps.
    pub(crate) fn asleep(&self) -> Arc<dyn Wake> {
        self.asleep.clone()
    }

    /// Whether the figures have been printed.
    pub(crate) fn has_measured(&self) -> bool {
        self.measured.load(Ordering::Acquire)
    }

    fn mark(&self) -> Mark {
        let spent = |clock| {
            let time = clock_gettime(clock);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        Mark {
            at: Instant::now(),
            thread: spent(ClockId::ThreadCPUTime),
            process: spent(ClockId::ProcessCPUTime),
            turns: self.turns.load(Ordering::Relaxed),
            runs: self.usb.function_statistics().map(|(_, counts)| counts.runs),
        }
    }

    fn set_timer(&self, time: Duration) -> anyhow::Result<()> {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(timer.reset(time, None)?)
    }

    fn timer_went_off(&self) -> anyhow::Result<()> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner).wait()?;
        let now = self.mark();
        let mut begin = self.begin.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(begin) = *begin else {
            *begin = Some(now);
            return self.set_timer(self.length);
        };
        eprintln!("{}\n{}", Sleep { begin, end: now }, self.usb.statistics());
        self.measured.store(true, Ordering::Release);
        let key = Key::from_usage(WAKING_KEY).unwrap_or_else(|| unreachable!("A is a key"));
        self.usb.press(key)
    }
}

impl EventSubscriber for Idle {
    fn init(&self, ops: &mut EventOps<'_>) {
        let timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        for events in [Events::new(&*self.asleep, EventSet::IN), Events::new(&*timer, EventSet::IN)]
        {
            if let Err(error) = ops.add(events) {
                log::error!("nothing is measured: {error:?}");
            }
        }
    }

    fn process(&self, events: Events, _: &mut EventOps<'_>) {
        use std::os::fd::AsRawFd;
        let done = if events.fd() == self.asleep.as_raw_fd() {
            self.asleep.take();
            self.set_timer(SETTLE)
        } else {
            self.timer_went_off()
        };
        if let Err(error) = done {
            log::error!("the guest's sleep cannot be measured: {error:#}");
        }
    }
}

/// Two marks and what lies between them.
struct Sleep {
    begin: Mark,
    end: Mark,
}

impl fmt::Display for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { begin, end } = self;
        let seconds = (end.at - begin.at).as_secs_f64();
        let share = |begin: Duration, end: Duration| {
            let spent = (end - begin).as_secs_f64();
            format!("{:.1} ms, {:.2} % of a processor", spent * 1e3, spent / seconds * 100.0)
        };
        let rate = |begin: u64, end: u64| (end - begin) as f64 / seconds;
        writeln!(f, "the guest slept for {seconds:.1} s")?;
        writeln!(f, "event loop's thread: {}", share(begin.thread, end.thread))?;
        writeln!(f, "whole process: {}", share(begin.process, end.process))?;
        let [ohci, ehci] = [0, 1].map(|at| rate(begin.runs[at], end.runs[at]));
        write!(
            f,
            "event loop: {:.1} wakeups a second; runs a second: OHCI {ohci:.1}, EHCI {ehci:.1}",
            rate(begin.turns, end.turns)
        )
    }
}
