//! A server's socket in the file system: only its owner may connect, and a dead server's is replaced.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use log::warn;
use rustix::fs::{CWD, Mode, RenameFlags, fchmod, renameat_with};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use thiserror::Error;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 4;
/// Bytes of the longest path that fits into a socket address with its end.
const LONGEST: usize = 107;
/// How long to wait for a file descriptor that somebody may close.
const PAUSE: Duration = Duration::from_millis(100);
/// Sockets of this process so far.
static DRAFTS: AtomicU32 = AtomicU32::new(0);

/// Why a socket cannot be opened.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another server is listening.
    #[error("{0}: another server is listening there: choose another path or end that server")]
    Busy(PathBuf),
    /// Something else has the name.
    #[error("{0}: exists and is not a socket: choose another path or remove it")]
    NotASocket(PathBuf),
    /// The path does not fit into a socket address.
    #[error("{0}: too long for a socket: choose a path of up to 100 bytes")]
    TooLong(PathBuf),
    /// The system said no.
    #[error("{0}: cannot create the socket: {1}")]
    Io(PathBuf, #[source] io::Error),
}

/// A listening socket; its file is removed with it.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, so that nobody else's is removed.
    file: (u64, u64),
    /// It was said that clients cannot be taken; there is no need to repeat it.
    lacking: AtomicBool,
}

impl Listener {
    /// Listens at `path`. The file has mode 0600, and can be connected to, from the moment it appears.
    ///
    /// # Errors
    /// If the path cannot be used; see [`ListenError`].
    pub fn new(path: &Path) -> Result<Self, ListenError> {
        let too_long = || ListenError::TooLong(path.to_owned());
        let io = |error: Errno| ListenError::Io(path.to_owned(), error.into());
        path.file_name().ok_or_else(|| io(Errno::INVAL))?;
        if path.as_os_str().len() > LONGEST {
            return Err(too_long());
        }
        // Made under another name first: who waits for the file finds it working.
        let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let draft = path.with_file_name(format!(".{:x}.{number:x}", std::process::id()));
        // A process of the same number may have died before it gave its own a name.
        let _ = std::fs::remove_file(&draft);
        let address = SocketAddrUnix::new(&draft).map_err(|_| too_long())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(io)?;
        // The file takes over the mode that the socket has when it is bound.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(io)?;
        bind(&socket, &address).map_err(io)?;
        let published = listen(&socket, BACKLOG).map_err(io).and_then(|()| publish(&draft, path));
        if published.is_err() {
            // It is no longer in the way if it is already gone.
            let _ = std::fs::remove_file(&draft);
        }
        published?;
        let file = std::fs::symlink_metadata(path)
            .map_err(|error| ListenError::Io(path.to_owned(), error))?;
        Ok(Self {
            socket: socket.into(),
            path: path.to_owned(),
            file: identity(&file),
            lacking: AtomicBool::new(false),
        })
    }

    /// The socket, which does not block.
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless it is somebody else's by now.
    pub fn remove(&self) {
        let ours =
            std::fs::symlink_metadata(&self.path).is_ok_and(|file| identity(&file) == self.file);
        if ours {
            // It is no longer in the way if it is already gone.
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Takes the next client, if one waits.
    ///
    /// # Errors
    /// If one waits and cannot be taken: there are no file descriptors left, or no memory. It still
    /// waits, so whoever polls the socket must [`pause`](Self::pause), not to be back at once.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Lets some time pass after [`accept`](Self::accept) has failed, in which others may give back what
    /// was lacking.
    pub fn pause(&self, error: &io::Error) {
        if !self.lacking.swap(true, Ordering::Relaxed) {
            warn!("{}: cannot take a client for now: {error}", self.path.display());
        }
        std::thread::sleep(PAUSE);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Gives the socket its name, unless a live server has it.
fn publish(draft: &Path, path: &Path) -> Result<(), ListenError> {
    let rename = || renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE);
    let renamed = match rename() {
        Err(Errno::EXIST) => {
            remove_stale(path)?;
            rename()
        }
        other => other,
    };
    renamed.map_err(|error| ListenError::Io(path.to_owned(), error.into()))
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Removes the socket of a server that is no longer there.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let io = |error| ListenError::Io(path.to_owned(), error);
    let file = std::fs::symlink_metadata(path).map_err(io)?;
    if !file.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(io)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io(error)),
        Ok(_) => Err(ListenError::Busy(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("vm-usbd-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn only_the_owner_may_connect_and_the_file_goes_with_the_server() {
        let path = scratch("owner");
        let listener = Listener::new(&path).unwrap();
        let mode = std::fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_a_live_ones_is_not() {
        let path = scratch("stale");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::new(&path).unwrap();
        assert!(matches!(Listener::new(&path), Err(ListenError::Busy(_))));
        assert!(path.exists(), "the live server keeps its socket");
        drop(listener);
    }

    #[test]
    fn a_path_fits_into_a_socket_address_or_is_refused() {
        for (len, fits) in [(LONGEST - 1, true), (LONGEST, true), (LONGEST + 1, false)] {
            let mut path = std::env::temp_dir().join(format!("vm-usbd-{}-", std::process::id()));
            let rest = len - path.as_os_str().len();
            path.as_mut_os_string().push("x".repeat(rest));
            let listener = Listener::new(&path);
            assert_eq!(listener.is_ok(), fits, "{len} bytes");
            if let Ok(listener) = listener {
                listener.remove();
            }
        }
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let path = scratch("file");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::new(&path), Err(ListenError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
        let long = scratch(&"x".repeat(120));
        assert!(matches!(Listener::new(&long), Err(ListenError::TooLong(_))));
    }
}
