//! Link power management: the sleep state L1, entered and left within microseconds (USB 2.0 LPM
//! addendum).

/// The extended token by which a host asks a device to enter L1 (USB 2.0 LPM addendum, 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSleep {
    /// `HIRD`, 0 to 15: how long the host will signal resume.
    pub resume: u8,
    /// `bRemoteWake`: whether the device may end the sleep itself.
    pub remote_wakeup: bool,
}

impl LinkSleep {
    /// How long the host will signal resume, in microseconds: 50 to 1,175.
    pub const fn resume_micros(self) -> u64 {
        // No more than 15 of them.
        let steps = (self.resume & 0xf) as u64;
        steps.saturating_mul(75).saturating_add(50)
    }
}

/// A device's answer to [`LinkSleep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkAnswer {
    /// It sleeps from now on.
    Ack,
    /// It has something to do; to be asked again later.
    NotYet,
    /// It does not know the state that was asked for.
    Stall,
    /// It knows nothing of link power management, or is not there.
    #[default]
    Silence,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resume_lasts_50_to_1175_microseconds() {
        let micros = |resume| LinkSleep { resume, remote_wakeup: true }.resume_micros();
        assert_eq!([0, 1, 15].map(micros), [50, 125, 1175]);
    }
}
