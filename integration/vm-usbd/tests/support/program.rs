//! The program in a process of its own.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A folder of its own for each test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vm-usbd-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn image(&self, name: &str, sectors: u64) -> PathBuf {
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

pub fn program(arguments: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vm-usbd"));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

pub fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs the program to its end: exit code and error output.
pub fn refused(arguments: &[String]) -> (i32, String) {
    let output = program(arguments).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A server that is running.
pub struct Running {
    pub child: Child,
}

impl Running {
    pub fn start(arguments: &str, sockets: &[&Path]) -> Self {
        Self::spawn(program(&words(arguments)), sockets)
    }

    pub fn spawn(mut command: Command, sockets: &[&Path]) -> Self {
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Self { child };
        let start = Instant::now();
        while !sockets.iter().all(|socket| socket.exists()) {
            assert!(running.child.try_wait().unwrap().is_none(), "{}", running.said());
            assert!(start.elapsed() < PATIENCE, "no sockets");
            std::thread::sleep(Duration::from_millis(5));
        }
        running
    }

    /// Its error output, to the end, without what it says of the kernel it runs on.
    pub fn said(&mut self) -> String {
        let text = self.everything_said();
        text.split_inclusive('\n').filter(|line| !line.contains("warn: sandbox: ")).collect()
    }

    /// Its error output, to the end.
    pub fn everything_said(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    pub fn end(&mut self, signal: rustix::process::Signal) -> ExitStatus {
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
