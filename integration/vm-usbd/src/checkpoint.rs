//! Saving all controllers and devices at one moment, and starting from what was saved.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use thiserror::Error;
use vm_usb::snapshot::{self, MOST_BYTES, RestoreError, SaveError, Snapshot, State};
use vm_usb::time::Time;
use vm_usb::topology::Port;
use vm_usb::usb::Wake;

use crate::clock;
use crate::doorbell::Doorbell;
use crate::errands::Errands;
use crate::outputs;
use crate::serve::Server;

/// How long a loop may take to come to a halt: a disk's slowest access, and more.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nothing was saved or restored.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A loop does not halt.
    #[error("controller \"{0}\" does not come to a halt: is the storage behind its disks stuck?")]
    Busy(String),
    /// Something has no state to save.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// It is not this machine's.
    #[error("{0}: {1}")]
    Restore(PathBuf, #[source] RestoreError),
    /// The file cannot be written or read.
    #[error("{0}: {1}")]
    File(PathBuf, #[source] io::Error),
}

/// A controller's loop, as somebody sees it who wants it to stand still.
#[derive(Clone, Debug)]
pub struct Loop {
    name: String,
    doorbell: Arc<Doorbell>,
    errands: Arc<Errands>,
}

impl Loop {
    /// The loop of `server`.
    pub fn of(server: &Server) -> Self {
        let Server { name, doorbell, errands, .. } = server;
        Self { name: name.clone(), doorbell: doorbell.clone(), errands: errands.clone() }
    }
}

/// The state of a part that has been saved already.
struct Saved(State);

impl Snapshot for Saved {
    fn save(&self, _now: Time) -> Result<State, SaveError> {
        Ok(self.0.clone())
    }
}

/// Halts all loops, saves their functions and the ports, and lets the loops go on. The guests notice
/// nothing.
///
/// # Errors
/// If a loop does not halt, or a device cannot be saved.
pub fn take(loops: &[Loop], ports: &[(String, Port)]) -> Result<Vec<u8>, CheckpointError> {
    let (standing, stands) = channel();
    let mut held = Vec::new();
    for each in loops {
        let (moment, now) = channel::<Time>();
        let (state, result) = channel();
        let (end, ends) = channel::<()>();
        let standing = standing.clone();
        each.errands.add(Box::new(move |function| {
            let _ = standing.send(());
            // Whoever gave the errand up has dropped the other end.
            if let Ok(now) = now.recv() {
                let _ = state.send(function.save(now));
                let _ = ends.recv();
            }
        }));
        each.doorbell.wake();
        held.push((each, moment, result, end));
    }
    for each in loops {
        // Which one it is that does not answer only its name in the error tells; any of them will do.
        stands.recv_timeout(PATIENCE).map_err(|_| CheckpointError::Busy(each.name.clone()))?;
    }
    let now = clock::now();
    for (_, moment, _, _) in &held {
        let _ = moment.send(now);
    }
    let mut functions = Vec::new();
    for (each, _, result, _) in &held {
        let state = result.recv_timeout(PATIENCE);
        let state =
            state.map_err(|_: RecvTimeoutError| CheckpointError::Busy(each.name.clone()))?;
        functions.push((&*each.name, Saved(state?)));
    }
    let functions = functions.iter().map(|(name, state)| (*name, state as &dyn Snapshot));
    let ports = ports.iter().map(|(name, port)| (&**name, port as &dyn Snapshot));
    let parts: Vec<_> = functions.chain(ports).collect();
    Ok(snapshot::save(now, &parts)?)
}

/// Writes a snapshot to `path`, whole or not at all.
///
/// # Errors
/// If the file cannot be written, or what it would replace is in use.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let failed = |error| CheckpointError::File(path.to_owned(), error);
    let _old = outputs::replace(path).map_err(failed)?;
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let written = written.and_then(|()| fs::rename(&new, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&new);
        failed(error)
    })
}

/// Puts servers that do not run yet, and their ports, into the state saved at `path`. The first client
/// of each goes on from there.
///
/// # Errors
/// If the file cannot be read or is of another machine.
pub fn restore(
    path: &Path,
    servers: &mut [Server],
    ports: &mut [(String, Port)],
) -> Result<(), CheckpointError> {
    let failed = |error| CheckpointError::File(path.to_owned(), error);
    let mut bytes = Vec::new();
    // One more than there can be, so that the library says that it is too large.
    let limit = MOST_BYTES as u64 + 1;
    File::open(path).map_err(failed)?.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    let functions =
        servers.iter_mut().map(|server| (&*server.name, &mut server.function as &mut dyn Snapshot));
    let ports = ports.iter_mut().map(|(name, port)| (&**name, port as &mut dyn Snapshot));
    let mut parts: Vec<_> = functions.chain(ports).collect();
    snapshot::restore(&bytes, clock::now(), &mut parts)
        .map_err(|error| CheckpointError::Restore(path.to_owned(), error))?;
    for server in servers {
        server.restored = true;
    }
    Ok(())
}
