//! A guest that builds EHCI schedules which make sense, up to a few wrong fields.

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_usb::devices::hub::{Hub, HubOptions};
use vm_usb::ehci::Ehci;
use vm_usb::topology::Port;
use vm_usb::usb::Speed;

use crate::devices::{ADDRESSES, answer, attach_scripted, endpoint};
use crate::driver::scripted::Controls;
use crate::ehci::{
    DTC, HEAD, HIGH_SPEED, LOW_SPEED, Options, TERMINATE, cmd, fill_frame_list, go, reg, start,
    token,
};
use crate::guest::Guest;
use crate::word::{NOWHERE, buffer, one_of, place};

/// Structures of up to 96 bytes in their places; now and then half a place on, over two of them.
const PLACES: u32 = 16;
const STRIDE: u32 = 128;

/// What a link pointer points to (EHCI 3.3.1).
#[derive(Clone, Copy)]
enum Kind {
    IsochronousTransfer = 0,
    QueueHead = 1,
    SplitIsochronousTransfer = 2,
    FrameSpan = 3,
}

fn somewhere(u: &mut Unstructured<'_>) -> Result<u32> {
    let at = place(u, PLACES, STRIDE)?;
    Ok(if u.ratio(1, 16)? { at + 32 * u.int_in_range(1..=3)? } else { at })
}

/// Each kind has places of its own, so that links of its type find it there.
fn place_of(u: &mut Unstructured<'_>, kind: Kind) -> Result<u32> {
    Ok(match u.int_in_range(0..=15)? {
        0 => somewhere(u)?,
        n => crate::word::ARENA + STRIDE * (4 * (n % 2) + kind as u32),
    })
}

/// qTDs have the upper half of the arena.
fn transfer_place(u: &mut Unstructured<'_>) -> Result<u32> {
    if u.ratio(1, 16)? {
        somewhere(u)
    } else {
        Ok(crate::word::ARENA + 1024 + 64 * u.int_in_range(0..=15)?)
    }
}

fn kind(u: &mut Unstructured<'_>) -> Result<Kind> {
    Ok(match u.int_in_range(0..=7)? {
        0 | 1 => Kind::IsochronousTransfer,
        2..=4 => Kind::QueueHead,
        5 | 6 => Kind::SplitIsochronousTransfer,
        _ => Kind::FrameSpan,
    })
}

/// A link pointer to some structure.
fn link(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.int_in_range(0..=15)? {
        0 | 1 => TERMINATE,
        2 => NOWHERE,
        3 => somewhere(u)? | u.int_in_range(0..=7)?,
        _ => {
            let kind = kind(u)?;
            place_of(u, kind)? | (kind as u32) << 1
        }
    })
}

/// A pointer to a qTD.
fn transfer_link(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.int_in_range(0..=15)? {
        0..=2 => TERMINATE,
        3 => NOWHERE,
        _ => transfer_place(u)?,
    })
}

fn transfer_token(u: &mut Unstructured<'_>) -> Result<u32> {
    let state = if u.ratio(7, 8)? { token::ACTIVE } else { u.int_in_range(0..=0xff)? };
    let pid = u.int_in_range(0..=3u32)? << 8;
    let errors = u.int_in_range(0..=3u32)? << 10;
    let page = if u.ratio(7, 8)? { 0 } else { u.int_in_range(0..=7u32)? << 12 };
    let flags = one_of(u, &[0, token::IOC])? | one_of(u, &[0, token::TOGGLE])?;
    let bytes: u32 = match u.int_in_range(0..=3)? {
        0 => 0,
        1 => u.int_in_range(0..=512)?,
        2 => u.int_in_range(0..=0x5000)?,
        _ => u.int_in_range(0..=0x7fff)?,
    };
    Ok(state | pid | errors | page | flags | bytes << 16)
}

fn pages<const N: usize>(u: &mut Unstructured<'_>) -> Result<[u32; N]> {
    let mut pages = [0; N];
    for page in &mut pages {
        *page = buffer(u)?;
    }
    Ok(pages)
}

fn queue_head(u: &mut Unstructured<'_>) -> Result<Vec<u32>> {
    let address = u32::from(if u.ratio(15, 16)? { *u.choose(&ADDRESSES[..2])? } else { 9 });
    let number = u.int_in_range(0..=3u32)? << 8;
    let speed = one_of(u, &[HIGH_SPEED, HIGH_SPEED, HIGH_SPEED, 0, LOW_SPEED, 3 << 12])?;
    let packet = one_of(u, &[512, 512, 64, 8, 0, 1024, 0x7ff])? << 16;
    let flags = one_of(u, &[0, DTC])? | one_of(u, &[0, HEAD])? | one_of(u, &[0, 0, 1 << 27])?;
    let reload = u.int_in_range(0..=15u32)? << 28;
    let hub = u32::from(ADDRESSES[1]) << 16 | u.int_in_range(0..=4u32)? << 23;
    let masks = if u.arbitrary()? { 0 } else { u32::from(u.arbitrary::<u16>()?) };
    let mult = u.int_in_range(0..=3u32)? << 30;
    let mut words = vec![
        link(u)?,
        address | number | speed | packet | flags | reload,
        masks | hub | mult,
        transfer_link(u)?,
        transfer_link(u)?,
        transfer_link(u)?,
        if u.ratio(3, 4)? { 0 } else { transfer_token(u)? },
    ];
    words.extend(pages::<5>(u)?);
    Ok(words)
}

fn transfer(u: &mut Unstructured<'_>) -> Result<Vec<u32>> {
    let mut words = vec![transfer_link(u)?, transfer_link(u)?, transfer_token(u)?];
    words.extend(pages::<5>(u)?);
    Ok(words)
}

fn isochronous(u: &mut Unstructured<'_>) -> Result<Vec<u32>> {
    let mut words = vec![link(u)?];
    for _ in 0..8 {
        let active = one_of(u, &[0, 1 << 31])?;
        words.push(active | u.int_in_range(0..=0x0fff_ffff)?);
    }
    // Address and endpoint, direction and packet size, multiplier share dwords with page pointers.
    let pages = pages::<7>(u)?.map(|page| page & !0xfff);
    let number = u.int_in_range(0..=3u32)? << 8;
    let direction = one_of(u, &[0, 1 << 11])?;
    let low = [
        u32::from(ADDRESSES[0]) | number,
        direction | u.int_in_range(0..=0x7ff)?,
        u.int_in_range(0..=3)?,
    ];
    words.extend(pages.iter().zip(low.into_iter().chain([0; 4])).map(|(page, low)| page | low));
    Ok(words)
}

fn split_isochronous(u: &mut Unstructured<'_>) -> Result<Vec<u32>> {
    let direction = one_of(u, &[0, 1 << 31])?;
    let hub = u.int_in_range(0..=4u32)? << 24 | u32::from(ADDRESSES[1]) << 16;
    let number = u.int_in_range(0..=3u32)? << 8;
    let state = if u.ratio(7, 8)? { 0x80 } else { u32::from(u.arbitrary::<u8>()?) };
    let bytes = u.int_in_range(0..=0x3ffu32)? << 16;
    let flags = u32::from(u.arbitrary::<u8>()?) << 8
        | one_of(u, &[0, 1 << 30])?
        | one_of(u, &[0, 1 << 31])?;
    Ok(vec![
        link(u)?,
        direction | hub | number | 9,
        u32::from(u.arbitrary::<u16>()?),
        state | flags | bytes,
        buffer(u)?,
        buffer(u)? & !0xfff | u.int_in_range(0..=0x1f)?,
        if u.ratio(3, 4)? { TERMINATE } else { place_of(u, Kind::SplitIsochronousTransfer)? },
    ])
}

/// What a driver does.
#[derive(Debug)]
enum Step {
    Store(u32, Vec<u32>),
    FrameList(Vec<u32>),
    Register(u64, u32),
    Pass(u64),
    Answer(u8, u8),
    Announce(u8),
    Wakeup,
    BusMaster(bool),
    Go,
}

impl Step {
    fn structure(u: &mut Unstructured<'_>) -> Result<Self> {
        if u.ratio(1, 3)? {
            return Ok(Self::Store(transfer_place(u)?, transfer(u)?));
        }
        let kind = kind(u)?;
        let at = place_of(u, kind)?;
        let words = match kind {
            Kind::IsochronousTransfer => isochronous(u)?,
            Kind::QueueHead => queue_head(u)?,
            Kind::SplitIsochronousTransfer => split_isochronous(u)?,
            Kind::FrameSpan => vec![link(u)?, link(u)?],
        };
        Ok(Self::Store(at, words))
    }

    fn frame_list(u: &mut Unstructured<'_>) -> Result<Self> {
        Ok(Self::FrameList((0..u.int_in_range(1..=8)?).map(|_| link(u)).collect::<Result<_>>()?))
    }
}

impl<'a> Arbitrary<'a> for Step {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.int_in_range(0..=31)? {
            0..=9 => Self::structure(u)?,
            10 => Self::frame_list(u)?,
            // The dword that a driver changes while the controller is at work.
            11..=13 => Self::Store(transfer_place(u)? + 8, vec![transfer_token(u)?]),
            14 => Self::Store(transfer_place(u)?, vec![transfer_link(u)?]),
            15 => Self::Store(place_of(u, Kind::QueueHead)?, vec![link(u)?]),
            16 => {
                Self::Register(reg::USBCMD, cmd::RUN | u.int_in_range(0..=0xff_ffff)? & !cmd::RESET)
            }
            17 => Self::Register(
                reg::USBCMD,
                cmd::RUN | cmd::PERIODIC | cmd::ASYNCHRONOUS | cmd::DOORBELL,
            ),
            18 | 19 => Self::Register(reg::USBSTS, u.arbitrary()?),
            20 => Self::Register(reg::USBINTR, u.int_in_range(0..=0x3f)?),
            21 => Self::Register(reg::FRINDEX, u.int_in_range(0..=0x3fff)?),
            22..=24 => Self::Pass(u.int_in_range(0..=1_000_000)?),
            25 => Self::Pass(*u.choose(&[0, 40_000_000, 5_000_000_000])?),
            26 | 27 => Self::Answer(u.arbitrary()?, u.arbitrary()?),
            28 => Self::Announce(u.arbitrary()?),
            29 => Self::Wakeup,
            30 => Self::BusMaster(u.arbitrary()?),
            _ => Self::Go,
        })
    }
}

/// A guest with a scripted device, and another one behind a hub with a translator.
#[derive(Debug)]
pub struct Driver {
    options: Options,
    before: Vec<Step>,
    frames: Step,
    steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Driver {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let options = u.arbitrary()?;
        let before =
            (0..u.int_in_range(4..=24)?).map(|_| Step::structure(u)).collect::<Result<_>>()?;
        let frames = Step::frame_list(u)?;
        let steps = u.arbitrary_iter()?.take(100).collect::<Result<_>>()?;
        Ok(Self { options, before, frames, steps })
    }
}

impl Step {
    fn take(self, guest: &mut Guest<Ehci>, device: &Controls) {
        match self {
            Self::Store(at, words) => guest.store_all(at, &words),
            Self::FrameList(links) => fill_frame_list(guest, &links),
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
            Self::Go => {
                guest.bus_master = true;
                go(guest);
            }
        }
    }
}

impl Driver {
    /// Lets the guest live, and holds its controller to the rules.
    pub fn live(self) {
        let ports = [(); 2].map(|()| Port::high_speed_only());
        let device = attach_scripted(&ports[0], Speed::High);
        let hub = Hub::new(HubOptions::default()).unwrap();
        attach_scripted(&hub.ports()[0], Speed::Full);
        ports[1].attach(Box::new(hub)).unwrap();
        let mut guest = Guest::new(self.options.controller(&ports));
        start(&mut guest, &ports);
        for step in self.before {
            step.take(&mut guest, &device);
        }
        self.frames.take(&mut guest, &device);
        go(&mut guest);
        for step in self.steps {
            step.take(&mut guest, &device);
            guest.check();
            device.take_seen();
        }
    }
}
