//! How long things took: counts in a fixed number of buckets.

use std::time::Duration;

/// Bits of a value below its highest one that tell buckets apart: eight buckets an octave, so a bucket
/// is at most an eighth of its values wide.
const PRECISION: u32 = 3;
const PER_OCTAVE: usize = 1 << PRECISION;
/// The first bit whose values share the last bucket: 2^38 ns are 275 s, more than any driver waits.
const LIMIT: u32 = 38;
const BUCKETS: usize = (LIMIT as usize - PRECISION as usize + 1) * PER_OCTAVE;

/// A distribution of durations, in buckets that grow with the duration: 2.3 KiB, whatever happens.
///
/// Values are kept to one part in eight up to 275 s; longer ones count as 275 s in percentiles, but
/// [`longest`](Self::longest) knows them.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    count: u64,
    longest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], count: 0, longest: 0 }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count)
            .field("half", &self.percentile(50))
            .field("longest", &self.longest())
            .finish()
    }
}

impl Histogram {
    /// Counts a duration of `nanos` nanoseconds.
    pub fn record(&mut self, nanos: u64) {
        if let Some(bucket) = self.buckets.get_mut(bucket_of(nanos)) {
            *bucket = bucket.wrapping_add(1);
        }
        self.count = self.count.wrapping_add(1);
        self.longest = self.longest.max(nanos);
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest of them; zero if there is none.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest)
    }

    /// A duration that `percent` of a hundred did not exceed, 0 to 100: the largest of the bucket in
    /// which the last of them lies, at most an eighth too long. Zero if nothing was counted.
    pub fn percentile(&self, percent: u8) -> Duration {
        let share = u128::from(self.count).saturating_mul(percent.min(100).into());
        let rank = u64::try_from(share.div_ceil(100)).unwrap_or(u64::MAX).max(1);
        let mut seen = 0u64;
        for (index, count) in self.buckets.iter().enumerate() {
            seen = seen.saturating_add(*count);
            if seen >= rank {
                return Duration::from_nanos(largest_of(index).min(self.longest));
            }
        }
        Duration::ZERO
    }
}

/// The bucket of a value: the position of its highest bit, and the bits below that. The smallest
/// values have a bucket each.
fn bucket_of(value: u64) -> usize {
    let highest = value.checked_ilog2().unwrap_or(0);
    if highest >= LIMIT {
        return BUCKETS.saturating_sub(1);
    }
    let shift = highest.saturating_sub(PRECISION);
    let row = (shift as usize).saturating_mul(PER_OCTAVE);
    // At most twice PER_OCTAVE, less one.
    row.saturating_add((value >> shift) as usize)
}

/// The largest value in a bucket.
fn largest_of(bucket: usize) -> u64 {
    let row = bucket.checked_div(PER_OCTAVE).unwrap_or(0);
    if row < 2 {
        return bucket as u64;
    }
    let shift = row.saturating_sub(1);
    let place = bucket.saturating_sub(shift.saturating_mul(PER_OCTAVE)) as u64;
    place.saturating_add(1).wrapping_shl(u32::try_from(shift).unwrap_or(0)).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_a_bucket_that_is_narrow_and_follows_the_last() {
        let mut before = 0;
        let values = (0..8192).chain((13..LIMIT).flat_map(|bit| {
            let start = 1u64 << bit;
            (0..16).map(move |part| start + part * (start / 16))
        }));
        for value in values {
            let bucket = bucket_of(value);
            assert!(bucket == before || bucket == before + 1, "no gap before {value}");
            let largest = largest_of(bucket);
            assert!(largest >= value && largest - value <= value / 8, "{value} in {largest}");
            assert_eq!(bucket_of(largest), bucket);
            assert_eq!(bucket_of(largest + 1), (bucket + 1).min(BUCKETS - 1));
            before = bucket;
        }
        assert_eq!(bucket_of((1 << LIMIT) - 1), BUCKETS - 1, "all buckets are used");
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_tell_the_usual_from_the_worst() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(99), Duration::ZERO);
        for _ in 0..98 {
            histogram.record(1_000);
        }
        histogram.record(50_000);
        histogram.record(1_000_000_000_000);
        assert_eq!(histogram.count(), 100);
        let near = |percent, nanos: u64| {
            let got = histogram.percentile(percent).as_nanos() as u64;
            assert!((nanos..=nanos + nanos / 8).contains(&got), "{percent} %: {got}");
        };
        near(0, 1_000);
        near(50, 1_000);
        near(98, 1_000);
        near(99, 50_000);
        assert_eq!(histogram.percentile(100), Duration::from_nanos((1 << LIMIT) - 1));
        assert_eq!(histogram.longest(), Duration::from_secs(1000));
    }
}
