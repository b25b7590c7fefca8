//! What a device costs that has nothing to say: how often the processes behind it wake up.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use guest_protocol::Request;

use crate::guest::{Attachment, Controller, Guest, Kind, Maker, Rig};
use crate::lab_run::{self, Bench, Options};
use crate::progress;
use crate::run_folder::RunFolder;

/// A guest goes on with small things after its start; Linux suspends idle hubs after two seconds.
const SETTLE: Duration = Duration::from_secs(6);
const WINDOW: Duration = Duration::from_secs(15);

/// Wakeups a second over those of the same guest without a USB controller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Extra {
    pub(crate) kind: Kind,
    /// Of QEMU and vm-usbd together; `None` for a kind we do not make.
    pub(crate) ours: Option<f64>,
    pub(crate) qemus: f64,
}

/// Boots a guest for each controller.
pub(crate) fn measure(bench: &Bench, options: Options) -> Result<Vec<Extra>> {
    let all = [
        (Kind::Ehci, Attachment::Tablet),
        (Kind::Ohci, Attachment::Keyboard),
        (Kind::Xhci, Attachment::Tablet),
    ];
    let bar = progress::steps("idle guests", 6);
    let once = |rig: Rig| {
        let wakeups = wakeups(bench, options, rig);
        bar.inc(1);
        wakeups
    };
    let nothing = once(Rig { controllers: vec![] })?;
    let mut found = Vec::new();
    for (kind, device) in all {
        let one = |maker| {
            let controller = Controller::new("idle", kind, maker, 4, vec![device.clone()]);
            once(Rig { controllers: vec![controller] }).map(|wakeups| wakeups - nothing)
        };
        let ours = (kind != Kind::Xhci).then(|| one(Maker::Ours)).transpose()?;
        found.push(Extra { kind, ours, qemus: one(Maker::Qemu)? });
    }
    bar.finish_and_clear();
    Ok(found)
}

/// Wakeups a second of QEMU and our server, with every input device opened.
fn wakeups(bench: &Bench, options: Options, rig: Rig) -> Result<f64> {
    lab_run::with_logs(RunFolder::new()?, |run| {
        let xhci = rig.controllers.iter().any(|controller| controller.kind == Kind::Xhci);
        let has_input = rig.input_devices() > 0;
        let guest = bench.linux(options, rig, run, false)?.start()?;
        lab_run::through(guest, |guest| {
            if xhci {
                let load = vec!["xhci-pci".to_owned()];
                guest.call(&Request::Modules { unload: vec![], load })?;
            }
            guest.inventory()?;
            if has_input {
                guest.call(&Request::OpenInput)?;
            }
            sleep(SETTLE);
            let before = switches(guest)?;
            sleep(WINDOW);
            let after = switches(guest)?;
            Ok(after.saturating_sub(before) as f64 / WINDOW.as_secs_f64())
        })
    })
}

/// How often threads of QEMU and our server have waited for something, so far.
fn switches(guest: &Guest) -> Result<u64> {
    let server = guest.server().map(|server| server.process());
    let mut sum = 0;
    for process in [Some(guest.process()), server].into_iter().flatten() {
        let folder = format!("/proc/{process}/task");
        for thread in fs::read_dir(&folder).with_context(|| folder.clone())? {
            // A thread may end between the listing and the look at it.
            let status = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
            sum += voluntary(&status).unwrap_or(0);
        }
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
}
