//! A guest's side of a controller, where every call is held against the rules.

use std::collections::BTreeSet;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vm_usb::controller::{Context, HostController};
use vm_usb::time::Time;

use crate::driver::recorder::{Access, Recorder};

/// Guest RAM, from address 0.
pub const RAM: u32 = 4 << 20;
const PAGE: u32 = 0x1000;
/// Largest structure of either controller, a queue head with 64-bit pointers.
const STRUCTURE: usize = 0x60;

/// Most turns at one moment that find nothing to write: a controller that still asks for another one
/// then has its owner spin.
const IDLE_TURNS: u32 = 4;
/// Most turns tried at one moment; a guest may well have more work than that in its lists.
const TURNS: u32 = 16;

/// A controller whose guest can be watched.
pub trait Model: HostController<GuestMemoryMmap> + for<'a> HostController<Recorder<'a>> {
    /// Most accesses to guest memory in one call.
    const MOST_ACCESSES: usize;
    /// Registers that hold addresses of guest memory.
    const ADDRESSES: &'static [u64];

    /// Asserts that the interrupt line is what the registers say.
    fn check_line(guest: &mut Guest<Self>)
    where
        Self: Sized;
}

/// Pages of RAM.
struct Pages(Vec<bool>);

impl Pages {
    fn none(ram: u32) -> Self {
        Self(vec![false; (ram / PAGE) as usize])
    }

    fn add(&mut self, address: u32) {
        if let Some(page) = self.0.get_mut((address / PAGE) as usize) {
            *page = true;
        }
    }

    fn has(&self, page: u64) -> bool {
        self.0.get(page as usize).copied().unwrap_or(true)
    }
}

/// A controller, its guest's memory, and the time.
pub struct Guest<C> {
    pub controller: C,
    memory: GuestMemoryMmap,
    pub now: Time,
    /// PCI bus mastering.
    pub bus_master: bool,
    /// The interrupt line after the last call.
    pub line: bool,
    /// Every page that a dword in a register or in guest memory has ever named.
    named: Pages,
    /// Accesses of the last call, and those of them that wrote.
    accesses: (usize, usize),
}

impl<C: Model> Guest<C> {
    pub fn new(controller: C) -> Self {
        Self::with_ram(controller, RAM)
    }

    /// With so many bytes of RAM from address 0. Those that nobody touches take no memory.
    pub fn with_ram(controller: C, ram: u32) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), ram as usize)]).unwrap();
        let mut named = Pages::none(ram);
        // Registers and memory begin as zeroes.
        named.add(0);
        Self {
            controller,
            memory,
            now: Time::from_nanos(1_000_000_000),
            bus_master: true,
            line: false,
            named,
            accesses: (0, 0),
        }
    }

    /// A controller that goes on from a snapshot: whatever its guest named before counts.
    pub fn restored(controller: C, memory: &[u8], now: Time) -> Self {
        let mut guest = Self::new(controller);
        guest.memory.write_slice(memory, GuestAddress(0)).unwrap();
        guest.named.0.fill(true);
        guest.now = now;
        guest
    }

    /// One call of the controller. Its work is bounded, and it writes where a descriptor said.
    fn call(&mut self, action: impl FnOnce(&mut C, &Context<'_, Recorder<'_>>)) {
        let recorder = Recorder::new(&self.memory);
        let context = if self.bus_master {
            Context::new(&recorder, self.now)
        } else {
            Context::without_dma(self.now)
        };
        action(&mut self.controller, &context);
        let log = recorder.into_log();
        self.line = HostController::<GuestMemoryMmap>::interrupt(&mut self.controller).asserted;
        assert!(log.len() <= C::MOST_ACCESSES, "{} accesses to memory in one call", log.len());
        let writes = self.check_writes(&log);
        self.accesses = (log.len(), writes);
    }

    /// Asserts that whatever was written lies where some dword points; what was written may name more.
    fn check_writes(&mut self, log: &[Access]) -> usize {
        let mut written = BTreeSet::new();
        let mut count = 0;
        for access in log.iter().filter(|access| access.write && access.len != 0) {
            count += 1;
            let last = access.address.saturating_add(access.len as u64 - 1);
            let pages = access.address / u64::from(PAGE)..=last / u64::from(PAGE);
            for page in pages {
                // The tail of a structure may be on the page after the one that was named.
                let tail = access.len <= STRUCTURE && page > 0 && self.named.has(page - 1);
                assert!(self.named.has(page) || tail, "{access:x?} was named by nobody");
                written.insert(page);
            }
        }
        for page in written {
            self.read_names(page * u64::from(PAGE), PAGE as usize);
        }
        count
    }

    /// Whatever dword is there now may be an address.
    fn read_names(&mut self, address: u64, len: usize) {
        let mut bytes = [0; PAGE as usize];
        for start in (0..len).step_by(bytes.len()) {
            let bytes = &mut bytes[..PAGE.min((len - start) as u32) as usize];
            // A controller may have tried to write where there is no RAM.
            let at = GuestAddress(address + start as u64);
            if self.memory.read_slice(bytes, at).is_ok() {
                for dword in bytes.as_chunks().0 {
                    self.named.add(u32::from_le_bytes(*dword));
                }
            }
        }
    }

    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.call(|controller, context| controller.read(context, offset, data));
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if let Ok(dword) = data.try_into()
            && offset.is_multiple_of(4)
        {
            self.named.add(u32::from_le_bytes(dword));
            self.call(|controller, context| controller.write(context, offset, data));
            return;
        }
        // Other sizes make addresses of parts: what they come to is known afterwards.
        self.without_dma(|guest| {
            guest.call(|controller, context| controller.write(context, offset, data));
            for register in C::ADDRESSES {
                let address = guest.read32(*register);
                guest.named.add(address);
            }
        });
        self.run();
    }

    pub fn read32(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.read(offset, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write32(&mut self, offset: u64, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }

    /// Does something with bus mastering off.
    pub fn without_dma<R>(&mut self, action: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.bus_master, false);
        let result = action(self);
        self.bus_master = before;
        result
    }

    pub fn reset(&mut self) {
        HostController::<GuestMemoryMmap>::reset(&mut self.controller, self.now);
        self.run();
    }

    /// Stores a dword, if there is RAM.
    pub fn store(&mut self, address: u32, value: u32) {
        self.named.add(value);
        let _ = self.memory.write_slice(&value.to_le_bytes(), GuestAddress((address & !3).into()));
    }

    pub fn store_all(&mut self, address: u32, values: &[u32]) {
        for (at, value) in (address..).step_by(4).zip(values) {
            self.store(at, *value);
        }
    }

    /// Stores bytes, as far as there is RAM.
    pub fn store_bytes(&mut self, address: u32, bytes: &[u8]) {
        let _ = self.memory.write(bytes, GuestAddress(address.into()));
        let start = address & !3;
        self.read_names(
            start.into(),
            (bytes.len() + (address - start) as usize).next_multiple_of(4),
        );
    }

    pub fn deadline(&self) -> Option<Time> {
        HostController::<GuestMemoryMmap>::deadline(&self.controller)
    }

    pub fn run(&mut self) {
        self.call(|controller, context| controller.run(context));
    }

    /// Lets time pass, with a turn at the first deadlines of it and one at its end.
    pub fn pass(&mut self, nanos: u64, deadlines: usize) {
        let end = self.now.after_nanos(nanos);
        for _ in 0..deadlines {
            let Some(deadline) = self.deadline().filter(|deadline| *deadline <= end) else { break };
            self.now = deadline.max(self.now.after_nanos(100)).min(end);
            self.run();
        }
        self.now = end;
        self.settle();
    }

    /// Runs until the controller is done with the present, and asserts that it comes to that.
    pub fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..TURNS {
            self.run();
            let now = self.now;
            // Whoever cannot reach memory is asked again no sooner than its owner likes.
            if !self.bus_master || self.deadline().is_none_or(|deadline| deadline > now) {
                return;
            }
            idle = if self.accesses.1 == 0 { idle + 1 } else { 0 };
            assert!(idle < IDLE_TURNS, "asks to run at once, again and again, and does nothing");
        }
    }

    /// What holds between any two steps.
    pub fn check(&mut self) {
        C::check_line(self);
    }
}
