//! The command line.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::control::verbs::Verb;
use crate::pcap::spool::Limits;
use crate::sandbox::Sandbox;

pub use self::controller::{ControllerKind, ControllerOptions, PciId, TapeOptions};
pub use self::device::{DeviceKind, DeviceOptions};

mod controller;
mod device;

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
    #[arg(long = "controller", value_name = "OPTIONS", required = true, help = controller::HELP)]
    pub controllers: Vec<ControllerOptions>,

    /// The devices.
    #[arg(long = "device", value_name = "OPTIONS", help = device::HELP)]
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::halt_poll;
    use vm_usb::devices::storage::Transports;

    #[test]
    fn the_contract_of_the_command_line() {
        let arguments = Arguments::try_parse_from([
            "vm-usbd",
            "--controller",
            "ehci,id=e0,socket=/run/e.sock",
            "--controller",
            "ohci,id=o0,socket=/run/o.sock,companion-of=e0",
            "--device",
            "storage,bus=e0,port=1,file=disk.img,readonly=on,uas=off",
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
                    kind: DeviceKind::Storage {
                        file: "disk.img".into(),
                        readonly: true,
                        transports: Transports::BulkOnly,
                    },
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
}
