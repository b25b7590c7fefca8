//! A guest that builds OHCI lists which make sense, up to a few wrong fields.

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_usb::ohci::{Ohci, Pacing};
use vm_usb::topology::Port;
use vm_usb::usb::Speed;

use crate::devices::{ADDRESSES, answer, attach_scripted, endpoint};
use crate::driver::scripted::Controls;
use crate::guest::Guest;
use crate::ohci::{HCCA, command, control, controller, ed, int, pacing, reg, start, td};
use crate::word::{ARENA, NOWHERE, buffer, one_of, place};

/// Endpoint descriptors come first, then transfer descriptors.
const ENDPOINTS: u32 = 6;
const PLACES: u32 = 24;

/// Where an ED is.
fn endpoint_place(u: &mut Unstructured<'_>) -> Result<u32> {
    place(u, ENDPOINTS, 16)
}

/// Where a TD is: isochronous ones take two places.
fn transfer_place(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(ARENA + 16 * ENDPOINTS + 16 * u.int_in_range(0..=PLACES - ENDPOINTS - 1)?)
}

/// Nearly always that, and else where it does not belong.
fn mostly(
    u: &mut Unstructured<'_>,
    usual: impl FnOnce(&mut Unstructured<'_>) -> Result<u32>,
) -> Result<u32> {
    match u.int_in_range(0..=31)? {
        0 | 1 => Ok(0),
        2 | 3 => place(u, PLACES, 16),
        4 => Ok(NOWHERE),
        _ => usual(u),
    }
}

/// Dword 0 of an ED.
fn endpoint_control(u: &mut Unstructured<'_>) -> Result<u32> {
    let address = if u.ratio(15, 16)? { ADDRESSES[0] } else { u.int_in_range(0..=127)? };
    let packet = *u.choose(&[64, 64, 64, 8, 0, 1023, 0x7ff])?;
    let direction = u.int_in_range(0..=3u32)? << 11;
    let flags = [0, 0, 0, 0, ed::SKIP, ed::LOW_SPEED, ed::ISOCHRONOUS, ed::ISOCHRONOUS];
    Ok(ed::control(address, u.int_in_range(0..=4)?, packet) | direction | one_of(u, &flags)?)
}

/// What a driver does.
#[derive(Debug)]
enum Step {
    /// One or more descriptors, dword by dword.
    Store(u32, Vec<u32>),
    Register(u64, u32),
    Pass(u64),
    Answer(u8, u8),
    Announce(u8),
    Wakeup,
    BusMaster(bool),
    Restart,
}

impl Step {
    fn endpoint(u: &mut Unstructured<'_>) -> Result<Self> {
        let at = endpoint_place(u)?;
        let control = endpoint_control(u)?;
        let tail = mostly(u, transfer_place)?;
        // Halted and toggleCarry.
        let head = mostly(u, transfer_place)? | one_of(u, &[0, 0, 0, 0, 1, 2, 2, 3])?;
        let next = if u.arbitrary()? { 0 } else { mostly(u, endpoint_place)? };
        Ok(Self::Store(at, vec![control, tail, head, next]))
    }

    fn transfer(u: &mut Unstructured<'_>) -> Result<Self> {
        let (at, cbp) = (transfer_place(u)?, buffer(u)?);
        let control = u.arbitrary::<u32>()? & 0x0fff_ffff
            | one_of(u, &[td::NOT_ACCESSED, td::NOT_ACCESSED, 0xe000_0000, 0])?;
        let next = mostly(u, transfer_place)?;
        let end =
            if u.ratio(7, 8)? { cbp.wrapping_add(u.int_in_range(0..=0x1fff)?) } else { buffer(u)? };
        let mut words = vec![control, cbp, next, end];
        if u.ratio(1, 3)? {
            // Offsets of an isochronous one.
            words.extend([0; 4].map(|_: u32| 0xe000_e000 | u.arbitrary::<u32>().unwrap_or(0)));
        }
        Ok(Self::Store(at, words))
    }
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.int_in_range(0..=31)? {
            0..=4 => Self::endpoint(u)?,
            5..=12 => Self::transfer(u)?,
            // The dword that a driver changes while the controller is at work.
            13 => Self::Store(endpoint_place(u)? + 4, vec![mostly(u, transfer_place)?]),
            14 | 15 => Self::Register(reg::COMMAND_STATUS, command::CLF | command::BLF),
            16 => {
                let heads = [
                    reg::CONTROL_HEAD_ED,
                    reg::CONTROL_CURRENT_ED,
                    reg::BULK_HEAD_ED,
                    reg::BULK_CURRENT_ED,
                ];
                Self::Register(*u.choose(&heads)?, mostly(u, endpoint_place)?)
            }
            17 => Self::Register(reg::CONTROL, control::OPERATIONAL | u.int_in_range(0..=63)?),
            18 => Self::Register(reg::INTERRUPT_STATUS, u.arbitrary()?),
            19 => Self::Register(reg::INTERRUPT_ENABLE, u.arbitrary::<u32>()? | int::MIE),
            20 => Self::Register(reg::INTERRUPT_DISABLE, u.arbitrary()?),
            21..=24 => Self::Pass(u.int_in_range(0..=3_000_000)?),
            25 => Self::Pass(*u.choose(&[40_000_000, 5_000_000_000])?),
            26 | 27 => Self::Answer(u.arbitrary()?, u.arbitrary()?),
            28 => Self::Announce(u.arbitrary()?),
            29 => Self::Wakeup,
            30 => Self::BusMaster(u.arbitrary()?),
            _ => Self::Restart,
        })
    }
}

/// A guest with a scripted device.
#[derive(Debug)]
pub struct Driver {
    pacing: Pacing,
    before: Vec<Step>,
    steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Driver {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let pacing = pacing(u)?;
        let descriptor = |u: &mut Unstructured<'_>| {
            if u.ratio(1, 3)? { Step::endpoint(u) } else { Step::transfer(u) }
        };
        let before = (0..u.int_in_range(4..=40)?).map(|_| descriptor(u)).collect::<Result<_>>()?;
        let steps = u.arbitrary_iter()?.take(100).collect::<Result<_>>()?;
        Ok(Self { pacing, before, steps })
    }
}

/// Has the controller run whatever is in the arena.
fn run_lists(guest: &mut Guest<Ohci>) {
    for slot in 0..32 {
        guest.store(HCCA + 4 * slot, ARENA + 16 * (slot % ENDPOINTS));
    }
    guest.write32(reg::CONTROL_HEAD_ED, ARENA + 16);
    guest.write32(reg::BULK_HEAD_ED, ARENA + 32);
    guest.write32(reg::INTERRUPT_ENABLE, int::MIE | int::WDH | int::UE | int::SO);
    let lists = control::PLE | control::IE | control::CLE | control::BLE;
    guest.write32(reg::CONTROL, control::OPERATIONAL | lists);
    guest.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
}

impl Step {
    fn take(self, guest: &mut Guest<Ohci>, ports: &[Port; 1], device: &Controls) {
        match self {
            Self::Store(at, words) => guest.store_all(at, &words),
            Self::Register(offset, value) => guest.write32(offset, value),
            Self::Pass(nanos) => guest.pass(nanos, 20),
            Self::Answer(n, kind) => device.answer(endpoint(n), [answer(kind)]),
            Self::Announce(n) => {
                device.announce(endpoint(n));
                guest.settle();
            }
            Self::Wakeup => {
                device.remote_wakeup();
                guest.settle();
            }
            Self::BusMaster(on) => {
                guest.bus_master = on;
                guest.run();
            }
            Self::Restart => {
                guest.bus_master = true;
                guest.reset();
                start(guest, ports);
                run_lists(guest);
            }
        }
    }
}

impl Driver {
    /// Lets the guest live, and holds its controller to the rules.
    pub fn live(self) {
        let ports = [Port::classic()];
        let device = attach_scripted(&ports[0], Speed::Full);
        let mut guest = Guest::new(controller(&ports, self.pacing));
        start(&mut guest, &ports);
        for step in self.before {
            step.take(&mut guest, &ports, &device);
        }
        run_lists(&mut guest);
        for step in self.steps {
            step.take(&mut guest, &ports, &device);
            guest.check();
            device.take_seen();
        }
    }
}
