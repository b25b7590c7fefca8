//! SeaBIOS boots from the disk: a second driver, simpler than Linux's, that polls and uses no interrupts.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::boot_sector;
use crate::guest::{Attachment, Controller, Kind, Maker, Rig};
use crate::lab_run::Bench;
use crate::run_folder::RunFolder;
use crate::tally::Tally;

/// Firmware under TCG takes a second or two.
const PATIENCE: Duration = Duration::from_secs(30);
/// More than enough for the sector and its text.
const DISK: usize = 8 << 20;

/// Boots from a disk behind a controller of `kind` and waits for the line the disk's program prints.
pub(crate) fn run(bench: &Bench, maker: Maker, kind: Kind, tally: &mut Tally) -> Result<()> {
    let run = RunFolder::new()?;
    let name = format!("SeaBIOS boots from a disk behind {}", kind.name().to_uppercase());
    if !tally.check(&name, || boots(bench, maker, kind, &run)) {
        println!("        the guest's logs are in {}", run.keep_logs().display());
    }
    Ok(())
}

fn boots(bench: &Bench, maker: Maker, kind: Kind, run: &RunFolder) -> Result<String> {
    let line = format!("this line comes from the {} disk's last sectors", kind.name());
    let image = run.path().join("boot.img");
    fs::write(&image, boot_sector::disk(DISK, &line))?;
    let controller = Controller::new("boot", kind, maker, 4, vec![Attachment::disk(maker, image)]);
    let guest = bench.disks(Rig { controllers: vec![controller] }, run).start()?;
    let found = guest.console.wait_for(&line, PATIENCE);
    found.with_context(|| {
        format!("the line did not come; the console's end:\n{}", guest.console.tail(12))
    })?;
    guest.end()?;
    Ok(format!("it printed \"{line}\""))
}
