//! One root hub port: connection, enabling, reset, suspend (OHCI 1.0a, 7.4.4; USB 1.1, 11.5).

use serde::{Deserialize, Serialize};

use super::endpoints::{Endpoints, Flight, Gate, Offer};
use super::spec::{HcRhPortStatus, is_low};
use crate::journal::PortState;
use crate::snapshot::Offset;
use crate::time::Time;
use crate::topology::PortLink;
use crate::usb::{EndpointAddress, Function, Outcome, Readiness, Status, Suspension, Transfer};

/// Length of a port's reset: long enough for every driver to see PRS set, short enough for the ones
/// that give up after 20 ms.
const RESET_MILLIS: u64 = 10;
/// Resume signalling, a low-speed end of packet, and 3 ms for the device to get ready.
const RESUME_MILLIS: u64 = 23;

/// What a port drives on its bus segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum Signal<T = Time> {
    Reset { until: T },
    Resume { until: T },
}

impl Signal {
    fn until(self) -> Time {
        match self {
            Self::Reset { until } | Self::Resume { until } => until,
        }
    }
}

impl<T> Signal<T> {
    fn map<U>(self, moment: impl FnOnce(T) -> U) -> Signal<U> {
        match self {
            Self::Reset { until } => Signal::Reset { until: moment(until) },
            Self::Resume { until } => Signal::Resume { until: moment(until) },
        }
    }
}

/// A [`RootPort`] in a snapshot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedPort {
    status: HcRhPortStatus,
    generation: Option<u64>,
    signal: Option<Signal<Offset>>,
    suspended: bool,
    streams: Option<u8>,
    draws_too_much: bool,
}

/// What a look at a port brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// A change bit was set.
    pub(super) changed: bool,
    /// A device came or went.
    pub(super) connection: bool,
    /// An endpoint has something to say.
    pub(super) ready: bool,
    /// The device signals resume.
    pub(super) wakeup: bool,
}

/// A root hub port and what is known of the endpoints behind it.
#[derive(Debug)]
pub(super) struct RootPort {
    link: PortLink,
    status: HcRhPortStatus,
    /// The plugging that `status` tells of; `None` makes the port look afresh.
    generation: Option<u64>,
    signal: Option<Signal>,
    /// The socket draws too much current, as of the last look.
    draws_too_much: bool,
    /// Whether the device has been told that its bus is idle.
    suspended: bool,
    /// Address of the last device that was seen to have isochronous endpoints in its present settings.
    streams: Option<u8>,
    endpoints: Endpoints,
}

impl RootPort {
    pub(super) fn new(link: PortLink) -> Self {
        Self {
            link,
            status: HcRhPortStatus::new(),
            generation: None,
            signal: None,
            draws_too_much: false,
            suspended: false,
            streams: None,
            endpoints: Endpoints::default(),
        }
    }

    pub(super) fn save(&self, now: Time) -> SavedPort {
        let Self {
            link: _,
            status,
            generation,
            signal,
            suspended,
            streams,
            draws_too_much,
            // Every endpoint is asked again.
            endpoints: _,
        } = self;
        SavedPort {
            status: *status,
            generation: *generation,
            signal: signal.map(|signal| signal.map(|until| Offset::of(until, now))),
            suspended: *suspended,
            streams: *streams,
            draws_too_much: *draws_too_much,
        }
    }

    pub(super) fn restore(&mut self, state: SavedPort, now: Time) {
        self.cut_off();
        let SavedPort { status, generation, signal, suspended, streams, draws_too_much } = state;
        self.status = status;
        self.generation = generation;
        self.signal = signal.map(|signal| signal.map(|until| until.at(now)));
        self.suspended = suspended;
        self.streams = streams;
        self.draws_too_much = draws_too_much;
    }

    /// HcRhPortStatus as it reads.
    pub(super) fn status(&self) -> HcRhPortStatus {
        self.status
    }

    /// What the port is to this controller, in a word. A port that its EHCI controller owns looks
    /// empty.
    pub(super) fn state(&self) -> PortState {
        match self.status {
            status if status.prs() => PortState::Resetting,
            _ if matches!(self.signal, Some(Signal::Resume { .. })) => PortState::Resuming,
            status if status.pss() => PortState::Suspended,
            status if status.pes() => PortState::Enabled,
            status if status.ccs() => PortState::Connected,
            _ => PortState::Empty,
        }
    }

    /// Hardware reset.
    pub(super) fn reset(&mut self, powered: bool) {
        self.reset_bus();
        self.status = HcRhPortStatus::new().with_pps(powered);
        self.generation = None;
    }

    /// Reset signalling from the controller (HcControl). What becomes of the port's status is not
    /// spelled out by the specification; a device that was reset is at any rate not enabled.
    pub(super) fn reset_bus(&mut self) {
        self.cut_off();
        self.signal = None;
        self.status.set_pes(false);
        self.status.set_pss(false);
        self.status.set_prs(false);
        self.reset_device();
    }

    /// Global resume ends the suspension of every port (7.1.2).
    pub(super) fn resume_bus(&mut self) {
        if !self.status.prs() {
            self.signal = None;
        }
        self.status.set_pss(false);
    }

    /// When the port's signalling ends.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.signal.map(Signal::until)
    }

    /// Ends signalling whose time has come.
    pub(super) fn tick(&mut self, now: Time) -> News {
        let mut news = News::default();
        let Some(signal) = self.signal.take_if(|signal| signal.until() <= now) else {
            return news;
        };
        news.changed = true;
        self.status.set_pss(false);
        match signal {
            Signal::Reset { .. } => {
                self.status.set_prs(false);
                self.status.set_prsc(true);
                self.status.set_pssc(false);
                self.status.set_pes(self.status.ccs());
            }
            Signal::Resume { .. } => self.status.set_pssc(true),
        }
        news
    }

    /// Looks at the socket, and listens to the device.
    pub(super) fn look(&mut self) -> News {
        let mut news = News::default();
        for endpoint in self.link.take_ready() {
            self.endpoints.ready(endpoint);
            news.ready = true;
        }
        news.wakeup = self.link.take_remote_wakeup();
        let view = self.link.view();
        self.draws_too_much = view.over_current;
        if self.status.pps() && self.generation != Some(view.generation) {
            self.generation = Some(view.generation);
            let before = self.status.ccs();
            if before {
                self.disconnect();
            }
            if let Some(speed) = view.device {
                self.status.set_ccs(true);
                self.status.set_lsda(is_low(speed));
                self.suspended = false;
            }
            // A device that was pulled and put back between two looks is a new one.
            if before || view.device.is_some() {
                self.status.set_csc(true);
                news.changed = true;
                news.connection = true;
            }
        }
        news
    }

    fn disconnect(&mut self) {
        self.cut_off();
        if self.status.pes() {
            self.status.set_pesc(true);
        }
        // A driver that polls for the end of a reset is not left waiting.
        if self.status.prs() {
            self.status.set_prsc(true);
        }
        self.signal = None;
        self.status.set_ccs(false);
        self.status.set_pes(false);
        self.status.set_pss(false);
        self.status.set_prs(false);
        self.status.set_lsda(false);
    }

    /// Switches power; returns whether a change bit was set.
    pub(super) fn set_power(&mut self, on: bool) -> bool {
        if self.status.pps() == on {
            return false;
        }
        let before = self.status.pesc();
        if on {
            // Look at the socket again: what is plugged in is connected now.
            self.generation = None;
        } else {
            if self.status.ccs() {
                self.reset_device();
            }
            let reset_change = self.status.prsc();
            self.disconnect();
            self.status.set_prsc(reset_change);
        }
        self.status.set_pps(on);
        self.status.pesc() != before
    }

    /// Carries out a power command. While the port has over-current, it stays without power: a switch
    /// that is turned on trips again.
    pub(super) fn switch_power(&mut self, on: bool) -> bool {
        !(on && self.status.poci()) && self.set_power(on)
    }

    /// Whether the socket draws too much current.
    pub(super) fn draws_too_much(&self) -> bool {
        self.draws_too_much
    }

    /// Shows over-current if the port watches for it itself (7.4.4, POCI and OCIC); returns whether a
    /// change bit was set.
    pub(super) fn set_over_current(&mut self, watched: bool, switchable: bool) -> bool {
        let poci = watched && self.draws_too_much;
        if poci == self.status.poci() {
            return false;
        }
        self.status.set_poci(poci);
        self.status.set_ocic(true);
        if poci {
            self.trip(switchable);
        }
        true
    }

    /// Over-current takes the port's power, or, where that cannot be switched, its enabling.
    pub(super) fn trip(&mut self, switchable: bool) {
        if switchable {
            self.set_power(false);
        } else if self.status.pes() {
            self.cut_off();
            self.status.set_pes(false);
            self.status.set_pesc(true);
        }
    }

    /// Carries out the commands of a write to HcRhPortStatus; `switched` tells whether the port obeys
    /// power commands of its own. Returns whether a change bit was set.
    ///
    /// The specification does not say in which order several commands in one write take effect.
    pub(super) fn write(&mut self, value: u32, switched: bool, now: Time) -> bool {
        let command = HcRhPortStatus::from_bits(value);
        let status = self.status.into_bits() & !(value & HcRhPortStatus::CHANGES);
        self.status = HcRhPortStatus::from_bits(status);
        let mut changed = false;
        if switched && command.lsda() {
            changed |= self.switch_power(false);
        }
        if switched && command.pps() {
            changed |= self.switch_power(true);
        }
        if command.ccs() {
            self.status.set_pes(false);
            self.cut_off();
        }
        if (command.pes() || command.pss() || command.prs()) && !self.status.ccs() {
            // The driver thinks there is a device: tell it that there is none.
            self.status.set_csc(true);
            return true;
        }
        if command.pes() {
            self.status.set_pes(true);
        }
        if command.pss() {
            self.status.set_pss(true);
            self.cut_off();
        }
        if command.poci() {
            self.resume(now);
        }
        if command.prs() && !self.status.prs() {
            self.cut_off();
            self.status.set_prs(true);
            self.signal = Some(Signal::Reset { until: now.after_millis(RESET_MILLIS) });
            self.reset_device();
        }
        changed
    }

    /// Begins to resume the port, if it is suspended and does not resume or reset already.
    pub(super) fn resume(&mut self, now: Time) -> bool {
        let begins = self.status.pss() && self.signal.is_none();
        if begins {
            self.signal = Some(Signal::Resume { until: now.after_millis(RESUME_MILLIS) });
        }
        begins
    }

    /// Tells the device when its bus goes idle or comes back.
    pub(super) fn tell_suspension(&mut self, bus_idle: bool) {
        let resuming = matches!(self.signal, Some(Signal::Resume { .. }));
        let idle = self.status.ccs() && (bus_idle || (self.status.pss() && !resuming));
        if idle != self.suspended {
            self.suspended = idle;
            let suspension = if idle { Suspension::Suspended } else { Suspension::Resumed };
            self.link.with(|function| function.suspension(suspension));
        }
    }

    /// Whether packets pass.
    pub(super) fn passes(&self) -> bool {
        self.status.pes() && !self.status.pss() && !self.status.prs()
    }

    /// Whether a device behind the port listens to `address` at this speed.
    pub(super) fn answers(&self, address: u8, low_speed: bool) -> bool {
        let matches = |function: &mut Function| is_low(function.speed()) == low_speed;
        self.passes()
            && self.link.with(|function| function.reach(address, matches)).flatten() == Some(true)
    }

    /// Whether the device is to be asked for what `offer` says.
    pub(super) fn gate(&mut self, endpoint: EndpointAddress, offer: &Offer, seen: u32) -> bool {
        match self.endpoints.gate(endpoint, offer, seen) {
            Gate::Open => true,
            Gate::Shut => false,
            Gate::Replaced => {
                self.link.with(|function| function.cancel_at(offer.address(), endpoint));
                self.endpoints.answered((offer.address(), endpoint));
                true
            }
        }
    }

    /// Hands the device a transfer and remembers how the endpoint stands.
    pub(super) fn transact(
        &mut self,
        endpoint: EndpointAddress,
        transfer: Transfer<'_>,
        offer: Offer,
        seen: u32,
    ) -> Outcome {
        let pipe = (offer.address(), endpoint);
        let answer = self.link.with(|function| {
            function.reach(offer.address(), |function| function.transact(transfer))
        });
        let outcome = answer.flatten().unwrap_or(Outcome::TIMEOUT);
        if endpoint == EndpointAddress::CONTROL {
            self.endpoints.unpark();
            self.note_streams(offer.address());
        }
        match outcome.status {
            Status::Pending => self.endpoints.take_off(endpoint, offer, seen),
            Status::Nak(Readiness::Announced) => self.endpoints.park(pipe),
            _ => self.endpoints.answered(pipe),
        }
        outcome
    }

    /// Hands the device the packet of an isochronous endpoint for this frame.
    pub(super) fn isochronous(&mut self, address: u8, transfer: Transfer<'_>) -> Outcome {
        let answer = self
            .link
            .with(|function| function.reach(address, |function| function.isochronous(transfer)));
        answer.flatten().unwrap_or(Outcome::TIMEOUT)
    }

    /// A request may have selected isochronous endpoints, or others.
    fn note_streams(&mut self, address: u8) {
        let streams =
            self.link.with(|function| function.reach(address, |f| f.has_isochronous())).flatten();
        if streams == Some(true) {
            self.streams = Some(address);
        } else if self.streams == Some(address) {
            self.streams = None;
        }
    }

    /// Whether a driver may be about to schedule isochronous transfers.
    pub(super) fn may_stream(&self) -> bool {
        self.streams.is_some() && self.passes()
    }

    pub(super) fn has_flights(&self) -> bool {
        self.endpoints.has_flights()
    }

    /// Takes back the transfers in flight for which `keep` is false.
    pub(super) fn retain_flights(&mut self, keep: impl FnMut(&Flight) -> bool) {
        self.endpoints.retain(keep, |(address, endpoint)| {
            self.link.with(|function| function.cancel_at(address, endpoint));
        });
    }

    /// Takes back everything and forgets what the endpoints were up to.
    fn cut_off(&mut self) {
        self.retain_flights(|_| false);
        self.endpoints.unpark();
    }

    fn reset_device(&mut self) {
        self.streams = None;
        self.link.with(|function| function.bus_reset(self.link.fastest()));
    }
}
