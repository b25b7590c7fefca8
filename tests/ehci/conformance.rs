//! `docs/ehci.md` states the rules; this holds the tests against it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

const BEGIN: &str = "<!-- conformance -->\n";
const END: &str = "<!-- end of conformance -->";

/// The file, from the package's directory.
pub fn path(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// The ids of the rules, in the chapter's order.
fn rules(chapter: &str) -> Vec<String> {
    let starts = chapter.lines().filter_map(|line| line.strip_prefix("- **EHCI-"));
    starts.map(|line| format!("EHCI-{}", line.split_once("**").unwrap().0)).collect()
}

/// The tests of each rule.
fn tests() -> BTreeMap<String, Vec<String>> {
    let mut tests = BTreeMap::<String, Vec<String>>::new();
    let mut files: Vec<PathBuf> =
        fs::read_dir(path("tests/ehci")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let source = fs::read_to_string(file).unwrap();
        let mut is_test = false;
        for line in source.lines() {
            if let Some(name) = line.strip_prefix("fn ehci_").filter(|_| is_test) {
                let name = name.split_once('(').unwrap().0;
                let (area, rest) = name.split_once('_').unwrap();
                let number = rest.split_once('_').unwrap().0;
                let rule = format!("EHCI-{}-{number}", area.to_uppercase());
                tests.entry(rule).or_default().push(format!("ehci_{name}"));
            }
            is_test = line == "#[test]";
        }
    }
    tests
}

#[test]
fn conformance_every_rule_of_the_chapter_has_a_test() {
    let chapter = fs::read_to_string(path("docs/ehci.md")).unwrap();
    let (rules, tests) = (rules(&chapter), tests());
    assert!(rules.len() >= 220, "the chapter states the rules");
    let without: Vec<_> = rules.iter().filter(|rule| !tests.contains_key(*rule)).collect();
    assert!(without.is_empty(), "without a test: {without:?}");
    let unknown: Vec<_> = tests.keys().filter(|rule| !rules.contains(*rule)).collect();
    assert!(unknown.is_empty(), "not stated by the chapter: {unknown:?}");

    let mut table = String::from("| Rule | Tests |\n|---|---|\n");
    for rule in &rules {
        let names: Vec<_> = tests[rule].iter().map(|name| format!("`{name}`")).collect();
        writeln!(table, "| {rule} | {} |", names.join(", ")).unwrap();
    }
    write_between("docs/ehci.md", BEGIN, END, &table, "conformance");
}

/// Holds what is between two marks of a file to `text`, or with `BLESS=1` makes it so.
pub fn write_between(file: &str, begin: &str, end: &str, text: &str, tests: &str) {
    // Two tests write to one file.
    static WRITER: Mutex<()> = Mutex::new(());
    let _writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let whole = fs::read_to_string(path(file)).unwrap();
    let (before, rest) = whole.split_once(begin).expect("the file has a place for it");
    let (old, after) = rest.split_once(end).expect("which has an end");
    if std::env::var_os("BLESS").is_some() {
        fs::write(path(file), format!("{before}{begin}{text}{end}{after}")).unwrap();
    } else {
        assert!(old == text, "run: BLESS=1 cargo test --test ehci {tests}");
    }
}
