//! The guest's side of a controller: registers, memory and a clock that only moves when told to.

use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap};
use vm_usb::controller::{Context, Frames, HostController, Interrupt};
use vm_usb::time::Time;

use super::lent::Lent;

/// Guest RAM from address 0.
pub const RAM: u32 = 32 << 20;

/// Where the allocator starts: everything below stays zero.
const HEAP: u32 = 1 << 20;

/// What happens to a machine between two calls of its controller: given the controller and the time on
/// its clock, may put another one in its place, and returns the time on that one's clock.
pub type Meanwhile<C> = Box<dyn FnMut(&mut C, Time) -> Time>;

/// What the owner of a controller calls it for.
pub enum Call<'a> {
    Read(u64, &'a mut [u8]),
    Write(u64, &'a [u8]),
    Run,
}

impl Call<'_> {
    pub fn make<M: GuestMemory, C: HostController<M>>(
        self,
        controller: &mut C,
        context: &Context<'_, M>,
    ) {
        match self {
            Self::Read(offset, data) => controller.read(context, offset, data),
            Self::Write(offset, data) => controller.write(context, offset, data),
            Self::Run => controller.run(context),
        }
    }
}

/// Makes a call with guest memory, or none while bus mastering is off, and says how often it was
/// accessed.
pub type Watch<C> = fn(Call<'_>, &mut C, Option<&GuestMemoryMmap>, Time) -> u64;

/// What a controller did, counted in accesses to guest memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    pub calls: u64,
    pub accesses: u64,
    /// Of the call that made the most.
    pub most: u64,
}

/// Somebody at the sockets, who does something while the guest is busy.
pub struct Hand {
    /// Before which call to the controller, at the latest.
    calls: u64,
    /// And at which time, at the latest.
    at: Time,
    action: Box<dyn FnOnce()>,
}

impl Hand {
    pub fn new(calls: u64, at: Time, action: impl FnOnce() + 'static) -> Self {
        Self { calls, at, action: Box::new(action) }
    }

    /// Whether it is time for it, at one more call.
    fn is_due(&mut self, now: Time) -> bool {
        let due = self.calls == 0 || self.at <= now;
        self.calls = self.calls.saturating_sub(1);
        due
    }
}

/// A controller, the guest's memory and the time of day.
pub struct Machine<C> {
    pub controller: C,
    pub memory: GuestMemoryMmap,
    pub now: Time,
    /// PCI bus mastering.
    pub bus_master: bool,
    /// The interrupt line as of the last call.
    pub line: bool,
    /// When the interrupt line rose or fell, and whether a message would have been sent.
    pub interrupts: Vec<(Time, Interrupt)>,
    pub meanwhile: Option<Meanwhile<C>>,
    /// How far the controller's clock is ahead of the time of day, in nanoseconds.
    ahead: i64,
    pub hand: Option<Hand>,
    /// Counts [`work`](Self::work); nobody does at first.
    pub watch: Option<Watch<C>>,
    /// What the controller did since somebody counts.
    pub work: Work,
    /// What the driver has handed to the controller.
    pub lent: Lent,
    next_free: u32,
}

impl<C: HostController<GuestMemoryMmap>> Machine<C> {
    pub fn new(controller: C) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM as usize)]).unwrap();
        Self::with_memory(controller, memory)
    }

    /// A machine whose RAM is laid out by the test; the allocator uses 1 MiB up to 32 MiB.
    pub fn with_memory(controller: C, memory: GuestMemoryMmap) -> Self {
        Self {
            controller,
            memory,
            now: Time::from_nanos(1_000_000_000),
            bus_master: true,
            line: false,
            interrupts: Vec::new(),
            meanwhile: None,
            ahead: 0,
            hand: None,
            watch: None,
            work: Work::default(),
            lent: Lent::default(),
            next_free: HEAP,
        }
    }

    fn call(&mut self, call: Call<'_>) {
        let mut now = self.now.as_nanos().saturating_add_signed(self.ahead);
        if let Some(meanwhile) = &mut self.meanwhile {
            now = meanwhile(&mut self.controller, Time::from_nanos(now)).as_nanos();
            self.ahead = now as i64 - self.now.as_nanos() as i64;
        }
        let now = Time::from_nanos(now);
        if let Some(hand) = self.hand.take_if(|hand| hand.is_due(self.now)) {
            (hand.action)();
        }
        let memory = self.bus_master.then_some(&self.memory);
        match (self.watch, memory) {
            (Some(watch), memory) => {
                let accesses = watch(call, &mut self.controller, memory, now);
                self.work.calls += 1;
                self.work.accesses += accesses;
                self.work.most = self.work.most.max(accesses);
            }
            (None, Some(memory)) => call.make(&mut self.controller, &Context::new(memory, now)),
            (None, None) => {
                call.make::<GuestMemoryMmap, C>(&mut self.controller, &Context::without_dma(now));
            }
        }
        let interrupt = HostController::<GuestMemoryMmap>::interrupt(&mut self.controller);
        if interrupt.asserted != self.line || interrupt.event {
            self.interrupts.push((self.now, interrupt));
        }
        self.line = interrupt.asserted;
    }

    /// Reads a register of any size.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.call(Call::Read(offset, data));
    }

    /// Writes a register of any size.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.call(Call::Write(offset, data));
    }

    pub fn read32(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.read(offset, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write32(&mut self, offset: u64, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }

    /// Power-on or bus reset of the function.
    pub fn reset(&mut self) {
        HostController::<GuestMemoryMmap>::reset(&mut self.controller, self.now);
        self.run();
    }

    /// Lets the controller act now, as its owner does when a device woke it.
    pub fn run(&mut self) {
        self.call(Call::Run);
    }

    pub fn deadline(&self) -> Option<Time> {
        let deadline = HostController::<GuestMemoryMmap>::deadline(&self.controller);
        let deadline = deadline.map(|deadline| {
            Time::from_nanos(deadline.as_nanos().saturating_add_signed(-self.ahead))
        });
        let hand = self.hand.as_ref().map(|hand| hand.at);
        deadline.into_iter().chain(hand).min()
    }

    /// Whether the controller has asked to wake the system since the last look.
    pub fn take_wakeup(&mut self) -> bool {
        HostController::<GuestMemoryMmap>::take_wakeup(&mut self.controller)
    }

    /// How many frames were run and skipped.
    pub fn frames(&self) -> Frames {
        HostController::<GuestMemoryMmap>::frames(&self.controller)
    }

    /// Lets time pass, running the controller at each of its deadlines.
    pub fn advance_nanos(&mut self, nanos: u64) {
        let end = self.now.after_nanos(nanos);
        self.run();
        while let Some(deadline) = self.deadline().filter(|deadline| *deadline <= end) {
            // A deadline in the past means "at once": a host loop still takes a moment for a turn.
            self.now = deadline.max(self.now.after_nanos(100)).min(end);
            self.run();
            if self.now == end {
                break;
            }
        }
        self.now = end;
        self.run();
    }

    pub fn advance_micros(&mut self, micros: u64) {
        self.advance_nanos(micros * 1_000);
    }

    pub fn advance_millis(&mut self, millis: u64) {
        self.advance_nanos(millis * 1_000_000);
    }

    /// Lets time pass until `done`, looking every 10 us of it; false if `millis` go by first.
    pub fn wait_millis(&mut self, millis: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        for _ in 0..millis * 100 {
            if done(self) {
                return true;
            }
            self.advance_micros(10);
        }
        done(self)
    }

    /// The guest starts anew: all memory is free, with whatever is in it.
    pub fn free_all(&mut self) {
        self.lent.take_all_back();
        self.next_free = HEAP;
    }

    /// Takes `len` zeroed bytes of guest memory, aligned to `align`, a power of two.
    pub fn alloc(&mut self, len: u32, align: u32) -> u32 {
        let start = self.next_free.next_multiple_of(align);
        self.next_free = start + len;
        assert!(self.next_free <= RAM, "the driver's heap is used up");
        self.fill(start, &vec![0; len as usize]);
        start
    }

    /// Takes guest memory for `bytes` and stores them there.
    pub fn alloc_bytes(&mut self, bytes: &[u8], align: u32) -> u32 {
        let start = self.alloc(bytes.len() as u32, align);
        self.fill(start, bytes);
        start
    }

    pub fn fill(&mut self, address: u32, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address.into())).unwrap();
    }

    pub fn bytes(&self, address: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(address.into())).unwrap();
        bytes
    }

    /// Loads a dword of guest memory.
    pub fn load(&self, address: u32) -> u32 {
        u32::from_le_bytes(self.bytes(address, 4).try_into().unwrap())
    }

    /// Stores a dword in guest memory.
    pub fn store(&mut self, address: u32, value: u32) {
        self.fill(address, &value.to_le_bytes());
    }

    /// Stores consecutive dwords in guest memory.
    pub fn store_all(&mut self, address: u32, values: &[u32]) {
        for (n, value) in values.iter().enumerate() {
            self.store(address + 4 * n as u32, *value);
        }
    }

    /// Loads consecutive dwords of guest memory.
    pub fn load_all<const N: usize>(&self, address: u32) -> [u32; N] {
        std::array::from_fn(|n| self.load(address + 4 * n as u32))
    }
}
