//! A guest from its start to its end.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use guest_protocol::{Answer, Hello, Inventory, Reply, Request, parse, send};

use super::console::Console;
use super::machine::{Firmware, Machine, socket};
use super::relay;
use super::rig::{Attachment, Maker, Rig};
use super::server::{Pacing, Server, recording};
use crate::setup::Qemu;

/// A kernel under TCG boots in four seconds on an idle machine; this is for a busy one.
const BOOT: Duration = Duration::from_secs(120);
/// The longest request, a checksum over a slow controller, takes seconds.
const REQUEST: Duration = Duration::from_secs(180);
const POWER_OFF: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(20);

/// What a guest is started from.
pub(crate) struct Start<'a> {
    pub(crate) qemu: &'a Qemu,
    /// The server's program; not needed for a rig without controllers of ours.
    pub(crate) server: Option<&'a Path>,
    pub(crate) firmware: Firmware,
    pub(crate) rig: Rig,
    pub(crate) memory: u32,
    pub(crate) pacing: Option<Pacing>,
    /// Where the run's sockets and logs are.
    pub(crate) run: PathBuf,
}

/// A running guest; dropped, it and its server are killed.
pub(crate) struct Guest {
    qemu: Child,
    server: Option<Server>,
    rig: Rig,
    monitor: PathBuf,
    pub(crate) console: Console,
    channel: Option<Channel>,
}

struct Channel {
    writer: UnixStream,
    lines: Receiver<String>,
    pub(crate) kernel: String,
}

impl Start<'_> {
    fn machine(&self) -> Machine<'_> {
        Machine {
            qemu: self.qemu,
            firmware: &self.firmware,
            rig: &self.rig,
            memory: self.memory,
            run: &self.run,
        }
    }

    fn serve(&self) -> Result<Option<Server>> {
        if self.rig.of(Maker::Ours).next().is_none() {
            return Ok(None);
        }
        let program = self.server.context("this guest needs vm-usbd")?;
        let server = Server::start(program, &self.rig, &self.run, self.pacing)?;
        for controller in self.rig.of(Maker::Ours) {
            if controller.tape_kibibytes.is_some() {
                let recording = recording(&self.run, controller.id);
                relay::put_before(&socket(&self.run, controller), recording)?;
            }
        }
        Ok(Some(server))
    }

    /// Runs a guest with a shell on this terminal until it ends.
    pub(crate) fn interactive(self) -> Result<()> {
        let server = self.serve()?;
        let status = self.machine().command().status().context("cannot start QEMU")?;
        if !status.success() {
            bail!("QEMU ended with {status}");
        }
        server.map_or(Ok(()), Server::end)
    }

    /// Starts the guest; with Linux, waits until its agent is ready.
    pub(crate) fn start(self) -> Result<Guest> {
        let server = self.serve()?;
        let machine = self.machine();
        let is_linux = matches!(self.firmware, Firmware::Linux { .. });
        let listener = is_linux.then(|| UnixListener::bind(machine.channel())).transpose()?;
        let mut command = machine.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut qemu = command.spawn().context("cannot start QEMU")?;
        let output = qemu.stdout.take().context("QEMU's output is a pipe")?;
        let errors = qemu.stderr.take().context("QEMU's error output is a pipe")?;
        let console = Console::follow(output, &self.run.join("console.log"))?;
        let complaints = Console::follow(errors, &self.run.join("qemu.log"))?;
        let monitor = machine.monitor();
        let mut guest = Guest { qemu, server, rig: self.rig, monitor, console, channel: None };
        if let Some(listener) = listener {
            let channel = guest.connect(&listener).with_context(|| complaints.tail(4));
            guest.channel = Some(channel?);
        }
        Ok(guest)
    }
}

impl Guest {
    fn connect(&mut self, listener: &UnixListener) -> Result<Channel> {
        listener.set_nonblocking(true)?;
        let start = Instant::now();
        let writer = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if start.elapsed() < BOOT => {
                    self.still_runs()?;
                    sleep(INTERVAL);
                }
                Err(error) => {
                    return Err(error).context("QEMU did not connect to the agent's channel");
                }
            }
        };
        writer.set_nonblocking(false)?;
        let reader = BufReader::new(writer.try_clone()?);
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut channel = Channel { writer, lines, kernel: String::new() };
        let line = self.line(&channel, BOOT).context("the guest did not come up")?;
        channel.kernel = parse::<Hello>(&line).map_err(|error| anyhow!(error))?.kernel;
        Ok(channel)
    }

    /// The next line from the agent. It fails as soon as QEMU or the kernel has.
    fn line(&mut self, channel: &Channel, limit: Duration) -> Result<String> {
        let start = Instant::now();
        loop {
            match channel.lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if start.elapsed() < limit => self.still_runs()?,
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "no answer in {} s; the console's end:\n{}",
                        limit.as_secs(),
                        self.console.tail(12)
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.still_runs()?;
                    bail!(
                        "QEMU closed the agent's channel; the console's end:\n{}",
                        self.console.tail(12)
                    )
                }
            }
        }
    }

    fn still_runs(&mut self) -> Result<()> {
        if let Some(status) = self.qemu.try_wait()? {
            let said = self.server.as_ref().map(Server::said).unwrap_or_default();
            let server =
                if said.is_empty() { String::new() } else { format!("; vm-usbd said: {said}") };
            bail!("QEMU ended ({status}){server}; the console's end:\n{}", self.console.tail(12));
        }
        Ok(())
    }

    /// The guest's kernel release.
    pub(crate) fn kernel(&self) -> &str {
        self.channel.as_ref().map_or("", |channel| &channel.kernel)
    }

    /// One request and its reply.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Reply> {
        let mut channel = self.channel.take().context("this guest has no agent")?;
        let sent = send(&mut channel.writer, request).context("the agent's channel");
        let line = sent.and_then(|()| self.line(&channel, REQUEST));
        self.channel = Some(channel);
        parse::<Answer>(&line?)
            .map_err(|error| anyhow!(error))?
            .map_err(|error| anyhow!("the guest: {error}"))
    }

    /// What the guest sees once all that was plugged in is there.
    pub(crate) fn inventory(&mut self) -> Result<Inventory> {
        let request =
            Request::Inventory { disks: self.rig.disks(), input_devices: self.rig.input_devices() };
        match self.call(&request)? {
            Reply::Inventory(inventory) => Ok(inventory),
            other => bail!("an inventory was asked for and {other:?} came"),
        }
    }

    /// Presses and releases `key` on the keyboard of the rig.
    pub(crate) fn tap(&self, key: &str) -> Result<()> {
        match (&self.server, self.rig.device_id(&Attachment::Keyboard)) {
            (Some(server), Some(keyboard)) => {
                server.hand().inject(&[format!("tap {keyboard} {key}")])
            }
            (None, Some(_)) => {
                let mut monitor = UnixStream::connect(&self.monitor).context("QEMU's monitor")?;
                writeln!(monitor, "sendkey {key}").context("QEMU's monitor")?;
                // The monitor drops what it has not read when the other side hangs up.
                sleep(Duration::from_millis(200));
                Ok(())
            }
            (_, None) => bail!("there is no keyboard"),
        }
    }

    /// QEMU's process.
    pub(crate) fn process(&self) -> u32 {
        self.qemu.id()
    }

    /// Our server, for its input socket.
    pub(crate) fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// Powers the guest off and ends the server; then every write is in the images. Trouble on the console fails.
    pub(crate) fn end(self) -> Result<()> {
        self.end_but_for(&|_| false)
    }

    /// The same, but for trouble that is no wonder.
    pub(crate) fn end_but_for(mut self, expected: &dyn Fn(&str) -> bool) -> Result<()> {
        if self.channel.is_some() {
            self.call(&Request::PowerOff)?;
            let start = Instant::now();
            while self.qemu.try_wait()?.is_none() {
                if start.elapsed() > POWER_OFF {
                    bail!(
                        "the guest did not power off; the console's end:\n{}",
                        self.console.tail(12)
                    );
                }
                sleep(INTERVAL);
            }
        } else {
            self.qemu.kill()?;
            self.qemu.wait()?;
        }
        if let Some(server) = self.server.take() {
            server.end()?;
        }
        let mut trouble = self.console.trouble();
        trouble.retain(|line| !expected(line));
        if !trouble.is_empty() {
            bail!("the guest's kernel complained:\n{}", trouble.join("\n"));
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Both fail when it has ended, which is what is wanted.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
