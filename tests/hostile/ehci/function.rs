//! Configuration space while the schedules run.

use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_usb::ehci::Ehci;
use vm_usb::pci::{Identity, PciFunction, Placement};
use vm_usb::time::Time;
use vm_usb::topology::Port;

use super::pci::{Line, Pci};
use super::*;
use crate::driver::ehci::{HEAD, port};
use crate::driver::recorder::Recorder;

/// A function whose guest memory counts, with a ring of one busy queue head.
struct Counted {
    function: PciFunction<Recorder<'static>, Ehci, Line>,
    memory: &'static GuestMemoryMmap,
    now: Time,
}

impl Counted {
    /// Calls the function, and says how often it accessed memory.
    fn call(&mut self, action: impl FnOnce(&mut Self, &Recorder<'static>)) -> u64 {
        let recorder = Recorder::new(self.memory);
        action(self, &recorder);
        recorder.into_log().len() as u64
    }

    fn config(&mut self, offset: u64, value: u32) -> u64 {
        let bytes = value.to_le_bytes();
        self.call(|this, memory| this.function.config_write(memory, this.now, offset, &bytes))
    }

    fn register(&mut self, offset: u64, value: u32) -> u64 {
        let bytes = value.to_le_bytes();
        self.call(|this, memory| this.function.bar_write(memory, this.now, offset, &bytes))
    }

    fn run(&mut self, micros: u64) -> u64 {
        self.now = self.now.after_micros(micros);
        self.call(|this, memory| this.function.run(memory, this.now))
    }
}

#[test]
fn ehci_hg_36_configuration_space_stops_what_it_says_it_stops() {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
    let memory: &'static GuestMemoryMmap = Box::leak(Box::new(memory));
    let ports = [Port::high_speed_only()];
    let function = PciFunction::new(
        Identity::ehci(),
        Placement::default(),
        controller(&ports),
        Line::default(),
    );
    let mut f = Counted { function, memory, now: Time::from_nanos(1_000_000_000) };
    f.config(4, 6);
    for (n, word) in
        [0x1000 | QUEUE_HEAD, HEAD | 99, 1 << 30, 0, TERMINATE, TERMINATE, 0x80 | 8 << 16]
            .into_iter()
            .enumerate()
    {
        use vm_memory::Bytes;
        memory.write_obj(word, GuestAddress(0x1000 + 4 * n as u64)).unwrap();
    }
    f.register(reg::ASYNCLISTADDR, 0x1000);
    f.register(reg::USBCMD, cmd::RUN | cmd::ASYNCHRONOUS);
    f.register(reg::CONFIGFLAG, 1);
    f.register(reg::PORTSC, port::POWER);
    assert_ne!((0..100).map(|_| f.run(125)).sum::<u64>(), 0, "the ring is looked at");
    // BAR 0 moved over RAM and over the ring: decoding it is the bus's business.
    for address in [0x1000, 0, 0xffff_f000, !0] {
        f.config(0x10, address);
        assert!(f.run(125) <= 4 * VISIT);
    }
    // Bus mastering off, or D3hot: nothing is accessed, whatever else is written.
    let capability = {
        let mut pci = Pci::new(vec![Port::high_speed_only()], Placement::default());
        pci.capability(1).expect("power management")
    };
    for (offset, off, on) in [(4, 2, 6), (capability + 4, 3, 0)] {
        f.config(offset, off);
        let mut accesses = 0;
        for _ in 0..100 {
            accesses += f.register(reg::USBCMD, cmd::RUN | cmd::ASYNCHRONOUS) + f.run(125);
        }
        assert_eq!(accesses, 0, "{offset:#x}");
        f.config(offset, on);
    }
    for n in 0..1_000 {
        assert!(f.config(4, if n % 2 == 0 { 6 } else { 2 }) <= 4 * VISIT);
        assert!(f.config(capability + 4, if n % 3 == 0 { 3 } else { 0 }) <= 4 * VISIT);
    }
    // Leaving D3 has reset the function; it starts as any does.
    f.config(capability + 4, 0);
    f.config(4, 6);
    f.register(reg::ASYNCLISTADDR, 0x1000);
    f.register(reg::USBCMD, cmd::RUN | cmd::ASYNCHRONOUS);
    assert_ne!((0..100).map(|_| f.run(125)).sum::<u64>(), 0);
}
