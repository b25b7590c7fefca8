//! Medians, ratios, and the table of them.

use std::fmt::Write;

use anyhow::{Context, Result};

use crate::guest::{Kind, Maker};

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";

/// What one turn of one controller gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    pub(crate) megabytes_per_second: f64,
    /// The median of the random reads, in microseconds.
    pub(crate) half_within: f64,
    /// Their 99th percentile, in microseconds.
    pub(crate) nearly_all_within: f64,
}

/// The readings of one kind of controller from both makers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) kind: Kind,
    ours: Vec<Reading>,
    qemus: Vec<Reading>,
}

impl Comparison {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, ours: Vec::new(), qemus: Vec::new() }
    }

    pub(crate) fn add(&mut self, maker: Maker, reading: Reading) {
        match maker {
            Maker::Ours => self.ours.push(reading),
            Maker::Qemu => self.qemus.push(reading),
        }
    }

    fn medians(&self, figure: impl Fn(&Reading) -> f64) -> (f64, f64) {
        (median(self.ours.iter().map(&figure)), median(self.qemus.iter().map(&figure)))
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<_> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The table in Markdown; a ratio above one says how many times better ours is.
pub(crate) fn table(title: &str, comparisons: &[Comparison]) -> String {
    let mut text = format!(
        "{title}\n\n| controller | figure | ours | QEMU's | ours is better by |\n|---|---|---|---|---|\n"
    );
    for comparison in comparisons {
        let kind = comparison.kind.name().to_uppercase();
        let (ours, qemus) = comparison.medians(|reading| reading.megabytes_per_second);
        row(&mut text, &kind, "1 MiB sequential read", (ours, qemus), "MB/s", ours / qemus);
        let (ours, qemus) = comparison.medians(|reading| reading.half_within);
        row(&mut text, &kind, "4 KiB random read, median", (ours, qemus), "us", qemus / ours);
        let (ours, qemus) = comparison.medians(|reading| reading.nearly_all_within);
        row(&mut text, &kind, "4 KiB random read, 99 % within", (ours, qemus), "us", qemus / ours);
    }
    text
}

fn row(text: &mut String, kind: &str, figure: &str, values: (f64, f64), unit: &str, ratio: f64) {
    let (ours, qemus) = values;
    let digits = if unit == "us" { 0 } else { 1 };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "| {kind} | {figure} | {ours:.digits$} {unit} | {qemus:.digits$} {unit} | {ratio:.2} times |"
    );
}

/// The document with `table` between its markers.
pub(crate) fn put_in(document: &str, table: &str) -> Result<String> {
    let (before, rest) =
        document.split_once(BEGIN).with_context(|| format!("there is no line `{BEGIN}`"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("there is no line `{END}` after `{BEGIN}`"))?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", table.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(megabytes_per_second: f64, half_within: f64) -> Reading {
        Reading { megabytes_per_second, half_within, nearly_all_within: half_within * 2.0 }
    }

    #[test]
    fn rates_and_times_both_count_as_better_above_one() {
        let mut comparison = Comparison::new(Kind::Ehci);
        for value in [100.0, 90.0, 500.0] {
            comparison.add(Maker::Ours, reading(value, 200.0));
            comparison.add(Maker::Qemu, reading(50.0, 800.0));
        }
        let text = table("title", &[comparison]);
        assert!(
            text.contains("| EHCI | 1 MiB sequential read | 100.0 MB/s | 50.0 MB/s | 2.00 times |"),
            "{text}"
        );
        assert!(
            text.contains("| EHCI | 4 KiB random read, median | 200 us | 800 us | 4.00 times |"),
            "{text}"
        );
    }

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let document = format!("above\n{BEGIN}\nold\n{END}\nbelow\n");
        assert_eq!(
            put_in(&document, "new\n").unwrap(),
            format!("above\n{BEGIN}\nnew\n{END}\nbelow\n")
        );
        assert!(put_in("nothing", "new").is_err());
    }
}
