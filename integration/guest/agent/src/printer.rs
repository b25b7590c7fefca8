//! A printer's status poll and a page, through the stock `usblp` driver.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use guest_protocol::{Latencies, Page};

use crate::start::modprobe;
use crate::sysfs::{entries, usb_controller};
use crate::wait;

/// What our printer takes for a question, and the answer's length: a status byte, the question's number modulo 256,
/// and the bytes printed so far modulo 2^32, low byte first.
const QUESTION: &[u8; 6] = b"\x1bSTAT?";
const ANSWER: usize = 6;
/// Selected, no error, paper.
const GOOD: u8 = 0x18;

/// The printer behind a controller, with what it must answer next.
struct Printer {
    node: File,
    number: u8,
    printed: u32,
}

/// Asks for the status `rounds` times: the question and the answer, one after the other.
pub(crate) fn poll(controller: &str, rounds: usize) -> Result<Latencies> {
    let mut printer = Printer::open(controller)?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        times.push(printer.round()?);
    }
    Ok(Latencies(times))
}

/// Prints a page chunk by chunk, each after a look at the status; the last answer must count every byte. Gives each
/// chunk's time with its question.
pub(crate) fn page(controller: &str, page: Page) -> Result<Latencies> {
    ensure!(page.chunk > 0, "a page is not printed in chunks of nothing");
    let mut printer = Printer::open(controller)?;
    let raster: Vec<u8> = (0..page.bytes).map(|at| (at % 251) as u8).collect();
    let mut times = Vec::new();
    for chunk in raster.chunks(page.chunk) {
        let asked = printer.round()?;
        let start = Instant::now();
        printer.node.write_all(chunk).context("writing to the printer")?;
        times.push(asked + start.elapsed().as_nanos() as u64);
        printer.printed = printer.printed.wrapping_add(chunk.len() as u32);
    }
    printer.round()?;
    Ok(Latencies(times))
}

impl Printer {
    /// Opens the printer and asks once: from its answer on, every other is known.
    fn open(controller: &str) -> Result<Self> {
        let node = await_node(controller)?;
        let options = OpenOptions::new().read(true).write(true).open(&node);
        let node = options.with_context(|| node.clone())?;
        let mut printer = Self { node, number: 0, printed: 0 };
        let [status, number, printed @ ..] = printer.ask()?;
        ensure!(status == GOOD, "the printer's status is {status:02x}h instead of {GOOD:02x}h");
        printer.number = number;
        printer.printed = u32::from_le_bytes(printed);
        Ok(printer)
    }

    fn ask(&mut self) -> Result<[u8; ANSWER]> {
        let mut answer = [0; ANSWER];
        self.node.write_all(QUESTION).context("asking the printer")?;
        let count = self.node.read(&mut answer).context("reading the printer's answer")?;
        ensure!(count == ANSWER, "the printer's answer has {count} bytes instead of {ANSWER}");
        Ok(answer)
    }

    /// Asks, checks that no question, answer or printed byte was lost or repeated, and gives the time in nanoseconds.
    fn round(&mut self) -> Result<u64> {
        let start = Instant::now();
        let answer = self.ask()?;
        let time = start.elapsed().as_nanos() as u64;
        self.number = self.number.wrapping_add(1);
        let [a, b, c, d] = self.printed.to_le_bytes();
        let wanted = [GOOD, self.number, a, b, c, d];
        ensure!(answer == wanted, "the printer answered {answer:02x?} instead of {wanted:02x?}");
        Ok(time)
    }
}

/// The device node of the printer behind `controller`; waits for it to come.
pub(crate) fn await_node(controller: &str) -> Result<String> {
    modprobe(&["usblp"])?;
    wait::until(|| node(controller))
}

fn node(controller: &str) -> Result<String> {
    let found = entries("/sys/class/usbmisc")?.into_iter().find(|(name, path)| {
        name.starts_with("lp") && usb_controller(path).is_some_and(|found| found == controller)
    });
    let (name, _) = found.with_context(|| format!("usblp has no printer behind {controller}"))?;
    let node = format!("/dev/usb/{name}");
    // It is made a moment after the folder that names it.
    ensure!(fs::exists(&node)?, "{node} is not there");
    Ok(node)
}
