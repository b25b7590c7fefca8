//! The command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use log::LevelFilter;

use crate::vm;

/// Boots a kernel on KVM with an EHCI controller and its OHCI companion.
///
/// The guest's first serial port is standard output. A write of V to I/O port 0xf4 ends the machine
/// with exit status 2 * V + 1, as QEMU's isa-debug-exit does.
///
/// Standard input takes commands, a line each: statistics, pause, resume, attach PORT FILE (a high-speed
/// disk), detach PORT, press KEY. Ports are 1 to 4.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    /// Kernel: a bzImage, or an ELF file with a PVH note.
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: PathBuf,

    /// The kernel's command line.
    #[arg(long, value_name = "TEXT", default_value = "console=ttyS0 acpi=off reboot=t panic=-1")]
    pub(crate) cmdline: String,

    /// Raw image of a high-speed disk, for the EHCI controller.
    #[arg(long, value_name = "FILE")]
    pub(crate) ehci_disk: Option<PathBuf>,

    /// Raw image of a full-speed disk, which the EHCI controller leaves to its companion.
    #[arg(long, value_name = "FILE")]
    pub(crate) ohci_disk: Option<PathBuf>,

    /// Plugs in a high-speed keyboard, for the EHCI controller.
    #[arg(long)]
    pub(crate) ehci_keyboard: bool,

    /// Plugs in a low-speed keyboard, for the companion.
    #[arg(long)]
    pub(crate) ohci_keyboard: bool,

    /// Once the guest says that it sleeps (it writes 0x1d to I/O port 0x80): counts for N seconds what the
    /// machine costs, prints that, and strikes a key.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) idle_seconds: Option<u64>,

    /// Saves the controllers and their devices every MS milliseconds and restores them from that.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) checkpoint: Option<u64>,

    /// Guest memory in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(2..=3072))]
    pub(crate) memory: u32,
}

pub(crate) fn main() -> ExitCode {
    env_logger::Builder::new()
        .filter_level(LevelFilter::Warn)
        .parse_default_env()
        .format(|out, record| {
            let level = record.level().as_str().to_lowercase();
            writeln!(out, "vm-usb-kvm: {level}: {}", record.args())
        })
        .init();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    match vm::run(&arguments) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("vm-usb-kvm: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints help as it is, and an error as one line.
fn explain(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        print!("{error}");
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let lines = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let line = lines.collect::<Vec<_>>().join(" ");
    eprintln!("vm-usb-kvm: {}; see --help", line.strip_prefix("error: ").unwrap_or(&line));
    ExitCode::from(2)
}
