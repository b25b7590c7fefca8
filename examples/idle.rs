//! What a machine at rest costs: a keyboard behind OHCI and a disk behind EHCI in one event loop, and a guest
//! that waits for a key.
//!
//! Run it with `cargo run --example idle --features event-manager`. It prints how often the event loop has
//! woken up and how much processor time its thread has taken, if the system tells that.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use event_manager::{EventManager, EventSubscriber, SubscriberOps};
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_usb::adapters::{MonotonicClock, SharedFunction};
use vm_usb::controller::HostController;
use vm_usb::devices::hid::Keyboard;
use vm_usb::devices::storage::{RamDisk, Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
use vm_usb::topology::{Host, Port};
use vm_usb::usb::Speed;

type Memory = Arc<GuestMemoryMmap>;
type Function<C> = SharedFunction<Memory, C, NoLine>;
type Subscriber = Arc<dyn EventSubscriber + Send + Sync>;

/// Right after its driver was busy a controller is attentive.
const SETTLE: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(2);
/// Most wakeups a second. A frame timer would make a thousand; a host that is slow makes fewer.
const MOST: f64 = 50.0;

/// This guest looks at its memory instead.
struct NoLine;

impl InterruptLine for NoLine {
    fn set_level(&mut self, _asserted: bool) {}

    fn message(&mut self, _address: u64, _data: u32) {}
}

fn share<C: HostController<GuestMemoryMmap> + 'static>(
    identity: Identity,
    controller: C,
    port: &Port,
    memory: &Memory,
    events: &mut EventManager<Subscriber>,
) -> std::io::Result<Arc<Function<C>>> {
    let function = PciFunction::new(identity, Placement::default(), controller, NoLine);
    let function = SharedFunction::new(function, memory.clone(), MonotonicClock::new())?;
    let function = Arc::new(function);
    port.subscribe(function.wake());
    events.add_subscriber(function.clone());
    Ok(function)
}

fn main() -> Result<(), Box<dyn Error>> {
    let memory = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)])?);
    let mut events = EventManager::<Subscriber>::new().map_err(|error| format!("{error:?}"))?;

    let (classic, high) = (Port::classic(), Port::high_speed_only());
    let keyboard = Keyboard::new(Speed::Low);
    let keys = keyboard.handle();
    classic.attach(Box::new(keyboard))?;
    high.attach(Box::new(Storage::new(RamDisk::zeroed(2048), Serial::from_name("disk"))))?;
    let ohci = Ohci::new(vec![classic.link(Host::Classic)]);
    let ohci = share(Identity::ohci(), ohci, &classic, &memory, &mut events)?;
    let ehci = Ehci::new(vec![high.link(Host::High)]);
    let ehci = share(Identity::ehci(), ehci, &high, &memory, &mut events)?;

    let turns = Arc::new(AtomicU32::new(0));
    // Processor time of the loop's thread in nanoseconds, as of its last turn.
    let spent = Arc::new(AtomicU64::new(0));
    thread::spawn({
        let (turns, spent) = (turns.clone(), spent.clone());
        move || {
            while events.run().is_ok() {
                turns.fetch_add(1, Ordering::Relaxed);
                spent.store(processor_time().unwrap_or(0), Ordering::Relaxed);
            }
        }
    });

    guest::start_disk(&ehci, &memory);
    guest::start_keyboard(&ohci, &memory);
    sleep(SETTLE);
    let (begin, first, before) =
        (Instant::now(), turns.load(Ordering::Relaxed), spent.load(Ordering::Relaxed));
    sleep(WINDOW);
    let seconds = begin.elapsed().as_secs_f64();
    let wakeups = f64::from(turns.load(Ordering::Relaxed) - first) / seconds;
    println!("the event loop has woken up {wakeups:.1} times a second");
    let nanos = spent.load(Ordering::Relaxed) - before;
    if nanos > 0 {
        let percent = nanos as f64 / 1e7 / seconds;
        println!("its thread has taken {percent:.2} % of a processor (of this build)");
    }
    assert!(wakeups < MOST, "too often for a machine at rest");

    keys.press("a".parse()?)?;
    println!("the guest reads key {}", guest::read_key(&memory));
    Ok(())
}

/// Linux: what the scheduler has counted for this thread.
fn processor_time() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    counts.split(' ').next()?.parse().ok()
}

#[test]
fn a_machine_at_rest_hardly_wakes_its_event_loop() {
    main().unwrap();
}

/// Drivers that know what is plugged in, and look at memory and registers once a millisecond.
mod guest {
    use vm_memory::Bytes;

    use super::*;

    const HCCA: u32 = 0x1000;
    const ED: u32 = 0x1200;
    const TDS: [u32; 3] = [0x1300, 0x1310, 0x1320];
    const REQUEST: u32 = 0x1400;
    const INTERRUPT_ED: u32 = 0x1500;
    const INTERRUPT_TDS: [u32; 2] = [0x1510, 0x1520];
    const REPORT: u32 = 0x1600;
    const QUEUE_HEAD: u32 = 0x2000;
    const QTDS: [u32; 3] = [0x2080, 0x20c0, 0x2100];
    const DESCRIPTOR: u32 = 0x2200;

    /// Looks once a millisecond until `done`.
    fn until(mut done: impl FnMut() -> bool) {
        while !done() {
            sleep(Duration::from_millis(1));
        }
    }

    fn put(memory: &GuestMemoryMmap, address: u32, words: &[u32]) {
        for (address, word) in (u64::from(address)..).step_by(4).zip(words) {
            memory.write_obj(*word, GuestAddress(address)).expect("is RAM");
        }
    }

    fn get(memory: &GuestMemoryMmap, address: u32) -> u32 {
        memory.read_obj(GuestAddress(address.into())).expect("is RAM")
    }

    /// BAR 0 of a function, with memory space and bus mastering on.
    struct Registers<'a, C>(&'a Function<C>, u32);

    impl<'a, C: HostController<GuestMemoryMmap>> Registers<'a, C> {
        fn new(function: &'a Function<C>, bar: u32) -> Self {
            function.config_write(0x10, &bar.to_le_bytes());
            function.config_write(0x04, &[0x06, 0x00]);
            Self(function, bar)
        }

        fn write(&self, register: u32, value: u32) {
            self.0.mmio_write((self.1 + register).into(), &value.to_le_bytes());
        }

        fn read(&self, register: u32) -> u32 {
            let mut value = [0; 4];
            self.0.mmio_read((self.1 + register).into(), &mut value);
            u32::from_le_bytes(value)
        }
    }

    /// Configures the keyboard and gives the controller a transfer that waits for a key (OHCI 1.0a, 4 and 7).
    pub(super) fn start_keyboard(function: &Function<Ohci>, memory: &GuestMemoryMmap) {
        const HC_CONTROL: u32 = 0x04;
        const HC_COMMAND_STATUS: u32 = 0x08;
        const HC_RH_PORT_STATUS: u32 = 0x54;
        const OPERATIONAL: u32 = 0x80;
        let registers = Registers::new(function, 0xfe00_0000);
        registers.write(0x18, HCCA);
        registers.write(0x20, ED);
        registers.write(0x34, 0xa778_2edf);
        registers.write(0x40, 0x2a2f);
        registers.write(HC_CONTROL, OPERATIONAL | 0x10);
        registers.write(0x50, 1 << 16);
        until(|| registers.read(HC_RH_PORT_STATUS) & 1 != 0);
        registers.write(HC_RH_PORT_STATUS, 1 << 4);
        until(|| registers.read(HC_RH_PORT_STATUS) >> 20 & 1 != 0);

        // SET_ADDRESS(1), SET_CONFIGURATION(1), SET_IDLE(0): a setup packet and a status stage each.
        for (address, request) in [(0, [0x0001_0500, 0]), (1, [0x0001_0900, 0]), (1, [0x0a21, 0])] {
            let [setup, status, end] = TDS;
            put(memory, REQUEST, &request);
            put(memory, setup, &[0xf2e0_0000, REQUEST, status, REQUEST + 7]);
            put(memory, status, &[0xf3f0_0000, 0, end, 0]);
            put(memory, ED, &[8 << 16 | 1 << 13 | address, end, setup, 0]);
            registers.write(HC_COMMAND_STATUS, 1 << 1);
            until(|| get(memory, ED + 8) & !0xf == end);
            assert_eq!(get(memory, ED + 8) & 1, 0, "the keyboard refuses nothing of this");
            sleep(Duration::from_millis(2));
        }

        // Endpoint 1 IN, asked every 8 ms.
        let [td, end] = INTERRUPT_TDS;
        put(memory, td, &[0xf010_0000, REPORT, end, REPORT + 7]);
        put(memory, INTERRUPT_ED, &[8 << 16 | 1 << 13 | 2 << 11 | 1 << 7 | 1, end, td, 0]);
        for frame in (0..32).step_by(8) {
            put(memory, HCCA + 4 * frame, &[INTERRUPT_ED]);
        }
        registers.write(HC_CONTROL, OPERATIONAL | 1 << 2);
    }

    /// The key in the report that comes.
    pub(super) fn read_key(memory: &GuestMemoryMmap) -> u8 {
        until(|| get(memory, INTERRUPT_ED + 8) & !0xf == INTERRUPT_TDS[1]);
        memory.read_obj(GuestAddress(u64::from(REPORT) + 2)).expect("is RAM")
    }

    /// Reads the disk's device descriptor and switches the schedule off, as drivers do (EHCI 2.3 and 3).
    pub(super) fn start_disk(function: &Function<Ehci>, memory: &GuestMemoryMmap) {
        let registers = Registers::new(function, 0xfe10_0000);
        let operational = registers.read(0) & 0xff;
        let write = |register, value| registers.write(operational + register, value);
        let read = |register| registers.read(operational + register);
        const PORTSC: u32 = 0x44;
        write(0x00, 0x0008_0001);
        write(0x40, 1);
        write(PORTSC, 0x1100);
        sleep(Duration::from_millis(50));
        write(PORTSC, 0x1000);
        until(|| read(PORTSC) & 0x100 == 0);

        let [setup, data, status] = QTDS;
        put(memory, REQUEST, &[0x0100_0680, 0x0012_0000]);
        put(memory, setup, &[data, 1, 8 << 16 | 0x0e80, REQUEST]);
        put(memory, data, &[status, status, 1 << 31 | 18 << 16 | 0x0d80, DESCRIPTOR]);
        put(memory, status, &[1, 1, 1 << 31 | 0x0c80, 0]);
        put(memory, QUEUE_HEAD, &[QUEUE_HEAD | 2, 64 << 16 | 0xe000, 1 << 30, 0, setup, 1, 0]);
        write(0x18, QUEUE_HEAD);
        write(0x00, 0x0008_0021);
        until(|| get(memory, status + 8) & 0x80 == 0);
        assert_eq!(get(memory, DESCRIPTOR) & 0xffff, 0x0112, "a device descriptor");
        write(0x00, 0x0008_0001);
    }
}
