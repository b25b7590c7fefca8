//! What others have a controller's loop do between two of its turns.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::session::Function;

/// Something to be done with the function, by the thread that owns it.
pub type Errand = Box<dyn FnOnce(&mut Function) + Send>;

/// A loop's errands. Ring its doorbell after giving it one.
#[derive(Default)]
pub struct Errands(Mutex<Vec<Errand>>);

impl fmt::Debug for Errands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errands").finish_non_exhaustive()
    }
}

impl Errands {
    /// Gives the loop something to do.
    pub fn add(&self, errand: Errand) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(errand);
    }

    /// The loop does what it was given.
    pub fn run(&self, function: &mut Function) {
        let errands = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for errand in errands {
            errand(function);
        }
    }
}
