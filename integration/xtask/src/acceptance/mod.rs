//! What must hold in stock guests: the acceptance list, in as few boots as it takes.

mod bare_metal;
pub(crate) mod boot_sector;
mod companion;
mod data;
mod firmware;
mod input;
mod linux;

use std::ops::RangeInclusive;

use anyhow::Result;
use guest_protocol::TestPattern;

use crate::guest::{Guest, Interrupts, Kind, Maker, Rig, Transport, Wiring};
use crate::hotplug;
use crate::lab_run::{Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::Kernel;
use crate::tally::Tally;
use crate::usbtest::{self, Selection};

/// One guest and the checks made in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    Linux(Kernel, Interrupts),
    /// The same with every device behind a hub.
    Hubs(Kernel),
    /// And those of EHCI at full speed.
    Translators(Kernel),
    /// EHCI and its companion with the drivers loaded in either order.
    Companion(Kernel),
    /// The kernel's own test of host controllers.
    UsbTest(Kind, Wiring),
    /// Devices that are pulled out at work.
    Hotplug,
    Firmware(Kind),
    BareMetal,
}

/// Each device is pulled out this often here; `cargo xtask hotplug` does it twenty times.
const HOTPLUG_ROUNDS: u32 = 2;

/// Bulk and unlink cases of `usbtest` run this often here; `cargo xtask usbtest` runs them a thousand times.
const USBTEST_ITERATIONS: u32 = 20;
/// Isochronous cases are not among them: on a busy machine the guest itself is late for its slots, and the driver
/// takes that for errors.
const USBTEST_CASES: RangeInclusive<u32> = 0..=29;
const ISOCHRONOUS_CASES: [u32; 4] = [15, 16, 22, 23];

/// Every scenario.
pub(crate) const ALL: [Scenario; 13] = [
    Scenario::Linux(Kernel::Bookworm, Interrupts::Msi),
    Scenario::Linux(Kernel::Bookworm, Interrupts::Intx),
    Scenario::Linux(Kernel::Backports, Interrupts::Msi),
    Scenario::Hubs(Kernel::Backports),
    Scenario::Translators(Kernel::Bookworm),
    Scenario::Companion(Kernel::Bookworm),
    Scenario::UsbTest(Kind::Ohci, Wiring::Direct),
    Scenario::UsbTest(Kind::Ehci, Wiring::Direct),
    Scenario::UsbTest(Kind::Ehci, Wiring::Translator),
    Scenario::Hotplug,
    Scenario::Firmware(Kind::Ehci),
    Scenario::Firmware(Kind::Ohci),
    Scenario::BareMetal,
];

impl Scenario {
    /// The kernel it boots.
    pub(crate) fn kernel(self) -> Option<Kernel> {
        match self {
            Self::Linux(kernel, _)
            | Self::Hubs(kernel)
            | Self::Translators(kernel)
            | Self::Companion(kernel) => Some(kernel),
            Self::UsbTest(..) | Self::Hotplug => Some(Options::default().kernel),
            Self::Firmware(_) | Self::BareMetal => None,
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Linux(kernel, Interrupts::Msi) => format!("{} kernel, MSI", kernel.name()),
            Self::Linux(kernel, Interrupts::Intx) => {
                format!("{} kernel, INTx, eager pacing, bulk-only disks", kernel.name())
            }
            Self::Hubs(kernel) => format!("{} kernel, devices behind hubs", kernel.name()),
            Self::Translators(kernel) => {
                format!("{} kernel, devices behind translators", kernel.name())
            }
            Self::Companion(kernel) => format!("{} kernel, EHCI and its companion", kernel.name()),
            Self::UsbTest(kind, Wiring::Translator) => {
                format!("usbtest, {}, behind a translator", kind.name().to_uppercase())
            }
            Self::UsbTest(kind, _) => format!("usbtest, {}", kind.name().to_uppercase()),
            Self::Hotplug => "devices pulled out at work".to_owned(),
            Self::Firmware(kind) => format!("SeaBIOS, {} disk", kind.name().to_uppercase()),
            Self::BareMetal => "bare-metal guest".to_owned(),
        }
    }
}

/// Runs `scenarios` on controllers of `maker`.
pub(crate) fn run(bench: &Bench, maker: Maker, scenarios: &[Scenario]) -> Result<Tally> {
    let mut tally = Tally::default();
    for scenario in scenarios {
        let architecture = bench.lab.architecture();
        println!("\n{}, {} ({} controllers)", scenario.name(), architecture.name(), maker.whose());
        match *scenario {
            Scenario::Linux(kernel, Interrupts::Msi) => {
                linux::run(bench, maker, kernel, Interrupts::Msi, &|rig| rig, &mut tally)?
            }
            Scenario::Linux(kernel, Interrupts::Intx) => {
                let over = |rig: Rig| rig.over(Transport::BulkOnly);
                linux::run(bench, maker, kernel, Interrupts::Intx, &over, &mut tally)?
            }
            // QEMU's hub is a full-speed one, which its EHCI cannot use, and it has no source and sink.
            Scenario::Hubs(_)
            | Scenario::Translators(_)
            | Scenario::Companion(_)
            | Scenario::UsbTest(..)
            | Scenario::Hotplug
                if maker == Maker::Qemu =>
            {
                println!("        only ours");
            }
            Scenario::Hubs(kernel) => {
                let wire = |rig: Rig| rig.wired(Wiring::Hub);
                linux::run(bench, maker, kernel, Interrupts::Msi, &wire, &mut tally)?
            }
            Scenario::Translators(kernel) => {
                let wire = |rig: Rig| rig.wired(Wiring::Translator);
                linux::run(bench, maker, kernel, Interrupts::Msi, &wire, &mut tally)?
            }
            Scenario::Companion(kernel) => companion::run(bench, kernel, &mut tally)?,
            Scenario::UsbTest(kind, wiring) => {
                let iterations = USBTEST_ITERATIONS;
                let pattern = TestPattern::Mod63;
                let only = USBTEST_CASES.filter(|case| !ISOCHRONOUS_CASES.contains(case)).collect();
                let selection = Selection { kind, wiring, iterations, pattern, only };
                let name = "the guest boots and its kernel never complained";
                let mut cases = Tally::default();
                tally.check(name, || {
                    cases = usbtest::in_guest(bench, Options::default(), &selection)?;
                    Ok("the log is clean".to_owned())
                });
                tally.add(cases);
            }
            Scenario::Hotplug => {
                hotplug::in_guest(bench, Options::default(), HOTPLUG_ROUNDS, &mut tally)?
            }
            Scenario::Firmware(kind) => firmware::run(bench, maker, kind, &mut tally)?,
            Scenario::BareMetal => bare_metal::run(bench, maker, &mut tally)?,
        }
    }
    Ok(tally)
}

/// A Linux guest that is up, unless the check fails.
fn boots(
    bench: &Bench,
    options: Options,
    rig: &Rig,
    run: &RunFolder,
    tally: &mut Tally,
) -> Option<Guest> {
    let mut started = None;
    tally.check("the guest boots", || {
        let guest = bench.linux(options, rig.clone(), run, false)?.start()?;
        let seen = format!("Linux {}", guest.kernel());
        started = Some(guest);
        Ok(seen)
    });
    started
}
