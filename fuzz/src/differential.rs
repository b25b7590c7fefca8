//! A driver's program on every bus: the accounts agree.

use arbitrary::{Arbitrary, Result, Unstructured};

use crate::buses::{FULL_SPEED, Wiring};
use crate::play::{Program, Step};
use crate::witness::Reply;

/// Most steps of a program: each bus takes a while for it.
const STEPS: usize = 20;

/// How a device answers. A packet is not lost twice in a row: three times would be an error, which each
/// bus reports in its own way.
fn replies(u: &mut Unstructured<'_>) -> Result<Vec<Reply>> {
    let mut replies = Vec::new();
    for _ in 0..u.int_in_range(0..=5)? {
        match u.int_in_range(0..=9)? {
            0..=3 => replies.push(Reply::Go),
            4 | 5 => replies.push(Reply::Nak),
            6 => replies.push(Reply::Park),
            7 => replies.push(Reply::Pending),
            8 => replies.push(Reply::Stall),
            _ => replies.extend([Reply::Glitch, Reply::Go]),
        }
    }
    Ok(replies)
}

fn size(u: &mut Unstructured<'_>) -> Result<usize> {
    Ok(match u.int_in_range(0..=3)? {
        0 => u.int_in_range(0..=200)?,
        1 => *u.choose(&[64, 128, 512, 4096, 8192, 20_480])?,
        _ => u.int_in_range(0..=5_000)?,
    })
}

fn packets(u: &mut Unstructured<'_>) -> Result<Vec<u16>> {
    (0..u.int_in_range(1..=8)?).map(|_| u.int_in_range(1..=1023)).collect()
}

fn step(u: &mut Unstructured<'_>) -> Result<Step> {
    let number = u.int_in_range(1..=3)?;
    let bulk = number.min(2);
    Ok(match u.int_in_range(0..=25)? {
        0 | 1 => Step::Put(u.int_in_range(0..=200)?),
        2 | 3 => Step::Get(u.int_in_range(0..=300)?, u.int_in_range(0..=300)?),
        4 => Step::Refused(u.int_in_range(0..=100)?),
        5..=8 => Step::Send(bulk, size(u)?, replies(u)?),
        9..=12 => Step::Receive(bulk, u.int_in_range(1..=24)?, size(u)?, replies(u)?),
        13 => Step::Tell(u.int_in_range(0..=64)?, replies(u)?),
        14 | 15 => Step::Poll(u.int_in_range(0..=64)?, replies(u)?),
        16 => Step::PollInVain,
        17 => Step::ClearHalt(number, u.arbitrary()?),
        18 => Step::SetHalt(number, u.arbitrary()?),
        19 => Step::Status(number, u.arbitrary()?),
        20 => Step::Configure,
        21 => Step::Pause(u.int_in_range(0..=100)?),
        22 => Step::Pull,
        23 => Step::Stream(packets(u)?),
        24 => Step::Hear(packets(u)?),
        _ => Step::Plug,
    })
}

/// A program made of bytes, and one of the buses to compare with the first: each takes a while.
#[derive(Debug)]
pub struct Play {
    program: Program,
    other: Wiring,
}

impl<'a> Arbitrary<'a> for Play {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let high = u.ratio(1, 3)?;
        let other = if high { Wiring::High } else { *u.choose(&FULL_SPEED[1..])? };
        let mut steps = Vec::new();
        while steps.len() < STEPS && !u.is_empty() {
            steps.push(step(u)?);
        }
        Ok(Self { program: Program { high, steps }, other })
    }
}

impl Play {
    /// Carries it out on both.
    pub fn check(&self) {
        self.program.check_on(&[self.other]);
    }
}
