//! What the kernel found.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};
use guest_protocol::{Controller, Disk, InterruptMode, Inventory, UsbDevice};

use crate::sysfs::{attribute, attribute_or_empty, entries, link_name, usb_controller};
use crate::{input, wait};

/// Seconds after which a person is let in, quiet or not.
const QUIET_TRIES: usize = 10;

/// The inventory once there are as many disks and input devices as the host attached.
pub(crate) fn when_complete(disks: usize, input_devices: usize) -> Result<Inventory> {
    wait::until(|| {
        // First what is waited for, then what it is behind: a list made before may be too old.
        let (found, inputs) = (self::disks()?.len(), input::behind_usb()?.len());
        let inventory = take()?;
        if found < disks || inputs < input_devices {
            bail!(
                "the guest found {found} of {disks} disks and {inputs} of {input_devices} input devices; its devices: {}",
                names(&inventory)
            );
        }
        Ok(inventory)
    })
}

/// The inventory once nothing new has come for a second, for a person who does not say what to wait for.
pub(crate) fn when_quiet() -> Result<Inventory> {
    let mut last = take()?;
    for _ in 0..QUIET_TRIES {
        sleep(Duration::from_secs(1));
        let now = take()?;
        if now == last && !now.devices.is_empty() {
            break;
        }
        last = now;
    }
    Ok(last)
}

fn names(inventory: &Inventory) -> String {
    let list: Vec<_> = inventory
        .devices
        .iter()
        .map(|device| format!("{} on {}", device.product, device.controller))
        .collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

/// The inventory as it is now.
pub(crate) fn take() -> Result<Inventory> {
    Ok(Inventory { controllers: controllers()?, devices: devices()?, disks: disks()? })
}

fn controllers() -> Result<Vec<Controller>> {
    let counts = fs::read_to_string("/proc/interrupts")?;
    let mut found = Vec::new();
    for (address, path) in entries("/sys/bus/pci/devices")? {
        // Class 0Ch serial bus, subclass 03h USB; the low byte is the programming interface.
        let class = u32::from_str_radix(attribute(&path, "class")?.trim_start_matches("0x"), 16)?;
        if class >> 8 != 0x0c03 {
            continue;
        }
        let (interrupt_mode, numbers) = interrupt_lines(&path)?;
        let hex =
            |name| attribute(&path, name).map(|text| text.trim_start_matches("0x").to_owned());
        found.push(Controller {
            id: format!("{}:{}", hex("vendor")?, hex("device")?),
            programming_interface: class as u8,
            driver: link_name(&path, "driver"),
            interrupt_mode,
            interrupts: numbers.iter().map(|number| interrupt_count(&counts, number)).sum(),
            address,
        });
    }
    Ok(found)
}

/// MSI vectors are listed in `msi_irqs` while they are in use; otherwise `irq` is the pin's.
fn interrupt_lines(device: &Path) -> Result<(InterruptMode, Vec<String>)> {
    if let Ok(listing) = fs::read_dir(device.join("msi_irqs")) {
        let numbers: Vec<_> = listing
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        if !numbers.is_empty() {
            return Ok((InterruptMode::Msi, numbers));
        }
    }
    match attribute(device, "irq")?.as_str() {
        "0" => Ok((InterruptMode::None, Vec::new())),
        number => Ok((InterruptMode::IntX, vec![number.to_owned()])),
    }
}

/// The count of one line of `/proc/interrupts`, over all processors.
fn interrupt_count(table: &str, number: &str) -> u64 {
    let line =
        table.lines().find_map(|line| line.trim_start().strip_prefix(number)?.strip_prefix(':'));
    let counts =
        line.unwrap_or_default().split_whitespace().map_while(|word| word.parse::<u64>().ok());
    counts.sum()
}

fn devices() -> Result<Vec<UsbDevice>> {
    let all = entries("/sys/bus/usb/devices")?;
    let mut found = Vec::new();
    for (name, path) in &all {
        let is_interface = name.contains(':');
        let is_root_hub = name.starts_with("usb");
        let Some(controller) = usb_controller(path) else { continue };
        if is_interface || is_root_hub {
            continue;
        }
        let own_interface = format!("{name}:");
        let drivers = all.iter().filter(|(other, _)| other.starts_with(&own_interface));
        found.push(UsbDevice {
            controller,
            id: format!(
                "{}:{}",
                attribute_or_empty(path, "idVendor"),
                attribute_or_empty(path, "idProduct")
            ),
            product: attribute_or_empty(path, "product"),
            speed: attribute_or_empty(path, "speed"),
            drivers: drivers.filter_map(|(_, interface)| link_name(interface, "driver")).collect(),
            name: name.clone(),
        });
    }
    Ok(found)
}

fn disks() -> Result<Vec<Disk>> {
    let mut found = Vec::new();
    for (name, path) in entries("/sys/block")? {
        let Some(controller) = usb_controller(&path) else { continue };
        // A disk's size is zero until the kernel has read its capacity.
        let sectors: u64 = attribute(&path, "size")?.parse()?;
        if sectors == 0 {
            continue;
        }
        let device = path.join("device");
        found.push(Disk {
            controller,
            model: format!(
                "{} {}",
                attribute_or_empty(&device, "vendor"),
                attribute_or_empty(&device, "model")
            ),
            bytes: sectors * 512,
            read_only: attribute(&path, "ro")? != "0",
            name,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "           CPU0       CPU1
  1:          9          1   IO-APIC   1-edge      i8042
 24:       1200         34  PCI-MSI-0000:00:04.0   0-edge      ehci_hcd:usb1
NMI:          0          0   Non-maskable interrupts
";

    #[test]
    fn an_interrupt_line_is_summed_over_processors() {
        assert_eq!(interrupt_count(TABLE, "24"), 1234);
        assert_eq!(interrupt_count(TABLE, "1"), 10);
        assert_eq!(interrupt_count(TABLE, "2"), 0);
    }
}
