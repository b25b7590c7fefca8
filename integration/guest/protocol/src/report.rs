//! What the guest saw, as values.

use serde::{Deserialize, Serialize};

use crate::PciAddress;

/// Everything USB that the guest's kernel found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The controllers by PCI address.
    pub controllers: Vec<Controller>,
    /// The devices by the kernel's names, root hubs left out.
    pub devices: Vec<UsbDevice>,
    /// The disks by the kernel's names.
    pub disks: Vec<Disk>,
}

/// A USB host controller on the PCI bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controller {
    /// Where it is on the bus.
    pub address: PciAddress,
    /// `vendor:device` in hexadecimal.
    pub id: String,
    /// The programming interface of class 0Ch/03h: 10h is OHCI, 20h is EHCI.
    pub programming_interface: u8,
    /// The bound driver, `ehci-pci` or `ohci-pci` when all is well.
    pub driver: Option<String>,
    /// How its interrupts come.
    pub interrupt_mode: InterruptMode,
    /// Interrupts the kernel has counted so far.
    pub interrupts: u64,
}

/// How the controller's interrupts reach the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterruptMode {
    /// As messages.
    Msi,
    /// Over the pin.
    IntX,
    /// Not at all: no driver asked for them.
    None,
}

/// A USB device that is not a root hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsbDevice {
    /// The kernel's name, `bus-port[.port]`.
    pub name: String,
    /// The controller it is behind.
    pub controller: PciAddress,
    /// `vendor:product` in hexadecimal.
    pub id: String,
    /// The product string.
    pub product: String,
    /// Signalling rate in Mbit/s as sysfs writes it: `1.5`, `12` or `480`.
    pub speed: String,
    /// The drivers bound to its interfaces.
    pub drivers: Vec<String>,
}

/// A disk behind a USB controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The kernel's name, for example `sda`.
    pub name: String,
    /// The controller it is behind.
    pub controller: PciAddress,
    /// Vendor and model from INQUIRY.
    pub model: String,
    /// Its capacity.
    pub bytes: u64,
    /// Whether the kernel takes it for write-protected.
    pub read_only: bool,
}

/// A sequential run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throughput {
    /// What was moved.
    pub bytes: u64,
    /// How long it took.
    pub nanoseconds: u64,
}

impl Throughput {
    /// In megabytes (10^6 bytes) a second.
    #[must_use]
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1e3 / (self.nanoseconds.max(1) as f64)
    }
}

/// Every request's time in nanoseconds, in the order they were made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies(pub Vec<u64>);

impl Latencies {
    /// The value that `percent` of the requests did not exceed, in microseconds; zero when there were none.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1).min(last);
        sorted.get(at).copied().unwrap_or(0) as f64 / 1e3
    }
}

/// Where the pages of a buffer are in guest memory, and what came into it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// How many pages it has.
    pub pages: usize,
    /// How many of them are above 4 GiB.
    pub above_4_gib: usize,
    /// The SHA-256 of what was read into it, in lower-case hexadecimal.
    pub sha256: String,
    /// Bits of the addresses that the controller's driver told the kernel to give it.
    pub address_bits: u32,
}

/// What the file-system test moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// How many files were written and compared.
    pub files: usize,
    /// Their sizes' sum.
    pub bytes: u64,
}

/// An evdev event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputEvent {
    /// The input device's name, as the kernel took it from the USB strings.
    pub device: String,
    /// `EV_KEY` 1, `EV_REL` 2, `EV_ABS` 3, ...
    pub kind: u16,
    /// Which key or axis.
    pub code: u16,
    /// 1 pressed, 0 released, or the axis's value.
    pub value: i32,
}

/// What came of the unload and load cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// How many cycles there were.
    pub times: usize,
    /// The slowest cycle: from the first `rmmod` until every device was back and every disk had been read.
    pub slowest_milliseconds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_requests() {
        let latencies = Latencies((1..=100).rev().map(|n| n * 1_000).collect());
        assert_eq!(latencies.percentile(50), 50.0);
        assert_eq!(latencies.percentile(99), 99.0);
        assert_eq!(latencies.percentile(100), 100.0);
        assert_eq!(Latencies(vec![7_000]).percentile(50), 7.0);
        assert_eq!(Latencies(vec![]).percentile(50), 0.0);
    }

    #[test]
    fn megabytes_are_decimal() {
        let throughput = Throughput { bytes: 100_000_000, nanoseconds: 500_000_000 };
        assert_eq!(throughput.megabytes_per_second(), 200.0);
    }
}
