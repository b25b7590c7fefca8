//! `cargo xtask usbtest`: the kernel's own test of host controllers, on ours, against our source and sink.

use anyhow::{Result, bail};
use guest_protocol::{Reply, Request, TestPattern, UsbTest, UsbTestOutcome};

use crate::guest::{Attachment, Guest, Kind, Loopback, Maker, Rig, Wiring};
use crate::lab_run::{self, Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::Lab;
use crate::tally::Tally;

/// Alternate settings of the source and sink: bulk; bulk and isochronous; interrupt.
const BULK: u8 = 0;
const ISOCHRONOUS: u8 = 1;
const INTERRUPT: u8 = 2;

/// The isochronous pair behind a translator. Linux schedules no IN packet of more than 752 bytes there: its
/// complete-splits would go on into the next frame.
const TRANSLATED: (u16, u8, u8) = (752, 1, 4);

/// A case of `usbtest`: where it runs and with what.
struct Case {
    name: &'static str,
    alternate: u8,
    test: UsbTest,
}

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    pub(crate) kind: Kind,
    pub(crate) wiring: Wiring,
    pub(crate) iterations: u32,
    pub(crate) pattern: TestPattern,
    /// Case numbers; all when there are none.
    pub(crate) only: Vec<u32>,
}

/// Boots one guest and runs the cases in it.
pub(crate) fn run(options: Options, selection: &Selection) -> Result<Tally> {
    in_guest(&Bench::build(Lab::set_up()?, &[Maker::Ours])?, options, selection)
}

/// The same with what is built already.
pub(crate) fn in_guest(bench: &Bench, options: Options, selection: &Selection) -> Result<Tally> {
    lab_run::with_logs(RunFolder::new()?, |run| boot(bench, options, selection, run))
}

fn boot(bench: &Bench, options: Options, selection: &Selection, run: &RunFolder) -> Result<Tally> {
    let isochronous = (selection.wiring == Wiring::Translator).then_some(TRANSLATED);
    let device = Loopback { isochronous, ..Loopback::plain(selection.pattern) };
    let rig = Rig::single(selection.kind, Attachment::Loopback(device)).wired(selection.wiring);
    let controller = rig.controllers[0].address();
    let speed = rig.controllers[0].device_speed();
    let guest = bench.linux(options, rig, run, false)?.start()?;
    println!(
        "\nusbtest on our {} ({:?}), the device at {speed} Mbit/s, Linux {}",
        selection.kind.name().to_uppercase(),
        selection.wiring,
        guest.kernel()
    );
    let mut tally = Tally::default();
    lab_run::through(guest, |guest| {
        let mut selected = None;
        for case in cases(selection) {
            if selected != Some(case.alternate) {
                let (controller, alternate) = (controller.clone(), case.alternate);
                let pattern = selection.pattern;
                guest.call(&Request::SelectUsbTest { controller, alternate, pattern })?;
                selected = Some(case.alternate);
            }
            let name =
                format!("case {:2} {}, {} times", case.test.case, case.name, case.test.iterations);
            if !tally.check(&name, || once(guest, &controller, &case)) {
                println!("        {}", guest.console.tail(4).replace('\n', "\n        "));
            }
        }
        Ok(())
    })?;
    Ok(tally)
}

fn once(guest: &mut Guest, controller: &str, case: &Case) -> Result<String> {
    let request = Request::UsbTest { controller: controller.to_owned(), test: case.test };
    match guest.call(&request)? {
        Reply::UsbTest(UsbTestOutcome::Passed { microseconds }) => {
            let mut seen = format!("{:.3} s in the driver", microseconds as f64 / 1e6);
            // The driver lets isochronous cases pass with up to a tenth of their packets lost.
            if let Some(lost) = lost_packets(&guest.console.tail(4), case.test.case) {
                seen.push_str(&format!(", BUT {lost}"));
            }
            Ok(seen)
        }
        Reply::UsbTest(UsbTestOutcome::DoesNotApply) => {
            bail!("the driver says that the device does not suit the case")
        }
        other => bail!("a test was asked for and {other:?} came"),
    }
}

/// What the driver has to say of lost packets in the case that ran last: `2 errors out of 1280`.
fn lost_packets(console: &str, case: u32) -> Option<String> {
    let (_, own) = console.rsplit_once(&format!("TEST {case}: "))?;
    let (_, lost) = own.split_once("during the test, ")?;
    Some(lost.lines().next()?.trim().to_owned())
}

/// The cases in an order that changes the alternate setting seldom.
fn cases(selection: &Selection) -> Vec<Case> {
    let mut list = all(selection);
    let wanted =
        |case: &Case| selection.only.is_empty() || selection.only.contains(&case.test.case);
    list.retain(wanted);
    list.sort_by_key(|case| (case.alternate, case.test.case));
    list
}

/// Every case with its parameters. A source sends whole packets, so lengths of reads are multiples of one.
fn all(selection: &Selection) -> Vec<Case> {
    let many = selection.iterations;
    // Cases whose every iteration is dozens of control transfers.
    let few = many.div_ceil(10);
    // Isochronous packets take real time: at full speed there is one in 8 ms.
    let slow = many.div_ceil(50);
    let is_fast = selection.kind == Kind::Ehci && selection.wiring != Wiring::Translator;
    let packet = if is_fast { 512 } else { 64 };
    // A write of any length suits zeroes; a pattern that starts anew with each packet wants whole ones. So does the
    // kernel in all but the last piece of a list.
    let odd = match selection.pattern {
        TestPattern::Zero => 421,
        TestPattern::Mod63 => packet,
    };
    let iso = match selection.wiring {
        _ if is_fast => 32 * 1024,
        // All eight requests lie in Linux's frame list at the same time, which has 512 frames for EHCI.
        Wiring::Translator => 4 * u32::from(TRANSLATED.0),
        _ => 8 * 1023,
    };
    let case = |case, name, alternate, iterations, [length, vary, sglen]: [u32; 3]| Case {
        name,
        alternate,
        test: UsbTest { case, iterations, length, vary, sglen },
    };
    let mut list = vec![
        case(0, "nothing", BULK, many, [0, 0, 0]),
        case(1, "bulk write", BULK, many, [4096, 0, 0]),
        case(2, "bulk read", BULK, many, [4096, 0, 0]),
        case(3, "bulk write, lengths vary", BULK, many, [4096, odd, 0]),
        case(4, "bulk read, lengths vary", BULK, many, [4096, packet, 0]),
        case(5, "bulk write, lists", BULK, many, [1024, 0, 32]),
        case(6, "bulk read, lists", BULK, many, [1024, 0, 32]),
        case(7, "bulk write, lists of varied lengths", BULK, many, [1024, packet, 32]),
        case(8, "bulk read, lists of varied lengths", BULK, many, [1024, packet, 32]),
        case(9, "chapter 9", BULK, few, [0, 0, 0]),
        case(10, "queued control transfers with errors", BULK, few, [0, 0, 32]),
        case(11, "unlink reads", BULK, many, [1024, 0, 0]),
        case(12, "unlink writes", BULK, many, [1024, 0, 0]),
        case(13, "halt and clear", BULK, few, [0, 0, 0]),
        case(14, "control write and read back", BULK, many, [1024, 1, 0]),
        case(15, "isochronous write", ISOCHRONOUS, slow, [iso, 0, 8]),
        case(16, "isochronous read", ISOCHRONOUS, slow, [iso, 0, 8]),
        case(17, "bulk write at odd addresses", BULK, many, [4096, 0, 0]),
        case(18, "bulk read at odd addresses", BULK, many, [4096, 0, 0]),
        case(19, "bulk write at odd addresses, mapped before", BULK, many, [4096, 0, 0]),
        case(20, "bulk read at odd addresses, mapped before", BULK, many, [4096, 0, 0]),
        case(21, "control write at odd addresses", BULK, many, [1024, 1, 0]),
        case(22, "isochronous write at odd addresses", ISOCHRONOUS, slow, [iso, 0, 8]),
        case(23, "isochronous read at odd addresses", ISOCHRONOUS, slow, [iso, 0, 8]),
        case(24, "unlink from a queue of writes", BULK, many, [1024, 0, 32]),
        case(25, "interrupt write", INTERRUPT, many, [64, 0, 0]),
        case(26, "interrupt read", INTERRUPT, many, [64, 0, 0]),
        case(29, "clear the toggle between writes", BULK, many, [0, 0, 0]),
    ];
    // The driver runs these with zeroes only.
    if selection.pattern == TestPattern::Zero {
        list.push(case(27, "bulk write, queued", BULK, many, [4096, 0, 8]));
        list.push(case(28, "bulk read, queued", BULK, many, [4096, 0, 8]));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(kind: Kind, pattern: TestPattern) -> Selection {
        let wiring = Wiring::Direct;
        Selection { kind, wiring, iterations: 1000, pattern, only: Vec::new() }
    }

    #[test]
    fn every_case_runs_once() {
        let mut numbers: Vec<_> = cases(&selection(Kind::Ohci, TestPattern::Zero))
            .iter()
            .map(|case| case.test.case)
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..30).collect::<Vec<_>>());
        assert_eq!(cases(&selection(Kind::Ehci, TestPattern::Mod63)).len(), 28);
    }

    #[test]
    fn the_unlink_and_bulk_cases_run_as_often_as_was_asked_for() {
        for case in cases(&selection(Kind::Ehci, TestPattern::Zero)) {
            let wanted = match case.test.case {
                9 | 10 | 13 => 100,
                15 | 16 | 22 | 23 => 20,
                _ => 1000,
            };
            assert_eq!(case.test.iterations, wanted);
        }
    }

    #[test]
    fn lost_packets_are_those_of_the_last_case() {
        let before = "usbtest 1-1:3.0: TEST 15:  write 20 iso\nusbtest 1-1:3.0: during the test, 3 errors out of 1280\n";
        assert_eq!(lost_packets(before, 15).as_deref(), Some("3 errors out of 1280"));
        let after =
            format!("{before}usbtest 1-1:3.0: TEST 16:  read 20 iso\nusbtest: total 1 msec");
        assert_eq!(lost_packets(&after, 16), None);
    }

    #[test]
    fn cases_can_be_chosen() {
        let only = Selection { only: vec![24, 11], ..selection(Kind::Ohci, TestPattern::Zero) };
        let numbers: Vec<_> = cases(&only).iter().map(|case| case.test.case).collect();
        assert_eq!(numbers, [11, 24]);
    }
}
