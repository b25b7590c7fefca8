//! A socket that takes lines of text and answers each with a line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use log::{error, warn};
use rustix::event::{PollFd, PollFlags, poll};

use crate::listener::Listener;

/// Most connections of a socket at a time: a user's front end needs one, a script another.
const MOST_CONNECTIONS: usize = 16;

/// What is said on a socket.
pub trait Answer: Send + Sync + 'static {
    /// What the socket is for, in messages.
    const WHAT: &'static str;
    /// Longest line in bytes, its end included.
    const LONGEST: u64;

    /// The answer to a line. Neither has an end.
    fn answer(&self, line: &str) -> String;

    /// The answer to a line that is too long; then the connection is closed.
    fn too_long(&self) -> String;
}

/// Serves connections, each in a thread of its own, for as long as the program runs.
pub fn serve<A: Answer>(listener: &Listener, answers: &Arc<A>) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let mut events = [PollFd::new(listener.socket(), PollFlags::IN)];
        match poll(&mut events, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                error!("cannot wait for {}: {error}", A::WHAT);
                return;
            }
        }
        loop {
            let stream = match listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => break,
                Err(error) => {
                    listener.pause(&error);
                    break;
                }
            };
            if connections.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
                warn!(
                    "turned away a connection for {}: there are {MOST_CONNECTIONS} already",
                    A::WHAT
                );
                continue;
            }
            let slot = Slot::new(&connections);
            let answers = answers.clone();
            let started = std::thread::Builder::new().name(A::WHAT.into()).spawn(move || {
                let _slot = slot;
                // The other end has gone; there is nobody to tell.
                let _ = converse(&stream, &*answers);
            });
            if let Err(error) = started {
                warn!("cannot start a thread for {}: {error}", A::WHAT);
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
fn converse<A: Answer>(stream: &UnixStream, answers: &A) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    let mut say = |text: String| writer.write_all(format!("{text}\n").as_bytes());
    loop {
        let mut line = String::new();
        match reader.by_ref().take(A::LONGEST).read_line(&mut line)? {
            0 => return Ok(()),
            _ if !line.ends_with('\n') && line.len() as u64 == A::LONGEST => {
                return say(answers.too_long());
            }
            _ => {}
        }
        say(answers.answer(line.trim_end_matches('\n')))?;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// All that is said on a connection of `lines`.
    pub(crate) fn conversation<A: Answer>(answers: &A, lines: &[u8]) -> String {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut client = theirs;
        client.write_all(lines).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = converse(&ours, answers);
        drop(ours);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    struct Echo;

    impl Answer for Echo {
        const WHAT: &'static str = "echo";
        const LONGEST: u64 = 8;

        fn answer(&self, line: &str) -> String {
            format!("<{line}>")
        }

        fn too_long(&self) -> String {
            "no".to_owned()
        }
    }

    #[test]
    fn every_line_has_one_answer() {
        assert_eq!(conversation(&Echo, b"one\n\n1234567\nlast"), "<one>\n<>\n<1234567>\n<last>\n");
    }

    #[test]
    fn a_line_without_end_ends_the_connection() {
        assert_eq!(conversation(&Echo, b"one\n12345678\nthree\n"), "<one>\nno\n");
        assert_eq!(conversation(&Echo, b"\xff\xfe\n"), "", "not text");
    }
}
