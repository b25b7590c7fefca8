//! Reading the kernel's device tree.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use guest_protocol::PciAddress;

/// An attribute's text without the newline.
pub(crate) fn attribute(device: &Path, name: &str) -> Result<String> {
    let path = device.join(name);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

/// An attribute's text, empty when the device has none.
pub(crate) fn attribute_or_empty(device: &Path, name: &str) -> String {
    attribute(device, name).unwrap_or_default()
}

/// The name a link of the device points to, such as its `driver`.
pub(crate) fn link_name(device: &Path, link: &str) -> Option<String> {
    let target = fs::read_link(device.join(link)).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// The entries of a class or bus folder with the devices' real places, sorted by name. A folder that is not there
/// has none: its driver is not loaded.
pub(crate) fn entries(folder: &str) -> Result<Vec<(String, PathBuf)>> {
    let Ok(listing) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in listing {
        let entry = entry.with_context(|| folder.to_owned())?;
        // A device may go between the listing and the look at it.
        if let Ok(real) = fs::canonicalize(entry.path()) {
            found.push((entry.file_name().to_string_lossy().into_owned(), real));
        }
    }
    found.sort();
    Ok(found)
}

/// The PCI function whose USB bus the device hangs from: the last folder above the first `usbN`.
pub(crate) fn usb_controller(device: &Path) -> Option<PciAddress> {
    let mut above = None;
    for part in device.iter().map(|part| part.to_string_lossy()) {
        if part.strip_prefix("usb").is_some_and(|number| number.parse::<u32>().is_ok()) {
            return above;
        }
        above = Some(part.into_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_behind_the_function_above_its_bus() {
        let disk = "/sys/devices/pci0000:00/0000:00:04.0/usb1/1-1/1-1:1.0/host2/target2:0:0/2:0:0:0/block/sda";
        assert_eq!(usb_controller(Path::new(disk)).as_deref(), Some("0000:00:04.0"));
        assert_eq!(usb_controller(Path::new("/sys/devices/virtual/block/loop0")), None);
        assert_eq!(usb_controller(Path::new("/sys/devices/pci0000:00/usbtmc/x")), None);
    }
}
