//! The files that stay in reach: those on the command line.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus,
};
use thiserror::Error;

use crate::cli::{Arguments, DeviceKind};

/// The rights that are taken away where nobody grants them: all that concern files, truncation too. What
/// later versions add (device ioctls, TCP, signals, abstract sockets) is no system call that a server may
/// make at all: see [`calls`](super::calls).
const RIGHTS: ABI = ABI::V3;

/// Why paths cannot be kept in reach.
#[derive(Debug, Error)]
pub enum FilesError {
    /// It is not there, or cannot be looked at.
    #[error("--allow-path: cannot use {0}: {1}")]
    Allowed(PathBuf, #[source] io::Error),
    /// The kernel refuses a rule.
    #[error("cannot keep {0} in reach of the sandbox: {1}; see --sandbox")]
    Rule(PathBuf, String),
    /// The kernel refuses the rules.
    #[error("cannot confine files: {0}; see --sandbox")]
    Rules(String),
}

/// A path named at run time is out of reach.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{path}: outside of the sandbox: start vm-usbd with --allow-path {folder}, or use a file that its \
     command line names",
    path = path.display(), folder = folder.display()
)]
pub struct OutOfReach {
    path: PathBuf,
    folder: PathBuf,
}

/// What may be done with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// An image is read.
    Read,
    /// An image is read and written.
    ReadWrite,
    /// Output is written from its start.
    Output,
    /// A socket in this folder is removed.
    Remove,
    /// Requests may read, write and replace what is there.
    Anything,
}

impl Use {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => AccessFs::ReadFile.into(),
            Self::ReadWrite => AccessFs::ReadFile | AccessFs::WriteFile,
            Self::Output => AccessFs::WriteFile | AccessFs::Truncate,
            Self::Remove => AccessFs::RemoveFile.into(),
            Self::Anything => {
                AccessFs::ReadFile
                    | AccessFs::ReadDir
                    | AccessFs::WriteFile
                    | AccessFs::Truncate
                    | AccessFs::MakeReg
                    | AccessFs::RemoveFile
            }
        }
    }
}

/// Paths and what is done with them.
#[derive(Debug)]
pub struct Files {
    uses: Vec<(PathBuf, Use)>,
}

impl Files {
    /// What a server with these arguments uses after it has opened everything.
    ///
    /// # Errors
    /// If a path that is to be allowed is not there.
    pub fn of(arguments: &Arguments) -> Result<Self, FilesError> {
        let mut uses = Vec::new();
        for path in &arguments.allow_path {
            let found = path.canonicalize();
            let path = found.map_err(|error| FilesError::Allowed(path.clone(), error))?;
            uses.push((path, Use::Anything));
        }
        // A device that was pulled out may be plugged in again with its file.
        for device in &arguments.devices {
            let (file, purpose) = match &device.kind {
                DeviceKind::Storage { file, readonly: true, .. } => (file, Use::Read),
                DeviceKind::Storage { file, readonly: false, .. } => (file, Use::ReadWrite),
                DeviceKind::Printer { file: Some(file) }
                | DeviceKind::Debug { file: Some(file) } => (file, Use::Output),
                _ => continue,
            };
            uses.push((file.canonicalize().unwrap_or_else(|_| file.clone()), purpose));
        }
        let controllers = arguments.controllers.iter().map(|controller| &controller.socket);
        for socket in controllers.chain(&arguments.input).chain(&arguments.control) {
            uses.push((folder(socket), Use::Remove));
        }
        Ok(Self { uses })
    }

    /// Which paths requests may name.
    pub fn reach(&self) -> Reach {
        let named = self.uses.iter().filter(|(_, purpose)| *purpose != Use::Remove);
        Reach(Some(named.map(|(path, _)| path.clone()).collect()))
    }

    /// Has the kernel refuse everything else; says what it lacks for that.
    ///
    /// # Errors
    /// If a path cannot be looked at, or the kernel does not take the rules.
    pub fn confine(&self) -> Result<Option<String>, FilesError> {
        let refused = |error: landlock::RulesetError| FilesError::Rules(error.to_string());
        let rights = AccessFs::from_all(RIGHTS);
        let mut rules =
            Ruleset::default().handle_access(rights).and_then(Ruleset::create).map_err(refused)?;
        for (path, purpose) in &self.uses {
            let rule = |error: String| FilesError::Rule(path.clone(), error);
            let opened = PathFd::new(path).map_err(|error| rule(error.to_string()))?;
            let mut rights = purpose.rights();
            if !path.is_dir() {
                rights &= AccessFs::from_file(RIGHTS);
            }
            rules = rules
                .add_rule(PathBeneath::new(opened, rights))
                .map_err(|error| rule(error.to_string()))?;
        }
        let status = rules.restrict_self().map_err(refused)?;
        Ok(match status.ruleset {
            RulesetStatus::FullyEnforced => None,
            RulesetStatus::PartiallyEnforced => {
                Some("this kernel's Landlock is older than 6.2: files can be truncated".to_owned())
            }
            RulesetStatus::NotEnforced => Some(
                "this kernel has no Landlock, or it is switched off: no file is out of reach"
                    .to_owned(),
            ),
        })
    }
}

/// The folder a path is in.
fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The paths that requests at run time may name, whole or by the folder they are in; `None`: any. The
/// kernel holds to it, this only knows how to say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach(Option<Vec<PathBuf>>);

impl Reach {
    /// Without a sandbox.
    pub fn anywhere() -> Self {
        Self(None)
    }

    /// A file that is to be opened, or made.
    ///
    /// # Errors
    /// If it is out of reach.
    pub fn check(&self, path: &Path) -> Result<(), OutOfReach> {
        let Some(reach) = &self.0 else { return Ok(()) };
        let (folder, name) = (folder(path), path.file_name().map(OsString::from));
        let real = path.canonicalize().or_else(|error| {
            let folder = folder.canonicalize()?;
            Ok::<_, io::Error>(folder.join(name.ok_or(error)?))
        });
        // What has no folder cannot be opened either, and who opens it says so.
        let Ok(real) = real else { return Ok(()) };
        if reach.iter().any(|known| real.starts_with(known)) {
            return Ok(());
        }
        Err(OutOfReach { path: path.to_owned(), folder })
    }

    /// A file that is to be replaced, with another name meanwhile.
    ///
    /// # Errors
    /// If its folder is out of reach.
    pub fn check_folder(&self, path: &Path) -> Result<(), OutOfReach> {
        let folder = folder(path);
        self.check(&folder).map_err(|_| OutOfReach { path: path.to_owned(), folder })
    }
}
