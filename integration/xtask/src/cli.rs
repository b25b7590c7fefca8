//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use guest_protocol::TestPattern;

use crate::guest::{Interrupts, Kind, Maker, Pacing, Wiring};
use crate::lab_run::{Bench, Options};
use crate::setup::{Architecture, Kernel, Lab};
use crate::tally::Tally;
use crate::usbtest::Selection;
use crate::workloads::Plan;
use crate::{
    acceptance, bench, boot, fuzz, guests, hotplug, printer, seeds, simulate, test, usbtest,
    workloads,
};

/// The lab: stock Linux guests on this project's USB controllers.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

/// Whose controllers a guest gets.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Controllers {
    /// This project's.
    Ours,
    /// QEMU's own, to compare with.
    Qemu,
}

/// A kind of controller.
#[derive(Clone, Copy, clap::ValueEnum)]
enum ControllerKind {
    /// Full speed.
    Ohci,
    /// High speed.
    Ehci,
}

/// What test data is.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Pattern {
    /// Zeroes.
    Zero,
    /// Each packet counts from 0 to 62 again and again.
    Mod63,
}

/// How a guest is to be.
#[derive(clap::Args)]
struct GuestArguments {
    /// Which stock Debian kernel.
    #[arg(long, value_enum, default_value = "bookworm")]
    kernel: Kernel,
    /// How interrupts reach the guest.
    #[arg(long, value_enum, default_value = "msi")]
    interrupts: Interrupts,
    /// Guest memory, in MiB or with a suffix M or G.
    #[arg(long, value_parser = mebibytes, default_value = "512M")]
    memory: u32,
    /// The server's idea of time; its default when not given.
    #[arg(long, value_enum)]
    pacing: Option<Pacing>,
}

impl GuestArguments {
    fn options(&self) -> Options {
        Options {
            kernel: self.kernel,
            interrupts: self.interrupts,
            memory: self.memory,
            pacing: self.pacing,
        }
    }
}

#[derive(Subcommand)]
enum Task {
    /// Boot a stock Linux guest with EHCI and OHCI, a disk on each, a keyboard and a tablet; say what it saw.
    Boot {
        #[command(flatten)]
        guest: GuestArguments,
        /// Hand the guest to you: a shell on its console.
        #[arg(long)]
        shell: bool,
        /// Whose controllers.
        #[arg(long, value_enum, default_value = "ours")]
        controllers: Controllers,
        /// The guest's processor.
        #[arg(long, value_enum, default_value = "amd64")]
        architecture: Architecture,
    },
    /// Everything: the workspace's tests and the guests; ends with one line of counts.
    Test,
    /// The guests of `test` alone.
    Acceptance {
        /// Only those whose name contains this, for example `INTx` or `SeaBIOS`.
        #[arg(long)]
        only: Option<String>,
        /// Whose controllers.
        #[arg(long, value_enum, default_value = "ours")]
        controllers: Controllers,
    },
    /// Measure our controllers beside QEMU's, in one guest.
    Bench {
        #[command(flatten)]
        guest: GuestArguments,
        /// How often each controller takes its turn.
        #[arg(long, default_value_t = 5)]
        repeats: usize,
        /// Also put the table into this file, between its markers.
        #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/performance.md")]
        write: Option<PathBuf>,
    },
    /// Poll a printer on our OHCI for its status and print pages on it.
    Printer {
        #[command(flatten)]
        guest: GuestArguments,
        /// How often its status is asked for.
        #[arg(long, default_value_t = 10_000)]
        rounds: usize,
    },
    /// Run the kernel's own test of host controllers on one of ours.
    Usbtest {
        #[command(flatten)]
        guest: GuestArguments,
        /// Which kind of controller.
        #[arg(long, value_enum, default_value = "ohci")]
        controller: ControllerKind,
        /// How the device reaches it.
        #[arg(long, value_enum, default_value = "direct")]
        wiring: Wiring,
        /// How often; a tenth of it, or a fiftieth, for slow cases.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        iterations: u32,
        /// What the data is.
        #[arg(long, value_enum, default_value = "zero")]
        pattern: Pattern,
        /// Only these cases, for example `--case 11 --case 24`.
        #[arg(long = "case", value_name = "NUMBER")]
        cases: Vec<u32>,
    },
    /// Pull devices out of a guest that is working with them, and plug them in again.
    Hotplug {
        #[command(flatten)]
        guest: GuestArguments,
        /// How often each device behind each controller.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rounds: u32,
    },
    /// Check the workloads of `docs/performance.md` on our EHCI: short transfers, prompt reports, a camera.
    Workloads {
        #[command(flatten)]
        guest: GuestArguments,
        /// Only those whose name contains this, for example `camera`.
        #[arg(long)]
        only: Option<String>,
        /// How often each figure is taken; medians count.
        #[arg(long, default_value_t = 5)]
        repeats: usize,
        /// How long a camera streams, in seconds.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Boot every kind of guest there is and say what each saw.
    Guests {
        /// Only those whose name contains this, for example `arm64` or `memory`.
        #[arg(long)]
        only: Option<String>,
    },
    /// Try every order in which threads can meet at what they share.
    Interleave,
    /// Run the fuzz targets (`fuzz/README.md`), one line of result each.
    Fuzz {
        /// How long each, in seconds.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        seconds: u32,
        /// Only these; all when none is named.
        #[arg(value_name = "TARGET")]
        targets: Vec<String>,
    },
    /// Record seeds for the fuzz targets from what stock guests do (`fuzz/README.md`).
    Seeds {
        /// Only those whose name contains this, for example `ehci` or `disk`.
        #[arg(long)]
        only: Option<String>,
    },
    /// Run seeds of the deterministic simulation (`tests/simulation/README.md`); a single one tells what happens.
    Simulate {
        /// How many.
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
        /// The first one.
        #[arg(long, default_value_t = 0)]
        first: u64,
    },
    /// Fetch QEMU, kernels and the guest's userland into the cache, and nothing more.
    Setup {
        /// Which kernels; all when none is named.
        #[arg(long, value_enum)]
        kernel: Vec<Kernel>,
        /// For guests with which processor.
        #[arg(long, value_enum, default_value = "amd64")]
        architecture: Architecture,
    },
}

pub(crate) fn run() -> ExitCode {
    match carry_out(Arguments::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(task: Task) -> Result<ExitCode> {
    match task {
        Task::Boot { guest, shell, controllers, architecture } => {
            boot::run(guest.options(), architecture, controllers.maker(), shell)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Test => test::run(),
        Task::Acceptance { only, controllers } => {
            let wanted = |name: &str| only.as_ref().is_none_or(|only| name.contains(only.as_str()));
            let scenarios: Vec<_> =
                acceptance::ALL.into_iter().filter(|one| wanted(&one.name())).collect();
            let bench = Bench::build(Lab::set_up()?, &[controllers.maker()])?;
            let tally = acceptance::run(&bench, controllers.maker(), &scenarios)?;
            println!("\n{tally}");
            Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Task::Bench { guest, repeats, write } => {
            bench::run(guest.options(), repeats, write.as_deref())?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Printer { guest, rounds } => Ok(verdict(printer::run(guest.options(), rounds)?)),
        Task::Usbtest { guest, controller, wiring, iterations, pattern, cases } => {
            let selection = Selection {
                kind: controller.kind(),
                wiring,
                iterations,
                pattern: pattern.pattern(),
                only: cases,
            };
            Ok(verdict(usbtest::run(guest.options(), &selection)?))
        }
        Task::Hotplug { guest, rounds } => Ok(verdict(hotplug::run(guest.options(), rounds)?)),
        Task::Workloads { guest, only, repeats, seconds } => {
            let plan = Plan { only, repeats, seconds };
            Ok(verdict(workloads::run(guest.options(), &plan)?))
        }
        Task::Guests { only } => Ok(verdict(guests::run(only.as_deref())?)),
        Task::Interleave => Ok(verdict(test::interleavings()?)),
        Task::Fuzz { seconds, targets } => Ok(verdict(fuzz::run(seconds, &targets)?)),
        Task::Seeds { only } => Ok(verdict(seeds::run(only.as_deref())?)),
        Task::Simulate { seeds, first } => simulate::run(seeds, first),
        Task::Setup { kernel, architecture } => {
            let kernels = if kernel.is_empty() {
                vec![Kernel::Bookworm, Kernel::Trixie, Kernel::Backports]
            } else {
                kernel
            };
            let lab = Lab::set_up_for(architecture)?;
            println!("QEMU {}: {}", lab.qemu.version()?, lab.qemu.place());
            for kernel in kernels {
                println!("kernel {} ({})", lab.kernel(kernel)?.release, kernel.name());
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Says the counts; a failure fails the program.
fn verdict(tally: Tally) -> ExitCode {
    println!("\n{tally}");
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl ControllerKind {
    fn kind(self) -> Kind {
        match self {
            Self::Ohci => Kind::Ohci,
            Self::Ehci => Kind::Ehci,
        }
    }
}

impl Pattern {
    fn pattern(self) -> TestPattern {
        match self {
            Self::Zero => TestPattern::Zero,
            Self::Mod63 => TestPattern::Mod63,
        }
    }
}

impl Controllers {
    fn maker(self) -> Maker {
        match self {
            Self::Ours => Maker::Ours,
            Self::Qemu => Maker::Qemu,
        }
    }
}

/// `512`, `512M` or `1G`; Linux with its initramfs needs 192 MiB.
fn mebibytes(text: &str) -> Result<u32, String> {
    let (number, factor) = match text.trim_end_matches(['M', 'm', 'G', 'g']) {
        number if text.ends_with(['G', 'g']) => (number, 1024),
        number => (number, 1),
    };
    let size = number.parse::<u32>().ok().and_then(|size| size.checked_mul(factor));
    match size {
        Some(size @ 192..) => Ok(size),
        Some(_) => Err("the guest needs 192M at least".into()),
        None => Err("give a number of MiB, such as 512M, or of GiB, such as 1G".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_unit_and_a_least_size() {
        assert_eq!(mebibytes("512"), Ok(512));
        assert_eq!(mebibytes("512M"), Ok(512));
        assert_eq!(mebibytes("2G"), Ok(2048));
        assert!(
            mebibytes("64M").is_err()
                && mebibytes("much").is_err()
                && mebibytes("4194304G").is_err()
        );
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
