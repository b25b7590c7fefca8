//! The folder of one run: its images, sockets and logs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::images::Image;

/// A guest's disks are this large.
const IMAGE_MEBIBYTES: usize = 96;
const PREFIX: &str = "vm-usb-";

/// It goes when the run is over, unless it is kept for a look at its logs.
pub(crate) struct RunFolder(TempDir);

impl RunFolder {
    pub(crate) fn new() -> Result<Self> {
        sweep(&std::env::temp_dir(), Path::new("/proc"));
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir();
        folder
            .map(Self)
            .context("cannot make a temporary folder; set TMPDIR to one with 400 MiB of room")
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn image(&self, name: &str, seed: u64) -> Result<Image> {
        Image::create(self.path().join(name), seed, IMAGE_MEBIBYTES)
    }

    /// Keeps the logs, without the images, and gives the folder.
    pub(crate) fn keep_logs(self) -> PathBuf {
        let folder = self.0.keep();
        remove_all_but_logs(&folder);
        folder
    }
}

/// A run that was interrupted leaves its images behind: those of processes that are gone are removed.
fn sweep(temporary: &Path, processes: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner =
            name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(pid, _)| pid);
        if owner.is_some_and(|pid| pid.parse::<u32>().is_ok() && !processes.join(pid).exists()) {
            remove_all_but_logs(&entry.path());
        }
    }
}

fn remove_all_but_logs(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().extension().is_none_or(|extension| extension != "log") {
            // What cannot be removed only takes room.
            let _ = fs::remove_file(entry.path());
        }
    }
    // A folder without any log goes, too; one with logs is not empty and stays.
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_runs_that_are_gone_are_removed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let processes = place.path().join("proc");
        fs::create_dir_all(processes.join("7")).unwrap();
        for folder in ["vm-usb-7-a", "vm-usb-8-b", "vm-usb-9-c", "other-8-d"] {
            fs::create_dir(place.path().join(folder)).unwrap();
            fs::write(place.path().join(folder).join("ehci.img"), "x").unwrap();
        }
        fs::write(place.path().join("vm-usb-8-b/console.log"), "x").unwrap();
        sweep(place.path(), &processes);
        assert!(place.path().join("vm-usb-7-a/ehci.img").exists(), "its process runs");
        assert!(!place.path().join("vm-usb-8-b/ehci.img").exists());
        assert!(
            place.path().join("vm-usb-8-b/console.log").exists(),
            "logs are small and may be wanted"
        );
        assert!(!place.path().join("vm-usb-9-c").exists());
        assert!(place.path().join("other-8-d/ehci.img").exists(), "not ours");
    }
}
