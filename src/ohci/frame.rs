//! Frames: the counter registers as a function of time, and how long a frame is.

use serde::{Deserialize, Serialize};

use super::spec::{HcFmInterval, HcFmRemaining, NOMINAL_FRAME_INTERVAL};
use crate::snapshot::Offset;
use crate::time::Time;

/// Length of a frame, whatever FrameInterval says: a guest that programs a tiny one would otherwise
/// have millions of frames a second.
pub(super) const FRAME_NANOS: u64 = 1_000_000;

/// Frames that are made up for one by one after the host was late, or nobody had asked for them: as
/// many as there are periodic lists, so that each of them is looked at. More than that are skipped, as
/// a pause of the virtual machine would make them pile up without end.
pub(super) const CATCH_UP_FRAMES: u64 = 32;

/// Least time between the moment a driver begins to wait and an early boundary, and so the shortest
/// frame.
const EAGER_NANOS: u64 = 20_000;

/// The same while the driver may still be about to read HccaFrameNumber, which must not change before
/// it: it has enabled StartofFrame, and not yet read a register after that; its read back may be on
/// the way.
const EAGER_UNREAD_NANOS: u64 = 150_000;

/// The same once it has read a register. Its next access shows that it has the number.
const EAGER_READ_NANOS: u64 = 60_000;

/// Early boundaries for one cause. A driver that waits needs one or two; one that keeps StartofFrame
/// enabled for good gets its frames at their normal rate.
const EAGER_BOUNDARIES: u8 = 4;

/// How frames follow each other, and how much fits into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// A frame is 1 ms. Within it, control and bulk transfers are as fast as their devices, and the
    /// done queue is handed over as soon as DelayInterrupt allows.
    #[default]
    RealTime,
    /// A frame ends early when the driver does nothing but wait for its end: for StartofFrame, or for
    /// a done queue that is due. Frames are never longer than 1 ms and never shorter than 20 us, and
    /// at most four in a row are short for one cause. HcFmNumber counts frames, so it runs ahead of
    /// the clock by as many as were short; it is never held back for that.
    ///
    /// While an isochronous endpoint is served, every frame is 1 ms.
    Eager,
    /// A frame is 1 ms and carries what 12 Mbit/s do, one packet a visit, and the done queue is
    /// handed over where frames meet: what real hardware costs, for driver authors.
    Wire,
}

/// HcFmNumber, HcFmRemaining and the moments at which they change.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameClock {
    pacing: Pacing,
    number: u16,
    frt: bool,
    /// HcFmRemaining's count while frames do not run.
    stopped_at: u16,
    run: Option<Run>,
    early: Early,
}

/// A [`FrameClock`] in a snapshot; its pacing is the owner's choice.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClockState {
    number: u16,
    frt: bool,
    stopped_at: u16,
    run: Option<Run<Offset>>,
    early: Early<Offset>,
}

/// The frame under way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run<T = Time> {
    /// When it began.
    start: T,
    /// Whether its start of frame went out; not so before the first boundary after entering
    /// USBOPERATIONAL.
    begun: bool,
}

/// What Eager knows of the driver's wait.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Early<T = Time> {
    credit: u8,
    since: T,
    wait: Wait,
}

/// How far a driver is that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Wait {
    /// It waits, and knows the frame number.
    #[default]
    Ready,
    /// It has enabled StartofFrame and will read a register, then the frame number.
    Unread,
    /// It has read the register.
    Reading,
}

impl FrameClock {
    pub(super) fn new(pacing: Pacing) -> Self {
        Self { pacing, number: 0, frt: false, stopped_at: 0, run: None, early: Early::default() }
    }

    pub(super) fn save(&self, now: Time) -> ClockState {
        let Self { pacing: _, number, frt, stopped_at, run, early } = *self;
        let Early { credit, since, wait } = early;
        ClockState {
            number,
            frt,
            stopped_at,
            run: run.map(|Run { start, begun }| Run { start: Offset::of(start, now), begun }),
            early: Early { credit, since: Offset::of(since, now), wait },
        }
    }

    pub(super) fn restore(&mut self, state: ClockState, now: Time) {
        let ClockState { number, frt, stopped_at, run, early } = state;
        let Early { credit, since, wait } = early;
        *self = Self {
            pacing: self.pacing,
            number,
            frt,
            // FrameRemaining has 14 bits.
            stopped_at: stopped_at & 0x3fff,
            // No frame begins later than now.
            run: run.map(|Run { start, begun }| Run { start: start.at(now).min(now), begun }),
            early: Early { credit: credit.min(EAGER_BOUNDARIES), since: since.at(now), wait },
        };
    }

    pub(super) fn pacing(&self) -> Pacing {
        self.pacing
    }

    /// What is left of the frame under way, in thousandths.
    pub(super) fn thousandths_left(&self, now: Time) -> u32 {
        let elapsed = self.run.map_or(FRAME_NANOS, |run| now.nanos_since(run.start));
        let left = FRAME_NANOS.saturating_sub(elapsed).saturating_mul(1000);
        left.checked_div(FRAME_NANOS).and_then(|left| u32::try_from(left).ok()).unwrap_or(0)
    }

    /// Software or hardware reset.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.pacing);
    }

    /// HcFmNumber.
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Entering USBOPERATIONAL: the first start of frame comes a frame later (OHCI 1.0a, 6.3.1 leaves
    /// the phase open). Waiting anew each time also means that no sequence of state changes makes
    /// frames faster.
    pub(super) fn start(&mut self, now: Time, interval: HcFmInterval) {
        self.run = Some(Run { start: now, begun: false });
        self.frt = interval.fit();
    }

    /// Leaving USBOPERATIONAL, or an unrecoverable error: the counters keep their values.
    pub(super) fn stop(&mut self, now: Time, interval: HcFmInterval) {
        self.stopped_at = self.remaining(now, interval).fr();
        self.run = None;
    }

    /// Whether a start of frame has gone out since frames began to run.
    pub(super) fn in_frame(&self) -> bool {
        self.run.is_some_and(|run| run.begun)
    }

    /// Whether frames run but the first has not begun.
    pub(super) fn awaits_first(&self) -> bool {
        self.run.is_some_and(|run| !run.begun)
    }

    /// HcFmRemaining.
    pub(super) fn remaining(&self, now: Time, interval: HcFmInterval) -> HcFmRemaining {
        let fr = match self.run {
            None => self.stopped_at,
            Some(run) => {
                let left = FRAME_NANOS.saturating_sub(now.nanos_since(run.start));
                let fi = u64::from(interval.fi());
                let left = fi.saturating_mul(left).checked_div(FRAME_NANOS).unwrap_or(0);
                u16::try_from(left).unwrap_or(NOMINAL_FRAME_INTERVAL)
            }
        };
        HcFmRemaining::new().with_fr(fr).with_frt(self.frt)
    }

    /// Frame ends up to `now` at the normal rate.
    pub(super) fn due(&self, now: Time) -> u64 {
        let elapsed = self.run.map_or(0, |run| now.nanos_since(run.start));
        elapsed.checked_div(FRAME_NANOS).unwrap_or(0)
    }

    /// Lets `frames` frames pass; returns whether bit 15 of HcFmNumber changed on the way.
    pub(super) fn skip(&mut self, frames: u64, interval: HcFmInterval) -> bool {
        let before = self.number;
        // Only the low bits of the count matter to a 16-bit counter.
        self.number = self.number.wrapping_add(frames as u16);
        if let Some(run) = &mut self.run {
            run.start = run.start.after_nanos(frames.saturating_mul(FRAME_NANOS));
            run.begun |= frames != 0;
        }
        self.frt = interval.fit();
        frames >= 0x8000 || (before ^ self.number) & 0x8000 != 0
    }

    /// A frame ends early, now; returns whether bit 15 of HcFmNumber changed.
    pub(super) fn end_early(&mut self, now: Time, interval: HcFmInterval) -> bool {
        self.early.credit = self.early.credit.saturating_sub(1);
        self.early.since = now;
        let changed = self.skip(1, interval);
        if let Some(run) = &mut self.run {
            run.start = now;
        }
        changed
    }

    /// The end of the frame under way and of `more` frames after it.
    pub(super) fn boundary(&self, more: u64) -> Option<Time> {
        let frames = more.saturating_add(1);
        self.run.map(|run| run.start.after_nanos(frames.saturating_mul(FRAME_NANOS)))
    }

    /// Frames that end before the one whose end changes bit 15 of HcFmNumber.
    pub(super) fn until_overflow(&self) -> u64 {
        u64::from(0x7fff & !self.number)
    }

    /// The driver may wait for a frame to end from now on: a TD was retired, or (`reads`) it enabled
    /// StartofFrame and will read the frame number next.
    pub(super) fn may_wait(&mut self, now: Time, reads: bool) {
        let wait = if reads { Wait::Unread } else { Wait::Ready };
        self.early = Early { credit: EAGER_BOUNDARIES, since: now, wait };
    }

    /// The driver accesses a register: what it wanted to read before, it has.
    pub(super) fn is_accessed(&mut self) {
        if self.early.wait == Wait::Reading {
            self.early.wait = Wait::Ready;
        }
    }

    /// The driver has read a register.
    pub(super) fn was_read(&mut self, now: Time) {
        if self.early.wait == Wait::Unread {
            self.early.wait = Wait::Reading;
            self.early.since = now;
        }
    }

    /// When the frame may end early for a driver that waits.
    pub(super) fn early_boundary(&self) -> Option<Time> {
        let run = self.run.filter(|run| run.begun)?;
        let wait = match self.early.wait {
            Wait::Ready => EAGER_NANOS,
            Wait::Unread => EAGER_UNREAD_NANOS,
            Wait::Reading => EAGER_READ_NANOS,
        };
        let allowed = self.pacing == Pacing::Eager && self.early.credit != 0;
        allowed.then(|| self.early.since.max(run.start).after_nanos(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ohci::spec::FM_INTERVAL_RESET;

    const INTERVAL: HcFmInterval = HcFmInterval::from_bits(FM_INTERVAL_RESET);

    #[test]
    fn the_counter_is_a_function_of_time() {
        let mut clock = FrameClock::new(Pacing::RealTime);
        clock.start(Time::ZERO, INTERVAL);
        assert!(clock.awaits_first());
        assert_eq!(clock.due(Time::from_nanos(999_999)), 0);
        assert_eq!(clock.due(Time::from_nanos(70_000_500_000)), 70_000);
        assert!(clock.skip(70_000, INTERVAL), "bit 15 changed on the way");
        assert_eq!(clock.number(), 70_000u32 as u16);
        assert_eq!(clock.remaining(Time::from_nanos(70_000_500_000), INTERVAL).fr(), 5_999);
        assert_eq!(clock.until_overflow(), 0x8000 - 1 - 4464);
    }
}
