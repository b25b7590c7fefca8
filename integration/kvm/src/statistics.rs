//! What has been counted, for a person to read.

use std::fmt;

use vm_usb::pci::FunctionStatistics;
use vm_usb::usb::{DeviceStatistics, Speed};

use crate::usb::Socket;

/// Counts of every controller and of every device, at one moment.
pub(crate) struct Statistics {
    pub(crate) functions: [(&'static str, FunctionStatistics); 2],
    pub(crate) devices: Vec<(Socket, DeviceStatistics)>,
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, counts) in &self.functions {
            write!(
                f,
                "{separator}{name}: {} interrupts, {} register reads, {} writes, {} runs, {} frames run",
                counts.interrupts,
                counts.register_reads,
                counts.register_writes,
                counts.runs,
                counts.frames.run
            )?;
            separator = "\n";
        }
        for (socket, device) in &self.devices {
            let speed = match device.speed {
                Speed::Low => "low",
                Speed::Full => "full",
                Speed::High => "high",
            };
            write!(
                f,
                "\nport {socket}: \"{}\", {speed} speed, address {}",
                device.name, device.address
            )?;
            for endpoint in &device.endpoints {
                write!(
                    f,
                    "\n  endpoint {:02x}: {} transfers, {} bytes, {} NAKs, {} stalls, {} errors, \
                     99 % within {:?}",
                    endpoint.endpoint.byte(),
                    endpoint.transfers,
                    endpoint.bytes,
                    endpoint.naks,
                    endpoint.stalls,
                    endpoint.errors,
                    endpoint.latency.percentile(99)
                )?;
            }
        }
        Ok(())
    }
}
