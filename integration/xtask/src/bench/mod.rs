//! `cargo xtask bench`: our controllers beside QEMU's, in one guest, in one run.

mod report;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use guest_protocol::{Direction, Request};

use crate::boot::{random, sequential};
use crate::guest::{Attachment, Controller, Guest, Kind, Maker, Rig};
use crate::lab_run::{self, Bench, Options};
use crate::progress;
use crate::run_folder::RunFolder;
use crate::setup::Lab;
pub(crate) use report::median;
use report::{Comparison, Reading};

/// What is read in one reading of a kind of controller: long enough to be steady, short enough to take turns often.
struct Amounts {
    sequential_mebibytes: u64,
    random_reads: usize,
}

const fn amounts(kind: Kind) -> Amounts {
    match kind {
        Kind::Ehci => Amounts { sequential_mebibytes: 64, random_reads: 400 },
        Kind::Ohci => Amounts { sequential_mebibytes: 24, random_reads: 200 },
    }
}

/// Measures, prints the table, and puts it into `write` between its markers when that is given.
pub(crate) fn run(options: Options, repeats: usize, write: Option<&Path>) -> Result<()> {
    let bench = Bench::build(Lab::set_up()?, &[Maker::Ours])?;
    let table =
        lab_run::with_logs(RunFolder::new()?, |run| measure(&bench, options, repeats, run))?;
    println!("{table}");
    if let Some(path) = write {
        let document = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let document =
            report::put_in(&document, &table).with_context(|| path.display().to_string())?;
        fs::write(path, document).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn measure(bench: &Bench, options: Options, repeats: usize, run: &RunFolder) -> Result<String> {
    let rig = rig(run)?;
    let guest = bench.linux(options, rig.clone(), run, false)?.start()?;
    let title = format!(
        "Linux {} under QEMU {} (TCG, one vCPU), {} MiB, raw images in the page cache, O_DIRECT; medians of {repeats} \
         readings that take turns{}.",
        guest.kernel(),
        bench.lab.qemu.version()?,
        options.memory,
        options.pacing.map_or_else(String::new, |pacing| format!("; pacing {}", pacing.name()))
    );
    let comparisons = lab_run::through(guest, |guest| readings(guest, &rig, repeats))?;
    Ok(report::table(&title, &comparisons))
}

/// Both kinds from both makers with a disk behind each. All images are the same.
fn rig(run: &RunFolder) -> Result<Rig> {
    let all = [
        ("ours-ehci", Kind::Ehci, Maker::Ours, 4),
        ("ours-ohci", Kind::Ohci, Maker::Ours, 5),
        ("qemu-ehci", Kind::Ehci, Maker::Qemu, 6),
        ("qemu-ohci", Kind::Ohci, Maker::Qemu, 7),
    ];
    let mut controllers = Vec::new();
    for (id, kind, maker, slot) in all {
        let image = run.image(&format!("{id}.img"), 41)?;
        let devices = vec![Attachment::Disk(image.path)];
        controllers.push(Controller::new(id, kind, maker, slot, devices));
    }
    Ok(Rig { controllers })
}

/// One controller at a time has its driver: the others stand still and take no time from it.
fn readings(guest: &mut Guest, rig: &Rig, repeats: usize) -> Result<Vec<Comparison>> {
    guest.inventory()?;
    for controller in &rig.controllers {
        guest.call(&Request::Unbind { controller: controller.address() })?;
    }
    let mut comparisons: Vec<_> =
        [Kind::Ehci, Kind::Ohci].into_iter().map(Comparison::new).collect();
    let bar = progress::steps("measuring", (repeats * rig.controllers.len()) as u64);
    for _ in 0..repeats {
        for controller in &rig.controllers {
            let reading = reading(guest, controller).with_context(|| {
                format!("{} {}", controller.maker.name(), controller.kind.name())
            })?;
            match comparisons.iter_mut().find(|comparison| comparison.kind == controller.kind) {
                Some(comparison) => comparison.add(controller.maker, reading),
                None => bail!("{} is not compared", controller.kind.name()),
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(comparisons)
}

fn reading(guest: &mut Guest, controller: &Controller) -> Result<Reading> {
    let (address, amounts) = (controller.address(), amounts(controller.kind));
    guest.call(&Request::Bind { controller: address.clone() })?;
    let mebibytes = amounts.sequential_mebibytes;
    let sequential = sequential(guest, &address, Direction::Read, mebibytes, 1)?;
    let random = random(guest, &address, amounts.random_reads)?;
    guest.call(&Request::Unbind { controller: address })?;
    Ok(Reading {
        megabytes_per_second: sequential.megabytes_per_second(),
        half_within: random.percentile(50),
        nearly_all_within: random.percentile(99),
    })
}
