//! What a device costs that has nothing to say: how often the processes behind it wake up.
//!
//! All controllers are in one guest and take turns, as for the transfers: one at a time has its driver, then none has
//! one. So what the guest and QEMU do for reasons of their own is the same on both sides of each difference.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use guest_protocol::Request;

use super::median;
use crate::guest::{Attachment, Controller, Guest, Kind, Maker, Rig};
use crate::lab_run::{self, Bench, Options};
use crate::progress;
use crate::run_folder::RunFolder;

/// Turns of each controller, each with a look at the guest without any.
const ROUNDS: usize = 3;
/// A driver goes on with small things after its start; Linux suspends idle hubs after two seconds.
const SETTLE: Duration = Duration::from_secs(3);
/// Windows of a turn, of which the median counts: the guest has an errand of its own now and then.
const WINDOWS: usize = 3;
const WINDOW: Duration = Duration::from_secs(2);

/// An EHCI that Linux does not know. It looks after the transfers of a controller ten times a second unless its vendor is
/// known to report all of them.
const UNKNOWN: &str = "1af4:10f1";

/// What the guest does with the device meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A program has it open and waits for input.
    Open,
    /// The same, behind a controller with a PCI id that Linux does not know.
    OpenUnknown,
    /// Nobody has, and Linux may suspend it, its bus and its root hub: it has.
    Suspended,
}

/// Wakeups a second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wakeups {
    /// Of QEMU and vm-usbd together.
    all: f64,
    /// Of vm-usbd alone.
    server: f64,
}

/// Wakeups a second over those of the same guest while no USB controller has a driver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Extra {
    pub(crate) kind: Kind,
    pub(crate) maker: Maker,
    pub(crate) used: Use,
    /// Of QEMU and vm-usbd together.
    pub(crate) all: f64,
    /// Of vm-usbd alone.
    pub(crate) server: f64,
}

/// Boots a guest with all controllers and lets them take turns.
pub(crate) fn measure(bench: &Bench, options: Options) -> Result<Vec<Extra>> {
    let all = [
        ("idle-ours-ehci", Kind::Ehci, Maker::Ours, 4, Attachment::Tablet),
        ("idle-ours-unknown", Kind::Ehci, Maker::Ours, 9, Attachment::Tablet),
        ("idle-qemu-ehci", Kind::Ehci, Maker::Qemu, 5, Attachment::Tablet),
        ("idle-ours-ohci", Kind::Ohci, Maker::Ours, 6, Attachment::Keyboard),
        ("idle-qemu-ohci", Kind::Ohci, Maker::Qemu, 7, Attachment::Keyboard),
        ("idle-qemu-xhci", Kind::Xhci, Maker::Qemu, 8, Attachment::Tablet),
    ];
    let mut controllers = all.map(|(id, kind, maker, slot, device)| {
        Controller::new(id, kind, maker, slot, vec![device])
    });
    controllers[1].pci_id = Some(UNKNOWN);
    let rig = Rig { controllers: controllers.into() };
    lab_run::with_logs(RunFolder::new()?, |run| {
        let guest = bench.linux(options, rig.clone(), run, false)?.start()?;
        lab_run::through(guest, |guest| take_turns(guest, &rig))
    })
}

fn take_turns(guest: &mut Guest, rig: &Rig) -> Result<Vec<Extra>> {
    guest.call(&Request::Modules { unload: vec![], load: vec!["xhci-pci".to_owned()] })?;
    guest.inventory()?;
    for controller in &rig.controllers {
        guest.call(&Request::Unbind { controller: controller.address() })?;
    }
    let mut readings = Vec::new();
    let bar = progress::steps("idle controllers", (ROUNDS * rig.controllers.len()) as u64);
    for _ in 0..ROUNDS {
        let nothing = wakeups(guest)?;
        for controller in &rig.controllers {
            let address = controller.address();
            guest.call(&Request::Bind { controller: address.clone() })?;
            guest.call(&Request::Inventory { disks: 0, input_devices: 1 })?;
            guest.call(&Request::OpenInput)?;
            let mut look = |guest: &mut Guest, used| -> Result<()> {
                let now = wakeups(guest)?;
                let (all, server) = (now.all - nothing.all, now.server - nothing.server);
                let (kind, maker) = (controller.kind, controller.maker);
                readings.push(Extra { kind, maker, used, all, server });
                Ok(())
            };
            look(guest, if controller.pci_id.is_some() { Use::OpenUnknown } else { Use::Open })?;
            if controller.kind == Kind::Ohci {
                guest.call(&Request::SuspendInput { controller: address.clone() })?;
                look(guest, Use::Suspended)?;
            }
            guest.call(&Request::Unbind { controller: address })?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(medians(&readings))
}

/// One for each controller and use, in the order of their first reading.
fn medians(readings: &[Extra]) -> Vec<Extra> {
    let mut found: Vec<Extra> = Vec::new();
    for reading in readings {
        let is_like = |other: &Extra| {
            (other.kind, other.maker, other.used) == (reading.kind, reading.maker, reading.used)
        };
        if !found.iter().any(is_like) {
            let like = || readings.iter().filter(|other| is_like(other));
            let all = median(like().map(|one| one.all));
            let server = median(like().map(|one| one.server));
            found.push(Extra { all, server, ..*reading });
        }
    }
    found
}

/// The median of some windows, once the guest has settled.
fn wakeups(guest: &Guest) -> Result<Wakeups> {
    sleep(SETTLE);
    let mut windows = Vec::new();
    for _ in 0..WINDOWS {
        let before = switches(guest)?;
        sleep(WINDOW);
        let after = switches(guest)?;
        windows.push(
            [0, 1].map(|of| after[of].saturating_sub(before[of]) as f64 / WINDOW.as_secs_f64()),
        );
    }
    let [qemu, server] = [0, 1].map(|of| median(windows.iter().map(|window| window[of])));
    Ok(Wakeups { all: qemu + server, server })
}

/// How often threads of QEMU, and of our server, have waited for something so far.
fn switches(guest: &Guest) -> Result<[u64; 2]> {
    let server = guest.server().map_or(Ok(0), |server| waits_of(server.process()))?;
    Ok([waits_of(guest.process())?, server])
}

fn waits_of(process: u32) -> Result<u64> {
    let folder = format!("/proc/{process}/task");
    let mut sum = 0;
    for thread in fs::read_dir(&folder).with_context(|| folder.clone())? {
        // A thread may end between the listing and the look at it.
        let status = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        sum += voluntary(&status).unwrap_or(0);
    }
    Ok(sum)
}

fn voluntary(status: &str) -> Option<u64> {
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waits_that_the_thread_chose_count() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(voluntary(status), Some(150));
        assert_eq!(voluntary(""), None);
    }

    #[test]
    fn each_controller_has_a_median_for_each_use() {
        let ours =
            Extra { kind: Kind::Ohci, maker: Maker::Ours, used: Use::Open, all: 3.0, server: 2.0 };
        let qemus = Extra { maker: Maker::Qemu, all: 900.0, server: 0.0, ..ours };
        let asleep = Extra { used: Use::Suspended, all: 0.0, server: 0.0, ..ours };
        let spoilt = Extra { all: -200.0, server: 9.0, ..ours };
        let readings = [ours, qemus, asleep, spoilt, qemus, asleep, ours, qemus, asleep];
        assert_eq!(medians(&readings), [ours, qemus, asleep]);
    }
}
