//! What the polling policy costs and what it buys: latency against wake-ups, for several settings.
//!
//! A driver with one idle queue head in the ring gives it a transfer at random moments, by a store to
//! memory that nobody hears of. The table and the plot in `docs/` are what this measures, on a
//! simulated clock, so they are the same on every machine.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use vm_usb::ehci::Polling;
use vm_usb::time::Time;
use vm_usb::usb::Pid;

use crate::chapter::{path, write_between};
use crate::driver::ehci::{Td, token};
use crate::rig::{OUT1, Rig};

/// Transfers for each figure.
const TRANSFERS: u64 = 300;
/// Means of the time between the end of a transfer and the next one, in microseconds.
const GAPS: [u64; 4] = [100, 1_000, 10_000, 100_000];

const BEGIN: &str = "<!-- polling -->\n";
const END: &str = "<!-- end of polling -->";
const PLOT: &str = "docs/polling.svg";

fn settings() -> [(&'static str, Polling); 5] {
    let micros = Duration::from_micros;
    let between = |shortest, longest| Polling {
        shortest: micros(shortest),
        longest: micros(longest),
        resting: micros(longest),
        ..Polling::default()
    };
    [
        ("10 us to 1 ms (the default)", Polling::default()),
        ("10 us to 125 us", between(10, 125)),
        ("125 us to 4 ms", between(125, 4_000)),
        ("always 125 us", between(125, 125)),
        ("always 1 ms, a frame timer", between(1_000, 1_000)),
    ]
}

/// What one setting costs and buys with one kind of driver.
#[derive(Clone, Copy)]
struct Figures {
    /// Latency in microseconds.
    mean: u64,
    p99: u64,
    wakeups: u64,
}

/// A small generator: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// The controller's owner: sleeps until the deadline, and counts how often it wakes.
struct Owner {
    rig: Rig,
    wakeups: u64,
}

impl Owner {
    /// Lets time pass until `end` or until `done`.
    fn until(&mut self, end: Time, done: impl Fn(&Rig) -> bool) {
        while !done(&self.rig) {
            let machine = &mut self.rig.driver.machine;
            let Some(deadline) = machine.deadline().filter(|deadline| *deadline <= end) else {
                machine.now = end;
                return;
            };
            machine.now = deadline.max(machine.now.after_nanos(100));
            machine.run();
            self.wakeups += 1;
        }
    }
}

fn measure(polling: Polling, gap: u64) -> Figures {
    let mut rig = Rig::with(|ehci| ehci.with_polling(polling));
    let buffer = rig.buffer(64);
    let mut queue = rig.open(OUT1, 0);
    let mut owner = Owner { rig, wakeups: 0 };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let begin = owner.rig.driver.machine.now;
    let mut latencies = Vec::new();
    for _ in 0..TRANSFERS {
        let wait = random.below(2 * gap * 1_000);
        let now = owner.rig.driver.machine.now;
        owner.until(now.after_nanos(wait), |_| false);
        let given = owner.rig.driver.machine.now;
        let qtd = owner.rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64).ioc()])[0];
        owner.until(given.after_millis(100), |rig| rig.token(qtd) & token::ACTIVE == 0);
        assert_eq!(owner.rig.token(qtd) & token::ACTIVE, 0, "it is seen at last");
        let seen = owner.rig.driver.machine.now;
        latencies.push(seen.nanos_since(given));
        // The interrupt handler's registers are activity, as is the transfer itself.
        owner.until(seen.after_millis(1), |rig| rig.driver.machine.line);
        owner.rig.driver.take_events();
    }
    let passed = owner.rig.driver.machine.now.nanos_since(begin);
    latencies.sort_unstable();
    let at = |part: usize| latencies[latencies.len() * part / 100];
    Figures {
        mean: latencies.iter().sum::<u64>() / TRANSFERS / 1_000,
        p99: at(99) / 1_000,
        wakeups: owner.wakeups * 1_000_000_000 / passed,
    }
}

fn table(figures: &[(&str, [Figures; GAPS.len()])]) -> String {
    let mut table = String::from("| Looks every |");
    for gap in GAPS {
        let gap = if gap < 1_000 { format!("{gap} us") } else { format!("{} ms", gap / 1_000) };
        write!(table, " pauses of {gap} |").unwrap();
    }
    writeln!(table, "\n|---|{}", "---|".repeat(GAPS.len())).unwrap();
    for (name, row) in figures {
        write!(table, "| {name} |").unwrap();
        for Figures { mean, p99, wakeups } in row {
            write!(table, " {mean} / {p99} us, {wakeups}/s |").unwrap();
        }
        table.push('\n');
    }
    table
}

/// Wake-ups a second to the right, mean latency upwards, both in powers of ten; a line a setting.
fn plot(figures: &[(&str, [Figures; GAPS.len()])]) -> String {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 420.0;
    const MARGIN: f64 = 60.0;
    const COLOURS: [&str; 5] = ["#1b6ca8", "#c0392b", "#27865a", "#8e5bb5", "#b9770e"];
    // Rounded, so that no last digit of a logarithm shows.
    let x =
        |wakeups: f64| (MARGIN + (wakeups.log10() - 1.0) * (WIDTH - 2.0 * MARGIN) / 4.0).round();
    let y = |micros: f64| {
        (HEIGHT - MARGIN - micros.max(1.0).log10() * (HEIGHT - 2.0 * MARGIN) / 4.0).round()
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for power in 0..=4 {
        let (wakeups, micros) = (10f64.powi(power + 1), 10f64.powi(power));
        let (right, bottom) = (WIDTH - MARGIN, HEIGHT - MARGIN);
        writeln!(
            svg,
            "<path d=\"M{0} {MARGIN}V{bottom}M{MARGIN} {1}H{right}\" stroke=\"#ddd\"/>\n\
             <text x=\"{0}\" y=\"{2}\" text-anchor=\"middle\">{wakeups}</text>\n\
             <text x=\"{3}\" y=\"{1}\" text-anchor=\"end\">{micros}</text>",
            x(wakeups),
            y(micros),
            bottom + 18.0,
            MARGIN - 6.0,
        )
        .unwrap();
    }
    writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">wake-ups a second</text>\n\
         <text x=\"{MARGIN}\" y=\"30\">mean latency in us; each line from pauses of 100 us (right) \
         to 100 ms (left)</text>",
        WIDTH / 2.0,
        HEIGHT - 18.0,
    )
    .unwrap();
    for (n, (name, row)) in figures.iter().enumerate() {
        let points: Vec<_> =
            row.iter().map(|f| format!("{},{}", x(f.wakeups as f64), y(f.mean as f64))).collect();
        let (colour, place) = (COLOURS[n], 60.0 + 18.0 * n as f64);
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <text x=\"{}\" y=\"{place}\" fill=\"{colour}\" text-anchor=\"end\">{name}</text>",
            points.join(" "),
            WIDTH - MARGIN,
        )
        .unwrap();
    }
    svg + "</svg>\n"
}

#[test]
fn polling_figures_in_the_documentation_are_those_of_today() {
    let figures = settings().map(|(name, polling)| (name, GAPS.map(|gap| measure(polling, gap))));
    // The shape first: what the policy is for.
    let [(_, prompt), _, _, _, (_, timer)] = &figures;
    for (prompt, timer) in prompt.iter().zip(timer) {
        assert!(prompt.mean <= timer.mean, "no slower than a frame timer in any pause");
    }
    assert!(prompt[0].mean * 10 < timer[0].mean, "ten times as prompt while there is work");
    assert!(prompt[3].wakeups < 2 * timer[3].wakeups, "at the cost of a timer when there is not");
    write_between("docs/ehci.md", BEGIN, END, &table(&figures), "cargo test --test ehci polling");
    let plot = plot(&figures);
    if std::env::var_os("BLESS").is_some() {
        fs::write(path(PLOT), plot).unwrap();
    } else {
        assert!(fs::read_to_string(path(PLOT)).unwrap() == plot, "run: BLESS=1 cargo test polling");
    }
}
