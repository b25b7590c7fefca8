//! Commands on standard input: what an embedder can do to the controllers while the guest runs.
//!
//! They are read in a thread of their own, which is like the thread that serves a VMM's control socket: ports
//! are plugged and functions paused from wherever the command comes.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::thread;

use anyhow::{Context, anyhow};
use vm_usb::devices::hid::Key;

use crate::usb::{Socket, Usb};

/// A line of standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Command {
    /// `statistics`: print what has been counted.
    Statistics,
    /// `pause`: both controllers stand still, and with them the guest in its next access.
    Pause,
    /// `resume`: they go on.
    Resume,
    /// `attach PORT FILE`: plug in a high-speed disk.
    Attach(Socket, PathBuf),
    /// `detach PORT`: pull out what is there.
    Detach(Socket),
    /// `press KEY`: a key of every keyboard goes down and comes up.
    Press(Key),
}

impl FromStr for Command {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        Ok(match *words {
            ["statistics"] => Self::Statistics,
            ["pause"] => Self::Pause,
            ["resume"] => Self::Resume,
            ["attach", port, file] => Self::Attach(port.parse()?, file.into()),
            ["detach", port] => Self::Detach(port.parse()?),
            ["press", key] => Self::Press(key.parse()?),
            _ => {
                return Err(anyhow!(
                    "there is no command \"{line}\": use statistics, pause, resume, \
                     attach PORT FILE, detach PORT or press KEY"
                ));
            }
        })
    }
}

/// Carries out the commands on standard input until it or the machine ends.
pub(crate) fn start(usb: &Arc<Usb>) -> anyhow::Result<()> {
    // The thread may outlive the machine, in a read: it must not keep the disks from being closed.
    let usb = Arc::downgrade(usb);
    let serve = move || serve(&usb, &mut io::stdin().lock().lines().map_while(Result::ok));
    thread::Builder::new().name("monitor".into()).spawn(serve).context("no monitor thread")?;
    Ok(())
}

fn serve(usb: &Weak<Usb>, lines: &mut dyn Iterator<Item = String>) {
    while let Some(line) = lines.next() {
        let Some(usb) = usb.upgrade() else { return };
        if let Err(error) = line.parse().and_then(|command| carry_out(&usb, command, lines)) {
            eprintln!("vm-usb-kvm: {error:#}");
        }
    }
}

fn carry_out(
    usb: &Usb,
    command: Command,
    lines: &mut dyn Iterator<Item = String>,
) -> anyhow::Result<()> {
    match command {
        Command::Statistics => eprintln!("{}", usb.statistics()),
        Command::Pause => {
            let _still = usb.pause();
            eprintln!("paused");
            // Whoever has paused a function must not use it, so nothing else is possible until then.
            while lines.next().is_some_and(|line| line.trim() != "resume") {
                eprintln!("vm-usb-kvm: the machine is paused: \"resume\" it first");
            }
        }
        Command::Resume => return Err(anyhow!("the machine is not paused")),
        Command::Attach(port, image) => usb.attach_disk(port, &image)?,
        Command::Detach(port) => usb.detach(port)?,
        Command::Press(key) => usb.press(key)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command() {
        let parse = |line: &str| line.parse::<Command>().map_err(|error| error.to_string());
        let port = |text: &str| text.parse().unwrap();
        assert_eq!(parse(" pause "), Ok(Command::Pause));
        assert_eq!(parse("attach 2 a.img"), Ok(Command::Attach(port("2"), "a.img".into())));
        assert_eq!(parse("detach 4"), Ok(Command::Detach(port("4"))));
        assert_eq!(parse("press a"), Ok(Command::Press("a".parse().unwrap())));
        assert!(parse("detach 5").unwrap_err().contains("1 to 4"));
        assert!(parse("eject").unwrap_err().contains("detach PORT"));
    }
}
