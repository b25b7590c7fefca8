//! What a server that serves can no longer do.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::process::{Signal, geteuid};
use support::ehci::{self, Ehci};
use support::program::{Folder, PATIENCE, Running, program, refused, words};
use vm_usbd::cli::Arguments;
use vm_usbd::sandbox::calls;
use vm_usbd::sandbox::files::Files;

/// A server with an image of its own in a folder of its own, and a folder that it may use besides.
struct Served {
    folder: Folder,
    server: Running,
    socket: PathBuf,
    control: PathBuf,
}

impl Served {
    fn new(name: &str, more: &str) -> Self {
        let folder = Folder::new(name);
        for inner in ["run", "images", "allowed"] {
            fs::create_dir(folder.path(inner)).unwrap();
        }
        let (socket, control) = (folder.path("run/e"), folder.path("run/control"));
        let image = folder.image("images/disk.img", 64);
        folder.image("images/other.img", 64);
        folder.image("allowed/third.img", 64);
        let arguments = format!(
            "--controller ehci,id=e0,ports=3,socket={} --device storage,bus=e0,port=1,id=d,file={} \
             --control {} --allow-path {} {more}",
            socket.display(),
            image.display(),
            control.display(),
            folder.path("allowed").display(),
        );
        let server = Running::start(&arguments, &[&socket, &control]);
        Self { folder, server, socket, control }
    }

    fn ctl(&self, verb: &str) -> (i32, String, String) {
        let arguments = format!("ctl --control {} {verb}", self.control.display());
        let output = program(&words(&arguments)).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    fn done(&self, verb: &str) {
        let (code, printed, said) = self.ctl(verb);
        assert_eq!((code, &*said), (0, ""), "{verb}: {printed}");
    }

    /// What it says when it does not do it.
    fn refused(&self, verb: &str) -> String {
        let (code, printed, said) = self.ctl(verb);
        assert_eq!((code, &*printed), (1, ""), "{verb}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    fn path(&self, name: &str) -> String {
        self.folder.path(name).display().to_string()
    }

    /// `/proc/PID/task/TID/FILE` of every thread there is.
    fn tasks(&self, file: &str) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.server.child.id())).unwrap();
        // One may end between the listing and the look at it.
        tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join(file)).ok()).collect()
    }

    /// Each line of `/proc/PID/task/TID/status`, of every thread.
    fn threads(&self) -> Vec<String> {
        self.tasks("status")
    }
}

/// A line of a thread's status, without the white space.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_thread_is_filtered_and_gains_no_privileges() {
    let served = Served::new("threads", "--pcap /dev/null");
    // With a client, a control connection and a capture there are all the threads there can be.
    let _guest = Ehci::connect(&served.socket, Some(&ehci::memory()));
    served.done("list");
    let threads = served.threads();
    assert!(threads.len() >= 4, "main, signals, control, e0: {}", threads.len());
    for status in &threads {
        let name = field(status, "Name");
        assert_eq!(field(status, "Seccomp"), "2", "{name}");
        assert_eq!(field(status, "NoNewPrivs"), "1", "{name}");
    }
    let open = Served::new("threads-off", "--sandbox off");
    for status in open.threads() {
        assert_eq!((&*field(&status, "Seccomp"), &*field(&status, "NoNewPrivs")), ("0", "0"));
    }
}

#[test]
fn the_thread_that_keeps_processors_awake_has_idle_priority() {
    let mut served = Served::new("idle", "--halt-poll 10000");
    let mut guest = Ehci::connect(&served.socket, Some(&ehci::memory()));
    guest.enumerate_disk();
    // The name, the state and 38 fields come before the policy (proc(5)).
    let policy = |served: &Served| {
        let stats = served.tasks("stat");
        let stat = stats.iter().find(|stat| stat.contains("(e0 halt-poll)"))?;
        Some(stat.rsplit_once(") ").unwrap().1.split(' ').nth(38).unwrap().to_owned())
    };
    // It begins with the name and the priority of the thread that starts it.
    let start = Instant::now();
    loop {
        let found = policy(&served);
        if found == Some(libc::SCHED_IDLE.to_string()) {
            break;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "the policy of its thread is {found:?}, not SCHED_IDLE"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(served.server.end(Signal::TERM).code(), Some(0));
}

#[test]
fn files_that_nobody_named_are_out_of_reach() {
    let mut served = Served::new("reach", "");
    let other = served.path("images/other.img");
    let attach = format!("attach storage,bus=e0,port=2,id=x,file={other}");
    let advice = format!("--allow-path {}", served.path("images"));
    let said = served.refused(&attach);
    assert!(said.contains(&format!("{other}: outside of the sandbox")), "{said}");
    assert!(said.contains(&advice), "{said}");
    let printer = format!("attach printer,bus=e0,file={}", served.path("images/paper"));
    assert!(served.refused(&printer).contains(&advice));
    assert!(!served.folder.path("images/paper").exists());
    let save = format!("save {}", served.path("images/saved"));
    assert!(served.refused(&save).contains(&advice));

    // Its own image comes back, and what is in the folder it was told of.
    served.done("detach d");
    served.done(&format!(
        "attach storage,bus=e0,port=1,id=d,file={}",
        served.path("images/disk.img")
    ));
    let third = served.path("allowed/third.img");
    served.done(&format!("attach storage,bus=e0,port=2,id=t,file={third}"));
    served.done(&format!("attach printer,bus=e0,port=3,file={}", served.path("allowed/paper")));
    for _ in 0..2 {
        served.done(&format!("save {}", served.path("allowed/saved")));
    }
    assert!(served.server.end(Signal::TERM).success());
    assert!(!served.socket.exists() && !served.control.exists());
    assert_eq!(served.server.said(), "");
}

/// Whatever the server itself thinks of a path, the kernel refuses it. Confined is the thread that asks
/// for it, so this needs no process of its own.
#[test]
fn the_kernel_keeps_a_confined_thread_to_what_was_named() {
    let folder = Folder::new("confined");
    for inner in ["run", "images", "allowed"] {
        fs::create_dir(folder.path(inner)).unwrap();
    }
    let image = folder.image("images/disk.img", 64);
    let read_only = folder.image("images/read-only.img", 64);
    let other = folder.image("images/other.img", 64);
    let socket = folder.path("run/e");
    let command = format!(
        "vm-usbd --controller ehci,id=e0,socket={} --allow-path {} \
         --device storage,bus=e0,file={} --device storage,bus=e0,readonly=on,file={}",
        socket.display(),
        folder.path("allowed").display(),
        image.display(),
        read_only.display()
    );
    fs::write(&socket, "").unwrap();
    let link = folder.path("allowed/link");
    std::os::unix::fs::symlink(&other, &link).unwrap();
    let files = Files::of(&Arguments::try_parse_from(words(&command)).unwrap()).unwrap();
    let denied = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    };
    let write = |path: &Path| File::options().write(true).open(path).map(drop);
    std::thread::scope(|scope| {
        let confined = scope.spawn(|| {
            if let Some(lack) = files.confine().unwrap() {
                let test = "the_kernel_keeps_a_confined_thread_to_what_was_named";
                // Past the test harness, which keeps what a passing test prints.
                let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {lack}");
                return;
            }
            write(&image).unwrap();
            File::open(&image).map(drop).unwrap();
            File::open(&read_only).map(drop).unwrap();
            denied(write(&read_only));
            for path in
                [other.as_path(), &link, Path::new("/etc/passwd"), Path::new("/proc/self/mem")]
            {
                denied(File::open(path).map(drop));
            }
            denied(File::create(folder.path("images/new")).map(drop));
            denied(fs::remove_file(&image));
            denied(fs::rename(&image, folder.path("allowed/image")));
            fs::write(folder.path("allowed/new"), "text").unwrap();
            fs::rename(folder.path("allowed/new"), folder.path("allowed/old")).unwrap();
            // Of the sockets' folder nothing is needed but that they can be removed.
            denied(File::open(&socket).map(drop));
            denied(File::create(folder.path("run/new")).map(drop));
            fs::remove_file(&socket).unwrap();
        });
        confined.join().unwrap();
    });
}

#[test]
fn without_a_sandbox_every_file_is_in_reach() {
    let served = Served::new("off", "--sandbox off");
    let other = served.path("images/other.img");
    served.done(&format!("attach storage,bus=e0,port=2,id=x,file={other}"));
    served.done(&format!("save {}", served.path("images/saved")));
}

#[test]
fn what_cannot_be_allowed_is_one_line() {
    let folder = Folder::new("allow-mistakes");
    let ehci = format!("--controller ehci,id=e0,socket={}", folder.path("e").display());
    for (more, phrase) in [
        ("--allow-path /nowhere/images", "--allow-path: cannot use /nowhere/images: No such file"),
        ("--user nobody-of-that-name", "--user: there is no user \"nobody-of-that-name\" here"),
        ("--group no-such-group", "--group: there is no group \"no-such-group\" here"),
        ("--user 3999999", "say --group, too"),
    ] {
        let (code, said) = refused(&words(&format!("{ehci} {more}")));
        assert_eq!((code, said.lines().count()), (1, 1), "{more}: {said}");
        assert!(said.contains(phrase), "{more}: {said}");
        assert!(!folder.path("e").exists(), "{more}: socket left");
    }
}

/// Root becomes somebody without privileges; everybody else is told that only root can.
#[test]
fn a_server_becomes_the_user_it_is_told_to() {
    let folder = Folder::new("user");
    let socket = folder.path("e");
    let arguments =
        format!("--controller ehci,id=e0,socket={} --user 65534 --group 65533", socket.display());
    if !geteuid().is_root() {
        let (code, said) = refused(&words(&arguments));
        assert_eq!(code, 1);
        assert!(said.contains("only root can become somebody else"), "{said}");
        return;
    }
    chown(&folder.0, Some(65534), Some(65533)).unwrap();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
    let mut server = Running::start(&arguments, &[&socket]);
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    assert_eq!(field(&status, "Uid"), "65534 65534 65534 65534");
    assert_eq!(field(&status, "Gid"), "65533 65533 65533 65533");
    assert!(!field(&status, "Groups").split(' ').any(|group| group == "0"), "{status}");
    assert_eq!(field(&status, "CapEff"), "0000000000000000");
    assert_eq!(field(&status, "CapPrm"), "0000000000000000");
    assert!(server.end(Signal::TERM).success());
}

/// Names what the copy of this test that [`dies`] starts is to try.
const ATTEMPT: &str = "VM_USBD_SANDBOX_ATTEMPT";

/// How a process ends that does this under the filter.
fn ends(attempt: &str) -> ExitStatus {
    let own = std::env::current_exe().unwrap();
    let mut copy = Command::new(own);
    copy.args(["--exact", "calls_that_a_server_does_not_make_end_it", "--nocapture"]);
    copy.env(ATTEMPT, attempt).output().unwrap().status
}

fn attempt(what: &str) {
    assert_eq!(calls::confine(), None, "the kernel filters");
    match what {
        "nothing" => {}
        // Of a C library that makes threads by clone3, and is told that there is none.
        "thread" => {
            std::thread::spawn(|| std::fs::read("/nowhere").unwrap_err()).join().map(drop).unwrap()
        }
        "idle" => vm_usb_idle_priority::take().unwrap(),
        "panic" => drop(std::thread::spawn(|| panic!("as planned")).join()),
        "exec" => drop(Command::new("/bin/true").exec()),
        "process" => drop(Command::new("/bin/true").status()),
        "socket" => drop(std::os::unix::net::UnixStream::connect("/nowhere")),
        "tcp" => drop(std::net::TcpListener::bind("127.0.0.1:0")),
        "kill" => drop(rustix::process::test_kill_process(rustix::process::Pid::INIT)),
        "mode" => drop(fs::set_permissions("/nowhere", fs::Permissions::from_mode(0o777))),
        "folder" => drop(fs::create_dir("/nowhere/folder")),
        "link" => drop(fs::hard_link("/nowhere/a", "/nowhere/b")),
        other => panic!("{other}?"),
    }
}

#[test]
fn calls_that_a_server_does_not_make_end_it() {
    if let Ok(what) = std::env::var(ATTEMPT) {
        return attempt(&what);
    }
    for harmless in ["nothing", "thread", "idle", "panic"] {
        let status = ends(harmless);
        assert!(status.success(), "{harmless}: {status}");
    }
    for harmful in ["exec", "process", "socket", "tcp", "kill", "mode", "folder", "link"] {
        let status = ends(harmful);
        assert_eq!(status.signal(), Some(Signal::SYS.as_raw()), "{harmful}: {status}");
    }
}

#[test]
fn a_sandbox_that_is_required_is_whole_or_there_is_no_server() {
    let folder = Folder::new("require");
    let socket = folder.path("e");
    let arguments =
        words(&format!("--controller ehci,id=e0,socket={} --sandbox require", socket.display()));
    let mut server = program(&arguments).stderr(std::process::Stdio::piped()).spawn().unwrap();
    while !socket.exists() && server.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    // Which of the two it is depends on this kernel, and the server without `require` says it.
    if lacks_something(folder.path("again").as_path()) {
        assert_eq!(server.wait().unwrap().code(), Some(1));
        assert!(!socket.exists());
    } else {
        let mut running = Running { child: server };
        assert!(running.end(Signal::TERM).success());
    }
}

/// Whether a server says that the kernel lacks a part of the sandbox.
fn lacks_something(socket: &Path) -> bool {
    let arguments = format!("--controller ehci,id=e0,socket={}", socket.display());
    let mut server = Running::start(&arguments, &[socket]);
    assert!(server.end(Signal::TERM).success());
    server.everything_said().contains("warn: sandbox: ")
}
