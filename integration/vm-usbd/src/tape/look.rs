//! What of the guest's memory a controller is shown, as against what a tape says is there.

use std::cell::RefCell;
use std::collections::BTreeMap;

use vm_memory::bitmap::BS;
use vm_memory::guest_memory::GuestMemorySliceIterator;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryResult, Permissions};

use super::format::Step;
use crate::memory::GuestRam;

const PAGE: usize = 0x1000;
/// Most pages that are remembered, for the memory that takes: 64 MiB. A guest that shows more of its memory
/// has its tape end.
pub(super) const MOST_PAGES: usize = 16 << 10;
/// Fewer bytes than this between two that differ cost less than another step.
const GAP: usize = 8;
/// So many equal dwords in a row are told as one: a frame list has hundreds.
const RUN: usize = 4;

/// What a tape says is in the guest's memory, and what has to be added to it. The memory begins as zeroes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
    /// What the controller was handed to write to, and may have written to by now.
    handed: Vec<(u64, usize)>,
    /// Buffers of transfers in this call, and what was in them: the device reads them or writes to them.
    lent: Vec<(u64, Vec<u8>)>,
    /// Steps that say what the guest has put there since.
    news: Vec<u8>,
    /// There are more pages than can be remembered.
    full: bool,
}

impl Look {
    /// What is new since the last time.
    pub(super) fn take_news(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.news)
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// A call of the controller is over. A buffer that is as it was has been read, or nothing came for it.
    pub(super) fn end_call(&mut self, memory: &GuestRam) {
        self.settle(memory);
        for (address, before) in std::mem::take(&mut self.lent) {
            let mut now = vec![0; before.len()];
            if memory.read_slice(&mut now, GuestAddress(address)).is_err() {
                continue;
            }
            if now == before {
                self.show(memory, address, now.len());
            } else {
                self.compare(memory, address, now.len(), |_, _| {});
            }
        }
    }

    /// What the controller wrote itself is no news: a replay writes it again.
    fn settle(&mut self, memory: &GuestRam) {
        for (address, len) in std::mem::take(&mut self.handed) {
            self.compare(memory, address, len, |_, _| {});
        }
    }

    /// The controller is handed a buffer for a device.
    fn lend(&mut self, memory: &GuestRam, address: u64, len: usize) {
        let mut before = vec![0; len];
        if memory.read_slice(&mut before, GuestAddress(address)).is_ok() {
            self.lent.push((address, before));
        }
    }

    /// How much to look at when the controller reads a dword: a frame list is read an entry at a time, and
    /// the entries that are the same are told together.
    fn alike(&self, memory: &GuestRam, address: u64) -> usize {
        let offset = (address % PAGE as u64) as usize;
        let mut dwords = [0; PAGE];
        let dwords = &mut dwords[offset..];
        if memory.read_slice(dwords, GuestAddress(address)).is_err() {
            return 4;
        }
        let (dwords, _) = dwords.as_chunks::<4>();
        4 * dwords.iter().take_while(|dword| **dword == dwords[0]).count()
    }

    /// The controller is about to read this.
    fn show(&mut self, memory: &GuestRam, address: u64, len: usize) {
        let len =
            if len == 4 && address.is_multiple_of(4) { self.alike(memory, address) } else { len };
        let mut news = std::mem::take(&mut self.news);
        self.compare(memory, address, len, |address, change| tell(address, change, &mut news));
        self.news = news;
    }

    /// Remembers what is there now, and calls `differs` with each piece that is not as it was.
    fn compare(
        &mut self,
        memory: &GuestRam,
        address: u64,
        len: usize,
        mut differs: impl FnMut(u32, &[u8]),
    ) {
        // Without 64-bit addressing, and the server's controllers have none, all of it is below 4 GiB.
        let Some(end) = address.checked_add(len as u64).filter(|end| *end <= 1 << 32) else {
            return;
        };
        let mut at = address;
        while at < end {
            let offset = (at % PAGE as u64) as usize;
            let count = (PAGE - offset).min((end - at) as usize);
            let mut found = [0; PAGE];
            let found = &mut found[..count];
            if memory.read_slice(found, GuestAddress(at)).is_err() {
                return;
            }
            let known = self.pages.len();
            let page = match self.pages.entry(at / PAGE as u64) {
                std::collections::btree_map::Entry::Occupied(page) => page.into_mut(),
                std::collections::btree_map::Entry::Vacant(_) if known >= MOST_PAGES => {
                    self.full = true;
                    return;
                }
                std::collections::btree_map::Entry::Vacant(room) => {
                    room.insert(Box::new([0; PAGE]))
                }
            };
            let believed = &mut page[offset..offset + count];
            for piece in pieces(believed, found, offset) {
                differs(at as u32 + piece.start as u32, &found[piece]);
            }
            believed.copy_from_slice(found);
            at += count as u64;
        }
    }
}

/// Where `new` differs from `old`, in pieces of whole dwords as far as there are; they begin at `offset` of
/// a page.
fn pieces(old: &[u8], new: &[u8], offset: usize) -> Vec<std::ops::Range<usize>> {
    let mut pieces: Vec<std::ops::Range<usize>> = Vec::new();
    for at in (0..new.len()).filter(|at| old[*at] != new[*at]) {
        let start = at.saturating_sub((offset + at) % 4);
        let end = (at + 4 - (offset + at) % 4).min(new.len());
        match pieces.last_mut() {
            Some(last) if start < last.end + GAP => last.end = end,
            _ => pieces.push(start..end),
        }
    }
    pieces
}

/// Puts `data` at `address` on a tape, the same dword again and again as one step.
fn tell(address: u32, data: &[u8], tape: &mut Vec<u8>) {
    let aligned = address.is_multiple_of(4);
    let (dwords, _) = data.as_chunks::<4>();
    // Bytes from here on have still to be told.
    let mut told = 0;
    let mut index = 0;
    while aligned && index < dwords.len() {
        let run = dwords[index..].iter().take_while(|dword| **dword == dwords[index]).count();
        if run >= RUN {
            let start = 4 * index;
            if told < start {
                Step::Poke(address + told as u32, &data[told..start]).put(tape);
            }
            let dword = u32::from_le_bytes(dwords[index]);
            Step::Fill(address + start as u32, run as u16, dword).put(tape);
            told = start + 4 * run;
        }
        index += run;
    }
    if told < data.len() {
        Step::Poke(address + told as u32, &data[told..]).put(tape);
    }
}

/// Guest memory as a controller sees it for the length of one call, with its reads looked at.
#[derive(Debug)]
pub struct Shown<'a> {
    memory: &'a GuestRam,
    /// `None` once the tape has ended.
    look: Option<RefCell<&'a mut Look>>,
}

impl<'a> Shown<'a> {
    pub(super) fn new(memory: &'a GuestRam, look: &'a mut Look) -> Self {
        Self { memory, look: Some(RefCell::new(look)) }
    }

    /// With nobody who looks at the reads.
    pub(super) fn unseen(memory: &'a GuestRam) -> Self {
        Self { memory, look: None }
    }
}

impl GuestMemory for Shown<'_> {
    type PhysicalMemory = GuestRam;
    type Bitmap = <GuestRam as GuestMemory>::Bitmap;

    fn check_range(&self, address: GuestAddress, count: usize, access: Permissions) -> bool {
        GuestMemory::check_range(self.memory, address, count, access)
    }

    fn get_slices<'a>(
        &'a self,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> GuestMemoryResult<impl GuestMemorySliceIterator<'a, BS<'a, Self::Bitmap>>> {
        if let Some(look) = &self.look {
            let mut look = look.borrow_mut();
            look.settle(self.memory);
            match access {
                Permissions::ReadWrite => look.lend(self.memory, address.0, count),
                Permissions::Write => look.handed.push((address.0, count)),
                _ => look.show(self.memory, address.0, count),
            }
        }
        GuestMemory::get_slices(self.memory, address, count, access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::format::{Steps, TAPE};
    use crate::tape::tests::ram;

    /// The steps that say what is new.
    fn news(look: &mut Look) -> Vec<String> {
        let tape = [&[TAPE, 0], &*look.take_news()].concat();
        Steps::of(&tape).unwrap().1.map(|step| format!("{step:x?}")).collect()
    }

    fn read(shown: &Shown<'_>, address: u64, len: usize) {
        shown.read_slice(&mut vec![0; len], GuestAddress(address)).unwrap();
    }

    #[test]
    fn what_a_controller_is_shown_is_told_once_and_again_where_it_has_changed() {
        let (ram, mut look) = (ram(), Look::default());
        ram.write_slice(b"0123456789abcdef", GuestAddress(0x1000)).unwrap();
        read(&Shown::new(&ram, &mut look), 0x1000, 16);
        assert_eq!(news(&mut look).len(), 1);
        read(&Shown::new(&ram, &mut look), 0x1000, 16);
        assert!(news(&mut look).is_empty(), "nothing has changed");
        ram.write_slice(b"X", GuestAddress(0x1006)).unwrap();
        read(&Shown::new(&ram, &mut look), 0x1000, 16);
        assert_eq!(news(&mut look), ["Poke(1004, [34, 35, 58, 37])"], "the dword that has");
    }

    #[test]
    fn what_it_wrote_itself_is_no_news() {
        let (ram, mut look) = (ram(), Look::default());
        let shown = Shown::new(&ram, &mut look);
        shown.write_slice(b"its own", GuestAddress(0x2000)).unwrap();
        read(&shown, 0x2000, 7);
        shown.write_slice(b"data", GuestAddress(0x2ffe)).unwrap();
        look.end_call(&ram);
        read(&Shown::new(&ram, &mut look), 0x2000, 0x1002);
        assert!(news(&mut look).is_empty());
    }

    #[test]
    fn a_frame_list_is_a_few_steps() {
        let (ram, mut look) = (ram(), Look::default());
        for slot in 0..1024_u64 {
            let link = if slot == 500 { 0x1_2342_u32 } else { 1 };
            ram.write_obj(link, GuestAddress(0x1000 + 4 * slot)).unwrap();
        }
        read(&Shown::new(&ram, &mut look), 0x1000, 0x1000);
        let told = news(&mut look);
        assert_eq!(told[0], "Fill(1000, 1f4, 1)");
        assert_eq!(told[1], "Poke(17d0, [42, 23, 1, 0])");
        assert_eq!(told[2], "Fill(17d4, 20b, 1)");
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn a_guest_that_shows_more_pages_than_are_remembered_has_its_tape_end() {
        let (ram, mut look) = (ram(), Look::default());
        // All but the first are taken by what the guest has elsewhere.
        for page in 1..MOST_PAGES as u64 {
            look.pages.insert(0x1000 + page, Box::new([0; PAGE]));
        }
        read(&Shown::new(&ram, &mut look), 0x1000, 4);
        assert_eq!(look.pages.len(), MOST_PAGES);
        assert!(!look.is_full(), "there was room for one");
        read(&Shown::new(&ram, &mut look), 0x1ffc, 4);
        assert!(!look.is_full(), "it is known");
        read(&Shown::new(&ram, &mut look), 0x2000, 4);
        assert!(look.is_full());
    }

    #[test]
    fn a_buffer_that_a_device_read_is_told_and_one_that_it_filled_is_not() {
        let (ram, mut look) = (ram(), Look::default());
        ram.write_slice(b"commands", GuestAddress(0x1000)).unwrap();
        ram.write_slice(b"what was there before", GuestAddress(0x2000)).unwrap();
        let shown = Shown::new(&ram, &mut look);
        let lend = |address| {
            let slices = shown.get_slices(GuestAddress(address), 8, Permissions::ReadWrite);
            slices.unwrap().next().unwrap().unwrap()
        };
        let (_out, into) = (lend(0x1000), lend(0x2000));
        into.write_slice(b"response", 0).unwrap();
        look.end_call(&ram);
        let told = news(&mut look);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("Poke(1000"), "{told:?}");
    }

    #[test]
    fn entries_that_are_alike_are_told_with_the_first_that_is_read() {
        let (ram, mut look) = (ram(), Look::default());
        for slot in 0..512_u64 {
            ram.write_obj(0x1_2342_u32, GuestAddress(0x1000 + 4 * slot)).unwrap();
        }
        read(&Shown::new(&ram, &mut look), 0x1400, 4);
        assert_eq!(news(&mut look), ["Fill(1400, 100, 12342)"]);
        read(&Shown::new(&ram, &mut look), 0x1404, 4);
        assert!(news(&mut look).is_empty());
    }

    #[test]
    fn reads_outside_of_memory_tell_nothing() {
        let (ram, mut look) = (ram(), Look::default());
        let shown = Shown::new(&ram, &mut look);
        assert!(shown.read_slice(&mut [0; 4], GuestAddress(0x4000)).is_err());
        assert!(shown.read_slice(&mut [0; 4], GuestAddress(u64::MAX - 1)).is_err());
        assert!(news(&mut look).is_empty());
    }
}
