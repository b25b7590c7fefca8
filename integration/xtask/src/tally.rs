//! Counting what passed, and saying it in one line.

use std::fmt;
use std::time::Instant;

use anyhow::Result;

/// The counts of a run so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Tally {
    /// Runs one check and says at once how it went: `work` gives what it saw, for the line of a check that passed.
    /// Gives whether it passed.
    pub(crate) fn check(&mut self, name: &str, work: impl FnOnce() -> Result<String>) -> bool {
        let start = Instant::now();
        let result = work();
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(seen) => {
                self.passed += 1;
                println!("ok      {name}: {seen} ({seconds:.1} s)");
                true
            }
            Err(error) => {
                self.failed += 1;
                println!("FAILED  {name}: {error:#} ({seconds:.1} s)");
                false
            }
        }
    }

    /// Counts a check that did not run.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped += 1;
        println!("SKIPPED {name}: {reason}");
    }

    /// Of those that passed, so many had nothing to work with and said so.
    pub(crate) fn excuse(&mut self, count: usize) {
        let count = count.min(self.passed);
        self.passed -= count;
        self.skipped += count;
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// What was skipped counts as failed.
    pub(crate) fn without_excuses(self) -> Self {
        Self { passed: self.passed, failed: self.failed + self.skipped, skipped: 0 }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn the_summary_counts_every_check() {
        let mut tally = Tally::default();
        assert!(tally.check("one", || Ok("fine".into())));
        assert!(!tally.check("two", || bail!("wrong")));
        tally.skip("three", "no network");
        tally.add(Tally { passed: 10, failed: 0, skipped: 1 });
        assert_eq!(tally.to_string(), "11 passed, 1 failed, 2 skipped");
        tally.excuse(3);
        assert_eq!(tally.to_string(), "8 passed, 1 failed, 5 skipped");
        tally.excuse(usize::MAX);
        assert_eq!(tally.to_string(), "0 passed, 1 failed, 13 skipped");
        let tally = Tally { passed: 11, failed: 1, skipped: 2 };
        assert_eq!(tally.without_excuses().to_string(), "11 passed, 3 failed, 0 skipped");
    }
}
