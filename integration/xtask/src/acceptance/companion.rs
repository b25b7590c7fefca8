//! A port that EHCI shares with its companion belongs to the one or the other, by the device and by the drivers loaded.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use guest_protocol::{Inventory, Reply, Request};

use super::{boots, data};
use crate::guest::{Attachment, Controller, Guest, Kind, Maker, Rig, Transport};
use crate::images::Image;
use crate::lab_run::{Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::Kernel;
use crate::tally::Tally;

/// Enumeration takes a second; this is for a busy host.
const PATIENCE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(200);
const EHCI: &str = "ehci-pci";
const OHCI: &str = "ohci-pci";

/// What is done with the drivers, and whether EHCI has one afterwards.
struct Step {
    name: &'static str,
    unload: &'static [&'static str],
    load: &'static [&'static str],
    has_ehci: bool,
}

const STEPS: [Step; 4] = [
    Step { name: "EHCI's driver is loaded first", unload: &[], load: &[], has_ehci: true },
    Step { name: "EHCI's driver is unloaded", unload: &[EHCI], load: &[], has_ehci: false },
    Step { name: "EHCI's driver is loaded last", unload: &[], load: &[EHCI], has_ehci: true },
    Step {
        name: "both are unloaded and loaded, EHCI's first",
        unload: &[EHCI, OHCI],
        load: &[EHCI, OHCI],
        has_ehci: true,
    },
];

/// A disk that can do high speed and a keyboard that cannot, both in ports that the two controllers share.
fn rig(image: &Image) -> Rig {
    let disk = Attachment::disk(Maker::Ours, image.path.clone());
    let ehci = Controller::new("e0", Kind::Ehci, Maker::Ours, 4, vec![disk]);
    let mut ohci = Controller::new("o0", Kind::Ohci, Maker::Ours, 4, vec![Attachment::Keyboard]);
    ohci.companion_of = Some(ehci.id);
    Rig { controllers: vec![ehci, ohci] }
}

/// Boots once and goes through the steps.
pub(crate) fn run(bench: &Bench, kernel: Kernel, tally: &mut Tally) -> Result<()> {
    let run = RunFolder::new()?;
    let failed_before = tally.failed;
    let image = run.image("disk.img", 51)?;
    let rig = rig(&image);
    let options = Options { kernel, ..Options::default() };
    if let Some(mut guest) = boots(bench, options, &rig, &run, tally) {
        for step in STEPS {
            tally.check(step.name, || go(&mut guest, &rig, &image, &step));
        }
        tally.check("the guest powers off and its kernel never complained", || {
            guest.end().map(|()| "the log is clean".to_owned())
        });
    }
    if tally.failed > failed_before {
        println!("        the guest's logs are in {}", run.keep_logs().display());
    }
    Ok(())
}

/// The disk is where the high speed is, else where the keyboard always is, and reads as its image does.
fn go(guest: &mut Guest, rig: &Rig, image: &Image, step: &Step) -> Result<String> {
    let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    guest.call(&Request::Modules { unload: list(step.unload), load: list(step.load) })?;
    let [ehci, ohci] = [0, 1].map(|at| rig.controllers[at].address());
    let disk = if step.has_ehci { (ehci, "480") } else { (ohci.clone(), "12") };
    let wanted = [(Transport::Uas.driver(), disk), ("usbhid", (ohci, "12"))];
    let start = Instant::now();
    loop {
        let inventory = inventory(guest)?;
        let found = |driver: &str| places(&inventory, driver);
        if wanted.iter().all(|(driver, place)| found(driver) == [place.clone()]) {
            let [(_, disk), (_, keyboard)] = &wanted;
            data::reads(guest, &disk.0, image)?;
            return Ok(format!(
                "the disk is at {} with {} Mbit/s, the keyboard at {} with {}",
                disk.0, disk.1, keyboard.0, keyboard.1
            ));
        }
        if start.elapsed() > PATIENCE {
            bail!("the guest has {:?} instead of {wanted:?}", inventory.devices);
        }
        sleep(INTERVAL);
    }
}

/// Controller and speed of each device that has this driver.
fn places<'a>(inventory: &'a Inventory, driver: &str) -> Vec<(String, &'a str)> {
    let has = |drivers: &[String]| drivers.iter().any(|one| one == driver);
    let devices = inventory.devices.iter().filter(|device| has(&device.drivers));
    devices.map(|device| (device.controller.clone(), device.speed.as_str())).collect()
}

/// What is there now, complete or not.
fn inventory(guest: &mut Guest) -> Result<Inventory> {
    match guest.call(&Request::Inventory { disks: 0, input_devices: 0 })? {
        Reply::Inventory(inventory) => Ok(inventory),
        other => bail!("an inventory was asked for and {other:?} came"),
    }
}
