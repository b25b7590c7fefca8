//! The bare-metal guest: drivers that are neither Linux's nor SeaBIOS's, by pin and by message.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vm_usb_baremetal as program;

use crate::guest::{Attachment, Controller, Kind, Maker, Rig};
use crate::lab_run::Bench;
use crate::run_folder::RunFolder;
use crate::tally::Tally;

const NAME: &str = "the bare-metal guest says what it should and leaves it on the disks";
/// It takes three seconds, SeaBIOS included.
const PATIENCE: Duration = Duration::from_secs(60);
/// More lines than it says.
const LINES: usize = 200;

/// Runs the guest with a disk behind each controller.
pub(crate) fn run(bench: &Bench, maker: Maker, tally: &mut Tally) -> Result<()> {
    let Some(elf) = program::ELF.filter(|_| maker == Maker::Ours) else {
        let reason = match maker {
            Maker::Ours => "it is built on x86-64 machines alone",
            Maker::Qemu => "QEMU's controllers have no MSI, and its OHCI stops at a write",
        };
        tally.skip(NAME, reason);
        return Ok(());
    };
    let run = RunFolder::new()?;
    if !tally.check(NAME, || passes(bench, maker, Path::new(elf), &run)) {
        println!("        the guest's logs are in {}", run.keep_logs().display());
    }
    Ok(())
}

fn passes(bench: &Bench, maker: Maker, elf: &Path, run: &RunFolder) -> Result<String> {
    let image = |kind: Kind| run.path().join(format!("{}.img", kind.name()));
    let controller = |id, slot, kind: Kind| -> Result<Controller> {
        fs::write(image(kind), program::disk(kind.name()))?;
        let devices = vec![Attachment::disk(Maker::Ours, image(kind))];
        Ok(Controller::new(id, kind, maker, slot, devices))
    };
    let controllers = vec![controller("e0", 4, Kind::Ehci)?, controller("o0", 5, Kind::Ohci)?];
    let guest = bench.bare_metal(elf, Rig { controllers }, run).start()?;
    let passed = guest.console.wait_for("passed", PATIENCE);
    let said = guest.console.tail(LINES);
    passed.with_context(|| format!("it did not pass:\n{said}"))?;
    guest.end()?;

    let said = program::common(&said);
    ensure!(said == program::TRANSCRIPT, "it said something else:\n{said}");
    for kind in [Kind::Ehci, Kind::Ohci] {
        let expected = program::disk_afterwards(kind.name(), kind.programming_interface());
        ensure!(fs::read(image(kind))? == expected, "the {} disk differs", kind.name());
    }
    Ok("by pin and by message, on both controllers".to_owned())
}
