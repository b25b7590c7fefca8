//! Not one wrong byte: reading, writing, and a file system's traffic.

use anyhow::{Result, bail, ensure};
use guest_protocol::{Reply, Request, WritePlan};

use crate::boot::sha256;
use crate::guest::{Controller, Guest};
use crate::images::Image;

/// 16 MiB in each size of block.
const LARGE_BLOCKS: usize = 16;
const SMALL_BLOCKS: usize = 4096;

/// The guest's checksum of the whole disk is the host's of the image.
pub(crate) fn reads(guest: &mut Guest, controller: &str, image: &Image) -> Result<String> {
    let host = image.sha256()?;
    let found = sha256(guest, controller)?;
    ensure!(found == host, "the guest read {found}, the image is {host}");
    Ok(format!("{} MiB, sha256 {}...", image.bytes() >> 20, &host[..16]))
}

/// What the guest writes is in the image, byte for byte, and nothing else has changed.
pub(crate) fn writes(guest: &mut Guest, controller: &Controller, image: &Image) -> Result<String> {
    let plan =
        WritePlan { seed: 31, disk_bytes: image.bytes(), large: LARGE_BLOCKS, small: SMALL_BLOCKS };
    let throughput = match guest.call(&Request::Write { controller: controller.address(), plan })? {
        Reply::Throughput(throughput) => throughput,
        other => bail!("a write was asked for and {other:?} came"),
    };
    image.verify(&plan)?;
    Ok(format!("{} MiB at {:.1} MB/s", plan.bytes() >> 20, throughput.megabytes_per_second()))
}

/// ext4: made, mounted, filled, unmounted, mounted, compared, unmounted, checked.
pub(crate) fn filesystem(guest: &mut Guest, controller: &Controller) -> Result<String> {
    match guest.call(&Request::Filesystem { controller: controller.address() })? {
        Reply::Traffic(traffic) => {
            Ok(format!("{} files, {:.1} MB", traffic.files, traffic.bytes as f64 / 1e6))
        }
        other => bail!("a file system was asked for and {other:?} came"),
    }
}
