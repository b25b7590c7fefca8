//! A hub's port and the states it goes through (USB 2.0, 11.5).

use serde::{Deserialize, Serialize};

use crate::journal::PortState;
use crate::snapshot::Offset;
use crate::time::Time;
use crate::topology::{Host, Port, PortLink};
use crate::usb::{Function, Speed, SplitToken, Suspension, TransferType};

/// Length of a port's reset: TDRST (USB 2.0, 7.1.7.5).
const RESET_MILLIS: u64 = 10;
/// Length of resume signalling: TDRSMDN (USB 2.0, 7.1.7.7).
const RESUME_MILLIS: u64 = 20;

/// `wPortStatus` (USB 2.0, 11.24.2.7.1).
mod status {
    pub(super) const CONNECTION: u16 = 1;
    pub(super) const ENABLE: u16 = 1 << 1;
    pub(super) const SUSPEND: u16 = 1 << 2;
    pub(super) const OVER_CURRENT: u16 = 1 << 3;
    pub(super) const RESET: u16 = 1 << 4;
    pub(super) const POWER: u16 = 1 << 8;
    pub(super) const LOW_SPEED: u16 = 1 << 9;
    pub(super) const HIGH_SPEED: u16 = 1 << 10;
    pub(super) const TEST: u16 = 1 << 11;
    pub(super) const INDICATOR: u16 = 1 << 12;
}

/// `wPortChange`: bit n is feature 16 + n (USB 2.0, 11.24.2.7.2).
pub(super) mod change {
    pub(in super::super) const CONNECTION: u16 = 1;
    pub(in super::super) const ENABLE: u16 = 1 << 1;
    pub(in super::super) const SUSPEND: u16 = 1 << 2;
    pub(in super::super) const OVER_CURRENT: u16 = 1 << 3;
    pub(in super::super) const RESET: u16 = 1 << 4;
    /// All there are.
    pub(in super::super) const ALL: u16 = 0x1f;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum State<T = Time> {
    /// The hub is not configured.
    NotConfigured,
    PoweredOff,
    Disconnected,
    Disabled,
    Resetting {
        until: T,
    },
    Enabled,
    Suspended,
    Resuming {
        until: T,
    },
}

impl<T> State<T> {
    fn map<U>(self, moment: impl FnOnce(T) -> U) -> State<U> {
        match self {
            Self::NotConfigured => State::NotConfigured,
            Self::PoweredOff => State::PoweredOff,
            Self::Disconnected => State::Disconnected,
            Self::Disabled => State::Disabled,
            Self::Resetting { until } => State::Resetting { until: moment(until) },
            Self::Enabled => State::Enabled,
            Self::Suspended => State::Suspended,
            Self::Resuming { until } => State::Resuming { until: moment(until) },
        }
    }
}

/// A [`HubPort`] in a snapshot; the socket has a state of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedPort {
    state: State<Offset>,
    change: u16,
    over_current: bool,
    indicator: bool,
    testing: bool,
    generation: Option<u64>,
    fastest: Speed,
}

/// What a look at ports brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// A change bit was set.
    pub(super) changed: bool,
    /// The device of a suspended port signals resume.
    pub(super) resuming: bool,
    /// The device of an enabled port does, so the hub was suspended with it.
    pub(super) resumed: bool,
}

impl News {
    pub(super) fn merge(&mut self, other: Self) {
        self.changed |= other.changed;
        self.resuming |= other.resuming;
        self.resumed |= other.resumed;
    }
}

/// A port.
#[derive(Debug)]
pub(super) struct HubPort {
    link: PortLink,
    state: State,
    change: u16,
    over_current: bool,
    /// Whether software has taken the indicator over.
    indicator: bool,
    testing: bool,
    /// The plugging that the state tells of; `None` makes the port look afresh.
    generation: Option<u64>,
    /// The speed of the hub's own bus, the fastest a device can have here.
    fastest: Speed,
}

impl HubPort {
    pub(super) fn new(port: &Port) -> Self {
        Self {
            link: port.link(Host::Classic),
            state: State::NotConfigured,
            change: 0,
            over_current: false,
            indicator: false,
            testing: false,
            generation: None,
            fastest: Speed::Full,
        }
    }

    pub(super) fn save(&self, now: Time) -> SavedPort {
        let Self {
            // The socket has a state of its own.
            link: _,
            state,
            change,
            over_current,
            indicator,
            testing,
            generation,
            fastest,
        } = self;
        SavedPort {
            state: state.map(|until| Offset::of(until, now)),
            change: *change,
            over_current: *over_current,
            indicator: *indicator,
            testing: *testing,
            generation: *generation,
            fastest: *fastest,
        }
    }

    pub(super) fn restore(&mut self, state: &SavedPort, now: Time) {
        let SavedPort { state, change, over_current, indicator, testing, generation, fastest } =
            state;
        self.state = state.map(|until| until.at(now));
        self.change = change & change::ALL;
        self.over_current = *over_current;
        self.indicator = *indicator;
        self.testing = *testing;
        self.generation = *generation;
        self.fastest = *fastest;
    }

    pub(super) fn set_fastest(&mut self, speed: Speed) {
        self.fastest = speed;
    }

    /// The hub was configured or is not any more: the port has no power yet.
    pub(super) fn configure(&mut self, configured: bool) {
        self.cut_power();
        self.state = if configured { State::PoweredOff } else { State::NotConfigured };
        self.change = 0;
        self.indicator = false;
        self.testing = false;
    }

    /// SetPortFeature(PORT_POWER).
    pub(super) fn power_on(&mut self, now: Time) {
        if self.state == State::PoweredOff {
            self.state = State::Disconnected;
            self.generation = None;
            self.look(now);
        }
    }

    /// ClearPortFeature(PORT_POWER): the port is dead. Its device keeps its power if the whole gang is
    /// powered and others need it, which [`cut_power`](Self::cut_power) tells apart.
    pub(super) fn power_off(&mut self) {
        if self.state != State::NotConfigured {
            self.with(Function::quiesce);
            self.state = State::PoweredOff;
        }
    }

    /// The device forgets everything.
    pub(super) fn cut_power(&mut self) {
        let fastest = self.fastest;
        self.with(|function| function.bus_reset(fastest));
    }

    /// Over-current takes the power away (USB 2.0, 11.12.5).
    pub(super) fn lose_power(&mut self) {
        self.power_off();
        self.cut_power();
    }

    pub(super) fn is_powered(&self) -> bool {
        !matches!(self.state, State::NotConfigured | State::PoweredOff)
    }

    /// SetPortFeature(PORT_RESET).
    pub(super) fn begin_reset(&mut self, now: Time) {
        if self.is_powered() {
            self.with(Function::quiesce);
            self.state = State::Resetting { until: now.after_millis(RESET_MILLIS) };
        }
    }

    /// ClearPortFeature(PORT_ENABLE).
    pub(super) fn disable(&mut self) {
        if self.is_on_the_bus() {
            self.with(Function::quiesce);
            self.state = State::Disabled;
        }
    }

    /// SetPortFeature(PORT_SUSPEND).
    pub(super) fn suspend(&mut self) {
        if self.state == State::Enabled {
            self.with(|function| {
                function.quiesce();
                function.suspension(Suspension::Suspended);
            });
            self.state = State::Suspended;
        }
    }

    /// ClearPortFeature(PORT_SUSPEND), or the device signals resume.
    pub(super) fn resume(&mut self, now: Time) {
        if self.state == State::Suspended {
            self.state = State::Resuming { until: now.after_millis(RESUME_MILLIS) };
        }
    }

    /// SetPortFeature(PORT_TEST): only of a port that is out of use, and only a reset of the hub ends
    /// it. There is no signal to look at.
    pub(super) fn test(&mut self) -> bool {
        let idle = matches!(self.state, State::Disconnected | State::Disabled | State::Suspended);
        self.testing |= idle;
        idle
    }

    /// SetPortFeature and ClearPortFeature(PORT_INDICATOR).
    pub(super) fn set_indicator(&mut self, by_software: bool) {
        self.indicator = by_software;
    }

    /// Clears change bits.
    pub(super) fn acknowledge(&mut self, bits: u16) {
        self.change &= !bits;
    }

    pub(super) fn has_change(&self) -> bool {
        self.change != 0
    }

    pub(super) fn has_over_current(&self) -> bool {
        self.over_current
    }

    /// Whether time alone will change the state.
    pub(super) fn is_timed(&self) -> bool {
        matches!(self.state, State::Resetting { .. } | State::Resuming { .. })
    }

    /// What the log is told.
    pub(super) fn state(&self) -> PortState {
        match self.state {
            State::NotConfigured | State::PoweredOff | State::Disconnected => PortState::Empty,
            State::Disabled => PortState::Connected,
            State::Resetting { .. } => PortState::Resetting,
            State::Enabled => PortState::Enabled,
            State::Suspended => PortState::Suspended,
            State::Resuming { .. } => PortState::Resuming,
        }
    }

    fn is_on_the_bus(&self) -> bool {
        matches!(self.state, State::Enabled | State::Suspended | State::Resuming { .. })
    }

    /// Ends signalling whose time has come.
    pub(super) fn tick(&mut self, now: Time) -> News {
        match self.state {
            State::Resetting { until } if until <= now => {
                let fastest = self.fastest;
                let present = self.with(|function| function.bus_reset(fastest)).is_some();
                self.state = if present { State::Enabled } else { State::Disconnected };
                self.change |= change::RESET;
            }
            State::Resuming { until } if until <= now => {
                self.with(|function| function.suspension(Suspension::Resumed));
                self.state = State::Enabled;
                self.change |= change::SUSPEND;
            }
            _ => return News::default(),
        }
        News { changed: true, ..News::default() }
    }

    /// Looks at the socket, and listens to the device.
    pub(super) fn look(&mut self, now: Time) -> News {
        let before = self.change;
        let mut news = News::default();
        let view = self.link.view();
        let babble = self.link.take_babble();
        let wakeup = self.link.take_remote_wakeup();
        if self.is_powered() && self.generation != Some(view.generation) {
            self.generation = Some(view.generation);
            let was = self.state != State::Disconnected;
            self.state = if view.occupied { State::Disabled } else { State::Disconnected };
            // A device that was pulled and put back between two looks is a new one.
            if was || view.occupied {
                self.change |= change::CONNECTION;
            }
        } else if babble && self.is_on_the_bus() {
            // The device talked past the end of a frame (USB 2.0, 11.8.1).
            self.disable();
            self.change |= change::ENABLE;
        } else if wakeup {
            news.resumed = self.state == State::Enabled;
            news.resuming = self.state == State::Suspended;
            self.resume(now);
        }
        if view.over_current != self.over_current {
            self.over_current = view.over_current;
            self.change |= change::OVER_CURRENT;
            if view.over_current {
                self.lose_power();
            }
        }
        news.changed = self.change & !before != 0;
        news
    }

    /// `wPortStatus` and `wPortChange`.
    pub(super) fn status(&self) -> [u16; 2] {
        let mut bits = match self.state {
            State::NotConfigured | State::PoweredOff | State::Disconnected => 0,
            State::Disabled => status::CONNECTION,
            State::Resetting { .. } => status::RESET,
            State::Enabled => status::CONNECTION | status::ENABLE,
            State::Suspended | State::Resuming { .. } => {
                status::CONNECTION | status::ENABLE | status::SUSPEND
            }
        };
        if self.is_powered() {
            bits |= status::POWER;
            let view = self.link.view();
            if matches!(self.state, State::Resetting { .. }) && view.occupied {
                bits |= status::CONNECTION;
            }
            // A high-speed device is one only once it was reset.
            match view.device {
                Some(Speed::Low) => bits |= status::LOW_SPEED,
                Some(_) if self.is_on_the_bus() && self.speed() == Some(Speed::High) => {
                    bits |= status::HIGH_SPEED;
                }
                _ => {}
            }
        }
        for (on, bit) in [
            (self.over_current, status::OVER_CURRENT),
            (self.testing, status::TEST),
            (self.indicator, status::INDICATOR),
        ] {
            bits |= if on { bit } else { 0 };
        }
        [bits, self.change]
    }

    fn speed(&self) -> Option<Speed> {
        self.link.with(|function| function.speed())
    }

    /// The hub's own bus goes idle or comes back: so does that of a device that is not suspended.
    pub(super) fn tell(&mut self, suspension: Suspension) {
        if self.state == State::Enabled {
            self.with(|function| {
                if suspension == Suspension::Suspended {
                    function.quiesce();
                }
                function.suspension(suspension);
            });
        }
    }

    /// The device, whatever the state.
    pub(super) fn with<R>(&mut self, action: impl FnOnce(&mut Function) -> R) -> Option<R> {
        self.link.with(action)
    }

    /// Shows the device a packet, if packets pass.
    pub(super) fn repeat(&mut self, visit: impl FnOnce(&mut Function) -> bool) -> bool {
        self.state == State::Enabled && self.link.with(visit) == Some(true)
    }
}

/// The full- and low-speed bus behind a transaction translator.
pub(super) struct SlowBus<'a> {
    ports: &'a mut [HubPort],
    news: u64,
}

impl<'a> SlowBus<'a> {
    /// `news` is how many announcements and requests there were before anything of what follows.
    pub(super) fn new(ports: &'a mut [HubPort], news: u64) -> Self {
        Self { ports, news }
    }

    /// How many announcements and requests there were: a promise to announce that is older than the
    /// latest of them may be over.
    pub(super) fn news(&self) -> u64 {
        self.news
    }

    /// Calls `action` with the device a split is for; `None` if nobody listens.
    pub(super) fn reach<R>(
        &mut self,
        token: &SplitToken,
        action: impl FnOnce(&mut Function) -> R,
    ) -> Option<R> {
        let speed = if token.low_speed && token.transfer_type != TransferType::Isochronous {
            Speed::Low
        } else {
            Speed::Full
        };
        let (mut action, mut answer) = (Some(action), None);
        for port in self.ports.iter_mut() {
            let heard = port.repeat(|function| {
                if function.speed() == Speed::High {
                    return false;
                }
                let found = function.reach(token.device, |function| {
                    let action = action.take().filter(|_| function.speed() == speed);
                    answer = action.map(|action| action(function));
                });
                found.is_some()
            });
            if heard {
                break;
            }
        }
        answer
    }
}
