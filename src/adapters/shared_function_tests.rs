//! An event loop, a vCPU thread and a function between them.

use std::sync::atomic::{AtomicU32, Ordering};

use event_manager::{EventManager, SubscriberOps};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::super::clockwork::{Clockwork, NoLine};
use super::*;
use crate::pci::{Identity, Placement};

const COMMAND: u64 = 0x04;
const BAR0: u64 = 0x10;
const MEMORY_AND_MASTER: [u8; 2] = [0x06, 0];
const BAR: u32 = 0xfebf_0000;

/// How long a loop waits for something that must come, and for something that must not, in ms.
const MUST_COME: i32 = 10_000;
const MUST_NOT_COME: i32 = 50;

type Function = SharedFunction<Arc<GuestMemoryMmap>, Clockwork, NoLine>;

/// A function whose BAR the guest has placed, and a loop that it is added to.
struct Machine {
    function: Arc<Function>,
    turns: Arc<AtomicU32>,
    events: EventManager<Arc<Function>>,
}

impl Machine {
    fn new() -> Self {
        let controller = Clockwork::default();
        let turns = controller.turns.clone();
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let function = PciFunction::new(Identity::ehci(), Placement::default(), controller, NoLine);
        let function =
            SharedFunction::new(function, Arc::new(memory), MonotonicClock::new()).unwrap();
        let function = Arc::new(function);
        function.config_write(BAR0, &BAR.to_le_bytes());
        function.config_write(COMMAND, &MEMORY_AND_MASTER);
        turns.store(0, Ordering::SeqCst);
        let mut events = EventManager::new().unwrap();
        events.add_subscriber(function.clone());
        Self { function, turns, events }
    }

    fn turns(&self) -> u32 {
        self.turns.load(Ordering::SeqCst)
    }

    fn set_deadline(&self, micros: u32) {
        assert!(self.function.mmio_write(BAR.into(), &micros.to_le_bytes()));
    }

    /// Lets the loop work until the controller has had another turn.
    fn run_to_next_turn(&mut self) {
        let before = self.turns();
        while self.turns() == before {
            let events = self.events.run_with_timeout(MUST_COME).unwrap();
            assert_ne!(events, 0, "the loop slept through a deadline");
        }
    }

    fn assert_quiet(&mut self) {
        assert_eq!(self.events.run_with_timeout(MUST_NOT_COME).unwrap(), 0);
    }
}

#[test]
fn a_controller_without_a_deadline_leaves_the_loop_asleep() {
    let mut machine = Machine::new();
    machine.assert_quiet();
    assert_eq!(machine.turns(), 0);
}

#[test]
fn a_deadline_set_by_a_register_write_runs_the_controller_once() {
    let mut machine = Machine::new();
    machine.set_deadline(2_000);
    machine.run_to_next_turn();
    machine.assert_quiet();
    assert_eq!(machine.turns(), 1);
}

#[test]
fn a_deadline_that_is_past_already_runs_the_controller_at_once() {
    let mut machine = Machine::new();
    machine.set_deadline(0);
    machine.run_to_next_turn();
    machine.assert_quiet();
    assert_eq!(machine.turns(), 1);
}

#[test]
fn an_earlier_deadline_replaces_a_later_one() {
    let mut machine = Machine::new();
    machine.set_deadline(3_600_000_000);
    machine.set_deadline(1_000);
    machine.run_to_next_turn();
}

#[test]
fn a_deadline_that_moved_away_is_not_met_early() {
    let mut machine = Machine::new();
    machine.set_deadline(1_000);
    machine.set_deadline(3_600_000_000);
    assert_eq!(machine.events.run_with_timeout(MUST_COME).unwrap(), 1, "the timer left alone");
    assert_eq!(machine.turns(), 0, "but it is not time yet");
    machine.assert_quiet();
}

#[test]
fn a_device_wakes_the_loop_from_another_thread() {
    let mut machine = Machine::new();
    let wake = machine.function.wake();
    let device = std::thread::spawn(move || wake.wake());
    machine.run_to_next_turn();
    device.join().unwrap();
    machine.assert_quiet();
    assert_eq!(machine.turns(), 1);
}

#[test]
fn only_addresses_in_the_bar_are_the_functions() {
    let machine = Machine::new();
    let mut data = [0; 4];
    assert!(machine.function.mmio_read(u64::from(BAR) + 0xffc, &mut data));
    assert!(!machine.function.mmio_read(u64::from(BAR) + 0x1000, &mut data));
    assert!(!machine.function.mmio_read(u64::from(BAR) - 4, &mut data));
    assert!(machine.function.mmio_read(BAR.into(), &mut data));
    assert_eq!(data, [0x5a; 4]);
    machine.function.config_write(COMMAND, &[0, 0]);
    assert!(!machine.function.mmio_read(BAR.into(), &mut data), "memory space is disabled");
}

#[test]
fn a_paused_function_keeps_others_waiting_and_goes_on_with_a_turn() {
    let machine = Machine::new();
    let paused = machine.function.pause();
    assert!(paused.now() >= Time::ZERO);
    let vcpu = machine.function.clone();
    let vcpu = std::thread::spawn(move || vcpu.mmio_write(BAR.into(), &1_u32.to_le_bytes()));
    assert_eq!(machine.turns(), 0);
    assert_eq!(paused.function().controller().deadline, None, "the write waits");
    drop(paused);
    assert!(vcpu.join().unwrap());
    assert!(machine.turns() >= 1);
}
