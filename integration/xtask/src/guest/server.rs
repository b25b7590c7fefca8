//! `vm-usbd`, the server of our controllers, started and ended as a person would.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::hand::Hand;
use super::machine::socket;
use guest_protocol::TestPattern;

use super::rig::{Attachment, Controller, Disk, Kind, Loopback, Maker, Rig, Transport, Wiring};
use crate::{progress, shell, workspace};

/// How long a server may take to listen, and to end.
const PATIENCE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(10);

/// The server's idea of a frame's length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pacing {
    #[default]
    Realtime,
    Eager,
    Wire,
}

impl Pacing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Realtime => "realtime",
            Self::Eager => "eager",
            Self::Wire => "wire",
        }
    }
}

/// A running server; dropped, it is killed.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    hand: Hand,
}

/// Builds the server and gives its program.
pub(crate) fn build() -> Result<PathBuf> {
    let mut cargo = Command::new(workspace::cargo());
    cargo
        .args(["build", "--quiet", "--release", "--package", "vm-usbd"])
        .current_dir(workspace::root());
    let bar = progress::spinner("building vm-usbd");
    let built = shell::output(&mut cargo);
    bar.finish_and_clear();
    built.context("building vm-usbd")?;
    Ok(workspace::target().join("release/vm-usbd"))
}

impl Server {
    /// Starts `program` for our controllers of `rig` and waits until all of them listen.
    pub(crate) fn start(
        program: &Path,
        rig: &Rig,
        run: &Path,
        pacing: Option<Pacing>,
    ) -> Result<Self> {
        let hand = Hand::new(program, run);
        let log = run.join("vm-usbd.log");
        let mut command = Command::new(program);
        command.args(arguments(rig, run, pacing));
        command.arg("--input").arg(hand.input()).arg("--control").arg(hand.control());
        command.arg("--allow-path").arg(run);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut server = Self { child, log, hand };
        let sockets = rig.of(Maker::Ours).map(|controller| socket(run, controller));
        let own = [server.hand.input(), server.hand.control()].map(Path::to_owned);
        for socket in sockets.chain(own) {
            server.wait_for(&socket)?;
        }
        Ok(server)
    }

    fn wait_for(&mut self, socket: &Path) -> Result<()> {
        let start = Instant::now();
        while !socket.exists() {
            if let Some(status) = self.child.try_wait()? {
                bail!("vm-usbd ended ({status}) instead of serving: {}", self.said());
            }
            if start.elapsed() > PATIENCE {
                bail!(
                    "vm-usbd did not make {} in {} s: {}",
                    socket.display(),
                    PATIENCE.as_secs(),
                    self.said()
                );
            }
            sleep(INTERVAL);
        }
        Ok(())
    }

    /// The end of what it wrote to its error output.
    pub(crate) fn said(&self) -> String {
        shell::last_lines(&fs::read(&self.log).unwrap_or_default())
    }

    /// Who presses its keys and pulls its plugs.
    pub(crate) fn hand(&self) -> &Hand {
        &self.hand
    }

    /// The server's process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, as a service manager would; the data is then in the images.
    pub(crate) fn end(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("vm-usbd ended by itself ({status}): {}", self.said());
        }
        let status = self.terminate()?;
        if !status.success() {
            bail!("vm-usbd ended with {status} after SIGTERM: {}", self.said());
        }
        Ok(())
    }

    fn terminate(&mut self) -> Result<ExitStatus> {
        let process = Pid::from_child(&self.child);
        kill_process(process, Signal::TERM)?;
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > PATIENCE {
                bail!("vm-usbd did not end within {} s of SIGTERM", PATIENCE.as_secs());
            }
            sleep(INTERVAL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail when it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the tape of a controller goes that is recorded.
pub(crate) fn tape(run: &Path, controller: &str) -> PathBuf {
    run.join(format!("{controller}.tape"))
}

/// Where what QEMU says to such a controller goes.
pub(crate) fn recording(run: &Path, controller: &str) -> PathBuf {
    run.join(format!("{controller}.messages"))
}

fn arguments(rig: &Rig, run: &Path, pacing: Option<Pacing>) -> Vec<String> {
    let mut list = Vec::new();
    for controller in rig.of(Maker::Ours) {
        let socket = socket(run, controller);
        list.push("--controller".to_owned());
        let mut options =
            format!("{},id={},socket={}", controller.kind.name(), controller.id, socket.display());
        if let Some(partner) = controller.companion_of {
            options.push_str(&format!(",companion-of={partner}"));
        }
        if !controller.prompt_commit {
            options.push_str(",prompt-commit=off");
        }
        if let Some(id) = controller.pci_id {
            options.push_str(&format!(",pci-id={id}"));
        }
        if let Some(kibibytes) = controller.tape_kibibytes {
            let tape = tape(run, controller.id);
            options.push_str(&format!(",tape={},tape-limit={kibibytes}", tape.display()));
        }
        list.push(options);
    }
    for controller in rig.of(Maker::Ours) {
        if controller.wiring != Wiring::Direct {
            let speed = match controller.kind {
                Kind::Ehci | Kind::Xhci => "high",
                Kind::Ohci => "full",
            };
            list.push("--device".to_owned());
            list.push(format!("hub,bus={},id={},speed={speed}", controller.id, controller.bus()));
        }
        for device in &controller.devices {
            list.push("--device".to_owned());
            list.push(device_option(controller, device));
        }
    }
    if let Some(pacing) = pacing {
        list.extend(["--pacing".to_owned(), pacing.name().to_owned()]);
    }
    list
}

fn device_option(controller: &Controller, device: &Attachment) -> String {
    let (kind, rest) = match device {
        Attachment::Disk(Disk { image, transport }) => {
            let uas = match transport {
                Transport::Uas => "",
                Transport::BulkOnly => ",uas=off",
            };
            ("storage", format!(",file={}{uas}", image.display()))
        }
        Attachment::Keyboard => ("keyboard", String::new()),
        Attachment::Tablet => ("tablet", String::new()),
        Attachment::Printer(file) => ("printer", format!(",file={}", file.display())),
        Attachment::Loopback(loopback) => ("loopback", loopback_options(loopback)),
    };
    let speed = if controller.is_slowed() { ",speed=full" } else { "" };
    format!("{kind},bus={},id={}{rest}{speed}", controller.bus(), controller.device_id(device))
}

fn loopback_options(loopback: &Loopback) -> String {
    let mut options = match loopback.pattern {
        TestPattern::Zero => ",pattern=zero".to_owned(),
        TestPattern::Mod63 => ",pattern=mod63".to_owned(),
    };
    if let Some(bytes) = loopback.message {
        options.push_str(&format!(",message={bytes}"));
    }
    if let Some(pace) = loopback.pace {
        options.push_str(&format!(",pace={pace}"));
    }
    if let Some((packet, packets, interval)) = loopback.isochronous {
        options.push_str(&format!(
            ",iso-packet={packet},iso-packets={packets},iso-interval={interval}"
        ));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_rig_is_two_controllers_and_four_devices() {
        let rig = Rig::standard(Maker::Ours, Path::new("/i/e.img"), Path::new("/i/o.img"));
        let line = arguments(&rig, Path::new("/run/x"), Some(Pacing::Eager)).join(" ");
        assert_eq!(
            line,
            "--controller ehci,id=e0,socket=/run/x/e0.sock --controller ohci,id=o0,socket=/run/x/o0.sock \
             --device storage,bus=e0,id=e0-disk,file=/i/e.img --device tablet,bus=e0,id=e0-tablet \
             --device storage,bus=o0,id=o0-disk,file=/i/o.img --device keyboard,bus=o0,id=o0-keyboard --pacing eager"
        );
    }

    #[test]
    fn a_controller_that_is_recorded_has_a_tape() {
        let mut rig = Rig::single(Kind::Ohci, Attachment::Keyboard);
        rig.controllers[0].tape_kibibytes = Some(28);
        let line = arguments(&rig, Path::new("/run/x"), None).join(" ");
        assert!(line.starts_with(
            "--controller ohci,id=o0,socket=/run/x/o0.sock,tape=/run/x/o0.tape,tape-limit=28 "
        ));
    }

    #[test]
    fn a_hub_comes_before_what_is_behind_it() {
        let disk = Attachment::disk(Maker::Ours, "/i/o.img".into());
        let rig = Rig::single(Kind::Ohci, disk).wired(Wiring::Hub).over(Transport::BulkOnly);
        let line = arguments(&rig, Path::new("/run/x"), None).join(" ");
        assert_eq!(
            line,
            "--controller ohci,id=o0,socket=/run/x/o0.sock --device hub,bus=o0,id=o0-hub,speed=full \
             --device storage,bus=o0-hub,id=o0-disk,file=/i/o.img,uas=off"
        );
        let mut rig = Rig::single(Kind::Ehci, Attachment::Tablet).wired(Wiring::Translator);
        rig.controllers[0].pci_id = Some("8086:24cd");
        let line = arguments(&rig, Path::new("/run/x"), None).join(" ");
        assert!(line.contains("socket=/run/x/e0.sock,pci-id=8086:24cd --device hub"), "{line}");
        assert!(line.ends_with("speed=high --device tablet,bus=e0-hub,id=e0-tablet,speed=full"));
    }

    #[test]
    fn a_source_and_sink_has_its_messages_and_its_isochronous_pair() {
        let camera = Loopback {
            pattern: TestPattern::Zero,
            message: Some(1500),
            pace: Some(200),
            isochronous: Some((1024, 3, 1)),
        };
        let rig = Rig::single(Kind::Ehci, Attachment::Loopback(camera));
        let line = arguments(&rig, Path::new("/run/x"), None).join(" ");
        assert!(
            line.ends_with(
                "loopback,bus=e0,id=e0-loopback,pattern=zero,message=1500,pace=200,iso-packet=1024,iso-packets=3,iso-interval=1"
            ),
            "{line}"
        );
    }

    #[test]
    fn qemus_controllers_are_not_ours_to_serve() {
        let rig = Rig::standard(Maker::Qemu, Path::new("e.img"), Path::new("o.img"));
        assert!(arguments(&rig, Path::new("/run/x"), None).is_empty());
    }
}
