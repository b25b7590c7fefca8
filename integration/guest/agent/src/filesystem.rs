//! What a person does with a stick: make a file system, copy files, take it out, put it in, look.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::{Pattern, Traffic};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::disks;

const MOUNT_POINT: &str = "/mnt";
/// The file system's size in KiB: enough for the files and a journal, small enough for the slower controller.
const KIBIBYTES: u64 = 48 << 10;
const SMALL_FILES: usize = 200;
const LARGE_FILES: usize = 2;
const SMALL: usize = 6_000;
const LARGE: usize = 6_000_000;
const FOLDERS: usize = 8;

/// Makes an ext4 file system on the disk behind `controller`, fills it, and looks at it again after a new mount.
pub(crate) fn exercise(controller: &str) -> Result<Traffic> {
    let node = disks::node(controller)?;
    let name = node.to_string_lossy();
    tool("/sbin/mkfs.ext4", &["-q", "-F", &name, &KIBIBYTES.to_string()])?;
    let traffic = mounted(&node, || {
        let traffic = copy_in()?;
        File::open(MOUNT_POINT)?.sync_all()?;
        Ok(traffic)
    })?;
    // The new mount has nothing in the page cache: unmounting the only user of the disk dropped it.
    mounted(&node, compare)?;
    tool("/sbin/fsck.ext4", &["-n", "-f", &name])?;
    Ok(traffic)
}

/// Mounts, works, unmounts; the unmount happens after a failure too, so that the next try is not hindered.
fn mounted<T>(node: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    fs::create_dir_all(MOUNT_POINT)?;
    mount(node, MOUNT_POINT, "ext4", MountFlags::empty(), None)
        .with_context(|| format!("mounting {}", node.display()))?;
    let result = work();
    let unmounted = unmount(MOUNT_POINT, UnmountFlags::empty()).context("unmounting");
    let value = result?;
    unmounted?;
    Ok(value)
}

/// The files, with their bytes' seeds as numbers.
fn files() -> impl Iterator<Item = (u64, String, usize)> {
    let lengths =
        std::iter::repeat_n(LARGE, LARGE_FILES).chain(std::iter::repeat_n(SMALL, SMALL_FILES));
    lengths.enumerate().map(|(number, length)| {
        (number as u64, format!("{MOUNT_POINT}/folder-{}/file-{number}", number % FOLDERS), length)
    })
}

fn contents(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Pattern::new(seed).fill(&mut bytes);
    bytes
}

fn copy_in() -> Result<Traffic> {
    let mut traffic = Traffic { files: 0, bytes: 0 };
    for (seed, path, length) in files() {
        let folder = Path::new(&path).parent().context("a file has a folder")?;
        fs::create_dir_all(folder)?;
        fs::write(&path, contents(seed, length)).with_context(|| format!("writing {path}"))?;
        traffic.files += 1;
        traffic.bytes += length as u64;
    }
    Ok(traffic)
}

fn compare() -> Result<()> {
    for (seed, path, length) in files() {
        let found = fs::read(&path).with_context(|| format!("reading {path}"))?;
        ensure!(
            found == contents(seed, length),
            "{path} does not have the bytes that were written to it"
        );
    }
    Ok(())
}

fn tool(program: &str, arguments: &[&str]) -> Result<()> {
    let output =
        Command::new(program).args(arguments).output().with_context(|| program.to_owned())?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        bail!(
            "{program} {}: {}; it said: {}",
            arguments.join(" "),
            output.status,
            said.trim().replace('\n', " / ")
        );
    }
    Ok(())
}
