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

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::snapshot::{Offset, RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::{
    Configuration, Control, Description, Direction, Endpoint, EndpointAddress, Interface, Notifier,
    Outcome, Pid, Readiness, Recipient, RequestType, SetupPacket, Speed, Speeds, Status, Transfer,
    TransferType, UsbDevice,
};

/// Most bytes that wait to be echoed.
pub const ECHO: usize = 64 << 10;

/// Most transfers that wait to be echoed: even those without bytes take memory.
const ECHO_TRANSFERS: usize = 1024;

/// Bytes of paced messages that wait for the host, as in a network adapter: what does not fit is lost. One
/// message always fits.
pub const BACKLOG: usize = 64 << 10;

/// Value of the configuration that sources and sinks.
const SOURCE_SINK: u8 = 3;
/// Value of the configuration that echoes.
const LOOPBACK: u8 = 2;

const BULK_IN: EndpointAddress = EndpointAddress::r#in(1);
const BULK_OUT: EndpointAddress = EndpointAddress::out(2);
const ISOCHRONOUS_IN: EndpointAddress = EndpointAddress::r#in(3);
const ISOCHRONOUS_OUT: EndpointAddress = EndpointAddress::out(4);
const INTERRUPT_IN: EndpointAddress = EndpointAddress::r#in(5);
const INTERRUPT_OUT: EndpointAddress = EndpointAddress::out(6);

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

/// Size and rate of the isochronous pair: `isoc_maxpacket=`, `isoc_mult=` and `isoc_interval=` of `g_zero`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isochronous {
    packet: u16,
    packets: u8,
    interval: u8,
}

impl Isochronous {
    /// Up to `packets` packets (1 to 3) of `packet` bytes (1 to 1024) every 2^(`interval` - 1)
    /// microframes (1 to 16), as bInterval has it. At full speed these are frames, and there is one
    /// packet of at most 1023 bytes. `None` if a value is not in its range.
    ///
    /// `Isochronous::new(1024, 3, 1)` is the most there is, 24 MB/s: that of a camera.
    pub fn new(packet: u16, packets: u8, interval: u8) -> Option<Self> {
        let valid = (1..=1024).contains(&packet)
            && (1..=3).contains(&packets)
            && (1..=16).contains(&interval);
        valid.then_some(Self { packet, packets, interval })
    }

    /// wMaxPacketSize.
    fn max_packet(self, speed: Speed) -> u16 {
        match speed {
            Speed::High => self.packet | u16::from(self.packets.saturating_sub(1)) << 11,
            _ => self.packet.min(1023),
        }
    }
}

impl Default for Isochronous {
    /// One packet of the largest size every millisecond, at full speed every eighth: two endpoints of
    /// 1023 bytes do not fit one frame.
    fn default() -> Self {
        Self { packet: 1024, packets: 1, interval: 4 }
    }
}

/// Messages of the bulk source, each ended by a short packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// Bytes of each.
    pub bytes: NonZeroUsize,
    /// How many come, in Mbit/s, whether the host asks or not, as from a network; the next one is always
    /// there if `None`. At most [`BACKLOG`] bytes wait. Without any the endpoint answers NAK, as an
    /// adapter's does: the host has to ask again.
    pub pace: Option<NonZeroU32>,
}

impl Messages {
    /// Time between two of them, if they keep a pace.
    fn period(self) -> Option<u64> {
        let bits = u64::try_from(self.bytes.get()).unwrap_or(u64::MAX).saturating_mul(8);
        // Mbit/s are bits a microsecond.
        let nanos = bits.saturating_mul(1_000);
        self.pace.and_then(|pace| nanos.checked_div(pace.get().into())).map(|nanos| nanos.max(1))
    }

    /// How many can wait.
    fn most(self) -> u64 {
        u64::try_from(BACKLOG.checked_div(self.bytes.get()).unwrap_or(0)).unwrap_or(0).max(1)
    }
}

/// Messages that come at a pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arrivals {
    /// When the last one came.
    last: Time,
    waiting: u64,
}

impl Arrivals {
    /// Nothing has come before `now`.
    fn from(now: Time) -> Self {
        Self { last: now, waiting: 0 }
    }

    /// Takes the first message that has come by `now`, one every `period` nanoseconds; `most` can wait.
    fn take(&mut self, now: Time, period: u64, most: u64) -> bool {
        let came = now.nanos_since(self.last).checked_div(period).unwrap_or(0);
        self.last = self.last.after_nanos(came.saturating_mul(period));
        self.waiting = self.waiting.saturating_add(came).min(most);
        let any = self.waiting != 0;
        self.waiting = self.waiting.saturating_sub(1);
        any
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

/// [`Arrivals`] in a snapshot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArrivalsState {
    last: Offset,
    waiting: u64,
}

/// A transfer on its way back.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EchoState {
    #[serde(with = "hex::serde")]
    bytes: Vec<u8>,
    ended: bool,
}

/// Transfers on their way back.
#[derive(Debug, Default)]
struct Echo {
    /// Each with whether it is complete: a short packet ended it.
    transfers: VecDeque<(VecDeque<u8>, bool)>,
    waiting: usize,
    in_parked: bool,
    out_parked: bool,
}

impl Echo {
    fn save(&self) -> Vec<EchoState> {
        // How many bytes wait follows; the host asks parked endpoints again.
        let Self { transfers, waiting: _, in_parked: _, out_parked: _ } = self;
        let state = |(bytes, ended): &(VecDeque<u8>, bool)| EchoState {
            bytes: bytes.iter().copied().collect(),
            ended: *ended,
        };
        transfers.iter().map(state).collect()
    }

    fn restored(states: Vec<EchoState>) -> Result<Self, RestoreError> {
        let waiting =
            states.iter().fold(0, |sum: usize, state| sum.saturating_add(state.bytes.len()));
        // The last one is accepted as long as there are fewer.
        let sound = waiting <= ECHO && states.len() <= ECHO_TRANSFERS;
        RestoreError::check(sound, "no echo is so long")?;
        let transfers = states.into_iter().map(|state| (state.bytes.into(), state.ended)).collect();
        Ok(Self { transfers, waiting, in_parked: false, out_parked: false })
    }

    fn receive(&mut self, transfer: &Transfer<'_>) -> Outcome {
        let packet = usize::from(transfer.max_packet).max(1);
        let len = transfer.buffer.len();
        let room = ECHO.saturating_sub(self.waiting);
        let taken = if len <= room {
            len
        } else {
            room.saturating_sub(room.checked_rem(packet).unwrap_or(0))
        };
        let crowded = self.transfers.len() >= ECHO_TRANSFERS;
        if crowded || taken == 0 && len != 0 {
            self.out_parked = true;
            return Outcome::PARK;
        }
        let mut bytes = vec![0; taken];
        transfer.buffer.read(0, &mut bytes);
        self.waiting = self.waiting.saturating_add(taken);
        let ended = taken == 0 || taken.checked_rem(packet) != Some(0);
        match self.transfers.back_mut() {
            Some((open, end @ false)) => {
                open.extend(bytes);
                *end = ended;
            }
            _ => self.transfers.push_back((bytes.into(), ended)),
        }
        Outcome::complete(taken)
    }

    fn send(&mut self, transfer: &mut Transfer<'_>) -> Outcome {
        let Some((bytes, ended)) = self.transfers.front_mut() else {
            self.in_parked = true;
            return Outcome::PARK;
        };
        let outcome = transfer.send(bytes.make_contiguous());
        bytes.drain(..outcome.bytes.min(bytes.len()));
        self.waiting = self.waiting.saturating_sub(outcome.bytes);
        let filled = outcome.bytes == transfer.buffer.len();
        let drained = bytes.is_empty();
        // A transfer of whole packets that filled its buffer is still to be ended by an empty one.
        let packet = usize::from(transfer.max_packet);
        let short = !filled || outcome.bytes.checked_rem(packet) != Some(0);
        if drained && (!*ended || short) {
            let open = !*ended;
            let whole = outcome.bytes.checked_rem(packet) == Some(0);
            self.transfers.pop_front();
            if open && !filled && whole && outcome.status == Status::Complete {
                // More of this transfer may follow: these packets are all that is there now.
                self.in_parked = true;
                let status = Status::Nak(Readiness::Announced);
                return Outcome { bytes: outcome.bytes, status };
            }
        }
        outcome
    }

    /// Takes the endpoints that were parked and are not any more.
    fn ready(&mut self) -> Vec<EndpointAddress> {
        let in_ready = self.in_parked && !self.transfers.is_empty();
        let room = self.waiting <= ECHO / 2 && self.transfers.len() <= ECHO_TRANSFERS / 2;
        let out_ready = self.out_parked && room;
        self.in_parked &= !in_ready;
        self.out_parked &= !out_ready;
        let ready = [(BULK_IN, in_ready), (BULK_OUT, out_ready)];
        ready.into_iter().filter(|(_, ready)| *ready).map(|(endpoint, _)| endpoint).collect()
    }
}

fn description(isochronous: Isochronous) -> Description {
    Description {
        vendor: 0x0525,
        product: 0xa4a0,
        release: 0x0100,
        class: [0xff, 0, 0],
        control_packet: 64,
        manufacturer: "vm-usb".into(),
        name: "Gadget Zero".into(),
        serial: "0123456789.0123456789.0123456789".into(),
        speeds: Speeds::High {
            high: configurations(Speed::High, isochronous),
            full: configurations(Speed::Full, isochronous),
        },
    }
}

fn configurations(speed: Speed, isochronous: Isochronous) -> Vec<Configuration> {
    // An interrupt pair moves a packet every millisecond.
    let (bulk, interrupt_interval) = match speed {
        Speed::High => (512, 4),
        _ => (64, 1),
    };
    let bulk = [
        Endpoint::new(BULK_IN, TransferType::Bulk, bulk, 0),
        Endpoint::new(BULK_OUT, TransferType::Bulk, bulk, 0),
    ];
    let (max_packet, interval) = (isochronous.max_packet(speed), isochronous.interval);
    let isochronous = [ISOCHRONOUS_IN, ISOCHRONOUS_OUT]
        .map(|address| Endpoint::new(address, TransferType::Isochronous, max_packet, interval));
    let interrupt = [INTERRUPT_IN, INTERRUPT_OUT]
        .map(|address| Endpoint::new(address, TransferType::Interrupt, 64, interrupt_interval));
    let interface = |alternate, name: &str, more: &[Endpoint]| Interface {
        alternate,
        class: [0xff, 0, 0],
        name: name.into(),
        endpoints: [&bulk[..], more].concat(),
        ..Interface::default()
    };
    let configuration = |value, interfaces| Configuration {
        value,
        self_powered: true,
        remote_wakeup: false,
        max_power: 0,
        interfaces,
    };
    let source_sink = "source and sink data";
    vec![
        configuration(
            SOURCE_SINK,
            vec![
                interface(0, source_sink, &[]),
                interface(1, source_sink, &isochronous),
                interface(2, source_sink, &interrupt),
            ],
        ),
        configuration(LOOPBACK, vec![interface(0, "loop input to output", &[])]),
    ]
}
