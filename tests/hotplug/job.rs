//! The story of a device that is pulled out at work.

use vm_usb::topology::Port;
use vm_usb::usb::{Speed, UsbDevice};

use crate::bus::{Bus, KINDS, Kind, News};
use crate::driver::dice::Dice;
use crate::driver::enumerate::{EnumerateError, Enumerated, enumerate};
use crate::driver::host::{HostDriver, TransferError};
use crate::driver::machine::Hand;

/// The hand acts before so many steps of the driver, or milliseconds.
const STEPS: u64 = 300;
const MILLIS: u64 = 12;
/// A job takes less than a millisecond, so the hand has come long before.
const MOST_JOBS: u64 = 1_000;
/// The device's address, over and over: the next one has the same.
pub const ADDRESS: u8 = 1;

/// A device and what its driver does with it.
pub trait Job {
    /// A device to plug in, new or the old one.
    fn device(&mut self, speed: Speed) -> Box<dyn UsbDevice>;

    /// It was set up.
    fn bind(&mut self, host: &mut dyn HostDriver, found: &Enumerated) -> Result<(), TransferError>;

    /// A piece of work. What it brings is checked; an error is what the driver was told.
    fn work(&mut self, host: &mut dyn HostDriver) -> Result<(), TransferError>;

    /// It is gone: of what was done, all that was acknowledged has had its effect, once.
    fn check(&mut self);

    /// Addresses that were given to devices.
    fn addresses(&self) -> Vec<u8> {
        vec![ADDRESS]
    }

    /// The port to pull the plug of in this round, other than the controller's.
    fn inner_port(&self, _round: u64) -> Option<Port> {
        None
    }

    /// The device in the [`inner_port`](Self::inner_port) is gone.
    fn inner_gone(&mut self, _host: &mut dyn HostDriver, _told: TransferError) {}
}

/// Tells the story on every controller.
pub fn tell<J: Job>(new: impl Fn(u64) -> J) {
    tell_on(&KINDS, new);
}

/// Tells it on some.
pub fn tell_on<J: Job>(kinds: &[(Kind, u64)], new: impl Fn(u64) -> J) {
    for (kind, rounds) in kinds.iter().copied() {
        let mut bus = Bus::new(kind);
        let mut dice = Dice::new(4711);
        let mut job = new(dice.roll());
        let mut seen = Seen::default();
        for round in 0..rounds {
            job_round(&mut bus, &mut job, &mut dice, round, &mut seen);
        }
        // The dice are the same in every run: these are no matter of luck.
        assert!(seen.at_work > rounds / 2, "{kind:?}: {seen:?}");
        assert!(seen.in_enumeration > rounds / 50, "{kind:?}: {seen:?}");
    }
}

/// How often the device was pulled when.
#[derive(Debug, Default)]
struct Seen {
    in_enumeration: u64,
    at_work: u64,
}

fn job_round(bus: &mut Bus, job: &mut impl Job, dice: &mut Dice, round: u64, seen: &mut Seen) {
    let kind = bus.kind;
    bus.plug(job.device(bus.speed()));
    // One in eight is not even set up in peace.
    let hasty = dice.below(8) == 0;
    let hand = |bus: &mut Bus, dice: &mut Dice, port: Port| {
        let latest = bus.driver.now().after_micros(dice.below(1_000 * MILLIS));
        let bell = bus.bell.clone();
        let pull = move || {
            let woken = bell.rings();
            drop(port.detach().expect("it was plugged in"));
            assert!(bell.rings() > woken, "nobody was woken");
        };
        bus.driver.expect(Hand::new(dice.below(STEPS), latest, pull));
    };
    let mut pulled = bus.port.clone();
    if hasty {
        let port = bus.port.clone();
        hand(bus, dice, port);
    }
    let host = &mut *bus.driver;
    let set_up = enumerate(host, 0, ADDRESS).and_then(|found| {
        job.bind(host, &found).map_err(|error| EnumerateError::Transfer("the first steps", error))
    });
    match set_up {
        Ok(()) => {
            if !hasty {
                pulled = job.inner_port(round).unwrap_or(pulled);
                hand(bus, dice, pulled.clone());
            }
            let host = &mut *bus.driver;
            let error = (0..MOST_JOBS).find_map(|_| job.work(host).err());
            let error = error.unwrap_or_else(|| panic!("{kind:?}, round {round}: it works on"));
            if pulled == bus.port {
                assert_eq!(error, TransferError::NoAnswer, "{kind:?}, round {round}");
            } else {
                job.inner_gone(host, error);
                assert!(bus.port.detach().is_some());
            }
            seen.at_work += 1;
        }
        Err(EnumerateError::NoDevice | EnumerateError::Transfer(_, TransferError::NoAnswer))
            if hasty =>
        {
            seen.in_enumeration += 1;
        }
        Err(error) => panic!("{kind:?}, round {round}: {error:?}"),
    }
    assert_eq!(bus.driver.news(), News::WENT, "{kind:?}, round {round}");
    for address in job.addresses().into_iter().chain([0]) {
        bus.driver.forget(address);
    }
    job.check();
}
