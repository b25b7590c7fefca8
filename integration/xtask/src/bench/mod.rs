//! `cargo xtask bench`: our controllers beside QEMU's, in one guest, in one run.

mod idle;
mod report;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use guest_protocol::{Direction, Request};

use crate::boot::{random, sequential};
use crate::guest::{Attachment, Controller, Disk, Guest, Kind, Maker, Rig, Transport};
use crate::lab_run::{self, Bench, Options};
use crate::progress;
use crate::run_folder::RunFolder;
use crate::setup::Lab;
pub(crate) use report::median;
use report::{Reading, Readings, Which};

/// What is moved in one reading of a kind of controller: long enough to be steady, short enough to take turns often.
struct Amounts {
    sequential_mebibytes: u64,
    random_reads: usize,
}

const fn amounts(kind: Kind) -> Amounts {
    match kind {
        Kind::Ehci | Kind::Xhci => Amounts { sequential_mebibytes: 64, random_reads: 400 },
        Kind::Ohci => Amounts { sequential_mebibytes: 24, random_reads: 200 },
    }
}

/// What the table cannot say.
const NOTE: &str = "Disks are those that each program has when nothing more is said: ours offers UAS and bulk-only, and Linux takes \
    UAS; QEMU's usb-storage is bulk-only. The rows below compare like with like: both bulk-only, and both UAS (QEMU's \
    usb-uas, which has no full speed). \
    QEMU's pci-ohci stops with an unrecoverable error on 1 MiB writes, so they are not measured. \
    Extra wakeups are those of QEMU and vm-usbd over the same guest while no controller has a driver, with an open and \
    idle tablet on EHCI and qemu-xhci and a keyboard on OHCI, which is then closed and suspended with its bus; of an \
    EHCI whose PCI id it does not know, Linux itself looks after the transfers ten times a second; \
    qemu-xhci serves the same disk at SuperSpeed.\n";

/// Measures, prints the table, and puts it into `write` between its markers when that is given.
pub(crate) fn run(options: Options, repeats: usize, write: Option<&Path>) -> Result<()> {
    let bench = Bench::build(Lab::set_up()?, &[Maker::Ours])?;
    lab_run::share_one_processor()?;
    let table =
        lab_run::with_logs(RunFolder::new()?, |run| measure(&bench, options, repeats, run))?;
    println!("{table}");
    if let Some(path) = write {
        let document = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let document = report::put_in(&document, options.pacing.unwrap_or_default().name(), &table)
            .with_context(|| path.display().to_string())?;
        fs::write(path, document).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn measure(bench: &Bench, options: Options, repeats: usize, run: &RunFolder) -> Result<String> {
    let rig = rig(run)?;
    let guest = bench.linux(options, rig.clone(), run, false)?.start()?;
    let title = format!(
        "Linux {} under QEMU {} (TCG, one vCPU), {} MiB, all on one host processor, raw images in the page cache, \
         O_DIRECT; medians of {repeats} readings that take turns{}.",
        guest.kernel(),
        bench.lab.qemu.version()?,
        options.memory,
        options.pacing.map_or_else(String::new, |pacing| format!("; pacing {}", pacing.name()))
    );
    let readings = lab_run::through(guest, |guest| readings(guest, &rig, repeats))?;
    let idle = idle::measure(bench, options)?;
    Ok(format!("{}\n{NOTE}", report::table(&title, &readings, &idle)))
}

/// Both kinds from both makers, and xHCI from QEMU, with a disk behind each: over UAS and over bulk-only where the maker
/// has both. All images are the same.
fn rig(run: &RunFolder) -> Result<Rig> {
    let all = [
        ("ours-ehci", Kind::Ehci, Maker::Ours, Transport::Uas),
        ("ours-ehci-bulk", Kind::Ehci, Maker::Ours, Transport::BulkOnly),
        ("ours-ohci", Kind::Ohci, Maker::Ours, Transport::Uas),
        ("ours-ohci-bulk", Kind::Ohci, Maker::Ours, Transport::BulkOnly),
        ("qemu-ehci", Kind::Ehci, Maker::Qemu, Transport::BulkOnly),
        ("qemu-ehci-uas", Kind::Ehci, Maker::Qemu, Transport::Uas),
        ("qemu-ohci", Kind::Ohci, Maker::Qemu, Transport::BulkOnly),
        ("qemu-xhci", Kind::Xhci, Maker::Qemu, Transport::BulkOnly),
    ];
    let mut controllers = Vec::new();
    for (slot, (id, kind, maker, transport)) in (4..).zip(all) {
        let image = run.image(&format!("{id}.img"), 41)?.path;
        let devices = vec![Attachment::Disk(Disk { image, transport })];
        controllers.push(Controller::new(id, kind, maker, slot, devices));
    }
    Ok(Rig { controllers })
}

/// One controller at a time has its driver: the others stand still and take no time from it.
fn readings(guest: &mut Guest, rig: &Rig, repeats: usize) -> Result<Readings> {
    guest.call(&Request::Modules { unload: vec![], load: vec!["xhci-pci".to_owned()] })?;
    guest.inventory()?;
    for controller in &rig.controllers {
        guest.call(&Request::Unbind { controller: controller.address() })?;
    }
    let mut readings = Readings::default();
    let bar = progress::steps("measuring", (repeats * rig.controllers.len()) as u64);
    for _ in 0..repeats {
        for controller in &rig.controllers {
            let reading = reading(guest, controller).context(controller.id)?;
            readings.add(disk_of(controller)?, reading);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(readings)
}

/// Which disk that is behind a controller.
fn disk_of(controller: &Controller) -> Result<Which> {
    let Some(Attachment::Disk(disk)) = controller.devices.first() else {
        bail!("{} has no disk", controller.id);
    };
    Ok(Which { kind: controller.kind, maker: controller.maker, transport: disk.transport })
}

fn reading(guest: &mut Guest, controller: &Controller) -> Result<Reading> {
    let (address, amounts) = (controller.address(), amounts(controller.kind));
    guest.call(&Request::Bind { controller: address.clone() })?;
    let mut move_in = |direction| {
        let moved = sequential(guest, &address, direction, amounts.sequential_mebibytes, 1);
        moved.map(|throughput| throughput.megabytes_per_second())
    };
    let read = move_in(Direction::Read)?;
    let survives = (controller.kind, controller.maker) != (Kind::Ohci, Maker::Qemu);
    let write = survives.then(|| move_in(Direction::Write)).transpose()?;
    let random = random(guest, &address, amounts.random_reads)?;
    guest.call(&Request::Unbind { controller: address })?;
    Ok(Reading {
        read,
        write,
        half_within: random.percentile(50),
        nearly_all_within: random.percentile(99),
    })
}
