//! The other end: VMMs that are killed, and the protocol's reference client.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::ehci::{self, Ehci};
use support::program::{Folder, PATIENCE, Running, program, words};
use support::{BAR0, CONFIG};
use vm_usbd::control::verbs::Reply;

/// A server with a disk, and what it listens to.
struct Served {
    _folder: Folder,
    server: Running,
    socket: PathBuf,
    control: PathBuf,
    image: PathBuf,
}

impl Served {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let (socket, control) = (folder.path("e"), folder.path("control"));
        let image = folder.image("disk.img", 64);
        let arguments = format!(
            "--controller ehci,id=e0,ports=1,socket={} --device storage,bus=e0,id=d,file={} \
             --control {}",
            socket.display(),
            image.display(),
            control.display()
        );
        let mut command = program(&words(&arguments));
        command.env("RUST_LOG", "info");
        let server = Running::spawn(command, &[&socket, &control]);
        Self { _folder: folder, server, socket, control, image }
    }

    /// Whether controller e0 has a client, as an operator sees it.
    fn has_client(&self) -> bool {
        let arguments = format!("ctl --control {} --json stats", self.control.display());
        let output = program(&words(&arguments)).output().unwrap();
        match serde_json::from_slice(&output.stdout).unwrap() {
            Reply::Statistics(statistics) => statistics.controllers[0].client,
            other => panic!("{other:?}"),
        }
    }

    fn await_client(&self, wanted: bool) {
        let start = Instant::now();
        while self.has_client() != wanted {
            assert!(start.elapsed() < PATIENCE, "the server does not notice");
        }
    }

    fn sector(&self, number: usize) -> Vec<u8> {
        fs::read(&self.image).unwrap()[number * 512..][..512].to_vec()
    }

    fn end(mut self) -> String {
        assert!(self.server.end(Signal::TERM).success());
        self.server.said()
    }
}

/// Names the socket for the copy of this test that is the VMM.
const SOCKET: &str = "VM_USBD_VMM_SOCKET";

/// A VMM in a process of its own, which can be killed.
struct Vmm {
    child: Child,
    orders: ChildStdin,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Vmm {
    fn start(socket: &Path) -> Self {
        let mut copy = Command::new(std::env::current_exe().unwrap());
        copy.args(["--exact", "a_vmm_that_is_killed_leaves_nothing_behind", "--nocapture"]);
        copy.env(SOCKET, socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = copy.spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut vmm = Self { child, orders, lines };
        vmm.until("ready");
        vmm
    }

    /// Waits for it to say something.
    fn until(&mut self, what: &str) {
        while !self.lines.next().expect("it lives").unwrap().ends_with(what) {}
    }

    fn order(&mut self, what: &str) {
        writeln!(self.orders, "{what}").unwrap();
        self.until(what);
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The VMM: it writes what it is told to, and says when it has.
fn be_a_vmm(socket: &Path) {
    let memory = ehci::memory();
    let mut guest = Ehci::connect(socket, Some(&memory));
    guest.enumerate_disk();
    println!("ready");
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        match &*order {
            "write" => guest.write_sector(1, &[1; 512]),
            "write durably" => guest.write_durably(2, &[2; 512]),
            // The disk has the command and waits for its data, which never comes.
            "begin" => guest.begin_write(3, &[3; 1024]),
            // A schedule that the controller walks until it is told otherwise.
            "wait" => guest.leave_a_transfer_waiting(),
            other => panic!("{other}?"),
        }
        println!("{order}");
    }
}

#[test]
fn a_vmm_that_is_killed_leaves_nothing_behind() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return be_a_vmm(Path::new(&socket));
    }
    let served = Served::new("vmm-killed");
    let lives: [&[&str]; 5] =
        [&[], &["write"], &["write durably"], &["write", "begin"], &["write", "wait"]];
    for orders in lives {
        let mut vmm = Vmm::start(&served.socket);
        assert!(served.has_client());
        orders.iter().for_each(|order| vmm.order(order));
        vmm.kill();
        served.await_client(false);
        if orders.contains(&"write") {
            assert_eq!(served.sector(1), [1; 512]);
        }
        // The next one finds everything as new, and the disk waits for no data of a command from before.
        let memory = ehci::memory();
        let mut guest = Ehci::connect(&served.socket, Some(&memory));
        assert_eq!(guest.status() & 0x1000, 0x1000, "HCHalted, as after power-on");
        guest.enumerate_disk();
        guest.write_durably(1, &[9; 512]);
        drop(guest);
        served.await_client(false);
        assert_eq!(served.sector(1), [9; 512]);
        assert_eq!(served.sector(3), [0; 512], "of what had only begun nothing is there");
    }
    assert_eq!(served.sector(2), [2; 512]);
    let said = served.end();
    let count = |what: &str| said.lines().filter(|line| line.ends_with(what)).count();
    assert_eq!(count("e0: the client has left"), 2 * lives.len(), "{said}");
    let written = count("e0: disks written out: 1");
    assert_eq!(written, 3, "writes that nobody had flushed: {said}");
    assert!(!said.contains("error"), "{said}");
}

#[test]
fn a_vmm_killed_at_any_moment_makes_room_for_the_next() {
    let served = Served::new("vmm-moments");
    let mut moment = 1_u64;
    for _ in 0..20 {
        let mut vmm = Vmm::start(&served.socket);
        // It writes on and on, as fast as it can read its orders.
        for _ in 0..200 {
            writeln!(vmm.orders, "write\nwrite durably").unwrap();
        }
        moment =
            moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(moment >> 33 & 0x3fff));
        vmm.kill();
        served.await_client(false);
    }
    let memory = ehci::memory();
    let mut guest = Ehci::connect(&served.socket, Some(&memory));
    guest.enumerate_disk();
    guest.write_durably(7, &[7; 512]);
    assert_eq!(served.sector(7), [7; 512]);
    for (number, sector) in [(1, [1; 512]), (2, [2; 512])] {
        let found = served.sector(number);
        assert!(found == sector || found == [0; 512], "sector {number} is torn");
    }
    drop(guest);
    let said = served.end();
    assert!(!said.contains("error"), "{said}");
}

#[test]
fn the_reference_client_drives_a_disk() {
    let served = Served::new("reference-disk");
    let mut client = vfio_user::Client::new(&served.socket).unwrap();
    assert_eq!(client.region(BAR0).unwrap().size, 4096);
    let mut class = [0; 4];
    client.region_read(CONFIG, 8, &mut class).unwrap();
    assert_eq!(class[1..], [0x20, 0x03, 0x0c], "EHCI");
    let memory = ehci::memory();
    let mut guest = Ehci::under(client, Some(&memory));
    guest.enumerate_disk();
    let data: Vec<u8> = (0..1024_u32).map(|byte| (byte * 5 + 1) as u8).collect();
    guest.write_sector(11, &data);
    guest.synchronize();
    assert_eq!([served.sector(11), served.sector(12)].concat(), data);
    let vmm = guest.vmm();
    vmm.reset().unwrap();
    vmm.dma_unmap(0, ehci::RAM).unwrap();
    vmm.shutdown().unwrap();
    drop(guest);
    served.await_client(false);
    assert!(!served.end().contains("error"));
}
