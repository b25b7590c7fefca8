//! Running other programs, with errors that say which and why.

use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `command` to its end and gives what it wrote; a failure says what it wrote to its error output.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| cannot_start(&name))?;
    if !output.status.success() {
        bail!("{name} failed ({}): {}", output.status, last_lines(&output.stderr));
    }
    Ok(output)
}

/// Runs `command` to its end with its output on ours.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| cannot_start(&name))?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    Ok(())
}

pub(crate) fn cannot_start(program: &str) -> String {
    format!("cannot start `{program}`: is it installed and in PATH?")
}

/// The end of an error output: the part that says why.
pub(crate) fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" / ")
}
