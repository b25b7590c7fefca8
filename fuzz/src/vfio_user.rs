//! A VMM, or whoever else reached the socket, that talks to a controller's server.
//!
//! An input is what it does, as bytes: a list of steps, each an operation and what that takes. So a
//! recording of a real client is an input, and stays one whatever becomes of this file's types: see
//! `integration/vm-usbd/tests/support/recording.rs`, which writes them, and for those of QEMU
//! `integration/xtask/src/guest/relay.rs`.

use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use peak_alloc::PeakAlloc;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Pacing;
use vm_usb::pci::{Identity, PciFunction, Placement};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::Speed;
use vm_usbd::conversation::{Conversation, End};
use vm_usbd::interrupts::Interrupts;
use vm_usbd::session::{Controller, Function, Session};
use vm_usbd::wire::{HEADER_SIZE, MAX_MESSAGE};

use crate::devices::attach_real;
use crate::ohci;

/// Most steps of an input: those of the longest recording, and more.
const MOST_STEPS: usize = 1500;
/// Most commands that one step can consist of: what fits into the longest step, were it all headers.
const MOST_COMMANDS: usize = 1 + u16::MAX as usize / HEADER_SIZE;
/// Most turns of the loop after a step in which the controller may find something due.
const MOST_RUNS: usize = 64;
/// Bytes that a session may take besides what its devices do: its messages, in and out, and some hundred
/// regions with their names.
const MOST_MEMORY: usize = 4 << 20;
/// Lines in the log of a session besides that of its end: one of memory that cannot be mapped, eight of
/// memory that is out of reach, and those that the library limits by itself, in the time of an input.
const MOST_LINES: usize = 1 + 8 + 64;
/// The client's memory, as much as the recorded guests have: what nobody touches takes none.
const RAM: u64 = 512 << 20;

/// Counts what the server says; what it says is not looked at.
struct Lines {
    errors: AtomicUsize,
    warnings: AtomicUsize,
}

static LINES: Lines = Lines { errors: AtomicUsize::new(0), warnings: AtomicUsize::new(0) };

impl log::Log for Lines {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        let count = match record.level() {
            log::Level::Error => &self.errors,
            log::Level::Warn => &self.warnings,
            _ => return,
        };
        // As a real one would: whatever is wrong with the text shows.
        assert!(!record.args().to_string().contains('\n'), "one line");
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&self) {}
}

fn lines() -> (usize, usize) {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&LINES).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
    (LINES.errors.swap(0, Ordering::Relaxed), LINES.warnings.swap(0, Ordering::Relaxed))
}

/// What steps are read from.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }

    /// As many bytes as two of them say, or those there are.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = u16::from_le_bytes([self.byte()?, self.byte()?]);
        let (bytes, rest) = self.0.split_at(self.0.len().min(len.into()));
        self.0 = rest;
        Some(bytes)
    }
}

/// What the client has to hand over.
struct Belongings {
    ram: std::fs::File,
    others: Vec<OwnedFd>,
}

impl Belongings {
    fn new() -> Self {
        let memory = |size| {
            let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, size).unwrap();
            fd
        };
        let ram = std::fs::File::from(memory(RAM));
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (socket, _) = UnixStream::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let others = vec![
            event(),
            event(),
            memory(0),
            memory(1 << 40),
            reader,
            writer,
            socket.into(),
            null.into(),
        ];
        Self { ram, others }
    }

    /// Descriptors that a byte names: which, and how many.
    fn named(&self, byte: u8) -> Vec<BorrowedFd<'_>> {
        let fd = match usize::from(byte & 0xf) {
            0 => return Vec::new(),
            1 => self.ram.as_fd(),
            n => self.others[(n - 2) % self.others.len()].as_fd(),
        };
        vec![fd; [1, 2, 16, 17][usize::from(byte >> 4 & 3)]]
    }
}

fn function(high: bool) -> Function {
    let (identity, controller): (_, Controller) = if high {
        let ports = [(); 3].map(|()| Port::high_speed_only());
        attach_real(&ports, Speed::High);
        let links = ports.iter().map(|port| port.link(Host::High)).collect();
        (Identity::ehci(), Box::new(Ehci::new(links)))
    } else {
        let ports = [(); 3].map(|()| Port::classic());
        attach_real(&ports, Speed::Full);
        (Identity::ohci(), Box::new(ohci::controller(&ports, Pacing::RealTime)))
    };
    PciFunction::new(identity, Placement::default(), controller, Interrupts::default())
}

/// The client's end.
struct Client {
    stream: UnixStream,
    id: u16,
}

impl Client {
    /// Sends what the server's socket takes.
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(17))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags);
    }

    fn command(&mut self, command: u16, payload: &[u8]) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        let mut bytes = Vec::new();
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend(command.to_ne_bytes());
        bytes.extend(((HEADER_SIZE + payload.len()) as u32).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(payload);
        bytes
    }

    /// Takes the replies there are.
    fn read(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.stream.read_to_end(&mut bytes);
        bytes
    }
}

/// A server's side of a client, as its loop goes about it.
struct Served<'a> {
    conversation: Conversation<'a>,
    now: Time,
}

impl Served<'_> {
    /// Carries out what the client has said, and runs the controller while it is due.
    fn serve(&mut self) -> Result<(), End> {
        let now = self.now;
        for commands in 0.. {
            assert!(commands <= MOST_COMMANDS, "more commands than were sent");
            let heard = self.conversation.listen(|| now)?;
            assert!(self.conversation.unsent() <= MAX_MESSAGE, "replies pile up");
            if heard.is_none() {
                break;
            }
        }
        self.conversation.session().function().line_mut().poll_unmask();
        for _ in 0..MOST_RUNS {
            if self.conversation.session().deadline().is_none_or(|deadline| deadline > now) {
                break;
            }
            self.conversation.session().run(now);
        }
        Ok(())
    }
}

/// A client that keeps to the protocol finds this, whoever was there before it.
fn polite(function: &mut Function, now: Time) -> Vec<u8> {
    let (ours, theirs) = pair();
    let mut client = Client { stream: theirs, id: 0 };
    let mut served =
        Served { conversation: Conversation::new(&ours, Session::new(function, false)), now };
    let mut seen = Vec::new();
    let access = |region: u32, offset: u64, count: u32, data: &[u8]| {
        let mut payload = offset.to_ne_bytes().to_vec();
        payload.extend(region.to_ne_bytes());
        payload.extend(count.to_ne_bytes());
        payload.extend(data);
        payload
    };
    let mut commands = vec![(1, b"\0\0\x01\0{}\0".to_vec()), (9, access(7, 0, 256, &[]))];
    commands.push((10, access(7, 4, 2, &[2, 0])));
    commands.extend((0..0x100).step_by(4).map(|offset| (9, access(0, offset, 4, &[]))));
    for (command, payload) in commands {
        let bytes = client.command(command, &payload);
        client.send(&bytes, &[]);
        served.serve().expect("a client that keeps to the protocol stays");
        let reply = client.read();
        assert_eq!(reply[..4], bytes[..4], "the reply to that command");
        assert_eq!(reply[8..12], [1, 0, 0, 0], "a reply without an error");
        seen.extend(&reply[HEADER_SIZE..]);
    }
    drop(client);
    assert!(matches!(served.serve(), Err(End::Left)));
    leave(function, now);
    seen
}

/// What the server does when a client is gone.
fn leave(function: &mut Function, now: Time) {
    function.reset(now);
    *function.line_mut() = Interrupts::default();
}

fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (ours, theirs)
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// One step of the client's; `None` when there is none left.
fn step(
    script: &mut Script<'_>,
    client: &mut Client,
    belongings: &Belongings,
    now: &mut Time,
) -> Option<()> {
    let operation = script.byte()?;
    match operation & 7 {
        // A message whose size is what it has; three times as likely as the others.
        0..=2 => {
            let fds = script.byte()?;
            let mut bytes = script.bytes()?.to_vec();
            let size = bytes.len() as u32;
            if let Some(field) = bytes.get_mut(4..8) {
                field.copy_from_slice(&size.to_ne_bytes());
            }
            client.send(&bytes, &belongings.named(fds));
        }
        // Bytes, whatever they are.
        3 => {
            let fds = script.byte()?;
            client.send(script.bytes()?, &belongings.named(fds));
        }
        4 => *now = now.after_nanos(script.number()?.into()),
        // The guest writes to its memory.
        5 => {
            let at = u64::from(script.number()?) % RAM;
            let bytes = script.bytes()?;
            let room = usize::try_from(RAM - at).unwrap_or(0).min(bytes.len());
            let _ = belongings.ram.write_all_at(&bytes[..room], at);
        }
        // It signals an event, as one does that unmasks an interrupt.
        6 => {
            let event = &belongings.others[usize::from(script.byte()? & 1)];
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
        _ => {
            let _ = client.stream.shutdown(std::net::Shutdown::Write);
        }
    }
    // A client may be slow to take replies.
    if operation & 0x80 == 0 {
        client.read();
    }
    Some(())
}

/// Lets a client do what `bytes` say, and holds the server to the rules.
pub fn live(bytes: &[u8], memory: &PeakAlloc) {
    lines();
    let mut script = Script(bytes);
    let high = script.byte().is_some_and(|first| first & 1 != 0);
    let mut now = Time::from_nanos(1_000_000_000);
    let (mut function, mut neighbour) = (function(high), function(!high));
    let before = (polite(&mut function, now), polite(&mut neighbour, now));
    let files = open_files();
    let used = memory.current_usage();
    memory.reset_peak_usage();

    let belongings = Belongings::new();
    let (ours, theirs) = pair();
    let mut client = Client { stream: theirs, id: 0 };
    let session = Session::new(&mut function, false);
    let mut served = Served { conversation: Conversation::new(&ours, session), now };
    let mut end = None;
    for _ in 0..MOST_STEPS {
        if step(&mut script, &mut client, &belongings, &mut now).is_none() {
            break;
        }
        served.now = now;
        if let Err(over) = served.serve() {
            end = Some(over);
            break;
        }
    }
    drop(client);
    let end = end.unwrap_or_else(|| served.serve().expect_err("a client that is gone has left"));
    drop(served);
    drop(belongings);
    drop(ours);
    leave(&mut function, now);
    let (errors, warnings) = lines();
    assert_eq!(errors, 0, "the server ran into nothing of its own");
    assert!(warnings <= MOST_LINES, "{warnings} lines in the log");
    end.report("hostile");
    assert_eq!(lines(), (usize::from(!end.is_well()), 0), "one line for {end}");
    let peak = memory.peak_usage().saturating_sub(used);
    assert!(peak <= MOST_MEMORY, "{peak} bytes for one session");
    assert_eq!(open_files(), files, "file descriptors are left");

    // Nobody else is worse off for it.
    let after = (polite(&mut function, now), polite(&mut neighbour, now));
    assert!(before.0 == after.0, "the next client finds a controller as after power-on");
    assert!(before.1 == after.1, "another controller is as it was");
}
