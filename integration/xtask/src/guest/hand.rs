//! What somebody beside the machine does: presses keys, plugs devices in and pulls them out.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::shell;

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ways to a running `vm-usbd`; clones are good from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Hand {
    /// The server's own program is its client, too.
    program: PathBuf,
    control: PathBuf,
    input: PathBuf,
}

impl Hand {
    /// The hand at the server of the run in the folder `run`.
    pub(crate) fn new(program: &Path, run: &Path) -> Self {
        Self { program: program.to_owned(), control: run.join("control"), input: run.join("input") }
    }

    pub(crate) fn control(&self) -> &Path {
        &self.control
    }

    pub(crate) fn input(&self) -> &Path {
        &self.input
    }

    /// Sends lines to the input socket; each must be answered with `ok`.
    pub(crate) fn inject(&self, lines: &[String]) -> Result<()> {
        let stream = UnixStream::connect(&self.input).context("vm-usbd's input socket")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut answers = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        for line in lines {
            writeln!(writer, "{line}")?;
            let mut answer = String::new();
            answers.read_line(&mut answer).with_context(|| format!("no answer to `{line}`"))?;
            if answer.trim() != "ok" {
                bail!("vm-usbd answered `{}` to `{line}`", answer.trim());
            }
        }
        Ok(())
    }

    /// Plugs a device in; `options` as for `--device`.
    pub(crate) fn attach(&self, options: &str) -> Result<()> {
        self.ctl(&["attach", options]).map(drop)
    }

    /// Pulls the device called `id` out.
    pub(crate) fn detach(&self, id: &str) -> Result<()> {
        self.ctl(&["detach", id]).map(drop)
    }

    /// Frames (OHCI) or microframes (EHCI) that controller `id` has missed so far, by its own count.
    pub(crate) fn skipped_frames(&self, id: &str) -> Result<u64> {
        let output = self.ctl(&["--json", "stats"])?;
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let counts = reply.pointer("/statistics/controllers").and_then(|list| list.as_array());
        let own = counts.and_then(|list| list.iter().find(|one| one["id"] == id));
        let skipped = own.and_then(|counts| counts["frames_skipped"].as_u64());
        skipped.with_context(|| format!("vm-usbd's statistics have no frames of {id}: {reply}"))
    }

    fn ctl(&self, verb: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.args(["ctl", "--control"]).arg(&self.control).args(verb);
        shell::output(&mut command)
    }
}
