//! An OHCI controller and what every guest of it can do.

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_usb::ohci::{Ohci, Pacing};
use vm_usb::topology::{Host, Port};
use vm_usb::usb::Speed;
use vm_usbd::tape::format::controller as bits;

use crate::devices::{ADDRESSES, attach_real, configure};
use crate::driver::ohci;
pub use crate::driver::ohci::{command, control, ed, int, port, reg, td};
use crate::guest::{Guest, Model};
use crate::step::Step;
use crate::tape;
use crate::word::{ARENA, BUFFERS, NOWHERE, place};

/// Where the HCCA is, once the guest has set it up.
pub const HCCA: u32 = ARENA + 0x1000;

impl Model for Ohci {
    const MOST_ACCESSES: usize = ohci::MOST_ACCESSES as usize;
    const ADDRESSES: &'static [u64] = &[
        reg::HCCA,
        reg::PERIOD_CURRENT_ED,
        reg::CONTROL_HEAD_ED,
        reg::CONTROL_CURRENT_ED,
        reg::BULK_HEAD_ED,
        reg::BULK_CURRENT_ED,
        reg::DONE_HEAD,
    ];

    fn check_line(guest: &mut Guest<Self>) {
        let before = guest.line;
        let mask = guest.read32(reg::INTERRUPT_ENABLE);
        let status = guest.read32(reg::INTERRUPT_STATUS);
        let routed = guest.read32(reg::CONTROL) & control::IR == 0;
        let condition = routed && mask & int::MIE != 0 && mask & status & 0x7f != 0;
        assert_eq!(guest.line, condition, "status {status:#x}, mask {mask:#x}");
        // A frame may end when somebody looks; that raises the line and never lowers it.
        assert!(guest.line || !before, "looking clears nothing");
    }
}

/// A policy of frames.
pub fn pacing(u: &mut Unstructured<'_>) -> Result<Pacing> {
    Ok(*u.choose(&[Pacing::Eager, Pacing::RealTime, Pacing::Wire])?)
}

pub fn controller(ports: &[Port], pacing: Pacing) -> Ohci {
    Ohci::new(ports.iter().map(|port| port.link(Host::Classic)).collect()).with_pacing(pacing)
}

/// As the controller's byte of a tape says.
pub fn of(bits: u8, ports: &[Port]) -> Ohci {
    let pacing = match bits >> bits::PACING_SHIFT & 3 {
        0 => Pacing::RealTime,
        1 => Pacing::Eager,
        _ => Pacing::Wire,
    };
    let ohci = controller(ports, pacing);
    if bits & bits::LEGACY != 0 { ohci.with_legacy_support() } else { ohci }
}

/// Brings the controller and its ports up, and configures the devices.
pub fn start(guest: &mut Guest<Ohci>, ports: &[Port]) {
    guest.write32(reg::HCCA, HCCA);
    guest.write32(reg::CONTROL, control::OPERATIONAL);
    for (n, address) in ports.iter().zip(ADDRESSES).enumerate() {
        let register = reg::RH_PORT_STATUS + 4 * n as u64;
        guest.write32(register, port::PRS);
        guest.pass(11_000_000, 20);
        guest.write32(register, port::CSC | port::PRSC);
        configure(address.0, Host::Classic, address.1);
    }
}

/// A dword of random memory.
fn dword(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.int_in_range(0..=7)? {
        0 | 1 => place(u, 32, 16)? | u.int_in_range(0..=3)?,
        2 => BUFFERS + u.int_in_range(0..=0x3fff)?,
        3 => ed::control(*u.choose(&ADDRESSES)?, u.int_in_range(0..=3)?, 64),
        4 => u.arbitrary::<u32>()? | 0xe000_0000,
        5 => *u.choose(&[0, HCCA, NOWHERE])?,
        _ => u.arbitrary()?,
    })
}

/// A step of a guest that knows this controller's registers.
#[derive(Debug)]
struct Choice(Step);

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
    pacing: Pacing,
    legacy: bool,
    started: bool,
    memory: Vec<u32>,
    steps: Vec<Choice>,
}

impl<'a> Arbitrary<'a> for Monkey {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (pacing, legacy, started) = (pacing(u)?, u.arbitrary()?, u.ratio(7, 8)?);
        let memory = (0..u.int_in_range(0..=128)?).map(|_| dword(u)).collect::<Result<_>>()?;
        let steps = u.arbitrary_iter()?.take(100).collect::<Result<_>>()?;
        Ok(Self { pacing, legacy, started, memory, steps })
    }
}

impl Monkey {
    /// Lets the guest live, and holds its controller to the rules.
    pub fn live(self) {
        let mut ports = [(); 3].map(|()| Port::classic());
        let keys = attach_real(&ports, Speed::Full);
        let mut controller = controller(&ports, self.pacing);
        if self.legacy {
            controller = controller.with_legacy_support();
        }
        let mut guest = Guest::new(controller);
        if self.started {
            start(&mut guest, &ports);
            for slot in 0..32 {
                guest.store(HCCA + 4 * slot, ARENA);
            }
            guest.write32(reg::CONTROL_HEAD_ED, ARENA);
            guest.write32(reg::BULK_HEAD_ED, ARENA + 16);
            guest.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH | int::UE | int::RHSC);
        }
        guest.store_all(ARENA, &self.memory);
        for Choice(step) in self.steps {
            step.take(&mut guest, &mut ports, &keys);
            guest.check();
        }
    }
}

impl<'a> Arbitrary<'a> for Choice {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self(match u.int_in_range(0..=19)? {
            0..=4 => Step::Write(u.int_in_range(0..=24)? * 4, dword(u)?),
            5 => Step::Write(reg::CONTROL, control::OPERATIONAL | u.int_in_range(0..=0x3f)?),
            6 => Step::Write(reg::COMMAND_STATUS, command::CLF | command::BLF),
            7 => {
                let len = u.int_in_range(0..=9)?;
                Step::Odd(u.int_in_range(0..=0x1010)?, u.bytes(len)?.to_vec())
            }
            8 => Step::Read(u.int_in_range(0..=0x1010)?, u.int_in_range(0..=9)?),
            9..=12 => Step::Memory(ARENA + 4 * u.int_in_range(0..=0x7f)?, dword(u)?),
            13..=15 => Step::Pass(u.int_in_range(0..=3_000_000)?),
            16 => Step::Pass(*u.choose(&[0, 40_000_000, 5_000_000_000])?),
            17 => Step::BusMaster(u.arbitrary()?),
            18 => Step::Type(u.arbitrary()?, u.arbitrary()?),
            _ if u.ratio(1, 4)? => Step::Reset,
            _ => Step::Replug(u.int_in_range(0..=2)?),
        }))
    }
}
