//! A server in a thread with a small controller behind it, and the client's end of its socket.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod ehci;
pub mod program;
pub mod recording;

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vm_usb::controller::{Context, HostController, Interrupt};
use vm_usb::pci::{Identity, PciFunction, Placement};
use vm_usb::time::Time;
use vm_usbd::cli::ControllerKind;
use vm_usbd::disks::Disks;
use vm_usbd::doorbell::Doorbell;
use vm_usbd::gauge::Gauge;
use vm_usbd::halt_poll;
use vm_usbd::interrupts::Interrupts;
use vm_usbd::listener::Listener;
use vm_usbd::memory::GuestRam;
use vm_usbd::serve::Server;
use vm_usbd::session::Controller;
use vm_usbd::spin::SpinPolicy;
use vm_usbd::wire::{HEADER_SIZE, Header, flags};
use zerocopy::{FromBytes, IntoBytes};

use self::recording::Recording;

pub const BAR0: u32 = 0;
pub const CONFIG: u32 = 7;
pub const INTX: u32 = 0;
pub const MSI: u32 = 1;

/// Registers of [`Mill`].
pub const SCRATCH: u64 = 0;
pub const STATUS: u64 = 4;
/// Takes an address; the scratch value is stored there.
pub const STORE: u64 = 8;
/// Takes microseconds after which the status becomes 1.
pub const ALARM: u64 = 12;

/// A controller that stores a register in guest memory and has an alarm.
#[derive(Default)]
struct Mill {
    scratch: u32,
    status: u32,
    event: bool,
    alarm: Option<Time>,
}

impl Mill {
    fn raise(&mut self, status: u32) {
        self.event |= self.status == 0;
        self.status |= status;
    }
}

impl vm_usb::snapshot::Snapshot for Mill {}

impl HostController<GuestRam> for Mill {
    fn window(&self) -> u64 {
        0x100
    }

    fn read(&mut self, _: &Context<'_, GuestRam>, offset: u64, data: &mut [u8]) {
        let value = match offset {
            SCRATCH => self.scratch,
            STATUS => self.status,
            _ => 0,
        };
        data.iter_mut().zip(value.to_le_bytes()).for_each(|(into, from)| *into = from);
    }

    fn write(&mut self, context: &Context<'_, GuestRam>, offset: u64, data: &[u8]) {
        let value = u32::from_le_bytes(data.try_into().unwrap());
        match offset {
            SCRATCH => self.scratch = value,
            STATUS => self.status &= !value,
            STORE => {
                let stored =
                    context.dma().is_some_and(|dma| dma.store(value.into(), self.scratch).is_ok());
                self.raise(if stored { 2 } else { 4 });
            }
            ALARM => self.alarm = Some(context.now.after_micros(value.into())),
            _ => {}
        }
    }

    fn run(&mut self, context: &Context<'_, GuestRam>) {
        if self.alarm.is_some_and(|alarm| alarm <= context.now) {
            self.alarm = None;
            self.raise(1);
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.alarm
    }

    fn interrupt(&mut self) -> Interrupt {
        Interrupt { asserted: self.status != 0, event: std::mem::take(&mut self.event) }
    }

    fn reset(&mut self, _: Time) {
        *self = Self::default();
    }
}

/// A running server.
pub struct Bench {
    pub path: PathBuf,
    doorbell: Arc<Doorbell>,
    thread: Option<JoinHandle<bool>>,
}

impl Bench {
    pub fn new(name: &str) -> Self {
        Self::with_policy(name, SpinPolicy::default())
    }

    pub fn with_policy(name: &str, spin: SpinPolicy) -> Self {
        let path = std::env::temp_dir().join(format!("vm-usbd-{}-{name}.sock", std::process::id()));
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let mut server = Server {
            name: name.to_owned(),
            listener: Listener::new(&path).unwrap(),
            function: PciFunction::new(
                Identity::ohci(),
                Placement::default(),
                Box::new(Mill::default()) as Controller,
                Interrupts::default(),
            ),
            doorbell: doorbell.clone(),
            gauge: Arc::new(Gauge::new(name.to_owned(), ControllerKind::Ohci)),
            spin,
            halt_poll: halt_poll::DEFAULT,
            disks: Disks::default(),
            errands: Arc::default(),
            restored: false,
        };
        let thread = std::thread::spawn(move || server.run());
        Self { path, doorbell, thread: Some(thread) }
    }

    /// A client that has not said anything yet.
    pub fn connect(&self) -> Client {
        Client::connect(&self.path)
    }

    /// A client that has negotiated the version and switched the function on.
    pub fn client(&self) -> Client {
        let mut client = self.connect();
        client.negotiate();
        client.write(CONFIG, 4, &[6, 0]);
        client
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.doorbell.stop();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok(), "the server's loop panicked");
        assert!(!self.path.exists(), "the socket is still there");
    }
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    pub header: Header,
    pub payload: Vec<u8>,
}

impl Reply {
    /// The error number; 0 for success.
    pub fn errno(&self) -> u32 {
        assert_eq!(self.header.flags & flags::TYPE, flags::REPLY);
        assert_eq!(self.header.flags & flags::ERROR != 0, self.header.error != 0);
        self.header.error
    }
}

/// What a thread ends with whose server has gone: not a failure if somebody killed it.
pub struct Lost;

fn lost(error: &std::io::Error) -> ! {
    eprintln!("the server went away: {error}");
    std::panic::resume_unwind(Box::new(Lost))
}

/// The client's side, byte by byte.
pub struct Client {
    pub stream: UnixStream,
    next_id: u16,
    recording: Option<Recording>,
}

impl Client {
    /// A client that has not said anything yet.
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { stream, next_id: 0, recording: Recording::of(path) }
    }

    /// Sends raw bytes and file descriptors.
    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        self.recording.iter_mut().for_each(|recording| recording.sent(bytes, fds));
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent.unwrap_or_else(|error| lost(&error.into())), bytes.len());
    }

    /// A command as bytes.
    pub fn message(&mut self, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
        self.next_id = self.next_id.wrapping_add(1);
        let header = Header {
            message_id: self.next_id,
            command,
            message_size: (HEADER_SIZE + payload.len()) as u32,
            flags,
            error: 0,
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Receives a reply.
    pub fn receive(&mut self) -> Reply {
        let mut bytes = [0; HEADER_SIZE];
        self.stream.read_exact(&mut bytes).unwrap_or_else(|error| lost(&error));
        let header = Header::read_from_bytes(&bytes).unwrap();
        let mut payload = vec![0; header.message_size as usize - HEADER_SIZE];
        self.stream.read_exact(&mut payload).unwrap_or_else(|error| lost(&error));
        Reply { header, payload }
    }

    /// Sends a command and receives its reply.
    pub fn command(&mut self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        let bytes = self.message(command, 0, payload);
        self.send(&bytes, fds);
        let reply = self.receive();
        assert_eq!(reply.header.message_id, self.next_id);
        assert_eq!(reply.header.command, command);
        reply
    }

    pub fn negotiate(&mut self) {
        let mut payload = vec![0, 0, 1, 0];
        payload.extend_from_slice(b"{\"capabilities\":{}}\0");
        let reply = self.command(1, &payload, &[]);
        assert_eq!(reply.errno(), 0);
    }

    /// What a region access begins with.
    pub fn access(region: u32, offset: u64, count: u32) -> Vec<u8> {
        let mut payload = offset.to_ne_bytes().to_vec();
        payload.extend(region.to_ne_bytes());
        payload.extend(count.to_ne_bytes());
        payload
    }

    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let reply = self.command(9, &Self::access(region, offset, count), &[]);
        assert_eq!(reply.errno(), 0);
        assert_eq!(reply.payload[..16], Self::access(region, offset, count));
        reply.payload[16..].to_vec()
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let mut payload = Self::access(region, offset, data.len() as u32);
        payload.extend_from_slice(data);
        let reply = self.command(10, &payload, &[]);
        assert_eq!(reply.errno(), 0);
        assert_eq!(reply.payload, payload[..16]);
    }

    pub fn register(&mut self, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(BAR0, offset, 4).try_into().unwrap())
    }

    pub fn set_register(&mut self, offset: u64, value: u32) {
        self.write(BAR0, offset, &value.to_le_bytes());
    }

    /// Maps guest memory.
    pub fn map(&mut self, address: u64, size: u64, fd: Option<BorrowedFd<'_>>) -> u32 {
        let mut payload = 32_u32.to_ne_bytes().to_vec();
        payload.extend(3_u32.to_ne_bytes());
        for field in [0, address, size] {
            payload.extend(field.to_ne_bytes());
        }
        let fds: Vec<_> = fd.into_iter().collect();
        self.command(2, &payload, &fds).errno()
    }

    /// Withdraws guest memory.
    pub fn unmap(&mut self, flags: u32, address: u64, size: u64) -> u32 {
        let mut payload = 24_u32.to_ne_bytes().to_vec();
        payload.extend(flags.to_ne_bytes());
        payload.extend(address.to_ne_bytes());
        payload.extend(size.to_ne_bytes());
        let reply = self.command(3, &payload, &[]);
        if reply.errno() == 0 {
            assert_eq!(reply.payload, payload);
        }
        reply.errno()
    }

    /// Sets up interrupts.
    pub fn set_irqs(
        &mut self,
        index: u32,
        set_flags: u32,
        range: (u32, u32),
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> u32 {
        let mut payload = Vec::new();
        for field in [20 + data.len() as u32, set_flags, index, range.0, range.1] {
            payload.extend(field.to_ne_bytes());
        }
        payload.extend_from_slice(data);
        self.command(8, &payload, fds).errno()
    }

    /// Whether the server closes the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(0) | Err(_))
    }

    /// Sends bytes that are no whole message, as far as the server takes them.
    pub fn push(&mut self, bytes: &[u8]) {
        self.recording.iter_mut().for_each(|recording| recording.sent(bytes, &[]));
        let _ = self.stream.write_all(bytes);
    }
}

/// An event of the client's.
pub struct Event(OwnedFd);

impl Event {
    pub fn new() -> Self {
        Self(eventfd(0, EventfdFlags::NONBLOCK).unwrap())
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub fn signal(&self) {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Takes a signal that comes within `patience`.
    pub fn wait(&self, patience: Duration) -> bool {
        let timeout = Timespec::try_from(patience).unwrap();
        let mut events = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut events, Some(&timeout)).unwrap();
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}
