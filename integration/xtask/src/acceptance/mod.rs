//! What must hold in stock guests: the acceptance list, in as few boots as it takes.

mod bare_metal;
mod boot_sector;
mod data;
mod firmware;
mod input;
mod linux;

use anyhow::Result;

use crate::guest::{Interrupts, Kind, Maker, Rig};
use crate::lab_run::Bench;
use crate::setup::Kernel;
use crate::tally::Tally;

/// One guest and the checks made in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    Linux(Kernel, Interrupts),
    /// The same with every device behind a hub.
    Hubs(Kernel),
    /// And those of EHCI at full speed.
    Translators(Kernel),
    Firmware(Kind),
    BareMetal,
}

/// Every scenario.
pub(crate) const ALL: [Scenario; 8] = [
    Scenario::Linux(Kernel::Bookworm, Interrupts::Msi),
    Scenario::Linux(Kernel::Bookworm, Interrupts::Intx),
    Scenario::Linux(Kernel::Backports, Interrupts::Msi),
    Scenario::Hubs(Kernel::Backports),
    Scenario::Translators(Kernel::Bookworm),
    Scenario::Firmware(Kind::Ehci),
    Scenario::Firmware(Kind::Ohci),
    Scenario::BareMetal,
];

impl Scenario {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Linux(kernel, Interrupts::Msi) => format!("{} kernel, MSI", kernel.name()),
            Self::Linux(kernel, Interrupts::Intx) => {
                format!("{} kernel, INTx, eager pacing", kernel.name())
            }
            Self::Hubs(kernel) => format!("{} kernel, devices behind hubs", kernel.name()),
            Self::Translators(kernel) => {
                format!("{} kernel, devices behind translators", kernel.name())
            }
            Self::Firmware(Kind::Ehci) => "SeaBIOS, EHCI disk".to_owned(),
            Self::Firmware(Kind::Ohci) => "SeaBIOS, OHCI disk".to_owned(),
            Self::BareMetal => "bare-metal guest".to_owned(),
        }
    }
}

/// Runs `scenarios` on controllers of `maker`.
pub(crate) fn run(bench: &Bench, maker: Maker, scenarios: &[Scenario]) -> Result<Tally> {
    let mut tally = Tally::default();
    for scenario in scenarios {
        println!("\n{} ({} controllers)", scenario.name(), maker.name());
        match *scenario {
            Scenario::Linux(kernel, interrupts) => {
                linux::run(bench, maker, kernel, interrupts, &|rig| rig, &mut tally)?
            }
            // QEMU's hub is a full-speed one, which its EHCI cannot use.
            Scenario::Hubs(_) | Scenario::Translators(_) if maker == Maker::Qemu => {
                println!("        only ours");
            }
            Scenario::Hubs(kernel) => {
                let wire = |rig: Rig| rig.behind_hubs(false);
                linux::run(bench, maker, kernel, Interrupts::Msi, &wire, &mut tally)?
            }
            Scenario::Translators(kernel) => {
                let wire = |rig: Rig| rig.behind_hubs(true);
                linux::run(bench, maker, kernel, Interrupts::Msi, &wire, &mut tally)?
            }
            Scenario::Firmware(kind) => firmware::run(bench, maker, kind, &mut tally)?,
            Scenario::BareMetal => bare_metal::run(bench, maker, &mut tally)?,
        }
    }
    Ok(tally)
}
