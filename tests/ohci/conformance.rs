//! `docs/ohci.md` states the rules; this holds the tests against it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

const BEGIN: &str = "<!-- conformance -->\n";
const END: &str = "<!-- end of conformance -->";

fn path(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// The ids of the rules, in the chapter's order.
fn rules(chapter: &str) -> Vec<String> {
    let starts = chapter.lines().filter_map(|line| line.strip_prefix("- **OHCI-"));
    starts.map(|line| format!("OHCI-{}", line.split_once("**").unwrap().0)).collect()
}

/// The tests of each rule.
fn tests() -> BTreeMap<String, Vec<String>> {
    let mut tests = BTreeMap::<String, Vec<String>>::new();
    let mut files: Vec<PathBuf> =
        fs::read_dir(path("tests/ohci")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let source = fs::read_to_string(file).unwrap();
        let mut is_test = false;
        for line in source.lines() {
            if let Some(name) = line.strip_prefix("fn ohci_").filter(|_| is_test) {
                let name = name.split_once('(').unwrap().0;
                let (area, rest) = name.split_once('_').unwrap();
                let number = rest.split_once('_').unwrap().0;
                let rule = format!("OHCI-{}-{number}", area.to_uppercase());
                tests.entry(rule).or_default().push(format!("ohci_{name}"));
            }
            is_test = line == "#[test]";
        }
    }
    tests
}

#[test]
fn conformance_every_rule_of_the_chapter_has_a_test() {
    let chapter = fs::read_to_string(path("docs/ohci.md")).unwrap();
    let rules = rules(&chapter);
    let tests = tests();
    assert!(rules.len() > 150, "the chapter states the rules");
    let without: Vec<_> = rules.iter().filter(|rule| !tests.contains_key(*rule)).collect();
    assert!(without.is_empty(), "no test for {without:?}");
    let unknown: Vec<_> = tests.keys().filter(|rule| !rules.contains(rule)).collect();
    assert!(unknown.is_empty(), "tests for rules that the chapter does not state: {unknown:?}");

    let mut table = String::from("| Rule | Tests |\n|---|---|\n");
    for rule in &rules {
        let names: Vec<String> = tests[rule].iter().map(|name| format!("`{name}`")).collect();
        writeln!(table, "| {rule} | {} |", names.join(", ")).unwrap();
    }
    let (before, rest) = chapter.split_once(BEGIN).expect("the chapter has a place for the table");
    let (old, after) = rest.split_once(END).expect("the table has an end");
    if std::env::var_os("BLESS").is_some() {
        fs::write(path("docs/ohci.md"), format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert!(old == table, "run: BLESS=1 cargo test --test ohci conformance");
    }
}
