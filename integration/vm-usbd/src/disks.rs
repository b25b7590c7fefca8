//! The disks of a controller, to be written out when its guest is gone.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use log::error;
use vm_usb_image::{Flusher, RawImage};

/// The images behind a controller's ports, and its companion's. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct Disks(Arc<Mutex<Vec<(PathBuf, Flusher)>>>);

impl Disks {
    /// Adds one; it is forgotten when it is closed.
    pub fn add(&self, image: &RawImage) {
        let mut disks = self.lock();
        disks.retain(|(_, disk)| disk.is_open());
        disks.push((image.path().to_owned(), image.flusher()));
    }

    /// Has the host store what was written and not flushed; returns at how many disks there was such. A
    /// failure is a line in the log: whoever wrote is gone.
    pub fn flush(&self) -> usize {
        // Not under the lock: storage may take its time, and somebody may want to plug in a disk.
        let disks = self.lock().clone();
        let flushed = disks.iter().filter(|(path, disk)| match disk.flush() {
            Ok(flushed) => flushed,
            Err(error) => {
                error!("\"{}\": the last writes may be lost: {error}", path.display());
                false
            }
        });
        flushed.count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(PathBuf, Flusher)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
