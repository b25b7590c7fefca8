//! A client's connection: its commands in, one at a time, and the replies to them out.

use std::os::unix::net::UnixStream;

use log::{error, info};
use thiserror::Error;
use vm_usb::time::Time;

use crate::channel::{Inbox, Outbox, Received, Violation};
use crate::session::Session;

/// Why a session ended.
#[derive(Debug, Error)]
pub enum End {
    /// The client closed the connection, or is no more.
    #[error("the client has left")]
    Left,
    /// The server is told to end.
    #[error("the server ends")]
    Stopped,
    /// What the client says means nothing any more.
    #[error("the client broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// The system does not say when the client has something to say.
    #[error("cannot wait for the client: {0}")]
    Wait(#[from] rustix::io::Errno),
}

impl End {
    /// Whether it is as it should be.
    pub fn is_well(&self) -> bool {
        matches!(self, Self::Left | Self::Stopped)
    }

    /// Says in the log how the session with controller `name` ended: one line.
    pub fn report(&self, name: &str) {
        if self.is_well() {
            info!("{name}: {self}");
        } else {
            error!("{name}: {self}; closed the connection and listening again");
        }
    }
}

/// One client, from its connection until it leaves.
pub struct Conversation<'a> {
    stream: &'a UnixStream,
    session: Session<'a>,
    inbox: Inbox,
    outbox: Outbox,
}

impl<'a> Conversation<'a> {
    /// With the client at the other end of `stream`.
    pub fn new(stream: &'a UnixStream, session: Session<'a>) -> Self {
        Self { stream, session, inbox: Inbox::default(), outbox: Outbox::default() }
    }

    /// What it is about.
    pub fn session(&mut self) -> &mut Session<'a> {
        &mut self.session
    }

    /// Its connection.
    pub fn stream(&self) -> &'a UnixStream {
        self.stream
    }

    /// Bytes that the client has not taken yet. No command is carried out meanwhile.
    pub fn unsent(&self) -> usize {
        self.outbox.unsent()
    }

    /// Carries out the client's next command, if there is a whole one; returns when that was.
    ///
    /// # Errors
    /// If the session is over.
    pub fn listen(&mut self, clock: impl FnOnce() -> Time) -> Result<Option<Time>, End> {
        if self.unsent() != 0 {
            if !self.outbox.flush(self.stream) {
                return Err(End::Left);
            }
            if self.unsent() != 0 {
                return Ok(None);
            }
        }
        match self.inbox.poll(self.stream)? {
            Received::Nothing => return Ok(None),
            Received::Closed => return Err(End::Left),
            Received::Message => {}
        }
        let now = clock();
        let handled = self.session.handle(now, &mut self.inbox, &mut self.outbox);
        self.inbox.clear();
        let connected = self.outbox.flush(self.stream);
        handled?;
        if connected { Ok(Some(now)) } else { Err(End::Left) }
    }
}
