//! What an operator sees of a program at work: counts, a capture, the log.

mod support;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use support::ehci::{self, Ehci};
use support::program::{Folder, Running, program, words};
use vm_usbd::control::verbs::Reply;
use vm_usbd::statistics::{DeviceCounts, EndpointCounts, Statistics};

/// A server with a disk on an EHCI controller, and a guest that has written to it.
struct Served {
    folder: Folder,
    server: Running,
    control: PathBuf,
    guest: Ehci,
}

impl Served {
    fn new(name: &str, more: &str, log: &str) -> Self {
        let folder = Folder::new(name);
        let (e, o, control) = (folder.path("e"), folder.path("o"), folder.path("control"));
        let image = folder.image("disk.img", 64);
        let arguments = format!(
            "--controller ehci,id=e0,ports=1,socket={} --controller ohci,id=o0,ports=1,socket={} \
             --device storage,bus=e0,id=disk,file={} --device keyboard,bus=o0 --control {} {more}",
            e.display(),
            o.display(),
            image.display(),
            control.display()
        );
        let arguments = arguments.replace("FOLDER", &folder.0.display().to_string());
        let mut command = program(&words(&arguments));
        command.env("RUST_LOG", log);
        let server = Running::spawn(command, &[&e, &o, &control]);
        let mut guest = Ehci::connect(&e, Some(&ehci::memory()));
        guest.enumerate_disk();
        for sector in 1..=5 {
            guest.write_sector(sector, &[sector; 512]);
        }
        Self { folder, server, control, guest }
    }

    /// What a client prints.
    fn prints(&self, arguments: &str) -> String {
        let arguments = arguments.replace("CONTROL", &self.control.display().to_string());
        let output = program(&words(&arguments)).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn statistics(&self) -> Statistics {
        let text = self.prints("ctl --control CONTROL --json stats");
        match serde_json::from_str(&text).unwrap() {
            Reply::Statistics(statistics) => statistics,
            other => panic!("{other:?}"),
        }
    }

    /// Ends the server once it has noticed that the guest is gone; returns what it said.
    fn end(self) -> String {
        let Self { folder: _folder, mut server, control, guest } = self;
        drop(guest);
        let stats = words(&format!("ctl --control {} --json stats", control.display()));
        while String::from_utf8_lossy(&program(&stats).output().unwrap().stdout)
            .contains("\"client\":true")
        {
            std::thread::yield_now();
        }
        assert!(server.end(Signal::TERM).success());
        server.said()
    }
}

fn endpoint(device: &DeviceCounts, address: u8) -> &EndpointCounts {
    device.endpoints.iter().find(|endpoint| endpoint.address == address).unwrap()
}

#[test]
fn statistics_tell_what_a_guest_did_with_its_disk() {
    let mut served = Served::new("stats", "", "warn");
    let before = served.statistics();
    let [ehci, ohci] = &before.controllers[..] else { panic!("{before:?}") };
    assert_eq!((&*ehci.id, &*ehci.kind, ehci.client), ("e0", "ehci", true));
    assert_eq!((&*ohci.id, &*ohci.kind, ohci.client), ("o0", "ohci", false));
    assert!(ehci.register_reads > 0 && ehci.register_writes > 0, "{ehci:?}");
    assert_eq!(ohci.register_reads, 0);

    let disk = &before.devices[0];
    assert_eq!((&*disk.device.id, disk.address, &*disk.speed), ("disk", 1, "high"));
    let out = endpoint(disk, 2);
    // TEST UNIT READY, and five writes of a wrapper and a sector.
    assert_eq!((out.transfers, out.bytes, &*out.kind), (11, 6 * 31 + 5 * 512, "bulk"));
    assert_eq!((endpoint(disk, 0x81).transfers, endpoint(disk, 0x81).bytes), (6, 6 * 13));
    let latency = out.latency_ns;
    assert!(latency.p50 > 0 && latency.p50 <= latency.p99, "{latency:?}");
    assert!(latency.p99 <= latency.longest, "{latency:?}");
    assert_eq!(before.devices[1].address, 0, "nobody has looked at the keyboard");

    served.guest.write_sector(9, &[9; 512]);
    let after = served.statistics();
    assert_eq!(endpoint(&after.devices[0], 2).transfers, 13);
    assert!(after.controllers[0].register_writes > ehci.register_writes);
    assert!(after.time_ns > before.time_ns);
    assert_eq!(after.capture, None);

    let table = served.prints("ctl CONTROL stats");
    let row = table.lines().find(|line| line.starts_with("disk ")).unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[..6], ["disk", "e0:1", "1", "high", "0", "control"], "{table}");
    assert_eq!(served.end(), "");
}

#[test]
fn top_into_a_pipe_is_one_page_without_escape_codes() {
    let served = Served::new("top", "", "warn");
    let page = served.prints("top CONTROL --interval 20");
    assert!(page.starts_with("vm-usbd at "), "{page}");
    assert!(page.contains("e0          ehci  yes"), "{page}");
    assert!(page.contains("\ndisk"), "{page}");
    assert!(!page.contains('\x1b'), "{page}");
    served.end();
    let output = program(&words("top /nowhere/control")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("is vm-usbd running with --control?"), "{said}");
}

#[test]
fn top_on_a_terminal_redraws_until_it_is_interrupted_and_leaves_the_screen_as_it_was() {
    let served = Served::new("terminal", "", "warn");
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let theirs = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = fs::File::options().read(true).write(true).open(theirs).unwrap();
    let size = Winsize { ws_row: 10, ws_col: 40, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).unwrap();
    let arguments = format!("top {} --interval 20", served.control.display());
    let mut child = program(&words(&arguments)).stdout(theirs).spawn().unwrap();
    let mut screen = fs::File::from(ours);
    let mut shown = Vec::new();
    let mut read_until = |done: &dyn Fn(&str) -> bool| {
        while !done(&String::from_utf8_lossy(&shown)) {
            let mut more = [0; 4096];
            match screen.read(&mut more) {
                Ok(count) => shown.extend(&more[..count]),
                // Nobody holds the other end any more.
                Err(_) => break,
            }
        }
        String::from_utf8(shown.clone()).unwrap()
    };
    let page = read_until(&|text| text.matches("\x1b[Hvm-usbd at ").count() >= 3);
    assert!(page.starts_with("\x1b[?1049h\x1b[?25l\x1b[H"), "{page:?}");
    assert!(page.contains("\r\nCONTROLLER  KIND  CLIENT  INTERRUPTS  RE\x1b[K"), "cut: {page:?}");
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, Signal::INT).unwrap();
    let page = read_until(&|text| text.ends_with("\x1b[?25h\x1b[?1049l"));
    assert!(page.ends_with("\x1b[?25h\x1b[?1049l"), "{page:?}");
    assert!(child.wait().unwrap().success());
    served.end();
}

#[test]
fn a_capture_has_the_guests_transfers_cut_as_asked() {
    let served = Served::new("capture", "--pcap FOLDER/usb.pcap --pcap-snaplen 64", "warn");
    let capture = served.statistics().capture.unwrap();
    // SET_ADDRESS, SET_CONFIGURATION, and what the bulk endpoints did: two events each.
    assert_eq!((capture.events, capture.lost), (2 * (2 + 11 + 6), 0));
    let path = served.folder.path("usb.pcap");
    let copy = std::env::temp_dir().join(format!("vm-usbd-{}-copy.pcap", std::process::id()));
    drop(served.guest);
    let mut server = served.server;
    assert!(server.end(Signal::TERM).success());
    assert_eq!(server.said(), "");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::copy(path, &copy).unwrap();
    let file = fs::read(&copy).unwrap();
    fs::remove_file(&copy).unwrap();
    assert_eq!(file[..4], 0xa1b2_c3d4_u32.to_le_bytes());
    assert_eq!(file.len() as u64, capture.bytes);
    let data = 6 * (31 + 13) + 5 * 64;
    assert_eq!(file.len() as u64, 24 + capture.events * (16 + 64) + data);
}

#[test]
fn the_log_tells_of_every_change_of_state_and_whose_it_was() {
    let said = Served::new("log", "", "info").end();
    let mut rest = said.lines();
    for line in [
        "vm-usbd: info: \"Disk\" attached",
        "vm-usbd: info: e0: a client has connected",
        "vm-usbd: info: e0: EHCI: running",
        "vm-usbd: info: e0: EHCI port 1: a device is connected",
        "vm-usbd: info: e0: EHCI port 1: reset",
        "vm-usbd: info: e0: EHCI port 1: enabled",
        "vm-usbd: info: e0: \"Disk\", address 1: configuration 1",
        "vm-usbd: info: e0: EHCI: halted",
        "vm-usbd: info: e0: the client has left",
        "vm-usbd: info: \"Disk\" detached",
    ] {
        assert!(rest.any(|said| said == line), "{line:?} is not where it belongs in\n{said}");
    }
}
