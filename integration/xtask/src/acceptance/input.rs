//! What is typed and pointed at on the host arrives in the guest as evdev events.

use anyhow::{Context, Result, bail, ensure};
use guest_protocol::{InputEvent, Reply, Request};

use crate::guest::{Attachment, Guest, Rig};

/// Types and codes of Linux's `input-event-codes.h`.
const EV_KEY: u16 = 1;
const EV_ABS: u16 = 3;
const ABS_X: u16 = 0;
const ABS_Y: u16 = 1;
const BTN_LEFT: u16 = 0x110;
const KEYS: [(&str, u16); 5] = [("v", 47), ("m", 50), ("u", 22), ("s", 31), ("b", 48)];

/// A moment in the middle of the axes and one near their end.
const PLACES: [(i32, i32); 2] = [(16_000, 12_000), (32_000, 1_000)];
const MILLISECONDS: u64 = 5_000;

/// Every key goes down and up, in order, and nothing else does.
pub(crate) fn keyboard(guest: &mut Guest) -> Result<String> {
    guest.call(&Request::OpenInput)?;
    let mut expected = Vec::new();
    let mut seen = Vec::new();
    for (name, code) in KEYS {
        guest.tap(name)?;
        expected.extend([(code, 1), (code, 0)]);
        // A press also brings the scan code (EV_MSC): two events a change.
        let events = read(guest, 4)?;
        seen.extend(
            events
                .into_iter()
                .filter(|event| event.kind == EV_KEY)
                .map(|event| (event.code, event.value)),
        );
    }
    ensure!(seen == expected, "the guest saw the keys {seen:?} instead of {expected:?}");
    Ok(format!("{} keys down and up", KEYS.len()))
}

/// The pointer is where it was put, and the button goes down and up.
pub(crate) fn tablet(guest: &mut Guest, rig: &Rig) -> Result<String> {
    let tablet = rig.device_id(&Attachment::Tablet).context("there is no tablet")?;
    guest.call(&Request::OpenInput)?;
    for (x, y) in PLACES {
        inject(guest, &[format!("move {tablet} {x} {y}")])?;
        let events = read(guest, 2)?;
        for (axis, wanted) in [(ABS_X, x), (ABS_Y, y)] {
            let is_there = |event: &InputEvent| {
                (event.kind, event.code, event.value) == (EV_ABS, axis, wanted)
            };
            ensure!(
                events.iter().any(is_there),
                "axis {axis} did not come to {wanted}: {events:?}"
            );
        }
    }
    inject(guest, &[format!("button {tablet} left down"), format!("button {tablet} left up")])?;
    let events = read(guest, 4)?;
    let buttons: Vec<_> = events.iter().filter(|event| event.kind == EV_KEY).collect();
    let presses: Vec<_> = buttons.iter().map(|event| (event.code, event.value)).collect();
    ensure!(presses == [(BTN_LEFT, 1), (BTN_LEFT, 0)], "the guest saw the buttons {presses:?}");
    Ok(format!("{} places and a button", PLACES.len()))
}

fn inject(guest: &Guest, lines: &[String]) -> Result<()> {
    guest.server().context("the tablet is not ours")?.hand().inject(lines)
}

fn read(guest: &mut Guest, at_least: usize) -> Result<Vec<InputEvent>> {
    match guest.call(&Request::ReadInput { at_least, milliseconds: MILLISECONDS })? {
        Reply::Input(events) => Ok(events),
        other => bail!("events were asked for and {other:?} came"),
    }
}
