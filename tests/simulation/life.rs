//! The life of a guest's driver: it meets devices, works with them and parts from them, until its work
//! is done or it crashes.

use crate::driver::enumerate::enumerate;
use crate::driver::host::Background;
use crate::driver::hub::{HubDriver, bit, feature};
use crate::host::Guest;
use crate::job::{Job, Site, Trouble};
use crate::plan::{At, Place, What};
use crate::world::Shared;

/// How often the driver looks for a device that must be there, a little later each time.
const LOOKS: u64 = 60;
/// How often it tries a last piece of work on a device that has bad days.
const TRIES: u64 = 40;

/// A hub that is in use.
struct Hub<G: Guest> {
    driver: HubDriver,
    /// The question for changes that is always under way.
    flight: Option<<G as Background>::Flight>,
}

pub struct Life<'a, G: Guest> {
    host: &'a mut G,
    shared: Shared,
    places: Vec<Place>,
    jobs: &'a mut [Option<Box<dyn Job<G>>>],
    /// Places whose device the driver knows.
    bound: Vec<bool>,
    /// Places behind the hub where it failed to set up what is there: it tries again.
    unfinished: bool,
    hub: Option<Hub<G>>,
}

impl<'a, G: Guest> Life<'a, G> {
    pub fn new(host: &'a mut G, shared: Shared, jobs: &'a mut [Option<Box<dyn Job<G>>>]) -> Self {
        let places = shared.lock().plan.places.clone();
        Self {
            host,
            shared,
            bound: vec![false; places.len()],
            unfinished: false,
            places,
            jobs,
            hub: None,
        }
    }

    fn site(&self, place: usize) -> Site {
        Site { shared: self.shared.clone(), place }
    }

    fn below(&self, limit: u64) -> u64 {
        self.shared.lock().dice.below(limit)
    }

    fn address(place: usize) -> u8 {
        place as u8 + 1
    }

    /// Works until the plan is fulfilled.
    pub fn live(&mut self) {
        loop {
            {
                let mut world = self.shared.lock();
                if world.count.jobs >= world.plan.steps {
                    return;
                }
                world.count.jobs += 1;
            }
            self.look();
            match self.below(14) {
                0 => self.nap(),
                1 => {
                    let millis = self.below(20);
                    self.shared.lock().count.suspends += 1;
                    self.host.stop(millis);
                }
                2 => {
                    let millis = self.below(50);
                    self.host.sleep_millis(millis);
                }
                _ => {
                    let here: Vec<_> = (0..self.places.len()).filter(|n| self.busy(*n)).collect();
                    match here.len() as u64 {
                        0 => self.host.sleep_millis(5),
                        count => self.work(here[self.below(count) as usize]),
                    }
                }
            }
        }
    }

    /// Nothing happens any more: every device is found and works.
    pub fn end_well(&mut self) {
        for n in 0..self.places.len() {
            let mut millis = 1;
            for _ in 0..LOOKS {
                self.look();
                if self.bound[n] {
                    break;
                }
                self.host.sleep_millis(millis);
                millis = (millis + 1).min(20);
            }
            assert!(self.bound[n], "the driver never learned of the device in place {n}");
            for tries in 0.. {
                if !self.busy(n) || (self.try_work(n) && self.try_work(n)) {
                    break;
                }
                assert!(tries < TRIES, "the device in place {n} does not come back");
                self.look();
            }
        }
        for n in 0..self.places.len() {
            self.part(n);
        }
    }

    /// Whether there is something to do at a place.
    fn busy(&self, place: usize) -> bool {
        self.bound[place] && self.places[place].what != What::Hub
    }

    fn work(&mut self, place: usize) {
        self.try_work(place);
    }

    /// A piece of work; a device that fails is reset.
    fn try_work(&mut self, place: usize) -> bool {
        if !self.busy(place) {
            return false;
        }
        let site = self.site(place);
        let causes = site.causes();
        let job = self.jobs[place].as_mut().expect("a device that does something");
        let Err(trouble) = job.work(self.host, &site) else { return true };
        site.excuse(causes, &trouble);
        self.part(place);
        self.meet(place);
        false
    }

    /// A root port sleeps, with all that is behind it.
    fn nap(&mut self) {
        let roots: Vec<_> = (0..self.places.len()).filter(|n| self.bound[*n]).collect();
        let Some((root, port)) = roots.iter().find_map(|n| match self.places[*n].at {
            At::Root(port) => Some((*n, port)),
            At::Hub(_) => None,
        }) else {
            return;
        };
        let hub = self.places[root].what == What::Hub;
        let behind = |place: &Place| hub && matches!(place.at, At::Hub(_));
        let sleepers: Vec<_> = (0..self.places.len())
            .filter(|n| self.busy(*n) && (*n == root || behind(&self.places[*n])))
            .collect();
        for n in &sleepers {
            self.jobs[*n].as_mut().expect("it does something").withdraw(self.host);
        }
        if hub {
            self.withdraw_hub();
        }
        let millis = self.below(30);
        self.shared.lock().count.suspends += 1;
        self.shared.lock().tell(|| format!("port {port} sleeps for {millis} ms"));
        self.host.nap(port, millis);
        if hub {
            self.ask_hub();
        }
        for n in sleepers {
            let site = self.site(n);
            self.jobs[n].as_mut().expect("it does something").wake(self.host, &site);
        }
    }

    /// Looks what came and went, and what has been answered.
    fn look(&mut self) {
        for n in 0..self.places.len() {
            let At::Root(port) = self.places[n].at else { continue };
            let news = self.host.news(port);
            if news.changed && self.bound[n] {
                self.part(n);
            }
            if news.connected && !self.bound[n] {
                self.meet(n);
            }
        }
        self.look_at_hub();
        for n in 0..self.places.len() {
            if !self.busy(n) {
                continue;
            }
            let site = self.site(n);
            let job = self.jobs[n].as_mut().expect("a device that does something");
            if job.look(self.host, &site).is_err() {
                self.part(n);
                self.meet(n);
            }
        }
    }

    fn hub_place(&self) -> Option<usize> {
        self.places.iter().position(|place| place.what == What::Hub)
    }

    /// Whether the hub told of a change; if so, looks at its ports.
    fn look_at_hub(&mut self) {
        let Some(hub) = &self.hub else { return };
        let told = hub.flight.as_ref().is_some_and(|flight| self.host.has_ended(flight));
        if told || std::mem::take(&mut self.unfinished) {
            self.withdraw_hub();
            self.look_at_ports();
            self.ask_hub();
        }
    }

    fn look_at_ports(&mut self) {
        for n in 0..self.places.len() {
            let (At::Hub(port), Some(hub)) = (self.places[n].at, &self.hub) else { continue };
            let (driver, port) = (hub.driver, port as u16 + 1);
            let Ok(status) = driver.status(self.host, port) else {
                self.unfinished = true;
                return;
            };
            for change in [feature::C_CONNECTION, feature::C_ENABLE, feature::C_SUSPEND] {
                let here = status.change & 1 << (change - 16) != 0;
                if here && driver.clear(self.host, port, change).is_err() {
                    self.unfinished = true;
                    return;
                }
            }
            let changed = status.change & 1 << (feature::C_CONNECTION - 16) != 0;
            if changed && self.bound[n] {
                self.part(n);
            }
            if status.status & bit::CONNECTION != 0 && !self.bound[n] {
                self.meet(n);
            }
        }
    }

    fn ask_hub(&mut self) {
        if let Some(hub) = &mut self.hub {
            hub.flight = Some(self.host.begin_receive(&hub.driver.changes));
        }
    }

    fn withdraw_hub(&mut self) {
        if let Some(flight) = self.hub.as_mut().and_then(|hub| hub.flight.take()) {
            // If it told of a change at the last moment, the hub tells again: the change stands.
            let _ = self.host.finish(flight);
        }
    }

    /// Sets a device up that is there, as far as the driver knows.
    fn meet(&mut self, place: usize) {
        let site = self.site(place);
        for _ in 0..3 {
            let causes = site.causes();
            match self.set_up(place) {
                Ok(()) => {
                    self.bound[place] = true;
                    self.shared.lock().tell(|| format!("met {place}"));
                    return;
                }
                Err(trouble) => {
                    site.excuse(causes, &trouble);
                    self.part(place);
                }
            }
            match self.places[place].at {
                At::Root(port) if !self.host.connected(port) => return,
                At::Hub(_) if self.hub.is_none() => return,
                _ => {}
            }
        }
        self.unfinished = true;
    }

    fn set_up(&mut self, place: usize) -> Result<(), Trouble> {
        let (site, address) = (self.site(place), Self::address(place));
        self.shared.lock().notice(place);
        let found = match self.places[place].at {
            At::Root(port) => enumerate(self.host, port, address),
            At::Hub(port) => match &self.hub {
                Some(hub) => hub.driver.enumerate(self.host, port as u16 + 1, address),
                None => return Err(Trouble::Odd("there is no hub".into())),
            },
        };
        let found = found.map_err(|error| Trouble::Odd(format!("{error:?}")))?;
        if self.places[place].what != What::Hub {
            let job = self.jobs[place].as_mut().expect("a device that does something");
            return job.bind(self.host, &site, &found);
        }
        let driver = HubDriver::start(self.host, &found)?;
        self.hub = Some(Hub { driver, flight: None });
        self.look_at_ports();
        self.ask_hub();
        Ok(())
    }

    /// Ends everything with a device, and with what is behind it.
    fn part(&mut self, place: usize) {
        if self.hub_place() == Some(place) {
            for behind in 0..self.places.len() {
                if matches!(self.places[behind].at, At::Hub(_)) {
                    self.part(behind);
                }
            }
            self.withdraw_hub();
            self.hub = None;
        }
        let site = self.site(place);
        self.bound[place] = false;
        self.shared.lock().tell(|| format!("parted from {place}"));
        if let Some(job) = &mut self.jobs[place] {
            job.withdraw(self.host);
        }
        self.host.forget_device(Self::address(place));
        self.host.forget_device(0);
        if let Some(job) = &mut self.jobs[place] {
            job.settle(&site);
        }
    }
}
