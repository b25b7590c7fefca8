//! A stock Linux guest with both controllers.

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::{InterruptMode, Inventory, Reply, Request, UsbDevice};

use super::{boots, data, input};
use crate::guest::{Attachment, Controller, Guest, Interrupts, Kind, Maker, Pacing, Rig, Wiring};
use crate::lab_run::{Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::Kernel;
use crate::tally::Tally;

const RELOADS: usize = 10;

/// Boots once and makes every check in that guest.
pub(crate) fn run(
    bench: &Bench,
    maker: Maker,
    kernel: Kernel,
    interrupts: Interrupts,
    wire: &dyn Fn(Rig) -> Rig,
    tally: &mut Tally,
) -> Result<()> {
    let run = RunFolder::new()?;
    let failed_before = tally.failed;
    let (ehci, ohci) = (run.image("ehci.img", 21)?, run.image("ohci.img", 22)?);
    let rig = wire(Rig::standard(maker, &ehci.path, &ohci.path));
    let disks = [(&rig.controllers[0], &ehci), (&rig.controllers[1], &ohci)];
    // The guests with INTx also stand for the other pacing.
    let pacing = (interrupts == Interrupts::Intx).then_some(Pacing::Eager);
    let options = Options { kernel, interrupts, memory: 512, pacing };

    if let Some(mut guest) = boots(bench, options, &rig, &run, tally) {
        let guest_ref = &mut guest;
        tally.check("stock drivers bind and every device is there", || {
            enumerated(guest_ref, &rig, interrupts)
        });
        for (controller, image) in disks {
            let kind = upper(controller.kind);
            tally.check(&format!("{kind}: the disk reads as its image"), || {
                data::reads(guest_ref, &controller.address(), image)
            });
            tally.check(&format!("{kind}: what is written arrives"), || {
                data::writes(guest_ref, controller, image)
            });
        }
        tally.check("key presses arrive as events", || input::keyboard(guest_ref));
        if maker == Maker::Ours {
            tally.check("the tablet's moves and buttons arrive as events", || {
                input::tablet(guest_ref, &rig)
            });
        }
        tally.check("drivers unload and load again", || reload(guest_ref));
        for controller in &rig.controllers {
            let name =
                format!("{}: a file system is made, filled and checked", upper(controller.kind));
            tally.check(&name, || data::filesystem(guest_ref, controller));
        }
        tally.check("the guest powers off and its kernel never complained", || {
            guest.end().map(|()| "the log is clean".to_owned())
        });
    }
    if tally.failed > failed_before {
        println!("        the guest's logs are in {}", run.keep_logs().display());
    }
    Ok(())
}

fn upper(kind: Kind) -> String {
    kind.name().to_uppercase()
}

fn enumerated(guest: &mut Guest, rig: &Rig, interrupts: Interrupts) -> Result<String> {
    let inventory = guest.inventory()?;
    let mut seen = Vec::new();
    for controller in &rig.controllers {
        seen.push(controller_is_right(&inventory, controller, interrupts)?);
        devices_are_right(&inventory, controller)?;
    }
    Ok(seen.join("; "))
}

fn controller_is_right(
    inventory: &Inventory,
    controller: &Controller,
    interrupts: Interrupts,
) -> Result<String> {
    let (kind, address) = (controller.kind, controller.address());
    let found = inventory.controllers.iter().find(|found| found.address == address);
    let found = found.with_context(|| format!("there is no controller at {address}"))?;
    ensure!(
        found.programming_interface == kind.programming_interface(),
        "{address} says programming interface {:02x}h",
        found.programming_interface
    );
    ensure!(
        found.driver.as_deref() == Some(kind.driver()),
        "{address} has the driver {:?} instead of {}",
        found.driver,
        kind.driver()
    );
    // QEMU's own controllers have only the pin.
    let wanted = match (interrupts, controller.maker) {
        (Interrupts::Msi, Maker::Ours) => InterruptMode::Msi,
        _ => InterruptMode::IntX,
    };
    ensure!(
        found.interrupt_mode == wanted,
        "{address} interrupts by {:?} instead of {wanted:?}",
        found.interrupt_mode
    );
    ensure!(found.interrupts > 0, "no interrupt of {address} was ever counted");
    Ok(format!("{} by {wanted:?} with {} interrupts", kind.driver(), found.interrupts))
}

fn devices_are_right(inventory: &Inventory, controller: &Controller) -> Result<()> {
    let address = controller.address();
    let devices: Vec<_> =
        inventory.devices.iter().filter(|device| device.controller == address).collect();
    let hubs = usize::from(controller.wiring != Wiring::Direct);
    let wanted = controller.devices.len() + hubs;
    ensure!(devices.len() == wanted, "{} of {wanted} devices are behind {address}", devices.len());
    let is_hub = |device: &UsbDevice| device.drivers.iter().any(|driver| driver == "hub");
    let hub = devices.iter().find(|device| is_hub(device));
    for device in &devices {
        let is_hub = is_hub(device);
        let speed = if is_hub { controller.kind.speed() } else { controller.device_speed() };
        ensure!(
            device.speed == speed,
            "{} runs at {} Mbit/s behind {}",
            device.product,
            device.speed,
            controller.kind.name()
        );
        if !is_hub && controller.wiring != Wiring::Direct {
            ensure!(
                hub.is_some_and(|hub| device.name.starts_with(&format!("{}.", hub.name))),
                "{} is at {}, not behind the hub",
                device.product,
                device.name
            );
        }
        ensure!(!device.drivers.is_empty(), "no driver took {} ({})", device.product, device.id);
    }
    for device in &controller.devices {
        if let Attachment::Disk(disk) = device {
            let wanted = disk.transport.driver();
            let mut drivers = devices.iter().flat_map(|device| &device.drivers);
            ensure!(
                drivers.any(|driver| driver == wanted),
                "no disk behind {address} has the driver {wanted}"
            );
        }
    }
    Ok(())
}

fn reload(guest: &mut Guest) -> Result<String> {
    match guest.call(&Request::Reload { times: RELOADS })? {
        Reply::Reloaded(reloaded) => Ok(format!(
            "{} times, the slowest in {} ms",
            reloaded.times, reloaded.slowest_milliseconds
        )),
        other => bail!("a reload was asked for and {other:?} came"),
    }
}
