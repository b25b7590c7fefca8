//! `cargo xtask fuzz`: each fuzz target for a while, one line of result each.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::tally::Tally;
use crate::{shell, workspace};

/// Longest that one input may take, in seconds: work is bounded and counted by the targets themselves;
/// this ends what they cannot count.
const LONGEST_INPUT: u32 = 60;

/// Runs the targets named in `only`, or all, each for so many `seconds`.
pub(crate) fn run(seconds: u32, only: &[String]) -> Result<Tally> {
    check_tools()?;
    let listed = shell::output(nightly().args(["fuzz", "list"]))?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let all: Vec<_> = listed.lines().map(str::trim).filter(|name| !name.is_empty()).collect();
    for name in only {
        ensure!(
            all.contains(&name.as_str()),
            "there is no fuzz target `{name}`; there are {}",
            all.join(", ")
        );
    }
    let mut tally = Tally::default();
    for target in all {
        if only.is_empty() || only.iter().any(|name| name == target) {
            tally.check(target, || fuzz(target, seconds));
        }
    }
    Ok(tally)
}

/// Cargo with a nightly compiler. The one that runs us is another: rustup's has to find it.
fn nightly() -> Command {
    let mut command = Command::new("cargo");
    command.arg("+nightly").current_dir(workspace::root());
    command
}

fn check_tools() -> Result<()> {
    if shell::output(nightly().arg("--version")).is_err() {
        bail!(
            "fuzzing needs a nightly compiler: install one with `rustup toolchain install nightly`"
        );
    }
    if shell::output(nightly().args(["fuzz", "--version"])).is_err() {
        bail!("fuzzing needs cargo-fuzz: install it with `cargo install cargo-fuzz`");
    }
    Ok(())
}

/// One target. What it finds joins the corpus beside the build's output, not the one in the
/// repository.
fn fuzz(target: &str, seconds: u32) -> Result<String> {
    let found = workspace::target().join("fuzz-corpus").join(target);
    fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
    let seeds = workspace::root().join("fuzz/corpus").join(target);
    let mut command = nightly();
    // The sanitizer finds what unsafe code does wrong, and there is none here.
    command.args(["fuzz", "run", "--sanitizer", "none", target]).args([&found, &seeds]);
    command.arg("--").args([
        format!("-max_total_time={seconds}"),
        format!("-timeout={LONGEST_INPUT}"),
        "-print_final_stats=1".into(),
    ]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| shell::cannot_start("cargo"))?;
    let log = child.stderr.take().context("its error output is a pipe")?;
    let mut summary = Summary::default();
    for line in BufReader::new(log).lines() {
        summary.take(&line?);
    }
    if !child.wait()?.success() {
        bail!("{}", summary.tail.join("\n"));
    }
    Ok(summary.to_string())
}

/// What libFuzzer said.
#[derive(Debug, Default, PartialEq)]
struct Summary {
    executions: u64,
    /// Edges of the program's flow that were taken, and those with how often as "features".
    edges: u64,
    features: u64,
    /// The end of it, which says what failed and how to reproduce it.
    tail: Vec<String>,
}

impl Summary {
    /// Most lines that are kept for a failure.
    const TAIL: usize = 60;

    fn take(&mut self, line: &str) {
        let after = |key: &str| {
            let (_, rest) = line.split_once(key)?;
            rest.split_whitespace().next()?.parse().ok()
        };
        if let Some(count) = after("stat::number_of_executed_units:") {
            self.executions = count;
        }
        if let (Some(edges), Some(features)) = (after(" cov: "), after(" ft: ")) {
            (self.edges, self.features) = (edges, features);
        }
        if self.tail.len() == Self::TAIL {
            self.tail.remove(0);
        }
        self.tail.push(line.to_owned());
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { executions, edges, features, .. } = self;
        write!(f, "{executions} executions, {edges} edges, {features} features")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzzers_figures_are_read() {
        let mut summary = Summary::default();
        for line in [
            "INFO: seed corpus: files: 9 min: 4b max: 512b total: 1420b rss: 40Mb",
            "#8192\tpulse  cov: 2112 ft: 8041 corp: 310/61Kb lim: 512 exec/s: 1170 rss: 61Mb",
            "#9000\tDONE   cov: 2113 ft: 8050 corp: 311/61Kb lim: 512 exec/s: 1125 rss: 61Mb",
            "stat::number_of_executed_units: 9000",
            "stat::average_exec_per_sec:     1125",
        ] {
            summary.take(line);
        }
        assert_eq!(summary.to_string(), "9000 executions, 2113 edges, 8050 features");
        assert_eq!(summary.tail.len(), 5);
    }
}
