//! Waiting for the kernel's enumeration, which tells nobody when it is done.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Devices behind an emulated controller are there within a second; this leaves room for a busy host.
const LIMIT: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(20);

/// Calls `probe` until it gives a value. After the limit the error says what it last missed.
pub(crate) fn until<T>(mut probe: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > LIMIT => {
                bail!("after {} s: {error:#}", LIMIT.as_secs());
            }
            Err(_) => sleep(INTERVAL),
        }
    }
}
