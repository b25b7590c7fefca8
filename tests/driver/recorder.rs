//! Guest memory that notes every access, for rules that say what a controller must leave alone.

use std::sync::Mutex;

use vm_memory::bitmap::BS;
use vm_memory::guest_memory::GuestMemorySliceIterator;
use vm_memory::{GuestAddress, GuestMemory, GuestMemoryMmap, GuestMemoryResult, Permissions};
use vm_usb::controller::{Context, HostController};
use vm_usb::time::Time;

use super::machine::{Call, Machine, Work};

/// One access: address, length, and what it was for.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub address: u64,
    pub len: usize,
    pub write: bool,
}

impl Access {
    pub fn touches(&self, start: u32, len: u32) -> bool {
        let (start, end) = (u64::from(start), u64::from(start + len));
        self.address < end && start < self.address + self.len as u64
    }
}

/// Memory with a log.
pub struct Recorder<'a> {
    memory: &'a GuestMemoryMmap,
    log: Mutex<Vec<Access>>,
}

impl<'a> Recorder<'a> {
    pub fn new(memory: &'a GuestMemoryMmap) -> Self {
        Self { memory, log: Mutex::default() }
    }

    /// The accesses so far.
    pub fn into_log(self) -> Vec<Access> {
        self.log.into_inner().unwrap()
    }
}

impl GuestMemory for Recorder<'_> {
    type PhysicalMemory = GuestMemoryMmap;
    type Bitmap = <GuestMemoryMmap as GuestMemory>::Bitmap;

    fn check_range(&self, addr: GuestAddress, count: usize, access: Permissions) -> bool {
        GuestMemory::check_range(self.memory, addr, count, access)
    }

    fn get_slices<'a>(
        &'a self,
        addr: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> GuestMemoryResult<impl GuestMemorySliceIterator<'a, BS<'a, Self::Bitmap>>> {
        let write = access.has_write();
        self.log.lock().unwrap().push(Access { address: addr.0, len: count, write });
        GuestMemory::get_slices(self.memory, addr, count, access)
    }
}

impl<C> Machine<C>
where
    C: HostController<GuestMemoryMmap> + for<'a> HostController<Recorder<'a>>,
{
    /// Runs the controller for `micros` as [`advance_micros`](Self::advance_micros) does, and says
    /// what it accessed.
    pub fn record(&mut self, micros: u64) -> Vec<Access> {
        let end = self.now.after_micros(micros);
        let recorder = Recorder::new(&self.memory);
        loop {
            self.controller.run(&Context::new(&recorder, self.now));
            if self.now >= end {
                break;
            }
            let deadline = HostController::<Recorder<'_>>::deadline(&self.controller);
            let next = deadline.unwrap_or(end).max(self.now.after_nanos(100));
            self.now = next.min(end);
        }
        recorder.into_log()
    }

    /// From now on the work of every call is counted.
    pub fn count_work(&mut self) {
        self.watch = Some(watch);
        self.work = Work::default();
    }

    /// What the controller did since the last look.
    pub fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }
}

fn watch<C: for<'a> HostController<Recorder<'a>>>(
    call: Call<'_>,
    controller: &mut C,
    memory: Option<&GuestMemoryMmap>,
    now: Time,
) -> u64 {
    let Some(memory) = memory else {
        call.make::<Recorder<'_>, C>(controller, &Context::without_dma(now));
        return 0;
    };
    let recorder = Recorder::new(memory);
    call.make(controller, &Context::new(&recorder, now));
    recorder.into_log().len() as u64
}
