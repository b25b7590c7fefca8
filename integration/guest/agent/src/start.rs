//! From the kernel's hand-over to the first request.

use std::fs::{self, File, OpenOptions};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, Mode};
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use crate::{inventory, serve};

/// The drivers the initramfs carries in the order it wants them loaded, one name a line.
const MODULE_LIST: &str = "/etc/lab-modules";
/// The channel to the host: the second serial port.
const CHANNEL: &str = if cfg!(target_arch = "aarch64") { "/dev/ttyAMA1" } else { "/dev/ttyS1" };

pub(crate) fn run() -> Result<()> {
    mount_all()?;
    load_modules()?;
    if fs::read_to_string("/proc/cmdline")?.split_whitespace().any(|word| word == "lab.shell") {
        return shell();
    }
    let channel = open_channel()?;
    serve::serve(channel)
}

fn mount_all() -> Result<()> {
    for (kind, target) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")]
    {
        rustix::fs::mkdirat(CWD, target, Mode::from_raw_mode(0o755)).ok();
        mount(kind, target, kind, MountFlags::empty(), None)
            .with_context(|| format!("mounting {target}"))?;
    }
    Ok(())
}

/// Loads every driver the initramfs lists. Those the kernel has built in are no failure: modprobe knows them.
fn load_modules() -> Result<()> {
    let list = fs::read_to_string(MODULE_LIST).context(MODULE_LIST)?;
    for module in list.split_whitespace() {
        modprobe(&[module])?;
    }
    Ok(())
}

/// Runs modprobe with `arguments`.
pub(crate) fn modprobe(arguments: &[&str]) -> Result<()> {
    let output =
        Command::new("/sbin/modprobe").args(arguments).output().context("/sbin/modprobe")?;
    if !output.status.success() {
        bail!(
            "modprobe {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// The serial port without line editing, echo or newline translation.
fn open_channel() -> Result<File> {
    let channel = OpenOptions::new().read(true).write(true).open(CHANNEL).context(CHANNEL)?;
    let mut settings = tcgetattr(&channel)?;
    settings.make_raw();
    tcsetattr(&channel, OptionalActions::Now, &settings)?;
    Ok(channel)
}

fn shell() -> Result<()> {
    println!("\nA stock Debian kernel on the controllers under test. It found:");
    for device in inventory::when_quiet()?.devices {
        println!("  {} at {} Mbit/s behind {}", device.product, device.speed, device.controller);
    }
    println!("`exit` ends the guest.\n");
    let mut shell = Command::new("/bin/setsid");
    // The shell's status is that of the person's last command, which is no concern of ours.
    shell.args(["cttyhack", "/bin/sh", "-l"]).env("PS1", "guest# ").status()?;
    Ok(())
}

pub(crate) fn power_off() -> ! {
    rustix::fs::sync();
    // With panic=-1 on the command line, a failed power-off still ends the guest: its first process is gone.
    let _ = reboot(RebootCommand::PowerOff);
    std::process::exit(1)
}
