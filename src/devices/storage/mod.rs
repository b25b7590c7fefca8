//! A disk: USB mass storage, bulk-only transport, SCSI commands.
//!
//! [`Storage`] puts a [`Medium`] on the bus at full or high speed. Data goes straight between the
//! medium and the guest's pages.
//!
//! What it implements:
//! * the Bulk-Only Transport 1.0 with all thirteen cases of its section 6.7 and Reset Recovery;
//! * one logical unit with these commands of SPC-4 and SBC-3: INQUIRY with vital product data, TEST
//!   UNIT READY, REQUEST SENSE, REPORT LUNS, MODE SENSE (6, 10), START STOP UNIT, PREVENT ALLOW MEDIUM
//!   REMOVAL, READ CAPACITY (10, 16), READ and WRITE (6, 10, 12, 16) with FUA, VERIFY (10, 12, 16)
//!   with and without comparison, SYNCHRONIZE CACHE (10, 16), and where the medium can discard: UNMAP
//!   and WRITE SAME (10, 16) that unmaps.
//!
//! What it does not: MODE SELECT, persistent reservations, protection information, ejecting. The
//! medium is fixed, not removable.
//!
//! # Choices where the transport leaves one
//! * Data that ends early on Bulk-In ends with a short packet and a STALL, not with fill bytes.
//! * Data that the command does not want on Bulk-Out is accepted and dropped: hosts without STALL
//!   recovery get their status all the same.
//! * A wrapper with reserved bits set, or a command length other than 1 to 16, is treated like one
//!   that is not valid; one for another logical unit than 0 fails with LOGICAL UNIT NOT SUPPORTED.
//! * On a phase error nothing of the command is carried out.
//! * After the disk was plugged in or reset, the first command that is not INQUIRY, REPORT LUNS or
//!   REQUEST SENSE reports a unit attention.

mod bulk_only;
mod command;
mod inquiry;
mod medium;
mod mode;
mod sense;
mod serial;
mod unit;

pub use medium::{BlockSize, Medium, RamDisk};
pub use serial::{Serial, SerialError};

use serde::{Deserialize, Serialize};

use self::bulk_only::Transport;
use self::unit::{Unit, UnitState};
use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::{
    Configuration, Control, Description, Direction, Endpoint, EndpointAddress, Interface, Notifier,
    Outcome, Recipient, RequestType, SetupPacket, Speeds, Status, Transfer, UsbDevice,
};

/// Bulk-In.
const IN: EndpointAddress = EndpointAddress::r#in(1);
/// Bulk-Out.
const OUT: EndpointAddress = EndpointAddress::out(2);
/// Mass storage, SCSI transparent command set, bulk-only transport.
const CLASS: [u8; 3] = [0x08, 0x06, 0x50];

/// Class requests (Bulk-Only Transport 1.0, 3).
mod class_request {
    pub(super) const BULK_ONLY_MASS_STORAGE_RESET: u8 = 0xff;
    pub(super) const GET_MAX_LUN: u8 = 0xfe;
}

/// A disk.
#[derive(Debug)]
pub struct Storage {
    description: Description,
    unit: Unit,
    transport: Transport,
    notifier: Option<Notifier>,
    /// The host was told that Bulk-In would announce its data.
    in_parked: bool,
    /// The same for Bulk-Out.
    out_parked: bool,
}

/// Name of a disk's form in a snapshot.
const KIND: &str = "disk";

/// A [`Storage`] in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StorageState {
    unit: UnitState,
    stage: Transport,
}

impl Storage {
    /// A disk that keeps its blocks in `medium`.
    pub fn new(medium: impl Medium + 'static, serial: Serial) -> Self {
        Self {
            description: description(&serial),
            unit: Unit::new(Box::new(medium), serial),
            transport: Transport::new(),
            notifier: None,
            in_parked: false,
            out_parked: false,
        }
    }

    /// Tells the host of an endpoint that it parked and that has something to say now.
    fn announce(&mut self) {
        let in_ready = self.in_parked && self.transport.answers_in();
        let out_ready = self.out_parked && self.transport.answers_out();
        self.in_parked &= !in_ready;
        self.out_parked &= !out_ready;
        if let Some(notifier) = &self.notifier {
            for (endpoint, ready) in [(IN, in_ready), (OUT, out_ready)] {
                if ready {
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
        self.transport.reset();
        self.in_parked = false;
        self.out_parked = false;
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        let addressed = request.request_type() == RequestType::Class
            && request.recipient() == Recipient::Interface
            && request.index() == 0
            && request.value() == 0;
        match (request.b_request, request.direction(), request.length()) {
            (class_request::BULK_ONLY_MASS_STORAGE_RESET, Direction::Out, 0) if addressed => {
                self.transport.reset();
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
        let outcome = if endpoint.is_in() {
            self.transport.bulk_in(&mut self.unit, transfer)
        } else {
            self.transport.bulk_out(&mut self.unit, transfer)
        };
        let parked = matches!(outcome.status, Status::Nak(_));
        if endpoint.is_in() {
            self.in_parked = parked;
        } else {
            self.out_parked = parked;
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
            in_parked: _,
            out_parked: _,
        } = self;
        State::of(KIND, &StorageState { unit: unit.save(), stage: transport.clone() })
    }

    fn restore(&mut self, state: &State, _now: Time) -> Result<(), RestoreError> {
        let StorageState { unit, stage } = state.to(KIND)?;
        self.unit.restore(&unit)?;
        RestoreError::check(stage.is_possible(&self.unit), "no command is at such a stage")?;
        self.transport = stage;
        self.in_parked = false;
        self.out_parked = false;
        Ok(())
    }
}

fn description(serial: &Serial) -> Description {
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
        speeds: Speeds::High { high: vec![configuration(512)], full: vec![configuration(64)] },
    }
}

fn configuration(max_packet: u16) -> Configuration {
    Configuration::only(Interface {
        class: CLASS,
        endpoints: [IN, OUT].map(|address| Endpoint::bulk(address, max_packet)).to_vec(),
        ..Interface::default()
    })
}
