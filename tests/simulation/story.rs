//! A seed from its first moment to its last.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;

use crate::disk::Disk;
use crate::driver::ehci::EhciDriver;
use crate::driver::lent::Lent;
use crate::driver::machine::{Machine, RAM};
use crate::driver::ohci::OhciDriver;
use crate::echo::Echo;
use crate::host::Guest;
use crate::job::{Job, Site};
use crate::keyboard::Typist;
use crate::life::Life;
use crate::owner::{Crash, Owner};
use crate::plan::{Controller, Plan, What};
use crate::printer::Clerk;
use crate::world::{Count, Shared};

/// Most crashes in one story.
const MOST_CRASHES: u64 = 3;

/// Tells the story of a seed; `verbose` with all that happens.
pub fn tell(seed: u64, verbose: bool) -> Count {
    let plan = Plan::new(seed);
    if verbose {
        println!("{plan:#?}");
    }
    match plan.controller {
        Controller::Ohci(..) => run::<OhciDriver<Owner<Ohci>>>(plan, verbose),
        Controller::Ehci { .. } => run::<EhciDriver<Owner<Ehci>>>(plan, verbose),
    }
}

fn run<G: Guest + 'static>(plan: Plan, verbose: bool) -> Count {
    let shared = Shared::new(plan.clone(), verbose);
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM as usize)]).unwrap();
    let lent = Lent::default();
    let owner = Owner::new(shared.clone(), memory.clone(), lent.clone());
    let mut machine = Machine::with_memory(owner, memory);
    machine.lent = lent;
    plug_all::<G>(&shared);
    let mut jobs = jobs::<G>(&shared);
    loop {
        let mut host = G::start(machine, &plan);
        let crashes = shared.lock().count.crashes;
        shared.lock().mortal = crashes < MOST_CRASHES;
        let life = catch_unwind(AssertUnwindSafe(|| {
            let mut life = Life::new(&mut host, shared.clone(), &mut jobs);
            life.live();
            shared.lock().calm = true;
            plug_all::<G>(&shared);
            life.end_well();
        }));
        shared.lock().mortal = false;
        machine = host.into_machine();
        match life {
            Ok(()) => break,
            Err(payload) if payload.is::<Crash>() => reboot::<G>(&mut machine, &mut jobs, &shared),
            Err(payload) => resume_unwind(payload),
        }
    }
    let mut count = shared.lock().count;
    count.faults = shared.lock().faults();
    count
}

fn plug_all<G: Guest>(shared: &Shared) {
    let mut world = shared.lock();
    for n in 0..world.plan.places.len() {
        world.plug::<G::Controller>(n);
    }
}

fn jobs<G: Guest + 'static>(shared: &Shared) -> Vec<Option<Box<dyn Job<G>>>> {
    let world = shared.lock();
    let places = world.plan.places.iter().zip(&world.media);
    places
        .map(|(place, media)| -> Option<Box<dyn Job<G>>> {
            match place.what {
                What::Disk => Some(Box::new(Disk::new(media.platter.clone()))),
                What::Echo => Some(Box::new(Echo::<G>::new())),
                What::Keyboard => Some(Box::new(Typist::<G>::new())),
                What::Printer => Some(Box::new(Clerk::new(media.paper.clone()))),
                What::Hub => None,
            }
        })
        .collect()
}

/// The next driver takes over what the last one left behind: it resets the controller, and then all
/// memory is its own.
fn reboot<G: Guest>(
    machine: &mut Machine<Owner<G::Controller>>,
    jobs: &mut [Option<Box<dyn Job<G>>>],
    shared: &Shared,
) {
    if shared.lock().dice.below(2) == 0 {
        machine.reset();
    } else {
        G::reset(machine);
    }
    machine.free_all();
    for (place, job) in jobs.iter_mut().enumerate() {
        if let Some(job) = job {
            job.crashed();
            job.settle(&Site { shared: shared.clone(), place });
        }
    }
}
