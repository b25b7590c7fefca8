//! The class behind every human interface device: descriptors, class requests, the interrupt endpoint.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::shared::{Shared, State};
use crate::snapshot::{self, Offset, RestoreError, SaveError};
use crate::time::Time;
use crate::usb::{
    Configuration, Control, Description, Direction, Endpoint, EndpointAddress, Interface, Notifier,
    Outcome, Recipient, RequestType, SetupPacket, Speed, Speeds, Suspension, Transfer,
    TransferType, UsbDevice, request,
};

/// The interrupt endpoint.
pub(super) const IN: EndpointAddress = EndpointAddress::r#in(1);

/// Descriptor types (HID 1.11, 7.1).
mod descriptor_type {
    pub(super) const HID: u8 = 0x21;
    pub(super) const REPORT: u8 = 0x22;
}

/// Class requests (HID 1.11, 7.2).
mod class_request {
    pub(super) const GET_REPORT: u8 = 0x01;
    pub(super) const GET_IDLE: u8 = 0x02;
    pub(super) const GET_PROTOCOL: u8 = 0x03;
    pub(super) const SET_REPORT: u8 = 0x09;
    pub(super) const SET_IDLE: u8 = 0x0a;
    pub(super) const SET_PROTOCOL: u8 = 0x0b;
}

/// Report types in the high byte of `wValue` (HID 1.11, 7.2.1).
mod report_type {
    pub(super) const INPUT: u8 = 1;
    pub(super) const OUTPUT: u8 = 2;
}

/// The protocol that firmware without a parser for report descriptors uses (HID 1.11, 4.2 and 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// None.
    No,
    /// A keyboard whose reports follow HID 1.11, B.1.
    Keyboard,
}

/// What distinguishes one human interface device from another: its reports.
///
/// There are no report ids: a device has one input report and at most one output report.
///
/// What the reports serialise to is their state in a snapshot.
pub trait Reports: Send + Serialize + DeserializeOwned {
    /// The report descriptor (HID 1.11, 6.2.2).
    const DESCRIPTOR: &'static [u8];

    /// The boot protocol, if the reports fit one.
    const BOOT: Boot;

    /// Idle duration after a reset in units of 4 ms, 0 for none (HID 1.11, 7.2.4).
    const IDLE: u8;

    /// Whether a report is waiting that the host has not seen.
    fn waiting(&self) -> bool;

    /// Takes the next waiting report.
    fn next(&mut self) -> Option<Vec<u8>>;

    /// The report that shows the state the host knows of, without anything that is relative.
    fn current(&self) -> Vec<u8>;

    /// The host sent an output report; `false` if there is none or it is malformed.
    fn output(&mut self, report: &[u8]) -> bool {
        let _ = report;
        false
    }

    /// The output report as the host last sent it.
    fn last_output(&self) -> Option<Vec<u8>> {
        None
    }

    /// Bus reset or a new configuration: nothing waits any more, everything is at rest.
    fn reset(&mut self);

    /// Whether reports can be in this state; a snapshot may say anything.
    fn is_possible(&self) -> bool;
}

/// A human interface device with one interrupt IN endpoint.
#[derive(Debug)]
pub struct Hid<R> {
    description: Description,
    shared: Shared<R>,
    /// In units of 4 ms; 0 for a report at every change only.
    idle: u8,
    /// 0 for the boot protocol, 1 for the report protocol.
    protocol: u8,
    /// When the host got its last report, as far as it got one.
    reported: Option<Time>,
}

/// A [`Hid`] in a snapshot, with its reports as `R`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HidState<R> {
    idle: u8,
    protocol: u8,
    reported: Option<Offset>,
    configured: bool,
    suspended: bool,
    reports: R,
}

/// How a human interface device shows up in its standard descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) product: u16,
    pub(super) name: &'static str,
    /// Time between polls in ms at full speed: a power of two up to 64.
    pub(super) interval: u8,
}

impl<R: Reports> Hid<R> {
    pub(super) fn with_reports(reports: R, speed: Speed, identity: Identity) -> Self {
        Self {
            description: description::<R>(speed, identity),
            shared: Shared::new(reports),
            idle: R::IDLE,
            protocol: 1,
            reported: None,
        }
    }

    pub(super) fn shared(&self) -> Shared<R> {
        self.shared.clone()
    }

    /// The requests that go to the interface.
    fn request(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Option<()> {
        let kind = request.request_type();
        let (high, low) = (request.value_high(), request.value_low());
        match (kind, request.direction(), request.b_request) {
            (RequestType::Standard, Direction::In, request::GET_DESCRIPTOR) => {
                *data = match high {
                    descriptor_type::HID => hid_descriptor::<R>(),
                    descriptor_type::REPORT => R::DESCRIPTOR.to_vec(),
                    _ => return None,
                };
            }
            (RequestType::Class, Direction::In, class_request::GET_REPORT) if low == 0 => {
                let state = self.shared.lock();
                *data = match high {
                    report_type::INPUT => state.reports.current(),
                    report_type::OUTPUT => state.reports.last_output()?,
                    _ => return None,
                };
            }
            (RequestType::Class, Direction::Out, class_request::SET_REPORT) if low == 0 => {
                let good = high == report_type::OUTPUT && self.shared.lock().reports.output(data);
                return good.then_some(());
            }
            (RequestType::Class, Direction::In, class_request::GET_IDLE) if low == 0 => {
                data.push(self.idle);
            }
            (RequestType::Class, Direction::Out, class_request::SET_IDLE) if low == 0 => {
                self.set_idle(high);
            }
            (RequestType::Class, Direction::In, class_request::GET_PROTOCOL) => {
                data.push(self.protocol);
            }
            (RequestType::Class, Direction::Out, class_request::SET_PROTOCOL) => {
                let known = low == 1 || low == 0 && R::BOOT != Boot::No;
                (known && high == 0).then_some(())?;
                self.protocol = low;
            }
            _ => return None,
        }
        Some(())
    }

    fn set_idle(&mut self, idle: u8) {
        self.idle = idle;
        let mut state = self.shared.lock();
        let parked = std::mem::take(&mut state.parked);
        // A parked endpoint would not be polled: the host has to ask again to learn that now it should.
        if let Some(notifier) = state.notifier.clone().filter(|_| parked) {
            drop(state);
            notifier.ready(IN);
        }
    }

    /// Whether the last report has to be repeated at `now` (HID 1.11, 7.2.4).
    fn is_due(&self, now: Time) -> bool {
        let idle = u64::from(self.idle).saturating_mul(4);
        idle != 0 && self.reported.is_none_or(|last| last.after_millis(idle) <= now)
    }
}

impl<R: Reports> UsbDevice for Hid<R> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        let mut state = self.shared.lock();
        state.notifier = Some(notifier);
        state.suspended = false;
    }

    fn configured(&mut self, value: u8) {
        self.idle = R::IDLE;
        self.protocol = 1;
        self.reported = None;
        let mut state = self.shared.lock();
        state.reports.reset();
        state.configured = value != 0;
        state.parked = false;
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        let addressed = request.recipient() == Recipient::Interface && request.index() == 0;
        match addressed.then(|| self.request(request, data)).flatten() {
            Some(()) => Control::Done,
            None => Control::Stall,
        }
    }

    fn transfer(&mut self, _endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let now = transfer.now;
        // A host that starts to listen is told of the state once the idle duration is over.
        self.reported.get_or_insert(now);
        let due = self.is_due(now);
        let State { reports, parked, .. } = &mut *self.shared.lock();
        let fits = reports.current().len() <= transfer.buffer.len();
        let report = match (reports.waiting(), due) {
            (true, _) if fits => reports.next(),
            (false, false) => None,
            // Repeated; or babble to a host without room for a report, and what waits is not lost.
            _ => Some(reports.current()),
        };
        match report {
            Some(report) => {
                self.reported = Some(now);
                transfer.send(&report)
            }
            None if self.idle != 0 => Outcome::NAK,
            None => {
                *parked = true;
                Outcome::PARK
            }
        }
    }

    fn suspension(&mut self, suspension: Suspension) {
        self.shared.suspension(suspension);
    }

    fn save(&self, now: Time) -> Result<snapshot::State, SaveError> {
        let Self { description, shared, idle, protocol, reported } = self;
        let state = shared.lock();
        let State {
            reports,
            notifier: _,
            configured,
            // The host asks again.
            parked: _,
            suspended,
        } = &*state;
        let state = HidState {
            idle: *idle,
            protocol: *protocol,
            reported: reported.map(|reported| Offset::of(reported, now)),
            configured: *configured,
            suspended: *suspended,
            reports,
        };
        snapshot::State::of(&description.name, &state)
    }

    fn restore(&mut self, state: &snapshot::State, now: Time) -> Result<(), RestoreError> {
        let HidState::<R> { idle, protocol, reported, configured, suspended, reports } =
            state.to(&self.description.name)?;
        RestoreError::check(reports.is_possible(), "so many events do not wait")?;
        let known = protocol == 1 || (protocol == 0 && R::BOOT != Boot::No);
        RestoreError::check(known, "there is no such protocol")?;
        self.idle = idle;
        self.protocol = protocol;
        self.reported = reported.map(|reported| reported.at(now));
        let mut state = self.shared.lock();
        state.reports = reports;
        state.configured = configured;
        state.suspended = suspended;
        state.parked = false;
        Ok(())
    }
}

fn description<R: Reports>(speed: Speed, identity: Identity) -> Description {
    let interval = identity.interval;
    // In microframes, as the exponent of two plus one (USB 2.0, 9.6.6): 8 of them are 1 ms.
    let exponent = interval.max(1).ilog2().saturating_add(4) as u8;
    let full = vec![configuration::<R>(interval)];
    Description {
        // A test identity that no driver has quirks for.
        vendor: 0x1209,
        product: identity.product,
        release: 0x0100,
        class: [0, 0, 0],
        control_packet: if speed == Speed::Low { 8 } else { 64 },
        manufacturer: "vm-usb".into(),
        name: identity.name.into(),
        serial: String::new(),
        speeds: match speed {
            // No low-speed endpoint is polled more often than every 10 ms (USB 2.0, 5.7.4).
            Speed::Low => Speeds::Low(vec![configuration::<R>(interval.max(10))]),
            Speed::Full => Speeds::Full(full),
            Speed::High => Speeds::High { high: vec![configuration::<R>(exponent)], full },
        },
    }
}

fn configuration<R: Reports>(interval: u8) -> Configuration {
    Configuration {
        value: 1,
        self_powered: true,
        remote_wakeup: true,
        max_power: 0,
        interfaces: vec![Interface {
            class: match R::BOOT {
                Boot::No => [0x03, 0, 0],
                Boot::Keyboard => [0x03, 1, 1],
            },
            class_descriptors: hid_descriptor::<R>(),
            endpoints: vec![Endpoint::new(IN, TransferType::Interrupt, 8, interval)],
            ..Interface::default()
        }],
    }
}

/// HID descriptor (HID 1.11, 6.2.1): one report descriptor, for no country in particular.
fn hid_descriptor<R: Reports>() -> Vec<u8> {
    let [low, high] = (R::DESCRIPTOR.len() as u16).to_le_bytes();
    vec![9, descriptor_type::HID, 0x11, 0x01, 0, 1, descriptor_type::REPORT, low, high]
}
