//! `cargo xtask test`: everything, and one line at the end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::acceptance;
use crate::guest::Maker;
use crate::lab_run::Bench;
use crate::setup::Lab;
use crate::tally::Tally;
use crate::{shell, workspace};

/// How such a line begins; the test's name and the reason follow.
const EXCUSE: &str = "SKIPPED ";

/// Runs the workspace's tests and then the guests.
pub(crate) fn run() -> Result<ExitCode> {
    let mut tally = workspace_tests()?;
    tally.add(interleavings()?);
    tally.add(corpus()?);
    tally.add(guests()?);
    if tally.skipped > 0 && no_excuses(std::env::var("CI").ok().as_deref()) {
        println!("\nCI=true: the {} that were skipped count as failed.", tally.skipped);
        tally = tally.without_excuses();
    }
    println!("\n{tally}");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether what is skipped counts as failed, given the variable `CI`: a machine that checks for everybody has no
/// excuse, for a test as for a guest; a developer on a train has.
fn no_excuses(ci: Option<&str>) -> bool {
    ci == Some("true")
}

/// All tests of the workspace.
fn workspace_tests() -> Result<Tally> {
    let mut cargo = Command::new(workspace::cargo());
    cargo.args(["test", "--workspace", "--no-fail-fast"]).current_dir(workspace::root());
    // Tests that need a program of the machine's are ignored, and counted as skipped, without it.
    if has("tshark") {
        cargo.args(["--", "--include-ignored"]);
    }
    count(cargo)
}

/// Where threads share something, every order in which they can meet there: loom's model of them, which
/// needs a build of its own.
pub(crate) fn interleavings() -> Result<Tally> {
    let mut cargo = Command::new(workspace::cargo());
    cargo
        .args(["test", "--package", "vm-usb", "--package", "vm-usbd", "--lib", "interleavings"])
        .current_dir(workspace::root())
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", workspace::target().join("loom"));
    let tally = count(cargo)?;
    ensure!(tally.passed + tally.failed > 0, "no test of what threads share was found");
    Ok(tally)
}

/// The fuzz targets' seeds, replayed without a fuzzer. The targets are a workspace of their own.
fn corpus() -> Result<Tally> {
    let mut cargo = Command::new(workspace::cargo());
    cargo
        .args(["test", "--manifest-path", "fuzz/Cargo.toml", "--no-default-features", "--locked"])
        .current_dir(workspace::root())
        // What the two workspaces have in common is built once.
        .env("CARGO_TARGET_DIR", workspace::target());
    let tally = count(cargo)?;
    ensure!(tally.passed + tally.failed > 0, "no test of the fuzz targets' seeds was found");
    Ok(tally)
}

/// Runs a `cargo test`, its output passed on and its totals added up.
fn count(mut cargo: Command) -> Result<Tally> {
    cargo.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = cargo.spawn().with_context(|| shell::cannot_start("cargo"))?;
    let output = child.stdout.take().context("cargo's output is a pipe")?;
    let errors = child.stderr.take().context("cargo's error output is a pipe")?;
    let excuses = thread::spawn(move || count_excuses(errors));
    let mut tally = Tally::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        if let Some(totals) = parse_totals(&line) {
            tally.add(totals);
        }
    }
    tally.excuse(excuses.join().unwrap_or_default());
    if !child.wait()?.success() && tally.failed == 0 {
        println!("FAILED  cargo test did not get to the end");
        tally.failed = 1;
    }
    Ok(tally)
}

/// Passes an error output on and counts the tests that say there, past the test harness, that they did nothing.
fn count_excuses(errors: impl Read) -> usize {
    let mut excuses = 0;
    for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        excuses += usize::from(line.starts_with(EXCUSE));
    }
    excuses
}

/// Whether the machine has a program.
fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`.
fn parse_totals(line: &str) -> Option<Tally> {
    let (_, totals) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |name: &str| -> Option<usize> {
        totals.split("; ").find_map(|part| part.trim().strip_suffix(name)?.trim().parse().ok())
    };
    Some(Tally { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
}

/// The guests, or loud words why there are none.
fn guests() -> Result<Tally> {
    let mut tally = Tally::default();
    let lab = match Lab::set_up() {
        Ok(lab) => lab,
        Err(error) => {
            println!("\nNO GUEST IS TESTED: {error:#}");
            for scenario in acceptance::ALL {
                tally.skip(&scenario.name(), "there is no lab to boot it in");
            }
            return Ok(tally);
        }
    };
    let mut ready = Vec::new();
    for scenario in acceptance::ALL {
        if scenario.kernel().is_some_and(|kernel| lab.kernel(kernel).is_err()) {
            tally.skip(&scenario.name(), "its kernel is not in the cache and cannot be fetched");
        } else {
            ready.push(scenario);
        }
    }
    let bench = Bench::build(lab, &[Maker::Ours])?;
    tally.add(acceptance::run(&bench, Maker::Ours, &ready)?);
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_says_it_did_nothing_is_counted() {
        let errors =
            b"   Compiling vm-usb\nSKIPPED one: no KVM here: x\nnot SKIPPED\nSKIPPED two: \xff\n";
        assert_eq!(count_excuses(&errors[..]), 2);
    }

    #[test]
    fn on_a_machine_that_checks_for_everybody_nothing_is_excused() {
        assert!(no_excuses(Some("true")));
        assert!(!no_excuses(Some("")) && !no_excuses(Some("false")) && !no_excuses(None));
        // A test of the workspace that said it did nothing, one that was ignored, and a guest.
        let mut tally =
            parse_totals("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured").unwrap();
        tally.excuse(count_excuses(&b"SKIPPED one: no KVM here\n"[..]));
        tally.skip("Linux on EHCI", "no kernel");
        assert_eq!(tally, Tally { passed: 2, failed: 0, skipped: 3 });
        assert_eq!(tally.without_excuses(), Tally { passed: 2, failed: 3, skipped: 0 });
    }

    #[test]
    fn the_totals_of_a_test_program_are_read() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s";
        assert_eq!(parse_totals(line), Some(Tally { passed: 12, failed: 0, skipped: 1 }));
        let line = "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.3s";
        assert_eq!(parse_totals(line), Some(Tally { passed: 2, failed: 1, skipped: 0 }));
        assert_eq!(parse_totals("test ohci::tests::one ... ok"), None);
    }
}
