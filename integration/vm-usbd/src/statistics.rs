//! What was counted, as it goes over the control socket, and as a person reads it.

use std::fmt;

use serde::{Deserialize, Serialize};
use vm_usb::pci::FunctionStatistics;
use vm_usb::usb::{DeviceStatistics, EndpointStatistics, Speed, TransferType};

use crate::plugboard::Plugged;
use crate::table::{Align, bytes, duration, table};

/// Everything that is counted, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// When, in nanoseconds of the server's monotonic clock.
    pub time_ns: u64,
    /// Every controller.
    pub controllers: Vec<ControllerCounts>,
    /// Every device.
    pub devices: Vec<DeviceCounts>,
    /// The capture, if there is one.
    pub capture: Option<CaptureCounts>,
}

/// One controller since the program began; see `vm_usb::pci::FunctionStatistics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerCounts {
    /// Its name.
    pub id: String,
    /// `ehci` or `ohci`.
    pub kind: String,
    /// Whether a client is connected.
    pub client: bool,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Reads of registers.
    pub register_reads: u64,
    /// Writes to registers.
    pub register_writes: u64,
    /// Times a timer or a device woke it.
    pub runs: u64,
    /// OHCI: frames (1 ms) whose lists were run. EHCI: microframes (125 us) in which something in the
    /// periodic schedule was due.
    pub frames_run: u64,
    /// Those that passed without.
    pub frames_skipped: u64,
}

/// One device since it was plugged in; see `vm_usb::usb::DeviceStatistics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounts {
    /// What it is and where.
    #[serde(flatten)]
    pub device: Plugged,
    /// Its address; 0 if it has none.
    pub address: u8,
    /// `low`, `full` or `high`.
    pub speed: String,
    /// Its configuration; 0 if it is not configured.
    pub configuration: u8,
    /// Its endpoints.
    pub endpoints: Vec<EndpointCounts>,
}

/// One endpoint; see `vm_usb::usb::EndpointStatistics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointCounts {
    /// `bEndpointAddress`: bit 7 is set for IN.
    pub address: u8,
    /// `control`, `bulk`, `interrupt` or `isochronous`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Transfers that ended well.
    pub transfers: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Times it had nothing to say.
    pub naks: u64,
    /// Times it began and was to announce the end.
    pub pending: u64,
    /// STALLs.
    pub stalls: u64,
    /// Errors on the bus.
    pub errors: u64,
    /// How long the device had each transfer that ended.
    pub latency_ns: Latency,
}

/// A distribution of times, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Half took no longer.
    pub p50: u64,
    /// 90 % took no longer.
    pub p90: u64,
    /// 99 % took no longer.
    pub p99: u64,
    /// The longest.
    pub longest: u64,
}

/// The capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureCounts {
    /// Events in it, or on their way.
    pub events: u64,
    /// Events left out.
    pub lost: u64,
    /// Its size.
    pub bytes: u64,
}

impl ControllerCounts {
    /// The counts of a controller called `id`.
    pub fn new(id: String, kind: &str, client: bool, counts: &FunctionStatistics) -> Self {
        Self {
            id,
            kind: kind.to_owned(),
            client,
            interrupts: counts.interrupts,
            register_reads: counts.register_reads,
            register_writes: counts.register_writes,
            runs: counts.runs,
            frames_run: counts.frames.run,
            frames_skipped: counts.frames.skipped,
        }
    }
}

impl DeviceCounts {
    /// The counts of a device.
    pub fn new(device: Plugged, counts: &DeviceStatistics) -> Self {
        let speed = match counts.speed {
            Speed::Low => "low",
            Speed::Full => "full",
            Speed::High => "high",
        };
        Self {
            device,
            address: counts.address,
            speed: speed.to_owned(),
            configuration: counts.configuration,
            endpoints: counts.endpoints.iter().map(EndpointCounts::from).collect(),
        }
    }
}

impl From<&EndpointStatistics> for EndpointCounts {
    fn from(counts: &EndpointStatistics) -> Self {
        let kind = match counts.transfer_type {
            TransferType::Control => "control",
            TransferType::Isochronous => "isochronous",
            TransferType::Bulk => "bulk",
            TransferType::Interrupt => "interrupt",
        };
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let percentile = |percent| nanos(counts.latency.percentile(percent));
        Self {
            address: counts.endpoint.byte(),
            kind: kind.to_owned(),
            transfers: counts.transfers,
            bytes: counts.bytes,
            naks: counts.naks,
            pending: counts.pending,
            stalls: counts.stalls,
            errors: counts.errors,
            latency_ns: Latency {
                p50: percentile(50),
                p90: percentile(90),
                p99: percentile(99),
                longest: nanos(counts.latency.longest()),
            },
        }
    }
}

impl EndpointCounts {
    /// `0`, `1 IN`, `2 OUT`.
    fn name(&self) -> String {
        match (self.address & 0xf, self.address & 0x80) {
            (0, _) => "0".to_owned(),
            (number, 0) => format!("{number} OUT"),
            (number, _) => format!("{number} IN"),
        }
    }
}

impl Statistics {
    /// What happened since `before`, a second on average. Stalls, errors, latencies and the capture
    /// stay as they are: what is rare would not be seen.
    #[must_use]
    pub fn per_second(mut self, before: &Self) -> Self {
        let nanos = u128::from(self.time_ns.saturating_sub(before.time_ns).max(1));
        // A device that was plugged in again counts from zero.
        let rate = |now: &mut u64, then: u64| {
            let passed = now.checked_sub(then).unwrap_or(*now);
            let rate = (u128::from(passed) * 1_000_000_000 + nanos / 2) / nanos;
            *now = u64::try_from(rate).unwrap_or(u64::MAX);
        };
        for now in &mut self.controllers {
            let then = before.controllers.iter().find(|then| then.id == now.id);
            let then = |count: fn(&ControllerCounts) -> u64| then.map_or(0, count);
            rate(&mut now.interrupts, then(|c| c.interrupts));
            rate(&mut now.register_reads, then(|c| c.register_reads));
            rate(&mut now.register_writes, then(|c| c.register_writes));
            rate(&mut now.runs, then(|c| c.runs));
            rate(&mut now.frames_run, then(|c| c.frames_run));
            rate(&mut now.frames_skipped, then(|c| c.frames_skipped));
        }
        for device in &mut self.devices {
            let same = before.devices.iter().find(|then| then.device == device.device);
            for now in &mut device.endpoints {
                let endpoints = same.iter().flat_map(|device| &device.endpoints);
                let then = endpoints.clone().find(|then| then.address == now.address);
                let then = |count: fn(&EndpointCounts) -> u64| then.map_or(0, count);
                rate(&mut now.transfers, then(|e| e.transfers));
                rate(&mut now.bytes, then(|e| e.bytes));
                rate(&mut now.naks, then(|e| e.naks));
                rate(&mut now.pending, then(|e| e.pending));
            }
        }
        self
    }
}

/// As a person reads it, without a line's end.
impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Align::{Left, Right};
        let heads = [
            "CONTROLLER",
            "KIND",
            "CLIENT",
            "INTERRUPTS",
            "READS",
            "WRITES",
            "WAKEUPS",
            "FRAMES RUN",
            "SKIPPED",
        ];
        let mut rows = vec![heads.map(str::to_owned)];
        rows.extend(self.controllers.iter().map(|controller| {
            [
                controller.id.clone(),
                controller.kind.clone(),
                if controller.client { "yes" } else { "no" }.to_owned(),
                controller.interrupts.to_string(),
                controller.register_reads.to_string(),
                controller.register_writes.to_string(),
                controller.runs.to_string(),
                controller.frames_run.to_string(),
                controller.frames_skipped.to_string(),
            ]
        }));
        let columns = [Left, Left, Left, Right, Right, Right, Right, Right, Right];
        table(f, columns, &rows)?;

        let heads = [
            "DEVICE",
            "PORT",
            "ADDRESS",
            "SPEED",
            "ENDPOINT",
            "TYPE",
            "TRANSFERS",
            "BYTES",
            "NAKS",
            "PENDING",
            "STALLS",
            "ERRORS",
            "50 %",
            "90 %",
            "99 %",
            "LONGEST",
        ];
        let mut rows = vec![heads.map(str::to_owned)];
        rows.extend(self.devices.iter().flat_map(DeviceCounts::rows));
        if rows.len() > 1 {
            let mut columns = [Right; 16];
            for column in [0, 1, 3, 4, 5] {
                columns[column] = Left;
            }
            f.write_str("\n\n")?;
            table(f, columns, &rows)?;
        }
        if let Some(CaptureCounts { events, lost, bytes: size }) = self.capture {
            write!(f, "\n\ncapture: {events} events, {lost} lost, {}", bytes(size))?;
        }
        Ok(())
    }
}

impl DeviceCounts {
    /// A row for each endpoint, the first with what the device is.
    fn rows(&self) -> impl Iterator<Item = [String; 16]> {
        let mut names = [
            self.device.id.clone(),
            self.device.place.to_string(),
            self.address.to_string(),
            self.speed.clone(),
        ];
        self.endpoints.iter().map(move |endpoint| {
            let [id, place, address, speed] = std::mem::take(&mut names);
            let Latency { p50, p90, p99, longest } = endpoint.latency_ns;
            [
                id,
                place,
                address,
                speed,
                endpoint.name(),
                endpoint.kind.clone(),
                endpoint.transfers.to_string(),
                bytes(endpoint.bytes),
                endpoint.naks.to_string(),
                endpoint.pending.to_string(),
                endpoint.stalls.to_string(),
                endpoint.errors.to_string(),
                duration(p50),
                duration(p90),
                duration(p99),
                duration(longest),
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugboard::Place;

    fn sample() -> Statistics {
        let endpoint = |address, kind: &str, bytes| EndpointCounts {
            address,
            kind: kind.to_owned(),
            transfers: 8,
            bytes,
            naks: 1,
            pending: 0,
            stalls: 2,
            errors: 0,
            latency_ns: Latency { p50: 900, p90: 8_000, p99: 120_000, longest: 3_000_000 },
        };
        Statistics {
            time_ns: 5_000_000_000,
            controllers: vec![ControllerCounts {
                id: "e0".to_owned(),
                kind: "ehci".to_owned(),
                client: true,
                interrupts: 10,
                register_reads: 200,
                register_writes: 30,
                runs: 4,
                frames_run: 8_000,
                frames_skipped: 0,
            }],
            devices: vec![DeviceCounts {
                device: Plugged {
                    id: "disk".to_owned(),
                    kind: "storage".to_owned(),
                    place: Place { bus: "e0".to_owned(), port: 1 },
                },
                address: 3,
                speed: "high".to_owned(),
                configuration: 1,
                endpoints: vec![endpoint(0, "control", 100), endpoint(0x81, "bulk", 5 << 20)],
            }],
            capture: Some(CaptureCounts { events: 12, lost: 0, bytes: 4096 }),
        }
    }

    #[test]
    fn a_person_reads_a_table_of_controllers_and_one_of_endpoints() {
        let text = sample().to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["e0", "ehci", "yes", "10", "200", "30", "4", "8000", "0"]);
        let start = ["disk", "e0:1", "3", "high", "0", "control", "8", "100", "1", "0", "2", "0"];
        assert_eq!(lines[4][..12], start);
        let next = ["1", "IN", "bulk", "8", "5.0", "MiB", "1", "0", "2", "0", "900", "ns"];
        assert_eq!(lines[5][..12], next, "the device is named once");
        assert_eq!(text.lines().last(), Some("capture: 12 events, 0 lost, 4096"));
    }

    #[test]
    fn rates_are_differences_a_second_and_what_is_rare_stays() {
        let before = sample();
        let mut now = sample();
        now.time_ns += 2_000_000_000;
        now.controllers[0].interrupts += 500;
        now.devices[0].endpoints[1].bytes += 4 << 20;
        now.devices[0].endpoints[0].transfers = 3;
        let rates = now.per_second(&before);
        assert_eq!(rates.controllers[0].interrupts, 250);
        assert_eq!(rates.controllers[0].register_reads, 0);
        assert_eq!(rates.devices[0].endpoints[1].bytes, 2 << 20);
        assert_eq!(rates.devices[0].endpoints[1].stalls, 2);
        assert_eq!(rates.devices[0].endpoints[0].transfers, 2, "plugged in again: 3 in 2 s");
    }

    #[test]
    fn the_same_comes_out_of_json() {
        let json = serde_json::to_string(&sample()).unwrap();
        assert!(json.contains(r#""bus":"e0","port":1,"address":3,"speed":"high""#), "{json}");
        assert_eq!(serde_json::from_str::<Statistics>(&json).unwrap(), sample());
    }
}
