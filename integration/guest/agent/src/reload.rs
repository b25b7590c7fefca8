//! Taking drivers away and giving them back.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::{Inventory, Reloaded};

use crate::sysfs::link_name;
use crate::{direct, disks, inventory, start, wait};

/// Users before what they use, as rmmod wants it.
const MODULES: [&str; 9] = [
    "uas",
    "usb_storage",
    "usbhid",
    "ehci_pci",
    "ohci_pci",
    "ehci_hcd",
    "ohci_hcd",
    "sd_mod",
    "hid_generic",
];
const PCI_DRIVERS: &str = "/sys/bus/pci/drivers";

/// Unloads and loads everything `times` times.
pub(crate) fn cycle(times: usize) -> Result<Reloaded> {
    let before = inventory::take()?;
    let heads = heads(&before)?;
    let loaded = loaded_modules()?;
    let mut slowest = 0;
    for time in 1..=times {
        let start = Instant::now();
        once(&loaded, &before, &heads).with_context(|| format!("cycle {time} of {times}"))?;
        slowest = slowest.max(start.elapsed().as_millis() as u64);
    }
    Ok(Reloaded { times, slowest_milliseconds: slowest })
}

/// Unloads modules that are loaded, then loads others; does not wait for devices.
pub(crate) fn modules(unload: &[String], load: &[String]) -> Result<()> {
    for module in unload {
        if is_loaded(&fs::read_to_string("/proc/modules")?, module) {
            wait::until(|| rmmod(module))?;
        }
    }
    load.iter().try_for_each(|module| start::modprobe(&[module]))
}

/// Whether a module is in the kernel's table; the names there have no `-`.
fn is_loaded(table: &str, module: &str) -> bool {
    let name = module.replace('-', "_");
    table.lines().any(|line| line.split(' ').next() == Some(&name))
}

fn once(loaded: &[&str], before: &Inventory, heads_before: &[Vec<u8>]) -> Result<()> {
    for module in loaded {
        wait::until(|| rmmod(module))?;
    }
    let left = inventory::take()?;
    ensure!(
        left.devices.is_empty(),
        "{} devices are still there with every driver unloaded",
        left.devices.len()
    );
    for module in loaded.iter().rev() {
        start::modprobe(&[module])?;
    }
    let after = wait::until(|| {
        let now = inventory::take()?;
        ensure!(
            same_devices(before, &now),
            "{} of {} devices and {} of {} disks are back",
            now.devices.len(),
            before.devices.len(),
            now.disks.len(),
            before.disks.len()
        );
        Ok(now)
    })?;
    ensure!(
        heads(&after)? == heads_before,
        "a disk reads differently after the drivers were loaded again"
    );
    Ok(())
}

/// The modules of [`MODULES`] that are loaded: a kernel may have some built in, and then cannot unload them.
fn loaded_modules() -> Result<Vec<&'static str>> {
    let table = fs::read_to_string("/proc/modules")?;
    let loaded: Vec<_> = MODULES.into_iter().filter(|module| is_loaded(&table, module)).collect();
    ensure!(
        loaded.contains(&"ehci_pci") || loaded.contains(&"ohci_pci"),
        "no controller driver is a loaded module"
    );
    Ok(loaded)
}

fn rmmod(module: &str) -> Result<()> {
    let output = Command::new("/sbin/rmmod").arg(module).output().context("/sbin/rmmod")?;
    if !output.status.success() {
        bail!("rmmod {module}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The same devices with the same speeds and drivers behind the same controllers; names and numbers may differ.
fn same_devices(before: &Inventory, now: &Inventory) -> bool {
    let devices = |inventory: &Inventory| {
        let mut list: Vec<_> = inventory
            .devices
            .iter()
            .map(|device| {
                (
                    device.controller.clone(),
                    device.id.clone(),
                    device.speed.clone(),
                    device.drivers.clone(),
                )
            })
            .collect();
        list.sort();
        list
    };
    let disks = |inventory: &Inventory| {
        let mut list: Vec<_> =
            inventory.disks.iter().map(|disk| (disk.controller.clone(), disk.bytes)).collect();
        list.sort();
        list
    };
    devices(before) == devices(now) && disks(before) == disks(now)
}

/// The first MiB of every disk, read from the bus, in the order of their controllers.
fn heads(inventory: &Inventory) -> Result<Vec<Vec<u8>>> {
    let mut controllers: Vec<_> =
        inventory.disks.iter().map(|disk| disk.controller.clone()).collect();
    controllers.sort();
    let read = |controller: String| {
        use std::os::unix::fs::FileExt;
        let disk = direct::open(&disks::node(&controller)?)?;
        let mut buffer = direct::Buffer::new(1 << 20);
        disk.read_exact_at(buffer.bytes(), 0)
            .with_context(|| format!("reading the disk behind {controller}"))?;
        Ok(buffer.bytes().to_vec())
    };
    controllers.into_iter().map(read).collect()
}

pub(crate) fn unbind(controller: &str) -> Result<()> {
    let device = Path::new("/sys/bus/pci/devices").join(controller);
    let Some(driver) = link_name(&device, "driver") else { return Ok(()) };
    let unbind = format!("{PCI_DRIVERS}/{driver}/unbind");
    fs::write(&unbind, controller).with_context(|| format!("writing {controller} to {unbind}"))
}

pub(crate) fn bind(controller: &str) -> Result<()> {
    fs::write("/sys/bus/pci/drivers_probe", controller)
        .with_context(|| format!("giving {controller} a driver"))
}
