//! One controller's loop: client, timer and devices in one thread.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use log::{error, info, warn};
use rustix::event::{PollFd, PollFlags, poll};
use vm_usb::time::Time;

use crate::alarm::Alarm;
use crate::clock;
use crate::conversation::{Conversation, End};
use crate::disks::Disks;
use crate::doorbell::Doorbell;
use crate::errands::Errands;
use crate::gauge::Gauge;
use crate::halt_poll::HaltPoll;
use crate::listener::Listener;
use crate::session::{Function, Session};
use crate::spin::{Spin, SpinPolicy};

/// How long a second client may wait for the first to leave: a VMM that ends takes its time, and its
/// successor may be quicker.
const GRACE_MILLIS: u64 = 1000;

/// A controller and the socket it is offered at.
pub struct Server {
    /// The controller's name, for messages.
    pub name: String,
    /// Where clients connect.
    pub listener: Listener,
    /// The controller.
    pub function: Function,
    /// Rung by devices, and to end the loop.
    pub doorbell: Arc<Doorbell>,
    /// Shows what is counted.
    pub gauge: Arc<Gauge>,
    /// How eagerly to wait for messages.
    pub spin: SpinPolicy,
    /// How long after a message to keep a processor awake that has nothing else to do.
    pub halt_poll: Duration,
    /// The disks behind it, which are written out when a client leaves.
    pub disks: Disks,
    /// What others have the loop do.
    pub errands: Arc<Errands>,
    /// The controller is not as after power-on but as it was saved, for the first client to go on with.
    pub restored: bool,
}

impl Server {
    /// Serves one client after another until [`Doorbell::stop`]. Each finds the controller as after
    /// power-on; the first one may find it [`restored`](Self::restored).
    ///
    /// Returns whether all of them could be served as they should: none broke the protocol, and none
    /// kept memory to itself that its guest used.
    pub fn run(&mut self) -> bool {
        let name = self.name.clone();
        let mut halt_poll = HaltPoll::new(self.halt_poll, &name, &self.doorbell);
        let mut all_well = true;
        while let Some(stream) = self.next_client() {
            info!("{name}: a client has connected");
            self.gauge.show_client(true);
            let (end, missed_memory) = self.serve(&stream, &mut halt_poll);
            all_well &= !missed_memory && end.is_well();
            // Whatever the guest had set up went with it.
            self.function.reset(clock::now());
            *self.function.line_mut() = Default::default();
            let flushed = self.disks.flush();
            if flushed != 0 {
                info!("{name}: disks written out: {flushed}");
            }
            end.report(&name);
            self.gauge.show_client(false);
            self.gauge.show(&self.function.statistics());
        }
        all_well
    }

    /// Waits for a client; `None` when the loop is to end.
    fn next_client(&mut self) -> Option<UnixStream> {
        loop {
            if self.doorbell.stopped() {
                return None;
            }
            match self.listener.accept() {
                Ok(Some(stream)) => return Some(stream),
                Ok(None) => {}
                Err(error) => self.listener.pause(&error),
            }
            if self.doorbell.take() {
                self.errands.run(&mut self.function);
            }
            if self.doorbell.fall_asleep() {
                let mut events = [
                    PollFd::new(self.listener.socket(), PollFlags::IN),
                    PollFd::from_borrowed_fd(self.doorbell.event(), PollFlags::IN),
                ];
                let waited = poll(&mut events, None);
                let rung = events[1].revents().contains(PollFlags::IN);
                self.doorbell.wake_up(rung);
                if let Err(error) = waited
                    && error != rustix::io::Errno::INTR
                {
                    error!("{}: cannot wait for a client: {error}", self.name);
                    return None;
                }
            }
        }
    }

    /// Serves one client until it leaves; says why, and whether the guest used memory it does not share.
    fn serve(&mut self, stream: &UnixStream, halt_poll: &mut HaltPoll) -> (End, bool) {
        let alarm = match Alarm::new() {
            Ok(alarm) => alarm,
            Err(error) => return (End::Wait(error), false),
        };
        let mut turns = Turns {
            name: &self.name,
            listener: &self.listener,
            doorbell: &self.doorbell,
            gauge: &self.gauge,
            errands: &self.errands,
            conversation: Conversation::new(
                stream,
                Session::new(&mut self.function, std::mem::take(&mut self.restored)),
            ),
            alarm,
            spin: Spin::new(self.spin),
            halt_poll,
            nudged: false,
            last_message: clock::now(),
            last_run: clock::now(),
            waiting: None,
        };
        loop {
            if let Err(end) = turns.turn() {
                return (end, turns.session().missed_memory());
            }
        }
    }
}

/// A session's state between two turns of the loop.
struct Turns<'a> {
    name: &'a str,
    listener: &'a Listener,
    doorbell: &'a Doorbell,
    gauge: &'a Gauge,
    errands: &'a Errands,
    conversation: Conversation<'a>,
    alarm: Alarm,
    spin: Spin,
    halt_poll: &'a mut HaltPoll,
    /// It was woken for nothing but to look.
    nudged: bool,
    last_message: Time,
    last_run: Time,
    /// Since when another client has been waiting.
    waiting: Option<Time>,
}

impl<'a> Turns<'a> {
    fn session(&mut self) -> &mut Session<'a> {
        self.conversation.session()
    }

    /// One look at everything; sleeps if there is nothing to do.
    fn turn(&mut self) -> Result<(), End> {
        if self.doorbell.stopped() {
            return Err(End::Stopped);
        }
        let heard = self.listen()?;
        let now = clock::now();
        let rung = self.doorbell.take();
        if rung {
            self.errands.run(self.conversation.session().function());
        }
        let due = self.due(now);
        if rung || due {
            self.session().run(now);
            self.last_run = now;
        }
        if heard || rung || due {
            self.gauge.show(&self.conversation.session().function().statistics());
        }
        if heard {
            return Ok(());
        }
        self.session().function().line_mut().poll_unmask();
        if rung || due {
            return Ok(());
        }
        let deadline = self.session().deadline();
        let left = deadline.map(|deadline| deadline.since(now));
        if self.spin.stay_awake(now.since(self.last_message), left) {
            // Yielding instead would cost this thread its place in the queue for milliseconds.
            std::hint::spin_loop();
            return Ok(());
        }
        self.sleep(now, deadline)
    }

    /// Whether it is time to run the controller. Between two messages of a handler that is soon enough after
    /// a rest; whoever has nothing else to do looks at each deadline.
    fn due(&mut self, now: Time) -> bool {
        let nudged = std::mem::take(&mut self.nudged);
        let rest = if nudged { Duration::ZERO } else { self.spin.rest() };
        let rested = self.rested(rest);
        self.session().deadline().is_some_and(|deadline| deadline.max(rested) <= now)
    }

    /// When the controller has stood still for `rest`.
    fn rested(&self, rest: Duration) -> Time {
        self.last_run.after(rest)
    }

    /// Carries out the client's next command, if there is one; `true` if there was.
    fn listen(&mut self) -> Result<bool, End> {
        let Some(now) = self.conversation.listen(clock::now)? else { return Ok(false) };
        let gap = now.since(self.last_message);
        self.spin.message(gap);
        self.halt_poll.message(gap);
        self.last_message = now;
        Ok(true)
    }

    /// Sleeps until the client, a device or the timer has something to say.
    fn sleep(&mut self, now: Time, deadline: Option<Time>) -> Result<(), End> {
        let patience = self.waiting.map(|since| since.after_millis(GRACE_MILLIS));
        let backstop = self.halt_poll.backstop(deadline, self.last_message);
        let rested = self.rested(backstop.unwrap_or(self.spin.rest()));
        let timer = deadline.map(|deadline| deadline.max(rested));
        self.alarm.follow(timer.into_iter().chain(patience).min(), now)?;
        if !self.doorbell.fall_asleep() {
            return Ok(());
        }
        self.halt_poll.watch(deadline, self.last_message, now);
        let stuck = self.conversation.unsent() != 0;
        let interest = if stuck { PollFlags::OUT } else { PollFlags::IN };
        // Whoever waits already need not wake anybody again.
        let listening = if self.waiting.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let (woken, rung, seen, alarmed) = {
            let stream = self.conversation.stream();
            let line = self.conversation.session().function().line();
            let mut events = vec![
                PollFd::new(stream, interest),
                PollFd::from_borrowed_fd(self.doorbell.event(), PollFlags::IN),
                PollFd::new(self.listener.socket(), listening),
                PollFd::new(&self.alarm, PollFlags::IN),
            ];
            if let Some(unmask) = line.unmask_event() {
                events.push(PollFd::from_borrowed_fd(unmask, PollFlags::IN));
            }
            let woken = poll(&mut events, None);
            let has = |event: usize| events[event].revents().contains(PollFlags::IN);
            (woken, has(1), has(2), has(3))
        };
        self.doorbell.wake_up(rung);
        self.nudged = rung;
        if alarmed {
            self.halt_poll.timer_went_off();
        }
        match woken {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.look_at_the_door(seen);
        Ok(())
    }

    /// Another client was `seen` waiting. If this one leaves within a moment, it is next; if not, it
    /// is turned away.
    fn look_at_the_door(&mut self, seen: bool) {
        match self.waiting {
            None => self.waiting = seen.then(clock::now),
            Some(since) if clock::now() >= since.after_millis(GRACE_MILLIS) => {
                self.waiting = None;
                if matches!(self.listener.accept(), Ok(Some(_))) {
                    warn!(
                        "{}: turned a second client away: each controller serves one virtual machine",
                        self.name
                    );
                }
            }
            Some(_) => {}
        }
    }
}
