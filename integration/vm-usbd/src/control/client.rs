//! The other end of the control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::Outcome;
use super::verbs::{Reply, Verb};

/// Why there is no reply.
#[derive(Debug, Error)]
pub enum AskError {
    /// Nobody listens.
    #[error("{0}: {1}: is vm-usbd running with --control?")]
    Connect(PathBuf, #[source] io::Error),
    /// The connection broke.
    #[error("{0}: the server went away: {1}")]
    Broken(PathBuf, #[source] io::Error),
    /// Not an answer.
    #[error("{0}: that is no control socket of this version of vm-usbd: {1}")]
    Stranger(PathBuf, #[source] serde_json::Error),
    /// The server said no.
    #[error("{0}")]
    Refused(String),
}

/// Asks the server at `path` for one thing.
///
/// # Errors
/// If it cannot be reached or does not do it.
pub fn ask(path: &Path, verb: &Verb) -> Result<Reply, AskError> {
    let stream =
        UnixStream::connect(path).map_err(|error| AskError::Connect(path.to_owned(), error))?;
    let answer =
        exchange(&stream, verb).map_err(|error| AskError::Broken(path.to_owned(), error))?;
    match serde_json::from_str(&answer) {
        Ok(Outcome::Ok(reply)) => Ok(reply),
        Ok(Outcome::Error(error)) => Err(AskError::Refused(error)),
        Err(error) => Err(AskError::Stranger(path.to_owned(), error)),
    }
}

fn exchange(mut stream: &UnixStream, verb: &Verb) -> io::Result<String> {
    let line = serde_json::to_string(verb)?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    match BufReader::new(stream).read_line(&mut answer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(answer),
    }
}
