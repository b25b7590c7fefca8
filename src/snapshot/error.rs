//! Why a machine cannot be saved or restored.

use std::fmt;

use thiserror::Error;

use super::{MOST_BYTES, VERSION};

/// Why there is no snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}{reason}")]
pub struct SaveError {
    place: Place,
    reason: SaveReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum SaveReason {
    #[error("{0} cannot be saved: detach it first, or give its type `save` and `restore`")]
    Unsupported(String),
    #[error("the snapshot would have {0} bytes, more than {MOST_BYTES}")]
    TooLarge(usize),
    #[error("{0} parts are called \"{1}\": give each a name of its own")]
    Names(usize, String),
    #[error("{0}")]
    Encoding(String),
}

impl SaveError {
    /// `what` keeps state and has no way to save it.
    pub fn unsupported(what: impl fmt::Display) -> Self {
        SaveReason::Unsupported(what.to_string()).into()
    }

    pub(super) fn too_large(bytes: usize) -> Self {
        SaveReason::TooLarge(bytes).into()
    }

    pub(super) fn names(count: usize, name: &str) -> Self {
        SaveReason::Names(count, name.to_owned()).into()
    }

    pub(super) fn encoding(error: &serde_json::Error) -> Self {
        SaveReason::Encoding(error.to_string()).into()
    }

    /// Says where in the machine it happened, from the inside out.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.place.within(place);
        self
    }
}

impl From<SaveReason> for SaveError {
    fn from(reason: SaveReason) -> Self {
        Self { place: Place::default(), reason }
    }
}

/// Why a machine is not as a snapshot says. It is as it was before then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}{reason}")]
pub struct RestoreError {
    place: Place,
    reason: RestoreReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum RestoreReason {
    #[error("not a snapshot, or a damaged one: {0}")]
    Malformed(String),
    #[error("the snapshot has {0} bytes, more than {MOST_BYTES}: it is none, or a damaged one")]
    TooLarge(usize),
    #[error(
        "the snapshot's format is version {0}, and this program knows up to {VERSION}: \
         use a newer one"
    )]
    Version(u32),
    #[error(
        "the snapshot has {saved}, the machine has {present}: \
         build the machine as it was when it was saved"
    )]
    Mismatch { saved: String, present: String },
    #[error("the snapshot is damaged: {0}")]
    Unsound(String),
    #[error("the machine as it is cannot be put back if this fails: {0}")]
    NoWayBack(SaveError),
    #[error("{0} cannot be restored: its type has no `save` and `restore`")]
    Unsupported(String),
}

impl RestoreError {
    /// The snapshot is of another machine: there it has `saved`, here it has `present`.
    pub fn mismatch(saved: impl fmt::Display, present: impl fmt::Display) -> Self {
        let (saved, present) = (saved.to_string(), present.to_string());
        RestoreReason::Mismatch { saved, present }.into()
    }

    /// No machine can have been in such a state: `what` says why.
    pub fn unsound(what: impl fmt::Display) -> Self {
        RestoreReason::Unsound(what.to_string()).into()
    }

    /// `what` has no way to be restored.
    pub fn unsupported(what: impl fmt::Display) -> Self {
        RestoreReason::Unsupported(what.to_string()).into()
    }

    /// An error unless `sound`.
    pub(crate) fn check(sound: bool, what: &str) -> Result<(), Self> {
        if sound { Ok(()) } else { Err(Self::unsound(what)) }
    }

    /// An error unless the machine has what the snapshot has.
    pub(crate) fn same<T: PartialEq + fmt::Display>(saved: T, present: T) -> Result<(), Self> {
        if saved == present { Ok(()) } else { Err(Self::mismatch(saved, present)) }
    }

    pub(super) fn malformed(error: impl fmt::Display) -> Self {
        RestoreReason::Malformed(error.to_string()).into()
    }

    pub(super) fn too_large(bytes: usize) -> Self {
        RestoreReason::TooLarge(bytes).into()
    }

    pub(super) fn version(version: u32) -> Self {
        RestoreReason::Version(version).into()
    }

    pub(super) fn no_way_back(error: SaveError) -> Self {
        RestoreReason::NoWayBack(error).into()
    }

    /// Says where in the machine it happened, from the inside out.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.place.within(place);
        self
    }
}

impl From<RestoreReason> for RestoreError {
    fn from(reason: RestoreReason) -> Self {
        Self { place: Place::default(), reason }
    }
}

/// Where in a machine, the outermost place first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place(Vec<String>);

impl Place {
    fn within(&mut self, place: impl fmt::Display) {
        self.0.insert(0, place.to_string());
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "{}: ", self.0.join(", "))
    }
}
