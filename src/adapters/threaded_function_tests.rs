//! A vCPU thread, a device and the thread of a function.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::super::clockwork::{Clockwork, NoLine};
use super::*;
use crate::pci::{Identity, Placement};

/// How many looks, of 1 ms, something that must come is given, and something that must not.
const MUST_COME: u32 = 10_000;
const MUST_NOT_COME: u32 = 50;

const HOUR: u32 = 3_600_000_000;

struct Machine {
    function: ThreadedFunction<Arc<GuestMemoryMmap>, Clockwork, NoLine>,
    turns: Arc<AtomicU32>,
}

impl Machine {
    /// A function that the guest has switched on, at rest.
    fn new() -> Self {
        let controller = Clockwork::default();
        let turns = controller.turns.clone();
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let function = PciFunction::new(Identity::ehci(), Placement::default(), controller, NoLine);
        let clock = MonotonicClock::new();
        let function = ThreadedFunction::new("usb", function, Arc::new(memory), clock).unwrap();
        function.config_write(0x04, &[0x06, 0]);
        turns.store(0, Ordering::SeqCst);
        Self { function, turns }
    }

    fn set_deadline(&self, micros: u32) {
        self.function.bar_write(0, &micros.to_le_bytes());
    }

    #[track_caller]
    fn assert_turns(&self, turns: u32) {
        for _ in 0..MUST_COME {
            if self.turns.load(Ordering::SeqCst) >= turns {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(MUST_NOT_COME.into()));
        assert_eq!(self.turns.load(Ordering::SeqCst), turns);
    }
}

#[test]
fn a_controller_without_a_deadline_has_no_turn() {
    Machine::new().assert_turns(0);
}

#[test]
fn a_deadline_set_by_a_register_write_gives_one_turn() {
    let machine = Machine::new();
    machine.set_deadline(2_000);
    machine.assert_turns(1);
    machine.set_deadline(0);
    machine.assert_turns(2);
}

#[test]
fn an_earlier_deadline_replaces_a_later_one_and_a_later_one_an_earlier_one() {
    let machine = Machine::new();
    machine.set_deadline(HOUR);
    machine.set_deadline(1_000);
    machine.assert_turns(1);
    machine.function.with(|function, memory, now| {
        function.bar_write(memory, now, 0, &0_u32.to_le_bytes());
        function.bar_write(memory, now, 0, &HOUR.to_le_bytes());
    });
    machine.assert_turns(1);
}

#[test]
fn a_device_rings_from_another_thread_and_from_inside_a_call() {
    let machine = Machine::new();
    let wake = machine.function.wake();
    thread::spawn(move || wake.wake()).join().unwrap();
    machine.assert_turns(1);
    let wake = machine.function.wake();
    machine.function.with(|_, _, _| wake.wake());
    machine.assert_turns(2);
}

#[test]
fn nothing_runs_while_it_is_paused_and_nothing_is_forgotten() {
    let machine = Machine::new();
    machine.function.pause();
    machine.set_deadline(0);
    machine.function.wake().wake();
    machine.assert_turns(0);
    machine.function.resume();
    machine.assert_turns(1);
}

#[test]
fn dropping_it_ends_the_thread_and_the_function() {
    let machine = Machine::new();
    machine.set_deadline(HOUR);
    drop(machine.function);
    assert_eq!(Arc::strong_count(&machine.turns), 1);
}

#[test]
fn the_guest_reaches_configuration_space_and_registers() {
    let machine = Machine::new();
    let mut data = [0; 4];
    machine.function.bar_read(0, &mut data);
    assert_eq!(data, [0x5a; 4]);
    machine.function.config_read(0x04, &mut data);
    assert_eq!(data[0], 0x06);
    machine.function.reset();
    machine.function.config_read(0x04, &mut data);
    assert_eq!(data[0], 0, "memory space and bus mastering are off after a reset");
}
