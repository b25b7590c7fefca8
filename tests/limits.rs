//! `docs/limits.md` lists the limits; this holds the code and the tests to it. The limits that no other
//! test reaches are tested here.

mod chapter;

use std::fs;
use std::path::PathBuf;

use vm_usb::controller::{Context, HostController};
use vm_usb::devices::hub::{Hub, HubOptions};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::snapshot::{self, MOST_BYTES};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};

/// A row of the chapter: constant, value, file, tests.
struct Limit {
    name: String,
    value: String,
    file: String,
    tests: Vec<String>,
}

/// What is between each pair of backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn limits() -> Vec<Limit> {
    let chapter = fs::read_to_string(chapter::path("docs/limits.md")).unwrap();
    let rows = chapter.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [constant, file, _, tests] = cells[..] else { panic!("four cells: {row}") };
        let constant = quoted(constant).remove(0);
        let (name, value) = constant.split_once(" = ").expect("a name and a value");
        Limit {
            name: name.to_owned(),
            value: value.to_owned(),
            file: quoted(file).remove(0),
            tests: quoted(tests),
        }
    })
    .collect()
}

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![chapter::path(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn every_limit_of_the_chapter_is_in_the_code_and_has_its_tests() {
    let limits = limits();
    assert!(limits.len() >= 50, "{} limits", limits.len());
    let mut tests = Vec::new();
    for folder in ["tests", "src", "integration/vm-usbd", "integration/image"] {
        tests.extend(chapter::names_of_tests(&chapter::path(folder)));
    }
    for Limit { name, value, file, tests: held_by } in limits {
        let source = fs::read_to_string(chapter::path(&file)).expect(&file);
        let mut constants =
            source.lines().filter_map(|line| line.trim().split_once(&format!("const {name}: ")));
        let found = constants.any(|(_, rest)| {
            rest.split_once(" = ").is_some_and(|(_, found)| found == format!("{value};"))
        });
        assert!(found, "{file} has no {name} = {value}");
        assert!(!held_by.is_empty(), "{name} has no test");
        for test in held_by {
            assert!(tests.contains(&test), "{name}: there is no test {test}");
        }
    }
}

/// Words in the comment of a constant that make it a limit.
const WORDS: [&str; 4] = ["/// Most ", "/// Largest ", "/// Longest ", " in one turn"];

#[test]
fn every_constant_that_calls_itself_a_limit_is_in_the_chapter() {
    let listed: Vec<(String, String)> =
        limits().into_iter().map(|limit| (limit.file, limit.name)).collect();
    let root = chapter::path("");
    let mut missing = Vec::new();
    for path in ["src", "integration/vm-usbd/src", "integration/image/src"].map(sources).concat() {
        let file = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        let source = fs::read_to_string(&path).unwrap();
        let mut comment = String::new();
        for line in source.lines().map(str::trim) {
            if line.starts_with("///") {
                comment.push_str(line);
                continue;
            }
            let named = line.split_once("const ").and_then(|(_, rest)| rest.split_once(": "));
            if let Some((name, _)) = named
                // A trait's own has no value.
                && line.contains(" = ")
                && WORDS.iter().any(|word| comment.contains(word))
                && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
                && !listed.contains(&(file.clone(), name.to_owned()))
            {
                missing.push(format!("{file}: {name}"));
            }
            comment.clear();
        }
    }
    assert!(missing.is_empty(), "not in docs/limits.md: {missing:#?}");
}

#[test]
fn a_root_hub_has_fifteen_ports_at_most() {
    for count in 14..=16u8 {
        let links = |host| (0..count).map(|_| Port::shared().link(host)).collect();
        let read = |controller: &mut dyn HostController<vm_memory::GuestMemoryMmap>, offset| {
            let mut data = [0; 4];
            controller.read(&Context::without_dma(Time::ZERO), offset, &mut data);
            u32::from_le_bytes(data)
        };
        let expected = u32::from(count.min(15));
        assert_eq!(read(&mut Ohci::new(links(Host::Classic)), 0x48) & 0xff, expected);
        assert_eq!(read(&mut Ehci::new(links(Host::High)), 4) & 0xf, expected);
        let hub = Hub::new(HubOptions { ports: count, ..HubOptions::default() });
        assert_eq!(hub.is_ok(), count <= 15, "a hub says so");
    }
}

#[test]
fn a_snapshot_of_the_largest_size_is_restored_and_no_larger_one() {
    let mut controller = Ohci::new(vec![Port::classic().link(Host::Classic)]);
    let mut bytes = snapshot::save(Time::ZERO, &[("controller", &controller)]).unwrap();
    let mut restore = |bytes: &[u8]| {
        snapshot::restore(bytes, Time::ZERO, &mut [("controller", &mut controller)]).is_ok()
    };
    bytes.resize(MOST_BYTES - 1, b' ');
    assert!(restore(&bytes));
    bytes.resize(MOST_BYTES, b' ');
    assert!(restore(&bytes));
    bytes.resize(MOST_BYTES + 1, b' ');
    assert!(!restore(&bytes));
}
