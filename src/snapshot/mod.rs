//! A machine's state, to be put back later: snapshots, checkpoints, migration.
//!
//! The owner of a machine names its parts, controllers and ports, and gets bytes:
//!
//! ```
//! use vm_memory::{GuestAddress, GuestMemoryMmap};
//! use vm_usb::devices::storage::{RamDisk, Serial, Storage};
//! use vm_usb::ohci::Ohci;
//! use vm_usb::snapshot::{self, Snapshot};
//! use vm_usb::time::Time;
//! use vm_usb::topology::{Host, Port};
//!
//! let medium = RamDisk::zeroed(64);
//! let build = || {
//!     let port = Port::classic();
//!     let disk = Storage::new(medium.clone(), Serial::from_name("disk"));
//!     port.attach(Box::new(disk)).unwrap();
//!     (Ohci::new(vec![port.link(Host::Classic)]), port)
//! };
//!
//! let (ohci, port) = build();
//! let now = Time::from_nanos(5_000_000);
//! let saved = snapshot::save(now, &[("ohci", &ohci), ("port 1", &port)])?;
//!
//! // Later, elsewhere: the same machine is built anew and goes on.
//! let (mut ohci, mut port) = build();
//! let now = Time::ZERO;
//! snapshot::restore(&saved, now, &mut [("ohci", &mut ohci), ("port 1", &mut port)])?;
//! // Then run each controller once, as after anything else that happened.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What belongs to the machine but not to its state has to be there already: the same controllers with
//! as many ports, the same devices in the same ports, their media and output. `docs/snapshot.md` tells
//! what is guaranteed and what the bytes mean.

mod error;
mod state;

use serde::{Deserialize, Serialize};

pub use error::{RestoreError, SaveError};
pub use state::{Offset, State};

use crate::time::Time;

/// The guide, whose code must work.
#[cfg(doctest)]
#[doc = include_str!("../../docs/snapshot.md")]
struct Guide;

/// What a snapshot begins with, so that nothing else is taken for one.
const FORMAT: &str = "vm-usb snapshot";

/// The version of the format that is written, and the newest one that is read.
pub const VERSION: u32 = 1;

/// Largest snapshot in bytes. A device holds a control transfer of 64 KiB and a few buffers of that
/// size, twice as many bytes in the encoding; a bus has 127 devices.
pub const MOST_BYTES: usize = 64 << 20;

/// A part of a machine: a controller, a PCI function, a port with what is plugged into it.
///
/// The defaults are for a part that cannot be saved: a machine with it in it cannot be, either.
pub trait Snapshot {
    /// The state, `now`. The machine stands still while its parts are saved, and may go on afterwards
    /// as if nothing had happened.
    ///
    /// # Errors
    /// If the part has state that cannot be saved.
    fn save(&self, now: Time) -> Result<State, SaveError> {
        let _ = now;
        Err(SaveError::unsupported("this part"))
    }

    /// Takes over a state that is as old as `now`. Nothing is in flight afterwards: what was, is begun
    /// anew.
    ///
    /// # Errors
    /// If the state is not that of such a part. The part may be in any state then.
    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        let _ = (state, now);
        Err(RestoreError::unsupported("this part"))
    }
}

impl<C: Snapshot + ?Sized> Snapshot for Box<C> {
    fn save(&self, now: Time) -> Result<State, SaveError> {
        (**self).save(now)
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        (**self).restore(state, now)
    }
}

#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    format: String,
    version: u32,
    parts: Vec<Part>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    name: String,
    state: State,
}

/// Saves a machine that stands still: no part runs before this returns.
///
/// # Errors
/// If a part cannot be saved, two have one name, or the result would exceed [`MOST_BYTES`].
pub fn save(now: Time, parts: &[(&str, &dyn Snapshot)]) -> Result<Vec<u8>, SaveError> {
    let mut saved = Vec::with_capacity(parts.len());
    for (name, part) in parts {
        let count = parts.iter().filter(|(other, _)| other == name).count();
        if count != 1 {
            return Err(SaveError::names(count, name));
        }
        let state = part.save(now).map_err(|error| error.within(name))?;
        saved.push(Part { name: (*name).to_owned(), state });
    }
    let machine = Machine { format: FORMAT.to_owned(), version: VERSION, parts: saved };
    let bytes = serde_json::to_vec(&machine).map_err(|error| SaveError::encoding(&error))?;
    if bytes.len() > MOST_BYTES {
        return Err(SaveError::too_large(bytes.len()));
    }
    Ok(bytes)
}

/// Puts a machine that stands still into the state that [`save`] recorded. Afterwards run each
/// controller once.
///
/// # Errors
/// If `bytes` is no snapshot, is of a newer format, is damaged, or is one of another machine. The
/// machine is as it was then, apart from transfers in flight, which begin anew.
pub fn restore(
    bytes: &[u8],
    now: Time,
    parts: &mut [(&str, &mut dyn Snapshot)],
) -> Result<(), RestoreError> {
    let machine = decode(bytes)?;
    let mut states = Vec::with_capacity(parts.len());
    for (name, _) in parts.iter() {
        let saved = machine.parts.iter().find(|part| part.name == *name);
        let saved =
            saved.ok_or_else(|| RestoreError::mismatch("no such part", "one").within(name))?;
        states.push(&saved.state);
    }
    for Part { name, .. } in &machine.parts {
        if !parts.iter().any(|(present, _)| present == name) {
            return Err(RestoreError::mismatch("such a part", "none").within(name));
        }
        if machine.parts.iter().filter(|part| part.name == *name).count() != 1 {
            return Err(RestoreError::unsound("a part is there twice").within(name));
        }
    }
    let mut before = Vec::with_capacity(parts.len());
    for (name, part) in parts.iter() {
        let state = part.save(now);
        before.push(state.map_err(|error| RestoreError::no_way_back(error.within(name)))?);
    }
    let mut result = Ok(());
    for ((name, part), state) in parts.iter_mut().zip(states) {
        result = part.restore(state, now).map_err(|error| error.within(name));
        if result.is_err() {
            break;
        }
    }
    if result.is_err() {
        for ((name, part), state) in parts.iter_mut().zip(before) {
            // What was saved a moment ago fits.
            if let Err(error) = part.restore(&state, now) {
                log::error!("{name} cannot be put back as it was: {error}");
            }
        }
    }
    result
}

fn decode(bytes: &[u8]) -> Result<Machine, RestoreError> {
    if bytes.len() > MOST_BYTES {
        return Err(RestoreError::too_large(bytes.len()));
    }
    let head: Head = serde_json::from_slice(bytes).map_err(RestoreError::malformed)?;
    if head.format != FORMAT {
        return Err(RestoreError::malformed(format!("it says that it is a \"{}\"", head.format)));
    }
    if head.version > VERSION {
        return Err(RestoreError::version(head.version));
    }
    // Every older version is a subset of the newest: what joined later has a default.
    serde_json::from_slice(bytes).map_err(RestoreError::malformed)
}
