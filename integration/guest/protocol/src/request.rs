//! The requests, and what answers each.

use serde::{Deserialize, Serialize};

use crate::{
    InputEvent, Inventory, Latencies, Page, PciAddress, Placement, Pluggable, Pulled, Reloaded,
    Stream, Streamed, TestPattern, Throughput, Traffic, UsbTest, UsbTestOutcome, WritePlan,
};

/// The agent's first line: it runs, and the guest's modules are loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The guest's kernel, as `uname -r` prints it.
    pub kernel: String,
}

/// What the host can ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Wait until `disks` disks and `input_devices` input devices behind USB controllers are there, then list what
    /// the guest sees.
    Inventory {
        /// How many disks.
        disks: usize,
        /// How many input devices.
        input_devices: usize,
    },
    /// The SHA-256 of the whole disk behind a controller.
    Sha256 {
        /// Which one.
        controller: PciAddress,
    },
    /// Carry out a plan of writes on the disk behind a controller, past the page cache.
    Write {
        /// Which one.
        controller: PciAddress,
        /// What to write.
        plan: WritePlan,
    },
    /// Read or write `mebibytes` MiB in blocks of 1 MiB from the disk's start, past the page cache.
    Sequential {
        /// Which one.
        controller: PciAddress,
        /// Whether to read or to write.
        direction: Direction,
        /// How much.
        mebibytes: u64,
        /// How many requests at the same time.
        at_once: usize,
    },
    /// Read `count` blocks of 4 KiB at offsets drawn from `seed`, one at a time, past the page cache.
    RandomRead {
        /// Which one.
        controller: PciAddress,
        /// How many blocks.
        count: usize,
        /// Fixes the offsets.
        seed: u64,
    },
    /// Make an ext4 file system, copy files to it, unmount, mount, compare, unmount, check.
    Filesystem {
        /// Which one.
        controller: PciAddress,
    },
    /// Open every input device; events are kept from here on.
    OpenInput,
    /// Wait until `at_least` events (without SYN reports) have come or `milliseconds` have passed; hand over all.
    ReadInput {
        /// How many events are enough.
        at_least: usize,
        /// The longest wait.
        milliseconds: u64,
    },
    /// Close every input device, let the kernel suspend those behind a controller, and wait until it has suspended
    /// them and the root hub.
    SuspendInput {
        /// Which one.
        controller: PciAddress,
    },
    /// Unload the controllers' and the devices' drivers and load them again, this often; every device must be back
    /// and every disk must read the same each time.
    Reload {
        /// How often.
        times: usize,
    },
    /// Unload these modules in this order, then load those; devices may come and go.
    Modules {
        /// First these go, those that are not loaded aside.
        unload: Vec<String>,
        /// Then these come.
        load: Vec<String>,
    },
    /// Take the controller's driver away from it, so that it stands still.
    Unbind {
        /// Which one.
        controller: PciAddress,
    },
    /// Give the controller its driver again; what is behind it comes in its own time.
    Bind {
        /// Which one.
        controller: PciAddress,
    },
    /// Ask the printer behind a controller for its status this often: a question and its answer of 6 bytes each.
    PollPrinter {
        /// Which one.
        controller: PciAddress,
        /// How often.
        rounds: usize,
    },
    /// Print a page on the printer behind a controller.
    Print {
        /// Which one.
        controller: PciAddress,
        /// What to print.
        page: Page,
    },
    /// Bind the `usbtest` driver to the source and sink behind a controller.
    SelectUsbTest {
        /// Which one.
        controller: PciAddress,
        /// The alternate setting whose endpoints are to be used.
        alternate: u8,
        /// What its data is to be.
        pattern: TestPattern,
    },
    /// Run a case of `usbtest` on the source and sink behind a controller.
    UsbTest {
        /// Which one.
        controller: PciAddress,
        /// The case.
        test: UsbTest,
    },
    /// Wait until the device behind a controller is there, and get ready to work with it.
    AwaitPlugged {
        /// Which one.
        controller: PciAddress,
        /// What it is.
        device: Pluggable,
    },
    /// Work with that device until an event has come so often. What came meanwhile is handed over when it is pulled.
    WorkUntilSeen {
        /// The event; its device is not compared.
        event: InputEvent,
        /// How often.
        times: usize,
    },
    /// Work with that device until it is pulled out and the kernel has let go of it.
    WorkUntilPulled,
    /// Stream to and from the source and sink behind a controller.
    Stream {
        /// Which one.
        controller: PciAddress,
        /// What to do.
        stream: Stream,
    },
    /// Carry out a plan of writes on the disk behind a controller past the page cache, read its first MiB into the same
    /// buffer, and say where in guest memory that is.
    Placement {
        /// Which one.
        controller: PciAddress,
        /// What to write before.
        plan: WritePlan,
    },
    /// End the guest.
    PowerOff,
}

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// A [`Request`]'s result; the failure is one line for a person.
pub type Answer = Result<Reply, String>;

/// What a request that succeeded brings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Nothing but success.
    Done,
    /// To [`Request::Inventory`].
    Inventory(Inventory),
    /// To [`Request::Sha256`], in lower-case hexadecimal.
    Sha256(String),
    /// To [`Request::Write`] and [`Request::Sequential`].
    Throughput(Throughput),
    /// To [`Request::RandomRead`], to [`Request::PollPrinter`] by rounds, to [`Request::Print`] by chunks.
    Latencies(Latencies),
    /// To [`Request::Filesystem`].
    Traffic(Traffic),
    /// To [`Request::ReadInput`].
    Input(Vec<InputEvent>),
    /// To [`Request::Reload`].
    Reloaded(Reloaded),
    /// To [`Request::UsbTest`].
    UsbTest(UsbTestOutcome),
    /// To [`Request::WorkUntilPulled`].
    Pulled(Pulled),
    /// To [`Request::Placement`].
    Placement(Placement),
    /// To [`Request::Stream`], by endpoints.
    Streamed(Vec<Streamed>),
}
