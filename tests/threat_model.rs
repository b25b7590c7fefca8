//! `docs/threat-model.md` names a test for each promise; this sees that they exist.

mod chapter;

use std::collections::BTreeSet;
use std::fs;

use chapter::{names_of_tests, path};

/// The names of all tests.
fn tests() -> BTreeSet<String> {
    let folders = ["src", "tests", "integration/image", "integration/vm-usbd"];
    folders.iter().flat_map(|folder| names_of_tests(&path(folder))).collect()
}

fn fuzz_targets() -> BTreeSet<String> {
    let targets = fs::read_dir(path("fuzz/fuzz_targets")).unwrap();
    targets
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

/// The words between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Names of constants that a target holds a guest or client against.
fn is_constant(word: &str) -> bool {
    word.starts_with("MOST_")
}

#[test]
fn every_promise_has_a_test_that_exists() {
    let chapter = fs::read_to_string(path("docs/threat-model.md")).unwrap();
    let (_, promises) = chapter.split_once("## What is promised").unwrap();
    let (promises, _) = promises.split_once("## What is not promised").unwrap();
    let (tests, targets) = (tests(), fuzz_targets());
    let mut count = 0;
    for row in promises.lines().filter(|line| line.starts_with("| **")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [promise, _, held] = cells[..] else { panic!("not three cells: {row}") };
        let names: Vec<_> = quoted(held).filter(|word| !is_constant(word)).collect();
        assert!(!names.is_empty(), "no test for {promise}");
        for name in names {
            let known = tests.contains(name) || targets.contains(name);
            assert!(known, "{promise}: there is no test and no fuzz target {name}");
        }
        count += 1;
    }
    assert!(count > 20, "the chapter makes promises: {count}");
}

#[test]
fn every_fuzz_target_holds_a_promise() {
    let chapter = fs::read_to_string(path("docs/threat-model.md")).unwrap();
    let named: BTreeSet<_> = quoted(&chapter).collect();
    // What a bus does to drivers, and whether both controllers agree, is no attack of anybody.
    let elsewhere = ["device_faulty", "differential"];
    for target in fuzz_targets() {
        assert!(
            named.contains(&*target) || elsewhere.contains(&&*target),
            "fuzz target {target} is named by no promise"
        );
    }
}
