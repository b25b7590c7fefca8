//! The control socket of a running program, by `vm-usbd ctl` and line by line.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use support::ehci::{self, Ehci};
use support::program::{Folder, Running, program, words};

/// A server with an EHCI controller of two ports and an OHCI controller of one, and what it listens to.
struct Served {
    folder: Folder,
    server: Running,
    ehci: PathBuf,
    control: PathBuf,
}

impl Served {
    fn new(name: &str, more: &str) -> Self {
        let folder = Folder::new(name);
        let (e, o, control) = (folder.path("e"), folder.path("o"), folder.path("control"));
        let arguments = format!(
            "--controller ehci,id=e0,ports=2,socket={} --controller ohci,id=o0,ports=1,socket={} \
             --control {} --allow-path {} {more}",
            e.display(),
            o.display(),
            control.display(),
            folder.0.display()
        );
        let server = Running::start(&arguments, &[&e, &o, &control]);
        Self { folder, server, ehci: e, control }
    }

    /// What `vm-usbd ctl` prints and says, and its exit code.
    fn ctl(&self, verb: &str) -> (i32, String, String) {
        let arguments = format!("ctl --control {} {verb}", self.control.display());
        let output = program(&words(&arguments)).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// What it prints when it does what it is told.
    fn done(&self, verb: &str) -> String {
        let (code, printed, said) = self.ctl(verb);
        assert_eq!((code, &*said), (0, ""), "{verb}: {printed}");
        printed
    }

    /// What it says when it does not.
    fn refused(&self, verb: &str) -> String {
        let (code, printed, said) = self.ctl(verb);
        assert_eq!((code, &*printed), (1, ""), "{verb}: {said}");
        said
    }

    fn ends_in_peace(mut self) {
        assert!(self.server.end(Signal::TERM).success());
        assert_eq!(self.server.said(), "");
        assert!(!self.control.exists());
    }
}

fn first_bytes_of_sector(image: &Path, sector: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    File::open(image).unwrap().read_exact_at(&mut bytes, sector * 512).unwrap();
    bytes
}

#[test]
fn devices_come_go_and_are_listed() {
    let served = Served::new("ctl", "--device keyboard,bus=o0");
    let mode = fs::metadata(&served.control).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(served.done("list"), "e0:1  -\ne0:2  -\no0:1  keyboard0  keyboard\n");
    assert_eq!(served.done("attach hub,bus=e0,port=2,id=h0,ports=2"), "h0 is in e0:2\n");
    assert_eq!(served.done("attach tablet,bus=h0,port=2"), "tablet2 is in h0:2\n");
    assert_eq!(served.done("attach printer,bus=h0,id=tablet3"), "tablet3 is in h0:1\n");
    assert_eq!(
        served.done("list"),
        "e0:1  -\n\
         e0:2  h0         hub\n\
         o0:1  keyboard0  keyboard\n\
         h0:1  tablet3    printer\n\
         h0:2  tablet2    tablet\n"
    );
    assert_eq!(served.done("detach h0:2"), "tablet2 is out of h0:2\n");
    assert_eq!(
        served.done("attach tablet,bus=h0"),
        "tablet4 is in h0:2\n",
        "the name tablet3 is taken"
    );
    assert_eq!(served.done("replug h0"), "h0 is in e0:2\n");
    assert_eq!(
        served.done("detach e0:2"),
        "h0 is out of e0:2\ntablet3 is out of h0:1\ntablet4 is out of h0:2\n"
    );
    assert_eq!(served.done("detach keyboard0"), "keyboard0 is out of o0:1\n");
    assert_eq!(served.done("list"), "e0:1  -\ne0:2  -\no0:1  -\n");
    assert_eq!(
        served.done("--json attach loopback,bus=o0,id=loop"),
        "{\"attached\":{\"id\":\"loop\",\"kind\":\"loopback\",\"bus\":\"o0\",\"port\":1}}\n"
    );
    served.ends_in_peace();
}

#[test]
fn a_path_alone_names_the_socket_too() {
    let served = Served::new("path", "");
    let arguments = format!("ctl {} list", served.control.display());
    let output = program(&words(&arguments)).output().unwrap();
    assert_eq!(output.stdout, b"e0:1  -\ne0:2  -\no0:1  -\n");
    served.ends_in_peace();
}

#[test]
fn what_cannot_be_done_is_one_line_and_changes_nothing() {
    let served = Served::new("refusals", "--device hub,bus=e0,id=h0,ports=1");
    let image = served.folder.image("disk.img", 64);
    let image = image.display();
    assert_eq!(served.done(&format!("attach storage,bus=e0,id=d,file={image}")), "d is in e0:2\n");
    let before = served.done("list");
    for (verb, phrase) in [
        ("attach keyboard,bus=e0,port=2,id=k", "e0:2 is taken by \"d\": detach it first"),
        ("attach keyboard,bus=e0", "all ports of \"e0\" are taken"),
        ("attach keyboard,bus=h1", "there is no controller or hub with id \"h1\""),
        ("attach keyboard,bus=o0,port=2", "\"o0\" has no port 2: its last one is 1"),
        ("attach keyboard,bus=o0,id=d", "the id \"d\" is used twice"),
        ("attach keyboard,bus=o0,id=e0", "the id \"e0\" is used twice"),
        ("attach keyboard", "bus= is missing"),
        ("attach mouse,bus=o0", "\"mouse\" is not one of storage, keyboard"),
        (&format!("attach storage,bus=o0,file={image}"), "in use"),
        (&format!("attach printer,bus=o0,file={image}"), "in use"),
        (&format!("attach debug,bus=o0,file={image}"), "in use"),
        (&format!("save {image}"), "in use"),
        ("attach storage,bus=o0,file=/nowhere/x", "there is no image \"/nowhere/x\""),
        ("detach x", "there is no device \"x\""),
        ("detach h0:x", "there is no device \"h0:x\""),
        ("detach x:1", "there is no controller or hub with id \"x\""),
        ("detach e0:0", "\"e0\" has no port 0: its last one is 2"),
        ("detach h0:1", "h0:1 is empty"),
        ("replug h0:1", "h0:1 is empty"),
    ] {
        let said = served.refused(verb);
        assert_eq!(said.lines().count(), 1, "{verb}: {said}");
        assert!(said.starts_with("vm-usbd: "), "{verb}: {said}");
        assert!(said.contains(phrase), "{verb}: {said}");
    }
    assert_eq!(served.done("list"), before);
    assert_eq!(fs::metadata(served.folder.path("disk.img")).unwrap().len(), 64 * 512);
    for (arguments, code, phrase) in [
        ("ctl --control /nowhere/control list", 1, "is vm-usbd running with --control?"),
        ("ctl list", 2, "required arguments were not provided"),
        ("ctl --control /nowhere/control", 2, "subcommand"),
        ("ctl --control /nowhere/control explode", 2, "[subcommands: list, attach"),
    ] {
        let output = program(&words(arguments)).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments}: {said}");
        assert!(said.contains(phrase), "{arguments}: {said}");
    }
    served.ends_in_peace();
}

#[test]
fn a_guest_sees_a_disk_come_and_go_and_its_data_is_in_the_image() {
    let served = Served::new("hotplug", "");
    let image = served.folder.image("disk.img", 64);
    let memory = ehci::memory();
    let mut guest = Ehci::connect(&served.ehci, Some(&memory));
    guest.take_ports();
    assert_eq!(guest.port() & 3, 0);
    for round in 1..=5_u8 {
        let attach = format!("attach storage,bus=e0,port=1,id=d,file={}", image.display());
        assert_eq!(served.done(&attach), "d is in e0:1\n");
        guest.wait_for_change(true);
        guest.enumerate_disk();
        guest.write_sector(round, &[round; 512]);
        assert_eq!(served.done("detach d"), "d is out of e0:1\n");
        assert_eq!(first_bytes_of_sector(&image, round.into()), [round; 16]);
        guest.wait_for_change(false);
    }
    // Pulled and put back between two looks of the guest, it is a new one.
    let attach = format!("attach storage,bus=e0,port=1,id=d,file={}", image.display());
    served.done(&attach);
    guest.wait_for_change(true);
    guest.enumerate_disk();
    assert_eq!(served.done("replug e0:1"), "d is in e0:1\n");
    guest.wait_for_change(true);
    guest.enumerate_disk();
    guest.write_sector(9, &[9; 512]);
    assert_eq!(first_bytes_of_sector(&image, 9), [9; 16]);
    served.ends_in_peace();
}

#[test]
fn a_keyboard_that_came_later_takes_input_until_it_goes() {
    let folder = Folder::new("late-input");
    let input = folder.path("input");
    let served = Served::new("late", &format!("--input {}", input.display()));
    let stream = UnixStream::connect(&input).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut say = |line: &str| {
        (&stream).write_all(format!("{line}\n").as_bytes()).unwrap();
        answers.next().unwrap().unwrap()
    };
    let nobody = "error: there is no keyboard with id \"kbd\"";
    assert_eq!(say("key kbd a up"), nobody);
    served.done("attach keyboard,bus=o0,id=kbd");
    assert_eq!(say("key kbd a up"), "ok");
    served.done("detach kbd");
    assert_eq!(say("key kbd a up"), nobody);
    drop(stream);
    served.ends_in_peace();
}

#[test]
fn ports_of_a_companion_are_those_of_its_partner() {
    let folder = Folder::new("shared-ports");
    let (e, o, control) = (folder.path("e"), folder.path("o"), folder.path("control"));
    let arguments = format!(
        "--controller ehci,id=e0,ports=1,socket={} --controller ohci,id=o0,socket={},companion-of=e0 \
         --control {}",
        e.display(),
        o.display(),
        control.display()
    );
    let server = Running::start(&arguments, &[&e, &o, &control]);
    let served = Served { folder, server, ehci: e, control };
    served.done("attach keyboard,bus=o0,id=k");
    assert_eq!(served.done("list"), "e0:1  k  keyboard\no0:1  k  keyboard\n");
    assert_eq!(served.done("detach e0:1"), "k is out of o0:1\n");
    served.ends_in_peace();
}

#[test]
fn sixteen_connections_are_served_and_the_idlest_makes_room_for_one_more() {
    let mut served = Served::new("crowd", "");
    // Whether a connection is served: it has an answer, or the end.
    let asks = |stream: &UnixStream| {
        // The server may have closed it already.
        let _ = (&*stream).write_all(b"nonsense\n");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).is_ok_and(|len| len != 0)
    };
    let connect = || {
        let stream = UnixStream::connect(&served.control).unwrap();
        assert!(asks(&stream), "a newcomer is served");
        stream
    };
    let crowd: Vec<_> = (0..16).map(|_| connect()).collect();
    assert!(crowd.iter().all(asks), "sixteen are served");
    // The first has asked last; so the second has been idle longest.
    assert!(asks(&crowd[0]));
    let newcomer = connect();
    let still_served: Vec<_> = crowd.iter().map(asks).collect();
    let closed = still_served.iter().enumerate().filter(|(_, served)| !**served);
    assert_eq!(closed.map(|(at, _)| at).collect::<Vec<_>>(), [1]);
    assert!(asks(&newcomer));
    drop((crowd, newcomer));
    assert!(served.server.end(Signal::TERM).success());
    let said = served.server.said();
    let line = "closed the connection for control that was idle longest: there may be 16";
    assert_eq!(said.matches(line).count(), 1, "{said}");
}

#[test]
fn a_connection_may_ask_many_things_and_mistakes_do_not_end_it() {
    let served = Served::new("lines", "");
    let stream = UnixStream::connect(&served.control).unwrap();
    let lines = ["{\"verb\":\"list\"}", "nonsense", "{\"verb\":\"detach\",\"device\":\"o0:1\"}"];
    (&stream).write_all(format!("{}\n", lines.join("\n")).as_bytes()).unwrap();
    let answers: Vec<_> =
        BufReader::new(&stream).lines().take(3).map(|line| line.unwrap()).collect();
    assert!(answers[0].starts_with("{\"ok\":{\"ports\":["), "{answers:?}");
    assert!(answers[1].starts_with("{\"error\":\"not understood: "), "{answers:?}");
    assert_eq!(answers[2], "{\"error\":\"o0:1 is empty\"}");
    drop(stream);
    served.ends_in_peace();
}
