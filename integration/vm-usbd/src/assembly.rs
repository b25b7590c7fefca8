//! From the command line to controllers with devices behind their ports.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use vm_usb::devices::debug::DebugDevice;
use vm_usb::devices::full_speed::FullSpeed;
use vm_usb::devices::hid::{Keyboard, Tablet};
use vm_usb::devices::hub::{Hub, HubError};
use vm_usb::devices::loopback::Loopback;
use vm_usb::devices::printer::{Discard, Printer};
use vm_usb::devices::storage::{Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::{Ohci, Pacing};
use vm_usb::pci::{Identity, PciFunction, Placement};
use vm_usb::topology::{AttachError, Host, Port};
use vm_usb::usb::{Speed, UsbDevice};
use vm_usb_image::{Access, OpenError, RawImage};

use crate::cli::{ControllerKind, ControllerOptions, DeviceKind, DeviceOptions};
use crate::doorbell::Doorbell;
use crate::input::{InputDevice, Inputs};
use crate::interrupts::Interrupts;
use crate::listener::{ListenError, Listener};
use crate::printout::Printout;
use crate::serve::Server;
use crate::session::Controller;
use crate::spin::SpinPolicy;
use crate::transcript::Transcript;

/// Ports of a controller for which no number is given.
const DEFAULT_PORTS: u8 = 6;

/// Why the command line does not describe a machine.
#[derive(Debug, Error)]
pub enum AssemblyError {
    /// Two things have one name.
    #[error("the id \"{0}\" is used twice: choose another for one of them")]
    DuplicateId(String),
    /// Two controllers have one socket.
    #[error("{0} is the socket of two controllers: give each its own")]
    DuplicateSocket(PathBuf),
    /// A device is to be plugged into nothing.
    #[error(
        "there is no controller or hub with id \"{0}\" to plug \"{1}\" into: \
         a hub comes before what is plugged into it"
    )]
    NoBus(String, String),
    /// A companion of nothing.
    #[error("companion-of={0}: there is no EHCI controller with that id")]
    NoPartner(String),
    /// A second companion.
    #[error(
        "companion-of={0}: that controller has a companion already, which serves all its ports"
    )]
    SecondCompanion(String),
    /// A companion with ports of its own number.
    #[error(
        "controller \"{id}\": ports={ports} differs from the {shared} ports it shares: leave it out"
    )]
    CompanionPorts {
        /// The companion.
        id: String,
        /// What was asked for.
        ports: u8,
        /// What there is.
        shared: usize,
    },
    /// A port that is not there.
    #[error("device \"{device}\": \"{bus}\" has no port {port}: its last one is {last}")]
    NoPort {
        /// The device.
        device: String,
        /// The controller or hub.
        bus: String,
        /// The port.
        port: u8,
        /// The last port there is.
        last: usize,
    },
    /// No port is free.
    #[error("device \"{0}\": all ports of \"{1}\" are taken: give it more with ports=N")]
    Full(String, String),
    /// There is no such hub.
    #[error("device \"{0}\": {1}")]
    Hub(String, #[source] HubError),
    /// The port does not take the device.
    #[error("device \"{0}\": {1}")]
    Attach(String, #[source] AttachError),
    /// The image cannot be used.
    #[error("device \"{0}\": {1}")]
    Image(String, #[source] OpenError),
    /// The file for print data or console text cannot be made.
    #[error("device \"{0}\": cannot create {path}: {2}", path = .1.display())]
    Printout(String, PathBuf, #[source] std::io::Error),
    /// The socket cannot be opened.
    #[error("controller \"{0}\": {1}")]
    Socket(String, #[source] ListenError),
    /// No `eventfd`.
    #[error("cannot create an eventfd: {0}")]
    Event(#[from] rustix::io::Errno),
}

/// Everything the command line asks for, not running yet.
pub struct Assembly {
    /// A server for each controller.
    pub servers: Vec<Server>,
    /// All ports, to take the devices out of in the end.
    pub ports: Vec<Port>,
    /// The devices that take input.
    pub inputs: Inputs,
}

/// A controller's ports.
struct Bus {
    ports: Vec<Port>,
    /// Whether another controller shares them.
    shared: bool,
}

/// Where devices can be plugged in: a controller or a hub.
struct Place {
    id: String,
    ports: Vec<Port>,
    /// The speed of its bus.
    speed: Speed,
}

/// Builds the controllers, plugs the devices in and opens the sockets.
///
/// # Errors
/// If the options contradict each other, or a file or socket cannot be opened.
pub fn assemble(
    controllers: &[ControllerOptions],
    devices: &[DeviceOptions],
    pacing: Pacing,
) -> Result<Assembly, AssemblyError> {
    check_names(controllers, devices)?;
    let buses = buses(controllers)?;
    let mut inputs = Inputs::default();
    let mut places: Vec<Place> = controllers.iter().zip(&buses).map(Place::of).collect();
    for (index, device) in devices.iter().enumerate() {
        let name = device.id.clone().unwrap_or_else(|| default_name(device, index));
        let place = places
            .iter()
            .find(|place| place.id == device.bus)
            .ok_or_else(|| AssemblyError::NoBus(device.bus.clone(), name.clone()))?;
        let (backing, behind) = device_of_kind(&device.kind, &name, place.speed, &mut inputs)?;
        let backing: Box<dyn UsbDevice> =
            if device.full_speed { Box::new(FullSpeed::new(backing)) } else { backing };
        plug(device, &name, &place.ports, backing)?;
        places.extend(behind);
    }
    let mut servers = Vec::new();
    for (options, bus) in controllers.iter().zip(&buses) {
        servers.push(server(options, bus, pacing)?);
    }
    let ports = places.into_iter().flat_map(|place| place.ports).collect();
    Ok(Assembly { servers, ports, inputs })
}

/// The name of the device that is `index`th on the command line.
fn default_name(device: &DeviceOptions, index: usize) -> String {
    format!("{}{index}", device.kind.name())
}

fn check_names(
    controllers: &[ControllerOptions],
    devices: &[DeviceOptions],
) -> Result<(), AssemblyError> {
    let mut ids: Vec<&str> = Vec::new();
    let controller_ids = controllers.iter().map(|controller| &*controller.id);
    for id in controller_ids.chain(devices.iter().filter_map(|device| device.id.as_deref())) {
        if ids.contains(&id) {
            return Err(AssemblyError::DuplicateId(id.to_owned()));
        }
        ids.push(id);
    }
    for (index, controller) in controllers.iter().enumerate() {
        if controllers[..index].iter().any(|other| other.socket == controller.socket) {
            return Err(AssemblyError::DuplicateSocket(controller.socket.clone()));
        }
    }
    Ok(())
}

/// The ports of each controller; a companion has clones of its partner's.
fn buses(controllers: &[ControllerOptions]) -> Result<Vec<Bus>, AssemblyError> {
    let mut buses: Vec<Option<Bus>> = Vec::new();
    for controller in controllers {
        let own = controller.companion_of.is_none().then(|| {
            let companions = controllers.iter().filter(|other| is_companion(other, &controller.id));
            let shared = companions.count() != 0;
            let port = match controller.kind {
                ControllerKind::Ehci if shared => Port::shared,
                ControllerKind::Ehci => Port::high_speed_only,
                ControllerKind::Ohci => Port::classic,
            };
            let count = controller.ports.unwrap_or(DEFAULT_PORTS);
            Bus { ports: (0..count).map(|_| port()).collect(), shared }
        });
        buses.push(own);
    }
    let mut taken: Vec<&str> = Vec::new();
    for (index, controller) in controllers.iter().enumerate() {
        let Some(partner) = controller.companion_of.as_deref() else {
            continue;
        };
        let ports = controllers
            .iter()
            .zip(&buses)
            .find(|(other, _)| other.kind == ControllerKind::Ehci && other.id == partner)
            .and_then(|(_, bus)| bus.as_ref().map(|bus| bus.ports.clone()))
            .ok_or_else(|| AssemblyError::NoPartner(partner.to_owned()))?;
        if taken.contains(&partner) {
            return Err(AssemblyError::SecondCompanion(partner.to_owned()));
        }
        taken.push(partner);
        if let Some(asked) = controller.ports.filter(|asked| usize::from(*asked) != ports.len()) {
            return Err(AssemblyError::CompanionPorts {
                id: controller.id.clone(),
                ports: asked,
                shared: ports.len(),
            });
        }
        buses[index] = Some(Bus { ports, shared: true });
    }
    // Every controller either has ports of its own or is a companion, whose were found.
    Ok(buses.into_iter().flatten().collect())
}

fn is_companion(controller: &ControllerOptions, partner: &str) -> bool {
    controller.companion_of.as_deref() == Some(partner)
}

fn plug(
    device: &DeviceOptions,
    name: &str,
    ports: &[Port],
    mut backing: Box<dyn UsbDevice>,
) -> Result<(), AssemblyError> {
    let chosen = match device.port {
        Some(number) => {
            let port = usize::from(number).checked_sub(1).and_then(|at| ports.get(at));
            port.map(std::slice::from_ref).ok_or_else(|| AssemblyError::NoPort {
                device: name.to_owned(),
                bus: device.bus.clone(),
                port: number,
                last: ports.len(),
            })?
        }
        None => ports,
    };
    for port in chosen {
        match port.attach(backing) {
            Ok(()) => return Ok(()),
            Err(refused)
                if device.port.is_none() && matches!(refused.reason, AttachError::Occupied(_)) =>
            {
                backing = refused.device;
            }
            Err(refused) => return Err(AssemblyError::Attach(name.to_owned(), refused.reason)),
        }
    }
    Err(AssemblyError::Full(name.to_owned(), device.bus.clone()))
}

impl Place {
    fn of((controller, bus): (&ControllerOptions, &Bus)) -> Self {
        let speed = match controller.kind {
            ControllerKind::Ehci => Speed::High,
            ControllerKind::Ohci => Speed::Full,
        };
        Self { id: controller.id.clone(), ports: bus.ports.clone(), speed }
    }
}

/// A device for a bus of the given speed; of a hub, also the place behind it.
fn device_of_kind(
    kind: &DeviceKind,
    name: &str,
    speed: Speed,
    inputs: &mut Inputs,
) -> Result<(Box<dyn UsbDevice>, Option<Place>), AssemblyError> {
    let mut behind = None;
    let device: Box<dyn UsbDevice> = match kind {
        DeviceKind::Storage { file, readonly } => {
            let access = if *readonly { Access::ReadOnly } else { Access::ReadWrite };
            let image = RawImage::open(file, access)
                .map_err(|error| AssemblyError::Image(name.to_owned(), error))?;
            Box::new(Storage::new(image, Serial::from_name(name)))
        }
        DeviceKind::Printer { file: None } => Box::new(Printer::new(Discard)),
        DeviceKind::Printer { file: Some(file) } => {
            let file = Printout::create(file)
                .map_err(|error| AssemblyError::Printout(name.to_owned(), file.clone(), error))?;
            Box::new(Printer::new(file))
        }
        DeviceKind::Debug { file: None } => Box::new(DebugDevice::new(Transcript::stdout())),
        DeviceKind::Debug { file: Some(file) } => {
            let file = Transcript::create(file)
                .map_err(|error| AssemblyError::Printout(name.to_owned(), file.clone(), error))?;
            Box::new(DebugDevice::new(file))
        }
        DeviceKind::Loopback(pattern) => Box::new(Loopback::new(*pattern)),
        DeviceKind::Keyboard => {
            let keyboard = Keyboard::new(speed);
            inputs.add(name.to_owned(), InputDevice::Keyboard(keyboard.handle()));
            Box::new(keyboard)
        }
        DeviceKind::Tablet => {
            let tablet = Tablet::new(speed);
            inputs.add(name.to_owned(), InputDevice::Tablet(tablet.handle()));
            Box::new(tablet)
        }
        DeviceKind::Hub(options) => {
            let hub = Hub::new(options.clone())
                .map_err(|error| AssemblyError::Hub(name.to_owned(), error))?;
            let speed = speed.min(options.speed);
            behind = Some(Place { id: name.to_owned(), ports: hub.ports().to_vec(), speed });
            Box::new(hub)
        }
    };
    Ok((device, behind))
}

fn server(options: &ControllerOptions, bus: &Bus, pacing: Pacing) -> Result<Server, AssemblyError> {
    let host = match options.kind {
        ControllerKind::Ehci => Host::High,
        ControllerKind::Ohci => Host::Classic,
    };
    let doorbell = Arc::new(Doorbell::new()?);
    let links: Vec<_> = bus.ports.iter().map(|port| port.link(host)).collect();
    for link in &links {
        link.subscribe(doorbell.clone());
    }
    let (identity, controller): (_, Controller) = match options.kind {
        ControllerKind::Ehci => (Identity::ehci(), Box::new(Ehci::new(links))),
        ControllerKind::Ohci => (Identity::ohci(), Box::new(Ohci::new(links).with_pacing(pacing))),
    };
    let placement = Placement { multi_function: bus.shared, ..Placement::default() };
    let listener = Listener::new(&options.socket)
        .map_err(|error| AssemblyError::Socket(options.id.clone(), error))?;
    Ok(Server {
        name: options.id.clone(),
        listener,
        function: PciFunction::new(identity, placement, controller, Interrupts::default()),
        doorbell,
        spin: SpinPolicy::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembled(name: &str, devices: &[&str]) -> Result<Assembly, String> {
        let socket = std::env::temp_dir().join(format!("vm-usbd-{name}-{}", std::process::id()));
        let controller = format!("ehci,id=e0,ports=2,socket={}", socket.display());
        let controllers = [controller.parse().unwrap()];
        let devices: Vec<_> = devices.iter().map(|device| device.parse().unwrap()).collect();
        let assembly = assemble(&controllers, &devices, Pacing::RealTime);
        let _ = std::fs::remove_file(socket);
        assembly.map_err(|error| error.to_string())
    }

    fn is_free(port: &Port) -> bool {
        port.detach().is_none()
    }

    #[test]
    fn a_hub_is_a_bus_for_what_comes_after_it() {
        let devices =
            ["hub,id=h0,bus=e0,port=2,ports=3", "hub,id=h1,bus=h0", "keyboard,bus=h1,port=7"];
        let assembly = assembled("tree", &devices).unwrap();
        let taken: Vec<_> = assembly
            .ports
            .iter()
            .enumerate()
            .filter(|(_, port)| !is_free(port))
            .map(|(at, _)| at)
            .collect();
        assert_eq!(assembly.ports.len(), 2 + 3 + 7);
        assert_eq!(taken, [1, 2, 11], "port 2 of e0, port 1 of h0, port 7 of h1");
    }

    #[test]
    fn a_bus_that_is_not_there_yet_is_named_with_the_way_out() {
        let error = assembled("order", &["keyboard,bus=h0", "hub,id=h0,bus=e0"]).err().unwrap();
        assert_eq!(
            error,
            "there is no controller or hub with id \"h0\" to plug \"keyboard0\" into: \
             a hub comes before what is plugged into it"
        );
        let devices = ["hub,id=h0,bus=e0,ports=1", "keyboard,bus=h0,port=2"];
        let error = assembled("port", &devices).err().unwrap();
        assert_eq!(error, "device \"keyboard1\": \"h0\" has no port 2: its last one is 1");
    }

    #[test]
    fn a_sixth_hub_in_a_row_is_refused() {
        let hubs = (0..6).map(|n| {
            let bus = if n == 0 { "e0".to_owned() } else { format!("h{}", n - 1) };
            format!("hub,id=h{n},bus={bus}")
        });
        let hubs: Vec<_> = hubs.collect();
        let devices: Vec<_> = hubs.iter().map(String::as_str).collect();
        let error = assembled("depth", &devices).err().unwrap();
        assert!(error.starts_with("device \"h5\": there would be 6 hubs in a row"), "{error}");
    }
}
