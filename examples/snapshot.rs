//! A machine that is paused, saved, thrown away and restored in another, with a transfer under way.
//!
//! Run it with `cargo run --example snapshot`.

use std::error::Error;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vm_usb::devices::hid::{Key, Keyboard, KeyboardHandle};
use vm_usb::ohci::Ohci;
use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
use vm_usb::snapshot::{self, Snapshot};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::Speed;

type Function = PciFunction<GuestMemoryMmap, Ohci, Line>;

/// The level of the interrupt pin.
#[derive(Default)]
struct Line(bool);

impl InterruptLine for Line {
    fn set_level(&mut self, asserted: bool) {
        self.0 = asserted;
    }

    fn message(&mut self, _address: u64, _data: u32) {}
}

/// The machine as its owner builds it, each time alike: a controller, its ports, what is in them.
struct Machine {
    function: Function,
    port: Port,
    keyboard: KeyboardHandle,
    now: Time,
}

impl Machine {
    fn build(now: Time) -> Result<Self, Box<dyn Error>> {
        let port = Port::classic();
        let device = Keyboard::new(Speed::Full);
        let keyboard = device.handle();
        port.attach(Box::new(device))?;
        let ohci = Ohci::new(vec![port.link(Host::Classic)]);
        let function =
            PciFunction::new(Identity::ohci(), Placement::default(), ohci, Line::default());
        Ok(Self { function, port, keyboard, now })
    }

    /// A VMM pauses before this: no vCPU runs, and its loop calls no function.
    fn save(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        Ok(snapshot::save(self.now, &[("ohci", &self.function), ("port 1", &self.port)])?)
    }

    /// And before this. Then it resumes: runs each function once, and lets its vCPUs go on.
    fn restore(&mut self, saved: &[u8], memory: &GuestMemoryMmap) -> Result<(), Box<dyn Error>> {
        let Self { function, port, now, .. } = self;
        let parts: &mut [(&str, &mut dyn Snapshot)] = &mut [("ohci", function), ("port 1", port)];
        snapshot::restore(saved, *now, parts)?;
        function.run(memory, *now);
        Ok(())
    }

    /// The VMM's loop.
    fn advance(&mut self, memory: &GuestMemoryMmap, millis: u64) {
        let end = self.now.after_millis(millis);
        while let Some(deadline) = self.function.deadline().filter(|deadline| *deadline <= end) {
            self.now = deadline.max(self.now.after_nanos(1_000));
            self.function.run(memory, self.now);
        }
        self.now = end;
        self.function.run(memory, end);
    }

    fn write(&mut self, memory: &GuestMemoryMmap, register: u64, value: u32) {
        self.function.bar_write(memory, self.now, register, &value.to_le_bytes());
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // Guest memory is the VMM's to save and to restore; here it just stays.
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)])?;
    let mut old = Machine::build(Time::from_nanos(3_600_000_000_000))?;
    guest::start(&mut old, &memory)?;
    assert_eq!(guest::report(&memory)?, None, "the guest waits for a key");

    let saved = old.save()?;
    println!("{} bytes, in the middle of a transfer", saved.len());
    drop(old);

    let mut new = Machine::build(Time::ZERO)?;
    new.restore(&saved, &memory)?;
    new.keyboard.press(Key::from_usage(0x04).ok_or("a key")?)?;
    new.advance(&memory, 20);
    let report = guest::report(&memory)?.ok_or("the key never arrived")?;
    println!("the restored machine's keyboard reports {report:02x?}");
    assert_eq!(report, [0, 0, 4, 0, 0, 0, 0, 0]);
    assert!(new.function.line().0, "and its controller interrupts");

    // A snapshot fits no other machine.
    new.port.detach();
    let error = new.restore(&saved, &memory).expect_err("there is no keyboard");
    println!("{error}");
    Ok(())
}

#[test]
fn the_key_arrives() {
    main().unwrap();
}

/// A driver that configures the keyboard and waits for its first report.
mod guest {
    use super::*;

    // Registers (OHCI 1.0a, 7).
    const CONTROL: u64 = 0x04;
    const COMMAND_STATUS: u64 = 0x08;
    const INTERRUPT_ENABLE: u64 = 0x10;
    const HCCA_POINTER: u64 = 0x18;
    const CONTROL_HEAD: u64 = 0x20;
    const PORT_STATUS: u64 = 0x54;
    // Where in memory things are.
    const HCCA: u32 = 0x1000;
    const ED: u32 = 0x2000;
    const TDS: [u32; 3] = [0x2010, 0x2020, 0x2030];
    const REQUEST: u32 = 0x3000;
    const REPORT: u32 = 0x3100;

    /// A transfer descriptor: condition code "not accessed", one buffer of `len` bytes.
    fn td(memory: &GuestMemoryMmap, at: u32, control: u32, next: u32, buffer: u32, len: u32) {
        let end = if len == 0 { 0 } else { buffer + len - 1 };
        let start = if len == 0 { 0 } else { buffer };
        put(memory, at, &[0xf << 28 | control, start, next, end]);
    }

    fn put(memory: &GuestMemoryMmap, address: u32, words: &[u32]) {
        for (place, word) in (u64::from(address)..).step_by(4).zip(words) {
            memory.write_obj(*word, GuestAddress(place)).expect("is RAM");
        }
    }

    /// SETUP and status of a request without data.
    fn request(machine: &mut Machine, memory: &GuestMemoryMmap, address: u32, setup: [u32; 2]) {
        let [first, second, tail] = TDS;
        put(memory, REQUEST, &setup);
        td(memory, first, 2 << 24, second, REQUEST, 8);
        td(memory, second, 2 << 19 | 3 << 24, tail, 0, 0);
        put(memory, ED, &[64 << 16 | address, tail, first, 0]);
        machine.write(memory, CONTROL_HEAD, ED);
        machine.write(memory, COMMAND_STATUS, 2);
        machine.advance(memory, 5);
    }

    pub(super) fn start(
        machine: &mut Machine,
        memory: &GuestMemoryMmap,
    ) -> Result<(), Box<dyn Error>> {
        machine.function.config_write(memory, machine.now, 4, &[6, 0]);
        machine.write(memory, HCCA_POINTER, HCCA);
        // USBOPERATIONAL with all lists, and the port's reset.
        machine.write(memory, CONTROL, 0xbc);
        machine.write(memory, PORT_STATUS, 1 << 4);
        machine.advance(memory, 20);
        request(machine, memory, 0, [0x0001_0500, 0]);
        request(machine, memory, 1, [0x0001_0900, 0]);
        // SET_IDLE(0): a report for every change, and no other.
        request(machine, memory, 1, [0x0000_0a21, 0]);
        // The interrupt endpoint in every frame: ED 1 IN, packets of 8 bytes.
        let [first, tail, _] = TDS;
        td(memory, first, 1 << 18, tail, REPORT, 8);
        put(memory, ED, &[8 << 16 | 2 << 11 | 1 << 7 | 1, tail, first, 0]);
        put(memory, HCCA, &[ED; 32]);
        // WritebackDoneHead.
        machine.write(memory, INTERRUPT_ENABLE, 1 << 31 | 1 << 1);
        machine.advance(memory, 50);
        Ok(())
    }

    /// The report, once the descriptor is retired.
    pub(super) fn report(memory: &GuestMemoryMmap) -> Result<Option<[u8; 8]>, Box<dyn Error>> {
        let [first, ..] = TDS;
        let control: u32 = memory.read_obj(GuestAddress(first.into()))?;
        let mut report = [0; 8];
        memory.read_slice(&mut report, GuestAddress(REPORT.into()))?;
        Ok((control >> 28 == 0).then_some(report))
    }
}
