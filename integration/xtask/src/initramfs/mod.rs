//! The guest's first file system: the agent, busybox, ext4's tools and the drivers, as a cpio archive in memory.

mod agent;
mod cpio;
mod modinfo;
mod modules;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::progress;
use crate::setup::{KernelFiles, Lab, Userland};
use cpio::Archive;

/// Loaded before the agent serves, in this order; modprobe adds what they need.
const LOADED: [&str; 9] = [
    "usb-storage",
    "uas",
    "sd_mod",
    "usbhid",
    "hid-generic",
    "evdev",
    "ext4",
    "ehci-pci",
    "ohci-pci",
];

/// Carried for `modprobe` where the kernel has them: drivers of devices that a guest may be given.
const CARRIED: [&str; 10] = [
    "xhci-pci",
    "usblp",
    "usbtest",
    "cdc_ncm",
    "cdc_ether",
    "cdc-acm",
    "ftdi_sio",
    "uvcvideo",
    "snd-usb-audio",
    "crc32c_generic",
];

/// Stands for what decides, besides the kernel, what is in the base archive. A cached archive of another recipe is
/// not used.
pub(crate) fn recipe() -> String {
    let lists = [&LOADED[..], &CARRIED, &[MKE2FS]].concat().join(",");
    Sha256::digest(lists).iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the guest's archive to `target`: the part that is the same every time, kept at `base`, and the agent.
pub(crate) fn build(lab: &Lab, kernel: &KernelFiles, base: &Path, target: &Path) -> Result<()> {
    if !base.is_file() {
        let bar = progress::spinner(&format!("initramfs for {}", kernel.release));
        let bytes = userland_and_modules(&lab.userland, kernel);
        bar.finish_and_clear();
        // The name appears once the archive is whole.
        let part = base.with_extension("part");
        fs::write(&part, bytes?).with_context(|| part.display().to_string())?;
        fs::rename(&part, base).with_context(|| base.display().to_string())?;
    }
    // The kernel unpacks archives that follow one another as if they were one.
    let mut archive = fs::read(base).with_context(|| base.display().to_string())?;
    archive.extend(first_process(lab)?);
    fs::write(target, archive).with_context(|| target.display().to_string())
}

fn first_process(lab: &Lab) -> Result<Vec<u8>> {
    let agent = agent::build(lab)?;
    let mut archive = Archive::default();
    archive.file("init", 0o755, &fs::read(&agent).with_context(|| agent.display().to_string())?);
    Ok(archive.finish())
}

fn userland_and_modules(userland: &Userland, kernel: &KernelFiles) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["bin", "sbin", "lib", "lib64", "etc", "proc", "sys", "dev", "tmp", "mnt", "root"]
    {
        archive.folder(folder);
    }
    archive.file("bin/busybox", 0o755, &fs::read(userland.busybox())?);
    for applet in userland.applets()? {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
    for applet in ["modprobe", "rmmod"] {
        archive.link(&format!("sbin/{applet}"), "../bin/busybox");
    }
    archive.file("etc/lab-modules", 0o644, LOADED.join("\n").as_bytes());
    archive.file("etc/profile", 0o644, b"export PATH=/bin:/sbin\n");
    archive.file("etc/mke2fs.conf", 0o644, MKE2FS.as_bytes());
    add_tools(&mut archive, userland)?;
    let staging = tempfile::tempdir()?;
    for (path, place) in modules::stage(userland, kernel, staging.path(), &LOADED, &CARRIED)? {
        archive.file_with_folders(&place, 0o644, &fs::read(&path)?);
    }
    Ok(archive.finish())
}

/// What Debian's own file says for ext4.
const MKE2FS: &str = "[defaults]\n\
    base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr\n\
    blocksize = 4096\n\
    [fs_types]\n\
    ext4 = {\nfeatures = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize\n}\n\
    small = {\nblocksize = 4096\n}\n";

fn add_tools(archive: &mut Archive, userland: &Userland) -> Result<()> {
    for (path, place) in userland.programs(&["mkfs.ext4", "fsck.ext4"])? {
        archive.file(&place, 0o755, &fs::read(&path).with_context(|| path.display().to_string())?);
    }
    Ok(())
}
