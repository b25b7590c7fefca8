//! What is plugged in where, and the hand that plugs and pulls, before the program starts to serve and
//! while it does.
//!
//! The controllers' loops know nothing of it: they notice at their ports.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vm_usb::topology::{AttachError, Port};
use vm_usb::usb::{Observer, Speed};

use crate::backing::{Backing, BackingError};
use crate::cli::DeviceOptions;
use crate::disks::Disks;
use crate::input::Inputs;
use crate::statistics::DeviceCounts;

/// Why something cannot be plugged in or pulled out.
#[derive(Debug, Error)]
pub enum PlugError {
    /// Two things would have one name.
    #[error("the id \"{0}\" is used twice: choose another for one of them")]
    DuplicateId(String),
    /// Nothing to plug a device into.
    #[error(
        "there is no controller or hub with id \"{0}\": a hub comes before what is plugged into it"
    )]
    NoBus(String),
    /// A port that is not there.
    #[error("\"{bus}\" has no port {port}: its last one is {last}")]
    NoPort {
        /// The controller or hub.
        bus: String,
        /// The port.
        port: u8,
        /// The last port there is.
        last: usize,
    },
    /// The port is taken.
    #[error("{0} is taken by \"{1}\": detach it first or choose another port")]
    Taken(Place, String),
    /// No port is free.
    #[error("all ports of \"{0}\" are taken: give it more with ports=N")]
    Full(String),
    /// There is no such device.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The port does not take the device.
    #[error(transparent)]
    Refused(#[from] AttachError),
    /// Nothing has that name.
    #[error("there is no device \"{0}\": name one by its id, or its port as BUS:PORT; see list")]
    Unknown(String),
    /// Nothing is plugged in there.
    #[error("{0} is empty")]
    Empty(Place),
}

/// A port by name, as in `e0:1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The controller or hub.
    pub bus: String,
    /// Its port, from 1.
    pub port: u8,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.bus, self.port)
    }
}

/// A device and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plugged {
    /// Its name.
    pub id: String,
    /// What it is, as on the command line.
    pub kind: String,
    /// The port that was named when it was plugged in.
    #[serde(flatten)]
    pub place: Place,
}

/// One port, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The port.
    #[serde(flatten)]
    pub place: Place,
    /// What is plugged in. A port that two controllers share shows the same device twice.
    pub device: Option<Plugged>,
}

/// A controller or a hub.
pub(crate) struct Bus {
    id: String,
    ports: Vec<Port>,
    speed: Speed,
    /// Sees the transfers of what is plugged in here, and behind.
    observer: Arc<dyn Observer>,
    /// Those among them.
    disks: Disks,
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus")
            .field("id", &self.id)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

impl Bus {
    /// A place for devices that `observer` watches; images join `disks`.
    pub(crate) fn new(
        id: String,
        ports: Vec<Port>,
        speed: Speed,
        observer: Arc<dyn Observer>,
        disks: Disks,
    ) -> Self {
        for port in &ports {
            port.set_observer(Some(observer.clone()));
        }
        Self { id, ports, speed, observer, disks }
    }

    /// The port with this number, from 1.
    fn port(&self, number: u8) -> Result<&Port, PlugError> {
        let port = usize::from(number).checked_sub(1).and_then(|at| self.ports.get(at));
        port.ok_or_else(|| PlugError::NoPort {
            bus: self.id.clone(),
            port: number,
            last: self.ports.len(),
        })
    }

    fn place(&self, port: u8) -> Place {
        Place { bus: self.id.clone(), port }
    }

    /// Its ports with their numbers.
    fn numbered(&self) -> impl Iterator<Item = (u8, &Port)> {
        (1..).zip(&self.ports)
    }
}

/// Every port there is, and every device in one.
#[derive(Debug)]
pub struct Plugboard {
    buses: Vec<Bus>,
    plugged: Vec<(Plugged, Port)>,
    inputs: Inputs,
    /// Devices so far, to name those that have no name.
    count: usize,
}

impl Plugboard {
    /// A board of controllers with empty ports.
    pub(crate) fn new(buses: Vec<Bus>) -> Self {
        Self { buses, plugged: Vec::new(), inputs: Inputs::default(), count: 0 }
    }

    /// The devices that take input, now and later.
    pub fn inputs(&self) -> Inputs {
        self.inputs.clone()
    }

    /// What the next device is called: as its options say, or else by its kind and a number.
    pub fn name_for(&self, options: &DeviceOptions) -> String {
        options.id.clone().unwrap_or_else(|| {
            let mut names = (self.count..).map(|n| format!("{}{n}", options.kind.name()));
            names.find(|name| !self.is_used(name)).unwrap_or_default()
        })
    }

    fn is_used(&self, id: &str) -> bool {
        self.bus(id).is_some() || self.plugged.iter().any(|(device, _)| device.id == id)
    }

    fn bus(&self, id: &str) -> Option<&Bus> {
        self.buses.iter().find(|bus| bus.id == id)
    }

    fn in_port(&self, port: &Port) -> Option<&Plugged> {
        self.plugged.iter().find(|(_, taken)| taken == port).map(|(device, _)| device)
    }

    /// Makes the device that `options` describe and plugs it in.
    ///
    /// # Errors
    /// If there is no such device, or no room for it.
    pub fn attach(&mut self, options: &DeviceOptions) -> Result<Plugged, PlugError> {
        let id = self.name_for(options);
        if self.is_used(&id) {
            return Err(PlugError::DuplicateId(id));
        }
        let bus = self.bus(&options.bus).ok_or_else(|| PlugError::NoBus(options.bus.clone()))?;
        let (number, port) = match options.port {
            Some(number) => {
                let port = bus.port(number)?;
                if let Some(device) = self.in_port(port) {
                    return Err(PlugError::Taken(bus.place(number), device.id.clone()));
                }
                (number, port.clone())
            }
            None => {
                let free = bus.numbered().find(|(_, port)| self.in_port(port).is_none());
                let (number, port) = free.ok_or_else(|| PlugError::Full(bus.id.clone()))?;
                (number, port.clone())
            }
        };
        let place = bus.place(number);
        let Backing { device, input, behind } = Backing::new(options, &id, bus.speed, &bus.disks)?;
        let (observer, disks) = (bus.observer.clone(), bus.disks.clone());
        port.attach(device).map_err(|refused| refused.reason)?;
        if let Some(input) = input {
            self.inputs.add(id.clone(), input);
        }
        if let Some((ports, speed)) = behind {
            self.buses.push(Bus::new(id.clone(), ports, speed, observer, disks));
        }
        let plugged = Plugged { id, kind: options.kind.name().to_owned(), place };
        self.plugged.push((plugged.clone(), port));
        self.count = self.count.saturating_add(1);
        Ok(plugged)
    }

    /// The device called `name`, or in the port of that name.
    fn find(&self, name: &str) -> Result<usize, PlugError> {
        if let Some(at) = self.plugged.iter().position(|(device, _)| device.id == name) {
            return Ok(at);
        }
        let unknown = || PlugError::Unknown(name.to_owned());
        let (bus, number) = name.rsplit_once(':').ok_or_else(unknown)?;
        let number = number.parse().map_err(|_| unknown())?;
        let bus = self.bus(bus).ok_or_else(|| PlugError::NoBus(bus.to_owned()))?;
        let port = bus.port(number)?;
        let at = self.plugged.iter().position(|(_, taken)| taken == port);
        at.ok_or_else(|| PlugError::Empty(bus.place(number)))
    }

    /// Pulls a device out, named by its id or its port (`BUS:PORT`). A hub takes along what is plugged
    /// into it. The devices are gone when this returns, and their files free again.
    ///
    /// Returns them, a hub before what was behind it.
    ///
    /// # Errors
    /// If nothing is there.
    pub fn detach(&mut self, name: &str) -> Result<Vec<Plugged>, PlugError> {
        let at = self.find(name)?;
        Ok(self.remove(at))
    }

    fn remove(&mut self, at: usize) -> Vec<Plugged> {
        let (device, port) = self.plugged.remove(at);
        drop(port.detach());
        let mut gone = vec![device];
        let mut seen = 0;
        // What was behind a hub went with it, and so did what was behind that.
        while let Some(hub) = gone.get(seen).map(|device| device.id.clone()) {
            self.buses.retain(|bus| bus.id != hub);
            self.inputs.remove(&hub);
            let (behind, rest): (Vec<_>, Vec<_>) =
                self.plugged.drain(..).partition(|(device, _)| device.place.bus == hub);
            self.plugged = rest;
            gone.extend(behind.into_iter().map(|(device, _)| device));
            seen += 1;
        }
        gone
    }

    /// Pulls a device out and plugs the same one in again, with all it has in it: the guest has to set
    /// it up anew. What is behind a hub stays behind it.
    ///
    /// # Errors
    /// If nothing is there.
    pub fn replug(&mut self, name: &str) -> Result<Plugged, PlugError> {
        let at = self.find(name)?;
        let (plugged, port) = &self.plugged[at];
        let plugged = plugged.clone();
        let device = port.detach().ok_or_else(|| PlugError::Empty(plugged.place.clone()))?;
        if let Err(refused) = port.attach(device) {
            // It had its place there, so it has it still; if not, it is gone.
            self.remove(at);
            return Err(refused.reason.into());
        }
        Ok(plugged)
    }

    /// Every port of a controller, by its name. One that two controllers share is there once; those of
    /// hubs go with their hubs.
    pub fn root_ports(&self) -> Vec<(String, Port)> {
        let mut ports: Vec<(String, Port)> = Vec::new();
        let is_hub = |bus: &&Bus| self.plugged.iter().any(|(device, _)| device.id == bus.id);
        for bus in self.buses.iter().filter(|bus| !is_hub(bus)) {
            for (number, port) in bus.numbered() {
                if ports.iter().all(|(_, known)| known != port) {
                    ports.push((bus.place(number).to_string(), port.clone()));
                }
            }
        }
        ports
    }

    /// Every port, and what is in it.
    pub fn list(&self) -> Vec<Slot> {
        let slots = self.buses.iter().flat_map(|bus| {
            bus.numbered().map(|(number, port)| Slot {
                place: bus.place(number),
                device: self.in_port(port).cloned(),
            })
        });
        slots.collect()
    }

    /// What was counted at each device.
    pub fn statistics(&self) -> Vec<DeviceCounts> {
        let devices = self.plugged.iter().filter_map(|(device, port)| {
            Some(DeviceCounts::new(device.clone(), &port.statistics()?))
        });
        devices.collect()
    }

    /// Pulls everything out. Dropping a disk writes out what is left of its data.
    pub fn clear(&mut self) {
        for (_, port) in self.plugged.drain(..) {
            drop(port.detach());
        }
    }
}
