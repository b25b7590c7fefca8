//! What a server gives up before its first client comes: files it was not given, system calls it does
//! not need, privileges.
//!
//! A guest or a VMM that found a way to run code here would be left with what the server has open, and
//! with what its operator named: [`files`] and [`calls`] are enforced by the kernel, for all threads, as
//! they are put in force before there are any.

pub mod calls;
pub mod files;
pub mod person;

use clap::ValueEnum;
use log::warn;
use thiserror::Error;

use self::files::{Files, Reach};
use crate::cli::Arguments;

/// `--sandbox`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sandbox {
    /// As far as the kernel goes along; what it lacks is said.
    #[default]
    On,
    /// Not at all.
    Off,
    /// Whole, or the server does not start.
    Require,
}

/// Why a server does not start in its sandbox.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// A path cannot be used.
    #[error(transparent)]
    Files(#[from] files::FilesError),
    /// A part that was asked for is missing.
    #[error("--sandbox require: {0}: use another kernel, or --sandbox on to go without")]
    Missing(String),
}

impl Sandbox {
    /// Enters it, for this thread and those it starts from now on: only what `arguments` names is in
    /// reach then, besides what is open already. Says which paths requests may name later.
    ///
    /// # Errors
    /// If a path that is to be in reach is not there, or if all of the sandbox is required and the
    /// kernel lacks a part.
    pub fn enter(self, arguments: &Arguments) -> Result<Reach, SandboxError> {
        if self == Self::Off {
            return Ok(Reach::anywhere());
        }
        let files = Files::of(arguments)?;
        let reach = files.reach();
        // The calls that confine files are none that a server makes later: so files come first.
        for missing in [files.confine()?, calls::confine()].into_iter().flatten() {
            match self {
                Self::Require => return Err(SandboxError::Missing(missing)),
                _ => warn!("sandbox: {missing}; it is in force as far as that goes"),
            }
        }
        Ok(reach)
    }
}
