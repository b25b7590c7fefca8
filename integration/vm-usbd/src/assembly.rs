//! From the command line to controllers with devices behind their ports.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use vm_usb::controller::HostController;
use vm_usb::ehci::Ehci;
use vm_usb::ohci::{Ohci, Pacing};
use vm_usb::pci::{Identity, PciFunction, Placement};
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{Observer, Speed};

use crate::cli::{ControllerKind, ControllerOptions, DeviceOptions, PciId};
use crate::clock::Stopwatch;
use crate::disks::Disks;
use crate::doorbell::Doorbell;
use crate::gauge::Gauge;
use crate::halt_poll;
use crate::interrupts::Interrupts;
use crate::listener::{ListenError, Listener};
use crate::memory::GuestRam;
use crate::pcap::Capture;
use crate::plugboard::{Bus, PlugError, Plugboard};
use crate::serve::Server;
use crate::session::Controller;
use crate::spin::SpinPolicy;
use crate::tape::format::controller as bits;
use crate::tape::plugs::Plugs;
use crate::tape::{Shown, Tape};

/// Ports of a controller for which no number is given.
const DEFAULT_PORTS: u8 = 6;

/// Why the command line does not describe a machine.
#[derive(Debug, Error)]
pub enum AssemblyError {
    /// Two controllers have one name.
    #[error("the id \"{0}\" is used twice: choose another for one of them")]
    DuplicateId(String),
    /// Two controllers have one socket.
    #[error("{0} is the socket of two controllers: give each its own")]
    DuplicateSocket(PathBuf),
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
    /// A device cannot be plugged in.
    #[error("device \"{0}\": {1}")]
    Device(String, #[source] PlugError),
    /// The tape cannot be made.
    #[error("controller \"{id}\": cannot create the tape {path}: {cause}", path = path.display())]
    Tape {
        /// The controller.
        id: String,
        /// The tape.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
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
    /// Their ports and the devices.
    pub board: Plugboard,
}

/// A controller's ports.
struct Ports {
    ports: Vec<Port>,
    /// Whether another controller shares them.
    shared: bool,
    observer: Arc<dyn Observer>,
    disks: Disks,
}

/// Builds the controllers, plugs the devices in and opens the sockets; a capture sees the controllers as
/// buses that count from 1.
///
/// # Errors
/// If the options contradict each other, or a file or socket cannot be opened.
pub fn assemble(
    controllers: &[ControllerOptions],
    devices: &[DeviceOptions],
    pacing: Pacing,
    capture: Option<&Capture>,
) -> Result<Assembly, AssemblyError> {
    check_names(controllers)?;
    let ports = ports(controllers, capture)?;
    let mut board = Plugboard::new(controllers.iter().zip(&ports).map(bus).collect());
    let mut plugs = Plugs::default();
    for options in devices {
        let name = board.name_for(options);
        let plugged = board.attach(options).map_err(|error| AssemblyError::Device(name, error))?;
        plugs.add(&plugged, options);
    }
    let mut servers = Vec::new();
    for (options, ports) in controllers.iter().zip(&ports) {
        let tape = tape(options, pacing, &plugs)?;
        servers.push(server(options, ports, pacing, tape)?);
    }
    Ok(Assembly { servers, board })
}

/// A controller as a place to plug devices into.
fn bus((controller, ports): (&ControllerOptions, &Ports)) -> Bus {
    let speed = match controller.kind {
        ControllerKind::Ehci => Speed::High,
        ControllerKind::Ohci => Speed::Full,
    };
    let (observer, disks) = (ports.observer.clone(), ports.disks.clone());
    Bus::new(controller.id.clone(), ports.ports.clone(), speed, observer, disks)
}

fn check_names(controllers: &[ControllerOptions]) -> Result<(), AssemblyError> {
    for (index, controller) in controllers.iter().enumerate() {
        let before = &controllers[..index];
        if before.iter().any(|other| other.id == controller.id) {
            return Err(AssemblyError::DuplicateId(controller.id.clone()));
        }
        if before.iter().any(|other| other.socket == controller.socket) {
            return Err(AssemblyError::DuplicateSocket(controller.socket.clone()));
        }
    }
    Ok(())
}

/// The ports of each controller; a companion has clones of its partner's.
fn ports(
    controllers: &[ControllerOptions],
    capture: Option<&Capture>,
) -> Result<Vec<Ports>, AssemblyError> {
    let mut all: Vec<Option<Ports>> = Vec::new();
    for (number, controller) in (1..).zip(controllers) {
        let own = controller.companion_of.is_none().then(|| {
            let companions = controllers.iter().filter(|other| is_companion(other, &controller.id));
            let shared = companions.count() != 0;
            let port = match controller.kind {
                ControllerKind::Ehci if shared => Port::shared,
                ControllerKind::Ehci => Port::high_speed_only,
                ControllerKind::Ohci => Port::classic,
            };
            let count = controller.ports.unwrap_or(DEFAULT_PORTS);
            let observer: Arc<dyn Observer> = match capture {
                Some(capture) => capture.observer(number),
                None => Arc::new(Stopwatch),
            };
            let ports = (0..count).map(|_| port()).collect();
            Ports { ports, shared, observer, disks: Disks::default() }
        });
        all.push(own);
    }
    let mut taken: Vec<&str> = Vec::new();
    for (index, controller) in controllers.iter().enumerate() {
        let Some(partner) = controller.companion_of.as_deref() else {
            continue;
        };
        let (ports, observer, disks) = controllers
            .iter()
            .zip(&all)
            .find(|(other, _)| other.kind == ControllerKind::Ehci && other.id == partner)
            .and_then(|(_, own)| own.as_ref())
            .map(|own| (own.ports.clone(), own.observer.clone(), own.disks.clone()))
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
        all[index] = Some(Ports { ports, shared: true, observer, disks });
    }
    // Every controller either has ports of its own or is a companion, whose were found.
    Ok(all.into_iter().flatten().collect())
}

fn is_companion(controller: &ControllerOptions, partner: &str) -> bool {
    controller.companion_of.as_deref() == Some(partner)
}

/// The tape of a controller, if there is to be one.
fn tape(
    options: &ControllerOptions,
    pacing: Pacing,
    plugs: &Plugs,
) -> Result<Option<Tape>, AssemblyError> {
    let Some(tape) = &options.tape else { return Ok(None) };
    let controller = match options.kind {
        ControllerKind::Ehci => {
            let unhurried = if options.prompt_commit { 0 } else { bits::UNHURRIED };
            let addendum = if options.addendum { bits::ADDENDUM } else { 0 };
            bits::EHCI | unhurried | addendum
        }
        ControllerKind::Ohci => match pacing {
            Pacing::RealTime => 0,
            Pacing::Eager => 1 << bits::PACING_SHIFT,
            Pacing::Wire => 2 << bits::PACING_SHIFT,
        },
    };
    let created = Tape::create(&tape.file, tape.limit, controller);
    let mut created = created.map_err(|cause| AssemblyError::Tape {
        id: options.id.clone(),
        path: tape.file.clone(),
        cause,
    })?;
    for (device, place) in plugs.of(options.companion_of.as_deref().unwrap_or(&options.id)) {
        created.plug(device, place);
    }
    Ok(Some(created))
}

fn server(
    options: &ControllerOptions,
    ports: &Ports,
    pacing: Pacing,
    tape: Option<Tape>,
) -> Result<Server, AssemblyError> {
    let host = match options.kind {
        ControllerKind::Ehci => Host::High,
        ControllerKind::Ohci => Host::Classic,
    };
    let doorbell = Arc::new(Doorbell::new()?);
    let links: Vec<_> = ports.ports.iter().map(|port| port.link(host)).collect();
    for link in &links {
        link.subscribe(doorbell.clone());
    }
    let (mut identity, controller): (_, Controller) = match options.kind {
        ControllerKind::Ehci => {
            let controller = Ehci::new(links)
                .with_prompt_commit(options.prompt_commit)
                .with_addendum(options.addendum);
            (Identity::ehci(), boxed(controller, tape))
        }
        ControllerKind::Ohci => {
            (Identity::ohci(), boxed(Ohci::new(links).with_pacing(pacing), tape))
        }
    };
    if let Some(PciId { vendor, device }) = options.pci_id {
        identity = identity.with_id(vendor, device);
    }
    let placement = Placement { multi_function: ports.shared, ..Placement::default() };
    let listener = Listener::new(&options.socket)
        .map_err(|error| AssemblyError::Socket(options.id.clone(), error))?;
    Ok(Server {
        name: options.id.clone(),
        listener,
        function: PciFunction::new(identity, placement, controller, Interrupts::default()),
        doorbell,
        gauge: Arc::new(Gauge::new(options.id.clone(), options.kind)),
        spin: SpinPolicy::default(),
        halt_poll: halt_poll::DEFAULT,
        disks: ports.disks.clone(),
        errands: Arc::default(),
        restored: false,
    })
}

/// A controller as it is, or with what happens to it on a tape.
fn boxed<C>(controller: C, tape: Option<Tape>) -> Controller
where
    C: HostController<GuestRam> + for<'a> HostController<Shown<'a>> + 'static,
{
    match tape {
        None => Box::new(controller),
        Some(tape) => Box::new(tape.record(controller)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembled(name: &str, devices: &[&str]) -> Result<Assembly, String> {
        let socket = std::env::temp_dir().join(format!("vm-usbd-{name}-{}", std::process::id()));
        let controller = format!("ehci,id=e0,ports=2,socket={}", socket.display());
        let controllers = [controller.parse().unwrap()];
        let devices: Vec<_> = devices.iter().map(|device| device.parse().unwrap()).collect();
        let assembly = assemble(&controllers, &devices, Pacing::RealTime, None);
        let _ = std::fs::remove_file(socket);
        assembly.map_err(|error| error.to_string())
    }

    #[test]
    fn a_hub_is_a_bus_for_what_comes_after_it() {
        let devices =
            ["hub,id=h0,bus=e0,port=2,ports=3", "hub,id=h1,bus=h0", "keyboard,bus=h1,port=7"];
        let assembly = assembled("tree", &devices).unwrap();
        let slots = assembly.board.list();
        assert_eq!(slots.len(), 2 + 3 + 7);
        let taken = slots.iter().filter_map(|slot| slot.device.as_ref());
        let taken: Vec<_> = taken.map(|device| format!("{} {}", device.place, device.id)).collect();
        assert_eq!(taken, ["e0:2 h0", "h0:1 h1", "h1:7 keyboard2"]);
    }

    #[test]
    fn a_bus_that_is_not_there_yet_is_named_with_the_way_out() {
        let error = assembled("order", &["keyboard,bus=h0", "hub,id=h0,bus=e0"]).err().unwrap();
        assert_eq!(
            error,
            "device \"keyboard0\": there is no controller or hub with id \"h0\": \
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
