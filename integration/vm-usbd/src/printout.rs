//! A file that takes what a guest prints.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use log::error;
use vm_usb::devices::printer::{Paper, PrintSink};

use crate::outputs;

/// Print data, one job after the other, as the guest sent it.
#[derive(Debug)]
pub struct Printout {
    file: File,
    path: PathBuf,
    /// The file took no more. The guest is told, and has to wait, until the printer is reset.
    failed: bool,
}

impl Printout {
    /// An empty file at `path`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: outputs::create(path, 0o666)?, path: path.to_owned(), failed: false })
    }
}

impl PrintSink for Printout {
    fn room(&mut self) -> usize {
        if self.failed { 0 } else { usize::MAX }
    }

    fn print(&mut self, bytes: &[u8]) {
        if let Err(cause) = self.file.write_all(bytes) {
            self.failed = true;
            error!("{}: {cause}; the printer stops until it is reset", self.path.display());
        }
    }

    fn paper(&self) -> Paper {
        if self.failed { Paper::Error } else { Paper::Loaded }
    }

    fn reset(&mut self) {
        self.failed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_stops_the_printer_and_a_reset_starts_it_again() {
        let mut printout = Printout::create(Path::new("/dev/full")).unwrap();
        assert_eq!((printout.room(), printout.paper()), (usize::MAX, Paper::Loaded));
        printout.print(b"page");
        assert_eq!((printout.room(), printout.paper()), (0, Paper::Error));
        printout.reset();
        assert_eq!((printout.room(), printout.paper()), (usize::MAX, Paper::Loaded));
    }
}
