//! What a guest does with one device, and what it knows of it.

use crate::driver::enumerate::Enumerated;
use crate::driver::host::TransferError;
use crate::driver::mass_storage::DiskError;
use crate::host::Guest;
use crate::world::Shared;

/// A place in the world, as a job sees it.
#[derive(Clone)]
pub struct Site {
    pub shared: Shared,
    pub place: usize,
}

impl Site {
    /// A number below `limit`.
    pub fn below(&self, limit: u64) -> u64 {
        self.shared.lock().dice.below(limit)
    }

    pub fn bytes(&self, len: usize) -> Vec<u8> {
        self.shared.lock().dice.bytes(len)
    }

    /// How much went wrong here so far.
    pub fn causes(&self) -> u64 {
        self.shared.lock().causes(self.place)
    }

    /// Something failed, and there were so many causes before it began: there must be another one.
    pub fn excuse(&self, before: u64, trouble: &Trouble) {
        if *trouble == Trouble::Excused {
            return;
        }
        self.shared.lock().tell(|| format!("place {}: {trouble:?}", self.place));
        // A disk that stalls without a reason when it is sent data still waits for the rest, while its
        // driver goes on to wait for the status (Bulk-Only Transport 1.0, figure 2).
        let deadlock = self.shared.lock().may_deadlock(self.place);
        let late = *trouble == Trouble::Transfer(TransferError::TimedOut);
        assert!(!late || deadlock, "place {}: nobody was told", self.place);
        let excused = self.causes() > before || self.shared.lock().has_changed(self.place);
        assert!(excused, "place {}: {trouble:?} for no reason", self.place);
    }
}

/// Why something did not work.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    Transfer(TransferError),
    /// The device answered, but not as it should.
    Odd(String),
    /// Something that has had its excuse.
    Excused,
}

impl From<TransferError> for Trouble {
    fn from(error: TransferError) -> Self {
        Self::Transfer(error)
    }
}

impl From<DiskError> for Trouble {
    fn from(error: DiskError) -> Self {
        use crate::driver::mass_storage::CommandError;
        match error {
            DiskError::Command(CommandError::Transfer(error)) => Self::Transfer(error),
            other => Self::Odd(format!("{other:?}")),
        }
    }
}

/// A device and its driver.
pub trait Job<G: Guest> {
    /// The device was enumerated just now.
    fn bind(&mut self, host: &mut G, site: &Site, found: &Enumerated) -> Result<(), Trouble>;

    /// A piece of work. What it brings is checked; an error is what the driver was told, and the
    /// device is to be reset.
    fn work(&mut self, host: &mut G, site: &Site) -> Result<(), Trouble>;

    /// A look at what goes on in the background; [`Trouble::Excused`] asks for a reset.
    fn look(&mut self, _host: &mut G, _site: &Site) -> Result<(), Trouble> {
        Ok(())
    }

    /// Withdraws what is under way; the device may be gone.
    fn withdraw(&mut self, _host: &mut G) {}

    /// Begins anew what was withdrawn.
    fn wake(&mut self, _host: &mut G, _site: &Site) {}

    /// The driver crashed, and the controller was reset: what was under way is nobody's.
    fn crashed(&mut self) {}

    /// Nothing is under way and the device is about to be reset, or is gone: of what was begun, a start
    /// has had its effect, once, and nothing else.
    fn settle(&mut self, site: &Site);
}

/// Waits up to `millis` for something.
pub fn until<G: Guest>(host: &mut G, millis: u64, mut done: impl FnMut(&mut G) -> bool) -> bool {
    for _ in 0..millis {
        if done(host) {
            return true;
        }
        host.sleep_millis(1);
    }
    done(host)
}
