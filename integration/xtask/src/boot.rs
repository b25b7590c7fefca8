//! `cargo xtask boot`: one guest, and what it saw.

use std::process::Command;

use anyhow::{Context, Result, bail};
use guest_protocol::{Direction, InterruptMode, Inventory, Latencies, Reply, Request, Throughput};

use crate::guest::{Controller, Guest, Maker, Rig};
use crate::lab_run::{self, Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::{Architecture, Lab};
use crate::{shell, workspace};

const SEQUENTIAL_MEBIBYTES: u64 = 64;
const RANDOM_READS: usize = 300;

/// Boots the guest; `with_shell` hands it to the person at the terminal instead of reporting.
pub(crate) fn run(
    options: Options,
    architecture: Architecture,
    maker: Maker,
    with_shell: bool,
) -> Result<()> {
    let lab = Lab::set_up_for(architecture);
    let lab = match lab.and_then(|lab| lab.kernel(options.kernel).map(|_| lab)) {
        Ok(lab) => lab,
        Err(error) => return demo_instead(&error),
    };
    let bench = Bench::build(lab, &[maker])?;
    lab_run::with_logs(RunFolder::new()?, |run| boot(&bench, options, maker, with_shell, run))
}

fn boot(
    bench: &Bench,
    options: Options,
    maker: Maker,
    with_shell: bool,
    run: &RunFolder,
) -> Result<()> {
    let (ehci, ohci) = (run.image("ehci.img", 1)?, run.image("ohci.img", 2)?);
    let rig = Rig::standard(maker, &ehci.path, &ohci.path);
    let start = bench.linux(options, rig.clone(), run, with_shell)?;
    if with_shell {
        return start.interactive();
    }
    let guest = start.start()?;
    println!("\nLinux {} under QEMU {}\n", guest.kernel(), bench.lab.qemu.version()?);
    let is_right = lab_run::through(guest, |guest| {
        let inventory = guest.inventory()?;
        print_inventory(&inventory);
        let mut is_right = true;
        println!("Disks");
        for (controller, image) in rig.controllers.iter().zip([&ehci, &ohci]) {
            is_right &= print_disk(guest, &inventory, controller, &image.sha256()?)?;
        }
        Ok(is_right)
    })?;
    if !is_right {
        bail!("a disk does not read as its image does");
    }
    Ok(())
}

fn print_inventory(inventory: &Inventory) {
    println!("Controllers");
    for controller in &inventory.controllers {
        let kind = match controller.programming_interface {
            0x10 => "OHCI",
            0x20 => "EHCI",
            _ => "other",
        };
        let interrupts = match controller.interrupt_mode {
            InterruptMode::Msi => "MSI",
            InterruptMode::IntX => "INTx",
            InterruptMode::None => "none",
        };
        let driver = controller.driver.as_deref().unwrap_or("no driver");
        println!(
            "  {}  {kind}  {}  {driver}  {interrupts}, {} so far",
            controller.address, controller.id, controller.interrupts
        );
    }
    println!("Devices");
    for device in &inventory.devices {
        let drivers = device.drivers.join(", ");
        println!(
            "  {}  {:7} {:>4} Mbit/s  {}  {} ({drivers})",
            device.controller, device.name, device.speed, device.id, device.product
        );
    }
}

/// Whether the disk's checksum is the host's.
fn print_disk(
    guest: &mut Guest,
    inventory: &Inventory,
    controller: &Controller,
    host: &str,
) -> Result<bool> {
    let address = controller.address();
    let disk = inventory.disks.iter().find(|disk| disk.controller == address);
    let disk = disk.with_context(|| format!("the guest has no disk behind {address}"))?;
    println!("  {address}  {}  {} ({} MiB)", disk.name, disk.model, disk.bytes >> 20);
    let found = sha256(guest, &address)?;
    let verdict = if found == host { "the image's" } else { "NOT the image's" };
    println!("      sha256 {found}: {verdict}");
    let sequential = sequential(guest, &address, Direction::Read, SEQUENTIAL_MEBIBYTES, 1)?;
    let random = random(guest, &address, RANDOM_READS)?;
    println!(
        "      {:.1} MB/s in 1 MiB reads; 4 KiB random reads: half within {:.0} us, 99 % within {:.0} us",
        sequential.megabytes_per_second(),
        random.percentile(50),
        random.percentile(99)
    );
    Ok(found == host)
}

/// The disk's checksum as the guest computes it.
pub(crate) fn sha256(guest: &mut Guest, controller: &str) -> Result<String> {
    match guest.call(&Request::Sha256 { controller: controller.to_owned() })? {
        Reply::Sha256(text) => Ok(text),
        other => bail!("a checksum was asked for and {other:?} came"),
    }
}

pub(crate) fn sequential(
    guest: &mut Guest,
    controller: &str,
    direction: Direction,
    mebibytes: u64,
    at_once: usize,
) -> Result<Throughput> {
    let controller = controller.to_owned();
    match guest.call(&Request::Sequential { controller, direction, mebibytes, at_once })? {
        Reply::Throughput(throughput) => Ok(throughput),
        other => bail!("a reading was asked for and {other:?} came"),
    }
}

pub(crate) fn random(guest: &mut Guest, controller: &str, count: usize) -> Result<Latencies> {
    match guest.call(&Request::RandomRead { controller: controller.to_owned(), count, seed: 11 })? {
        Reply::Latencies(latencies) => Ok(latencies),
        other => bail!("a reading was asked for and {other:?} came"),
    }
}

/// Without a guest there is still the library: its own host driver against its own controllers, in this process.
fn demo_instead(error: &anyhow::Error) -> Result<()> {
    eprintln!("No guest can be booted here: {error:#}");
    eprintln!(
        "Running the demo instead: the project's own host driver on its controllers, without a guest.\n"
    );
    let mut cargo = Command::new(workspace::cargo());
    shell::run(cargo.args(["run", "--quiet", "--example", "demo"]).current_dir(workspace::root()))
}
