//! The socket that takes [`input`](crate::input) lines: each is answered with `ok` or `error: ...`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use log::{error, warn};
use rustix::event::{PollFd, PollFlags, poll};

use crate::input::Inputs;
use crate::listener::Listener;

/// Longest line in bytes, its end included; three times what any line needs.
const LONGEST: u64 = 256;
/// Most connections at a time: a user's front end needs one, a script another.
const MOST_CONNECTIONS: usize = 16;

/// Serves connections for as long as the program runs.
pub fn serve(listener: &Listener, inputs: &Arc<Inputs>) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let mut events = [PollFd::new(listener.socket(), PollFlags::IN)];
        match poll(&mut events, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                error!("cannot wait for input: {error}");
                return;
            }
        }
        while let Some(stream) = listener.accept() {
            if connections.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
                warn!("turned away an input connection: there are {MOST_CONNECTIONS} already");
                continue;
            }
            let slot = Slot::new(&connections);
            let inputs = inputs.clone();
            let started = std::thread::Builder::new().name("input".into()).spawn(move || {
                let _slot = slot;
                // The other end has gone; there is nobody to tell.
                let _ = converse(&stream, &inputs);
            });
            if let Err(error) = started {
                warn!("cannot start a thread for input: {error}");
            }
        }
    }
}

/// A connection's place among the [`MOST_CONNECTIONS`].
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn new(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(connections.clone())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers each line of a connection until it ends, or a line is no text or too long.
fn converse(stream: &UnixStream, inputs: &Inputs) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        match reader.by_ref().take(LONGEST).read_line(&mut line)? {
            0 => return Ok(()),
            _ if !line.ends_with('\n') && line.len() as u64 == LONGEST => {
                writer.write_all(b"error: the line is too long\n")?;
                return Ok(());
            }
            _ => {}
        }
        match inputs.carry_out(&line) {
            Ok(()) => writer.write_all(b"ok\n")?,
            Err(error) => writer.write_all(format!("error: {error}\n").as_bytes())?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(lines: &[u8]) -> String {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut client = theirs;
        client.write_all(lines).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = converse(&ours, &Inputs::default());
        drop(ours);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn every_line_has_one_answer() {
        let text = answers(b"tap kbd a\nwhat\nmove t 1 2");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], "error: there is no keyboard with id \"kbd\"");
        assert!(lines[1].starts_with("error: not understood"));
        assert_eq!(lines[2], "error: there is no tablet with id \"t\"", "the last needs no end");
    }

    #[test]
    fn a_line_without_end_ends_the_connection() {
        assert_eq!(answers(&[b'x'; 1000]), "error: the line is too long\n");
        assert_eq!(answers(b"\xff\xfe\n"), "", "not text");
    }
}
