//! A disk over USB Attached SCSI, and a host that queues what it likes.

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_usb::usb::{Outcome, Pid, Speed, Status};

use crate::driver::tokens::{Event, Kind, Rig};
use crate::driver::uas::Uas;

/// Endpoints of the pipes.
const DATA: u8 = 1;
const DATA_OUT: u8 = 2;
const STATUS: u8 = 3;
const COMMAND: u8 = 4;

/// More information units than any queue of answers can hold: the most that one command has is two.
const MOST_ANSWERS: usize = 1000;

/// A step of the host's.
#[derive(Debug)]
enum Step {
    /// Bytes for the command pipe.
    Unit(Vec<u8>),
    /// Room for an answer.
    Status(u16),
    In(u16),
    Out(u16),
    Alternate(u8),
    Other(Event),
}

fn tag(u: &mut Unstructured<'_>) -> Result<u16> {
    // Few, so that they meet.
    if u.ratio(7, 8)? { u.int_in_range(0..=9) } else { u.arbitrary() }
}

fn command(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let known = [
        0x00, 0x03, 0x12, 0x1a, 0x1b, 0x1e, 0x25, 0x28, 0x2a, 0x2f, 0x35, 0x41, 0x42, 0x5a, 0x88,
        0x8a, 0x93, 0x9e, 0xa0,
    ];
    let mut cdb = [0; 16];
    for byte in cdb.iter_mut().skip(1) {
        *byte = match u.int_in_range(0..=3)? {
            0 | 1 => 0,
            2 => u.int_in_range(0..=8)?,
            _ => u.arbitrary()?,
        };
    }
    cdb[0] = if u.ratio(7, 8)? { *u.choose(&known)? } else { u.arbitrary()? };
    let mut unit = Uas::command_iu(tag(u)?, u.int_in_range(0..=2)?, &cdb).to_vec();
    if u.ratio(1, 8)? {
        let at = u.choose_index(unit.len())?;
        unit[at] = u.arbitrary()?;
    }
    if u.ratio(1, 8)? {
        unit.resize(u.int_in_range(0..=80)?, 0);
    }
    Ok(unit)
}

fn management(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let known = [0x01, 0x02, 0x04, 0x08, 0x10, 0x40, 0x80, 0x81, 0x82];
    let function = if u.ratio(7, 8)? { *u.choose(&known)? } else { u.arbitrary()? };
    Ok(Uas::task_management_iu(tag(u)?, function, tag(u)?).to_vec())
}

fn step(u: &mut Unstructured<'_>) -> Result<Step> {
    let len = |u: &mut Unstructured<'_>| match u.int_in_range(0..=2)? {
        0 => Ok(512),
        1 => Ok(*u.choose(&[0, 16, 36, 64, 96, 1024, 4096])?),
        _ => u.int_in_range(0..=2100),
    };
    Ok(match u.int_in_range(0..=20)? {
        0..=6 => Step::Unit(command(u)?),
        7 => Step::Unit(management(u)?),
        8..=11 => Step::Status(if u.ratio(7, 8)? { 96 } else { len(u)? }),
        12..=14 => Step::In(len(u)?),
        15..=17 => Step::Out(len(u)?),
        18 => Step::Alternate(u.int_in_range(0..=2)?),
        19 => Step::Other(Event::Reset),
        _ => Step::Other(Event::Cancel(u.int_in_range(0..=4)?)),
    })
}

/// What a host does with a disk.
#[derive(Debug)]
pub struct Queue {
    high: bool,
    read_only: bool,
    steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Queue {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (high, read_only) = (u.arbitrary()?, u.arbitrary()?);
        let mut steps = Vec::new();
        while !u.is_empty() && steps.len() < 300 {
            steps.push(step(u)?);
        }
        Ok(Self { high, read_only, steps })
    }
}

/// Configures the disk and selects an alternate setting of its interface.
fn select(rig: &mut Rig, alternate: u8) {
    rig.play(Event::Configure(1));
    rig.request([0x01, 11, alternate, 0, 0, 0, 0, 0]);
}

impl Queue {
    /// Does it, and holds the disk to the rules. At the end the host has no more to fetch than a queue can
    /// hold, and a command on the disk begun anew gets its answer.
    pub fn live(self) {
        let speed = if self.high { Speed::High } else { Speed::Full };
        let kind = if self.read_only { Kind::ReadOnlyDisk } else { Kind::Disk };
        let mut rig = Rig::new(kind, speed);
        rig.play(Event::Reset);
        select(&mut rig, 1);
        for step in self.steps {
            match step {
                Step::Unit(bytes) => drop(rig.in_step(Pid::Out, COMMAND, bytes)),
                Step::Status(len) => drop(rig.in_step(Pid::In, STATUS, vec![0; len.into()])),
                Step::In(len) => drop(rig.in_step(Pid::In, DATA, vec![0; len.into()])),
                Step::Out(len) => drop(rig.in_step(Pid::Out, DATA_OUT, vec![0x5a; len.into()])),
                Step::Alternate(alternate) => {
                    rig.request([0x01, 11, alternate, 0, 0, 0, 0, 0]);
                }
                Step::Other(event @ Event::Reset) => {
                    rig.play(event);
                    select(&mut rig, 1);
                }
                Step::Other(event) => rig.play(event),
            }
        }
        let fetch = |rig: &mut Rig| rig.in_step(Pid::In, STATUS, vec![0; 96]).status;
        let unread = (0..=MOST_ANSWERS).take_while(|_| fetch(&mut rig) == Status::Complete).count();
        assert!(unread < MOST_ANSWERS, "the answers have no end");
        rig.play(Event::Reset);
        select(&mut rig, 1);
        let test_unit_ready = Uas::command_iu(1, 0, &[0; 6]).to_vec();
        let sent = rig.in_step(Pid::Out, COMMAND, test_unit_ready);
        assert_eq!(sent, Outcome::complete(32));
        // The unit attention of the reset, with its sense data.
        assert_eq!(rig.in_step(Pid::In, STATUS, vec![0; 96]), Outcome::complete(34));
        rig.assert_enumerates();
    }
}
