//! A disk: USB mass storage, SCSI commands.
//!
//! [`Storage`] puts a [`Medium`] on the bus at full or high speed. Data goes straight between the
//! medium and the guest's pages, but for small pieces of a write to a medium that wants them together
//! ([`Medium::write_batch`]).
//!
//! What it implements:
//! * the Bulk-Only Transport 1.0 with all thirteen cases of its section 6.7 and Reset Recovery, as
//!   alternate setting 0;
//! * USB Attached SCSI (UAS) without streams, as alternate setting 1: a queue of 64 commands, carried
//!   out one at a time, and the task management functions ABORT TASK, ABORT TASK SET, CLEAR TASK SET,
//!   LOGICAL UNIT RESET, I_T NEXUS RESET, QUERY TASK and QUERY TASK SET;
//! * one logical unit with these commands of SPC-4 and SBC-3: INQUIRY with vital product data, TEST
//!   UNIT READY, REQUEST SENSE, REPORT LUNS, MODE SENSE (6, 10), START STOP UNIT, PREVENT ALLOW MEDIUM
//!   REMOVAL, READ CAPACITY (10, 16), READ and WRITE (6, 10, 12, 16) with FUA, VERIFY (10, 12, 16)
//!   with and without comparison, SYNCHRONIZE CACHE (10, 16), and where the medium can discard: UNMAP
//!   and WRITE SAME (10, 16) that unmaps.
//!
//! What it does not: MODE SELECT, persistent reservations, protection information, ejecting. The
//! medium is fixed, not removable.
//!
//! # Choices where bulk-only leaves one
//! * Data that ends early on Bulk-In ends with a short packet and a STALL, not with fill bytes.
//! * Data that the command does not want on Bulk-Out is accepted and dropped: hosts without STALL
//!   recovery get their status all the same.
//! * A wrapper with reserved bits set, or a command length other than 1 to 16, is treated like one
//!   that is not valid; one for another logical unit than 0 fails with LOGICAL UNIT NOT SUPPORTED.
//! * On a phase error nothing of the command is carried out.
//!
//! # Choices where UAS leaves one
//! * Commands are carried out in the order of their arrival, those with HEAD OF QUEUE before the others
//!   that wait. The next one's READ READY or WRITE READY comes as soon as the last one has ended.
//! * A read that fails ends its data early with a short packet, a write that fails takes the rest of its
//!   data and drops it; then the status says why. No pipe is ever halted: common drivers clear no halt
//!   but with a reset of the device.
//! * An information unit that makes no sense is answered with a RESPONSE, INVALID INFORMATION UNIT. A tag
//!   that is in use ends all commands, and the answer is OVERLAPPED TAG ATTEMPTED.
//! * A command to another logical unit than 0 fails with LOGICAL UNIT NOT SUPPORTED.
//!
//! # Both
//! * After the disk was plugged in or reset, the first command that is not INQUIRY, REPORT LUNS or
//!   REQUEST SENSE reports a unit attention.

mod bulk_only;
mod command;
mod inquiry;
mod medium;
mod mode;
mod sense;
mod serial;
mod uas;
mod unit;

pub use medium::{BlockSize, Medium, RamDisk};
pub use serial::{Serial, SerialError};

use serde::{Deserialize, Serialize};

use self::bulk_only::BulkOnly;
use self::uas::Uas;
use self::unit::{Unit, UnitState};
use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::{
    Configuration, Control, Description, Direction, Endpoint, EndpointAddress, Interface, Notifier,
    Outcome, Recipient, RequestType, SetupPacket, Speeds, Status, Transfer, UsbDevice,
};

/// Bulk-In, and the data-in pipe of UAS.
const IN: EndpointAddress = EndpointAddress::r#in(1);
/// Bulk-Out, and the data-out pipe of UAS.
const OUT: EndpointAddress = EndpointAddress::out(2);
/// The status pipe of UAS.
const STATUS: EndpointAddress = EndpointAddress::r#in(3);
/// The command pipe of UAS.
const COMMAND: EndpointAddress = EndpointAddress::out(4);
/// Mass storage, SCSI transparent command set, bulk-only transport.
const BULK_ONLY: [u8; 3] = [0x08, 0x06, 0x50];
/// `bAlternateSetting` with UAS; 0 is bulk-only.
const UAS_ALTERNATE: u8 = 1;

/// Class requests (Bulk-Only Transport 1.0, 3).
mod class_request {
    pub(super) const BULK_ONLY_MASS_STORAGE_RESET: u8 = 0xff;
    pub(super) const GET_MAX_LUN: u8 = 0xfe;
}

/// Which transports a disk offers; the host chooses one by the alternate setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transports {
    /// Bulk-only, which every guest and every firmware knows, and UAS.
    #[default]
    BulkOnlyAndUas,
    /// Bulk-only.
    BulkOnly,
}

/// A disk.
#[derive(Debug)]
pub struct Storage {
    description: Description,
    unit: Unit,
    transport: Transport,
    notifier: Option<Notifier>,
    /// Endpoints, a bit for each, of which the host was told that they would announce themselves.
    parked: u32,
}

/// The transport that the host has chosen.
#[derive(Debug)]
enum Transport {
    BulkOnly(BulkOnly),
    Uas(Uas),
}

impl Transport {
    fn transfer(
        &mut self,
        unit: &mut Unit,
        endpoint: EndpointAddress,
        transfer: &mut Transfer<'_>,
    ) -> Outcome {
        match (self, endpoint) {
            (Self::BulkOnly(transport), IN) => transport.bulk_in(unit, transfer),
            (Self::BulkOnly(transport), OUT) => transport.bulk_out(unit, transfer),
            (Self::Uas(transport), COMMAND) => transport.command(unit, transfer),
            (Self::Uas(transport), STATUS) => transport.status(unit, transfer),
            (Self::Uas(transport), IN) => transport.data_in(unit, transfer),
            (Self::Uas(transport), OUT) => transport.data_out(unit, transfer),
            // The transport has no such endpoint.
            _ => Outcome::STALL,
        }
    }

    /// Whether the endpoint would do anything but NAK now.
    fn answers(&self, endpoint: EndpointAddress) -> bool {
        match (self, endpoint) {
            (Self::BulkOnly(transport), IN) => transport.answers_in(),
            (Self::BulkOnly(transport), OUT) => transport.answers_out(),
            (Self::Uas(transport), COMMAND) => transport.takes_commands(),
            (Self::Uas(transport), STATUS) => transport.has_answers(),
            (Self::Uas(transport), IN) => transport.has_data(),
            (Self::Uas(transport), OUT) => transport.takes_data(),
            _ => true,
        }
    }
}

/// Name of a disk's form in a snapshot.
const KIND: &str = "disk";

/// A [`Storage`] in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StorageState {
    unit: UnitState,
    /// That of the bulk-only transport, if it is the one in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stage: Option<BulkOnly>,
    /// That of UAS, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uas: Option<Uas>,
}

impl Storage {
    /// A disk that keeps its blocks in `medium`.
    pub fn new(medium: impl Medium + 'static, serial: Serial) -> Self {
        Self::with_transports(medium, serial, Transports::default())
    }

    /// A disk that offers these transports.
    pub fn with_transports(
        medium: impl Medium + 'static,
        serial: Serial,
        transports: Transports,
    ) -> Self {
        Self {
            description: description(&serial, transports),
            unit: Unit::new(Box::new(medium), serial),
            transport: Transport::BulkOnly(BulkOnly::new()),
            notifier: None,
            parked: 0,
        }
    }

    /// Begins anew with the transport of an alternate setting.
    fn choose(&mut self, alternate: u8) {
        self.transport = match alternate {
            UAS_ALTERNATE => Transport::Uas(Uas::new()),
            _ => Transport::BulkOnly(BulkOnly::new()),
        };
        // A transfer that the host has left at an endpoint of both settings waits for the new transport,
        // which knows nothing of it.
        self.announce_if(|_, _| true);
    }

    /// Tells the host of the endpoints that it parked and that have something to say now.
    fn announce(&mut self) {
        self.announce_if(Transport::answers);
    }

    /// Tells the host of the endpoints that it parked and that `ready` selects.
    fn announce_if(&mut self, ready: impl Fn(&Transport, EndpointAddress) -> bool) {
        for endpoint in [IN, OUT, STATUS, COMMAND] {
            let bit = 1 << endpoint.index();
            if self.parked & bit != 0 && ready(&self.transport, endpoint) {
                self.parked &= !bit;
                if let Some(notifier) = &self.notifier {
                    notifier.ready(endpoint);
                }
            }
        }
    }
}

impl UsbDevice for Storage {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.notifier = Some(notifier);
    }

    fn configured(&mut self, value: u8) {
        if value == 0 {
            self.unit.reset();
        }
        self.choose(0);
    }

    fn interface_selected(&mut self, _interface: u8, alternate: u8) {
        self.choose(alternate);
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        let addressed = request.request_type() == RequestType::Class
            && request.recipient() == Recipient::Interface
            && request.index() == 0
            && request.value() == 0;
        let Transport::BulkOnly(transport) = &mut self.transport else {
            // UAS has no requests of its own.
            return Control::Stall;
        };
        match (request.b_request, request.direction(), request.length()) {
            (class_request::BULK_ONLY_MASS_STORAGE_RESET, Direction::Out, 0) if addressed => {
                transport.reset();
                self.announce();
                Control::Done
            }
            (class_request::GET_MAX_LUN, Direction::In, 1) if addressed => {
                data.push(0);
                Control::Done
            }
            _ => Control::Stall,
        }
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let outcome = self.transport.transfer(&mut self.unit, endpoint, transfer);
        let bit = 1 << endpoint.index();
        match outcome.status {
            Status::Nak(_) => self.parked |= bit,
            _ => self.parked &= !bit,
        }
        self.announce();
        outcome
    }

    fn save(&self, _now: Time) -> Result<State, SaveError> {
        let Self {
            // What it is.
            description: _,
            unit,
            transport,
            notifier: _,
            // The host asks again.
            parked: _,
        } = self;
        let (stage, uas) = match transport {
            Transport::BulkOnly(transport) => (Some(transport.clone()), None),
            Transport::Uas(transport) => (None, Some(transport.clone())),
        };
        State::of(KIND, &StorageState { unit: unit.save(), stage, uas })
    }

    fn restore(&mut self, state: &State, _now: Time) -> Result<(), RestoreError> {
        let StorageState { unit, stage, uas } = state.to(KIND)?;
        self.unit.restore(&unit)?;
        let (transport, possible) = match (stage, uas) {
            (Some(stage), None) => {
                let possible = stage.is_possible(&self.unit);
                (Transport::BulkOnly(stage), possible)
            }
            (None, Some(uas)) => {
                let possible = uas.is_possible(&self.unit);
                (Transport::Uas(uas), possible)
            }
            _ => (Transport::BulkOnly(BulkOnly::new()), false),
        };
        RestoreError::check(possible, "no command is at such a stage")?;
        self.transport = transport;
        self.parked = 0;
        Ok(())
    }
}

fn description(serial: &Serial, transports: Transports) -> Description {
    let at = |max_packet| vec![configuration(max_packet, transports)];
    Description {
        // A test identity that no driver has quirks for.
        vendor: 0x1209,
        product: 0x0001,
        release: 0x0100,
        class: [0, 0, 0],
        control_packet: 64,
        manufacturer: "vm-usb".into(),
        name: "Disk".into(),
        serial: serial.as_str().into(),
        speeds: Speeds::High { high: at(512), full: at(64) },
    }
}

fn configuration(max_packet: u16, transports: Transports) -> Configuration {
    let mut configuration = Configuration::only(Interface {
        class: BULK_ONLY,
        endpoints: [IN, OUT].map(|address| Endpoint::bulk(address, max_packet)).to_vec(),
        ..Interface::default()
    });
    if transports == Transports::BulkOnlyAndUas {
        configuration.interfaces.push(uas::interface(max_packet));
    }
    configuration
}
