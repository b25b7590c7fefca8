//! Progress on a terminal; one line a step where there is none.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `total` bytes.
pub(crate) fn bytes(label: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg:32} [{bar:30}] {bytes:>10} of {total_bytes} {bytes_per_sec}",
    );
    started(ProgressBar::new(total), style, label)
}

/// A bar over `total` steps.
pub(crate) fn steps(label: &str, total: u64) -> ProgressBar {
    started(
        ProgressBar::new(total),
        ProgressStyle::with_template("{msg:32} [{bar:30}] {pos} of {len}"),
        label,
    )
}

/// A spinner for work whose length nobody knows.
pub(crate) fn spinner(label: &str) -> ProgressBar {
    let bar = started(
        ProgressBar::new_spinner(),
        ProgressStyle::with_template("{spinner} {msg} ({elapsed})"),
        label,
    );
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn started(
    bar: ProgressBar,
    style: Result<ProgressStyle, indicatif::style::TemplateError>,
    label: &str,
) -> ProgressBar {
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(label.to_owned());
    if bar.is_hidden() {
        eprintln!("{label} ...");
    }
    bar
}
