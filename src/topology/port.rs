//! A socket: a device may be in it, and one of up to two controllers owns it.

mod saved;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use log::info;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub(crate) use self::saved::SocketState;
use crate::usb::{
    DeviceStatistics, EndpointAddress, Function, MOST_HUBS, Mailbox, Notifier, Observer, Speed,
    Upstream, UsbDevice, Wake, height,
};

/// Which controller a link to a port belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Host {
    /// The high-speed controller (EHCI).
    High,
    /// The full- and low-speed controller (OHCI), on its own or as a companion.
    Classic,
}

/// Why a device cannot be plugged in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AttachError {
    /// There is a device already.
    #[error("the port is taken by \"{0}\": detach it first or choose another port")]
    Occupied(String),
    /// No controller behind this port serves the device.
    #[error(
        "a {device} device does not work on a port that offers only {port}: \
         give the EHCI controller a companion, or use an OHCI controller"
    )]
    Speed {
        /// The device's fastest speed.
        device: Speed,
        /// The only speed of the port.
        port: Speed,
    },
    /// The hub's ports lead to this one.
    #[error("a hub cannot be plugged into itself: choose a port of another hub or of a controller")]
    Loop,
    /// Too many hubs in a row.
    #[error(
        "there would be {0} hubs in a row, and USB allows {MOST_HUBS}: \
         choose a port nearer to the controller"
    )]
    Depth(usize),
}

/// A device that could not be plugged in, and why.
#[derive(Error)]
#[error("{reason}")]
pub struct Refused {
    /// Why.
    pub reason: AttachError,
    /// The device, unharmed.
    pub device: Box<dyn UsbDevice>,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("reason", &self.reason).finish_non_exhaustive()
    }
}

/// A socket that a device can be plugged into. Clones are the same socket.
///
/// Its two sides are [`PortLink`]s: [`link`](Self::link) gives one to each controller that is wired
/// to the port. With both, the port starts out owned by the classic controller, as a port does before
/// EHCI's CONFIGFLAG is set (EHCI 4.2).
#[derive(Clone, Debug)]
pub struct Port {
    socket: Arc<Mutex<Socket>>,
    mailbox: Arc<Mailbox>,
}

struct Socket {
    function: Option<Function>,
    observer: Option<Arc<dyn Observer>>,
    high: bool,
    classic: bool,
    owner: Host,
    over_current: bool,
    /// Counts what either side may have to notice: plugging and changes of ownership.
    generation: u64,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("function", &self.function)
            .field("owner", &self.owner)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Port {
    fn new(high: bool, classic: bool) -> Self {
        let owner = if classic { Host::Classic } else { Host::High };
        Self {
            socket: Arc::new(Mutex::new(Socket {
                function: None,
                observer: None,
                high,
                classic,
                owner,
                over_current: false,
                generation: 0,
            })),
            mailbox: Arc::default(),
        }
    }

    /// A port of a high-speed controller without companion.
    pub fn high_speed_only() -> Self {
        Self::new(true, false)
    }

    /// A port of a full- and low-speed controller.
    pub fn classic() -> Self {
        Self::new(false, true)
    }

    /// A port that a high-speed controller shares with its companion.
    pub fn shared() -> Self {
        Self::new(true, true)
    }

    /// A port of a hub, which takes devices of any speed; the hub's side is the classic one.
    pub fn downstream(upstream: &Arc<Upstream>) -> Self {
        Self { mailbox: Arc::new(Mailbox::behind(upstream.clone())), ..Self::classic() }
    }

    /// The side of the port that `host` sees.
    pub fn link(&self, host: Host) -> PortLink {
        PortLink { port: self.clone(), host }
    }

    /// Plugs `device` in.
    ///
    /// # Errors
    /// If a device is plugged in already, no controller here serves its speeds, or a hub would be one
    /// too many or its own; the guest sees nothing then, and the device comes back with the reason.
    pub fn attach(&self, mut device: Box<dyn UsbDevice>) -> Result<(), Refused> {
        if let Err(reason) = self.has_place_for(&mut *device) {
            return Err(Refused { reason, device });
        }
        let mut socket = self.lock();
        if let Some(function) = &socket.function {
            let name = function.device().description().name.clone();
            return Err(Refused { reason: AttachError::Occupied(name), device });
        }
        let fastest = device.description().speeds.fastest();
        if !socket.classic && fastest != Speed::High {
            let reason = AttachError::Speed { device: fastest, port: Speed::High };
            return Err(Refused { reason, device });
        }
        // What an earlier device had to say is not this one's.
        let _ = self.mailbox.take_ready().count();
        let _ = (self.mailbox.take_remote_wakeup(), self.mailbox.take_babble());
        let mut function = Function::new(device, Notifier::new(self.mailbox.clone()));
        function.set_observer(socket.observer.clone());
        let name = function.device().description().name.clone();
        socket.function = Some(function);
        socket.changed();
        drop(socket);
        info!("\"{name}\" attached");
        self.mailbox.wake();
        Ok(())
    }

    /// Checks what USB says of hubs behind hubs. It keeps the tree a tree, and every walk down short.
    fn has_place_for(&self, device: &mut dyn UsbDevice) -> Result<(), AttachError> {
        let (Some(upstream), Some(hub)) = (self.mailbox.upstream(), device.as_hub()) else {
            return Ok(());
        };
        let below = height(hub, upstream).ok_or(AttachError::Loop)?;
        let hubs = below.saturating_add(upstream.depth());
        if hubs > MOST_HUBS { Err(AttachError::Depth(hubs)) } else { Ok(()) }
    }

    /// Pulls the device out.
    pub fn detach(&self) -> Option<Box<dyn UsbDevice>> {
        let mut socket = self.lock();
        let function = socket.function.take()?;
        socket.changed();
        drop(socket);
        self.mailbox.wake();
        let device = function.into_device();
        info!("\"{}\" detached", device.description().name);
        Some(device)
    }

    /// What happened at the endpoints of the device in the port, whichever controller owns it; `None`
    /// if there is no device. Devices behind a hub are in the hub's own ports.
    pub fn statistics(&self) -> Option<DeviceStatistics> {
        self.lock().function.as_ref().map(Function::statistics)
    }

    /// Has `observer` see the transfers of the device in the port, and of those that follow it. The
    /// one before it sees no more; `None` is for nobody.
    pub fn set_observer(&self, observer: Option<Arc<dyn Observer>>) {
        let mut socket = self.lock();
        if let Some(function) = &mut socket.function {
            function.set_observer(observer.clone());
        }
        socket.observer = observer;
    }

    /// The port draws too much current, or no longer does (USB 2.0, 11.12.5).
    pub fn set_over_current(&self, over_current: bool) {
        self.lock().over_current = over_current;
        self.mailbox.wake();
    }

    /// The device in the port talked past the end of a frame: the port is to be disabled (USB 2.0,
    /// 11.8.1).
    pub fn babble(&self) {
        self.mailbox.babble();
    }

    /// Has `wake` called whenever the port or the device has something to say.
    pub fn subscribe(&self, wake: Arc<dyn Wake>) {
        self.mailbox.subscribe(wake);
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Clones are the same socket; two sockets never are.
impl PartialEq for Port {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket)
    }
}

impl Eq for Port {}

impl Socket {
    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

/// What one controller sees of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortView {
    /// Whether this controller owns the port.
    pub owned: bool,
    /// Whether there is a device in the socket, whoever owns it.
    pub occupied: bool,
    /// The speed the device in an owned port shows by its pull-up resistor: low, or full for one that
    /// is full or high speed (USB 2.0, 7.1.7.3). `None` without a device, or if the port is not owned.
    pub device: Option<Speed>,
    /// Whether the port draws too much current.
    pub over_current: bool,
    /// Changes with every plugging and every change of ownership: a device that was pulled and put
    /// back between two looks is a new one.
    pub generation: u64,
}

/// One controller's side of a [`Port`].
#[derive(Clone, Debug)]
pub struct PortLink {
    port: Port,
    host: Host,
}

impl PortLink {
    /// The port as it is now.
    pub fn view(&self) -> PortView {
        let socket = self.port.lock();
        let owned = socket.owner == self.host;
        let attached = socket.function.as_ref().filter(|_| owned);
        PortView {
            owned,
            occupied: socket.function.is_some(),
            device: attached.map(|f| f.device().description().speeds.on_port(Speed::Full)),
            over_current: socket.over_current,
            generation: socket.generation,
        }
    }

    /// Whether a companion shares the port.
    pub fn is_shared(&self) -> bool {
        let socket = self.port.lock();
        socket.high && socket.classic
    }

    /// Gives the port to `owner`; the other side sees the device leave, `owner` sees it arrive.
    ///
    /// Without a second controller on the port nothing happens.
    pub fn set_owner(&self, owner: Host) {
        let mut socket = self.port.lock();
        let wired = match owner {
            Host::High => socket.high,
            Host::Classic => socket.classic,
        };
        if wired && socket.owner != owner {
            socket.owner = owner;
            socket.changed();
            drop(socket);
            self.port.mailbox.wake();
        }
    }

    /// Calls `action` with the device, if there is one and this controller owns the port.
    pub fn with<R>(&self, action: impl FnOnce(&mut Function) -> R) -> Option<R> {
        let mut socket = self.port.lock();
        if socket.owner != self.host {
            return None;
        }
        socket.function.as_mut().map(action)
    }

    /// The fastest speed this side's controller offers.
    pub fn fastest(&self) -> Speed {
        match self.host {
            Host::High => Speed::High,
            Host::Classic => Speed::Full,
        }
    }

    /// Takes the endpoints that became ready since the last look.
    pub fn take_ready(&self) -> impl Iterator<Item = EndpointAddress> + use<> {
        let owned = !self.port.mailbox.is_empty() && self.port.lock().owner == self.host;
        let mailbox = owned.then(|| self.port.mailbox.clone());
        mailbox.into_iter().flat_map(|mailbox| mailbox.take_ready())
    }

    /// Takes the device's wish to wake the host; `false` unless the host allowed it.
    pub fn take_remote_wakeup(&self) -> bool {
        if self.port.mailbox.is_empty() {
            return false;
        }
        let mut socket = self.port.lock();
        socket.owner == self.host
            && self.port.mailbox.take_remote_wakeup()
            && socket.function.as_mut().is_some_and(Function::resumes)
    }

    /// Takes the report that the device talked past the end of a frame.
    pub fn take_babble(&self) -> bool {
        !self.port.mailbox.is_empty()
            && self.port.lock().owner == self.host
            && self.port.mailbox.take_babble()
    }

    /// Has `note` called like [`subscribe`](Self::subscribe), but before every loop that is to be woken,
    /// whichever came first: a controller's own note that it has to look.
    pub(crate) fn attend(&self, note: Arc<dyn Wake>) {
        self.port.mailbox.subscribe_first(note);
    }

    /// Has `wake` called whenever the port or the device has something to say.
    pub fn subscribe(&self, wake: Arc<dyn Wake>) {
        self.port.subscribe(wake);
    }
}
