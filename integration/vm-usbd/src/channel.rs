//! Whole messages from and to a stream socket that never blocks.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg,
    send,
};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::wire::{HEADER_SIZE, Header, MAX_FDS, MAX_MESSAGE, flags};

/// The client broke the protocol in a way after which its messages can no longer be told apart.
#[derive(Debug, Error)]
pub enum Violation {
    /// A size no message can have.
    #[error("message of {0} bytes: a message has {HEADER_SIZE} to {MAX_MESSAGE} bytes")]
    Size(u32),
    /// More file descriptors than announced.
    #[error("more than {MAX_FDS} file descriptors in one message")]
    TooManyFds,
    /// The connection ended inside a message.
    #[error("the connection ended in the middle of a message")]
    Truncated,
    /// Neither a command nor a known kind of message.
    #[error("a message that is no command (flags {0:#x})")]
    NotACommand(u32),
    /// Something else came before version negotiation.
    #[error("command {0} before the version was negotiated")]
    NoVersion(u16),
    /// The client speaks another protocol.
    #[error("the client speaks version {0} of the protocol, this server version 0")]
    Version(u16),
}

/// What polling the socket brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A whole message is in the inbox.
    Message,
    /// Nothing, or not all of it yet.
    Nothing,
    /// The client has closed the connection.
    Closed,
}

/// The message that is being received.
#[derive(Debug)]
pub struct Inbox {
    bytes: Vec<u8>,
    filled: usize,
    fds: Vec<OwnedFd>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { bytes: vec![0; HEADER_SIZE], filled: 0, fds: Vec::new() }
    }
}

impl Inbox {
    /// Takes what the socket has of the present message.
    ///
    /// After [`Received::Message`] call [`clear`](Self::clear) before the next poll.
    pub fn poll(&mut self, stream: &UnixStream) -> Result<Received, Violation> {
        while self.filled < self.bytes.len() {
            let first = self.filled == 0;
            let result = if first {
                self.receive_first(stream)?
            } else {
                let room = &mut self.bytes[self.filled..];
                recv(stream, room, RecvFlags::DONTWAIT).map(|(count, _)| count)
            };
            match result {
                Ok(0) if first => return Ok(Received::Closed),
                Ok(0) => return Err(Violation::Truncated),
                Ok(count) => self.filled += count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
                Err(_) => return Ok(Received::Closed),
            }
            if self.filled == HEADER_SIZE && self.bytes.len() == HEADER_SIZE {
                let size = self.header().message_size;
                let bytes = usize::try_from(size).unwrap_or(usize::MAX);
                if !(HEADER_SIZE..=MAX_MESSAGE).contains(&bytes) {
                    return Err(Violation::Size(size));
                }
                self.bytes.resize(bytes, 0);
            }
        }
        Ok(Received::Message)
    }

    /// Receives the first bytes of a message, with which its file descriptors come. Never more than
    /// the header, so that those of the message after it are not taken for its own.
    fn receive_first(
        &mut self,
        stream: &UnixStream,
    ) -> Result<rustix::io::Result<usize>, Violation> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let result = recvmsg(
            stream,
            &mut [io::IoSliceMut::new(&mut self.bytes[..HEADER_SIZE])],
            &mut control,
            RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
        );
        let received = match result {
            Ok(received) => received,
            Err(error) => return Ok(Err(error)),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MAX_FDS {
            return Err(Violation::TooManyFds);
        }
        Ok(Ok(received.bytes))
    }

    /// The header of the message.
    pub fn header(&self) -> Header {
        Header::read_from_prefix(&self.bytes)
            .map_or_else(|_| Header::default(), |(header, _)| header)
    }

    /// What follows the header.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[HEADER_SIZE..]
    }

    /// The file descriptors that came with the message.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// Makes room for the next message; file descriptors nobody took are closed.
    pub fn clear(&mut self) {
        self.bytes.truncate(HEADER_SIZE);
        self.filled = 0;
        self.fds.clear();
    }
}

/// Replies on their way out. While one is stuck no further command is accepted, so it stays small.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Adds a reply to `command`.
    pub fn reply<T: IntoBytes + Immutable + ?Sized>(
        &mut self,
        command: &Header,
        fixed: &T,
        data: &[u8],
    ) {
        let fixed = fixed.as_bytes();
        let size = HEADER_SIZE + fixed.len() + data.len();
        self.header(command, size, 0);
        self.bytes.extend_from_slice(fixed);
        self.bytes.extend_from_slice(data);
    }

    /// Adds a reply that says that `command` failed.
    pub fn error(&mut self, command: &Header, errno: Errno) {
        self.header(command, HEADER_SIZE, errno.raw_os_error().unsigned_abs());
    }

    fn header(&mut self, command: &Header, size: usize, error: u32) {
        let failed = if error == 0 { 0 } else { flags::ERROR };
        let header = Header {
            message_id: command.message_id,
            command: command.command,
            message_size: size as u32,
            flags: flags::REPLY | failed,
            error,
        };
        self.bytes.extend_from_slice(header.as_bytes());
    }

    /// Bytes that are not sent yet.
    pub fn unsent(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends what the socket takes; `false` if the client is gone.
    pub fn flush(&mut self, stream: &UnixStream) -> bool {
        while self.sent < self.bytes.len() {
            let rest = &self.bytes[self.sent..];
            match send(stream.as_fd(), rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
        self.bytes.clear();
        self.sent = 0;
        true
    }
}
