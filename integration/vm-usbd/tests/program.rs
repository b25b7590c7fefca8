//! The program as a person or a script meets it.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use support::ehci::{self, Ehci};
use support::program::{Folder, PATIENCE, Running, program, refused, words};
use support::{BAR0, CONFIG};

#[test]
fn each_mistake_is_one_line_that_says_what_to_do() {
    let folder = Folder::new("mistakes");
    let image = folder.image("disk.img", 64);
    let text = folder.path("text");
    fs::write(&text, "not a socket").unwrap();
    let at = |name: &str| folder.path(name).display().to_string();
    fs::write(folder.path("saved"), "a snapshot").unwrap();
    fs::create_dir(folder.path("sub")).unwrap();
    fs::hard_link(&image, folder.path("link.img")).unwrap();
    let (e, o, image) = (at("e"), at("o"), image.display().to_string());
    let ehci = format!("--controller ehci,id=e0,socket={e}");
    let ohci = format!("--controller ohci,id=o0,socket={o}");
    let text = text.display();
    for (arguments, code, phrase) in [
        (String::new(), 2, "--controller"),
        ("--controller".into(), 2, "a value is required"),
        (format!("{ehci} --frobnicate"), 2, "unexpected argument '--frobnicate'"),
        (format!("{ehci} stray"), 2, "'stray' cannot be used"),
        ("--controller xhci,id=x,socket=/s".into(), 2, "\"xhci\" is not one of ehci, ohci"),
        (format!("{ohci},addendum=on"), 2, "unknown option \"addendum\""),
        (format!("{ehci},ports=0"), 2, "a controller has 1 to 15 ports"),
        (format!("{ehci} --pacing slow"), 2, "realtime, eager"),
        (format!("{ehci} --pcap /nowhere/p"), 1, "--pcap: cannot create /nowhere/p"),
        (format!("{ehci} --pcap-limit 5"), 2, "--pcap <PATH>"),
        (format!("{ehci} --pcap {} --pcap-limit 0", at("p")), 2, "0 is not in 1.."),
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
            "e0:2 is taken by \"tablet0\"",
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
        (
            format!("{ehci},tape={} {ohci},tape={}", at("tape"), at("sub/../tape")),
            1,
            "it would be the tape of controller \"e0\" and the tape of controller \"o0\"",
        ),
        (
            format!("{ehci},tape={image} --device storage,bus=e0,file={image}"),
            1,
            "the tape of controller \"e0\" and the file of a storage device: give each its own",
        ),
        (
            format!(
                "{ehci} --device printer,bus=e0,file={} --device storage,bus=e0,file={image}",
                at("link.img")
            ),
            1,
            "the file of a printer device and the file of a storage device",
        ),
        (
            format!("{ehci} --pcap {} --restore {}", at("saved"), at("saved")),
            1,
            "the capture and the snapshot to restore",
        ),
        (format!("--controller ehci,id=e0,socket={text}"), 1, "not a socket"),
        (format!("--controller ehci,id=e0,socket={}/x/y", folder.0.display()), 1, "cannot create"),
        (format!("--controller ehci,id=e0,socket=/{}", "x".repeat(200)), 1, "too long"),
        (format!("{ehci} --input {text}"), 1, "--input"),
        (format!("{ehci} --input {} --control {text}", at("i")), 1, "--control"),
    ] {
        let (status, said) = refused(&words(&arguments));
        assert_eq!(status, code, "{arguments}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments}: {said}");
        assert!(said.starts_with("vm-usbd: "), "{arguments}: {said}");
        assert!(said.contains(phrase), "{arguments}: {said}");
        let left = [&e, &o, &at("i")].into_iter().any(|path| Path::new(path).exists());
        assert!(!left, "{arguments}: socket left");
    }
    assert_eq!(fs::read_to_string(folder.path("text")).unwrap(), "not a socket");
    assert_eq!(fs::read_to_string(folder.path("saved")).unwrap(), "a snapshot");
    assert_eq!(fs::metadata(image).unwrap().len(), 64 * 512);
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
fn ehci_is_of_revision_1_1_if_asked_to_be() {
    let folder = Folder::new("addendum");
    let (old, new) = (folder.path("old"), folder.path("new"));
    let arguments = format!(
        "--controller ehci,id=e0,socket={} --controller ehci,id=e1,addendum=on,ports=3,socket={}",
        old.display(),
        new.display()
    );
    let _server = Running::start(&arguments, &[&old, &new]);
    let read = |socket: &Path, offset| {
        let mut client = vfio_user::Client::new(socket).unwrap();
        client.region_write(CONFIG, 4, &[6, 0]).unwrap();
        let mut value = [0; 4];
        client.region_read(BAR0, offset, &mut value).unwrap();
        u32::from_le_bytes(value)
    };
    const LENGTH_AND_VERSION: u64 = 0;
    const HCCPARAMS: u64 = 8;
    const ADDENDUM: u32 = 0xf << 16; // prefetch, LPM, per-port change, frame list of 32
    assert_eq!(read(&old, LENGTH_AND_VERSION) >> 16, 0x0100);
    assert_eq!(read(&old, HCCPARAMS) & ADDENDUM, 0);
    assert_eq!(read(&new, LENGTH_AND_VERSION) >> 16, 0x0110);
    assert_eq!(read(&new, HCCPARAMS) & ADDENDUM, ADDENDUM);

    // The driver turns the change bits of ports on, and its three ports have enables.
    let mut driver = vfio_user::Client::new(&new).unwrap();
    driver.region_write(CONFIG, 4, &[6, 0]).unwrap();
    let mut write_and_read = |offset, value: u32| {
        driver.region_write(BAR0, offset, &value.to_le_bytes()).unwrap();
        let mut value = [0; 4];
        driver.region_read(BAR0, offset, &mut value).unwrap();
        u32::from_le_bytes(value)
    };
    const USBCMD: u64 = 0x20;
    const USBINTR: u64 = 0x28;
    const PER_PORT_CHANGE_ENABLE: u32 = 1 << 15;
    assert_ne!(write_and_read(USBCMD, PER_PORT_CHANGE_ENABLE) & PER_PORT_CHANGE_ENABLE, 0);
    assert_eq!(write_and_read(USBINTR, 0xffff_0000), 0b111 << 16);
}

#[test]
fn a_controller_says_on_pci_what_it_is_told_to() {
    let folder = Folder::new("pci-id");
    let socket = folder.path("e.sock");
    let arguments = format!("--controller ehci,id=e0,socket={},pci-id=1af4:10f1", socket.display());
    let _server = Running::start(&arguments, &[&socket]);
    let mut client = vfio_user::Client::new(&socket).unwrap();
    let mut read = |offset| {
        let mut bytes = [0; 4];
        client.region_read(CONFIG, offset, &mut bytes).unwrap();
        bytes
    };
    assert_eq!(read(0), [0xf4, 0x1a, 0xf1, 0x10]);
    assert_eq!(read(8)[1..], [0x20, 0x03, 0x0c], "an EHCI all the same");
    assert_eq!(read(0x2c), [0xf4, 0x1a, 0xf1, 0x10], "its subsystem");
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
    let mut client = Ehci::connect(&socket, None);
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
    let memory = ehci::memory();
    let mut client = Ehci::connect(&socket, Some(&memory));
    client.enumerate_disk();
    let sector: Vec<u8> = (0..512_u32).map(|byte| (byte * 7 + 3) as u8).collect();
    client.write_sector(9, &sector);
    assert!(server.end(rustix::process::Signal::TERM).success());
    let mut found = vec![0; 512];
    File::open(&image).unwrap().read_exact_at(&mut found, 9 * 512).unwrap();
    assert_eq!(found, sector);
    assert_eq!(server.said(), "");
}

#[test]
fn a_server_without_descriptors_left_says_so_once_and_waits() {
    let folder = Folder::new("descriptors");
    let (socket, control) = (folder.path("e"), folder.path("control"));
    let arguments = format!(
        "--controller ehci,id=e0,socket={} --control {}",
        socket.display(),
        control.display()
    );
    // Enough to start, and too few for as many connections as there may be; what starts the tests may have left 3
    // open.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 20 && exec \"$0\" \"$@\" 3>&-", env!("CARGO_BIN_EXE_vm-usbd")]);
    command.args(words(&arguments)).env_remove("RUST_LOG");
    let mut server = Running::spawn(command, &[&socket, &control]);
    let crowd: Vec<_> = (0..16).map(|_| UnixStream::connect(&control).unwrap()).collect();
    let said = BufReader::new(server.child.stderr.take().unwrap());
    let mut said = said.lines().map(|line| line.unwrap()).filter(|line| !line.contains("sandbox"));
    let line = said.next().unwrap();
    assert!(line.contains("cannot take a client for now: Too many open files"), "{line}");
    drop(crowd);
    let list = program(&words(&format!("ctl {} list", control.display()))).output().unwrap();
    assert!(list.status.success(), "served again: {list:?}");
    assert!(server.end(rustix::process::Signal::TERM).success());
    assert_eq!(said.collect::<Vec<_>>(), Vec::<String>::new(), "once");
}
