//! A tape's bytes: two for the controller, then steps.
//!
//! Whatever the bytes are, they are a tape: what means nothing is passed over, and what is cut short ends it.
//! So a tape stays one when a fuzzer changes it. Numbers are little-endian.
//!
//! ```text
//! 0  1: a tape (even: something else, for fuzz targets that take other inputs too)
//! 1  the controller: bit 0 EHCI; EHCI: bit 1 completions with the end of the frame, bit 2 64-bit addresses,
//!    bit 3 addendum, bit 4 debug port; OHCI: bits 1 and 2 pacing, bit 3 legacy support
//! ```
//!
//! A step begins with a byte: what it is in the low four bits, `n` in the high four.
//!
//! ```text
//! 0  time passes: u16 << n nanoseconds
//! 1  the guest writes n bytes: u16 offset, the bytes
//! 2  the guest reads n bytes: u16 offset
//! 3  the guest has put this into its memory: u32 address, u16 length, the bytes
//! 4  the same of one dword again and again: u32 address, u16 how often, u32 dword
//! 5  device n is plugged in: u32 place
//! 6  a device is pulled out: u32 place
//! 7  a key goes down (n = 1) or up (0): u8 HID usage
//! 8  bus mastering is on (n = 1) or off (0)
//! 9  the function is reset
//! ```
//!
//! Devices: 0 disk, 1 keyboard, 2 tablet, 3 printer, 4 debug device, 5 source and sink, 6 hub. A place is four
//! bits for each port on the way, from 1, that of the controller lowest; bit 31 keeps the device at full speed.

/// The first byte of a tape.
pub const TAPE: u8 = 1;
/// Most bytes that the guest reads or writes at once.
pub const MOST_DATA: usize = 8;
/// Most ports on the way to a device.
pub const MOST_DEPTH: usize = 6;

/// Bits of the second byte.
pub mod controller {
    /// EHCI; else OHCI.
    pub const EHCI: u8 = 1 << 0;
    /// EHCI reports completions with the end of the frame.
    pub const UNHURRIED: u8 = 1 << 1;
    /// EHCI has 64-bit addresses.
    pub const WIDE: u8 = 1 << 2;
    /// EHCI has the addendum of revision 1.1.
    pub const ADDENDUM: u8 = 1 << 3;
    /// EHCI has a debug port.
    pub const DEBUG: u8 = 1 << 4;
    /// Where OHCI's pacing begins: 0 real time, 1 eager, 2 wire.
    pub const PACING_SHIFT: u8 = 1;
    /// OHCI has legacy keyboard registers.
    pub const LEGACY: u8 = 1 << 3;
}

/// Where a device is plugged in, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u32);

impl Place {
    const FULL_SPEED: u32 = 1 << 31;

    /// Behind these ports, each from 1 to 15, that of the controller first; `None` if there are none or
    /// too many.
    pub fn new(ports: &[u8]) -> Option<Self> {
        let fits = (1..=MOST_DEPTH).contains(&ports.len());
        let place = ports.iter().rev().fold(0, |place, port| place << 4 | u32::from(port & 0xf));
        fits.then_some(Self(place))
    }

    /// The same place, with the device kept from high speed.
    #[must_use]
    pub fn at_full_speed(self) -> Self {
        Self(self.0 | Self::FULL_SPEED)
    }

    /// Whether the device is kept from high speed.
    pub fn is_at_full_speed(self) -> bool {
        self.0 & Self::FULL_SPEED != 0
    }

    /// The ports on the way, that of the controller first.
    pub fn ports(self) -> impl Iterator<Item = u8> {
        let all = (0..MOST_DEPTH).map(move |level| (self.0 >> (4 * level) & 0xf) as u8);
        all.take_while(|port| *port != 0)
    }
}

/// What is plugged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A disk.
    Disk,
    /// A keyboard.
    Keyboard,
    /// A tablet.
    Tablet,
    /// A printer.
    Printer,
    /// The far end of an early console.
    Debug,
    /// A source and sink.
    Loopback,
    /// A hub.
    Hub,
}

impl Device {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Disk,
        Self::Keyboard,
        Self::Tablet,
        Self::Printer,
        Self::Debug,
        Self::Loopback,
        Self::Hub,
    ];
}

/// One thing that happened to a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Time has passed, in nanoseconds, and the controller was run.
    Time(u64),
    /// The guest wrote to a register, at most [`MOST_DATA`] bytes.
    Write(u16, &'a [u8]),
    /// The guest read so many bytes, at most [`MOST_DATA`], of a register.
    Read(u16, usize),
    /// The guest has put these bytes at an address of its memory.
    Poke(u32, &'a [u8]),
    /// The guest has put a dword there, so often.
    Fill(u32, u16, u32),
    /// A device is plugged in.
    Plug(Device, Place),
    /// A device is pulled out.
    Unplug(Place),
    /// A key of a keyboard goes down, or up.
    Key(u8, bool),
    /// The function may master the bus, or no longer.
    BusMaster(bool),
    /// The function is reset.
    Reset,
}

impl Step<'_> {
    /// Adds the step to a tape. Time is rounded down; returns how much of it was left out.
    pub fn put(self, tape: &mut Vec<u8>) -> u64 {
        match self {
            Self::Time(nanos) => return put_time(nanos, tape),
            Self::Write(offset, data) => {
                let data = &data[..data.len().min(MOST_DATA)];
                tape.push(1 | (data.len() as u8) << 4);
                tape.extend(offset.to_le_bytes());
                tape.extend(data);
            }
            Self::Read(offset, len) => {
                tape.push(2 | (len.min(MOST_DATA) as u8) << 4);
                tape.extend(offset.to_le_bytes());
            }
            Self::Poke(address, data) => {
                let data = &data[..data.len().min(u16::MAX.into())];
                tape.push(3);
                tape.extend(address.to_le_bytes());
                tape.extend((data.len() as u16).to_le_bytes());
                tape.extend(data);
            }
            Self::Fill(address, count, dword) => {
                tape.push(4);
                tape.extend(address.to_le_bytes());
                tape.extend(count.to_le_bytes());
                tape.extend(dword.to_le_bytes());
            }
            Self::Plug(device, Place(place)) => {
                tape.push(5 | (device as u8) << 4);
                tape.extend(place.to_le_bytes());
            }
            Self::Unplug(Place(place)) => {
                tape.push(6);
                tape.extend(place.to_le_bytes());
            }
            Self::Key(usage, down) => tape.extend([7 | u8::from(down) << 4, usage]),
            Self::BusMaster(on) => tape.push(8 | u8::from(on) << 4),
            Self::Reset => tape.push(9),
        }
        0
    }
}

/// As a number of 16 bits and a shift; what is longer than that can say is several steps.
fn put_time(mut nanos: u64, tape: &mut Vec<u8>) -> u64 {
    const LONGEST: u64 = (u16::MAX as u64) << 15;
    while nanos > LONGEST {
        nanos -= LONGEST;
        tape.extend([0xf0, 0xff, 0xff]);
    }
    let shift = (0..16).find(|shift| nanos >> shift <= u16::MAX.into()).unwrap_or(15);
    tape.push(shift << 4);
    tape.extend(((nanos >> shift) as u16).to_le_bytes());
    nanos & ((1 << shift) - 1)
}

/// The steps of a tape.
#[derive(Clone, Debug)]
pub struct Steps<'a>(&'a [u8]);

impl<'a> Steps<'a> {
    /// The controller's byte of a tape, and its steps; `None` if these bytes begin otherwise.
    pub fn of(tape: &'a [u8]) -> Option<(u8, Self)> {
        match tape {
            [first, controller, steps @ ..] if first & 1 == TAPE => {
                Some((*controller, Self(steps)))
            }
            _ => None,
        }
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    /// So many bytes, or those that are left.
    fn data(&mut self, len: usize) -> &'a [u8] {
        let (data, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        data
    }
}

impl<'a> Iterator for Steps<'a> {
    type Item = Step<'a>;

    fn next(&mut self) -> Option<Step<'a>> {
        loop {
            let [first] = self.bytes()?;
            let n = first >> 4;
            let len = usize::from(n).min(MOST_DATA);
            return Some(match first & 0xf {
                0 => Step::Time(u64::from(self.u16()?) << n),
                1 => Step::Write(self.u16()?, self.data(len)),
                2 => Step::Read(self.u16()?, len),
                3 => {
                    let (address, len) = (self.u32()?, self.u16()?);
                    Step::Poke(address, self.data(len.into()))
                }
                4 => Step::Fill(self.u32()?, self.u16()?, self.u32()?),
                5 => {
                    let device = Device::ALL[usize::from(n) % Device::ALL.len()];
                    Step::Plug(device, Place(self.u32()?))
                }
                6 => Step::Unplug(Place(self.u32()?)),
                7 => Step::Key(self.bytes::<1>()?[0], n & 1 != 0),
                8 => Step::BusMaster(n & 1 != 0),
                9 => Step::Reset,
                _ => continue,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_on_a_tape_is_read_from_it() {
        let place = Place::new(&[3, 1]).unwrap();
        let steps = [
            Step::Plug(Device::Hub, Place::new(&[3]).unwrap()),
            Step::Plug(Device::Keyboard, place.at_full_speed()),
            Step::BusMaster(true),
            Step::Poke(0x1234_5678, b"a queue head"),
            Step::Fill(0x2000, 1024, 1),
            Step::Time(125_000),
            Step::Write(0x20, &[1, 0, 8, 0]),
            Step::Read(0x24, 4),
            Step::Key(4, true),
            Step::Unplug(place),
            Step::Reset,
        ];
        let mut tape = vec![TAPE, controller::EHCI];
        let left: u64 = steps.iter().map(|step| step.put(&mut tape)).sum();
        assert_eq!(left, 0, "125 us can be said in whole");
        let (controller, read) = Steps::of(&tape).unwrap();
        assert_eq!(controller, controller::EHCI);
        assert_eq!(read.collect::<Vec<_>>(), steps);
        assert_eq!(place.ports().collect::<Vec<_>>(), [3, 1]);
        assert!(place.at_full_speed().is_at_full_speed() && !place.is_at_full_speed());
    }

    #[test]
    fn time_is_rounded_and_what_is_left_out_is_told() {
        for nanos in [0, 1, 65_535, 65_537, 1_000_000_001, 10_000_000_123] {
            let mut tape = vec![TAPE, 0];
            let left = Step::Time(nanos).put(&mut tape);
            let said: u64 = Steps::of(&tape)
                .unwrap()
                .1
                .map(|step| match step {
                    Step::Time(nanos) => nanos,
                    other => panic!("{other:?}"),
                })
                .sum();
            assert_eq!(said + left, nanos);
            assert!(left <= nanos >> 15, "{left} of {nanos}");
        }
    }

    #[test]
    fn any_bytes_are_a_tape() {
        for first in 0..=u8::MAX {
            for len in 0..12 {
                let mut bytes = vec![TAPE, 0, first];
                bytes.resize(3 + len, 0xee);
                let steps = Steps::of(&bytes).unwrap().1;
                assert!(steps.count() <= len + 1);
            }
        }
        assert!(Steps::of(&[2, 0]).is_none(), "even: something else");
        assert!(Steps::of(&[TAPE]).is_none());
    }

    #[test]
    fn a_place_is_one_to_six_ports() {
        assert_eq!(Place::new(&[]), None);
        assert_eq!(Place::new(&[1; 7]), None);
        assert_eq!(Place::new(&[1, 2, 3, 4, 5, 6]).unwrap().ports().count(), 6);
    }
}
