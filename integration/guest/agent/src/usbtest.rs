//! The kernel's own test of host controllers: its `usbtest` driver on a device that is a source and a sink.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use guest_protocol::{TestPattern, UsbTest, UsbTestOutcome};
use rustix::io::Errno;

use crate::start::modprobe;
use crate::sysfs::{attribute, attribute_or_empty, entries, link_name, usb_controller};
use crate::usbfs::{self, UsbTestParameters};
use crate::wait;

/// The identity of Linux's source and sink gadget, "Gadget Zero".
const VENDOR: &str = "0525";
const PRODUCT: &str = "a4a0";
const DRIVER: &str = "/sys/bus/usb/drivers/usbtest";
const PARAMETERS: &str = "/sys/module/usbtest/parameters";

/// Makes the driver use `alternate` of the device behind `controller`, and data of `pattern`.
pub(crate) fn select(controller: &str, alternate: u8, pattern: TestPattern) -> Result<()> {
    modprobe(&["usbtest"])?;
    let pattern = match pattern {
        TestPattern::Zero => "0",
        TestPattern::Mod63 => "1",
    };
    set("pattern", pattern)?;
    set("alt", &alternate.to_string())?;
    // The driver looks for its endpoints when it is bound. The kernel binds a new device by itself, and may do so between
    // any two steps here; then they are taken again.
    wait::until(|| {
        let interface = interface(controller)?.name;
        if link_name(&PathBuf::from("/sys/bus/usb/devices").join(&interface), "driver").is_some() {
            write(&format!("{DRIVER}/unbind"), &interface)?;
        }
        write(&format!("{DRIVER}/bind"), &interface)
    })
}

/// Runs one case.
pub(crate) fn run(controller: &str, test: UsbTest) -> Result<UsbTestOutcome> {
    let interface = interface(controller)?;
    let node = OpenOptions::new().read(true).write(true).open(&interface.node);
    let node = node.with_context(|| interface.node.clone())?;
    let mut parameters = UsbTestParameters {
        case: test.case,
        iterations: test.iterations,
        length: test.length,
        vary: test.vary,
        sglen: test.sglen,
        ..UsbTestParameters::default()
    };
    match usbfs::usbtest(node, interface.number, &mut parameters) {
        Ok(()) => {
            let whole = u64::try_from(parameters.seconds)? * 1_000_000;
            let microseconds = whole + u64::try_from(parameters.microseconds)?;
            Ok(UsbTestOutcome::Passed { microseconds })
        }
        Err(Errno::OPNOTSUPP) => Ok(UsbTestOutcome::DoesNotApply),
        Err(error) => Err(error).context(format!("usbtest case {}", test.case)),
    }
}

pub(crate) struct Interface {
    /// The kernel's name, `bus-port:configuration.interface`.
    name: String,
    pub(crate) number: i32,
    /// The device's node in usbfs.
    pub(crate) node: String,
}

/// The first interface of the source and sink behind `controller`.
pub(crate) fn interface(controller: &str) -> Result<Interface> {
    let all = entries("/sys/bus/usb/devices")?;
    let (device, path) = all
        .iter()
        .find(|(_, path)| {
            usb_controller(path).is_some_and(|found| found == controller)
                && attribute_or_empty(path, "idVendor") == VENDOR
                && attribute_or_empty(path, "idProduct") == PRODUCT
        })
        .with_context(|| format!("there is no {VENDOR}:{PRODUCT} behind {controller}"))?;
    let own = format!("{device}:");
    let (name, interface) = all
        .iter()
        .find(|(name, _)| name.starts_with(&own))
        .with_context(|| format!("{device} has no interface yet"))?;
    let number = |name: &str| -> Result<u32> { Ok(attribute(path, name)?.parse()?) };
    let node = format!("/dev/bus/usb/{:03}/{:03}", number("busnum")?, number("devnum")?);
    ensure!(fs::exists(&node)?, "{node} is not there");
    Ok(Interface {
        name: name.clone(),
        number: i32::from_str_radix(&attribute(interface, "bInterfaceNumber")?, 16)?,
        node,
    })
}

fn set(parameter: &str, value: &str) -> Result<()> {
    write(&format!("{PARAMETERS}/{parameter}"), value)
}

fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {text} to {path}"))
}
