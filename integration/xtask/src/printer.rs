//! `cargo xtask printer`: a full-speed printer that wants its status asked for all the time, on our OHCI.
//!
//! Real hardware needs about 2 ms a question with the stock driver, too long for printers that stream a page while the
//! paper moves. See the S0 figures in `docs/performance.md`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::{Latencies, Page, Reply, Request};

use crate::guest::{Attachment, Guest, Kind, Pacing, Rig};
use crate::lab_run::{self, Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::Lab;
use crate::tally::Tally;

/// The page and the pieces that drivers of such printers send it in.
const PAGE: usize = 1_500_000;
const CHUNKS: [usize; 2] = [6_144, 16_128];
/// Twenty pages a minute.
const PAGE_SECONDS: f64 = 3.0;
/// The engine starts when this many chunks are there; from then on the next must always be there in time.
const AHEAD: usize = 2;
/// OHCI with the stock driver on real hardware: average, least and longest round.
const HARDWARE: [f64; 3] = [1.916, 1.443, 2.891];

/// A round may take this long on average, in milliseconds; `None` where the pacing promises nothing.
const fn promised(pacing: Pacing) -> Option<f64> {
    match pacing {
        Pacing::Realtime => Some(1.1),
        Pacing::Eager => Some(0.7),
        Pacing::Wire => None,
    }
}

/// Boots once for each pacing, the one of `options` or both, and gives how the checks went.
pub(crate) fn run(options: Options, rounds: usize) -> Result<Tally> {
    let bench = Bench::build(Lab::set_up()?, &[crate::guest::Maker::Ours])?;
    lab_run::share_one_processor()?;
    let pacings = match options.pacing {
        Some(pacing) => vec![pacing],
        None => vec![Pacing::Realtime, Pacing::Eager],
    };
    let mut tally = Tally::default();
    for pacing in pacings {
        let options = Options { pacing: Some(pacing), ..options };
        lab_run::with_logs(RunFolder::new()?, |run| {
            measure(&bench, options, pacing, rounds, run, &mut tally)
        })?;
    }
    Ok(tally)
}

fn measure(
    bench: &Bench,
    options: Options,
    pacing: Pacing,
    rounds: usize,
    run: &RunFolder,
    tally: &mut Tally,
) -> Result<()> {
    let paper = run.path().join("page.prn");
    let rig = Rig::single(Kind::Ohci, Attachment::Printer(paper.clone()));
    let controller = rig.controllers[0].address();
    let guest = bench.linux(options, rig, run, false)?.start()?;
    println!("\nPrinter on our OHCI, Linux {}, pacing {}", guest.kernel(), pacing.name());
    lab_run::through(guest, |guest| {
        let name = format!("{rounds} status polls");
        tally.check(&name, || polls(guest, &controller, pacing, rounds));
        for chunk in CHUNKS {
            let name = format!("a page of {PAGE} bytes in pieces of {chunk}");
            tally.check(&name, || page(guest, &controller, chunk));
        }
        Ok(())
    })?;
    tally.check("the paper shows what was printed", || compare(&paper));
    Ok(())
}

fn polls(guest: &mut Guest, controller: &str, pacing: Pacing, rounds: usize) -> Result<String> {
    let request = Request::PollPrinter { controller: controller.to_owned(), rounds };
    let times = latencies(guest.call(&request)?)?;
    let figures = Figures::of(&times);
    println!("        | host | average | min | half within | 99 % within | max |");
    println!("        |---|---|---|---|---|---|");
    let [average, least, longest] = HARDWARE;
    println!(
        "        | OHCI hardware, stock driver | {average} ms | {least} ms | | | {longest} ms |"
    );
    println!("        | ours, {} | {figures} |", pacing.name());
    if let Some(limit) = promised(pacing) {
        ensure!(
            figures.average <= limit,
            "{:.3} ms a round on average; {limit} ms are promised with pacing {}",
            figures.average,
            pacing.name()
        );
    }
    Ok(format!("{:.3} ms a round on average", figures.average))
}

fn page(guest: &mut Guest, controller: &str, chunk: usize) -> Result<String> {
    let page = Page { bytes: PAGE, chunk };
    let request = Request::Print { controller: controller.to_owned(), page };
    let times = latencies(guest.call(&request)?)?;
    let seconds = times.0.iter().sum::<u64>() as f64 / 1e9;
    let late = underruns(&times, PAGE_SECONDS);
    ensure!(late == 0, "{late} of {} pieces came too late for the paper", times.0.len());
    Ok(format!(
        "{seconds:.2} s where the paper takes {PAGE_SECONDS} s; a question and a piece: {}",
        Figures::of(&times)
    ))
}

/// How many pieces of the page came after the moment when the moving paper needed them.
fn underruns(times: &Latencies, page_seconds: f64) -> usize {
    let each = page_seconds * 1e9 / times.0.len().max(1) as f64;
    let arrivals: Vec<u64> = times
        .0
        .iter()
        .scan(0, |sum, time| {
            *sum += time;
            Some(*sum)
        })
        .collect();
    let Some(&start) = arrivals.get(AHEAD - 1) else { return 0 };
    let due = |piece: usize| start as f64 + each * piece as f64;
    arrivals.iter().enumerate().filter(|&(piece, &arrival)| arrival as f64 > due(piece)).count()
}

/// The file has both pages, byte for byte as the guest made them.
fn compare(paper: &Path) -> Result<String> {
    let printed = fs::read(paper).with_context(|| paper.display().to_string())?;
    ensure!(
        printed.len() == PAGE * CHUNKS.len(),
        "{} bytes were printed instead of {}",
        printed.len(),
        PAGE * CHUNKS.len()
    );
    let wrong = printed.iter().enumerate().position(|(at, &byte)| byte != (at % PAGE % 251) as u8);
    if let Some(at) = wrong {
        bail!("byte {at} is not what was printed");
    }
    Ok(format!("{} bytes are right", printed.len()))
}

fn latencies(reply: Reply) -> Result<Latencies> {
    match reply {
        Reply::Latencies(times) if !times.0.is_empty() => Ok(times),
        other => bail!("times were asked for and {other:?} came"),
    }
}

/// What matters of many times, in milliseconds.
struct Figures {
    average: f64,
    least: f64,
    half_within: f64,
    nearly_all_within: f64,
    longest: f64,
}

impl Figures {
    fn of(times: &Latencies) -> Self {
        let count = times.0.len().max(1) as f64;
        Self {
            average: times.0.iter().sum::<u64>() as f64 / count / 1e6,
            least: times.0.iter().min().copied().unwrap_or(0) as f64 / 1e6,
            half_within: times.percentile(50) / 1e3,
            nearly_all_within: times.percentile(99) / 1e3,
            longest: times.percentile(100) / 1e3,
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.3} ms | {:.3} ms | {:.3} ms | {:.3} ms | {:.3} ms",
            self.average, self.least, self.half_within, self.nearly_all_within, self.longest
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_in_milliseconds() {
        let figures = Figures::of(&Latencies(vec![1_000_000, 2_000_000, 6_000_000]));
        assert_eq!(figures.to_string(), "3.000 ms | 1.000 ms | 2.000 ms | 6.000 ms | 6.000 ms");
    }

    #[test]
    fn a_piece_that_comes_after_its_place_on_the_paper_is_an_underrun() {
        // Ten pieces of a page that takes 100 ms: 10 ms each, and the engine starts with the second piece.
        let steady = Latencies(vec![9_000_000; 10]);
        assert_eq!(underruns(&steady, 0.1), 0);
        let mut one_pause = steady.clone();
        one_pause.0[4] = 60_000_000;
        assert!(underruns(&one_pause, 0.1) > 0);
        assert!(underruns(&Latencies(vec![11_000_000; 100]), 1.0) > 0, "slower than the paper");
    }
}
