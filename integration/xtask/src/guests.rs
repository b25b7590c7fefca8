//! `cargo xtask guests`: every kind of guest, each with one line of what it saw.

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::{Reply, Request};

use crate::acceptance::{self, Scenario};
use crate::boot::sha256;
use crate::guest::{Guest, Kind, Maker, Rig};
use crate::images::Image;
use crate::lab_run::{self, Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::{Kernel, Lab};
use crate::tally::Tally;

/// MiB of guest memory of which more than a GiB is above the 4 GiB that 32 bits reach.
const LARGE: u32 = 5 << 10;

/// Boots them one after the other.
pub(crate) fn run() -> Result<Tally> {
    let bench = Bench::build(Lab::set_up()?, &[Maker::Ours])?;
    let mut tally = Tally::default();
    for kernel in [Kernel::Bookworm, Kernel::Trixie, Kernel::Backports] {
        let options = Options { kernel, ..Options::default() };
        tally.check(&format!("Debian's kernel of {}", kernel.name()), || {
            linux(&bench, options, |_, _| Ok(String::new()))
        });
    }
    let options = Options { memory: LARGE, ..Options::default() };
    tally.check(&format!("{} GiB of memory", LARGE >> 10), || linux(&bench, options, far_buffers));
    let firmware = [Kind::Ehci, Kind::Ohci].map(Scenario::Firmware);
    tally.add(acceptance::run(&bench, Maker::Ours, &firmware)?);
    Ok(tally)
}

/// Stock drivers read both disks right, and the kernel has nothing to complain about.
fn linux(
    bench: &Bench,
    options: Options,
    more: impl FnOnce(&mut Guest, &Rig) -> Result<String>,
) -> Result<String> {
    lab_run::with_logs(RunFolder::new()?, |run| {
        let (ehci, ohci) = (run.image("ehci.img", 71)?, run.image("ohci.img", 72)?);
        let rig = Rig::standard(Maker::Ours, &ehci.path, &ohci.path);
        let guest = bench.linux(options, rig.clone(), run, false)?.start()?;
        let seen = format!("Linux {}", guest.kernel());
        lab_run::through(guest, |guest| {
            let inventory = guest.inventory()?;
            let images: [&Image; 2] = [&ehci, &ohci];
            for (controller, image) in rig.controllers.iter().zip(images) {
                let found = sha256(guest, &controller.address())?;
                let kind = controller.kind.name();
                ensure!(found == image.sha256()?, "the disk behind {kind} reads wrong");
            }
            let more = more(guest, &rig)?;
            Ok(format!(
                "{seen}: {} devices on EHCI and OHCI, both disks read right{more}",
                inventory.devices.len()
            ))
        })
    })
}

/// The disk is read into pages that only an address of more than 32 bits names.
fn far_buffers(guest: &mut Guest, rig: &Rig) -> Result<String> {
    let controller = rig.controllers.first().context("the rig has an EHCI controller")?;
    match guest.call(&Request::Placement { controller: controller.address() })? {
        Reply::Placement(placement) => {
            let (above, pages) = (placement.above_4_gib, placement.pages);
            ensure!(above > 0, "none of the buffer's {pages} pages is above 4 GiB");
            Ok(format!("; {above} of a buffer's {pages} pages are above 4 GiB"))
        }
        other => bail!("a placement was asked for and {other:?} came"),
    }
}
