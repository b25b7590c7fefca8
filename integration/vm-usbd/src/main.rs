//! `vm-usbd`: see the library and `docs/vfio-user.md`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use clap::Parser;
use clap::error::ErrorKind;
use log::{LevelFilter, error, info};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vm_usb::ohci;
use vm_usbd::assembly::{Assembly, assemble};
use vm_usbd::checkpoint::{self, Loop};
use vm_usbd::cli::{Arguments, Command, Ctl, Pacing, Top};
use vm_usbd::control::{Machine, client};
use vm_usbd::doorbell::Doorbell;
use vm_usbd::lines::{self, Answer};
use vm_usbd::listener::Listener;
use vm_usbd::outputs;
use vm_usbd::pcap::Capture;
use vm_usbd::sandbox::person;
use vm_usbd::serve::Server;
use vm_usbd::top;

/// The command line is wrong.
const USAGE: u8 = 2;
/// Something it names cannot be used, or failed later.
const FAILURE: u8 = 1;

fn main() -> ExitCode {
    start_log();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    let result = match &arguments.command {
        None => run(&arguments),
        Some(Command::Ctl(ctl)) => ask(ctl),
        Some(Command::Top(top)) => watch(top),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, line)) => {
            eprintln!("vm-usbd: {line}");
            ExitCode::from(code)
        }
    }
}

/// One line an event on standard error; `RUST_LOG` chooses which.
fn start_log() {
    env_logger::Builder::new()
        .filter_level(LevelFilter::Warn)
        .parse_default_env()
        .format(|out, record| {
            let level = record.level().as_str().to_lowercase();
            // The library does not know its controllers' names; their threads have them.
            let thread = std::thread::current();
            let who = thread.name().filter(|name| *name != "main");
            match who.filter(|_| record.target().starts_with("vm_usb::")) {
                Some(who) => writeln!(out, "vm-usbd: {level}: {who}: {}", record.args()),
                None => writeln!(out, "vm-usbd: {level}: {}", record.args()),
            }
        })
        .init();
}

/// Prints help as it is, and an error as one line.
fn explain(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        print!("{error}");
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let words: Vec<&str> =
        text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let line = words.join(" ");
    eprintln!("vm-usbd: {}; see --help", line.strip_prefix("error: ").unwrap_or(&line));
    ExitCode::from(USAGE)
}

type Failure = (u8, String);

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let pacing = match arguments.pacing {
        None | Some(Pacing::Realtime) => ohci::Pacing::RealTime,
        Some(Pacing::Eager) => ohci::Pacing::Eager,
        Some(Pacing::Wire) => ohci::Pacing::Wire,
    };
    // Each client may hand over some hundred; what the shell gives is little more than that for all.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    person::change(arguments).map_err(|error| (FAILURE, error.to_string()))?;
    outputs::check(arguments).map_err(|error| (FAILURE, error.to_string()))?;
    // Before the first socket is there, so that it is removed whenever the signal comes.
    let mut signals = Signals::new([SIGTERM, SIGINT])
        .map_err(|error| (FAILURE, format!("cannot wait for signals: {error}")))?;
    let capture = match &arguments.pcap {
        Some(path) => Some(Capture::create(path, arguments.pcap_limits()).map_err(|error| {
            (FAILURE, format!("--pcap: cannot create {}: {error}", path.display()))
        })?),
        None => None,
    };
    let (controllers, devices) = (&arguments.controllers, &arguments.devices);
    let assembly = assemble(controllers, devices, pacing, capture.as_ref())
        .map_err(|error| (FAILURE, error.to_string()))?;

    let Assembly { mut servers, board } = assembly;
    for server in &mut servers {
        server.halt_poll = Duration::from_micros(arguments.halt_poll);
    }
    if let Some(path) = &arguments.restore {
        checkpoint::restore(path, &mut servers, &mut board.root_ports())
            .map_err(|error| (FAILURE, format!("--restore: {error}")))?;
    }
    // Both first: a thread that serves one keeps it for as long as the program runs.
    let input = open("--input", arguments.input.as_deref())?;
    let control = open("--control", arguments.control.as_deref())?;
    // Everything is open, and there is no thread yet that would stay outside.
    let entered = arguments.sandbox.enter(arguments);
    let reach = entered.map_err(|error| (FAILURE, error.to_string()))?;
    if let Some(capture) = &capture {
        capture.start().map_err(|error| (FAILURE, format!("cannot start a thread: {error}")))?;
    }
    let loops = servers.iter().map(Loop::of).collect();
    let inputs = Arc::new(board.inputs());
    let gauges = servers.iter().map(|server| server.gauge.clone()).collect();
    let machine = Arc::new(Machine::new(board, gauges, loops, capture.clone(), reach));
    offer(input.as_ref(), inputs);
    offer(control.as_ref(), machine.clone());

    let (ended, end) = channel();
    let on_signal = ended.clone();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let _ = on_signal.send(End::Signal);
        }
    });
    let result = serve(servers, &machine, &ended, &end);
    for listener in [input, control].iter().flatten() {
        listener.remove();
    }
    if let Some(capture) = capture {
        capture.finish();
    }
    result
}

/// A socket for lines, if there is to be one.
fn open(option: &str, path: Option<&Path>) -> Result<Option<Arc<Listener>>, Failure> {
    let listener = path.map(Listener::new).transpose();
    let listener = listener.map_err(|error| (FAILURE, format!("{option}: {error}")))?;
    Ok(listener.map(Arc::new))
}

/// Serves it from now on.
fn offer<A: Answer>(listener: Option<&Arc<Listener>>, answers: Arc<A>) {
    if let Some(listener) = listener.cloned() {
        std::thread::spawn(move || lines::serve(&listener, &answers));
    }
}

/// `vm-usbd ctl`.
fn ask(ctl: &Ctl) -> Result<(), Failure> {
    let reply =
        client::ask(ctl.server.path(), &ctl.verb).map_err(|error| (FAILURE, error.to_string()))?;
    let text = if ctl.json {
        serde_json::to_string(&reply).map_err(|error| (FAILURE, error.to_string()))?
    } else {
        reply.to_string()
    };
    // Whoever reads it may have read enough.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

/// `vm-usbd top`, until a signal comes.
fn watch(top: &Top) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT])
        .map_err(|error| (FAILURE, format!("cannot wait for signals: {error}")))?;
    let (ended, end) = channel();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            let _ = ended.send(());
        }
    });
    let interval = Duration::from_millis(top.interval);
    top::run(top.server.path(), interval, &end).map_err(|error| (FAILURE, error.to_string()))
}

/// Why the program ends.
enum End {
    Signal,
    /// A loop has ended by itself.
    Loop(String),
}

/// Says that a loop has ended, in whichever way.
struct Goodbye(String, Sender<End>);

impl Drop for Goodbye {
    fn drop(&mut self) {
        // Nobody listens any more when the program ends in order.
        let _ = self.1.send(End::Loop(std::mem::take(&mut self.0)));
    }
}

/// Runs every controller's loop until a signal comes, then ends in order: loops, sockets, devices.
fn serve(
    servers: Vec<Server>,
    machine: &Machine,
    ended: &Sender<End>,
    end: &std::sync::mpsc::Receiver<End>,
) -> Result<(), Failure> {
    let mut doorbells: Vec<Arc<Doorbell>> = Vec::new();
    let mut threads = Vec::new();
    for mut server in servers {
        info!("{}: listening at {}", server.name, server.listener.path().display());
        doorbells.push(server.doorbell.clone());
        let goodbye = Goodbye(server.name.clone(), ended.clone());
        let builder = std::thread::Builder::new().name(server.name.clone());
        let thread = builder
            .spawn(move || {
                let _goodbye = goodbye;
                server.run()
            })
            .map_err(|error| (FAILURE, format!("cannot start a thread: {error}")))?;
        threads.push(thread);
    }
    let end = end.recv().unwrap_or(End::Signal);
    for doorbell in &doorbells {
        doorbell.stop();
    }
    let mut all_well = true;
    for thread in threads {
        match thread.join() {
            Ok(well) => all_well &= well,
            Err(_) => error!("a controller's loop has failed"),
        }
    }
    machine.board().clear();
    match end {
        End::Signal if all_well => Ok(()),
        End::Signal => Err((FAILURE, "a client could not be served, see above".to_owned())),
        End::Loop(name) => Err((FAILURE, format!("controller \"{name}\" has failed"))),
    }
}
