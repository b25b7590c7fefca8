//! What a register read costs: `cargo bench --package vm-usbd`.
//!
//! The client is a bare socket, so this is the server's part alone; a VMM adds the way between its
//! processor thread and the socket.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::{Bench, STATUS};
use vm_usbd::spin::SpinPolicy;

const READS: usize = 20_000;

fn main() {
    let awake = SpinPolicy::default();
    let asleep = SpinPolicy { window: Duration::ZERO, ..awake };
    println!("register read, {READS} in a row      median    99 % within");
    for (name, policy) in [("waiting awake", awake), ("sleeping in poll", asleep)] {
        let bench = Bench::with_policy("round-trip", policy);
        let mut client = bench.client();
        let mut times: Vec<Duration> = (0..READS)
            .map(|_| {
                let start = Instant::now();
                client.register(STATUS);
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        let us = |time: Duration| time.as_nanos() as f64 / 1000.0;
        let (median, most) = (times[READS / 2], times[READS * 99 / 100]);
        println!("{name:<34} {:>7.1} us {:>9.1} us", us(median), us(most));
    }
}
