//! Letting the kernel put devices to sleep.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::sysfs::{attribute, entries, usb_controller};
use crate::wait;

/// Lets the devices behind a controller be suspended, and waits until they and the root hub are.
pub(crate) fn all_behind(controller: &str) -> Result<()> {
    let mut devices = Vec::new();
    for (name, path) in entries("/sys/bus/usb/devices")? {
        let is_interface = name.contains(':');
        if !is_interface && usb_controller(&path).as_deref() == Some(controller) {
            devices.push((name, path));
        }
    }
    ensure!(!devices.is_empty(), "there is no USB bus behind {controller}");
    for (_, path) in &devices {
        let control = path.join("power/control");
        fs::write(&control, "auto").with_context(|| control.display().to_string())?;
    }
    wait::until(|| {
        for (name, path) in &devices {
            let status = attribute(path, "power/runtime_status")?;
            ensure!(status == "suspended", "{name} is {status}");
        }
        Ok(())
    })
}
