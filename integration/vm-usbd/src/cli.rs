//! The command line.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use vm_usb::devices::hub::{HubOptions, MOST_PORTS, Translators};
use vm_usb::devices::loopback::{Isochronous, LoopbackOptions, Messages, Pattern};
use vm_usb::usb::Speed;

use crate::control::verbs::Verb;
use crate::options::{OptionError, Options};
use crate::pcap::spool::Limits;
use crate::sandbox::Sandbox;

/// Serves USB host controllers with devices to virtual machines, over vfio-user.
#[derive(Debug, Parser)]
#[command(
    name = "vm-usbd",
    version,
    after_help = EXAMPLE,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct Arguments {
    /// Something else than to serve.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The host controllers.
    #[arg(long = "controller", value_name = "OPTIONS", required = true, help = CONTROLLER)]
    pub controllers: Vec<ControllerOptions>,

    /// The devices.
    #[arg(long = "device", value_name = "OPTIONS", help = DEVICE)]
    pub devices: Vec<DeviceOptions>,

    /// A socket that takes key and pointer events for keyboards and tablets
    #[arg(long, value_name = "PATH")]
    pub input: Option<PathBuf>,

    /// How long a frame takes: realtime is 1 ms, eager ends it early when the guest only waits for that
    #[arg(long, value_name = "POLICY")]
    pub pacing: Option<Pacing>,

    /// Microseconds for which a processor with nothing else to do is kept awake after a guest's access, as
    /// KVM's halt_poll_ns does; 0 for never
    #[arg(long, value_name = "MICROS", default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=10_000))]
    pub halt_poll: u64,

    /// A socket for attaching and detaching devices at run time: see vm-usbd ctl --help
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// A file that vm-usbd ctl save wrote: the first client of each controller goes on from there
    #[arg(long, value_name = "PATH")]
    pub restore: Option<PathBuf>,

    /// A file that takes every transfer, for Wireshark; an old one is replaced
    #[arg(long, value_name = "PATH")]
    pub pcap: Option<PathBuf>,

    /// Bytes of data kept of each transfer in the capture
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, requires = "pcap")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    pub pcap_snaplen: u32,

    /// Size in MiB at which the capture ends
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "pcap")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub pcap_limit: u64,

    /// Whether to give up all files but those named here, and all system calls but those needed: on does
    /// what the kernel can and says what it cannot, require does not start then
    #[arg(long, value_name = "MODE", default_value = "on")]
    pub sandbox: Sandbox,

    /// A folder or file that vm-usbd ctl attach and save may use in the sandbox, too
    #[arg(long, value_name = "PATH")]
    pub allow_path: Vec<PathBuf>,

    /// Become this user, by name or number, before anything is opened
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// Become a member of this group alone; that of the user, and its others, if not said
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
}

impl Arguments {
    /// How much of a capture is kept.
    pub fn pcap_limits(&self) -> Limits {
        Limits { data: self.pcap_snaplen, file: self.pcap_limit << 20 }
    }
}

/// What the program does instead of serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Asks a running vm-usbd to list, attach or detach devices, or what it has counted
    Ctl(Ctl),
    /// Shows what a running vm-usbd does, again and again; once if not on a terminal
    Top(Top),
}

/// A running server.
#[derive(Debug, Args)]
pub struct Socket {
    /// The server's control socket
    #[arg(required_unless_present = "control", conflicts_with = "control")]
    path: Option<PathBuf>,

    /// The same, named as on the server's command line
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

impl Socket {
    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.control.as_deref().or(self.path.as_deref()).unwrap_or(Path::new(""))
    }
}

/// `vm-usbd top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Whom to ask.
    #[command(flatten)]
    pub server: Socket,

    /// Milliseconds between two looks, over which rates are taken
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub interval: u64,
}

/// `vm-usbd ctl`.
#[derive(Debug, Args)]
pub struct Ctl {
    /// Whom to ask.
    #[command(flatten)]
    pub server: Socket,

    /// Print the reply as JSON
    #[arg(long)]
    pub json: bool,

    /// What to ask.
    #[command(subcommand)]
    pub verb: Verb,
}

// Help texts of their own: in a documentation comment their brackets would be links.

const CONTROLLER: &str = "\
A host controller: ehci,id=ID,socket=PATH[,ports=N][,addendum=on|off][,prompt-commit=on|off] or
ohci,id=ID,socket=PATH[,ports=N][,companion-of=EHCI-ID]; and for each [,pci-id=VENDOR:DEVICE], in
hexadecimal: drivers know it by its class, but treat some chips specially; and [,tape=PATH[,tape-limit=KIB]],
a file for a replay of what the guest does and the controller reads of its memory. With addendum=on EHCI is of
revision 1.1 (link power management, a change bit for each port), not 1.0. Without prompt-commit it
reports completions with the end of the frame, to show what reporting them at once gains";

const DEVICE: &str = "\
A device: storage,bus=BUS,file=PATH[,readonly=on], (keyboard|tablet),bus=BUS,
printer,bus=BUS[,file=PATH], debug,bus=BUS[,file=PATH] (a console for port=1 of an ehci),
loopback,bus=BUS[,pattern=zero|mod63|any][,message=BYTES[,pace=MBIT/S]][,iso-packet=1..1024][,iso-packets=1..3]
[,iso-interval=1..16], or
hub,bus=BUS,id=ID[,ports=N][,speed=full|high][,tt=single|multiple]; and for each
[,port=N][,id=ID][,speed=full]. BUS is the id of a controller, or of a hub named before";

const EXAMPLE: &str = "Example:
  vm-usbd --controller ehci,id=e0,socket=/run/e.sock --device storage,bus=e0,file=disk.img

The VMM has to share the guest's memory: QEMU with -object memory-backend-memfd,id=m,size=SIZE,share=on
-machine memory-backend=m, cloud-hypervisor with --memory shared=on. In paths, write a comma twice.
RUST_LOG=debug shows what the VMM asks for.";

/// Frame pacing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pacing {
    /// A frame is 1 ms.
    Realtime,
    /// A frame ends early if the guest only waits for its end.
    Eager,
    /// Bytes per frame are limited as on the wire.
    Wire,
}

/// The two kinds of controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// High speed.
    Ehci,
    /// Full and low speed.
    Ohci,
}

impl ControllerKind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ehci => "ehci",
            Self::Ohci => "ohci",
        }
    }
}

/// What a function says it is on PCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciId {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
}

impl FromStr for PciId {
    type Err = ();

    /// `VENDOR:DEVICE`, each of four hexadecimal digits; FFFF is what nobody answers with.
    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str| {
            let is_whole = text.len() == 4 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
            u16::from_str_radix(text, 16).ok().filter(|_| is_whole)
        };
        let (vendor, device) = text.split_once(':').ok_or(())?;
        let vendor = number(vendor).filter(|vendor| *vendor != 0xffff).ok_or(())?;
        Ok(Self { vendor, device: number(device).ok_or(())? })
    }
}

/// `--controller`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerOptions {
    /// Which kind.
    pub kind: ControllerKind,
    /// Its name.
    pub id: String,
    /// Where it is offered.
    pub socket: PathBuf,
    /// How many ports it has, if said.
    pub ports: Option<u8>,
    /// The EHCI controller whose ports it shares.
    pub companion_of: Option<String>,
    /// Whether EHCI reports completions at once.
    pub prompt_commit: bool,
    /// Whether EHCI is of revision 1.1, with the whole addendum.
    pub addendum: bool,
    /// What it says it is, if not what it is.
    pub pci_id: Option<PciId>,
    /// What takes the guest's accesses, if anything.
    pub tape: Option<TapeOptions>,
}

/// `tape=` and `tape-limit=` of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapeOptions {
    /// The file; an old one is replaced.
    pub file: PathBuf,
    /// Most bytes of it.
    pub limit: u64,
}

impl TapeOptions {
    const DEFAULT_KIBIBYTES: u64 = 1024;

    fn take(options: &mut Options) -> Result<Option<Self>, OptionError> {
        let file = options.take("tape");
        let limit = options.number("tape-limit", 1..=1 << 20, "say 1 to 1048576, in KiB")?;
        match (file, limit) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(OptionError::Missing("tape")),
            (Some(file), limit) => Ok(Some(Self {
                file: file.into(),
                limit: limit.unwrap_or(Self::DEFAULT_KIBIBYTES) << 10,
            })),
        }
    }
}

impl FromStr for ControllerOptions {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut options: Options = text.parse()?;
        let kind = match options.kind() {
            "ehci" => ControllerKind::Ehci,
            "ohci" => ControllerKind::Ohci,
            other => {
                return Err(OptionError::Kind { found: other.to_owned(), known: "ehci, ohci" });
            }
        };
        let controller = Self {
            kind,
            companion_of: match kind {
                ControllerKind::Ohci => options.take("companion-of"),
                ControllerKind::Ehci => None,
            },
            prompt_commit: match kind {
                ControllerKind::Ehci => options.switch("prompt-commit", true)?,
                ControllerKind::Ohci => true,
            },
            addendum: match kind {
                ControllerKind::Ehci => options.switch("addendum", false)?,
                ControllerKind::Ohci => false,
            },
            tape: TapeOptions::take(&mut options)?,
            ports: options.number("ports", 1..=15, "a controller has 1 to 15 ports")?,
            pci_id: pci_id(&mut options)?,
            id: options.take("id").unwrap_or_default(),
            socket: options.take("socket").unwrap_or_default().into(),
        };
        options.finish()?;
        if controller.id.is_empty() {
            return Err(OptionError::Missing("id"));
        }
        if controller.socket.as_os_str().is_empty() {
            return Err(OptionError::Missing("socket"));
        }
        Ok(controller)
    }
}

/// The id to show, if one is given.
fn pci_id(options: &mut Options) -> Result<Option<PciId>, OptionError> {
    let Some(value) = options.take("pci-id") else {
        return Ok(None);
    };
    let expected = "say VENDOR:DEVICE, such as 1af4:10f1, with a vendor below ffff";
    value.parse().map(Some).map_err(|()| OptionError::Value { key: "pci-id", value, expected })
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A disk.
    Storage {
        /// The image or block device.
        file: PathBuf,
        /// Whether writes are refused.
        readonly: bool,
    },
    /// A keyboard.
    Keyboard,
    /// A pointer with absolute coordinates.
    Tablet,
    /// A printer.
    Printer {
        /// What takes the print data; without one it is thrown away.
        file: Option<PathBuf>,
    },
    /// The far end of an early console on an EHCI debug port.
    Debug {
        /// What takes the text; standard output if not said.
        file: Option<PathBuf>,
    },
    /// A source and sink of test data.
    Loopback(LoopbackOptions),
    /// A hub.
    Hub(HubOptions),
}

impl DeviceKind {
    /// The file it reads, or writes.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Storage { file, .. } => Some(file),
            Self::Printer { file } | Self::Debug { file } => file.as_deref(),
            Self::Keyboard | Self::Tablet | Self::Loopback(_) | Self::Hub(_) => None,
        }
    }

    /// Its name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Storage { .. } => "storage",
            Self::Keyboard => "keyboard",
            Self::Tablet => "tablet",
            Self::Printer { .. } => "printer",
            Self::Debug { .. } => "debug",
            Self::Loopback(_) => "loopback",
            Self::Hub(_) => "hub",
        }
    }
}

/// `--device`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// What it is.
    pub kind: DeviceKind,
    /// The controller or hub it is plugged into.
    pub bus: String,
    /// Which of its ports, from 1; the first free one if not said.
    pub port: Option<u8>,
    /// Its name, if said.
    pub id: Option<String>,
    /// Whether it is kept from high speed.
    pub full_speed: bool,
}

impl FromStr for DeviceOptions {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut options: Options = text.parse()?;
        let bus = options.take("bus");
        let port = options.number("port", 1..=15, "ports count from 1 to at most 15")?;
        let id = options.take("id");
        let kind = match options.kind() {
            "storage" => {
                let file = options.take("file");
                let readonly = options.switch("readonly", false)?;
                let file = file.ok_or(OptionError::Missing("file"))?.into();
                DeviceKind::Storage { file, readonly }
            }
            "keyboard" => DeviceKind::Keyboard,
            "tablet" => DeviceKind::Tablet,
            "printer" => DeviceKind::Printer { file: options.take("file").map(PathBuf::from) },
            "debug" => DeviceKind::Debug { file: options.take("file").map(PathBuf::from) },
            "loopback" => DeviceKind::Loopback(loopback(&mut options)?),
            "hub" => DeviceKind::Hub(hub(&mut options)?),
            other => {
                return Err(OptionError::Kind {
                    found: other.to_owned(),
                    known: "storage, keyboard, tablet, printer, debug, loopback, hub",
                });
            }
        };
        let is_hub = matches!(kind, DeviceKind::Hub(_));
        let expected = "leave it out, or say full";
        let full_speed = !is_hub && options.choice("speed", &["full"], expected)?.is_some();
        options.finish()?;
        if is_hub && id.is_none() {
            return Err(OptionError::Missing("id"));
        }
        Ok(Self { kind, bus: bus.ok_or(OptionError::Missing("bus"))?, port, id, full_speed })
    }
}

/// What a source and sink is like.
fn loopback(options: &mut Options) -> Result<LoopbackOptions, OptionError> {
    let pattern = pattern(options)?;
    let expected = "a message has 1 byte or more";
    let message = options.number("message", 1..=usize::MAX, expected)?;
    let message = message.and_then(NonZeroUsize::new);
    let expected = "messages come at 1 to 10000 Mbit/s";
    let pace = options.number("pace", 1..=10_000, expected)?.and_then(NonZeroU32::new);
    if pace.is_some() && message.is_none() {
        return Err(OptionError::Missing("message"));
    }
    let packet = options.number("iso-packet", 1..=1024, "a packet has 1 to 1024 bytes")?;
    let packets = options.number("iso-packets", 1..=3, "there are 1 to 3 packets at a time")?;
    let interval = options.number("iso-interval", 1..=16, "say 1 to 16, as bInterval has it")?;
    // One packet of the largest size every millisecond, unless said otherwise.
    let isochronous =
        Isochronous::new(packet.unwrap_or(1024), packets.unwrap_or(1), interval.unwrap_or(4))
            .unwrap_or_default();
    let messages = message.map(|bytes| Messages { bytes, pace });
    Ok(LoopbackOptions { pattern, messages, isochronous })
}

/// What a source sends and a sink accepts; zeros if not said.
fn pattern(options: &mut Options) -> Result<Pattern, OptionError> {
    let Some(value) = options.take("pattern") else {
        return Ok(Pattern::Zeros);
    };
    match &*value {
        "zero" => Ok(Pattern::Zeros),
        "mod63" => Ok(Pattern::Mod63),
        "any" => Ok(Pattern::Unchecked),
        _ => {
            let expected = "say zero, mod63 or any";
            Err(OptionError::Value { key: "pattern", value, expected })
        }
    }
}

/// What kind of hub.
fn hub(options: &mut Options) -> Result<HubOptions, OptionError> {
    let mut hub = HubOptions::default();
    if let Some(ports) = options.number("ports", 1..=MOST_PORTS, "a hub has 1 to 15 ports")? {
        hub.ports = ports;
    }
    let choice = options.choice("speed", &["high", "full"], "a hub's speed is high or full")?;
    if choice == Some("full") {
        hub.speed = Speed::Full;
    }
    let choice = options.choice("tt", &["single", "multiple"], "say single or multiple")?;
    if choice == Some("multiple") {
        hub.translators = Translators::Multiple;
    }
    Ok(hub)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::halt_poll;

    #[test]
    fn the_contract_of_the_command_line() {
        let arguments = Arguments::try_parse_from([
            "vm-usbd",
            "--controller",
            "ehci,id=e0,socket=/run/e.sock",
            "--controller",
            "ohci,id=o0,socket=/run/o.sock,companion-of=e0",
            "--device",
            "storage,bus=e0,port=1,file=disk.img,readonly=on",
            "--device",
            "keyboard,bus=o0,id=kbd,speed=full",
            "--pacing",
            "eager",
        ])
        .unwrap();
        assert_eq!(
            arguments.controllers,
            [
                ControllerOptions {
                    kind: ControllerKind::Ehci,
                    id: "e0".into(),
                    socket: "/run/e.sock".into(),
                    ports: None,
                    companion_of: None,
                    prompt_commit: true,
                    addendum: false,
                    pci_id: None,
                    tape: None,
                },
                ControllerOptions {
                    kind: ControllerKind::Ohci,
                    id: "o0".into(),
                    socket: "/run/o.sock".into(),
                    ports: None,
                    companion_of: Some("e0".into()),
                    prompt_commit: true,
                    addendum: false,
                    pci_id: None,
                    tape: None,
                },
            ]
        );
        assert_eq!(
            arguments.devices,
            [
                DeviceOptions {
                    kind: DeviceKind::Storage { file: "disk.img".into(), readonly: true },
                    bus: "e0".into(),
                    port: Some(1),
                    id: None,
                    full_speed: false,
                },
                DeviceOptions {
                    kind: DeviceKind::Keyboard,
                    bus: "o0".into(),
                    port: None,
                    id: Some("kbd".into()),
                    full_speed: true,
                },
            ]
        );
        assert_eq!(arguments.pacing, Some(Pacing::Eager));
        assert_eq!(Duration::from_micros(arguments.halt_poll), halt_poll::DEFAULT);
    }

    #[test]
    fn what_is_wrong_with_an_option_is_said_in_one_phrase() {
        let controller = |text: &str| text.parse::<ControllerOptions>().unwrap_err().to_string();
        assert_eq!(controller("xhci,id=x"), "\"xhci\" is not one of ehci, ohci");
        assert_eq!(controller("ehci,socket=/s"), "id= is missing");
        assert_eq!(controller("ehci,id=e"), "socket= is missing");
        assert_eq!(
            controller("ehci,id=e,socket=/s,prompt-commit=no"),
            "prompt-commit=no: say on or off"
        );
        for id in ["0000:0000", "8086:24cd", "fffe:FFFF"] {
            let options = format!("ehci,id=e,socket=/s,pci-id={id}").parse::<ControllerOptions>();
            let PciId { vendor, device } = options.unwrap().pci_id.unwrap();
            assert_eq!(format!("{vendor:04x}:{device:04x}"), id.to_lowercase());
        }
        for id in ["ffff:0001", "8086", "8086:", "8086:24c", "8086:024cd", "+086:24cd", "8086:24cg"]
        {
            assert_eq!(
                controller(&format!("ohci,id=o,socket=/s,pci-id={id}")),
                format!(
                    "pci-id={id}: say VENDOR:DEVICE, such as 1af4:10f1, with a vendor below ffff"
                )
            );
        }
        assert_eq!(
            controller("ehci,id=e,socket=/s,companion-of=f"),
            "unknown option \"companion-of\"; there are prompt-commit, addendum, tape, tape-limit, ports, pci-id, id, socket"
        );
        assert_eq!(controller("ehci,id=e,socket=/s,addendum=1.1"), "addendum=1.1: say on or off");
        assert_eq!(
            controller("ohci,id=e,socket=/s,addendum=on"),
            "unknown option \"addendum\"; there are companion-of, tape, tape-limit, ports, pci-id, id, socket"
        );
        let ehci = "ehci,id=e,socket=/s,addendum=on".parse::<ControllerOptions>().unwrap();
        assert!(ehci.addendum && ehci.prompt_commit);
        assert_eq!(
            controller("ohci,id=e,socket=/s,ports=16"),
            "ports=16: a controller has 1 to 15 ports"
        );
        assert_eq!(controller("ehci,id=e,socket=/s,tape-limit=4"), "tape= is missing");
        assert_eq!(
            controller("ehci,id=e,socket=/s,tape=t,tape-limit=0"),
            "tape-limit=0: say 1 to 1048576, in KiB"
        );
        let taped = "ohci,id=o,socket=/s,tape=o.tape".parse::<ControllerOptions>().unwrap();
        let tape = TapeOptions { file: "o.tape".into(), limit: 1 << 20 };
        assert_eq!(taped.tape, Some(tape));
        let device = |text: &str| text.parse::<DeviceOptions>().unwrap_err().to_string();
        assert_eq!(
            device("mouse,bus=o0"),
            "\"mouse\" is not one of storage, keyboard, tablet, printer, debug, loopback, hub"
        );
        assert_eq!(device("keyboard"), "bus= is missing");
        assert_eq!(device("storage,bus=e0"), "file= is missing");
        assert_eq!(device("tablet,bus=e0,speed=low"), "speed=low: leave it out, or say full");
        assert_eq!(device("storage,bus=e0,file=f,readonly=yes"), "readonly=yes: say on or off");
        let printer = "printer,bus=o0,file=out.prn".parse::<DeviceOptions>().unwrap();
        assert_eq!(printer.kind, DeviceKind::Printer { file: Some("out.prn".into()) });
        let debug = "debug,bus=e0,port=1".parse::<DeviceOptions>().unwrap();
        assert_eq!((debug.kind, debug.port), (DeviceKind::Debug { file: None }, Some(1)));
        let loopback = "loopback,bus=o0,pattern=mod63".parse::<DeviceOptions>().unwrap();
        assert_eq!(loopback.kind, DeviceKind::Loopback(Pattern::Mod63.into()));
        let camera = "loopback,bus=e0,message=1500,iso-packets=3,iso-interval=1";
        let expected = LoopbackOptions {
            messages: Some(Messages { bytes: NonZeroUsize::new(1500).unwrap(), pace: None }),
            isochronous: Isochronous::new(1024, 3, 1).unwrap(),
            ..LoopbackOptions::default()
        };
        let camera = camera.parse::<DeviceOptions>().unwrap();
        assert_eq!(camera.kind, DeviceKind::Loopback(expected));
        assert_eq!(
            device("loopback,bus=e0,iso-packets=4"),
            "iso-packets=4: there are 1 to 3 packets at a time"
        );
        for pace in [1, 200, 10_000] {
            let adapter = format!("loopback,bus=e0,message=12000,pace={pace}");
            let messages =
                Messages { bytes: NonZeroUsize::new(12_000).unwrap(), pace: NonZeroU32::new(pace) };
            let expected =
                LoopbackOptions { messages: Some(messages), ..LoopbackOptions::default() };
            let adapter = adapter.parse::<DeviceOptions>().unwrap();
            assert_eq!(adapter.kind, DeviceKind::Loopback(expected));
        }
        for pace in ["0", "10001", "fast"] {
            assert_eq!(
                device(&format!("loopback,bus=e0,message=12000,pace={pace}")),
                format!("pace={pace}: messages come at 1 to 10000 Mbit/s")
            );
        }
        assert_eq!(device("loopback,bus=e0,pace=200"), "message= is missing");
        assert_eq!(device("loopback,bus=o0,pattern=1"), "pattern=1: say zero, mod63 or any");
        assert_eq!(device("hub,bus=e0"), "id= is missing");
        assert_eq!(device("hub,bus=e0,id=h,ports=16"), "ports=16: a hub has 1 to 15 ports");
        assert_eq!(device("hub,bus=e0,id=h,speed=low"), "speed=low: a hub's speed is high or full");
        let hub =
            "hub,bus=e0,id=h,speed=full,ports=4,tt=multiple".parse::<DeviceOptions>().unwrap();
        let expected = HubOptions {
            ports: 4,
            speed: Speed::Full,
            translators: Translators::Multiple,
            ..HubOptions::default()
        };
        assert_eq!(hub.kind, DeviceKind::Hub(expected));
        assert_eq!(
            device("keyboard,bus=e0,file=f"),
            "unknown option \"file\"; there are bus, port, id, speed"
        );
    }
}
