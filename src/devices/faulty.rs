//! A device on a bad day: faults on the bus and in the device, by script or by seed.
//!
//! [`Faulty`] stands before any device. A host that gets every byte across all the same recovers as it
//! should; the same seed brings the same faults every time.
//!
//! Faults reach data endpoints and class requests. The standard requests of endpoint 0 are answered
//! before any device sees them, so enumeration always works.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::{
    Buffer, BusError, Control, Description, EndpointAddress, LinkAnswer, LinkSleep, Notifier,
    Outcome, Pid, SetupPacket, Suspension, Transfer, UsbDevice, UsbHub,
};

#[cfg(test)]
mod tests;

/// Something that goes wrong with a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fault {
    /// The device is busy; the host has to ask again.
    Nak,
    /// The endpoint halts without a reason. A class request is refused.
    Stall,
    /// The first transaction fails.
    Error(BusError),
    /// The transaction after this many good packets fails; the last one of the transfer, if it has
    /// fewer.
    ErrorAfter(usize, BusError),
    /// The device begins and takes its time, [`Outcome::PENDING`], until [`Waiting::finish`].
    Pending,
    /// The device is not ready and promises to say when it is, [`Outcome::PARK`], until
    /// [`Waiting::finish`].
    Park,
    /// The device moves no more than so many packets now. IN: an empty packet ends the transfer; what
    /// is left comes with the next one. OUT: one packet at least is taken, the rest is offered again.
    Short(usize),
    /// The device hangs: nobody answers at its data endpoints, and class requests are refused, until it
    /// is reset.
    Hang,
}

/// How often faults happen, each in a thousand transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odds {
    /// [`Fault::Nak`].
    pub nak: u16,
    /// [`Fault::Stall`].
    pub stall: u16,
    /// [`Fault::Error`] and [`Fault::ErrorAfter`] of up to three packets, with any error that makes a
    /// host try again.
    pub error: u16,
    /// [`Fault::Error`] with [`BusError::Babble`], after which a host does not try again.
    pub babble: u16,
    /// [`Fault::Pending`] or [`Fault::Park`]. Somebody has to call [`Waiting::finish`].
    pub wait: u16,
    /// [`Fault::Short`] of up to three packets.
    pub short: u16,
    /// [`Fault::Hang`].
    pub hang: u16,
}

/// When which fault happens.
#[derive(Debug)]
enum Plan {
    Script(HashMap<EndpointAddress, VecDeque<Option<Fault>>>),
    Random(Random, Odds),
}

/// Name of the form in a snapshot.
const KIND: &str = "faulty device";

/// A [`Faulty`] device in a snapshot: the faults that are still to come.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultyState {
    plan: PlanState,
    #[serde(default)]
    hung: bool,
    device: State,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum PlanState {
    Script(Vec<(EndpointAddress, VecDeque<Option<Fault>>)>),
    Random(u64),
}

/// A device whose transfers sometimes fail.
#[derive(Debug)]
pub struct Faulty<D> {
    device: D,
    plan: Plan,
    hung: bool,
    waiting: Waiting,
    injected: Injected,
}

/// How many faults a [`Faulty`] device has injected so far; clones show the same number.
#[derive(Clone, Debug, Default)]
pub struct Injected(Arc<AtomicU64>);

impl Injected {
    /// The number.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The transfers that a [`Faulty`] device keeps waiting; clones show the same ones.
#[derive(Clone, Debug, Default)]
pub struct Waiting(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    notifier: Option<Notifier>,
    /// What each endpoint that waits answers, until it is finished: `None`.
    answers: HashMap<EndpointAddress, Option<Outcome>>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the host waits to be told of any.
    pub fn any(&self) -> bool {
        self.lock().answers.values().any(Option::is_some)
    }

    /// What has begun is done, and what was promised is there: the host is told, and is served when it
    /// asks again.
    pub fn finish(&self) {
        let mut held = self.lock();
        let finished: Vec<_> = held
            .answers
            .iter_mut()
            .filter_map(|(endpoint, answer)| answer.take().map(|_| *endpoint))
            .collect();
        let notifier = held.notifier.clone();
        // The host may act in the call: it must not find this locked.
        drop(held);
        if let Some(notifier) = notifier {
            finished.into_iter().for_each(|endpoint| notifier.ready(endpoint));
        }
    }

    /// The endpoint answers this until it is finished.
    fn hold(&self, endpoint: EndpointAddress, answer: Outcome) -> Outcome {
        self.lock().answers.insert(endpoint, Some(answer));
        answer
    }

    /// Whatever an endpoint waits for is off; says whether it did.
    fn forget(&self, endpoint: EndpointAddress) -> bool {
        self.lock().answers.remove(&endpoint).is_some()
    }

    fn forget_all(&self) {
        self.lock().answers.clear();
    }
}

impl<D: UsbDevice> Faulty<D> {
    fn new(device: D, plan: Plan) -> Self {
        Self {
            device,
            plan,
            hung: false,
            waiting: Waiting::default(),
            injected: Injected::default(),
        }
    }

    /// Faults at an endpoint's next transfers, one after the other; `None` lets one pass, and so do
    /// all after the last. [`EndpointAddress::CONTROL`] stands for class requests.
    pub fn scripted(
        device: D,
        script: impl IntoIterator<Item = (EndpointAddress, Option<Fault>)>,
    ) -> Self {
        let mut plan = HashMap::<_, VecDeque<_>>::new();
        for (endpoint, fault) in script {
            plan.entry(endpoint).or_default().push_back(fault);
        }
        Self::new(device, Plan::Script(plan))
    }

    /// Faults by chance, the same for the same seed and the same transfers.
    pub fn seeded(device: D, seed: u64, odds: Odds) -> Self {
        Self::new(device, Plan::Random(Random(seed), odds))
    }

    /// The count of faults, to keep when the device is plugged in.
    pub fn injected(&self) -> Injected {
        self.injected.clone()
    }

    /// The transfers that wait, to keep when the device is plugged in.
    pub fn waiting(&self) -> Waiting {
        self.waiting.clone()
    }

    /// What goes wrong with the next transfer at `endpoint`.
    fn draw(&mut self, endpoint: EndpointAddress) -> Option<Fault> {
        let fault = match &mut self.plan {
            Plan::Script(script) => script.get_mut(&endpoint)?.pop_front()?,
            Plan::Random(random, odds) => odds.draw(random),
        };
        if fault.is_some() {
            self.injected.0.fetch_add(1, Ordering::Relaxed);
        }
        fault
    }

    /// Shows the device the first `packets` packets of a transfer, but not the last one, and says how
    /// many bytes those are besides its answer; `None` if that is no packet at all.
    fn start(
        &mut self,
        endpoint: EndpointAddress,
        transfer: &mut Transfer<'_>,
        packets: usize,
    ) -> Option<(usize, Outcome)> {
        let packet = usize::from(transfer.max_packet).max(1);
        let last = transfer.buffer.len().saturating_sub(1);
        let whole = last.saturating_sub(last.checked_rem(packet).unwrap_or(0));
        let len = packets.saturating_mul(packet).min(whole);
        if len == 0 {
            return None;
        }
        let outcome = self.device.transfer(
            endpoint,
            &mut Transfer { buffer: &mut Prefix { buffer: transfer.buffer, len }, ..*transfer },
        );
        Some((len, outcome))
    }

    /// Lets the device see the first `packets` packets of a transfer, and fails the next one.
    fn fail_after(
        &mut self,
        endpoint: EndpointAddress,
        transfer: &mut Transfer<'_>,
        packets: usize,
        error: BusError,
    ) -> Outcome {
        match self.start(endpoint, transfer, packets) {
            None => Outcome::failed(0, error),
            // There is a next packet, and it is lost.
            Some((len, outcome)) if outcome == Outcome::complete(len) => {
                Outcome::failed(len, error)
            }
            Some((_, outcome)) => outcome,
        }
    }

    /// Ends a transfer after `packets` packets, if it has more.
    fn shorten(
        &mut self,
        endpoint: EndpointAddress,
        transfer: &mut Transfer<'_>,
        packets: usize,
    ) -> Outcome {
        if transfer.pid == Pid::In && packets == 0 && !transfer.buffer.is_empty() {
            return Outcome::complete(0);
        }
        match self.start(endpoint, transfer, packets.max(1)) {
            Some((_, outcome)) => outcome,
            None => self.device.transfer(endpoint, transfer),
        }
    }
}

impl Odds {
    fn draw(&self, random: &mut Random) -> Option<Fault> {
        /// What makes a host try again.
        const ERRORS: [BusError; 4] =
            [BusError::Timeout, BusError::Crc, BusError::BitStuffing, BusError::PidCheck];
        let mut chance = random.below(1000);
        let mut falls = |odds: u16| {
            let falls = chance < odds.into();
            chance = chance.wrapping_sub(odds.into());
            falls
        };
        if falls(self.nak) {
            Some(Fault::Nak)
        } else if falls(self.stall) {
            Some(Fault::Stall)
        } else if falls(self.error) {
            let packets = random.below(4) as usize;
            let error = ERRORS.get(random.below(4) as usize).copied().unwrap_or(BusError::Timeout);
            Some(Fault::ErrorAfter(packets, error))
        } else if falls(self.babble) {
            Some(Fault::Error(BusError::Babble))
        } else if falls(self.wait) {
            Some(if random.below(2) == 0 { Fault::Pending } else { Fault::Park })
        } else if falls(self.short) {
            Some(Fault::Short(random.below(4) as usize))
        } else if falls(self.hang) {
            Some(Fault::Hang)
        } else {
            None
        }
    }
}

impl<D: UsbDevice> UsbDevice for Faulty<D> {
    fn description(&self) -> &Description {
        self.device.description()
    }

    fn attached(&mut self, notifier: Notifier) {
        self.waiting.lock().notifier = Some(notifier.clone());
        self.device.attached(notifier);
    }

    fn configured(&mut self, value: u8) {
        self.waiting.forget_all();
        // A bus reset; so is the choice of no configuration.
        self.hung &= value != 0;
        self.device.configured(value);
    }

    fn interface_selected(&mut self, interface: u8, alternate: u8) {
        self.device.interface_selected(interface, alternate);
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        // Chance spares class requests: a host's recovery consists of them.
        let fault = match self.plan {
            Plan::Script(_) => self.draw(EndpointAddress::CONTROL),
            Plan::Random(..) => None,
        };
        match fault {
            _ if self.hung => Control::Stall,
            Some(Fault::Stall) => Control::Stall,
            _ => self.device.control(request, data),
        }
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        if self.hung {
            return Outcome::TIMEOUT;
        }
        let held = self.waiting.lock().answers.get(&endpoint).copied();
        match held {
            Some(Some(answer)) => return answer,
            Some(None) => {
                self.waiting.forget(endpoint);
                return self.device.transfer(endpoint, transfer);
            }
            None => {}
        }
        match self.draw(endpoint) {
            None => self.device.transfer(endpoint, transfer),
            Some(Fault::Nak) => Outcome::NAK,
            Some(Fault::Stall) => Outcome::STALL,
            Some(Fault::Error(error)) => Outcome::failed(0, error),
            Some(Fault::ErrorAfter(packets, error)) => {
                self.fail_after(endpoint, transfer, packets, error)
            }
            Some(Fault::Pending) => self.waiting.hold(endpoint, Outcome::PENDING),
            Some(Fault::Park) => self.waiting.hold(endpoint, Outcome::PARK),
            Some(Fault::Short(packets)) => self.shorten(endpoint, transfer, packets),
            Some(Fault::Hang) => {
                self.hung = true;
                Outcome::TIMEOUT
            }
        }
    }

    fn isochronous(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        if self.hung {
            return Outcome::TIMEOUT;
        }
        match self.draw(endpoint) {
            Some(Fault::Hang) => {
                self.hung = true;
                Outcome::TIMEOUT
            }
            Some(Fault::Error(error) | Fault::ErrorAfter(_, error)) => {
                // The device spoke, or was spoken to, but nobody heard it.
                let mut lost = vec![0; transfer.buffer.len()];
                if transfer.pid == Pid::In {
                    let mut transfer = Transfer { buffer: &mut lost, ..*transfer };
                    self.device.isochronous(endpoint, &mut transfer);
                }
                Outcome::failed(0, error)
            }
            // There is no handshake to send, and no time to take.
            _ => self.device.isochronous(endpoint, transfer),
        }
    }

    fn cancel(&mut self, endpoint: EndpointAddress) {
        // The device has not seen what waits.
        if !self.waiting.forget(endpoint) {
            self.device.cancel(endpoint);
        }
    }

    fn halt_cleared(&mut self, endpoint: EndpointAddress) {
        self.waiting.forget(endpoint);
        self.device.halt_cleared(endpoint);
    }

    fn as_hub(&mut self) -> Option<&mut dyn UsbHub> {
        self.device.as_hub()
    }

    fn sleep(&mut self, sleep: LinkSleep) -> LinkAnswer {
        self.device.sleep(sleep)
    }

    fn suspension(&mut self, suspension: Suspension) {
        self.device.suspension(suspension);
    }

    fn save(&self, now: Time) -> Result<State, SaveError> {
        // How many faults there were is a statistic of this process. What waits has not begun.
        let Self { device, plan, hung, waiting: _, injected: _ } = self;
        let plan = match plan {
            Plan::Script(script) => {
                let mut script: Vec<_> =
                    script.iter().map(|(endpoint, faults)| (*endpoint, faults.clone())).collect();
                script.sort_by_key(|(endpoint, _)| endpoint.byte());
                PlanState::Script(script)
            }
            Plan::Random(random, _) => PlanState::Random(random.0),
        };
        State::of(KIND, &FaultyState { plan, hung: *hung, device: device.save(now)? })
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        let FaultyState { plan, hung, device } = state.to(KIND)?;
        self.hung = hung;
        self.waiting.forget_all();
        match (plan, &mut self.plan) {
            (PlanState::Script(script), Plan::Script(present)) => {
                *present = script.into_iter().collect();
            }
            (PlanState::Random(seed), Plan::Random(random, _)) => *random = Random(seed),
            (PlanState::Script(_), Plan::Random(..)) => {
                return Err(RestoreError::mismatch("faults by script", "faults by chance"));
            }
            (PlanState::Random(_), Plan::Script(_)) => {
                return Err(RestoreError::mismatch("faults by chance", "faults by script"));
            }
        }
        self.device.restore(&device, now)
    }
}

/// The first `len` bytes of a buffer.
struct Prefix<'a> {
    buffer: &'a mut dyn Buffer,
    len: usize,
}

impl Prefix<'_> {
    fn cut(&self, offset: usize, len: usize) -> usize {
        len.min(self.len.saturating_sub(offset))
    }
}

impl Buffer for Prefix<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let len = self.cut(offset, into.len());
        self.buffer.read(offset, into.get_mut(..len).unwrap_or_default())
    }

    fn write(&mut self, offset: usize, from: &[u8]) -> usize {
        let len = self.cut(offset, from.len());
        self.buffer.write(offset, from.get(..len).unwrap_or_default())
    }

    fn pieces(&mut self, offset: usize, len: usize, visit: &mut dyn FnMut(*mut u8, usize)) {
        let len = self.cut(offset, len);
        self.buffer.pieces(offset, len, visit);
    }

    fn written(&mut self, offset: usize, len: usize) {
        let len = self.cut(offset, len);
        self.buffer.written(offset, len);
    }
}

/// The SplitMix64 generator: small, and the same in every build.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `limit`.
    fn below(&mut self, limit: u32) -> u32 {
        (self.next() >> 32).checked_rem(limit.into()).unwrap_or(0) as u32
    }
}
