//! `cargo xtask guests`: every kind of guest, each with one line of what it saw.

use anyhow::{Result, bail, ensure};
use guest_protocol::{Reply, Request, WritePlan};

use crate::acceptance::{self, Scenario};
use crate::boot::sha256;
use crate::guest::{Controller, Guest, Interrupts, Kind, Maker, Rig};
use crate::images::Image;
use crate::lab_run::{self, Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::{Architecture, Kernel, Lab};
use crate::tally::Tally;

/// The architecture that is not the other guests'.
const OTHER: Architecture = Architecture::Arm64;
/// MiB of guest memory of which more than a GiB is above the 4 GiB that 32 bits reach.
const LARGE: u32 = 5 << 10;
/// What is written from above: 8 MiB in blocks of a MiB, and 4 MiB in blocks of 4 KiB.
const LARGE_BLOCKS: usize = 8;
const SMALL_BLOCKS: usize = 1024;

/// Boots them one after the other; with `only`, those whose name contains that.
pub(crate) fn run(only: Option<&str>) -> Result<Tally> {
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let bench = Bench::build(Lab::set_up()?, &[Maker::Ours])?;
    let mut tally = Tally::default();
    for kernel in [Kernel::Bookworm, Kernel::Trixie, Kernel::Backports] {
        let options = Options { kernel, ..Options::default() };
        let name = format!("Debian's kernel of {}", kernel.name());
        if !wanted(&name) {
            continue;
        }
        match bench.lab.kernel(kernel) {
            Ok(_) => {
                tally.check(&name, || linux(&bench, options, |_, _, _| Ok(String::new())));
            }
            Err(error) => tally.skip(&name, &format!("{error:#}")),
        }
    }
    let name = format!("{} GiB of memory", LARGE >> 10);
    if wanted(&name) {
        let options = Options { memory: LARGE, ..Options::default() };
        tally.check(&name, || linux(&bench, options, far_buffers));
    }
    let mut firmware = [Kind::Ehci, Kind::Ohci].map(Scenario::Firmware).to_vec();
    firmware.retain(|scenario| wanted(&scenario.name()));
    tally.add(acceptance::run(&bench, Maker::Ours, &firmware)?);
    if wanted(OTHER.name()) {
        tally.add(other_architecture()?);
    }
    Ok(tally)
}

/// The guest of another architecture, with every check that the others get in the acceptance list.
fn other_architecture() -> Result<Tally> {
    let mut tally = Tally::default();
    let kernel = Options::default().kernel;
    let lab = Lab::set_up_for(OTHER).and_then(|lab| lab.kernel(kernel).map(|_| lab));
    match lab {
        Ok(lab) => {
            let bench = Bench::build(lab, &[Maker::Ours])?;
            let guests = [Interrupts::Msi, Interrupts::Intx];
            let guests = guests.map(|interrupts| Scenario::Linux(kernel, interrupts));
            tally.add(acceptance::run(&bench, Maker::Ours, &guests)?);
        }
        Err(error) => {
            tally.skip(&format!("{} guest", OTHER.name()), &format!("{error:#}"));
        }
    }
    Ok(tally)
}

/// Stock drivers read both disks right, and the kernel has nothing to complain about.
fn linux(
    bench: &Bench,
    options: Options,
    more: impl Fn(&mut Guest, &Controller, &Image) -> Result<String>,
) -> Result<String> {
    lab_run::with_logs(RunFolder::new()?, |run| {
        let (ehci, ohci) = (run.image("ehci.img", 71)?, run.image("ohci.img", 72)?);
        let rig = Rig::standard(Maker::Ours, &ehci.path, &ohci.path);
        let guest = bench.linux(options, rig.clone(), run, false)?.start()?;
        let mut seen = format!("Linux {}", guest.kernel());
        lab_run::through(guest, |guest| {
            let inventory = guest.inventory()?;
            let devices = inventory.devices.len();
            seen += &format!(": {devices} devices on EHCI and OHCI, both disks read right");
            for (controller, image) in rig.controllers.iter().zip([&ehci, &ohci]) {
                let found = sha256(guest, &controller.address())?;
                let kind = controller.kind.name();
                ensure!(found == image.sha256()?, "the disk behind {kind} reads wrong");
                seen += &more(guest, controller, image)?;
            }
            Ok(seen)
        })
    })
}

/// The disk is written from and read into pages that only an address of more than 32 bits names, and not a byte is wrong.
fn far_buffers(guest: &mut Guest, controller: &Controller, image: &Image) -> Result<String> {
    let kind = controller.kind.name().to_uppercase();
    let plan =
        WritePlan { seed: 73, disk_bytes: image.bytes(), large: LARGE_BLOCKS, small: SMALL_BLOCKS };
    let placement =
        match guest.call(&Request::Placement { controller: controller.address(), plan })? {
            Reply::Placement(placement) => placement,
            other => bail!("a placement was asked for and {other:?} came"),
        };
    let (above, pages) = (placement.above_4_gib, placement.pages);
    ensure!(
        above > pages / 2,
        "{kind}: only {above} of the buffer's {pages} pages are above 4 GiB"
    );
    image.verify(&plan)?;
    ensure!(
        placement.sha256 == image.head_sha256()?,
        "{kind}: what was read to above 4 GiB is not what the image has"
    );
    Ok(format!(
        "; {kind}: {} MiB written from and 1 MiB read into a buffer with {above} of {pages} pages above 4 GiB, \
         its driver takes addresses of {} bits",
        plan.bytes() >> 20,
        placement.address_bits
    ))
}
