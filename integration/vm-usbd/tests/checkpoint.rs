//! Servers that end, in peace or not, and start again from what they saved.

mod support;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use support::Lost;
use support::ehci::{self, Ehci};
use support::program::{Folder, Running, program, words};

/// Sectors of the disk.
const SECTORS: u64 = 64;

/// What stays when a server ends.
struct Host {
    folder: Folder,
    image: PathBuf,
    socket: PathBuf,
    control: PathBuf,
    saved: PathBuf,
}

impl Host {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let image = folder.image("disk.img", SECTORS);
        let (socket, control, saved) =
            (folder.path("ehci"), folder.path("control"), folder.path("saved"));
        Self { folder, image, socket, control, saved }
    }

    fn arguments(&self) -> String {
        format!(
            "--controller ehci,id=e0,ports=2,socket={} --controller ohci,id=o0,socket={} \
             --device storage,bus=e0,id=d,file={} --device hub,bus=o0,id=h0 \
             --device keyboard,bus=h0 --control {} --allow-path {}",
            self.socket.display(),
            self.folder.path("ohci").display(),
            self.image.display(),
            self.control.display(),
            self.folder.0.display()
        )
    }

    fn start(&self, more: &str) -> Running {
        let arguments = format!("{} {more}", self.arguments());
        Running::start(&arguments, &[&self.socket, &self.folder.path("ohci"), &self.control])
    }

    fn restart(&self) -> Running {
        self.start(&format!("--restore {}", self.saved.display()))
    }

    /// The server dies between two instructions, and leaves its sockets behind.
    fn kill(&self, server: &mut Running) {
        assert!(!server.end(Signal::KILL).success());
        for socket in [&self.socket, &self.folder.path("ohci"), &self.control] {
            let _ = fs::remove_file(socket);
        }
    }
}

fn save(control: &Path, saved: &Path) {
    let arguments = format!("ctl {} save {}", control.display(), saved.display());
    let output = program(&words(&arguments)).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let bytes = fs::metadata(saved).unwrap().len();
    let printed = format!("{bytes} bytes are in {}\n", saved.display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), printed);
}

#[test]
fn a_guest_goes_on_with_a_restored_server_in_the_middle_of_a_command() {
    let host = Host::new("go-on");
    let mut server = host.start("");
    let memory = ehci::memory();
    let mut guest = Ehci::connect(&host.socket, Some(&memory));
    guest.take_ports();
    guest.enumerate_disk();
    guest.write_sector(1, &[1; 512]);
    for round in 2..=6_u8 {
        // The disk has the command and waits for its data.
        guest.begin_write(round, &[round; 1024]);
        save(&host.control, &host.saved);
        host.kill(&mut server);
        server = host.restart();
        guest.reconnect(&host.socket);
        guest.end_write(&[round; 1024]);
        let image = fs::read(&host.image).unwrap();
        assert_eq!(image[512 * usize::from(round)..][..1024], [round; 1024]);
        // Saving disturbs nobody.
        guest.begin_write(20, &[20; 512]);
        save(&host.control, &host.saved);
        guest.end_write(&[20; 512]);
        guest.write_sector(21, &[21; 512]);
    }
    drop(guest);
    assert!(server.end(Signal::TERM).success());
    assert_eq!(server.said(), "");
}

#[test]
fn a_snapshot_of_another_machine_is_refused_in_one_line() {
    let host = Host::new("refused");
    let mut server = host.start("");
    save(&host.control, &host.saved);
    assert!(server.end(Signal::TERM).success());
    let saved = host.saved.display();
    let refused = |arguments: &str| {
        let output = program(&words(arguments)).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let other = host.arguments().replace("keyboard,bus=h0", "tablet,bus=h0");
    let said = refused(&format!("{other} --restore {saved}"));
    assert_eq!(said.lines().count(), 1, "{said}");
    let wanted = format!(
        "vm-usbd: --restore: {saved}: o0:1, hub port 1: the snapshot has \"Keyboard\" (1209:0002"
    );
    assert!(said.starts_with(&wanted), "{said}");
    fs::write(&host.saved, "something else").unwrap();
    let said = refused(&format!("{} --restore {saved}", host.arguments()));
    assert!(said.contains("not a snapshot, or a damaged one: "), "{said}");
    let said = refused(&format!("{} --restore /nowhere/saved", host.arguments()));
    assert!(said.contains("/nowhere/saved: No such file"), "{said}");
    assert!(!host.socket.exists(), "nothing is left of servers that did not start");
}

/// What may be on a sector: the last value whose durability was acknowledged, or one written since.
#[derive(Clone, Debug)]
struct Sector {
    durable: u32,
    since: Vec<u32>,
}

struct Model {
    sectors: Vec<Sector>,
    /// The last value written; each is written once.
    value: u32,
    acknowledged: u32,
}

impl Model {
    fn write(&mut self, range: std::ops::Range<usize>) -> u32 {
        self.value += 1;
        for sector in &mut self.sectors[range] {
            sector.since.push(self.value);
        }
        self.value
    }

    /// Everything written up to `value` in these sectors is durable.
    fn acknowledge(&mut self, range: std::ops::Range<usize>, value: u32) {
        for sector in &mut self.sectors[range] {
            if let Some(at) = sector.since.iter().rposition(|written| *written <= value) {
                sector.durable = sector.since[at];
                sector.since.drain(..=at);
            }
        }
        self.acknowledged += 1;
    }

    /// The server is dead: what is on the image stays, and what is not never comes.
    fn settle(&mut self, image: &[u8]) {
        let sectors = self.sectors.iter_mut().zip(image.chunks(512));
        for (number, (sector, bytes)) in sectors.enumerate() {
            let value = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(bytes, value.to_le_bytes().repeat(128), "sector {number} is torn");
            let known = value == sector.durable || sector.since.contains(&value);
            assert!(known, "sector {number}: {value} is there, but {sector:?}");
            *sector = Sector { durable: value, since: Vec::new() };
        }
    }
}

/// A number that differs from run to run: the moments are to be random.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Sets the disk up anew, as a driver does whose device has gone silent, and writes until the server
/// is gone.
fn write_on(mut guest: Ehci, model: &Mutex<Model>, control: &Path, saved: &Path, mut seed: u64) {
    guest.enumerate_disk();
    loop {
        let start = (random(&mut seed) % (SECTORS - 8)) as usize;
        let range = start..start + 1 + (random(&mut seed) % 8) as usize;
        let value = model.lock().unwrap().write(range.clone());
        let data = value.to_le_bytes().repeat(128 * range.len());
        match random(&mut seed) % 4 {
            0 => guest.write_sector(start as u8, &data),
            1 | 2 => {
                guest.write_durably(start as u8, &data);
                model.lock().unwrap().acknowledge(range, value);
            }
            _ => {
                guest.write_sector(start as u8, &data);
                guest.synchronize();
                model.lock().unwrap().acknowledge(0..SECTORS as usize, value);
            }
        }
        if random(&mut seed).is_multiple_of(16) {
            let arguments = format!("ctl {} save {}", control.display(), saved.display());
            let _ = program(&words(&arguments)).output().unwrap();
        }
    }
}

#[test]
fn no_durable_write_is_missing_or_torn_after_50_kills() {
    let host = Host::new("kills");
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let sector = Sector { durable: 0, since: Vec::new() };
    let model = Arc::new(Mutex::new(Model {
        sectors: vec![sector; SECTORS as usize],
        value: 0,
        acknowledged: 0,
    }));
    let memory: OwnedFd = ehci::memory();
    let mut server = host.start("");
    save(&host.control, &host.saved);
    for round in 0..50 {
        let guest = if round == 0 {
            let mut guest = Ehci::connect(&host.socket, Some(&memory));
            guest.take_ports();
            guest
        } else {
            Ehci::connect(&host.socket, Some(&memory))
        };
        let (shared, seed_there) = (model.clone(), random(&mut seed) | 1);
        let (control, saved) = (host.control.clone(), host.saved.clone());
        let writer = std::thread::spawn(move || {
            write_on(guest, &shared, &control, &saved, seed_there);
        });
        // Long enough for the disk to be set up in most rounds, and for some dozen writes.
        std::thread::sleep(Duration::from_micros(random(&mut seed) % 250_000));
        host.kill(&mut server);
        let end = writer.join().unwrap_err();
        if !end.is::<Lost>() {
            std::panic::resume_unwind(end);
        }
        model.lock().unwrap().settle(&fs::read(&host.image).unwrap());
        server = host.restart();
    }
    let acknowledged = model.lock().unwrap().acknowledged;
    assert!(acknowledged >= 50, "there was something to lose: {acknowledged}");
    assert!(server.end(Signal::TERM).success());
}
