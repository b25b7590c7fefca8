//! Holds tests to the chapter of the documentation that states what they test.
#![allow(dead_code, unreachable_pub, reason = "each test program has chapters of its own kind")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A chapter whose rules are list items that begin with a bold id, `- **OHCI-ERR-10** ...`, and whose
/// table at the end names the tests of each.
///
/// A test is named after its rule: `ohci_err_10_...`. It may hold several of one area, and then names
/// them all: `ohci_hg_2_3_...`.
pub struct Chapter {
    /// The file, from the package's directory.
    pub file: &'static str,
    /// The folder with the tests.
    pub tests: &'static str,
    /// What the ids begin with.
    pub prefixes: &'static [&'static str],
}

const BEGIN: &str = "<!-- conformance -->\n";
const END: &str = "<!-- end of conformance -->";

/// The file, from the package's directory.
pub fn path(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(relative)
}

impl Chapter {
    /// The ids of the rules, in the chapter's order.
    fn rules(&self, chapter: &str) -> Vec<String> {
        let items = chapter.lines().filter_map(|line| line.strip_prefix("- **"));
        let ids = items.filter_map(|item| Some(item.split_once("**")?.0.to_owned()));
        ids.filter(|id| self.prefixes.iter().any(|prefix| id.starts_with(prefix))).collect()
    }

    /// The tests of each rule.
    fn tests(&self) -> BTreeMap<String, Vec<String>> {
        let prefixes: Vec<String> = self.prefixes.iter().map(|p| p.to_lowercase() + "_").collect();
        let mut tests = BTreeMap::<String, Vec<String>>::new();
        for name in names_of_tests(&path(self.tests)) {
            let Some(prefix) = prefixes.iter().find(|prefix| name.starts_with(*prefix)) else {
                continue;
            };
            let (area, rest) = name[prefix.len()..].split_once('_').expect("a rule has an area");
            let mut numbers =
                rest.split('_').take_while(|part| part.parse::<u32>().is_ok()).peekable();
            assert!(numbers.peek().is_some(), "{name} names no rule");
            for number in numbers {
                let rule = format!("{prefix}{area}_{number}").to_uppercase().replace('_', "-");
                tests.entry(rule).or_default().push(name.clone());
            }
        }
        tests
    }

    /// Every rule has a test, every test a rule, and the chapter's table is up to date; `run` is the
    /// command that brings it so, with `BLESS=1`.
    pub fn check(&self, least: usize, run: &str) {
        let chapter = fs::read_to_string(path(self.file)).unwrap();
        let (rules, tests) = (self.rules(&chapter), self.tests());
        assert!(rules.len() >= least, "{} rules in {}", rules.len(), self.file);
        let without: Vec<_> = rules.iter().filter(|rule| !tests.contains_key(*rule)).collect();
        assert!(without.is_empty(), "without a test: {without:?}");
        let unknown: Vec<_> = tests.keys().filter(|rule| !rules.contains(*rule)).collect();
        assert!(unknown.is_empty(), "not stated by {}: {unknown:?}", self.file);

        let mut table = String::from("| Rule | Tests |\n|---|---|\n");
        for rule in &rules {
            let names: Vec<_> = tests[rule].iter().map(|name| format!("`{name}`")).collect();
            writeln!(table, "| {rule} | {} |", names.join(", ")).unwrap();
        }
        write_between(self.file, BEGIN, END, &table, run);
    }
}

/// The names of the test functions below `folder`, file by file.
pub fn names_of_tests(folder: &Path) -> Vec<String> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut names = Vec::new();
    for path in paths {
        if path.is_dir() {
            names.extend(names_of_tests(&path));
            continue;
        }
        let source = fs::read_to_string(path).unwrap();
        let mut is_test = false;
        for line in source.lines().map(str::trim_start) {
            if let Some(name) = line.strip_prefix("fn ").filter(|_| is_test) {
                names.push(name.split_once('(').unwrap().0.to_owned());
            }
            is_test = line == "#[test]" || (is_test && line.starts_with("#["));
        }
    }
    names
}

/// Holds what is between two marks of a file to `text`, or with `BLESS=1` makes it so.
pub fn write_between(file: &str, begin: &str, end: &str, text: &str, run: &str) {
    // Two tests write to one file.
    static WRITER: Mutex<()> = Mutex::new(());
    let _writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let whole = fs::read_to_string(path(file)).unwrap();
    let (before, rest) = whole.split_once(begin).expect("the file has a place for it");
    let (old, after) = rest.split_once(end).expect("which has an end");
    if std::env::var_os("BLESS").is_some() {
        fs::write(path(file), format!("{before}{begin}{text}{end}{after}")).unwrap();
    } else {
        assert!(old == text, "run: BLESS=1 {run}");
    }
}
