//! A driver's way through configuration space.

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::*;
use crate::controller::Interrupt;

const COMMAND: u64 = 0x04;
const STATUS: u64 = 0x06;
const BAR0: u64 = 0x10;
const PMCSR: u64 = 0x54;
const MSI: u64 = 0x70;
const USBLEGSUP: u64 = 0xa0;
const USBLEGCTLSTS: u64 = 0xa4;

const MEMORY_AND_MASTER: u16 = 0x6;
const INTERRUPT_DISABLE: u16 = 0x400;

/// Registers of [`Mill`].
const USBSTS: u64 = 0x24;
const DOORBELL: u64 = 0x28;
/// Where the mill leaves the number of its turns.
const TURNS: u64 = 0x1000;

/// A controller that counts its turns in guest memory and raises an interrupt when asked.
#[derive(Default)]
struct Mill {
    turns: u32,
    status: u32,
    event: bool,
    wakeup: bool,
}

impl crate::snapshot::Snapshot for Mill {}

impl HostController<GuestMemoryMmap> for Mill {
    fn window(&self) -> u64 {
        0x100
    }

    fn read(&mut self, _: &Context<'_, GuestMemoryMmap>, offset: u64, data: &mut [u8]) {
        let value = match offset {
            0 => 0x20,
            USBSTS => self.status,
            _ => 0,
        };
        for (into, from) in data.iter_mut().zip(value.to_le_bytes()) {
            *into = from;
        }
    }

    fn write(&mut self, context: &Context<'_, GuestMemoryMmap>, offset: u64, data: &[u8]) {
        let value = u32::from_le_bytes(data.try_into().unwrap());
        match offset {
            USBSTS => self.status &= !value,
            DOORBELL => {
                self.event = self.status == 0;
                self.status |= value;
                self.run(context);
            }
            _ => {}
        }
    }

    fn run(&mut self, context: &Context<'_, GuestMemoryMmap>) {
        if let Some(dma) = context.dma() {
            self.turns += 1;
            dma.store(TURNS, self.turns).unwrap();
        }
    }

    fn deadline(&self) -> Option<Time> {
        Some(Time::ZERO)
    }

    fn interrupt(&mut self) -> Interrupt {
        Interrupt { asserted: self.status != 0, event: std::mem::take(&mut self.event) }
    }

    fn take_wakeup(&mut self) -> bool {
        std::mem::take(&mut self.wakeup)
    }

    fn reset(&mut self, _: Time) {
        *self = Self::default();
    }
}

/// What came out of the function.
#[derive(Debug, Default)]
struct Board {
    level: bool,
    changes: u32,
    pme: bool,
    messages: Vec<(u64, u32)>,
}

impl InterruptLine for Board {
    fn set_level(&mut self, asserted: bool) {
        self.level = asserted;
        self.changes += 1;
    }

    fn message(&mut self, address: u64, data: u32) {
        self.messages.push((address, data));
    }

    fn set_power_management_event(&mut self, asserted: bool) {
        self.pme = asserted;
    }
}

/// A machine with one function, and its driver.
struct Machine {
    memory: GuestMemoryMmap,
    function: PciFunction<GuestMemoryMmap, Mill, Board>,
    now: Time,
}

impl Machine {
    fn with(identity: Identity, placement: Placement) -> Self {
        Self {
            memory: GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap(),
            function: PciFunction::new(identity, placement, Mill::default(), Board::default()),
            now: Time::ZERO.after_millis(5),
        }
    }

    fn ehci() -> Self {
        Self::with(Identity::ehci(), Placement::default())
    }

    /// A function whose driver has enabled memory space and bus mastering.
    fn enabled() -> Self {
        let mut machine = Self::ehci();
        machine.write16(COMMAND, MEMORY_AND_MASTER);
        machine
    }

    fn read<const N: usize>(&mut self, offset: u64) -> [u8; N] {
        let mut data = [0xee; N];
        self.function.config_read(&self.memory, self.now, offset, &mut data);
        data
    }

    fn read8(&mut self, offset: u64) -> u8 {
        self.read::<1>(offset)[0]
    }

    fn read16(&mut self, offset: u64) -> u16 {
        u16::from_le_bytes(self.read(offset))
    }

    fn read32(&mut self, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(offset))
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.function.config_write(&self.memory, self.now, offset, data);
    }

    fn write16(&mut self, offset: u64, value: u16) {
        self.write(offset, &value.to_le_bytes());
    }

    fn write32(&mut self, offset: u64, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }

    fn register(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.function.bar_read(&self.memory, self.now, offset, &mut data);
        u32::from_le_bytes(data)
    }

    fn set_register(&mut self, offset: u64, value: u32) {
        self.function.bar_write(&self.memory, self.now, offset, &value.to_le_bytes());
    }

    fn turns(&self) -> u32 {
        self.memory.read_obj(GuestAddress(TURNS)).unwrap()
    }

    fn enable_msi(&mut self) {
        self.write32(MSI + 4, 0xfee0_1007);
        self.write32(MSI + 8, 0x1);
        self.write32(MSI + 12, 0xffff_4042);
        self.write16(MSI + 2, 1);
    }
}

#[test]
fn enumeration_finds_the_class_and_sizes_the_bar() {
    let mut machine = Machine::ehci();
    assert_eq!(machine.read32(0x00), 0x24cd_8086);
    assert_eq!(machine.read32(0x08) >> 8, 0x0c0320, "EHCI-CAP-1");
    assert_eq!(machine.read8(0x0e), 0, "alone in its slot");
    assert_eq!(machine.read8(0x3d), 1, "INTA#");
    for offset in 0..4 {
        machine.write(BAR0 + offset, &[0xff]);
    }
    assert_eq!(machine.read32(BAR0), 0xffff_f000, "4 KiB of 32-bit memory");
    machine.write32(BAR0, 0xfebf_1000);
    assert_eq!(machine.function.bar_address(), None, "not enabled yet");
    machine.write16(COMMAND, 0xffff);
    assert_eq!(machine.read16(COMMAND), 0x406, "the rest is wired to zero");
    assert_eq!(machine.function.bar_address(), Some(0xfebf_1000));
    for unused in (BAR0 + 4..0x28).step_by(4) {
        machine.write32(unused, !0);
        assert_eq!(machine.read32(unused), 0, "{unused:#x}");
    }
    machine.write(0x3c, &[11]);
    assert_eq!(machine.read8(0x3c), 11, "firmware's note");
}

#[test]
fn a_bar_is_a_page_at_least_and_leaves_an_address_bit() {
    for (window, size) in [
        (1, 0x1000),
        (0x1000, 0x1000),
        (0x1001, 0x2000),
        (0x7fff_ffff, 0x8000_0000),
        (0x8000_0000, 0x8000_0000),
        (0x8000_0001, 0x8000_0000),
        (u64::MAX, 0x8000_0000),
    ] {
        assert_eq!(super::type0::bar_size(window), size, "{window:#x}");
    }
}

#[test]
fn an_ohci_companion_is_one_of_several_functions() {
    let placement = Placement { multi_function: true, pin: InterruptPin::B };
    let mut machine = Machine::with(Identity::ohci(), placement);
    assert_eq!(machine.read32(0x08) >> 8, 0x0c0310);
    assert_eq!(machine.read8(0x0e), 0x80);
    assert_eq!(machine.read8(0x3d), 2);
    for offset in [0x60, USBLEGSUP, USBLEGCTLSTS] {
        machine.write32(offset, !0);
        assert_eq!(machine.read32(offset), 0, "EHCI's alone");
    }
}

#[test]
fn the_capability_list_holds_power_management_and_msi_and_ends() {
    let mut machine = Machine::ehci();
    assert_eq!(machine.read16(STATUS) & 0x10, 0x10);
    let mut ids = Vec::new();
    let mut at = machine.read8(0x34);
    while at != 0 && ids.len() < 10 {
        let [id, next] = machine.read(at.into());
        ids.push(id);
        at = next;
    }
    assert_eq!(ids, [0x01, 0x05], "EHCI-CAP-7: legacy support is not in it");
}

#[test]
fn the_bar_answers_only_while_memory_space_is_enabled() {
    let mut machine = Machine::ehci();
    machine.set_register(DOORBELL, 1);
    assert_eq!(machine.register(USBSTS), !0, "nobody there");
    machine.write16(COMMAND, MEMORY_AND_MASTER);
    assert_eq!(machine.register(USBSTS), 0, "and the write was lost");
    machine.set_register(DOORBELL, 1);
    assert_eq!(machine.register(USBSTS), 1);
    assert_eq!(machine.register(0xffe), 0, "past the registers");
    machine.set_register(u64::MAX, 1);
}

#[test]
fn the_pin_follows_the_condition_until_it_is_disabled() {
    let mut machine = Machine::enabled();
    machine.set_register(DOORBELL, 1);
    assert!(machine.function.line().level);
    assert_eq!(machine.read16(STATUS) & 8, 8);

    // EHCI-INT-15
    machine.write16(COMMAND, MEMORY_AND_MASTER | INTERRUPT_DISABLE);
    assert!(!machine.function.line().level);
    assert_eq!(machine.read16(STATUS) & 8, 8, "status still follows");
    machine.write16(COMMAND, MEMORY_AND_MASTER);
    assert!(machine.function.line().level, "driven again while pending");

    machine.set_register(USBSTS, 1);
    assert!(!machine.function.line().level);
    assert_eq!(machine.read16(STATUS) & 8, 0);
    assert_eq!(machine.function.line().changes, 4, "told of changes only");
    assert_eq!(machine.function.line().messages, []);
}

#[test]
fn msi_sends_one_message_an_event_and_keeps_the_pin_quiet() {
    let mut machine = Machine::enabled();
    machine.enable_msi();
    machine.set_register(DOORBELL, 1);
    machine.set_register(DOORBELL, 2);
    let message = (0x1_fee0_1004, 0x4042);
    assert_eq!(machine.function.line().messages, [message], "one rise");
    machine.set_register(USBSTS, 3);
    machine.set_register(DOORBELL, 1);
    assert_eq!(machine.function.line().messages, [message; 2]);
    assert_eq!(machine.function.line().changes, 0);
    assert_eq!(machine.read16(STATUS) & 8, 8);
}

#[test]
fn turning_msi_on_over_a_pending_condition_moves_it_from_the_pin_to_a_message() {
    let mut machine = Machine::enabled();
    machine.set_register(DOORBELL, 1);
    assert!(machine.function.line().level);
    machine.enable_msi();
    assert!(!machine.function.line().level);
    assert_eq!(machine.function.line().messages.len(), 1);
    machine.write16(MSI + 2, 0);
    assert!(machine.function.line().level, "and back");
}

#[test]
fn without_bus_mastering_no_memory_is_touched_and_no_message_sent() {
    let mut machine = Machine::enabled();
    machine.enable_msi();
    machine.function.run(&machine.memory, machine.now);
    let turns = machine.turns();
    machine.write16(COMMAND, 0x2);
    machine.set_register(DOORBELL, 1);
    machine.function.run(&machine.memory, machine.now);
    assert_eq!(machine.turns(), turns, "EHCI-PM-5");
    assert_eq!(machine.function.line().messages, []);
    let later = machine.now.after_millis(1);
    assert_eq!(machine.function.deadline(), Some(later), "what cannot proceed does not spin");

    machine.write16(COMMAND, MEMORY_AND_MASTER);
    assert_eq!(machine.turns(), turns + 1, "the schedules go on at once");
    assert_eq!(machine.function.line().messages.len(), 1, "told now");
    assert_eq!(machine.function.deadline(), Some(Time::ZERO));
}

#[test]
fn d3hot_stops_dma_and_interrupts_and_loses_nothing() {
    let mut machine = Machine::enabled();
    machine.write32(BAR0, 0xfebf_1000);
    machine.set_register(DOORBELL, 1);
    let turns = machine.turns();

    machine.write16(PMCSR, 3);
    assert_eq!(machine.read16(PMCSR), 0x0b, "D3hot, No_Soft_Reset");
    assert!(!machine.function.line().level, "EHCI-PM-2");
    assert_eq!(machine.register(USBSTS), !0);
    machine.function.run(&machine.memory, machine.now);
    assert_eq!(machine.turns(), turns);

    machine.write16(PMCSR, 1);
    assert_eq!(machine.read16(PMCSR) & 3, 3, "no D1: the write is discarded");

    machine.write16(PMCSR, 0);
    assert_eq!(machine.register(USBSTS), 1, "every register is kept");
    assert_eq!(machine.read32(BAR0), 0xfebf_1000);
    assert!(machine.function.line().level);
    assert_eq!(machine.turns(), turns + 1);
}

#[test]
fn a_wakeup_in_d3hot_becomes_a_pme_if_enabled() {
    let mut machine = Machine::enabled();
    machine.function.controller_mut().wakeup = true;
    machine.function.run(&machine.memory, machine.now);
    assert_eq!(machine.read16(PMCSR) & 0x8000, 0, "awake already");

    machine.write16(PMCSR, 3);
    machine.function.controller_mut().wakeup = true;
    machine.function.run(&machine.memory, machine.now);
    assert_eq!(machine.read16(PMCSR), 0x800b, "EHCI-PM-3");
    assert!(!machine.function.line().pme, "not enabled");
    machine.write(PMCSR + 1, &[1]);
    assert!(machine.function.line().pme);
    machine.write16(PMCSR, 0x8100);
    assert!(!machine.function.line().pme);
    assert_eq!(machine.read16(PMCSR), 0x0108, "acknowledged, in D0");
}

#[test]
fn ehci_says_which_bus_it_serves_and_how_long_its_frames_are() {
    let mut machine = Machine::ehci();
    assert_eq!(machine.read::<4>(0x60), [0x20, 0x20, 0x01, 0x00]);
    machine.write32(0x60, !0);
    assert_eq!(machine.read::<4>(0x60), [0x20, 0x3f, 0xff, 0xff]);
}

#[test]
fn the_handoff_is_one_byte_write_and_succeeds_at_once() {
    let mut machine = Machine::enabled();
    assert_eq!(machine.read32(USBLEGSUP), 0x0000_0001, "nobody owns it");
    machine.write(USBLEGSUP + 2, &[1]);
    assert_eq!(machine.read32(USBLEGSUP), 0x0001_0001, "firmware");
    machine.write(USBLEGSUP + 3, &[1]);
    assert_eq!(machine.read32(USBLEGSUP), 0x0100_0001, "EHCI-CAP-9");
    assert_eq!(machine.read32(USBLEGCTLSTS) >> 24, 0x60, "29 and 30");

    machine.write16(PMCSR, 3);
    machine.write16(PMCSR, 0);
    assert_eq!(machine.read32(USBLEGSUP), 0x0100_0001, "kept in D3hot");

    machine.write32(USBLEGCTLSTS, 0);
    assert_eq!(machine.read32(USBLEGCTLSTS) >> 24, 0x60, "not cleared by 0");
    machine.write32(USBLEGCTLSTS, !0);
    assert_eq!(machine.read32(USBLEGCTLSTS), 0x0000_e03f);
    machine.write32(BAR0, 0);
    machine.set_register(DOORBELL, 0x15);
    assert_eq!(machine.read32(USBLEGCTLSTS), 0x8015_e03f, "copy of USBSTS");
}

#[test]
fn reset_starts_everything_again() {
    let mut machine = Machine::enabled();
    machine.enable_msi();
    machine.write32(BAR0, 0xfebf_1000);
    machine.write(USBLEGSUP + 3, &[1]);
    machine.write16(MSI + 2, 0);
    machine.set_register(DOORBELL, 1);
    assert!(machine.function.line().level);

    machine.function.reset(machine.now);
    assert!(!machine.function.line().level);
    assert_eq!(machine.read32(COMMAND), 0x0010_0000);
    assert_eq!(machine.read32(BAR0), 0);
    assert_eq!(machine.read32(USBLEGSUP), 1);
    assert_eq!(machine.read16(MSI + 2), 0x0080);
    assert_eq!(machine.read::<4>(0xfe), [0; 4], "the end of the space");
}

#[test]
fn accesses_interrupts_and_runs_are_counted_whichever_way_interrupts_go() {
    let mut machine = Machine::enabled();
    assert_eq!(machine.function.statistics().runs, 1, "when the function was enabled");
    machine.register(USBSTS);
    machine.register(USBSTS);
    machine.set_register(DOORBELL, 1);
    let counts = machine.function.statistics();
    assert_eq!((counts.register_reads, counts.register_writes), (2, 1));
    assert_eq!(counts.interrupts, 1, "the pin rose");
    machine.set_register(USBSTS, 1);
    assert_eq!(machine.function.statistics().interrupts, 1, "it fell");
    machine.enable_msi();
    machine.set_register(DOORBELL, 1);
    assert_eq!(machine.function.statistics().interrupts, 2, "a message");
    machine.function.run(&machine.memory, machine.now);
    machine.function.reset(machine.now);
    let counts = machine.function.statistics();
    assert_eq!((counts.register_writes, counts.interrupts, counts.runs), (3, 2, 2));
}
