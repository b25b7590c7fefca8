//! A medium of 64 blocks whose calls fail when told to, and that counts its flushes.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use vm_usb::devices::storage::Medium;
use vm_usb::usb::Buffer;

/// See the [module](self).
#[derive(Clone, Default)]
pub(crate) struct Moody {
    mood: Arc<Mutex<Mood>>,
}

#[derive(Default)]
struct Mood {
    fails_at: Option<(u64, io::ErrorKind)>,
    flushes: u32,
}

impl Moody {
    pub(crate) fn fail_at(&self, offset: u64, kind: io::ErrorKind) {
        self.mood.lock().unwrap().fails_at = Some((offset, kind));
    }

    pub(crate) fn calm_down(&self) {
        self.mood.lock().unwrap().fails_at = None;
    }

    pub(crate) fn flushes(&self) -> u32 {
        self.mood.lock().unwrap().flushes
    }

    fn touch(&self, offset: u64, len: usize) -> io::Result<()> {
        match self.mood.lock().unwrap().fails_at {
            Some((at, kind)) if (offset..offset + len as u64).contains(&at) => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

impl Medium for Moody {
    fn blocks(&self) -> u64 {
        64
    }

    fn read(&mut self, at: u64, buffer: &mut dyn Buffer, range: Range<usize>) -> io::Result<()> {
        self.touch(at, range.len())?;
        buffer.write(range.start, &vec![0x11; range.len()]);
        Ok(())
    }

    fn write(&mut self, at: u64, _from: &mut dyn Buffer, range: Range<usize>) -> io::Result<()> {
        self.touch(at, range.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.mood.lock().unwrap().flushes += 1;
        self.touch(0, 1)
    }
}
