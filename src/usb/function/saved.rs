//! A device on the bus in a snapshot.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{EndpointSet, Function};
use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::control::ControlPipe;
use crate::usb::{Description, Speed};

/// What a device has to be for a state to be its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    vendor: u16,
    product: u16,
    release: u16,
    name: String,
    serial: String,
    fastest: Speed,
}

impl Kind {
    fn of(description: &Description) -> Self {
        Self {
            vendor: description.vendor,
            product: description.product,
            release: description.release,
            name: description.name.clone(),
            serial: description.serial.clone(),
            fastest: description.speeds.fastest(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vendor, product, release, name, serial, fastest } = self;
        write!(f, "\"{name}\" ({vendor:04x}:{product:04x}, release {release:04x}, {fastest}")?;
        if !serial.is_empty() {
            write!(f, ", serial number \"{serial}\"")?;
        }
        write!(f, ")")
    }
}

/// A [`Function`] and its device.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionState {
    kind: Kind,
    speed: Speed,
    address: u8,
    configuration: u8,
    alternates: Vec<(u8, u8)>,
    remote_wakeup: bool,
    dozing: bool,
    halted: u32,
    toggles: u32,
    control: ControlPipe,
    device: State,
}

impl FunctionState {
    /// What it is, for people.
    pub(crate) fn name(&self) -> String {
        self.kind.to_string()
    }
}

impl Function {
    /// What it is, for people.
    pub(crate) fn name(&self) -> String {
        Kind::of(self.device.description()).to_string()
    }

    pub(crate) fn save(&self, now: Time) -> Result<FunctionState, SaveError> {
        let Self {
            device,
            speed,
            address,
            configuration,
            alternates,
            // Follows from the settings.
            endpoints: _,
            remote_wakeup,
            dozing,
            halted,
            toggles,
            // Withdrawn: the transfer will be offered again.
            pending: _,
            control,
            // The statistics and the log of this process.
            watch: _,
            lines: _,
        } = self;
        Ok(FunctionState {
            kind: Kind::of(device.description()),
            speed: *speed,
            address: *address,
            configuration: *configuration,
            alternates: alternates.clone(),
            remote_wakeup: *remote_wakeup,
            dozing: *dozing,
            halted: halted.0,
            toggles: toggles.0,
            control: control.clone(),
            device: device.save(now)?,
        })
    }

    pub(crate) fn restore(&mut self, state: &FunctionState, now: Time) -> Result<(), RestoreError> {
        let FunctionState {
            kind,
            speed,
            address,
            configuration,
            alternates,
            remote_wakeup,
            dozing,
            halted,
            toggles,
            control,
            device,
        } = state;
        RestoreError::same(kind, &Kind::of(self.device.description()))?;
        let speeds = &self.device.description().speeds;
        let possible = [Speed::Full, Speed::High].map(|port| speeds.on_port(port));
        RestoreError::check(possible.contains(speed), "the device cannot work at that speed")?;
        RestoreError::check(*address < 128, "no device has that address")?;
        self.drop_pending();
        self.speed = *speed;
        self.address = *address;
        self.configuration = *configuration;
        self.alternates.clear();
        let known = *configuration == 0 || self.current().is_some();
        RestoreError::check(known, "the device has no such configuration")?;
        for (interface, alternate) in alternates {
            let known = self
                .current()
                .is_some_and(|current| current.interface(*interface, *alternate).is_some());
            let news = *alternate != 0 && self.alternate(*interface) == 0;
            RestoreError::check(known && news, "the device has no such alternate setting")?;
            self.alternates.push((*interface, *alternate));
        }
        self.collect_endpoints();
        self.remote_wakeup = *remote_wakeup;
        self.dozing = *dozing;
        self.halted = EndpointSet(*halted);
        self.toggles = EndpointSet(*toggles);
        self.control = control.clone();
        self.device.restore(device, now)
    }
}
