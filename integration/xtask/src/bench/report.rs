//! Medians, ratios, and the table of them.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::idle::{Extra, Use};
use crate::guest::{Kind, Maker, Transport};

/// Where the table of a pacing begins and ends in a document.
fn markers(pacing: &str) -> [String; 2] {
    ["begin", "end"].map(|which| format!("<!-- bench {pacing}:{which} -->"))
}

/// What one turn of one controller gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reading {
    /// In MB/s.
    pub(crate) read: f64,
    /// In MB/s; `None` where writing is not measured.
    pub(crate) write: Option<f64>,
    /// The median of the random reads, in microseconds.
    pub(crate) half_within: f64,
    /// Their 99th percentile, in microseconds.
    pub(crate) nearly_all_within: f64,
}

/// A disk and the controller it is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Which {
    pub(crate) kind: Kind,
    pub(crate) maker: Maker,
    pub(crate) transport: Transport,
}

impl Which {
    /// The disk that a maker has when nothing more is said.
    fn plain(kind: Kind, maker: Maker) -> Self {
        Self { kind, maker, transport: Transport::of(maker) }
    }
}

/// All readings of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Readings(Vec<(Which, Reading)>);

impl Readings {
    pub(crate) fn add(&mut self, which: Which, reading: Reading) {
        self.0.push((which, reading));
    }

    /// The median of a figure, if there is one.
    fn median(&self, which: Which, figure: impl Fn(&Reading) -> Option<f64>) -> Option<f64> {
        let own = self.0.iter().filter(|(one, _)| *one == which);
        let values: Vec<_> = own.filter_map(|(_, reading)| figure(reading)).collect();
        (!values.is_empty()).then(|| median(values.into_iter()))
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<_> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A row's figure.
struct Figure {
    name: &'static str,
    unit: &'static str,
    is_rate: bool,
    of: fn(&Reading) -> Option<f64>,
}

const FIGURES: [Figure; 4] = [
    Figure {
        name: "1 MiB sequential read",
        unit: "MB/s",
        is_rate: true,
        of: |reading| Some(reading.read),
    },
    Figure {
        name: "1 MiB sequential write",
        unit: "MB/s",
        is_rate: true,
        of: |reading| reading.write,
    },
    Figure {
        name: "4 KiB random read, median",
        unit: "us",
        is_rate: false,
        of: |reading| Some(reading.half_within),
    },
    Figure {
        name: "4 KiB random read, 99 % within",
        unit: "us",
        is_rate: false,
        of: |reading| Some(reading.nearly_all_within),
    },
];

/// The table in Markdown; a ratio above one says how many times better ours is.
pub(crate) fn table(title: &str, readings: &Readings, idle: &[Extra]) -> String {
    let mut text = format!(
        "{title}\n\n| controller | figure | ours | QEMU's | ours is better by | qemu-xhci |\n\
         |---|---|---|---|---|---|\n"
    );
    let like = |transport| [Maker::Ours, Maker::Qemu].map(|maker| (maker, transport));
    for kind in [Kind::Ehci, Kind::Ohci] {
        let plain = [Maker::Ours, Maker::Qemu].map(|maker| (maker, Transport::of(maker)));
        let rows = [
            ("", plain),
            (", both bulk-only", like(Transport::BulkOnly)),
            (", both UAS", like(Transport::Uas)),
        ];
        for (addition, pair) in rows {
            for Figure { name, unit, is_rate, of } in FIGURES {
                let [ours, qemus] = pair.map(|(maker, transport)| {
                    readings.median(Which { kind, maker, transport }, of)
                });
                if !addition.is_empty() && (ours.is_none() || qemus.is_none()) {
                    continue;
                }
                let xhci = readings.median(Which::plain(Kind::Xhci, Maker::Qemu), of);
                let xhci = xhci.filter(|_| addition.is_empty());
                let ratio = ours.zip(qemus);
                let ratio = ratio.map(|(o, q)| if is_rate { o / q } else { q / o });
                let digits = if is_rate { 1 } else { 0 };
                let name = format!("{name}{addition}");
                row(&mut text, kind, &name, [ours, qemus, xhci], (unit, digits), ratio);
            }
        }
    }
    let rows = [
        (Kind::Ehci, Use::Open, "extra wakeups when idle"),
        (Kind::Ehci, Use::OpenUnknown, "the same with an id Linux does not know"),
        (Kind::Ohci, Use::Open, "extra wakeups when idle"),
        (Kind::Ohci, Use::Suspended, "extra wakeups when suspended"),
    ];
    for (kind, used, name) in rows {
        let of = |kind, maker, used| {
            idle.iter().find(|one| (one.kind, one.maker, one.used) == (kind, maker, used))
        };
        let Some(ours) = of(kind, Maker::Ours, used) else {
            continue;
        };
        let qemus = of(kind, Maker::Qemu, used).map(|extra| extra.all);
        let xhci = of(Kind::Xhci, Maker::Qemu, used).map(|extra| extra.all);
        // What is less than one a second is noise, and not to be divided by.
        let ratio = qemus.filter(|qemus| ours.all.min(*qemus) >= 1.0);
        let ratio = ratio.map(|qemus| qemus / ours.all);
        row(&mut text, kind, name, [Some(ours.all), qemus, xhci], ("/s", 0), ratio);
        let own = [Some(ours.server), None, None];
        row(&mut text, kind, "of these, vm-usbd's own", own, ("/s", 0), None);
    }
    text
}

fn row(
    text: &mut String,
    kind: Kind,
    figure: &str,
    values: [Option<f64>; 3],
    (unit, digits): (&str, usize),
    ratio: Option<f64>,
) {
    let kind = kind.name().to_uppercase();
    let [ours, qemus, xhci] = values.map(|value| {
        value.map_or("-".to_owned(), |value| format!("{} {unit}", rounded(value, digits)))
    });
    let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2} times"));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "| {kind} | {figure} | {ours} | {qemus} | {ratio} | {xhci} |");
}

/// A difference that is next to nothing may be below zero: it is 0, not -0.
fn rounded(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let is_zero = text.parse() == Ok(0.0);
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

/// The document with `table` between the markers of its pacing.
pub(crate) fn put_in(document: &str, pacing: &str, table: &str) -> Result<String> {
    let [begin, end] = &markers(pacing);
    let (before, rest) =
        document.split_once(begin).with_context(|| format!("there is no line `{begin}`"))?;
    let (_, after) = rest
        .split_once(end)
        .with_context(|| format!("there is no line `{end}` after `{begin}`"))?;
    Ok(format!("{before}{begin}\n{}\n{end}{after}", table.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(read: f64, half_within: f64) -> Reading {
        Reading { read, write: None, half_within, nearly_all_within: half_within * 2.0 }
    }

    #[test]
    fn rates_and_times_both_count_as_better_above_one() {
        let mut readings = Readings::default();
        for value in [100.0, 90.0, 500.0] {
            readings.add(Which::plain(Kind::Ehci, Maker::Ours), reading(value, 200.0));
            readings.add(Which::plain(Kind::Ehci, Maker::Qemu), reading(50.0, 800.0));
            readings.add(Which::plain(Kind::Xhci, Maker::Qemu), reading(900.0, 100.0));
            let uas = Transport::Uas;
            let theirs = Which { kind: Kind::Ehci, maker: Maker::Qemu, transport: uas };
            readings.add(theirs, reading(80.0, 2000.0));
        }
        let extra = |kind, maker, used, all| Extra { kind, maker, used, all, server: all / 2.0 };
        let idle = [
            extra(Kind::Ehci, Maker::Ours, Use::Open, 2.0),
            extra(Kind::Ehci, Maker::Ours, Use::OpenUnknown, 40.0),
            extra(Kind::Ehci, Maker::Qemu, Use::Open, 14.0),
            extra(Kind::Ohci, Maker::Ours, Use::Suspended, -0.4),
            extra(Kind::Ohci, Maker::Qemu, Use::Suspended, -6.0),
            extra(Kind::Xhci, Maker::Qemu, Use::Open, 0.4),
        ];
        let text = table("title", &readings, &idle);
        for row in [
            "| EHCI | 1 MiB sequential read | 100.0 MB/s | 50.0 MB/s | 2.00 times | 900.0 MB/s |",
            "| EHCI | 1 MiB sequential write | - | - | - | - |",
            "| EHCI | 4 KiB random read, median | 200 us | 800 us | 4.00 times | 100 us |",
            "| EHCI | 1 MiB sequential read, both UAS | 100.0 MB/s | 80.0 MB/s | 1.25 times | - |",
            "| EHCI | extra wakeups when idle | 2 /s | 14 /s | 7.00 times | 0 /s |",
            "| EHCI | of these, vm-usbd's own | 1 /s | - | - | - |",
            "| EHCI | the same with an id Linux does not know | 40 /s | - | - | - |",
            "| OHCI | extra wakeups when suspended | 0 /s | -6 /s | - | - |",
        ] {
            assert!(text.contains(row), "{row} is not in\n{text}");
        }
        assert!(!text.contains("both bulk-only"), "there is no pair of them\n{text}");
    }

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let part = |pacing: &str, text: &str| {
            let [begin, end] = markers(pacing);
            format!("{begin}\n{text}\n{end}\n")
        };
        let with = |eager: &str| {
            format!("above\n{}{}below\n", part("realtime", "old"), part("eager", eager))
        };
        assert_eq!(put_in(&with("old"), "eager", "new\n").unwrap(), with("new"));
        assert!(put_in(&with("old"), "wire", "new").is_err());
    }
}
