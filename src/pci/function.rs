//! A host controller as a PCI function.

mod saved;

use std::marker::PhantomData;

use vm_memory::GuestMemory;

use super::config_space::ConfigSpace;
use super::message::{Cause, Message};
use super::{
    FunctionStatistics, Identity, InterruptLine, InterruptPin, debug, legacy, msi, power, type0,
};
use crate::controller::{Context, HostController};
use crate::time::Time;

/// Longest time between two calls of `run` for a controller that asks to run at once while it cannot
/// reach memory, in ms: nothing but its ports can change then, and they are slower than a frame.
const IDLE_WITHOUT_DMA: u64 = 1;

/// Where in its slot a function sits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Whether the slot holds more than one function: an EHCI controller and its companions share
    /// one, the companions with the lower function numbers (EHCI 4.2).
    pub multi_function: bool,
    /// The interrupt pin.
    pub pin: InterruptPin,
}

/// A host controller behind configuration space and BAR 0, driving an interrupt line.
///
/// The embedder passes on every access and the passing of time. After each call the line has been
/// told of every change, and [`deadline`](Self::deadline) says when to call [`run`](Self::run).
#[derive(Debug)]
pub struct PciFunction<M: ?Sized, C, L> {
    config: ConfigSpace,
    identity: Identity,
    bar_size: u32,
    controller: C,
    line: L,
    outputs: Outputs,
    /// The last moment the controller ran.
    last_run: Time,
    /// Without the frames, which the controller counts.
    counts: FunctionStatistics,
    memory: PhantomData<fn(&M)>,
}

/// What the line was told last, and what it was not.
#[derive(Debug, Default)]
struct Outputs {
    level: bool,
    pme: bool,
    message: Message,
}

impl<M, C, L> PciFunction<M, C, L>
where
    M: GuestMemory + ?Sized,
    C: HostController<M>,
    L: InterruptLine,
{
    /// `controller` as a function, in the state after power-on.
    pub fn new(identity: Identity, placement: Placement, controller: C, line: L) -> Self {
        let bar_size = type0::bar_size(controller.window());
        let mut config = ConfigSpace::new();
        type0::declare(&mut config, &identity, placement, bar_size, power::AT);
        let registers = controller.debug_registers();
        power::declare(&mut config, if registers.is_some() { debug::AT } else { msi::AT });
        if let Some(registers) = registers {
            debug::declare(&mut config, msi::AT, registers);
        }
        msi::declare(&mut config, 0);
        if identity.ehci_registers {
            legacy::declare(&mut config);
        }
        Self {
            config,
            identity,
            bar_size,
            controller,
            line,
            outputs: Outputs::default(),
            last_run: Time::ZERO,
            counts: FunctionStatistics::default(),
            memory: PhantomData,
        }
    }

    /// Guest read of configuration space. Bytes from [`CONFIG_SPACE_SIZE`](super::CONFIG_SPACE_SIZE)
    /// on are zero.
    pub fn config_read(&mut self, memory: &M, now: Time, offset: u64, data: &mut [u8]) {
        if self.identity.ehci_registers && legacy::shows_status(offset, data.len()) {
            let usbsts = self.usbsts(memory, now);
            legacy::show_status(&mut self.config, usbsts);
            self.settle(Cause::Read, now);
        }
        self.config.read(offset, data);
    }

    /// Guest write to configuration space; read-only bits and bytes outside are ignored.
    pub fn config_write(&mut self, memory: &M, now: Time, offset: u64, data: &[u8]) {
        let was_d3hot = power::in_d3hot(&self.config);
        let had_dma = self.has_dma();
        let was_os_owned = legacy::os_owned(&self.config);
        self.config.write(offset, data);
        power::written(&mut self.config, was_d3hot);
        if self.identity.ehci_registers {
            legacy::written(&mut self.config, offset, data.len(), was_os_owned);
        }
        if self.has_dma() != had_dma {
            self.run(memory, now);
        } else {
            self.settle(Cause::Other, now);
        }
    }

    /// Guest read of BAR 0.
    ///
    /// While memory space is disabled or the function is in D3hot nobody answers: all bits are one.
    pub fn bar_read(&mut self, memory: &M, now: Time, offset: u64, data: &mut [u8]) {
        self.counts.register_reads = self.counts.register_reads.wrapping_add(1);
        if !self.answers() {
            data.fill(0xff);
            return;
        }
        data.fill(0);
        if self.in_window(offset, data.len()) {
            self.controller.read(&self.context(memory, now), offset, data);
        }
        self.settle(Cause::Read, now);
    }

    /// Guest write to BAR 0.
    pub fn bar_write(&mut self, memory: &M, now: Time, offset: u64, data: &[u8]) {
        self.counts.register_writes = self.counts.register_writes.wrapping_add(1);
        if self.answers() && self.in_window(offset, data.len()) {
            self.controller.write(&self.context(memory, now), offset, data);
        }
        self.settle(Cause::Write, now);
    }

    /// Time has passed, or a device has something to say.
    pub fn run(&mut self, memory: &M, now: Time) {
        self.last_run = now;
        self.counts.runs = self.counts.runs.wrapping_add(1);
        self.controller.run(&self.context(memory, now));
        self.settle(Cause::Other, now);
    }

    /// When [`run`](Self::run) must be called next; `None` while nothing is scheduled.
    pub fn deadline(&self) -> Option<Time> {
        let deadline = self.controller.deadline();
        if self.has_dma() {
            let message = self.outputs.message.due().filter(|_| msi::enabled(&self.config));
            return deadline.into_iter().chain(message).min();
        }
        Some(deadline?.max(self.last_run.after_millis(IDLE_WITHOUT_DMA)))
    }

    /// Power-on or bus reset: configuration space and controller start again.
    pub fn reset(&mut self, now: Time) {
        self.config.reset();
        self.controller.reset(now);
        self.last_run = now;
        self.settle(Cause::Other, now);
    }

    /// Size of BAR 0 in bytes, a power of two.
    pub fn bar_size(&self) -> u32 {
        self.bar_size
    }

    /// Where the guest has put BAR 0, or `None` while memory space is disabled.
    pub fn bar_address(&self) -> Option<u32> {
        type0::memory_enabled(&self.config).then(|| type0::bar_address(&self.config))
    }

    /// What happened so far.
    pub fn statistics(&self) -> FunctionStatistics {
        FunctionStatistics { frames: self.controller.frames(), ..self.counts }
    }

    /// The controller.
    pub fn controller(&self) -> &C {
        &self.controller
    }

    /// The controller; call [`run`](Self::run) after changing anything.
    pub fn controller_mut(&mut self) -> &mut C {
        &mut self.controller
    }

    /// The interrupt line.
    pub fn line(&self) -> &L {
        &self.line
    }

    /// The interrupt line.
    pub fn line_mut(&mut self) -> &mut L {
        &mut self.line
    }

    fn answers(&self) -> bool {
        type0::memory_enabled(&self.config) && !power::in_d3hot(&self.config)
    }

    fn has_dma(&self) -> bool {
        type0::bus_master(&self.config) && !power::in_d3hot(&self.config)
    }

    fn in_window(&self, offset: u64, len: usize) -> bool {
        offset.checked_add(len as u64).is_some_and(|end| end <= self.controller.window())
    }

    fn context<'a>(&self, memory: &'a M, now: Time) -> Context<'a, M> {
        if self.has_dma() { Context::new(memory, now) } else { Context::without_dma(now) }
    }

    /// USBSTS, found as a driver finds it: CAPLENGTH bytes into the window, then 4 (EHCI 2.2.1, 2.3).
    fn usbsts(&mut self, memory: &M, now: Time) -> u32 {
        let context = self.context(memory, now);
        let mut capability_length = [0];
        self.controller.read(&context, 0, &mut capability_length);
        let mut usbsts = [0; 4];
        let [capability_length] = capability_length;
        let offset = u64::from(capability_length).saturating_add(4);
        self.controller.read(&context, offset, &mut usbsts);
        u32::from_le_bytes(usbsts)
    }

    /// Brings the interrupt outputs up to date.
    fn settle(&mut self, cause: Cause, now: Time) {
        let interrupt = self.controller.interrupt();
        let wakeup = self.controller.take_wakeup();
        type0::show_interrupt(&mut self.config, interrupt.asserted);
        let awake = !power::in_d3hot(&self.config);
        if wakeup && !awake {
            power::wake(&mut self.config);
        }

        // An event that cannot be told now is told later, if it still matters then.
        self.outputs.message.follow(cause, interrupt.asserted, interrupt.event, now);
        let messages = msi::enabled(&self.config);
        let level =
            awake && !messages && interrupt.asserted && !type0::interrupt_disabled(&self.config);
        if level != self.outputs.level {
            self.outputs.level = level;
            self.counts.interrupts = self.counts.interrupts.wrapping_add(level.into());
            self.line.set_level(level);
        }
        // A message is a memory write: it takes the right to master the bus (PCI 3.0, 6.8.3).
        if messages && self.has_dma() && self.outputs.message.take(now) {
            self.counts.interrupts = self.counts.interrupts.wrapping_add(1);
            let (address, data) = msi::message(&self.config);
            self.line.message(address, data);
        }

        let pme = power::pme(&self.config);
        if pme != self.outputs.pme {
            self.outputs.pme = pme;
            self.line.set_power_management_event(pme);
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
