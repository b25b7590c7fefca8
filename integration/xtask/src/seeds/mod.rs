//! `cargo xtask seeds`: fuzz inputs from what real guests do with our controllers.
//!
//! Each guest works with one kind of device behind one controller, so that its tape from power-on to the work is short.
//! The tape is a seed of `ehci_mmio` or `ohci_mmio` as it is; what QEMU said to the server is one of `vfio_user`.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use guest_protocol::{Reply, Request, TestPattern, UsbTest, UsbTestOutcome, WritePlan};

use crate::acceptance::boot_sector;
use crate::guest::{
    self, Attachment, Controller, Disk, Guest, Kind, Loopback, Maker, Rig, Transport, Wiring,
};
use crate::images::Image;
use crate::lab_run::{self, Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::Lab;
use crate::tally::Tally;
use crate::workspace;

/// Most of a tape that becomes a seed, in KiB: what comes later is more of the same.
const TAPE_KIBIBYTES: u32 = 28;
/// The disks of the replay have as many bytes (`fuzz/src/tape.rs`).
const DISK_MEBIBYTES: usize = 1;
/// Linux suspends a root hub without devices after two seconds.
const SUSPENDED: Duration = Duration::from_secs(4);
/// Firmware under TCG takes a second or two.
const FIRMWARE: Duration = Duration::from_secs(30);

/// What is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Story {
    /// A disk is found, read and written to, over bulk-only.
    Disk,
    /// The same over UAS.
    Uas,
    /// The drivers of a controller with a disk are unloaded and loaded.
    Reload,
    /// A keyboard behind a hub is found, and a key pressed.
    Keyboard,
    /// A printer is asked for its status.
    Printer,
    /// Bulk transfers, some of them taken back.
    Bulk,
    /// Isochronous transfers.
    Isochronous,
    /// Interrupt transfers.
    Interrupt,
    /// The same three through a translator.
    Split,
    /// A controller without devices is suspended.
    Idle,
    /// Firmware boots from a disk.
    Firmware,
}

impl Story {
    const ALL: [Self; 11] = [
        Self::Disk,
        Self::Uas,
        Self::Reload,
        Self::Keyboard,
        Self::Printer,
        Self::Bulk,
        Self::Isochronous,
        Self::Interrupt,
        Self::Split,
        Self::Idle,
        Self::Firmware,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Disk => "linux_disk",
            Self::Uas => "linux_disk_over_uas",
            Self::Reload => "linux_reload",
            Self::Keyboard => "linux_keyboard_behind_hub",
            Self::Printer => "linux_printer",
            Self::Bulk => "linux_bulk_and_unlink",
            Self::Isochronous => "linux_isochronous",
            Self::Interrupt => "linux_interrupt",
            Self::Split => "linux_split_transactions",
            Self::Idle => "linux_suspend",
            Self::Firmware => "seabios_boot",
        }
    }

    fn is_possible(self, kind: Kind) -> bool {
        self != Self::Split || kind == Kind::Ehci
    }

    /// Whether what QEMU says becomes a seed, too. It says the same before and around all of them.
    fn has_messages(self) -> bool {
        matches!(self, Self::Disk | Self::Firmware)
    }

    fn device(self, image: &Path, paper: &Path) -> Option<Attachment> {
        match self {
            Self::Disk | Self::Uas | Self::Reload | Self::Firmware => {
                let transport = match self {
                    Self::Uas => Transport::Uas,
                    _ => Transport::BulkOnly,
                };
                Some(Attachment::Disk(Disk { image: image.to_owned(), transport }))
            }
            Self::Keyboard => Some(Attachment::Keyboard),
            Self::Printer => Some(Attachment::Printer(paper.to_owned())),
            Self::Bulk | Self::Isochronous | Self::Interrupt => {
                Some(Attachment::Loopback(Loopback::plain(TestPattern::Zero)))
            }
            Self::Split => {
                let isochronous = Some((752, 1, 4));
                let plain = Loopback::plain(TestPattern::Zero);
                Some(Attachment::Loopback(Loopback { isochronous, ..plain }))
            }
            Self::Idle => None,
        }
    }

    fn wiring(self) -> Wiring {
        match self {
            Self::Keyboard => Wiring::Hub,
            Self::Split => Wiring::Translator,
            _ => Wiring::Direct,
        }
    }

    /// Cases of `usbtest`: alternate setting, number, bytes, by how much they vary, how many at once.
    fn cases(self) -> &'static [(u8, [u32; 4])] {
        match self {
            Self::Bulk => &[
                (0, [1, 1024, 0, 0]),
                (0, [2, 1024, 0, 0]),
                (0, [6, 512, 0, 2]),
                (0, [11, 1024, 0, 0]),
                (0, [12, 1024, 0, 0]),
                (0, [24, 512, 0, 4]),
                (0, [13, 0, 0, 0]),
            ],
            Self::Isochronous => &[(1, [15, 8184, 0, 8]), (1, [16, 8184, 0, 8])],
            Self::Interrupt => &[(2, [25, 64, 0, 0]), (2, [26, 64, 0, 0])],
            Self::Split => &[
                (0, [1, 128, 0, 0]),
                (0, [2, 128, 0, 0]),
                (2, [26, 64, 0, 0]),
                (1, [15, 752, 0, 1]),
                (1, [16, 752, 0, 1]),
            ],
            _ => &[],
        }
    }

    /// Has the guest do it.
    fn tell(self, guest: &mut Guest, controller: &str) -> Result<()> {
        let controller = || controller.to_owned();
        match self {
            Self::Disk | Self::Uas => {
                guest.inventory()?;
                let (count, seed) = (2, 1);
                guest.call(&Request::RandomRead { controller: controller(), count, seed })?;
                let disk_bytes = (DISK_MEBIBYTES as u64) << 20;
                let plan = WritePlan { seed, disk_bytes, large: 0, small: 1 };
                guest.call(&Request::Write { controller: controller(), plan })?;
            }
            Self::Reload => {
                guest.inventory()?;
                guest.call(&Request::Reload { times: 1 })?;
            }
            Self::Keyboard => {
                guest.inventory()?;
                guest.tap("v")?;
            }
            Self::Printer => {
                guest.call(&Request::PollPrinter { controller: controller(), rounds: 3 })?;
            }
            Self::Idle => sleep(SUSPENDED),
            Self::Firmware | Self::Bulk | Self::Isochronous | Self::Interrupt | Self::Split => {}
        }
        for &(alternate, [case, length, vary, sglen]) in self.cases() {
            let pattern = TestPattern::Zero;
            guest.call(&Request::SelectUsbTest { controller: controller(), alternate, pattern })?;
            let test = UsbTest { case, iterations: 1, length, vary, sglen };
            match guest.call(&Request::UsbTest { controller: controller(), test })? {
                Reply::UsbTest(UsbTestOutcome::Passed { .. }) => {}
                other => bail!("usbtest's case {case} was to be recorded and {other:?} came"),
            }
        }
        Ok(())
    }
}

/// Records the stories whose names contain `only`, and puts the seeds into `fuzz/corpus`.
pub(crate) fn run(only: Option<&str>) -> Result<Tally> {
    let bench = Bench::build(Lab::set_up()?, &[Maker::Ours])?;
    let mut tally = Tally::default();
    for kind in [Kind::Ehci, Kind::Ohci] {
        for story in Story::ALL.into_iter().filter(|story| story.is_possible(kind)) {
            let name = format!("{} {}", kind.name(), story.name());
            if only.is_none_or(|only| name.contains(only)) {
                tally.check(&name, || {
                    lab_run::with_logs(RunFolder::new()?, |run| record(&bench, kind, story, run))
                });
            }
        }
    }
    Ok(tally)
}

fn record(bench: &Bench, kind: Kind, story: Story, run: &RunFolder) -> Result<String> {
    let (image, paper) = (run.path().join("disk.img"), run.path().join("paper"));
    let text = "this line comes from the disk's last sectors";
    if story == Story::Firmware {
        fs::write(&image, boot_sector::disk(DISK_MEBIBYTES << 20, text))?;
    } else {
        Image::create(image.clone(), 61, DISK_MEBIBYTES)?;
    }
    let devices = story.device(&image, &paper).into_iter().collect();
    let mut controller = Controller::new("recorded", kind, Maker::Ours, 4, devices);
    controller.tape_kibibytes = Some(TAPE_KIBIBYTES);
    let address = controller.address();
    let rig = Rig { controllers: vec![controller] }.wired(story.wiring());
    if story == Story::Firmware {
        let guest = bench.disks(rig, run).start()?;
        guest.console.wait_for(text, FIRMWARE).context("the disk's program said nothing")?;
        guest.end()?;
    } else {
        let guest = bench.linux(Options::default(), rig, run, false)?.start()?;
        lab_run::through(guest, |guest| story.tell(guest, &address))?;
    }
    let tape = fs::read(guest::tape(run.path(), "recorded")).context("the tape")?;
    let target = match kind {
        Kind::Ohci => "ohci_mmio",
        _ => "ehci_mmio",
    };
    fs::write(seed(target, story.name()), &tape)?;
    let mut said = format!("{} bytes", tape.len());
    if story.has_messages() {
        let mut messages = fs::read(guest::recording(run.path(), "recorded"))?;
        // The target's first byte says which controller.
        messages[0] = (kind == Kind::Ehci).into();
        let name = format!("{}_{}", kind.name(), story.name());
        fs::write(seed("vfio_user", &name), &messages)?;
        said.push_str(&format!(", {} bytes of messages", messages.len()));
    }
    Ok(said)
}

fn seed(target: &str, name: &str) -> PathBuf {
    workspace::root().join("fuzz/corpus").join(target).join(name)
}
