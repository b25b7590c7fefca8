//! What every host controller offers its bus: registers, time, guest memory and an interrupt.

use serde::{Deserialize, Serialize};
use vm_memory::GuestMemory;

use crate::dma::Dma;
use crate::snapshot::Snapshot;
use crate::time::Time;

/// The world outside a controller for the length of one call.
#[derive(Debug)]
pub struct Context<'a, M: ?Sized> {
    /// What time it is.
    pub now: Time,
    memory: Option<&'a M>,
}

impl<'a, M: GuestMemory + ?Sized> Context<'a, M> {
    /// A function that may master the bus.
    pub fn new(memory: &'a M, now: Time) -> Self {
        Self { now, memory: Some(memory) }
    }

    /// A function whose bus mastering is off (PCI command bit 2 clear, or D3hot): its registers work,
    /// its schedules stand still.
    pub fn without_dma(now: Time) -> Self {
        Self { now, memory: None }
    }

    /// The memory, for whoever stands between a controller and its owner; `None` while bus mastering is
    /// off.
    pub fn memory(&self) -> Option<&'a M> {
        self.memory
    }

    /// The window on guest memory, or `None` while bus mastering is off.
    pub fn dma(&self) -> Option<Dma<'a, M>> {
        self.memory.map(Dma::new)
    }
}

/// A controller's interrupt output.
///
/// Both forms are reported because the function in front decides which one the guest asked for: a
/// pin follows `asserted`, a message is sent for `event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// The level of the interrupt condition.
    pub asserted: bool,
    /// Whether something happened since the last look that deserves a message of its own.
    pub event: bool,
}

/// What became of a controller's frames since power-on: of 1 ms for OHCI, microframes of 125 us for
/// EHCI. Those in which the controller or, for EHCI, the periodic schedule was stopped do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// OHCI: frames in which the lists were run. EHCI: microframes in which something in the periodic
    /// schedule was due, and was carried out.
    pub run: u64,
    /// OHCI: frames that passed without, because nothing was due in them, or because the embedder came
    /// back too late to catch up. EHCI: microframes that were missed, because the embedder came back too
    /// late or the guest's list was too long; those in which nothing was due are in neither count.
    pub skipped: u64,
}

/// A host controller as a value: driven by register accesses, the passing of time and the devices
/// behind it.
///
/// After each call the owner looks at [`interrupt`](Self::interrupt) and re-arms its timer to
/// [`deadline`](Self::deadline).
pub trait HostController<M: GuestMemory + ?Sized>: Snapshot + Send {
    /// Size of the register window in bytes, a power of two.
    fn window(&self) -> u64;

    /// A guest read of `data.len()` bytes at `offset` in the register window.
    fn read(&mut self, context: &Context<'_, M>, offset: u64, data: &mut [u8]);

    /// A guest write of `data` at `offset` in the register window.
    fn write(&mut self, context: &Context<'_, M>, offset: u64, data: &[u8]);

    /// Time has passed, or a device behind a port has something to say.
    fn run(&mut self, context: &Context<'_, M>);

    /// When [`run`](Self::run) must be called next; `None` while nothing is scheduled.
    ///
    /// A moment that is already past means that there is work at hand now.
    fn deadline(&self) -> Option<Time>;

    /// The interrupt output; reading it takes the event.
    fn interrupt(&mut self) -> Interrupt;

    /// Whether something happened since the last look that is to wake a sleeping system: a resume on
    /// a suspended port, or a port change whose wake bit is set (EHCI 4.3, OHCI 1.0a 5.1.1.4). Asking
    /// takes the event.
    fn take_wakeup(&mut self) -> bool {
        false
    }

    /// Where in the register window the registers of a debug port begin, if there is one (EHCI
    /// appendix C).
    fn debug_registers(&self) -> Option<u16> {
        None
    }

    /// How many frames were run and skipped.
    fn frames(&self) -> Frames {
        Frames::default()
    }

    /// Power-on or bus reset of the function.
    fn reset(&mut self, now: Time);
}

impl<M, C> HostController<M> for Box<C>
where
    M: GuestMemory + ?Sized,
    C: HostController<M> + ?Sized,
{
    fn window(&self) -> u64 {
        (**self).window()
    }

    fn read(&mut self, context: &Context<'_, M>, offset: u64, data: &mut [u8]) {
        (**self).read(context, offset, data);
    }

    fn write(&mut self, context: &Context<'_, M>, offset: u64, data: &[u8]) {
        (**self).write(context, offset, data);
    }

    fn run(&mut self, context: &Context<'_, M>) {
        (**self).run(context);
    }

    fn deadline(&self) -> Option<Time> {
        (**self).deadline()
    }

    fn interrupt(&mut self) -> Interrupt {
        (**self).interrupt()
    }

    fn take_wakeup(&mut self) -> bool {
        (**self).take_wakeup()
    }

    fn debug_registers(&self) -> Option<u16> {
        (**self).debug_registers()
    }

    fn frames(&self) -> Frames {
        (**self).frames()
    }

    fn reset(&mut self, now: Time) {
        (**self).reset(now);
    }
}
