//! `cargo xtask workloads`: the shapes of `docs/performance.md` in a stock guest, each with the mark it must reach.

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::{Direction, Reply, Request, Stream, StreamShape, Streamed, TestPattern};

use crate::bench::median;
use crate::boot::sequential;
use crate::guest::{Attachment, Controller, Disk, Guest, Kind, Loopback, Maker, Rig, Transport};
use crate::lab_run::{self, Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::Lab;
use crate::tally::Tally;

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) only: Option<String>,
    pub(crate) repeats: usize,
    /// A camera's time.
    pub(crate) seconds: u64,
}

/// Endpoints of the source and sink.
const BULK_IN: u8 = 0x81;
const ISOCHRONOUS_IN: u8 = 0x83;
const ISOCHRONOUS_OUT: u8 = 0x04;
/// Bytes of the largest packet there is at high speed.
const PACKET: u16 = 1024;

/// Bytes of a message: short of one qTD, as what a network adapter hands over.
const MESSAGE: u32 = 12_000;
/// Room of a request: what one qTD holds, and what takes two.
const ONE_QTD: usize = 20 << 10;
const TWO_QTDS: usize = 32 << 10;
const QUEUED: usize = 10;
const STREAM_MILLISECONDS: u64 = 2_000;
/// What comes in from a network, in Mbit/s: what real hardware takes with requests of one qTD, as it did when two were
/// found to halve it.
const ADAPTER: u32 = 200;
/// The same from a faster one: three reports a message, each a microframe after the last, leave room for 256 Mbit/s.
const FASTER: u32 = 300;
/// Hardware reaches about half with two qTDs.
const LEAST_RATIO: f64 = 0.9;

/// MiB read in one reading, and requests at a time.
const MEBIBYTES: u64 = 48;
const AT_ONCE: [usize; 2] = [1, 4];
const LEAST_GAIN: f64 = 1.8;

type Workload = fn(&Bench, Options, &Plan, &RunFolder, &mut Tally) -> Result<()>;

/// Boots a guest for each workload.
pub(crate) fn run(options: Options, plan: &Plan) -> Result<Tally> {
    let all: [(&str, Workload); 4] = [
        ("short transfers", short_transfers),
        ("prompt reports", prompt_reports),
        ("camera", camera),
        ("isochronous pair", isochronous_pair),
    ];
    let bench = Bench::build(Lab::set_up()?, &[Maker::Ours])?;
    let mut tally = Tally::default();
    for (name, workload) in all {
        if plan.only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            println!("\n{name}");
            lab_run::with_logs(RunFolder::new()?, |run| {
                workload(&bench, options, plan, run, &mut tally)
            })?;
        }
    }
    Ok(tally)
}

/// A driver that points Alternate Next at a halting dummy must not lose its rate when a transfer ends in the first of
/// its two qTDs: that of a network adapter, whose messages come from outside. What sources give that have more is said
/// besides, with nothing to hold it against: what a stall costs is then all there is.
fn short_transfers(
    bench: &Bench,
    options: Options,
    plan: &Plan,
    run: &RunFolder,
    tally: &mut Tally,
) -> Result<()> {
    let sources = [
        ("adapter", Some(ADAPTER), Some(LEAST_RATIO)),
        ("faster", Some(FASTER), None),
        ("no-pace", None, None),
    ];
    let controllers = sources.iter().zip(4..).map(|(&(id, pace, _), slot)| {
        let plain = Loopback::plain(TestPattern::Zero);
        let device = Attachment::Loopback(Loopback { message: Some(MESSAGE), pace, ..plain });
        Controller::new(id, Kind::Ehci, Maker::Ours, slot, vec![device])
    });
    let rig = Rig { controllers: controllers.collect() };
    let guest = bench.linux(options, rig.clone(), run, false)?.start()?;
    lab_run::through(guest, |guest| {
        let mut rates = vec![[vec![], vec![]]; rig.controllers.len()];
        for _ in 0..plan.repeats {
            for (controller, rates) in rig.controllers.iter().zip(&mut rates) {
                for (rates, bytes) in rates.iter_mut().zip([ONE_QTD, TWO_QTDS]) {
                    rates.push(messages(guest, &controller.address(), bytes)?);
                }
            }
        }
        for ((_, pace, mark), rates) in sources.into_iter().zip(rates) {
            let [one, two] = rates.map(|rates| median(rates.into_iter()));
            let seen = format!(
                "{two:.1} MB/s with requests of 32 KiB, {one:.1} MB/s with 20 KiB: {:.2} of it",
                two / one
            );
            let source = pace.map_or("a source that never waits".to_owned(), |pace| {
                format!("an adapter's {pace} Mbit/s")
            });
            let Some(mark) = mark else {
                println!("        {source}, no mark: {seen}");
                continue;
            };
            tally.check(&format!("{source} that end in the first of two qTDs"), || {
                ensure!(two >= mark * one, "{seen}; {mark} are promised");
                Ok(seen)
            });
        }
        Ok(())
    })
}

/// MB/s of messages, one to a request with room for `bytes`.
fn messages(guest: &mut Guest, controller: &str, bytes: usize) -> Result<f64> {
    let stream = Stream {
        alternate: 0,
        endpoints: vec![BULK_IN],
        shape: StreamShape::Bulk { bytes },
        queued: QUEUED,
        milliseconds: STREAM_MILLISECONDS,
    };
    let [streamed] = stream_of(guest, controller, stream)?;
    ensure!(streamed.failed == 0, "{} transfers failed", streamed.failed);
    let whole = streamed.requests * u64::from(MESSAGE);
    ensure!(streamed.bytes == whole, "{} bytes came of {whole}", streamed.bytes);
    Ok(streamed.megabytes_per_second())
}

/// Two controllers in one guest that differ in one thing take turns.
fn prompt_reports(
    bench: &Bench,
    options: Options,
    plan: &Plan,
    run: &RunFolder,
    tally: &mut Tally,
) -> Result<()> {
    let mut controllers = Vec::new();
    for (id, slot, prompt_commit) in [("on", 4, true), ("off", 5, false)] {
        // Bulk-only: each step of a command waits for the report of the last one.
        let disk = Disk {
            image: run.image(&format!("{id}.img"), 61)?.path,
            transport: Transport::BulkOnly,
        };
        let disk = Attachment::Disk(disk);
        let controller = Controller::new(id, Kind::Ehci, Maker::Ours, slot, vec![disk]);
        controllers.push(Controller { prompt_commit, ..controller });
    }
    let rig = Rig { controllers };
    let guest = bench.linux(options, rig.clone(), run, false)?.start()?;
    lab_run::through(guest, |guest| {
        guest.inventory()?;
        for controller in &rig.controllers {
            guest.call(&Request::Unbind { controller: controller.address() })?;
        }
        // By requests at a time, then by controllers.
        let mut rates = AT_ONCE.map(|_| [vec![], vec![]]);
        for _ in 0..plan.repeats {
            for (at, controller) in rig.controllers.iter().enumerate() {
                let address = controller.address();
                guest.call(&Request::Bind { controller: address.clone() })?;
                for (rates, at_once) in rates.iter_mut().zip(AT_ONCE) {
                    let read = sequential(guest, &address, Direction::Read, MEBIBYTES, at_once)?;
                    rates[at].push(read.megabytes_per_second());
                }
                guest.call(&Request::Unbind { controller: address })?;
            }
        }
        for (rates, at_once) in rates.into_iter().zip(AT_ONCE) {
            let name = format!("prompt reports speed up reading, {at_once} requests at a time");
            tally.check(&name, || {
                let [on, off] = rates.map(|rates| median(rates.into_iter()));
                let seen = format!("{on:.1} MB/s with, {off:.1} without: {:.2} times", on / off);
                ensure!(on >= LEAST_GAIN * off, "{seen}; {LEAST_GAIN} times are promised");
                Ok(seen)
            });
        }
        Ok(())
    })
}

/// 3 x 1,024 bytes a microframe.
fn camera(
    bench: &Bench,
    options: Options,
    plan: &Plan,
    run: &RunFolder,
    tally: &mut Tally,
) -> Result<()> {
    isochronous(bench, options, plan, run, tally, 3, &[ISOCHRONOUS_IN])
}

/// 1,024 bytes a microframe each way.
fn isochronous_pair(
    bench: &Bench,
    options: Options,
    plan: &Plan,
    run: &RunFolder,
    tally: &mut Tally,
) -> Result<()> {
    isochronous(bench, options, plan, run, tally, 1, &[ISOCHRONOUS_IN, ISOCHRONOUS_OUT])
}

/// Streams of so many packets a microframe. None is missed by the controller, by its own count. What the guest queued
/// too late is its own affair: it is said.
fn isochronous(
    bench: &Bench,
    options: Options,
    plan: &Plan,
    run: &RunFolder,
    tally: &mut Tally,
    packets: u8,
    endpoints: &[u8],
) -> Result<()> {
    let stream = Stream {
        alternate: 1,
        endpoints: endpoints.to_vec(),
        shape: StreamShape::Isochronous {
            packets: 64,
            bytes: usize::from(packets) * usize::from(PACKET),
        },
        queued: 16,
        milliseconds: plan.seconds * 1_000,
    };
    let pair = Some((PACKET, packets, 1));
    let device = Loopback { isochronous: pair, ..Loopback::plain(TestPattern::Zero) };
    let rig = Rig::single(Kind::Ehci, Attachment::Loopback(device));
    let (address, id) = (rig.controllers[0].address(), rig.controllers[0].id);
    let guest = bench.linux(options, rig, run, false)?.start()?;
    lab_run::through(guest, |guest| {
        let skipped = |guest: &Guest| -> Result<u64> {
            guest.server().context("our controllers have a server")?.hand().skipped_frames(id)
        };
        let before = skipped(guest)?;
        let streamed = streams(guest, &address, stream)?;
        let missed = skipped(guest)? - before;
        tally.check(
            &format!("{} s, and the controller misses no microframe", plan.seconds),
            || {
                ensure!(missed == 0, "it missed {missed}");
                Ok("its own count is 0".to_owned())
            },
        );
        for (endpoint, streamed) in endpoints.iter().zip(streamed) {
            tally.check(&format!("endpoint {endpoint:02x}h streams"), || went_well(&streamed));
        }
        Ok(())
    })
}

fn went_well(streamed: &Streamed) -> Result<String> {
    let seen = format!(
        "{:.2} MB/s, {} microframes; in {} more the guest was late with its queue",
        streamed.megabytes_per_second(),
        streamed.good,
        streamed.late
    );
    ensure!(streamed.failed == 0, "{seen}; {} failed", streamed.failed);
    ensure!(streamed.good > streamed.late, "{seen}: this guest is too slow to tell anything");
    Ok(seen)
}

fn streams(guest: &mut Guest, controller: &str, stream: Stream) -> Result<Vec<Streamed>> {
    match guest.call(&Request::Stream { controller: controller.to_owned(), stream })? {
        Reply::Streamed(streamed) => Ok(streamed),
        other => bail!("a stream was asked for and {other:?} came"),
    }
}

fn stream_of<const N: usize>(
    guest: &mut Guest,
    controller: &str,
    stream: Stream,
) -> Result<[Streamed; N]> {
    let streamed = streams(guest, controller, stream)?;
    streamed.try_into().map_err(|list: Vec<_>| anyhow::anyhow!("{} streams came", list.len()))
}
