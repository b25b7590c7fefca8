//! A snapshot that somebody has damaged or made up: it is refused and nothing changes, or it is restored
//! and the machine bears whatever it says.

use std::sync::OnceLock;

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::time::Time;

use crate::driver::ehci::EhciDriver;
use crate::driver::ohci::OhciDriver;
use crate::guest::{Guest, Model};
use crate::world::{Drivable, Media, build, restore, save, used};

const NOW: Time = Time::from_nanos(3_000_000_000);

/// What the guests of the saved machines used of their memory.
const USED: usize = 2 << 20;

/// A snapshot, and the guest memory that goes with it.
type Saved = (Vec<u8>, Vec<u8>);

fn ehci() -> &'static Saved {
    static SAVED: OnceLock<Saved> = OnceLock::new();
    SAVED.get_or_init(|| {
        let (host, topology) = used::<Ehci, _>(&Media::default(), 3, EhciDriver::new);
        let machine = &host.machine;
        (save(&machine.controller, &topology.ports, machine.now), machine.bytes(0, USED))
    })
}

fn ohci() -> &'static Saved {
    static SAVED: OnceLock<Saved> = OnceLock::new();
    SAVED.get_or_init(|| {
        let (host, topology) = used::<Ohci, _>(&Media::default(), 4, OhciDriver::start);
        let machine = &host.machine;
        (save(&machine.controller, &topology.ports, machine.now), machine.bytes(0, USED))
    })
}

/// What happens to a snapshot on its way.
#[derive(Arbitrary, Debug)]
enum Damage {
    /// The number at some place becomes another one.
    Number(u16, Number),
    /// `true` becomes `false` and back.
    Truth(u16),
    Flip(u16, u8),
    Insert(u16, u8),
    Remove(u16, u8),
}

#[derive(Arbitrary, Debug)]
enum Number {
    Small(u8),
    Edge(u8),
    Any(i64),
    Null,
}

impl Number {
    fn text(&self) -> String {
        match self {
            Self::Small(number) => number.to_string(),
            // Powers of two and their neighbours.
            Self::Edge(n) => ((1i128 << (n & 63)) + i128::from(n >> 6) - 1).to_string(),
            Self::Any(number) => number.to_string(),
            Self::Null => "null".into(),
        }
    }
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |at: &u16, len: usize| usize::from(*at) % len.max(1);
        match self {
            Self::Number(at, number) => {
                let starts: Vec<_> = (1..bytes.len())
                    .filter(|at| {
                        bytes[*at].is_ascii_digit() && matches!(bytes[at - 1], b':' | b',' | b'[')
                    })
                    .collect();
                if let Some(start) = starts.get(place(at, starts.len())).copied() {
                    let len = bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
                    bytes.splice(start..start + len, number.text().bytes());
                }
            }
            Self::Truth(at) => {
                let found = |word: &'static [u8]| {
                    bytes.windows(word.len()).enumerate().filter(move |(_, w)| *w == word)
                };
                let places: Vec<_> = found(b"true")
                    .map(|(at, _)| (at, 4, "false"))
                    .chain(found(b"false").map(|(at, _)| (at, 5, "true")))
                    .collect();
                if let Some((start, len, other)) = places.get(place(at, places.len())).copied() {
                    bytes.splice(start..start + len, other.bytes());
                }
            }
            Self::Flip(at, bits) => {
                let at = place(at, bytes.len());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= bits;
                }
            }
            Self::Insert(at, byte) => bytes.insert(place(at, bytes.len()), *byte),
            Self::Remove(at, len) => {
                let at = place(at, bytes.len());
                let end = bytes.len().min(at + usize::from(*len));
                bytes.drain(at..end);
            }
        }
    }
}

/// A snapshot on its way to a machine.
#[derive(Debug)]
pub struct Courier {
    high: bool,
    damages: Vec<Damage>,
}

impl<'a> Arbitrary<'a> for Courier {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let high = u.arbitrary()?;
        let damages = u.arbitrary_iter()?.take(8).collect::<Result<_>>()?;
        Ok(Self { high, damages })
    }
}

impl Courier {
    /// Delivers it, and holds the machine to the rules.
    pub fn live(self) {
        let (saved, memory) = if self.high { ehci() } else { ohci() };
        let mut saved = saved.clone();
        for damage in &self.damages {
            damage.apply(&mut saved);
        }
        if self.high {
            bears::<Ehci>(&saved, memory);
        } else {
            bears::<Ohci>(&saved, memory);
        }
    }
}

/// Restores `bytes` into a new machine and lets it run on memory as the old guest left it.
fn bears<C: Drivable + Model>(bytes: &[u8], memory: &[u8]) {
    let media = Media::default();
    let (mut controller, topology) = build::<C>(&media);
    let before = save(&controller, &topology.ports, NOW);
    if let Err(error) = restore(bytes, &mut controller, &topology.ports, NOW) {
        assert!(!error.to_string().is_empty());
        let after = save(&controller, &topology.ports, NOW);
        assert!(before == after, "refused, and changed all the same: {error}");
        return;
    }
    let mut guest = Guest::restored(controller, memory, NOW);
    guest.run();
    for _ in 0..20 {
        guest.pass(700_000, 20);
        media.depot.finish();
        guest.check();
        for register in (0..0x100).step_by(4) {
            guest.read32(register);
        }
        guest.check();
    }
    let _ = save(&guest.controller, &topology.ports, guest.now);
}
