//! One device, and a host that sends it any tokens.

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_usb::usb::{Pid, Speed};

use crate::driver::tokens::{Event, Kind, Rig};

/// Request types and codes of chapter 9 and of the classes.
const TYPES: [u8; 14] =
    [0x00, 0x01, 0x02, 0x20, 0x21, 0x23, 0x40, 0x80, 0x81, 0x82, 0xa0, 0xa1, 0xa3, 0xc0];

fn setup(u: &mut Unstructured<'_>) -> Result<[u8; 8]> {
    let code = if u.ratio(3, 4)? { u.int_in_range(0..=12)? } else { u.arbitrary()? };
    let value: u16 = match u.int_in_range(0..=2)? {
        0 => u.int_in_range(0..=3)?,
        1 => u.int_in_range(0..=7u16)? << 8,
        _ => u.arbitrary()?,
    };
    let index: u16 =
        if u.ratio(3, 4)? { *u.choose(&[0, 1, 2, 0x81, 0x82, 2])? } else { u.arbitrary()? };
    let length: u16 = if u.ratio(3, 4)? { u.int_in_range(0..=70)? } else { u.arbitrary()? };
    let ([v0, v1], [i0, i1]) = (value.to_le_bytes(), index.to_le_bytes());
    let [l0, l1] = length.to_le_bytes();
    Ok([*u.choose(&TYPES)?, code, v0, v1, i0, i1, l0, l1])
}

/// A command of the bulk-only transport: what a disk gets to see of its host's bytes.
fn command(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = b"USBC\x01\0\0\0".to_vec();
    let length: u32 = *u.choose(&[0, 36, 512, 4096, 18, 0x1_0000, u32::MAX])?;
    bytes.extend(length.to_le_bytes());
    bytes.extend([*u.choose(&[0, 0x80])?, u.int_in_range(0..=1)?, u.int_in_range(5..=17)?]);
    // The operation codes a disk knows, and then anything.
    let known =
        [0x00, 0x03, 0x12, 0x1a, 0x1e, 0x23, 0x25, 0x28, 0x2a, 0x2f, 0x35, 0x5a, 0x88, 0x9e, 0xa8];
    bytes.push(if u.ratio(7, 8)? { *u.choose(&known)? } else { u.arbitrary()? });
    for _ in 0..15 {
        bytes.push(if u.ratio(1, 2)? { 0 } else { u.arbitrary()? });
    }
    Ok(bytes)
}

fn event(u: &mut Unstructured<'_>) -> Result<Event> {
    Ok(match u.int_in_range(0..=27)? {
        0..=2 => {
            let len = u.int_in_range(0..=80)?;
            Event::Token {
                pid: *u.choose(&[Pid::In, Pid::Out, Pid::Setup])?,
                endpoint: u.int_in_range(0..=15)?,
                max_packet: if u.ratio(7, 8)? {
                    *u.choose(&[0, 1, 8, 64, 512])?
                } else {
                    u.arbitrary()?
                },
                toggle: u.arbitrary()?,
                bytes: u.bytes(usize::min(len, u.len()))?.to_vec(),
            }
        }
        3..=6 => Event::Token {
            pid: Pid::Out,
            endpoint: 2,
            max_packet: 512,
            toggle: u.arbitrary()?,
            bytes: command(u)?,
        },
        7..=13 => Event::Likely {
            input: u.arbitrary()?,
            number: u.int_in_range(1..=6)?,
            len: if u.arbitrary()? {
                *u.choose(&[0, 13, 31, 64, 512])?
            } else {
                u.int_in_range(0..=2100)?
            },
            in_step: u.ratio(9, 10)?,
        },
        14 => Event::Isochronous {
            input: u.arbitrary()?,
            number: u.int_in_range(1..=6)?,
            len: u.int_in_range(0..=2100)?,
        },
        15..=18 => Event::Setup(setup(u)?),
        19 => Event::Configure(u.int_in_range(0..=3)?),
        20 => Event::Cancel(u.int_in_range(0..=15)?),
        21 => Event::Suspend(u.arbitrary()?),
        22 => Event::Reset,
        23 => Event::Later(u.int_in_range(0..=600_000_000)?),
        24 | 25 => Event::Type(u.arbitrary()?, u.arbitrary()?),
        _ => Event::Point(u.arbitrary()?, u.arbitrary()?, u.arbitrary()?),
    })
}

/// What a host sends to a device at one of two speeds.
#[derive(Debug)]
pub struct Tokens {
    high: bool,
    configuration: u8,
    seed: u64,
    events: Vec<Event>,
}

impl<'a> Arbitrary<'a> for Tokens {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (high, seed) = (u.arbitrary()?, u.arbitrary()?);
        let configuration = u.int_in_range(1..=3)?;
        let mut events = Vec::new();
        while !u.is_empty() && events.len() < 100 {
            events.push(event(u)?);
        }
        Ok(Self { high, configuration, seed, events })
    }
}

impl Tokens {
    /// Sends them to the device that `kind` makes of a seed, and holds it to the rules.
    pub fn live(self, kind: impl FnOnce(u64) -> Kind) {
        let speed = if self.high { Speed::High } else { Speed::Full };
        let mut rig = Rig::new(kind(self.seed), speed);
        rig.play(Event::Reset);
        rig.play(Event::Configure(self.configuration));
        for event in self.events {
            rig.play(event);
        }
        rig.assert_enumerates();
    }
}
