//! Between QEMU and our server: passes on what each says, and writes down what QEMU does.
//!
//! The recording is an input of the fuzz target `vfio_user` (`fuzz/src/vfio_user.rs` has its form).

use std::fs;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{FileType, fstat};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Bytes after which nothing new is to be expected: QEMU has set the function up, firmware has found it, and
/// its driver is at work.
const LONGEST: usize = 28 << 10;
/// Most bytes that are passed on at once.
const CHUNK: usize = 64 << 10;
/// Most file descriptors that come with them.
const MOST_FDS: usize = 16;
/// Where a message says how long it is, and its shortest length.
const SIZE: std::ops::Range<usize> = 4..8;
const HEADER: usize = 16;
/// Time that is not worth a step, in nanoseconds.
const SHORT: u128 = 20_000;

/// Steps of the fuzz target.
const MESSAGE: u8 = 0;
const TIME: u8 = 4;

/// Puts a relay in front of the server that listens at `socket`; when QEMU has gone, the recording is in
/// `recording`.
pub(crate) fn put_before(socket: &Path, recording: PathBuf) -> Result<()> {
    let behind = socket.with_extension("server");
    fs::rename(socket, &behind).with_context(|| format!("moving {}", socket.display()))?;
    let listener =
        UnixListener::bind(socket).with_context(|| format!("listening at {}", socket.display()))?;
    thread::spawn(move || {
        if let Err(error) = relay(&listener, &behind, &recording) {
            eprintln!("the relay before {}: {error:#}", behind.display());
        }
    });
    Ok(())
}

fn relay(listener: &UnixListener, behind: &Path, recording: &Path) -> Result<()> {
    let (qemu, _) = listener.accept()?;
    let server = UnixStream::connect(behind)?;
    let (mut answers, mut back) = (server.try_clone()?, qemu.try_clone()?);
    // The server hands over no descriptors.
    let answering = thread::spawn(move || -> std::io::Result<()> {
        let mut bytes = vec![0; CHUNK];
        loop {
            let count = answers.read(&mut bytes)?;
            if count == 0 {
                return back.shutdown(Shutdown::Both);
            }
            back.write_all(&bytes[..count])?;
        }
    });
    let mut taken = Taken::new();
    let passed = pass_on(&qemu, &server, &mut taken);
    fs::write(recording, &taken.steps).with_context(|| recording.display().to_string())?;
    server.shutdown(Shutdown::Both)?;
    passed?;
    // It may find that QEMU has gone while it speaks.
    let _ = answering.join();
    Ok(())
}

/// Passes on message by message, each with its own descriptors: the kernel hands over several at once, and
/// descriptors come with the last of them.
fn pass_on(qemu: &UnixStream, server: &UnixStream, taken: &mut Taken) -> Result<()> {
    let mut bytes = vec![0; CHUNK];
    let mut unread = Vec::new();
    let mut fds: Vec<OwnedFd> = Vec::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let iov = &mut [IoSliceMut::new(&mut bytes)];
        let count = recvmsg(qemu, iov, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        if count == 0 {
            return Ok(());
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        unread.extend(&bytes[..count]);
        while let Some(message) = first_message(&mut unread) {
            let own = if unread.is_empty() { std::mem::take(&mut fds) } else { Vec::new() };
            let own: Vec<_> = own.iter().map(AsFd::as_fd).collect();
            taken.record(&message, described(&own));
            send(server, &message, &own)?;
        }
    }
}

/// Takes the first message out of what has come, if all of it is there.
fn first_message(unread: &mut Vec<u8>) -> Option<Vec<u8>> {
    let size = unread.get(SIZE)?.try_into().map(u32::from_ne_bytes).ok()? as usize;
    // What is shorter than its header is passed on as it is: the server has words for that.
    let size = size.max(HEADER);
    if size > unread.len() {
        return None;
    }
    let rest = unread.split_off(size);
    Some(std::mem::replace(unread, rest))
}

fn send(server: &UnixStream, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = sendmsg(server, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    let mut stream = server;
    Ok(stream.write_all(&message[sent..])?)
}

/// What QEMU has said so far, as steps of the fuzz target.
struct Taken {
    steps: Vec<u8>,
    last: Instant,
    /// The message before, but for its number.
    before: Vec<u8>,
    /// How often it came in a row.
    repeats: usize,
}

impl Taken {
    fn new() -> Self {
        // The first byte says which controller it is: whoever knows sets it.
        Self { steps: vec![0], last: Instant::now(), before: Vec::new(), repeats: 0 }
    }

    fn record(&mut self, message: &[u8], fds: u8) {
        // Firmware asks a register again and again until something happens: two of it tell that.
        self.repeats = if message[2..] == self.before { self.repeats + 1 } else { 0 };
        self.before = message[2..].to_vec();
        let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
        if self.repeats > 1 || self.steps.len() + usize::from(len) > LONGEST {
            return;
        }
        let nanos = self.last.elapsed().as_nanos();
        if nanos >= SHORT {
            self.last = Instant::now();
            self.steps.push(TIME);
            self.steps.extend(u32::try_from(nanos).unwrap_or(u32::MAX).to_le_bytes());
        }
        self.steps.extend([MESSAGE, fds]);
        self.steps.extend(len.to_le_bytes());
        self.steps.extend(&message[..len.into()]);
    }
}

/// The target's words for descriptors: memory or events, and how many.
fn described(fds: &[BorrowedFd<'_>]) -> u8 {
    let is_memory = |fd: &BorrowedFd<'_>| {
        fstat(fd).is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::RegularFile)
    };
    let kind = match fds.first() {
        None => 0,
        Some(fd) if is_memory(fd) => 1,
        Some(_) => 2,
    };
    let count = match fds.len() {
        0 | 1 => 0,
        2 => 1,
        3..=16 => 2,
        _ => 3,
    };
    count << 4 | kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u16, command: u16, payload: &[u8]) -> Vec<u8> {
        let size = (HEADER + payload.len()) as u32;
        [&number.to_ne_bytes()[..], &command.to_ne_bytes(), &size.to_ne_bytes(), &[0; 8], payload]
            .concat()
    }

    #[test]
    fn messages_are_passed_on_one_by_one() {
        let (first, second) = (message(1, 9, b"a register"), message(2, 2, b"memory"));
        let mut unread = [&first[..], &second[..20]].concat();
        assert_eq!(first_message(&mut unread), Some(first));
        assert_eq!(first_message(&mut unread), None);
        unread.extend(&second[20..]);
        assert_eq!(first_message(&mut unread), Some(second));
        assert!(unread.is_empty());
    }

    #[test]
    fn repeats_are_recorded_twice() {
        let mut taken = Taken::new();
        for number in 1..10 {
            taken.record(&message(number, 9, b"a register"), 0);
        }
        let last = message(10, 10, b"another");
        taken.record(&last, 0);
        let steps = &taken.steps;
        let count = |wanted: &[u8]| steps.windows(wanted.len()).filter(|w| *w == wanted).count();
        assert_eq!(count(b"a register"), 2);
        assert!(steps.ends_with(&last));
    }

    #[test]
    fn a_recording_is_bounded() {
        let mut taken = Taken::new();
        for number in 0..2000_u16 {
            taken.record(&message(number, 10, &number.to_ne_bytes()), 0);
        }
        assert!(taken.steps.len() <= LONGEST + HEADER, "{}", taken.steps.len());
    }
}
