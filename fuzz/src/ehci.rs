//! An EHCI controller and what every guest of it can do.

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_usb::ehci::Ehci;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::Speed;
use vm_usbd::tape::format::controller;

use crate::devices::{ADDRESSES, attach_real, configure};
use crate::driver::ehci;
pub use crate::driver::ehci::{
    DTC, HEAD, HIGH_SPEED, LOW_SPEED, QUEUE_HEAD, TERMINATE, cmd, port, reg, sts, token,
};
use crate::guest::{Guest, Model};
use crate::step::Step;
use crate::tape;
use crate::word::{ARENA, BUFFERS, NOWHERE, place};

/// Where the periodic frame list is, once the guest has set it up.
pub const FRAME_LIST: u32 = ARENA + 0x1000;

impl Model for Ehci {
    const MOST_ACCESSES: usize = ehci::MOST_ACCESSES as usize;
    const ADDRESSES: &'static [u64] = &[reg::PERIODICLISTBASE, reg::ASYNCLISTADDR];

    fn check_line(guest: &mut Guest<Self>) {
        // Reading brings time up to date; with bus mastering off that is all it does.
        guest.without_dma(|guest| {
            let (status, mask) = (guest.read32(reg::USBSTS), guest.read32(reg::USBINTR));
            assert_eq!(guest.line, status & mask != 0, "status {status:#x}, mask {mask:#x}");
        });
    }
}

/// The options of a controller.
#[derive(Arbitrary, Debug)]
pub struct Options {
    wide: bool,
    addendum: bool,
    debug: bool,
    unhurried: bool,
}

impl Options {
    /// As the controller's byte of a tape says.
    pub fn of(bits: u8) -> Self {
        Self {
            wide: bits & controller::WIDE != 0,
            addendum: bits & controller::ADDENDUM != 0,
            debug: bits & controller::DEBUG != 0,
            unhurried: bits & controller::UNHURRIED != 0,
        }
    }

    pub fn controller(&self, ports: &[Port]) -> Ehci {
        Ehci::new(ports.iter().map(|port| port.link(Host::High)).collect())
            .with_64bit_addressing(self.wide)
            .with_addendum(self.addendum)
            .with_debug_port(self.debug)
            .with_prompt_commit(!self.unhurried)
    }
}

/// Brings the controller and its ports up, and configures the devices.
pub fn start(guest: &mut Guest<Ehci>, ports: &[Port]) {
    guest.write32(reg::CONFIGFLAG, 1);
    for (n, (at, address)) in ports.iter().zip(ADDRESSES).enumerate() {
        let register = reg::PORTSC + 4 * n as u64;
        guest.write32(register, port::POWER);
        guest.write32(register, port::POWER | port::RESET);
        guest.pass(50_000_000, 20);
        guest.write32(register, port::POWER);
        guest.pass(2_000_000, 20);
        configure(at, Host::High, address);
    }
}

/// Starts both schedules.
pub fn go(guest: &mut Guest<Ehci>) {
    guest.write32(reg::PERIODICLISTBASE, FRAME_LIST);
    guest.write32(reg::ASYNCLISTADDR, ARENA);
    guest.write32(reg::USBINTR, 0x3f);
    guest.write32(reg::USBCMD, cmd::RUN | cmd::PERIODIC | cmd::ASYNCHRONOUS);
}

/// A dword of random memory.
fn dword(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.int_in_range(0..=9)? {
        0..=2 => place(u, 64, 32)? | u.int_in_range(0..=7)?,
        3 => BUFFERS + u.int_in_range(0..=0x7fff)?,
        4 => token::ACTIVE | u.arbitrary::<u32>()? & !token::HALTED,
        5 | 6 => {
            let (kind, endpoint) = (u.arbitrary::<u32>()?, u.int_in_range(0..=3u32)?);
            let speed = *u.choose(&[HIGH_SPEED, 0, LOW_SPEED])?;
            kind & 0xffff_c000 | speed | endpoint << 8 | u32::from(*u.choose(&ADDRESSES)?)
        }
        7 => *u.choose(&[0, TERMINATE, NOWHERE, FRAME_LIST])?,
        _ => u.arbitrary()?,
    })
}

/// A step of a guest that knows this controller's registers.
#[derive(Debug)]
struct Choice(Step);

/// An offset of a register, most of the time.
fn register(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=7)? {
        0..=4 => reg::USBCMD + 4 * u.int_in_range(0..=7)?,
        5 => reg::CONFIGFLAG + 4 * u.int_in_range(0..=3)?,
        6 => 0xa0 + 4 * u.int_in_range(0..=4)?,
        _ => u.int_in_range(0..=0x1008)?,
    })
}

impl<'a> Arbitrary<'a> for Choice {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self(match u.int_in_range(0..=19)? {
            0..=4 => Step::Write(register(u)?, dword(u)?),
            5 => {
                let value = u.int_in_range(0..=0x7f)? & !cmd::RESET;
                Step::Write(reg::USBCMD, value | cmd::RUN | u32::from(u.arbitrary::<u8>()?) << 16)
            }
            6 | 7 => {
                let len = u.int_in_range(0..=9)?;
                Step::Odd(register(u)?, u.bytes(len)?.to_vec())
            }
            8 => Step::Read(register(u)?, u.int_in_range(0..=9)?),
            9..=12 => Step::Memory(ARENA + 4 * u.int_in_range(0..=0x1ff)?, dword(u)?),
            13 | 14 => Step::Pass(u.int_in_range(0..=200_000)?),
            15 => Step::Pass(u.int_in_range(0..=50_000_000)?),
            16 => Step::Pass(*u.choose(&[0, 125_000, 5_000_000_000])?),
            17 => Step::BusMaster(u.arbitrary()?),
            18 => Step::Type(u.arbitrary()?, u.arbitrary()?),
            _ if u.ratio(1, 4)? => Step::Reset,
            _ => Step::Replug(u.int_in_range(0..=2)?),
        }))
    }
}

/// Lets a guest live that did what `input` says: one on a tape, or else one that knows nothing, from the
/// second byte on.
pub fn live(input: &[u8]) {
    if let (None, [_, rest @ ..]) = (tape::play(input), input)
        && let Ok(monkey) = Monkey::arbitrary_take_rest(Unstructured::new(rest))
    {
        monkey.live();
    }
}

/// A guest that knows nothing, on a controller with a disk, a keyboard and a hub.
#[derive(Debug)]
pub struct Monkey {
    options: Options,
    started: bool,
    memory: Vec<u32>,
    frames: Vec<u32>,
    steps: Vec<Choice>,
}

impl<'a> Arbitrary<'a> for Monkey {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (options, started) = (u.arbitrary()?, u.ratio(7, 8)?);
        let memory = (0..u.int_in_range(0..=256)?).map(|_| dword(u)).collect::<Result<_>>()?;
        let frames = (0..u.int_in_range(1..=8)?).map(|_| dword(u)).collect::<Result<_>>()?;
        let steps = u.arbitrary_iter()?.take(100).collect::<Result<_>>()?;
        Ok(Self { options, started, memory, frames, steps })
    }
}

/// Makes `links` the periodic frame list, again and again.
pub fn fill_frame_list(guest: &mut Guest<Ehci>, links: &[u32]) {
    for (slot, link) in (0..1024).zip(links.iter().cycle()) {
        guest.store(FRAME_LIST + 4 * slot, *link);
    }
}

impl Monkey {
    /// Lets the guest live, and holds its controller to the rules.
    pub fn live(self) {
        let mut ports = [(); 3].map(|()| Port::high_speed_only());
        let keys = attach_real(&ports, Speed::High);
        let mut guest = Guest::new(self.options.controller(&ports));
        if self.started {
            start(&mut guest, &ports);
        }
        guest.store_all(ARENA, &self.memory);
        fill_frame_list(&mut guest, &self.frames);
        if self.started {
            go(&mut guest);
        }
        for Choice(step) in self.steps {
            step.take(&mut guest, &mut ports, &keys);
            guest.check();
        }
    }
}
