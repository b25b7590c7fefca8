//! The program as a person or a script meets it.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use support::{BAR0, CONFIG, Client};

const PATIENCE: Duration = Duration::from_secs(20);

/// A folder of its own for each test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vm-usbd-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn image(&self, name: &str, sectors: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(sectors * 512).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn program(arguments: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vm-usbd"));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs the program to its end: exit code and error output.
fn refused(arguments: &[String]) -> (i32, String) {
    let output = program(arguments).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A server that is running.
struct Running {
    child: Child,
}

impl Running {
    fn start(arguments: &str, sockets: &[&Path]) -> Self {
        let child = program(&words(arguments)).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Self { child };
        let start = Instant::now();
        while !sockets.iter().all(|socket| socket.exists()) {
            assert!(running.child.try_wait().unwrap().is_none(), "{}", running.said());
            assert!(start.elapsed() < PATIENCE, "no sockets");
            std::thread::sleep(Duration::from_millis(5));
        }
        running
    }

    /// Its error output, to the end.
    fn said(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    fn end(&mut self, signal: rustix::process::Signal) -> ExitStatus {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, signal).unwrap();
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_mistake_is_one_line_that_says_what_to_do() {
    let folder = Folder::new("mistakes");
    let image = folder.image("disk.img", 64);
    let text = folder.path("text");
    fs::write(&text, "not a socket").unwrap();
    let at = |name: &str| folder.path(name).display().to_string();
    let (e, o, image) = (at("e"), at("o"), image.display().to_string());
    let ehci = format!("--controller ehci,id=e0,socket={e}");
    let ohci = format!("--controller ohci,id=o0,socket={o}");
    let text = text.display();
    for (arguments, code, phrase) in [
        (String::new(), 2, "--controller"),
        ("--controller".into(), 2, "a value is required"),
        (format!("{ehci} --frobnicate"), 2, "unexpected argument '--frobnicate'"),
        (format!("{ehci} stray"), 2, "unexpected argument 'stray'"),
        ("--controller xhci,id=x,socket=/s".into(), 2, "\"xhci\" is not one of ehci, ohci"),
        (format!("{ehci},ports=0"), 2, "a controller has 1 to 15 ports"),
        (format!("{ehci} --pacing slow"), 2, "realtime, eager"),
        (format!("{ehci} --control {}", at("c")), 2, "--control is not available yet"),
        (format!("{ehci} --pcap {}", at("p")), 2, "--pcap is not available yet"),
        (format!("{ehci} --controller ohci,id=e0,socket={o}"), 1, "used twice"),
        (format!("{ehci} --controller ohci,id=o0,socket={e}"), 1, "the socket of two controllers"),
        (format!("{ohci},companion-of=e9"), 1, "there is no EHCI controller with that id"),
        (format!("{ehci} {ohci},companion-of=e0,ports=3"), 1, "leave it out"),
        (
            format!("{ehci} --device keyboard,bus=e9"),
            1,
            "there is no controller or hub with id \"e9\"",
        ),
        (format!("{ehci} --device keyboard,bus=e0,port=7"), 1, "has no port 7"),
        (
            format!("{ehci},ports=1 --device tablet,bus=e0 --device tablet,bus=e0"),
            1,
            "all ports of \"e0\" are taken",
        ),
        (
            format!("{ehci} --device tablet,bus=e0,port=2 --device keyboard,bus=e0,port=2"),
            1,
            "the port is taken",
        ),
        (format!("{ehci} --device storage,bus=e0,file={}", at("none")), 1, "there is no image"),
        (format!("{ehci} --device storage,bus=e0,file={}", folder.0.display()), 1, "a directory"),
        (
            format!(
                "{ehci} --device storage,bus=e0,file={image} --device storage,bus=e0,file={image}"
            ),
            1,
            "in use",
        ),
        (format!("--controller ehci,id=e0,socket={text}"), 1, "not a socket"),
        (format!("--controller ehci,id=e0,socket={}/x/y", folder.0.display()), 1, "cannot create"),
        (format!("--controller ehci,id=e0,socket=/{}", "x".repeat(200)), 1, "too long"),
        (format!("{ehci} --input {text}"), 1, "--input"),
    ] {
        let (status, said) = refused(&words(&arguments));
        assert_eq!(status, code, "{arguments}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments}: {said}");
        assert!(said.starts_with("vm-usbd: "), "{arguments}: {said}");
        assert!(said.contains(phrase), "{arguments}: {said}");
        assert!(!Path::new(&e).exists() && !Path::new(&o).exists(), "{arguments}: socket left");
    }
    assert_eq!(fs::read_to_string(folder.path("text")).unwrap(), "not a socket");
}

#[test]
fn help_and_version_are_no_mistakes() {
    for (argument, phrase) in [("--help", "--controller"), ("--version", "vm-usbd")] {
        let output = program(&words(argument)).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8(output.stdout).unwrap().contains(phrase));
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn a_live_servers_socket_is_busy_and_a_dead_ones_is_taken_over() {
    let folder = Folder::new("busy");
    let socket = folder.path("e");
    let arguments = format!("--controller ehci,id=e0,socket={}", socket.display());
    let mut first = Running::start(&arguments, &[&socket]);
    let (code, said) = refused(&words(&arguments));
    assert_eq!((code, said.lines().count()), (1, 1), "{said}");
    assert!(said.contains("another server is listening there"), "{said}");

    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(socket.exists(), "killed, it left its socket behind");
    let mut second = Running::start(&arguments, &[]);
    let start = Instant::now();
    while vfio_user::Client::new(&socket).is_err() {
        assert!(start.elapsed() < PATIENCE, "not taken over");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(second.end(rustix::process::Signal::TERM).success());
    assert!(!socket.exists());
    assert_eq!(second.said(), "");
}

#[test]
fn sockets_are_for_their_owner_alone_and_are_gone_after_the_end() {
    let folder = Folder::new("modes");
    let (e, o, input) = (folder.path("e"), folder.path("o"), folder.path("input"));
    let arguments = format!(
        "--controller ehci,id=e0,socket={} --controller ohci,id=o0,socket={},companion-of=e0 \
         --device keyboard,bus=o0,id=kbd --input {}",
        e.display(),
        o.display(),
        input.display()
    );
    let mut server = Running::start(&arguments, &[&e, &o, &input]);
    for socket in [&e, &o, &input] {
        let mode = fs::metadata(socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", socket.display());
    }

    let stream = UnixStream::connect(&input).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
    (&stream).write_all(b"tap kbd enter\nkey kbd a up\n").unwrap();
    let answer = answers.next().unwrap().unwrap();
    assert!(answer.starts_with("error: the guest has not configured"), "{answer}");
    assert_eq!(answers.next().unwrap().unwrap(), "ok");

    assert!(server.end(rustix::process::Signal::INT).success());
    for socket in [&e, &o, &input] {
        assert!(!socket.exists(), "{}", socket.display());
    }
}

#[test]
fn a_companion_shares_slot_and_ports() {
    let folder = Folder::new("companion");
    let (e, o) = (folder.path("e"), folder.path("o"));
    let arguments = format!(
        "--controller ohci,id=o0,socket={},companion-of=e0 --controller ehci,id=e0,socket={},ports=4",
        o.display(),
        e.display()
    );
    let _server = Running::start(&arguments, &[&e, &o]);
    let mut ehci = vfio_user::Client::new(&e).unwrap();
    let mut ohci = vfio_user::Client::new(&o).unwrap();
    for client in [&mut ehci, &mut ohci] {
        let mut header_type = [0];
        client.region_read(CONFIG, 0x0e, &mut header_type).unwrap();
        assert_eq!(header_type, [0x80], "multi-function");
        client.region_write(CONFIG, 4, &[6, 0]).unwrap();
    }
    let mut hcsparams = [0; 4];
    ehci.region_read(BAR0, 4, &mut hcsparams).unwrap();
    let hcsparams = u32::from_le_bytes(hcsparams);
    assert_eq!(hcsparams & 0xf, 4, "N_PORTS");
    assert_eq!(hcsparams >> 12 & 0xf, 1, "N_CC");
    let mut descriptor = [0; 4];
    ohci.region_read(BAR0, 0x48, &mut descriptor).unwrap();
    assert_eq!(descriptor[0], 4, "NumberDownstreamPorts");
}

#[test]
fn a_client_that_comes_back_finds_a_controller_as_new() {
    let folder = Folder::new("reconnect");
    let socket = folder.path("o");
    let arguments = format!("--controller ohci,id=o0,socket={}", socket.display());
    let mut server = Running::start(&arguments, &[&socket]);
    for _ in 0..20 {
        let mut client = vfio_user::Client::new(&socket).unwrap();
        let mut control = [0xff; 4];
        client.region_write(CONFIG, 4, &[6, 0]).unwrap();
        client.region_read(BAR0, 4, &mut control).unwrap();
        assert_eq!(control, [0; 4], "HcControl after power-on");
        client.region_write(BAR0, 4, &[0x03, 0, 0, 0]).unwrap();
        client.region_read(BAR0, 4, &mut control).unwrap();
        assert_eq!(control, [0x03, 0, 0, 0], "ControlBulkServiceRatio");
    }
    assert!(server.end(rustix::process::Signal::TERM).success());
    assert_eq!(server.said(), "", "coming and going is nothing to talk about");
}

#[test]
fn a_client_that_breaks_the_protocol_costs_one_line_and_its_session() {
    let folder = Folder::new("violation");
    let socket = folder.path("e");
    let arguments = format!("--controller ehci,id=e0,socket={}", socket.display());
    let mut server = Running::start(&arguments, &[&socket]);
    let mut stranger = UnixStream::connect(&socket).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = stranger.read_to_end(&mut rest);
    assert!(vfio_user::Client::new(&socket).is_ok(), "the next one is served");
    assert_eq!(
        server.end(rustix::process::Signal::TERM).code(),
        Some(1),
        "whoever ends it is told"
    );
    let said = server.said();
    let about_protocol =
        said.lines().filter(|line| line.contains("e0: the client broke the protocol"));
    assert_eq!(about_protocol.count(), 1, "{said}");
    assert!(said.ends_with("vm-usbd: a client could not be served, see above\n"), "{said}");
}

#[test]
fn dma_into_memory_that_is_not_shared_is_said_once() {
    let folder = Folder::new("unshared");
    let socket = folder.path("e");
    let arguments = format!("--controller ehci,id=e0,socket={}", socket.display());
    let mut server = Running::start(&arguments, &[&socket]);
    let mut client = driver::Ehci::connect(&socket, None);
    client.run_schedule_at(0x1000);
    assert_ne!(client.status() & 1 << 4, 0, "host system error");
    client.run_schedule_at(0x2000);
    assert_eq!(
        server.end(rustix::process::Signal::TERM).code(),
        Some(1),
        "whoever ends it is told"
    );
    let said = server.said();
    let about_sharing = said.lines().filter(|line| line.contains("share=on")).count();
    assert_eq!(about_sharing, 1, "{said}");
}

#[test]
fn what_a_guest_wrote_is_in_the_image_after_sigterm() {
    let folder = Folder::new("flush");
    let image = folder.image("disk.img", 64);
    let socket = folder.path("e");
    let arguments = format!(
        "--controller ehci,id=e0,socket={} --device storage,bus=e0,file={}",
        socket.display(),
        image.display()
    );
    let mut server = Running::start(&arguments, &[&socket]);
    let memory = driver::memory();
    let mut client = driver::Ehci::connect(&socket, Some(&memory));
    client.enumerate_disk();
    let sector: Vec<u8> = (0..512_u32).map(|byte| (byte * 7 + 3) as u8).collect();
    client.write_sector(9, &sector);
    assert!(server.end(rustix::process::Signal::TERM).success());
    let mut found = vec![0; 512];
    File::open(&image).unwrap().read_exact_at(&mut found, 9 * 512).unwrap();
    assert_eq!(found, sector);
    assert_eq!(server.said(), "");
}

/// A driver for EHCI with a bulk-only disk, as small as can be: one queue head, one qTD at a time.
mod driver {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::{AsFd, OwnedFd};

    const RAM: u64 = 0x10_0000;
    const QUEUE_HEAD: u32 = 0x1000;
    const QTD: u32 = 0x2000;
    const DATA: u32 = 0x3000;

    const USBCMD: u64 = 0x20;
    const USBSTS: u64 = 0x24;
    const ASYNCLISTADDR: u64 = 0x38;
    const CONFIGFLAG: u64 = 0x60;
    const PORTSC: u64 = 0x64;

    const OUT: u32 = 0;
    const IN: u32 = 1;
    const SETUP: u32 = 2;

    pub(super) fn memory() -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, RAM).unwrap();
        fd
    }

    pub(super) struct Ehci {
        client: Client,
        memory: Option<File>,
        address: u32,
        toggles: [u32; 3],
    }

    impl Ehci {
        /// Connects as a VMM that shares its memory, or one that does not.
        pub(super) fn connect(socket: &Path, memory: Option<&OwnedFd>) -> Self {
            let mut client = Client::connect(socket);
            client.negotiate();
            assert_eq!(client.map(0, RAM, memory.map(AsFd::as_fd)), 0);
            client.write(CONFIG, 4, &[6, 0]);
            let memory = memory.map(|memory| File::from(memory.try_clone().unwrap()));
            Self { client, memory, address: 0, toggles: [0; 3] }
        }

        fn read(&mut self, offset: u64) -> u32 {
            self.client.register(offset)
        }

        fn write(&mut self, offset: u64, value: u32) {
            self.client.set_register(offset, value);
        }

        pub(super) fn status(&mut self) -> u32 {
            self.read(USBSTS)
        }

        /// Resets the controller and lets it look at a queue head at `address`.
        pub(super) fn run_schedule_at(&mut self, address: u32) {
            self.write(USBCMD, 2);
            self.wait(|ehci| ehci.read(USBCMD) & 2 == 0);
            self.write(ASYNCLISTADDR, address);
            self.write(USBCMD, 0x21);
            self.wait(|ehci| ehci.status() & 0x10 != 0 || ehci.memory.is_some());
        }

        fn wait(&mut self, done: impl Fn(&mut Self) -> bool) {
            let start = Instant::now();
            while !done(self) {
                assert!(start.elapsed() < PATIENCE, "the controller does not answer");
            }
        }

        fn poke(&self, address: u32, dwords: &[u32]) {
            let bytes: Vec<u8> = dwords.iter().flat_map(|dword| dword.to_le_bytes()).collect();
            self.memory.as_ref().unwrap().write_all_at(&bytes, address.into()).unwrap();
        }

        fn peek(&self, address: u32) -> u32 {
            let mut bytes = [0; 4];
            self.memory.as_ref().unwrap().read_exact_at(&mut bytes, address.into()).unwrap();
            u32::from_le_bytes(bytes)
        }

        /// One transfer of up to a page; returns how many bytes were not moved.
        fn transfer(&mut self, endpoint: u32, pid: u32, toggle: u32, len: usize) -> u32 {
            let control = endpoint == 0;
            let packet = if control { 64 } else { 512 };
            let token = toggle << 31 | (len as u32) << 16 | 3 << 10 | pid << 8 | 0x80;
            self.poke(QTD, &[1, 1, token, DATA, 0, 0, 0, 0]);
            let characteristics =
                packet << 16 | 1 << 15 | 1 << 14 | 2 << 12 | endpoint << 8 | self.address;
            let head = [QUEUE_HEAD | 2, characteristics, 1 << 30, 0, QTD, 1, 0, 0, 0, 0, 0, 0];
            self.poke(QUEUE_HEAD, &head);
            self.write(ASYNCLISTADDR, QUEUE_HEAD);
            self.write(USBCMD, 0x21);
            self.wait(|ehci| ehci.peek(QTD + 8) & 0x80 == 0);
            self.write(USBCMD, 0x01);
            self.wait(|ehci| ehci.status() & 0x8000 == 0);
            let token = self.peek(QTD + 8);
            assert_eq!(token & 0x78, 0, "an error: {token:#x}");
            token >> 16 & 0x7fff
        }

        fn request(&mut self, setup: [u8; 8]) {
            self.memory.as_ref().unwrap().write_all_at(&setup, DATA.into()).unwrap();
            assert_eq!(self.transfer(0, SETUP, 0, 8), 0);
            assert_eq!(self.transfer(0, IN, 1, 0), 0);
        }

        /// Resets the first port and configures the disk in it.
        pub(super) fn enumerate_disk(&mut self) {
            self.write(USBCMD, 0x01);
            self.write(CONFIGFLAG, 1);
            self.write(PORTSC, 0x1000);
            self.wait(|ehci| ehci.read(PORTSC) & 1 != 0);
            self.write(PORTSC, 0x1100);
            std::thread::sleep(Duration::from_millis(50));
            self.write(PORTSC, 0x1000);
            self.wait(|ehci| ehci.read(PORTSC) & 0x104 == 0x004);
            self.request([0, 5, 1, 0, 0, 0, 0, 0]);
            self.address = 1;
            std::thread::sleep(Duration::from_millis(5));
            self.request([0, 9, 1, 0, 0, 0, 0, 0]);
            // The first command after a reset is answered with a unit attention.
            self.command([0; 16], 6, None);
        }

        fn bulk(&mut self, endpoint: u32, pid: u32, len: usize) -> u32 {
            let toggle = self.toggles[endpoint as usize];
            let rest = self.transfer(endpoint, pid, toggle, len);
            let packets = (len as u32 - rest).div_ceil(512).max(1);
            self.toggles[endpoint as usize] ^= packets & 1;
            rest
        }

        /// A command of the bulk-only transport; returns its status.
        fn command(&mut self, block: [u8; 16], len: u8, data: Option<&[u8]>) -> u8 {
            let mut wrapper = b"USBC\x01\0\0\0".to_vec();
            wrapper.extend((data.map_or(0, <[u8]>::len) as u32).to_le_bytes());
            wrapper.extend([0, 0, len]);
            wrapper.extend(block);
            let memory = self.memory.as_ref().unwrap().try_clone().unwrap();
            memory.write_all_at(&wrapper, DATA.into()).unwrap();
            assert_eq!(self.bulk(2, OUT, 31), 0);
            if let Some(data) = data {
                memory.write_all_at(data, DATA.into()).unwrap();
                assert_eq!(self.bulk(2, OUT, data.len()), 0);
            }
            assert_eq!(self.bulk(1, IN, 13), 0);
            let mut status = [0; 13];
            memory.read_exact_at(&mut status, DATA.into()).unwrap();
            assert_eq!(&status[..4], b"USBS");
            status[12]
        }

        pub(super) fn write_sector(&mut self, number: u8, data: &[u8]) {
            let mut block = [0; 16];
            block[0] = 0x2a;
            block[5] = number;
            block[8] = 1;
            assert_eq!(self.command(block, 10, Some(data)), 0);
        }
    }
}
