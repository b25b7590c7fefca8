//! A device on a bad day: faults on the bus and in the device, by script or by seed.
//!
//! [`Faulty`] stands before any device. A host that gets every byte across all the same recovers as it
//! should; the same seed brings the same faults every time.
//!
//! Faults reach data endpoints and class requests. The standard requests of endpoint 0 are answered
//! before any device sees them, so enumeration always works.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::{
    Buffer, BusError, Control, Description, EndpointAddress, LinkAnswer, LinkSleep, Notifier,
    Outcome, Pid, SetupPacket, Status, Suspension, Transfer, UsbDevice, UsbHub,
};

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

impl<D: UsbDevice> Faulty<D> {
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
        Self { device, plan: Plan::Script(plan), injected: Injected::default() }
    }

    /// Faults by chance, the same for the same seed and the same transfers.
    pub fn seeded(device: D, seed: u64, odds: Odds) -> Self {
        Self { device, plan: Plan::Random(Random(seed), odds), injected: Injected::default() }
    }

    /// The count of faults, to keep when the device is plugged in.
    pub fn injected(&self) -> Injected {
        self.injected.clone()
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

    /// Lets the device see the first `packets` packets of a transfer, and fails the next one.
    fn fail_after(
        &mut self,
        endpoint: EndpointAddress,
        transfer: &mut Transfer<'_>,
        packets: usize,
        error: BusError,
    ) -> Outcome {
        let packet = usize::from(transfer.max_packet).max(1);
        let last = transfer.buffer.len().saturating_sub(1);
        let whole = last.saturating_sub(last.checked_rem(packet).unwrap_or(0));
        let len = packets.saturating_mul(packet).min(whole);
        if len == 0 {
            return Outcome::failed(0, error);
        }
        let outcome = self.device.transfer(
            endpoint,
            &mut Transfer { buffer: &mut Prefix { buffer: transfer.buffer, len }, ..*transfer },
        );
        match outcome.status {
            // There is a next packet, and it is lost.
            Status::Complete if outcome.bytes == len => Outcome::failed(len, error),
            _ => outcome,
        }
    }
}

impl Odds {
    fn draw(&self, random: &mut Random) -> Option<Fault> {
        /// What makes a host try again.
        const ERRORS: [BusError; 4] =
            [BusError::Timeout, BusError::Crc, BusError::BitStuffing, BusError::PidCheck];
        let chance = random.below(1000);
        let stall = self.nak.saturating_add(self.stall);
        let error = stall.saturating_add(self.error);
        if chance < self.nak.into() {
            Some(Fault::Nak)
        } else if chance < stall.into() {
            Some(Fault::Stall)
        } else if chance < error.into() {
            let packets = random.below(4) as usize;
            let error = ERRORS.get(random.below(4) as usize).copied().unwrap_or(BusError::Timeout);
            Some(Fault::ErrorAfter(packets, error))
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
        self.device.attached(notifier);
    }

    fn configured(&mut self, value: u8) {
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
            Some(Fault::Stall) => Control::Stall,
            _ => self.device.control(request, data),
        }
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        match self.draw(endpoint) {
            None => self.device.transfer(endpoint, transfer),
            Some(Fault::Nak) => Outcome::NAK,
            Some(Fault::Stall) => Outcome::STALL,
            Some(Fault::Error(error)) => Outcome::failed(0, error),
            Some(Fault::ErrorAfter(packets, error)) => {
                self.fail_after(endpoint, transfer, packets, error)
            }
        }
    }

    fn isochronous(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        match self.draw(endpoint) {
            Some(Fault::Error(error) | Fault::ErrorAfter(_, error)) => {
                // The device spoke, or was spoken to, but nobody heard it.
                let mut lost = vec![0; transfer.buffer.len()];
                if transfer.pid == Pid::In {
                    let mut transfer = Transfer { buffer: &mut lost, ..*transfer };
                    self.device.isochronous(endpoint, &mut transfer);
                }
                Outcome::failed(0, error)
            }
            // There is no NAK and no STALL to send.
            _ => self.device.isochronous(endpoint, transfer),
        }
    }

    fn cancel(&mut self, endpoint: EndpointAddress) {
        self.device.cancel(endpoint);
    }

    fn halt_cleared(&mut self, endpoint: EndpointAddress) {
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
        // How many faults there were is a statistic of this process.
        let Self { device, plan, injected: _ } = self;
        let plan = match plan {
            Plan::Script(script) => {
                let mut script: Vec<_> =
                    script.iter().map(|(endpoint, faults)| (*endpoint, faults.clone())).collect();
                script.sort_by_key(|(endpoint, _)| endpoint.byte());
                PlanState::Script(script)
            }
            Plan::Random(random, _) => PlanState::Random(random.0),
        };
        State::of(KIND, &FaultyState { plan, device: device.save(now)? })
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        let FaultyState { plan, device } = state.to(KIND)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::storage::{RamDisk, Serial, Storage};
    use crate::usb::Toggle;

    const OUT: EndpointAddress = EndpointAddress::out(2);

    fn disk() -> Storage {
        Storage::new(RamDisk::zeroed(8), Serial::from_name("disk"))
    }

    fn offer(device: &mut impl UsbDevice, len: usize) -> Outcome {
        let mut buffer = vec![0; len];
        device.transfer(
            OUT,
            &mut Transfer {
                pid: Pid::Out,
                endpoint: 2,
                max_packet: 64,
                toggle: Toggle::Data0,
                now: Time::ZERO,
                buffer: &mut buffer,
            },
        )
    }

    #[test]
    fn a_script_is_followed_transfer_by_transfer_and_then_ends() {
        let script =
            [Some(Fault::Nak), None, Some(Fault::Error(BusError::Crc)), Some(Fault::Stall)];
        let mut device = Faulty::scripted(disk(), script.map(|fault| (OUT, fault)));
        let injected = device.injected();
        assert_eq!(offer(&mut device, 31), Outcome::NAK);
        assert_eq!(offer(&mut device, 31), Outcome::complete(31), "an invalid wrapper, but taken");
        assert_eq!(offer(&mut device, 31), Outcome::failed(0, BusError::Crc));
        assert_eq!(offer(&mut device, 31), Outcome::STALL);
        assert_eq!(injected.count(), 3);
    }

    #[test]
    fn an_error_after_some_packets_lets_the_device_see_just_those() {
        let fail = |packets| Some(Fault::ErrorAfter(packets, BusError::Timeout));
        let mut device = Faulty::scripted(disk(), [(OUT, fail(1)), (OUT, fail(9)), (OUT, fail(0))]);
        // The first packet is no command: the disk takes it and then only stalls.
        assert_eq!(offer(&mut device, 200), Outcome::failed(64, BusError::Timeout));
        assert_eq!(offer(&mut device, 200), Outcome::STALL, "what the device says goes first");
        assert_eq!(offer(&mut device, 200), Outcome::failed(0, BusError::Timeout));
    }

    #[test]
    fn the_same_seed_brings_the_same_faults() {
        let odds = Odds { nak: 100, stall: 50, error: 100 };
        let faults = |seed| {
            let mut device = Faulty::seeded(disk(), seed, odds);
            (0..2000).map(|_| device.draw(OUT)).collect::<Vec<_>>()
        };
        assert_eq!(faults(7), faults(7));
        assert_ne!(faults(7), faults(8));
        let all = faults(7);
        let count = |fault| all.iter().filter(|drawn| **drawn == Some(fault)).count();
        assert!((150..250).contains(&count(Fault::Nak)), "a tenth of 2000");
        assert!((60..140).contains(&count(Fault::Stall)));
        assert!(count(Fault::ErrorAfter(2, BusError::Crc)) > 0);
    }
}
