//! Streams through usbfs, as programs that drive a device themselves do: several requests queued, each queued again as
//! soon as it is back.

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guest_protocol::{Stream, Streamed};

use crate::usbfs::{self, PacketStatus, Queue};
use crate::{usbtest, wait};

/// Streams for as long as `stream` says, then takes back what is queued.
pub(crate) fn run(controller: &str, stream: &Stream) -> Result<Vec<Streamed>> {
    ensure!(!stream.endpoints.is_empty() && stream.queued > 0, "nothing would be queued");
    let interface = wait::until(|| usbtest::interface(controller))?;
    let node = OpenOptions::new().read(true).write(true).open(&interface.node);
    let node = node.with_context(|| interface.node.clone())?;
    usbfs::claim(&node, interface.number).context("claiming the interface")?;
    usbfs::set_interface(&node, interface.number, stream.alternate).context("the setting")?;

    let endpoint_of = |slot: usize| slot / stream.queued;
    let mut queue = Queue::new(&node);
    for endpoint in &stream.endpoints {
        for _ in 0..stream.queued {
            queue.add(*endpoint, stream.shape).context("memory for the stream")?;
        }
    }
    let mut streamed = vec![Streamed::default(); stream.endpoints.len()];
    let (start, length) = (Instant::now(), Duration::from_millis(stream.milliseconds));
    for slot in 0..queue.len() {
        queue.submit(slot).context("queueing")?;
    }
    let mut queued = queue.len();
    while queued > 0 {
        let slot = queue.reap().context("waiting")?;
        let result = &mut streamed[endpoint_of(slot)];
        result.requests += 1;
        result.nanoseconds = start.elapsed().as_nanos() as u64;
        for (status, bytes) in queue.packets(slot) {
            result.bytes += u64::from(bytes);
            *match status {
                PacketStatus::Good => &mut result.good,
                PacketStatus::Late => &mut result.late,
                PacketStatus::Failed => &mut result.failed,
            } += 1;
        }
        if start.elapsed() < length {
            queue.submit(slot).context("queueing again")?;
        } else {
            queued -= 1;
        }
    }
    Ok(streamed)
}
