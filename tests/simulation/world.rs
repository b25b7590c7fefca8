//! Everything outside the guest and its controller: sockets, devices, media, and what happens to them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vm_usb::devices::faulty::{Faulty, Injected, Odds, Waiting};
use vm_usb::devices::full_speed::FullSpeed;
use vm_usb::devices::hid::{Keyboard, KeyboardHandle};
use vm_usb::devices::hub::{Hub, HubOptions};
use vm_usb::devices::loopback::{Loopback, Pattern};
use vm_usb::devices::printer::Printer;
use vm_usb::devices::storage::{Serial, Storage};
use vm_usb::snapshot::{self, Snapshot};
use vm_usb::time::Time;
use vm_usb::topology::Port;
use vm_usb::usb::{EndpointAddress, Observer, Outcome, Sight, Speed, UsbDevice, Wake};

use crate::driver::dice::Dice;
use crate::media::Media;
use crate::model::Model;
use crate::plan::{At, HUB_PORTS, Place, Plan, ROOT_PORTS, What};

/// Whoever runs the controller was woken.
#[derive(Default)]
pub struct Bell(AtomicBool);

impl Bell {
    pub fn rang(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Bell {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Tells every transfer.
struct Teller;

impl Observer for Teller {
    fn answered(&self, sight: &Sight<'_>, outcome: &Outcome) {
        let (time, address, endpoint) = (sight.time, sight.address, sight.endpoint);
        let len = sight.buffer.len();
        println!("{time:?}: {address} {endpoint:?} {:?} of {len}: {outcome:?}", sight.pid);
    }

    fn cancelled(&self, address: u8, endpoint: EndpointAddress) {
        println!("{address} {endpoint:?} cancelled");
    }
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub calls: u64,
    pub restarts: u64,
    pub pulls: u64,
    pub pauses: u64,
    pub crashes: u64,
    pub suspends: u64,
    pub faults: u64,
    pub jobs: u64,
    pub most_accesses: usize,
    /// Changes with everything that happens: equal runs have equal ones.
    pub digest: u64,
}

/// What is to happen to the controller or its guest now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    Nothing,
    Restart,
    /// For so many nanoseconds.
    Pause(u64),
    Crash,
}

/// A device in a place.
#[derive(Default)]
struct Occupant {
    plugged: bool,
    keyboard: Option<KeyboardHandle>,
    waiting: Option<Waiting>,
    injected: Injected,
    /// Faults of its forerunners.
    before: u64,
    /// How often it was plugged in or pulled out, and what the driver has noticed of that.
    changes: u64,
    noticed: u64,
}

/// How a device is dressed.
struct Fate {
    seed: u64,
    odds: Odds,
    slow: bool,
}

impl Occupant {
    /// Puts faults before a device.
    fn dress(&mut self, device: impl UsbDevice + 'static, fate: Fate) -> Box<dyn UsbDevice> {
        let faulty = Faulty::seeded(device, fate.seed, fate.odds);
        self.injected = faulty.injected();
        self.waiting = Some(faulty.waiting());
        match fate.slow {
            true => Box::new(FullSpeed::new(Box::new(faulty))),
            false => Box::new(faulty),
        }
    }
}

/// The world of a plan.
pub struct World {
    pub plan: Plan,
    pub dice: Dice,
    pub media: Vec<Media>,
    pub bell: Arc<Bell>,
    pub count: Count,
    /// Whether a driver is there that may crash.
    pub mortal: bool,
    /// The end has come: nobody pulls plugs, and nobody crashes any more.
    pub calm: bool,
    /// Whether what happens is told.
    pub verbose: bool,
    ports: Vec<Port>,
    hub_ports: Vec<Port>,
    occupants: Vec<Occupant>,
    /// When devices that keep the host waiting are done, on the controller's clock.
    finish_at: Option<Time>,
}

/// The world as it is shared.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub fn new(plan: Plan, verbose: bool) -> Self {
        let count = plan.places.len();
        Self(Arc::new(Mutex::new(World {
            dice: Dice::new(plan.seed),
            media: (0..count).map(|_| Media::default()).collect(),
            bell: Arc::default(),
            count: Count::default(),
            mortal: false,
            calm: false,
            verbose,
            ports: Vec::new(),
            hub_ports: Vec::new(),
            occupants: (0..count).map(|_| Occupant::default()).collect(),
            finish_at: None,
            plan,
        })))
    }

    /// The world of now. A driver that crashed or failed may have held it.
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const NAMES: [&str; ROOT_PORTS] = ["port 1", "port 2", "port 3"];

impl World {
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            println!("[{}] {}", self.count.calls, what());
        }
    }

    /// Mixes something into the digest.
    pub fn note(&mut self, value: u64) {
        let mixed = (self.count.digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.count.digest = mixed ^ (mixed >> 29);
    }

    /// A controller with all sockets new, and what is plugged in in them.
    pub fn build<C: Model>(&mut self) -> C {
        self.ports = (0..ROOT_PORTS).map(|_| C::port()).collect();
        for port in &self.ports {
            port.subscribe(self.bell.clone());
        }
        for n in 0..self.plan.places.len() {
            if self.occupants[n].plugged && matches!(self.plan.places[n].at, At::Root(_)) {
                self.fill::<C>(n);
            }
        }
        self.finish_at = None;
        C::wired(&self.plan, &self.ports)
    }

    /// Saves the machine, builds it anew and restores it; its clock says `now` then.
    pub fn restart<C: Model>(&mut self, controller: &mut C, before: Time, now: Time) {
        let ports = NAMES.into_iter().zip(self.ports.iter().map(|port| port as &dyn Snapshot));
        let parts: Vec<_> =
            [("controller", controller as &dyn Snapshot)].into_iter().chain(ports).collect();
        let saved = snapshot::save(before, &parts).unwrap();
        *controller = self.build();
        let mut ports = self.ports.clone();
        let ports = NAMES.into_iter().zip(ports.iter_mut().map(|port| port as &mut dyn Snapshot));
        let mut parts: Vec<_> =
            [("controller", controller as &mut dyn Snapshot)].into_iter().chain(ports).collect();
        snapshot::restore(&saved, now, &mut parts).unwrap();
        self.count.restarts += 1;
        self.bell.wake();
    }

    /// A new device for a place.
    fn device(&mut self, n: usize, speed: Speed) -> Box<dyn UsbDevice> {
        let Place { at, what } = self.plan.places[n];
        // Full and low speed behind the hub, so that translators have work.
        let slow = matches!(at, At::Hub(_)) && what != What::Keyboard;
        let fate = Fate { seed: self.dice.roll(), odds: self.plan.odds, slow };
        let occupant = &mut self.occupants[n];
        occupant.before += std::mem::take(&mut occupant.injected).count();
        let media = &self.media[n];
        match what {
            What::Disk => {
                let name = format!("disk {n}");
                occupant.dress(Storage::new(media.platter.clone(), Serial::from_name(&name)), fate)
            }
            What::Echo => occupant.dress(Loopback::new(Pattern::Zeros), fate),
            What::Printer => occupant.dress(Printer::new(media.paper.clone()), fate),
            What::Keyboard => {
                let speed = if matches!(at, At::Hub(_)) { Speed::Low } else { speed };
                let keyboard = Keyboard::new(speed);
                let handle = keyboard.handle();
                let device = occupant.dress(keyboard, fate);
                occupant.keyboard = Some(handle);
                device
            }
            What::Hub => {
                let options = HubOptions {
                    ports: HUB_PORTS as u8,
                    speed,
                    translators: self.plan.translators,
                    serial: "hub".into(),
                    ..HubOptions::default()
                };
                let hub = Hub::new(options).unwrap();
                self.hub_ports = hub.ports().to_vec();
                Box::new(hub)
            }
        }
    }

    /// Puts a device into its place, and what is behind it into theirs.
    fn fill<C: Model>(&mut self, n: usize) {
        let device = self.device(n, C::SPEED);
        let port = match self.plan.places[n].at {
            At::Root(port) => &self.ports[port],
            At::Hub(port) => &self.hub_ports[port],
        };
        if self.verbose {
            port.set_observer(Some(Arc::new(Teller)));
        }
        if self.plan.places[n].what != What::Hub {
            return port.attach(device).unwrap();
        }
        let port = port.clone();
        for behind in 0..self.plan.places.len() {
            if matches!(self.plan.places[behind].at, At::Hub(_)) && self.occupants[behind].plugged {
                self.fill::<C>(behind);
            }
        }
        port.attach(device).unwrap();
    }

    pub fn is_plugged(&self, n: usize) -> bool {
        let hub = self.hub();
        let reachable = match self.plan.places[n].at {
            At::Root(_) => true,
            At::Hub(_) => hub.is_some_and(|hub| self.occupants[hub].plugged),
        };
        reachable && self.occupants[n].plugged
    }

    /// Plugs the device of a place in, if it is not.
    pub fn plug<C: Model>(&mut self, n: usize) {
        if self.occupants[n].plugged {
            return;
        }
        self.occupants[n].plugged = true;
        self.occupants[n].changes += 1;
        self.tell(|| format!("plug {n}"));
        if matches!(self.plan.places[n].at, At::Root(_)) || self.is_plugged(n) {
            self.bell.take();
            self.fill::<C>(n);
            assert!(self.bell.rang(), "nobody was woken for a device that came");
        }
    }

    /// Pulls a plug.
    fn pull(&mut self, n: usize) {
        let reachable = self.is_plugged(n);
        self.occupants[n].plugged = false;
        self.occupants[n].changes += 1;
        self.tell(|| format!("pull {n}"));
        if !reachable {
            return;
        }
        self.count.pulls += 1;
        let port = match self.plan.places[n].at {
            At::Root(port) => &self.ports[port],
            At::Hub(port) => &self.hub_ports[port],
        };
        let rang = self.bell.take();
        drop(port.detach().expect("it was plugged in"));
        assert!(self.bell.rang(), "nobody was woken for a device that went");
        if rang {
            self.bell.wake();
        }
    }

    /// The driver begins to set up whatever is in a place.
    pub fn notice(&mut self, n: usize) {
        self.occupants[n].noticed = self.occupants[n].changes;
    }

    /// Whether the device of a place, or the hub before it, is not the one that the driver knows.
    pub fn has_changed(&self, n: usize) -> bool {
        let hub = self.hub().filter(|_| matches!(self.plan.places[n].at, At::Hub(_)));
        hub.into_iter().chain([n]).any(|n| {
            let Occupant { plugged, changes, noticed, .. } = &self.occupants[n];
            !*plugged || changes != noticed
        })
    }

    fn hub(&self) -> Option<usize> {
        self.plan.places.iter().position(|place| place.what == What::Hub)
    }

    /// How many faults the device of a place, or its forerunners, had so far.
    pub fn causes(&self, n: usize) -> u64 {
        self.occupants[n].before + self.occupants[n].injected.count()
    }

    /// Whether a device and its driver may come to wait for each other.
    pub fn may_deadlock(&self, n: usize) -> bool {
        let Odds { stall, error, babble, hang, .. } = self.plan.odds;
        // A translator answers with STALL to whatever fails behind it (USB 2.0, 11.17.1).
        let behind = matches!(self.plan.places[n].at, At::Hub(_)) && error + babble + hang != 0;
        self.plan.places[n].what == What::Disk && (stall != 0 || behind)
    }

    /// All faults of all devices.
    pub fn faults(&self) -> u64 {
        (0..self.occupants.len()).map(|n| self.causes(n)).sum()
    }

    pub fn keyboard(&self, n: usize) -> Option<KeyboardHandle> {
        self.occupants[n].keyboard.clone()
    }

    /// When the world acts by itself.
    pub fn deadline(&self) -> Option<Time> {
        self.finish_at
    }

    fn waiting(&self) -> bool {
        let mut occupants = (0..self.occupants.len()).filter(|n| self.is_plugged(*n));
        occupants.any(|n| self.occupants[n].waiting.as_ref().is_some_and(Waiting::any))
    }

    /// Before each call of the controller.
    pub fn before<C: Model>(&mut self, now: Time) -> Happening {
        self.count.calls += 1;
        self.note(now.as_nanos());
        if self.finish_at.is_some_and(|at| at <= now) {
            self.finish_at = None;
            if self.waiting() {
                let rang = self.bell.take();
                for waiting in self.occupants.iter().filter_map(|one| one.waiting.as_ref()) {
                    waiting.finish();
                }
                assert!(self.bell.rang(), "nobody was woken for a device that is ready");
                if rang {
                    self.bell.wake();
                }
            }
        }
        let rates = self.plan.rates;
        let mut falls = |every: u64| every != 0 && self.dice.below(every) == 0;
        if falls(rates.restart) {
            return Happening::Restart;
        }
        if falls(rates.pause) {
            // From a microsecond to some seconds: a driver's frame counter of 16 bits allows no more.
            let scale = self.dice.below(24);
            return Happening::Pause(1 + self.dice.below(1_000 << scale));
        }
        if self.calm {
            return Happening::Nothing;
        }
        if falls(rates.pull) {
            let n = self.dice.below(self.occupants.len() as u64) as usize;
            if self.occupants[n].plugged { self.pull(n) } else { self.plug::<C>(n) }
        }
        let mut falls = |every: u64| every != 0 && self.dice.below(every) == 0;
        if self.mortal && falls(rates.crash) {
            return Happening::Crash;
        }
        Happening::Nothing
    }

    /// After each call of the controller.
    pub fn after(&mut self, now: Time) {
        if self.finish_at.is_none() && self.waiting() {
            let scale = self.dice.below(12);
            self.finish_at = Some(now.after_nanos(1 + self.dice.below(1_000 << scale)));
        }
    }
}
