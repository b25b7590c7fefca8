//! Which seeds are run, and what is said of those that fail.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::story::tell;
use crate::world::Count;

/// Seeds of a run that nobody said anything about.
const SEEDS: u64 = 10_000;
/// `FIRST..END`: other seeds than those; `cargo xtask simulate` sets it.
const VARIABLE: &str = "VM_USB_SEEDS";
/// After so many failures it is enough.
const MOST_FAILURES: usize = 10;

/// Seeds that failed once, for what they found.
const FAILED_ONCE: [u64; 0] = [];

/// The seeds to run, and whether somebody chose them.
fn seeds() -> (Range<u64>, bool) {
    let Ok(text) = std::env::var(VARIABLE) else { return (0..SEEDS, false) };
    let range = text
        .split_once("..")
        .and_then(|(first, end)| Some(first.parse::<u64>().ok()?..end.parse::<u64>().ok()?));
    let range = range.filter(|range| !range.is_empty());
    (range.unwrap_or_else(|| panic!("{VARIABLE}={text}: say FIRST..END, such as 0..1000")), true)
}

/// Runs a seed; says how to see it again if it fails.
fn check(seed: u64, verbose: bool) -> Option<Count> {
    let told = catch_unwind(AssertUnwindSafe(|| tell(seed, verbose)));
    if told.is_err() {
        println!("seed {seed} FAILED: cargo xtask simulate --seeds 1 --first {seed}");
    }
    told.ok()
}

impl Count {
    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.restarts += other.restarts;
        self.pulls += other.pulls;
        self.pauses += other.pauses;
        self.crashes += other.crashes;
        self.suspends += other.suspends;
        self.faults += other.faults;
        self.jobs += other.jobs;
        self.most_accesses = self.most_accesses.max(other.most_accesses);
    }
}

/// Runs seeds on all processors; what happened in all of them, and those that failed.
fn run(seeds: Range<u64>) -> (Count, Vec<u64>) {
    let verbose = seeds.end - seeds.start == 1;
    let next = AtomicU64::new(seeds.start);
    let sum = Mutex::new((Count::default(), Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || sum.lock().unwrap().1.len() >= MOST_FAILURES {
                        return;
                    }
                    let count = check(seed, verbose);
                    let mut sum = sum.lock().unwrap();
                    match count {
                        Some(count) => sum.0.add(&count),
                        None => sum.1.push(seed),
                    }
                }
            });
        }
    });
    sum.into_inner().unwrap()
}

#[test]
fn nothing_is_lost_in_ten_thousand_short_lives() {
    let (seeds, chosen) = seeds();
    let (count, mut failed) = run(seeds.clone());
    failed.sort_unstable();
    println!("seeds {seeds:?}: {count:?}");
    assert!(failed.is_empty(), "failed: {failed:?}");
    if chosen {
        return;
    }
    // Chance is the same in every run: all of it has happened, and often.
    let Count { restarts, pulls, pauses, crashes, suspends, faults, .. } = count;
    for often in [restarts, pulls, pauses, crashes, suspends, faults] {
        assert!(often >= 1_000, "{count:?}");
    }
}

#[test]
fn seeds_that_failed_once_fail_no_more() {
    let failed: Vec<_> =
        FAILED_ONCE.into_iter().filter(|seed| check(*seed, false).is_none()).collect();
    assert!(failed.is_empty(), "failed: {failed:?}");
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..20 {
        assert_eq!(tell(seed, false), tell(seed, false), "seed {seed}");
    }
}
