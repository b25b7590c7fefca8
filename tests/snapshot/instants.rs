//! A thousand instants on each controller: between any two looks of the driver the machine is saved, thrown away, built
//! anew under another clock and restored, with transfers of every kind under way. The driver never
//! notices, no byte is lost and none comes twice.

use std::sync::{Arc, Mutex};

use vm_usb::devices::hid::Key;
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::time::Time;

use crate::driver::dice::Dice;
use crate::driver::ehci::EhciDriver;
use crate::driver::host::HostDriver;
use crate::driver::machine::{Machine, Meanwhile};
use crate::driver::ohci::OhciDriver;
use crate::drivers::{Drivers, Stroke};
use crate::world::{Drivable, Media, Topology, build, restore, save, transport_of};

/// Restarts of a machine in one run.
const RESTARTS: u32 = 25;
/// Calls of the controller between two restarts, on average.
const CALLS: u64 = 400;
/// Runs of each controller; with [`RESTARTS`], a thousand instants.
const RUNS: u64 = 40;

/// What happens to the machine while its driver works.
struct Fate {
    dice: Dice,
    media: Media,
    topology: Topology,
    restarts: u32,
    /// A key that goes down after so many calls.
    key: Option<(u32, Key)>,
}

impl Fate {
    fn call<C: Drivable>(&mut self, controller: &mut C, now: Time) -> Time {
        if self.dice.below(8) == 0 {
            self.media.depot.finish();
        }
        if let Some((calls, key)) = self.key {
            self.key = calls.checked_sub(1).map(|left| (left, key));
            if calls == 0 {
                self.topology.keyboard.press(key).unwrap();
            }
        }
        if self.dice.below(CALLS) != 0 {
            return now;
        }
        let saved = save(controller, &self.topology.ports, now);
        let (mut fresh, topology) = build::<C>(&self.media);
        // The new host's clock may be young or old.
        let latest = 1 << (10 + self.dice.below(44));
        let now = Time::from_nanos(self.dice.below(latest));
        restore(&saved, &mut fresh, &topology.ports, now).unwrap();
        *controller = fresh;
        self.topology = topology;
        self.restarts += 1;
        now
    }
}

/// One run; returns how often the machine was restarted.
fn run<C: Drivable, D: HostDriver>(seed: u64, start: impl Fn(Machine<C>) -> D) -> u32 {
    println!("seed {seed}");
    let media = Media::default();
    let (controller, topology) = build::<C>(&media);
    let fate = Arc::new(Mutex::new(Fate {
        dice: Dice::new(seed),
        media: media.clone(),
        topology,
        restarts: 0,
        key: None,
    }));
    let mut machine = Machine::new(controller);
    let shared = fate.clone();
    let meanwhile: Meanwhile<C> =
        Box::new(move |controller, now| shared.lock().unwrap().call(controller, now));
    machine.meanwhile = Some(meanwhile);
    let mut host = start(machine);
    let mut drivers = Drivers::bind(&mut host, transport_of(seed));
    let mut dice = Dice::new(!seed);
    while fate.lock().unwrap().restarts < RESTARTS {
        let calls = dice.below(2 * CALLS) as u32;
        drivers.step(&mut host, &mut dice, &mut |stroke| {
            let mut fate = fate.lock().unwrap();
            match stroke {
                Stroke::Down(key) => fate.key = Some((calls, key)),
                Stroke::Up(key) => fate.topology.keyboard.release(key),
            }
        });
    }
    drivers.check(&mut host, &media);
    fate.lock().unwrap().restarts
}

#[test]
fn an_ehci_machine_goes_on_from_any_of_1000_instants() {
    let restarts: u32 = (0..RUNS).map(|seed| run::<Ehci, _>(seed, EhciDriver::new)).sum();
    assert!(restarts >= 1_000, "{restarts}");
}

#[test]
fn an_ohci_machine_goes_on_from_any_of_1000_instants() {
    let restarts: u32 = (0..RUNS).map(|seed| run::<Ohci, _>(seed, OhciDriver::start)).sum();
    assert!(restarts >= 1_000, "{restarts}");
}
