//! A hub: ports behind a port (USB 2.0, chapter 11).
//!
//! At high speed, a hub repeats to high-speed devices and reaches the others through its transaction
//! translators; at full speed it repeats everything. Plug devices into
//! [`Hub::ports`] before or after the hub itself is plugged in.
//!
//! A hub has no clock. It learns the time with each transfer that is addressed to it, so a port's reset
//! or resume ends with the first one after its time. While one goes on, the status change endpoint
//! asks its host to poll; otherwise it waits for a change and costs nothing.

mod description;
mod port;
mod requests;
mod saved;
mod translator;

use std::sync::Arc;

use thiserror::Error;

use self::port::{HubPort, SlowBus};
use self::translator::Translator;
use crate::journal::{Journal, PortJournal, PortState};
use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;
use crate::topology::Port;
use crate::usb::{
    CompleteAnswer, CompleteSplit, Control, Description, EndpointAddress, Function, Notifier,
    Outcome, SetupPacket, Speed, StartAnswer, StartSplit, Suspension, Transfer, Upstream,
    UsbDevice, UsbHub,
};

/// Most ports of a hub. The descriptors have room for 255; no hub that is sold has more than a few,
/// and guests stop at 15 to 31.
pub const MOST_PORTS: u8 = 15;

/// The endpoint that tells of changes (USB 2.0, 11.12.1).
const STATUS_CHANGE: EndpointAddress = EndpointAddress::r#in(1);

/// How the power of a hub's ports is switched (USB 2.0, 11.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PowerSwitching {
    /// For all ports together; over-current is reported for the whole hub.
    Ganged,
    /// For each port; so is over-current.
    #[default]
    Individual,
}

/// How many transaction translators a high-speed hub has (USB 2.0, 11.14.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Translators {
    /// One for all ports.
    #[default]
    Single,
    /// One for each port, if the host selects the alternate setting that says so.
    Multiple,
}

/// When the result of a control or bulk transaction behind a translator is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Translation {
    /// As soon as the device has answered.
    #[default]
    Prompt,
    /// When the packets would have passed a bus of 12 or 1.5 Mbit/s.
    Wire,
}

/// What kind of hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubOptions {
    /// Ports, 1 to [`MOST_PORTS`].
    pub ports: u8,
    /// High: a high-speed hub, which falls back to full speed. Full: a full-speed one.
    pub speed: Speed,
    /// Transaction translators, at high speed.
    pub translators: Translators,
    /// Their pace.
    pub translation: Translation,
    /// Power switching.
    pub power: PowerSwitching,
    /// Serial number string; empty for none.
    pub serial: String,
}

impl Default for HubOptions {
    /// Seven ports at high speed behind one translator, switched one by one.
    fn default() -> Self {
        Self {
            ports: 7,
            speed: Speed::High,
            translators: Translators::default(),
            translation: Translation::default(),
            power: PowerSwitching::default(),
            serial: String::new(),
        }
    }
}

/// Why there is no such hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HubError {
    /// Too few or too many ports.
    #[error("a hub cannot have {0} ports: choose 1 to {MOST_PORTS}")]
    Ports(u8),
    /// There are no low-speed hubs.
    #[error("there are no low-speed hubs: choose high or full speed")]
    LowSpeed,
}

/// A hub.
pub struct Hub {
    options: HubOptions,
    description: Description,
    upstream: Arc<Upstream>,
    notifier: Option<Notifier>,
    sockets: Vec<Port>,
    ports: Vec<HubPort>,
    /// One, or one for each port.
    translators: Vec<Translator>,
    /// The speed of the bus the hub is on.
    speed: Speed,
    now: Time,
    /// Its address at the last transfer, by which the log names it.
    address: u8,
    suspended: bool,
    /// C_HUB_OVER_CURRENT.
    over_current_change: bool,
    over_current: bool,
    journal: PortJournal,
}

impl Hub {
    /// A hub that is not plugged in yet.
    ///
    /// # Errors
    /// If there is no such hub.
    pub fn new(options: HubOptions) -> Result<Self, HubError> {
        if options.ports == 0 || options.ports > MOST_PORTS {
            return Err(HubError::Ports(options.ports));
        }
        if options.speed == Speed::Low {
            return Err(HubError::LowSpeed);
        }
        let upstream = Arc::new(Upstream::default());
        let sockets: Vec<_> = (0..options.ports).map(|_| Port::downstream(&upstream)).collect();
        let mut hub = Self {
            description: description::of(&options),
            ports: sockets.iter().map(HubPort::new).collect(),
            sockets,
            upstream,
            notifier: None,
            translators: Vec::new(),
            speed: Speed::Full,
            now: Time::ZERO,
            address: 0,
            suspended: false,
            over_current_change: false,
            over_current: false,
            journal: PortJournal::new(vec![PortState::Empty; options.ports.into()]),
            options,
        };
        hub.build_translators(0);
        Ok(hub)
    }

    /// The hub's ports, the first one first. Clones stay good wherever the hub is plugged in.
    pub fn ports(&self) -> &[Port] {
        &self.sockets
    }

    /// Translators for an alternate setting: all that they had in hand is gone.
    fn build_translators(&mut self, alternate: u8) {
        let count = if alternate == 1 { self.ports.len() } else { 1 };
        self.translators.clear();
        self.translators.resize_with(count, || Translator::new(self.options.translation));
    }

    /// Looks at the time and at the ports.
    fn look(&mut self) -> port::News {
        let mut news = port::News::default();
        for port in &mut self.ports {
            news.merge(port.tick(self.now));
            news.merge(port.look(self.now));
        }
        let over_current = self.options.power == PowerSwitching::Ganged
            && self.ports.iter().any(HubPort::has_over_current);
        if over_current != self.over_current {
            self.over_current = over_current;
            self.over_current_change = true;
            news.changed = true;
            if over_current {
                self.ports.iter_mut().for_each(HubPort::lose_power);
            }
        }
        self.note_ports();
        news
    }

    /// Tells the log what has changed.
    fn note_ports(&mut self) {
        if Journal::is_read() {
            let (name, address) = (&self.description.name, self.address);
            let hub = format_args!("\"{name}\", address {address}:");
            self.journal.note(self.now, hub, self.ports.iter().map(HubPort::state));
        }
    }

    /// Something may have changed: the host asks every device behind the hub again.
    fn announce(&self) {
        self.upstream.changed();
    }

    /// Hub and Port Status Change Bitmap (USB 2.0, 11.12.4).
    fn changes(&self) -> u16 {
        let ports = self.ports.iter().zip(1..);
        ports.fold(u16::from(self.over_current_change), |bits, (port, number)| {
            bits | u16::from(port.has_change()).checked_shl(number).unwrap_or(0)
        })
    }

    /// The translator for a port, and the bus behind it. A hub with one translator ignores the port
    /// (USB 2.0, 8.4.2.2).
    fn translator(&mut self, port: u8) -> Option<(&mut Translator, SlowBus<'_>)> {
        let all = self.ports.as_mut_slice();
        let (at, ports) = if self.translators.len() == 1 {
            (0, all)
        } else {
            let at = usize::from(port).checked_sub(1)?;
            (at, all.get_mut(at..)?.get_mut(..1)?)
        };
        let translator = self.translators.get_mut(at)?;
        let news = self.upstream.announcements().wrapping_add(translator.requests());
        Some((translator, SlowBus::new(ports, news)))
    }
}

impl UsbDevice for Hub {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.upstream.connect(notifier.clone());
        self.notifier = Some(notifier);
    }

    fn configured(&mut self, value: u8) {
        self.build_translators(0);
        self.suspended = false;
        self.over_current_change = false;
        for port in &mut self.ports {
            port.configure(value != 0);
        }
        self.note_ports();
        self.announce();
    }

    fn interface_selected(&mut self, _interface: u8, alternate: u8) {
        self.build_translators(alternate);
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        let answer = self.request(request, data).unwrap_or(Control::Stall);
        self.note_ports();
        answer
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        if endpoint != STATUS_CHANGE {
            return Outcome::STALL;
        }
        self.look();
        match self.changes() {
            0 if self.ports.iter().any(HubPort::is_timed) => Outcome::NAK,
            0 => Outcome::PARK,
            bits => {
                let len = description::bitmap_len(self.options.ports);
                transfer.send(bits.to_le_bytes().get(..len).unwrap_or_default())
            }
        }
    }

    fn as_hub(&mut self) -> Option<&mut dyn UsbHub> {
        Some(self)
    }

    /// The whole segment goes idle or comes back; ports that are suspended already stay so.
    fn suspension(&mut self, suspension: Suspension) {
        self.suspended = suspension == Suspension::Suspended;
        for port in &mut self.ports {
            port.tell(suspension);
        }
    }

    fn save(&self, now: Time) -> Result<State, SaveError> {
        self.save_tree(now)
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        self.restore_tree(state, now)
    }
}

impl UsbHub for Hub {
    fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    fn tick(&mut self, now: Time, address: u8) {
        self.now = now;
        self.address = address;
        for port in &mut self.ports {
            port.tick(now);
        }
        self.note_ports();
    }

    fn reset(&mut self, speed: Speed) {
        self.speed = speed;
        for port in &mut self.ports {
            port.set_fastest(speed);
        }
    }

    fn repeat(&mut self, visit: &mut dyn FnMut(&mut Function) -> bool) -> bool {
        let speed = self.speed;
        self.ports.iter_mut().any(|port| {
            port.repeat(|function| {
                // A high-speed packet means nothing to the others.
                (speed != Speed::High || function.speed() == Speed::High) && visit(function)
            })
        })
    }

    fn each(&mut self, visit: &mut dyn FnMut(&mut Function)) {
        for port in &mut self.ports {
            port.with(&mut *visit);
        }
    }

    fn start_split(&mut self, split: &StartSplit<'_>) -> StartAnswer {
        match self.translator(split.token.port) {
            Some((translator, mut bus)) => translator.start(split, &mut bus),
            None => StartAnswer::Silence,
        }
    }

    fn complete_split(&mut self, split: &CompleteSplit, data: &mut Vec<u8>) -> CompleteAnswer {
        match self.translator(split.token.port) {
            Some((translator, bus)) => translator.complete(split, data, bus.news()),
            None => CompleteAnswer::Silence,
        }
    }

    fn resumes(&mut self, remote_wakeup: bool) -> bool {
        let news = self.look();
        self.suspended && (news.resumed || (remote_wakeup && (news.changed || news.resuming)))
    }

    fn detached(&mut self) {
        self.configured(0);
    }
}
