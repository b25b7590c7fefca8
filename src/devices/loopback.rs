//! A test device: a source and a sink of data, and an echo.
//!
//! It has the identity and the manners of Linux's "Gadget Zero" peripheral, so a Linux guest tests the
//! whole path to it with its own `usbtest` driver. Two configurations:
//!
//! * **Source and sink** (value 3). Setting 0 of its interface has a bulk source (IN) and a bulk sink
//!   (OUT), setting 1 an isochronous pair besides, setting 2 an interrupt pair besides. A source is
//!   always ready with whole packets, or with messages that each end in a short one, which may come at
//!   a pace of their own; a sink takes everything, and halts at a byte that does not fit the [`Pattern`]. Control requests 0x5b and 0x5c
//!   write and read back a buffer.
//! * **Echo** (value 2): what arrives on the bulk OUT endpoint leaves on the bulk IN endpoint, cut into
//!   the same transfers. At most [`ECHO`] bytes wait; then OUT is not ready.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use self::description::{BULK_IN, LOOPBACK, SOURCE_SINK, description};
use self::echo::{Echo, EchoState};
use self::messages::{Arrivals, ArrivalsState};
use crate::snapshot::{Offset, RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::{
    Control, Description, Direction, EndpointAddress, Notifier, Outcome, Pid, Recipient,
    RequestType, SetupPacket, Status, Transfer, UsbDevice,
};

pub use self::description::Isochronous;
pub use self::echo::ECHO;
pub use self::messages::{BACKLOG, Messages};

mod description;
mod echo;
mod messages;

/// Vendor requests of compliance test devices.
mod vendor_request {
    pub(super) const CONTROL_WRITE: u8 = 0x5b;
    pub(super) const CONTROL_READ: u8 = 0x5c;
}

/// What a source sends, and what a sink expects: `pattern=` 0, 1 and 2 of `usbtest` and `g_zero`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// Zeros.
    #[default]
    Zeros,
    /// Byte n of each packet is n modulo 63.
    Mod63,
    /// Zeros are sent, anything is accepted.
    Unchecked,
}

impl Pattern {
    /// `len` bytes of it, from the start of a packet of `packet` bytes.
    fn bytes(self, len: usize, packet: u16) -> Vec<u8> {
        match self {
            Self::Zeros | Self::Unchecked => vec![0; len],
            Self::Mod63 => {
                let places = 0..packet.max(1);
                let bytes = places.map(|place| place.checked_rem(63).unwrap_or(0) as u8);
                bytes.cycle().take(len).collect()
            }
        }
    }
}

/// What a [`Loopback`] device is to be like; a [`Pattern`] alone is enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopbackOptions {
    /// The data of sources and sinks.
    pub pattern: Pattern,
    /// The bulk source sends messages, as a network adapter does; endless data if `None`.
    pub messages: Option<Messages>,
    /// The isochronous pair.
    pub isochronous: Isochronous,
}

impl From<Pattern> for LoopbackOptions {
    fn from(pattern: Pattern) -> Self {
        Self { pattern, ..Self::default() }
    }
}

/// Bytes that went through a [`Loopback`] device's data endpoints; clones show the same numbers.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Counters {
    /// Bytes the host has received.
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Bytes the host has sent.
    pub fn received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }
}

/// The device.
#[derive(Debug)]
pub struct Loopback {
    description: Description,
    options: LoopbackOptions,
    configuration: u8,
    /// Bytes of the bulk source's present message that are still to be sent.
    unsent: Option<usize>,
    /// Messages that come at a pace, since the host first asked for one.
    arrivals: Option<Arrivals>,
    /// Data of the last control write.
    control: Vec<u8>,
    echo: Echo,
    notifier: Option<Notifier>,
    counters: Counters,
}

impl Loopback {
    /// A device for high and full speed.
    pub fn new(options: impl Into<LoopbackOptions>) -> Self {
        let options = options.into();
        Self {
            description: description(options.isochronous),
            options,
            configuration: 0,
            unsent: None,
            arrivals: None,
            control: Vec::new(),
            echo: Echo::default(),
            notifier: None,
            counters: Counters::default(),
        }
    }

    /// The counters, to keep when the device is plugged in.
    pub fn counters(&self) -> Counters {
        self.counters.clone()
    }

    /// Whole packets without end, or the rest of a message.
    fn source(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let messages = self.options.messages.filter(|_| endpoint == BULK_IN);
        if let Some(messages) = messages
            && self.unsent.is_none()
            && let Some(period) = messages.period()
        {
            let arrivals = self.arrivals.get_or_insert(Arrivals::from(transfer.now));
            if !arrivals.take(transfer.now, period, messages.most()) {
                return Outcome::NAK;
            }
        }
        let message = messages.map(|messages| messages.bytes.get());
        let unsent = self.unsent.or(message).unwrap_or(usize::MAX);
        let (len, outcome) = match transfer.room_for(unsent) {
            Ok(len) => (len, Outcome::complete(len)),
            Err(babble) => (babble.bytes, babble),
        };
        transfer.buffer.write(0, &self.options.pattern.bytes(len, transfer.max_packet));
        if message.is_some() {
            // A message of whole packets is not over when its last byte is sent: an empty packet ends it.
            let whole = len.checked_rem(transfer.max_packet.max(1).into()) == Some(0);
            let filled = len == transfer.buffer.len();
            self.unsent = (filled && whole).then(|| unsent.saturating_sub(len));
        }
        outcome
    }

    /// Takes what fits the pattern, up to the packet that does not.
    fn sink(&self, transfer: &Transfer<'_>) -> Outcome {
        let len = transfer.buffer.len();
        let mut bytes = vec![0; len];
        transfer.buffer.read(0, &mut bytes);
        let expected = self.options.pattern.bytes(len, transfer.max_packet);
        if self.options.pattern == Pattern::Unchecked || bytes == expected {
            return Outcome::complete(len);
        }
        let right = bytes.iter().zip(&expected).take_while(|(byte, expected)| byte == expected);
        let right = right.count();
        let packet = usize::from(transfer.max_packet).max(1);
        let bytes = right.saturating_sub(right.checked_rem(packet).unwrap_or(0));
        Outcome { bytes, status: Status::Stall }
    }

    fn count(&self, pid: Pid, outcome: Outcome) -> Outcome {
        let counter = match pid {
            Pid::In => &self.counters.0.sent,
            _ => &self.counters.0.received,
        };
        counter.fetch_add(outcome.bytes as u64, Ordering::Relaxed);
        outcome
    }

    /// Tells the host of endpoints that it parked and that have something to say now.
    fn announce(&mut self) {
        let ready = self.echo.ready();
        if let Some(notifier) = &self.notifier {
            ready.into_iter().for_each(|endpoint| notifier.ready(endpoint));
        }
    }
}

impl UsbDevice for Loopback {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.notifier = Some(notifier);
    }

    fn configured(&mut self, value: u8) {
        self.configuration = value;
        self.control.clear();
        self.unsent = None;
        self.arrivals = None;
        self.echo = Echo::default();
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        let addressed = request.request_type() == RequestType::Vendor
            && request.recipient() == Recipient::Device
            && request.value() == 0
            && request.index() == 0
            && self.configuration == SOURCE_SINK;
        match (request.b_request, request.direction()) {
            (vendor_request::CONTROL_WRITE, Direction::Out) if addressed => {
                self.control.clone_from(data);
                Control::Done
            }
            (vendor_request::CONTROL_READ, Direction::In) if addressed => {
                data.clone_from(&self.control);
                data.resize(request.length().into(), 0);
                Control::Done
            }
            _ => Control::Stall,
        }
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let outcome = match (self.configuration, endpoint.is_in()) {
            (LOOPBACK, true) => self.echo.send(transfer),
            (LOOPBACK, false) => self.echo.receive(transfer),
            (_, true) => self.source(endpoint, transfer),
            (_, false) => self.sink(transfer),
        };
        self.announce();
        self.count(transfer.pid, outcome)
    }

    fn isochronous(&mut self, _endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        // Nothing is checked: what was lost on the way is lost.
        let len = transfer.buffer.len();
        if transfer.pid == Pid::In {
            transfer.buffer.write(0, &self.options.pattern.bytes(len, transfer.max_packet));
        }
        self.count(transfer.pid, Outcome::complete(len))
    }

    fn save(&self, now: Time) -> Result<State, SaveError> {
        let Self {
            description: _,
            options: LoopbackOptions { pattern, messages, isochronous: _ },
            configuration,
            unsent,
            arrivals,
            control,
            echo,
            notifier: _,
            // The statistics of this process.
            counters: _,
        } = self;
        let state = LoopbackState {
            pattern: *pattern,
            message: messages.map(|messages| messages.bytes),
            pace: messages.and_then(|messages| messages.pace),
            configuration: *configuration,
            unsent: *unsent,
            arrivals: arrivals.map(|Arrivals { last, waiting }| ArrivalsState {
                last: Offset::of(last, now),
                waiting,
            }),
            control: control.clone(),
            echo: echo.save(),
        };
        State::of(KIND, &state)
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        let LoopbackState {
            pattern,
            message,
            pace,
            configuration,
            unsent,
            arrivals,
            control,
            echo,
        } = state.to(KIND)?;
        let name = |pattern| format!("the pattern {pattern:?}");
        RestoreError::same(name(pattern), name(self.options.pattern))?;
        let name = |messages: Option<Messages>| match messages {
            Some(Messages { bytes, pace: None }) => format!("messages of {bytes} bytes"),
            Some(Messages { bytes, pace: Some(pace) }) => {
                format!("messages of {bytes} bytes at {pace} Mbit/s")
            }
            None => "endless data".to_owned(),
        };
        RestoreError::check(pace.is_none() || message.is_some(), "endless data has no pace")?;
        let messages = message.map(|bytes| Messages { bytes, pace });
        RestoreError::same(name(messages), name(self.options.messages))?;
        let fits = unsent.is_none_or(|unsent| message.is_some_and(|all| unsent <= all.get()));
        RestoreError::check(fits, "more of a message is left than there is")?;
        let most = messages.filter(|messages| messages.pace.is_some()).map(Messages::most);
        let fits =
            arrivals.is_none_or(|arrivals| most.is_some_and(|most| arrivals.waiting <= most));
        RestoreError::check(fits, "so many messages do not wait")?;
        let short = u16::try_from(control.len()).is_ok();
        RestoreError::check(short, "no control transfer is so long")?;
        self.echo = Echo::restored(echo)?;
        self.configuration = configuration;
        self.unsent = unsent;
        self.arrivals = arrivals
            .map(|ArrivalsState { last, waiting }| Arrivals { last: last.at(now), waiting });
        self.control = control;
        Ok(())
    }
}

/// Name of the form in a snapshot.
const KIND: &str = "loopback";

/// A [`Loopback`] in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoopbackState {
    pattern: Pattern,
    message: Option<NonZeroUsize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pace: Option<NonZeroU32>,
    configuration: u8,
    unsent: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    arrivals: Option<ArrivalsState>,
    #[serde(with = "hex::serde")]
    control: Vec<u8>,
    echo: Vec<EchoState>,
}
