//! An EHCI controller in a VMM built on `event-manager`, in sixty lines; the rest plays the guest.
//!
//! Run it with `cargo run --example embed --features event-manager`.

use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use event_manager::{EventManager, EventSubscriber, SubscriberOps};
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_usb::adapters::{MonotonicClock, SharedFunction};
use vm_usb::devices::storage::{RamDisk, Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
use vm_usb::topology::{Host, Port};

type Function = SharedFunction<Arc<GuestMemoryMmap>, Ehci, Line>;
type Subscriber = Arc<dyn EventSubscriber + Send + Sync>;

/// Where the function's interrupts go. A VMM on KVM takes `adapters::KvmInterrupt`.
struct Line(Sender<()>);

impl InterruptLine for Line {
    fn set_level(&mut self, asserted: bool) {
        if asserted {
            let _ = self.0.send(());
        }
    }

    fn message(&mut self, _address: u64, _data: u32) {
        let _ = self.0.send(());
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let memory = Arc::new(GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)])?);

    // A socket with a disk in it, a controller wired to the socket, a PCI function around it.
    let port = Port::high_speed_only();
    port.attach(Box::new(Storage::new(RamDisk::zeroed(2048), Serial::from_name("disk"))))?;
    let ehci = Ehci::new(vec![port.link(Host::High)]);
    let (line, interrupts) = channel();
    let function = PciFunction::new(Identity::ehci(), Placement::default(), ehci, Line(line));

    // vCPU threads and the event loop share the function; devices wake the loop.
    let function = SharedFunction::new(function, memory.clone(), MonotonicClock::new())?;
    let function = Arc::new(function);
    port.subscribe(function.wake());

    // The VMM's event loop.
    let mut events = EventManager::<Subscriber>::new().map_err(|error| format!("{error:?}"))?;
    events.add_subscriber(function.clone());
    thread::spawn(move || while events.run().is_ok() {});

    // A vCPU: config_read, config_write, mmio_read, mmio_write.
    guest::run(&function, &memory, &interrupts);
    Ok(())
}

#[test]
fn the_disk_enumerates() {
    main().unwrap();
}

/// A driver that asks the device in port 1 who it is.
mod guest {
    use std::time::Duration;

    use vm_memory::Bytes;

    use super::*;

    const BAR: u32 = 0xfe00_0000;
    // Operational registers, from CAPLENGTH on (EHCI 2.3).
    const USBCMD: u64 = 0x00;
    const USBSTS: u64 = 0x04;
    const USBINTR: u64 = 0x08;
    const ASYNCLISTADDR: u64 = 0x18;
    const CONFIGFLAG: u64 = 0x40;
    const PORTSC: u64 = 0x44;
    // Where in memory things are.
    const QUEUE_HEAD: u32 = 0x1000;
    const DESCRIPTORS: [u32; 3] = [0x2000, 0x2040, 0x2080];
    const REQUEST: u32 = 0x3000;
    const ANSWER: u32 = 0x3100;
    /// No next descriptor.
    const END: u32 = 1;

    pub(super) fn run(function: &Function, memory: &GuestMemoryMmap, interrupts: &Receiver<()>) {
        // Find it, place BAR 0, switch on memory space and bus mastering.
        let mut class = [0; 4];
        function.config_read(0x08, &mut class);
        println!("a function of class {:02x}{:02x}{:02x}", class[3], class[2], class[1]);
        function.config_write(0x10, &BAR.to_le_bytes());
        function.config_write(0x04, &[0x06, 0x00]);
        let mut caplength = [0];
        function.mmio_read(BAR.into(), &mut caplength);
        let operational = u64::from(BAR) + u64::from(caplength[0]);
        let write = |register, value: u32| {
            function.mmio_write(operational + register, &value.to_le_bytes());
        };
        let read = |register| {
            let mut value = [0; 4];
            function.mmio_read(operational + register, &mut value);
            u32::from_le_bytes(value)
        };

        // Start it, reset the device.
        write(USBCMD, 0x0008_0001);
        write(CONFIGFLAG, 1);
        write(PORTSC, 0x1000);
        println!("port 1: {}", if read(PORTSC) & 1 != 0 { "a device" } else { "empty" });
        write(PORTSC, 0x1100);
        thread::sleep(Duration::from_millis(50));
        write(PORTSC, 0x1000);
        while read(PORTSC) & 0x100 != 0 {
            thread::sleep(Duration::from_millis(1));
        }
        println!("port 1: {}", if read(PORTSC) & 4 != 0 { "high speed" } else { "not enabled" });

        // GET_DESCRIPTOR(device, 18 bytes) from address 0: setup, data, status.
        let put = |address: u32, words: &[u32]| {
            for (index, word) in words.iter().enumerate() {
                let address = u64::from(address) + 4 * index as u64;
                memory.write_obj(*word, GuestAddress(address)).expect("is RAM");
            }
        };
        put(REQUEST, &[0x0100_0680, 0x0012_0000]);
        let [setup, data, status] = DESCRIPTORS;
        put(setup, &[data, END, 8 << 16 | 0x0e80, REQUEST]);
        put(data, &[status, status, 1 << 31 | 18 << 16 | 0x0d80, ANSWER]);
        put(status, &[END, END, 1 << 31 | 0x8c80, 0]);
        put(QUEUE_HEAD, &[QUEUE_HEAD | 2, 64 << 16 | 0xe000, 1 << 30, 0, setup, END, 0]);
        write(ASYNCLISTADDR, QUEUE_HEAD);
        write(USBINTR, 1);
        write(USBCMD, 0x0008_0021);
        interrupts.recv().expect("the transfer ends in an interrupt");
        write(USBSTS, read(USBSTS));

        let mut descriptor = [0; 18];
        memory.read_slice(&mut descriptor, GuestAddress(ANSWER.into())).expect("is RAM");
        println!("it says {descriptor:02x?}");
        assert_eq!(descriptor[..2], [18, 1], "a device descriptor");
        let [.., v0, v1, p0, p1, _, _, _, _, _, _] = descriptor;
        let (vendor, product) = (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([p0, p1]));
        println!("device {vendor:04x}:{product:04x} has enumerated");
    }
}
