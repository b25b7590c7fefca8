//! `--controller ...,tape=PATH`: what a guest does with a controller, for a replay without the guest.
//!
//! A tape ([`mod@format`]) has the guest's register accesses and the passing of time, in order, and whatever of
//! the guest's memory the controller was shown by its DMA, when that is not what the tape says is there
//! already. What the controller answers and writes is not on it: a replay makes that anew.
//!
//! A controller that is recorded is wrapped in [`Recorded`]; the others know nothing of it.

pub mod format;
mod look;
pub(crate) mod plugs;
mod reel;

use std::io;
use std::path::Path;

use vm_usb::controller::{Context, Frames, HostController, Interrupt};
use vm_usb::snapshot::{RestoreError, SaveError, Snapshot, State};
use vm_usb::time::Time;

use self::format::{Device, MOST_DATA, Place, Step};
use self::look::Look;
pub use self::look::Shown;
use self::reel::Reel;
use crate::memory::GuestRam;

/// A tape that nothing has happened on yet but that devices were plugged in.
#[derive(Debug)]
pub struct Tape(Reel);

impl Tape {
    /// A new file of at most `limit` bytes for a controller that is as [`format::controller`] says.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: &Path, limit: u64, controller: u8) -> io::Result<Self> {
        Reel::create(path, limit, controller).map(Self)
    }

    /// A device is plugged in.
    pub fn plug(&mut self, device: Device, place: Place) {
        self.0.step(Step::Plug(device, place));
    }

    /// Puts whatever happens to `controller` on the tape.
    pub fn record<C>(self, controller: C) -> Recorded<C> {
        Recorded { controller, reel: self.0, look: Look::default(), last: None, bus_master: true }
    }
}

/// A controller whose guest is recorded.
#[derive(Debug)]
pub struct Recorded<C> {
    controller: C,
    reel: Reel,
    look: Look,
    /// When the controller was called last.
    last: Option<Time>,
    /// Whether it could reach memory then; a tape begins as if it could.
    bus_master: bool,
}

impl<C> Recorded<C>
where
    C: HostController<GuestRam> + for<'a> HostController<Shown<'a>>,
{
    /// Has the controller do something. The tape says before it what the guest had put into memory since
    /// the last call, and then `step`, if it is one.
    fn call(
        &mut self,
        context: &Context<'_, GuestRam>,
        step: Option<Step<'_>>,
        action: impl FnOnce(&mut C, &Context<'_, Shown<'_>>),
    ) {
        let (now, memory) = (context.now, context.memory());
        if !self.reel.is_running() {
            // Nothing is added to what nobody takes any more.
            self.look = Look::default();
            match memory.map(Shown::unseen) {
                Some(shown) => action(&mut self.controller, &Context::new(&shown, now)),
                None => action(&mut self.controller, &Context::without_dma(now)),
            }
            return;
        }
        if let Some(memory) = memory {
            let shown = Shown::new(memory, &mut self.look);
            action(&mut self.controller, &Context::new(&shown, now));
            self.look.end_call(memory);
        } else {
            action(&mut self.controller, &Context::without_dma(now));
        }
        let last = self.last.replace(now).unwrap_or(now);
        let news = self.look.take_news();
        let switched = memory.is_some() != self.bus_master;
        self.bus_master = memory.is_some();
        if news.is_empty() && !switched && step.is_none() {
            // Another frame in which nothing was new: it joins the time that passes.
            return;
        }
        self.reel.pass(last);
        if switched {
            self.reel.step(Step::BusMaster(self.bus_master));
        }
        self.reel.add(&news);
        self.reel.pass(now);
        if let Some(step) = step {
            self.reel.step(step);
        }
        if self.look.is_full() {
            self.reel.end("the guest has shown more of its memory than can be remembered");
        }
    }
}

impl<C> HostController<GuestRam> for Recorded<C>
where
    C: HostController<GuestRam> + for<'a> HostController<Shown<'a>>,
{
    fn window(&self) -> u64 {
        HostController::<GuestRam>::window(&self.controller)
    }

    fn read(&mut self, context: &Context<'_, GuestRam>, offset: u64, data: &mut [u8]) {
        // What is larger than a register is no access of a guest's.
        let step = u16::try_from(offset).ok().filter(|_| data.len() <= MOST_DATA);
        let step = step.map(|offset| Step::Read(offset, data.len()));
        self.call(context, step, |controller, context| controller.read(context, offset, data));
    }

    fn write(&mut self, context: &Context<'_, GuestRam>, offset: u64, data: &[u8]) {
        let step = u16::try_from(offset).ok().filter(|_| data.len() <= MOST_DATA);
        let step = step.map(|offset| Step::Write(offset, data));
        self.call(context, step, |controller, context| controller.write(context, offset, data));
    }

    fn run(&mut self, context: &Context<'_, GuestRam>) {
        self.call(context, None, |controller, context| controller.run(context));
    }

    fn deadline(&self) -> Option<Time> {
        HostController::<GuestRam>::deadline(&self.controller)
    }

    fn interrupt(&mut self) -> Interrupt {
        HostController::<GuestRam>::interrupt(&mut self.controller)
    }

    fn take_wakeup(&mut self) -> bool {
        HostController::<GuestRam>::take_wakeup(&mut self.controller)
    }

    fn debug_registers(&self) -> Option<u16> {
        HostController::<GuestRam>::debug_registers(&self.controller)
    }

    fn frames(&self) -> Frames {
        HostController::<GuestRam>::frames(&self.controller)
    }

    fn reset(&mut self, now: Time) {
        self.reel.pass(now);
        self.reel.step(Step::Reset);
        self.last = Some(now);
        HostController::<GuestRam>::reset(&mut self.controller, now);
    }
}

impl<C: Snapshot> Snapshot for Recorded<C> {
    fn save(&self, now: Time) -> Result<State, SaveError> {
        self.controller.save(now)
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        self.reel.end("a tape begins at power-on, and the controller is restored");
        self.controller.restore(state, now)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vfio_user::DmaMapFlags;
    use vm_memory::{Bytes, GuestAddress};
    use vm_usb::ohci::Ohci;
    use vm_usb::topology::{Host, Port};

    use super::format::{Steps, TAPE};
    use super::*;

    const HC_CONTROL: u64 = 0x04;
    const HC_HCCA: u64 = 0x18;
    const HC_CONTROL_HEAD_ED: u64 = 0x20;
    /// CBSR 1:1, control list enabled, operational (OHCI 1.0a, 7.1.2).
    const OPERATIONAL: u32 = 0x90;

    pub(super) fn ram() -> GuestRam {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 0x4000).unwrap();
        let mut ram = GuestRam::default();
        ram.map(DmaMapFlags::READ_WRITE, 0, 0, 0x4000, Some(fd)).unwrap();
        ram
    }

    /// What `story` leaves on a tape of at most `limit` bytes.
    fn recorded(
        name: &str,
        limit: u64,
        story: impl FnOnce(&mut Recorded<Ohci>, &GuestRam),
    ) -> Vec<u8> {
        let path = std::env::temp_dir().join(format!("vm-usbd-tape-{name}-{}", std::process::id()));
        let mut tape = Tape::create(&path, limit, 0).unwrap();
        tape.plug(Device::Disk, Place::new(&[1]).unwrap());
        let mut recorded = tape.record(Ohci::new(vec![Port::classic().link(Host::Classic)]));
        story(&mut recorded, &ram());
        drop(recorded);
        let bytes = std::fs::read(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "for its owner alone");
        std::fs::remove_file(path).unwrap();
        bytes
    }

    fn steps(tape: &[u8]) -> Vec<Step<'_>> {
        Steps::of(tape).unwrap().1.collect()
    }

    fn write(recorded: &mut Recorded<Ohci>, ram: &GuestRam, at: u64, offset: u64, value: u32) {
        let context = Context::new(ram, Time::from_nanos(at));
        recorded.write(&context, offset, &value.to_le_bytes());
    }

    #[test]
    fn a_tape_has_what_the_driver_did_and_what_the_controller_read() {
        let tape = recorded("story", 1 << 20, |recorded, ram| {
            write(recorded, ram, 1_000_000, HC_HCCA, 0x1000);
            write(recorded, ram, 1_100_000, HC_CONTROL_HEAD_ED, 0x2000);
            write(recorded, ram, 1_200_000, HC_CONTROL, OPERATIONAL);
            // Skipped: an endpoint without work (OHCI 1.0a, 4.2.1).
            ram.write_obj(1_u32 << 14, GuestAddress(0x2000)).unwrap();
            let command = 0x08;
            write(recorded, ram, 1_300_000, command, 2);
            for frame in 1..100 {
                let now = Time::from_nanos(1_300_000 + 1_000_000 * frame);
                recorded.run(&Context::new(ram, now));
            }
            recorded.reset(Time::from_nanos(200_000_000));
        });
        let steps = steps(&tape);
        let plug = Step::Plug(Device::Disk, Place::new(&[1]).unwrap());
        let control = OPERATIONAL.to_le_bytes();
        assert_eq!(steps[0], plug);
        assert_eq!(steps[1], Step::Write(0x18, &[0, 0x10, 0, 0]));
        assert!(steps.contains(&Step::Write(0x04, &control)), "{steps:x?}");
        let endpoint = Step::Poke(0x2000, &[0, 0x40, 0, 0]);
        assert_eq!(steps.iter().filter(|step| **step == endpoint).count(), 1, "{steps:x?}");
        assert_eq!(steps.last(), Some(&Step::Reset));
        let passed: u64 = steps.iter().fold(0, |passed, step| match step {
            Step::Time(nanos) => passed + nanos,
            _ => passed,
        });
        assert!((198_000_000..=199_000_000).contains(&passed), "{passed} ns");
        // A hundred frames in which nothing was new are no hundred steps.
        assert!(steps.len() < 20, "{steps:x?}");
    }

    #[test]
    fn a_tape_ends_at_its_limit_with_a_whole_step() {
        let tape = recorded("limit", 100, |recorded, ram| {
            for at in 0..1000 {
                write(recorded, ram, 10_000 * at, HC_HCCA, 0x1000);
            }
        });
        assert!((90..=100).contains(&tape.len()), "{} bytes", tape.len());
        assert_eq!(tape[0], TAPE);
        assert!(
            steps(&tape)
                .iter()
                .all(|step| !matches!(step, Step::Write(_, data) if data.len() != 4))
        );
    }

    #[test]
    fn a_tape_that_has_ended_remembers_nothing_and_the_controller_goes_on() {
        recorded("ended", 8, |recorded, ram| {
            write(recorded, ram, 1_000_000, HC_HCCA, 0x1000);
            write(recorded, ram, 1_100_000, HC_CONTROL, OPERATIONAL);
            assert!(!recorded.reel.is_running(), "it is full");
            for frame in 1..10 {
                // Each time another interrupt table.
                ram.write_obj(16 * frame, GuestAddress(0x1000 + 4 * (frame % 32))).unwrap();
                let now = Time::from_nanos(1_100_000 + 1_000_000 * frame);
                recorded.run(&Context::new(ram, now));
                assert!(recorded.look == Look::default(), "frame {frame}");
            }
            let frame_number: u16 = ram.read_obj(GuestAddress(0x1080)).unwrap();
            assert_eq!(frame_number, 9, "HccaFrameNumber");
        });
    }

    #[test]
    fn an_access_of_eight_bytes_is_on_the_tape_and_no_larger_one() {
        let tape = recorded("size", 1 << 20, |recorded, ram| {
            let context = Context::new(ram, Time::from_nanos(1));
            for len in MOST_DATA - 1..=MOST_DATA + 1 {
                recorded.write(&context, 0x40, &vec![0xee; len]);
                recorded.read(&context, 0x40, &mut vec![0; len]);
            }
        });
        let accesses = [
            Step::Write(0x40, &[0xee; 7]),
            Step::Read(0x40, 7),
            Step::Write(0x40, &[0xee; 8]),
            Step::Read(0x40, 8),
        ];
        assert_eq!(steps(&tape)[1..], accesses);
    }

    #[test]
    fn bus_mastering_that_goes_off_is_on_the_tape() {
        let tape = recorded("bus", 1 << 20, |recorded, ram| {
            recorded.run(&Context::without_dma(Time::from_nanos(1)));
            recorded.run(&Context::without_dma(Time::from_nanos(2)));
            recorded.run(&Context::new(ram, Time::from_nanos(3)));
        });
        assert_eq!(steps(&tape)[1..], [Step::BusMaster(false), Step::BusMaster(true)]);
    }
}
