//! Working with a device until it is pulled out.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::{InputEvent, Pluggable, Pulled, TestPattern, UsbTest, printed_byte};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::input::InputDevices;
use crate::{direct, disks, input, inventory, printer, usbtest, wait};

/// A piece of work on a disk, and on a printer.
const READ: usize = 64 << 10;
const PRINT: usize = 8 << 10;
/// `usbtest`'s bulk write and bulk read, a few milliseconds each.
const CASES: [u32; 2] = [1, 2];
const ITERATIONS: u32 = 16;
const LENGTH: u32 = 4096;

/// What a program hears when its device is gone: of the block layer, of the bus (EHCI's driver says PROTO of a device that
/// does not answer, OHCI's says TIME), of the device's file.
const GONE: [Errno; 9] = [
    Errno::IO,
    Errno::NODEV,
    Errno::NXIO,
    Errno::NOENT,
    Errno::PROTO,
    Errno::TIME,
    Errno::PIPE,
    Errno::ILSEQ,
    Errno::SHUTDOWN,
];

/// A device that is there, ready to be worked with.
pub(crate) struct Worker {
    controller: String,
    work: Work,
    done: Done,
}

enum Work {
    /// With the number of pieces it has.
    Disk(File, u64),
    Input(InputDevices),
    Printer(File),
    Loopback,
}

/// What was done before the end.
#[derive(Default)]
struct Done {
    pieces: u64,
    bytes: u64,
    events: Vec<InputEvent>,
}

impl Worker {
    /// Waits until the device behind `controller` is there and opens it.
    pub(crate) fn new(controller: &str, device: Pluggable) -> Result<Self> {
        let work = match device {
            Pluggable::Disk => {
                let disk = direct::open(&disks::node(controller)?)?;
                // Now: a disk that is gone has no size any more.
                let pieces = seek(&disk, SeekFrom::End(0))? / READ as u64;
                ensure!(pieces > 0, "the disk is smaller than {READ} bytes");
                Work::Disk(disk, pieces)
            }
            Pluggable::Input => {
                let mut devices = InputDevices::default();
                wait::until(|| devices.open())?;
                Work::Input(devices)
            }
            Pluggable::Printer => {
                let node = printer::await_node(controller)?;
                let node = OpenOptions::new().write(true).open(&node).context(node)?;
                Work::Printer(node)
            }
            Pluggable::Loopback => {
                usbtest::select(controller, 0, TestPattern::Zero)?;
                Work::Loopback
            }
        };
        Ok(Self { controller: controller.to_owned(), work, done: Done::default() })
    }

    /// Works until `event` has come `times` times.
    pub(crate) fn work_until(&mut self, event: &InputEvent, times: usize) -> Result<()> {
        let Work::Input(devices) = &mut self.work else { bail!("only input devices have events") };
        let events = &mut self.done.events;
        wait::until(|| {
            devices.append_at_once(events)?;
            let is_it = |one: &&InputEvent| {
                (one.kind, one.code, one.value) == (event.kind, event.code, event.value)
            };
            let seen = events.iter().filter(is_it).count();
            ensure!(
                seen >= times,
                "of {times} times the event came {seen}, of all {}",
                events.len()
            );
            Ok(())
        })
    }

    /// Works until that fails, as it has to, and until nothing is left of the device.
    pub(crate) fn work(mut self) -> Result<Pulled> {
        let error = loop {
            match self.piece() {
                Ok(()) => self.done.pieces += 1,
                Err(error) => break error,
            }
        };
        let done = self.done;
        let told = reason(&error)?;
        let start = Instant::now();
        // Open files would keep it.
        drop(self.work);
        let controller = &self.controller;
        wait::until(|| {
            let left = inventory::take()?;
            let devices = left.devices.iter().filter(|device| device.controller == *controller);
            ensure!(devices.count() == 0, "the kernel still has a device behind {controller}");
            ensure!(input::behind_usb()?.is_empty(), "an input device is still there");
            Ok(())
        })?;
        let milliseconds = start.elapsed().as_millis() as u64;
        Ok(Pulled {
            pieces: done.pieces,
            bytes: done.bytes,
            events: done.events,
            told,
            milliseconds,
        })
    }

    fn piece(&mut self) -> Result<()> {
        let done = &mut self.done;
        match &mut self.work {
            Work::Disk(disk, pieces) => {
                let offset = done.pieces % *pieces * READ as u64;
                let mut buffer = direct::Buffer::new(READ);
                disk.read_exact_at(buffer.bytes(), offset)?;
                done.bytes += READ as u64;
            }
            Work::Input(devices) => devices.append(&mut done.events)?,
            Work::Printer(node) => {
                let page: Vec<u8> =
                    (done.bytes..done.bytes + PRINT as u64).map(printed_byte).collect();
                let count = node.write(&page)?;
                done.bytes += count as u64;
            }
            Work::Loopback => {
                let case = CASES[done.pieces as usize % CASES.len()];
                let test =
                    UsbTest { case, iterations: ITERATIONS, length: LENGTH, vary: 0, sglen: 0 };
                usbtest::run(&self.controller, test)?;
                done.bytes += u64::from(ITERATIONS * LENGTH);
            }
        }
        Ok(())
    }
}

/// Says what `error` was, if it is what pulling a plug explains.
fn reason(error: &anyhow::Error) -> Result<String> {
    let errno = error.chain().find_map(|cause| {
        let system = cause.downcast_ref::<std::io::Error>().and_then(Errno::from_io_error);
        system.or_else(|| cause.downcast_ref::<Errno>().copied())
    });
    match errno {
        Some(errno) if GONE.contains(&errno) => Ok(errno.to_string()),
        // The device's folder was gone already when it was looked for.
        None => Ok(format!("{error:#}")),
        Some(_) => bail!("the device that was pulled says: {error:#}"),
    }
}
