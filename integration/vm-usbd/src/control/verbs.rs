//! The verbs, once for the socket and for the command line of `vm-usbd ctl`.
//!
//! A new one is a variant of [`Verb`], what it does in [`Verb::carry_out`], and, if no other reply
//! fits, a variant of [`Reply`] and how a person reads it.

use std::fmt;
use std::path::PathBuf;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Machine;
use crate::checkpoint::{self, CheckpointError};
use crate::cli::DeviceOptions;
use crate::options::OptionError;
use crate::plugboard::{PlugError, Plugged, Slot};
use crate::sandbox::files::OutOfReach;
use crate::statistics::Statistics;
use crate::table::{Align, table};

/// What a running program can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Verb {
    /// Shows every port and what is in it
    List,
    /// Plugs a device in
    Attach {
        /// As for --device; paths are the server's, so give them whole
        device: String,
    },
    /// Pulls a device out; a hub takes along what is behind it
    Detach {
        /// The device's id, or its port as BUS:PORT
        device: String,
    },
    /// Pulls a device out and plugs the same one in again
    Replug {
        /// The device's id, or its port as BUS:PORT
        device: String,
    },
    /// Shows what was counted at controllers and endpoints
    Stats,
    /// Saves all controllers and devices to a file, for --restore; guests go on and notice nothing
    Save {
        /// The file, replaced if it is there; a path is the server's, so give it whole
        path: PathBuf,
    },
}

/// What a verb brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Every port.
    Ports(Vec<Slot>),
    /// The device is plugged in, and where.
    Attached(Plugged),
    /// These are gone.
    Detached(Vec<Plugged>),
    /// What was counted.
    Statistics(Statistics),
    /// So many bytes are in the file.
    Saved {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: usize,
    },
}

/// Why a verb was not carried out.
#[derive(Debug, Error)]
pub enum VerbError {
    /// The device's options are wrong.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// A path is none that may be used.
    #[error(transparent)]
    OutOfReach(#[from] OutOfReach),
    /// It cannot be plugged in or pulled out.
    #[error(transparent)]
    Plug(#[from] PlugError),
    /// Nothing was saved.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl Verb {
    /// Does it.
    ///
    /// # Errors
    /// If it cannot be done; then nothing has changed.
    pub fn carry_out(&self, machine: &Machine) -> Result<Reply, VerbError> {
        Ok(match self {
            Self::List => Reply::Ports(machine.board().list()),
            Self::Stats => Reply::Statistics(machine.statistics()),
            Self::Attach { device } => {
                let options: DeviceOptions = device.parse()?;
                options.kind.file().map_or(Ok(()), |file| machine.reach().check(file))?;
                Reply::Attached(machine.board().attach(&options)?)
            }
            Self::Detach { device } => Reply::Detached(machine.board().detach(device)?),
            Self::Replug { device } => Reply::Attached(machine.board().replug(device)?),
            Self::Save { path } => {
                machine.reach().check_folder(path)?;
                // Nothing is plugged in or pulled out meanwhile.
                let board = machine.board();
                let bytes = checkpoint::take(machine.loops(), &board.root_ports())?;
                drop(board);
                checkpoint::write(path, &bytes)?;
                Reply::Saved { path: path.clone(), bytes: bytes.len() }
            }
        })
    }
}

/// As a person reads it, without a line's end.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ports(slots) => {
                let rows: Vec<_> = slots.iter().map(row).collect();
                table(f, [Align::Left; 3], &rows)
            }
            Self::Statistics(statistics) => statistics.fmt(f),
            Self::Attached(device) => write!(f, "{} is in {}", device.id, device.place),
            Self::Saved { path, bytes } => write!(f, "{bytes} bytes are in {}", path.display()),
            Self::Detached(devices) => {
                for (index, device) in devices.iter().enumerate() {
                    let end = if index == 0 { "" } else { "\n" };
                    write!(f, "{end}{} is out of {}", device.id, device.place)?;
                }
                Ok(())
            }
        }
    }
}

fn row(slot: &Slot) -> [String; 3] {
    let (id, kind) = match &slot.device {
        Some(device) => (&*device.id, &*device.kind),
        None => ("-", ""),
    };
    [slot.place.to_string(), id.to_owned(), kind.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugboard::Place;

    #[test]
    fn a_person_reads_a_table() {
        let place = |port| Place { bus: "e0".to_owned(), port };
        let disk = Plugged { id: "d".to_owned(), kind: "storage".to_owned(), place: place(10) };
        let slots = vec![
            Slot { place: place(9), device: None },
            Slot { place: place(10), device: Some(disk.clone()) },
        ];
        assert_eq!(Reply::Ports(slots).to_string(), "e0:9   -\ne0:10  d  storage");
        assert_eq!(Reply::Attached(disk.clone()).to_string(), "d is in e0:10");
        let two = Reply::Detached(vec![disk.clone(), disk]);
        assert_eq!(two.to_string(), "d is out of e0:10\nd is out of e0:10");
    }
}
