//! A controller to see a function's driver at work with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vm_memory::GuestMemoryMmap;

use crate::controller::{Context, HostController, Interrupt};
use crate::pci::InterruptLine;
use crate::time::Time;

/// A controller that is given its deadline through its register, in microseconds from then, and
/// counts its turns.
#[derive(Default)]
pub(super) struct Clockwork {
    pub(super) turns: Arc<AtomicU32>,
    pub(super) deadline: Option<Time>,
}

impl crate::snapshot::Snapshot for Clockwork {}

impl HostController<GuestMemoryMmap> for Clockwork {
    fn window(&self) -> u64 {
        0x100
    }

    fn read(&mut self, _: &Context<'_, GuestMemoryMmap>, _: u64, data: &mut [u8]) {
        data.fill(0x5a);
    }

    fn write(&mut self, context: &Context<'_, GuestMemoryMmap>, _: u64, data: &[u8]) {
        let micros = u32::from_le_bytes(data.try_into().unwrap());
        self.deadline = Some(context.now.after_micros(micros.into()));
    }

    fn run(&mut self, context: &Context<'_, GuestMemoryMmap>) {
        self.turns.fetch_add(1, Ordering::SeqCst);
        self.deadline = self.deadline.filter(|deadline| *deadline > context.now);
    }

    fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    fn interrupt(&mut self) -> Interrupt {
        Interrupt::default()
    }

    fn reset(&mut self, _: Time) {
        self.deadline = None;
    }
}

/// Interrupts that go nowhere.
pub(super) struct NoLine;

impl InterruptLine for NoLine {
    fn set_level(&mut self, _: bool) {}

    fn message(&mut self, _: u64, _: u32) {}
}
