//! The state of one part, and times in it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{RestoreError, SaveError};
use crate::time::Time;

/// The state of a controller or a device, in whatever form its type chose.
///
/// It carries the name of its form, so that a part is never restored from another kind of part.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    kind: String,
    /// Not decoded before its owner knows what it has to be: memory is only taken for what was
    /// asked for.
    state: Box<RawValue>,
}

impl State {
    /// `value` as the state of a `kind` of part.
    ///
    /// # Errors
    /// If serde cannot express `value` in JSON: a map with keys that are no strings, for example.
    pub fn of(kind: &str, value: &impl Serialize) -> Result<Self, SaveError> {
        let state =
            serde_json::value::to_raw_value(value).map_err(|error| SaveError::encoding(&error))?;
        Ok(Self { kind: kind.to_owned(), state })
    }

    /// The state of a part that has none: everything it does follows from what it is.
    ///
    /// # Errors
    /// Never; the type is that of [`of`](Self::of), for use as a whole `save`.
    pub fn none(kind: &str) -> Result<Self, SaveError> {
        Self::of(kind, &())
    }

    /// The value that [`of`](Self::of) was given for a part of the same `kind`.
    ///
    /// # Errors
    /// If it is the state of another kind of part, or damaged.
    pub fn to<T: DeserializeOwned>(&self, kind: &str) -> Result<T, RestoreError> {
        if self.kind != kind {
            return Err(RestoreError::mismatch(&self.kind, kind));
        }
        serde_json::from_str(self.state.get()).map_err(RestoreError::malformed)
    }
}

/// A moment in a snapshot: nanoseconds after the moment in which it was taken, or before it if
/// negative. The clock of the machine that is restored need not be that of the one that was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offset(i64);

impl Offset {
    /// `time` as seen from `now`.
    pub fn of(time: Time, now: Time) -> Self {
        let nanos = |span: u64| i64::try_from(span).unwrap_or(i64::MAX);
        Self(if time >= now {
            nanos(time.nanos_since(now))
        } else {
            nanos(now.nanos_since(time)).saturating_neg()
        })
    }

    /// The moment, if the snapshot had been taken at `now`; the clock's origin if it lies before that.
    pub fn at(self, now: Time) -> Time {
        Time::from_nanos(now.as_nanos().saturating_add_signed(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_keeps_its_distance_from_now() {
        let now = Time::from_nanos(1_000_000);
        for nanos in [0, 999_999, 1_000_000, 1_000_001, u64::MAX >> 2] {
            let time = Time::from_nanos(nanos);
            assert_eq!(Offset::of(time, now).at(now), time);
            let later = now.after_millis(7);
            assert_eq!(Offset::of(time, now).at(later), time.after_millis(7));
        }
        assert_eq!(Offset::of(Time::ZERO, now).at(Time::ZERO), Time::ZERO, "no clock is negative");
        assert_eq!(Offset(i64::MAX).at(Time::from_nanos(u64::MAX)), Time::from_nanos(u64::MAX));
    }

    #[test]
    fn no_part_takes_another_ones_state_for_its_own() {
        let state = State::of("disk", &7u8).unwrap();
        assert_eq!(state.to::<u8>("disk"), Ok(7));
        assert_eq!(
            state.to::<u8>("printer").unwrap_err().to_string(),
            "the snapshot has disk, the machine has printer: \
             build the machine as it was when it was saved"
        );
        assert!(state.to::<String>("disk").is_err());
    }
}
