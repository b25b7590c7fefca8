//! A socket that takes lines of text and answers each with a line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;

use log::{error, warn};
use rustix::event::{PollFd, PollFlags, poll};

use crate::crowd::{Admission, Crowd, MOST_CONNECTIONS, Place};
use crate::listener::Listener;

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
    let crowd = Crowd::default();
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
            let place = match crowd.admit(stream) {
                Admission::Placed(place) => place,
                Admission::InsteadOf(place) => {
                    warn!(
                        "closed the connection for {} that was idle longest: there may be \
                         {MOST_CONNECTIONS}",
                        A::WHAT
                    );
                    place
                }
                Admission::TurnedAway => {
                    warn!(
                        "turned away a connection for {}: there are {MOST_CONNECTIONS}, all busy",
                        A::WHAT
                    );
                    continue;
                }
            };
            let answers = answers.clone();
            let started = std::thread::Builder::new().name(A::WHAT.into()).spawn(move || {
                // The other end has gone; there is nobody to tell.
                let _ = converse(&place, &*answers);
            });
            if let Err(error) = started {
                warn!("cannot start a thread for {}: {error}", A::WHAT);
            }
        }
    }
}

/// Answers each line of a connection until it ends, has to make room, or a line is no text or too long.
fn converse<A: Answer>(place: &Place, answers: &A) -> io::Result<()> {
    let mut reader = BufReader::new(place.stream());
    let mut writer = place.stream();
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
        let answer = place.carry_out(|| answers.answer(line.trim_end_matches('\n')));
        let Some(answer) = answer else { return Ok(()) };
        say(answer)?;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// All that is said on a connection of `lines`.
    pub(crate) fn conversation<A: Answer>(answers: &A, lines: &[u8]) -> String {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut client = theirs;
        client.write_all(lines).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let Admission::Placed(place) = Crowd::default().admit(ours) else { panic!("room for one") };
        let _ = converse(&place, answers);
        drop(place);
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
