//! Counts the lines that a test's own thread has the library write.

use std::cell::Cell;

use log::{LevelFilter, Log, Metadata, Record};

thread_local! {
    static LINES: Cell<usize> = const { Cell::new(0) };
}

struct Counter;

impl Log for Counter {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &Record<'_>) {
        LINES.set(LINES.get() + 1);
    }

    fn flush(&self) {}
}

/// How many lines `story` has the log take.
pub fn lines_of(story: impl FnOnce()) -> usize {
    // Another test of this program may have been first; it is the same logger.
    let _ = log::set_logger(&Counter);
    log::set_max_level(LevelFilter::Trace);
    LINES.set(0);
    story();
    LINES.get()
}
