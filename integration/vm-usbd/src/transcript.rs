//! What a guest's early console says, in a file or on standard output.

use std::io::{self, Write};
use std::path::Path;

use log::error;
use vm_usb::devices::debug::DebugConsole;

use crate::outputs;

/// Takes the text as it comes, so that the last line before a crash is there.
pub struct Transcript {
    out: Box<dyn Write + Send>,
    name: String,
    /// An error was reported; there is no need to repeat it for every packet.
    failed: bool,
}

impl Transcript {
    /// An empty file at `path`.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self::new(outputs::create(path, 0o666)?, path.display().to_string()))
    }

    /// Standard output.
    pub fn stdout() -> Self {
        Self::new(io::stdout(), "standard output".into())
    }

    fn new(out: impl Write + Send + 'static, name: String) -> Self {
        Self { out: Box::new(out), name, failed: false }
    }
}

impl DebugConsole for Transcript {
    fn write(&mut self, bytes: &[u8]) {
        let written = self.out.write_all(bytes).and_then(|()| self.out.flush());
        match written {
            Ok(()) => self.failed = false,
            Err(cause) if !self.failed => {
                self.failed = true;
                error!("{}: {cause}; console text is lost until it can be written", self.name);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_in_the_file_at_once() {
        let path = std::env::temp_dir().join(format!("vm-usbd-transcript-{}", std::process::id()));
        let mut transcript = Transcript::create(&path).unwrap();
        transcript.write(b"Linux version 6.1\r\n");
        transcript.write(b"Kernel panic");
        assert_eq!(std::fs::read(&path).unwrap(), b"Linux version 6.1\r\nKernel panic");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_full_disk_loses_text_and_nothing_else() {
        let mut transcript = Transcript::create(Path::new("/dev/full")).unwrap();
        transcript.write(b"text");
        assert!(transcript.failed);
    }
}
