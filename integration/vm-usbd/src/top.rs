//! `vm-usbd top`: what a running server does, once a second.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::termios::tcgetwinsize;

use crate::control::client::{AskError, ask};
use crate::control::verbs::{Reply, Verb};
use crate::statistics::Statistics;

/// The other screen without a cursor, and back to the first with one.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the upper left corner; to the end of the line; to the end of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// What is asked for: `None` if the server is of a kind that does not know the question.
fn counts(path: &Path) -> Result<Statistics, AskError> {
    match ask(path, &Verb::Stats)? {
        Reply::Statistics(statistics) => Ok(statistics),
        _ => Err(AskError::Refused("the server answered something else".to_owned())),
    }
}

/// Shows the server at `path` until `end` says something: on a terminal again and again, redrawn each
/// `interval`; anywhere else once, after one interval.
///
/// # Errors
/// If the server cannot be reached, or goes away.
pub fn run(path: &Path, interval: Duration, end: &Receiver<()>) -> Result<(), AskError> {
    let mut before = counts(path)?;
    let out = io::stdout();
    if !out.is_terminal() {
        if wait(end, interval) {
            let rates = counts(path)?.per_second(&before);
            // Whoever reads it may have read enough.
            let _ = writeln!(out.lock(), "{}", page(path, &rates));
        }
        return Ok(());
    }
    let _screen = Screen::enter();
    loop {
        // The first look has nothing to be compared with yet.
        if !wait(end, interval) {
            return Ok(());
        }
        let now = counts(path)?;
        let rates = now.clone().per_second(&before);
        before = now;
        let size = tcgetwinsize(&out).ok();
        let (rows, columns) =
            size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
        let mut lock = out.lock();
        let _ = lock.write_all(frame(&page(path, &rates), rows, columns).as_bytes());
        let _ = lock.flush();
    }
}

/// Whether the time passed without a word to end.
fn wait(end: &Receiver<()>, interval: Duration) -> bool {
    end.recv_timeout(interval) == Err(RecvTimeoutError::Timeout)
}

/// What is shown.
fn page(path: &Path, rates: &Statistics) -> String {
    format!(
        "vm-usbd at {}: counts a second; stalls, errors and latencies since the start\n\n{rates}",
        path.display()
    )
}

/// A page on a terminal of so many rows and columns, over the one before.
fn frame(page: &str, rows: usize, columns: usize) -> String {
    let lines = page.lines().take(rows.max(1));
    let lines: Vec<String> = lines
        .map(|line| line.chars().take(columns.max(1)).chain(CLEAR_LINE.chars()).collect())
        .collect();
    format!("{HOME}{}{CLEAR_REST}", lines.join("\n"))
}

/// The terminal's other screen; the first is back when this is dropped.
struct Screen;

impl Screen {
    fn enter() -> Self {
        say(ENTER);
        Self
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        say(LEAVE);
    }
}

/// If the terminal is gone there is nobody to tell.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_the_terminal_and_leaves_nothing_of_the_one_before() {
        let page = "first line\nsecond\nthird\nfourth";
        assert_eq!(frame(page, 3, 6), "\x1b[Hfirst \x1b[K\nsecond\x1b[K\nthird\x1b[K\x1b[J");
        assert_eq!(frame("x", 0, 0), "\x1b[Hx\x1b[K\x1b[J");
    }
}
