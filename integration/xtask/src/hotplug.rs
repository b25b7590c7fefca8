//! `cargo xtask hotplug`: devices that are pulled out of a stock guest at work, and come back.
//!
//! Each kind of device behind each controller is plugged in, set up by the guest, worked with, and pulled out in the
//! middle of that, again and again. What was under way ends with an error, of what was done nothing is lost or doubled,
//! and in the end everything works as if nothing had happened.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::{InputEvent, Pattern, Pluggable, Pulled, Reply, Request, printed_byte};

use crate::boot::sha256;
use crate::guest::{Controller, Guest, Hand, Kind, Rig};
use crate::images::Image;
use crate::lab_run::{Bench, Options};
use crate::run_folder::RunFolder;
use crate::setup::Lab;
use crate::tally::Tally;

/// The plug is pulled after so many milliseconds of work.
const WORK: std::ops::Range<u64> = 10..250;
/// Linux's usbhid ignores all that a device says in the 50 ms after somebody first opened it, and the kernel's own keyboard
/// handler may just have done so.
const OPENED: Duration = Duration::from_millis(150);
/// Between two strokes of a key or moves of a pointer.
const STROKE: Duration = Duration::from_millis(10);
/// Types and codes of Linux's `input-event-codes.h`.
const EV_KEY: u16 = 1;
const EV_ABS: u16 = 3;
const ABS_X: u16 = 0;
const KEYS: [(&str, u16); 5] = [("v", 47), ("m", 50), ("u", 22), ("s", 31), ("b", 48)];
/// How far the pointer moves to the right each time.
const STEP: u64 = 100;

/// What is plugged in and pulled out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Disk,
    Keyboard,
    Tablet,
    Printer,
    Loopback,
    /// A hub with a disk behind it.
    Hub,
    /// The same, with a disk that needs the hub's translator.
    Translator,
}

impl Subject {
    /// Those that make sense behind a controller.
    fn all(kind: Kind) -> Vec<Self> {
        let mut all = vec![
            Self::Disk,
            Self::Keyboard,
            Self::Tablet,
            Self::Printer,
            Self::Loopback,
            Self::Hub,
        ];
        all.extend((kind == Kind::Ehci).then_some(Self::Translator));
        all
    }

    fn name(self) -> &'static str {
        match self {
            Self::Disk => "a disk that is read",
            Self::Keyboard => "a keyboard that somebody types on",
            Self::Tablet => "a tablet that somebody moves",
            Self::Printer => "a printer that prints",
            Self::Loopback => "a source and sink under usbtest",
            Self::Hub => "a hub before a disk that is read",
            Self::Translator => "a hub and its translator before a disk that is read",
        }
    }

    fn pluggable(self) -> Pluggable {
        match self {
            Self::Disk | Self::Hub | Self::Translator => Pluggable::Disk,
            Self::Keyboard | Self::Tablet => Pluggable::Input,
            Self::Printer => Pluggable::Printer,
            Self::Loopback => Pluggable::Loopback,
        }
    }

    /// The options of the devices to plug in; the first is the one that is pulled.
    fn options(self, bus: &str, files: &Files) -> Vec<String> {
        let (image, paper) = (files.image.path.display(), files.paper.display());
        let hub = format!("hub,bus={bus},id=subject");
        match self {
            Self::Disk => vec![format!("storage,bus={bus},id=subject,file={image}")],
            Self::Keyboard => vec![format!("keyboard,bus={bus},id=subject")],
            Self::Tablet => vec![format!("tablet,bus={bus},id=subject")],
            Self::Printer => vec![format!("printer,bus={bus},id=subject,file={paper}")],
            Self::Loopback => vec![format!("loopback,bus={bus},id=subject")],
            Self::Hub => vec![hub, format!("storage,bus=subject,id=behind,file={image}")],
            Self::Translator => {
                vec![hub, format!("storage,bus=subject,id=behind,file={image},speed=full")]
            }
        }
    }
}

/// What the devices of a controller keep their data in.
struct Files {
    image: Image,
    paper: PathBuf,
}

/// What came of some rounds.
#[derive(Default)]
struct Seen {
    pieces: u64,
    slowest: u64,
    told: BTreeSet<String>,
}

impl Seen {
    fn add(&mut self, pulled: &Pulled) {
        self.pieces += pulled.pieces;
        self.slowest = self.slowest.max(pulled.milliseconds);
        // What differs from time to time is not another answer.
        let told = pulled.told.split(" behind ").next().unwrap_or_default();
        self.told.insert(told.to_owned());
    }

    fn line(&self, rounds: u32) -> String {
        let told: Vec<_> = self.told.iter().map(String::as_str).collect();
        format!(
            "{rounds} times, after {} pieces of work; forgotten within {} ms; programs were told: {}",
            self.pieces,
            self.slowest,
            told.join(", ")
        )
    }
}

/// Sets the lab up and runs it.
pub(crate) fn run(options: Options, rounds: u32) -> Result<Tally> {
    let bench = Bench::build(Lab::set_up()?, &[crate::guest::Maker::Ours])?;
    let mut tally = Tally::default();
    in_guest(&bench, options, rounds, &mut tally)?;
    Ok(tally)
}

/// Boots one guest and pulls each device out of it so many times.
pub(crate) fn in_guest(
    bench: &Bench,
    options: Options,
    rounds: u32,
    tally: &mut Tally,
) -> Result<()> {
    let run = RunFolder::new()?;
    let failed_before = tally.failed;
    let rig = Rig::empty();
    let mut started = None;
    tally.check("the guest boots with nothing plugged in", || {
        let guest = bench.linux(options, rig.clone(), &run, false)?.start()?;
        let seen = format!("Linux {}", guest.kernel());
        started = Some(guest);
        Ok(seen)
    });
    if let Some(mut guest) = started {
        for (controller, seed) in rig.controllers.iter().zip(41..) {
            let files = Files {
                image: run.image(&format!("{}.img", controller.id), seed)?,
                paper: run.path().join(format!("{}.prn", controller.id)),
            };
            let kind = controller.kind.name().to_uppercase();
            for subject in Subject::all(controller.kind) {
                tally.check(&format!("{kind}: {} is pulled out", subject.name()), || {
                    let mut dice = Pattern::new(seed);
                    pull(&mut guest, controller, subject, &files, rounds, &mut dice)
                });
            }
            tally.check(&format!("{kind}: afterwards a disk reads as its image"), || {
                works_again(&mut guest, controller, &files.image)
            });
        }
        tally.check("the kernel complained of nothing but reads from disks that were gone", || {
            guest.end_but_for(&is_no_wonder).map(|()| "the log is clean".to_owned())
        });
    }
    if tally.failed > failed_before {
        println!("        the guest's logs are in {}", run.keep_logs().display());
    }
    Ok(())
}

/// A disk that is pulled while it is read costs the reads that were under way.
fn is_no_wonder(line: &str) -> bool {
    line.contains("I/O error, dev sd")
}

fn hand(guest: &Guest) -> Result<Hand> {
    Ok(guest.server().context("the controllers are not ours")?.hand().clone())
}

fn pull(
    guest: &mut Guest,
    controller: &Controller,
    subject: Subject,
    files: &Files,
    rounds: u32,
    dice: &mut Pattern,
) -> Result<String> {
    let mut seen = Seen::default();
    for round in 1..=rounds {
        let pulled = once(guest, controller, subject, files, round, dice);
        if pulled.is_err() {
            // What comes next shall not fail because this device is still there.
            let _ = hand(guest)?.detach("subject");
        }
        seen.add(&pulled.with_context(|| format!("round {round} of {rounds}"))?);
    }
    Ok(seen.line(rounds))
}

/// Plugs in, works, pulls out; gives what the guest saw of it.
fn once(
    guest: &mut Guest,
    controller: &Controller,
    subject: Subject,
    files: &Files,
    round: u32,
    dice: &mut Pattern,
) -> Result<Pulled> {
    let hand = hand(guest)?;
    for options in subject.options(controller.id, files) {
        hand.attach(&options)?;
    }
    let device = subject.pluggable();
    guest.call(&Request::AwaitPlugged { controller: controller.address(), device })?;
    let work = WORK.start + dice.below(WORK.end - WORK.start);
    let strokes = 1 + work / STROKE.as_millis() as u64;
    // Every second time all that the user did must have arrived; the other times it may be on the way.
    let last = last_event(subject, strokes).filter(|_| round.is_multiple_of(2));
    let calm = last.is_some();
    let worked = thread::scope(|scope| {
        let user = scope.spawn(|| -> Result<()> {
            let busy = user_is_busy(&hand, subject, strokes, work);
            let pulled = if calm { Ok(()) } else { hand.detach("subject") };
            busy.and(pulled)
        });
        let worked = guest.call(&match last {
            Some((event, times)) => Request::WorkUntilSeen { event, times },
            None => Request::WorkUntilPulled,
        });
        let user = user.join().unwrap_or_else(|_| bail!("the user's thread has failed"));
        user.and(worked)
    })?;
    let pulled = if calm {
        hand.detach("subject")?;
        guest.call(&Request::WorkUntilPulled)?
    } else {
        worked
    };
    let Reply::Pulled(pulled) = pulled else {
        bail!("work was asked for and {pulled:?} came");
    };
    match subject {
        Subject::Keyboard => typed(&pulled, strokes, calm)?,
        Subject::Tablet => moved(&pulled, strokes, calm)?,
        Subject::Printer => printed(&pulled, &files.paper)?,
        Subject::Disk | Subject::Loopback | Subject::Hub | Subject::Translator => {}
    }
    Ok(pulled)
}

/// Does all strokes of an input device; beside any other lets the time pass.
fn user_is_busy(hand: &Hand, subject: Subject, strokes: u64, milliseconds: u64) -> Result<()> {
    if subject.pluggable() != Pluggable::Input {
        thread::sleep(Duration::from_millis(milliseconds));
        return Ok(());
    }
    thread::sleep(OPENED);
    for n in 0..strokes {
        let line = match subject {
            Subject::Keyboard => format!("tap subject {}", KEYS[n as usize % KEYS.len()].0),
            _ => format!("move subject {} 77", STEP * (1 + n)),
        };
        hand.inject(&[line])?;
        thread::sleep(STROKE);
    }
    Ok(())
}

/// The event that so many strokes end with, and how often it comes in all.
fn last_event(subject: Subject, strokes: u64) -> Option<(InputEvent, usize)> {
    let event = |kind, code, value| InputEvent { device: String::new(), kind, code, value };
    match subject {
        Subject::Keyboard => {
            let (_, code) = KEYS[(strokes as usize - 1) % KEYS.len()];
            Some((event(EV_KEY, code, 0), (strokes as usize).div_ceil(KEYS.len())))
        }
        Subject::Tablet => Some((event(EV_ABS, ABS_X, (strokes * STEP) as i32), 1)),
        _ => None,
    }
}

/// Each key went down and up, in order, as far as the guest could see.
fn typed(pulled: &Pulled, strokes: u64, calm: bool) -> Result<()> {
    let keys = pulled.events.iter().filter(|event| event.kind == EV_KEY);
    let seen: Vec<_> = keys.map(|event| (event.code, event.value)).collect();
    let strokes = (0..strokes as usize).map(|n| KEYS[n % KEYS.len()].1);
    let expected: Vec<_> = strokes.flat_map(|code| [(code, 1), (code, 0)]).collect();
    ensure!(expected.starts_with(&seen), "the guest saw {seen:?} of {expected:?}");
    ensure!(!calm || seen == expected, "of {} events {} came", expected.len(), seen.len());
    Ok(())
}

/// The pointer went to the right, and if there was time, as far as it was moved.
fn moved(pulled: &Pulled, moves: u64, calm: bool) -> Result<()> {
    let places = pulled.events.iter().filter(|event| (event.kind, event.code) == (EV_ABS, ABS_X));
    let seen: Vec<_> = places.map(|event| event.value as u64).collect();
    ensure!(seen.is_sorted_by(|a, b| a < b), "the pointer jumped: {seen:?}");
    let is_place = |at: &u64| at.is_multiple_of(STEP) && at / STEP <= moves;
    ensure!(seen.iter().all(is_place), "the pointer was never there: {seen:?}");
    let end = (moves > 0).then_some(moves * STEP);
    ensure!(!calm || seen.last().copied() == end, "of {moves} moves the last was {seen:?}");
    Ok(())
}

/// The paper shows what was sent, all that the guest knows of and at most one piece more.
fn printed(pulled: &Pulled, paper: &Path) -> Result<()> {
    let paper = fs::read(paper).context("the printer's file")?;
    let first_wrong = (0..).zip(&paper).find(|(at, byte)| printed_byte(*at) != **byte);
    ensure!(first_wrong.is_none(), "the paper differs from what was sent: {first_wrong:?}");
    let (printed, sure) = (paper.len() as u64, pulled.bytes);
    ensure!(printed >= sure, "{sure} bytes were acknowledged and {printed} printed");
    Ok(())
}

/// A disk in the port that so much happened to.
fn works_again(guest: &mut Guest, controller: &Controller, image: &Image) -> Result<String> {
    let hand = hand(guest)?;
    let path = image.path.display();
    hand.attach(&format!("storage,bus={0},id={0}-last,file={path}", controller.id))?;
    let found = sha256(guest, &controller.address())?;
    let host = image.sha256()?;
    ensure!(found == host, "the guest read {found}, the image is {host}");
    Ok(format!("{} MiB, sha256 {}...", image.bytes() >> 20, &host[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulled(kind: u16, values: &[(u16, i32)]) -> Pulled {
        let event = |&(code, value)| InputEvent { device: "x".to_owned(), kind, code, value };
        let events = values.iter().map(event).collect();
        Pulled { pieces: 1, bytes: 3, events, told: String::new(), milliseconds: 0 }
    }

    #[test]
    fn a_key_that_is_lost_or_doubled_is_noticed() {
        let all = [(47, 1), (47, 0), (50, 1), (50, 0)];
        assert!(typed(&pulled(EV_KEY, &all), 2, true).is_ok());
        assert!(typed(&pulled(EV_KEY, &all[..3]), 2, false).is_ok());
        assert!(typed(&pulled(EV_KEY, &all[..3]), 2, true).is_err(), "the last one is missing");
        assert!(typed(&pulled(EV_KEY, &all[1..]), 2, false).is_err(), "the first one is missing");
        assert!(typed(&pulled(EV_KEY, &all), 1, false).is_err(), "there was one stroke");
    }

    #[test]
    fn the_last_event_is_the_last_key_going_up_or_the_last_place() {
        let (event, times) = last_event(Subject::Keyboard, 7).unwrap();
        assert_eq!((event.code, event.value, times), (KEYS[1].1, 0, 2), "v m u s b v m");
        let (event, times) = last_event(Subject::Keyboard, 5).unwrap();
        assert_eq!((event.code, event.value, times), (KEYS[4].1, 0, 1));
        let (event, times) = last_event(Subject::Tablet, 3).unwrap();
        assert_eq!((event.code, event.value, times), (ABS_X, 300, 1));
        assert!(last_event(Subject::Disk, 3).is_none());
    }

    #[test]
    fn a_pointer_that_goes_back_is_noticed() {
        let places = [(ABS_X, 100), (ABS_X, 300)];
        assert!(moved(&pulled(EV_ABS, &places), 3, true).is_ok(), "reports may tell of two moves");
        assert!(moved(&pulled(EV_ABS, &places), 4, true).is_err());
        assert!(moved(&pulled(EV_ABS, &[(ABS_X, 300), (ABS_X, 100)]), 3, false).is_err());
        assert!(moved(&pulled(EV_ABS, &[(ABS_X, 150)]), 3, false).is_err());
    }

    #[test]
    fn paper_that_lacks_what_was_acknowledged_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let paper = folder.path().join("paper");
        for (bytes, good) in [(&[0, 1, 2, 3][..], true), (&[0, 1], false), (&[0, 1, 1, 2], false)] {
            fs::write(&paper, bytes).unwrap();
            assert_eq!(printed(&pulled(EV_KEY, &[]), &paper).is_ok(), good);
        }
    }

    #[test]
    fn only_lost_reads_are_no_wonder() {
        assert!(is_no_wonder("[   12.3] I/O error, dev sda, sector 128 op 0x0:(READ)"));
        assert!(!is_no_wonder("[   12.3] usb 1-1: device descriptor read/64, error -71"));
    }
}
