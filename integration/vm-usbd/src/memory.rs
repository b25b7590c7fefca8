//! Guest memory, as the VMM makes it known.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use log::log;
use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use vfio_user::DmaMapFlags;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MmapRegion,
};

/// Most regions a client may map at a time; announced to it. A virtual machine has some dozens.
pub const MAX_REGIONS: usize = 4096;

/// Most files that a client's regions may lie in. A virtual machine's memory has one, or one for each
/// module that can be plugged in (QEMU: up to 256); its regions are parts of them. More would let one
/// client use up the file descriptors of all.
pub const MAX_FILES: usize = 256;

/// Most regions out of reach that are told of, a line each: more is no news.
const MOST_REPORTS: u32 = 8;

/// The guest's address space: RAM that is mapped here, and regions that are known but out of reach.
#[derive(Debug, Default)]
pub struct GuestRam {
    mapped: GuestMemoryMmap,
    unreachable: Vec<Unreachable>,
    files: Vec<Arc<File>>,
    /// It was said that the client's memory cannot be used; once is enough.
    complained: bool,
    /// Whether the guest has used memory that is out of reach.
    missed: AtomicBool,
    /// Regions out of reach that the log tells of.
    reports: AtomicU32,
}

/// A region that came without a file descriptor, or may not be written: ROM, firmware, another
/// device's memory, or RAM that the VMM does not share.
#[derive(Debug)]
struct Unreachable {
    address: u64,
    last: u64,
    /// Whether the guest's attempt to use it has been reported.
    reported: AtomicBool,
}

impl GuestRam {
    /// Makes `size` bytes at guest address `address` known: those at `offset` in the file `fd`.
    ///
    /// # Errors
    /// `EINVAL` for a range that is empty, wraps, or cannot be mapped from the file, `EEXIST` for one
    /// that overlaps another, `ENOSPC` for a region or a file too many.
    pub fn map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<OwnedFd>,
    ) -> Result<(), Errno> {
        let last =
            size.checked_sub(1).and_then(|more| address.checked_add(more)).ok_or(Errno::INVAL)?;
        if self.ranges().any(|(a, l)| address <= l && a <= last) {
            return Err(Errno::EXIST);
        }
        if self.ranges().count() >= MAX_REGIONS {
            return Err(Errno::NOSPC);
        }
        match fd.filter(|_| flags.contains(DmaMapFlags::READ_WRITE)) {
            Some(fd) => {
                let length = usize::try_from(size).map_err(|_| Errno::INVAL)?;
                let file = self.file(File::from(fd))?;
                // A page past the end of its file can be mapped, but not touched.
                let end = offset.checked_add(size).ok_or(Errno::INVAL)?;
                if file.metadata().map_or(0, |file| file.len()) < end {
                    self.complain(address, size, &"it does not lie in its file");
                    return Err(Errno::INVAL);
                }
                let file = FileOffset::from_arc(file, offset);
                let mapping = MmapRegion::from_file(file, length).map_err(|error| {
                    self.complain(address, size, &error);
                    Errno::INVAL
                })?;
                let region =
                    GuestRegionMmap::new(mapping, GuestAddress(address)).ok_or(Errno::INVAL)?;
                self.mapped =
                    self.mapped.insert_region(Arc::new(region)).map_err(|_| Errno::EXIST)?;
            }
            None => self.unreachable.push(Unreachable {
                address,
                last,
                reported: AtomicBool::new(false),
            }),
        }
        Ok(())
    }

    /// The file, as it is known already if it is: a client sends a descriptor with each region.
    fn file(&mut self, file: File) -> Result<Arc<File>, Errno> {
        // Those that no region lies in any more.
        self.files.retain(|file| Arc::strong_count(file) > 1);
        let known = identity(&file)?;
        for other in &self.files {
            if identity(other)? == known {
                return Ok(other.clone());
            }
        }
        if self.files.len() >= MAX_FILES {
            return Err(Errno::NOSPC);
        }
        let file = Arc::new(file);
        self.files.push(file.clone());
        Ok(file)
    }

    /// Says that memory cannot be used. The operator needs to know once, a client may try for ever.
    fn complain(&mut self, address: u64, size: u64, why: &dyn std::fmt::Display) {
        let level = if self.complained { log::Level::Debug } else { log::Level::Warn };
        self.complained = true;
        log!(level, "cannot map the VMM's memory at {address:#x}, {size:#x} bytes: {why}");
    }

    /// Withdraws all regions inside `address..address + size`; returns whether one of them was RAM
    /// that is mapped here.
    ///
    /// # Errors
    /// `EINVAL` for a range that is empty, wraps, or cuts a region in two; `ENOENT` if there is none.
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<bool, Errno> {
        let last =
            size.checked_sub(1).and_then(|more| address.checked_add(more)).ok_or(Errno::INVAL)?;
        let mut inside = Vec::new();
        for (a, l) in self.ranges().filter(|(a, l)| *a <= last && address <= *l) {
            if a < address || l > last {
                return Err(Errno::INVAL);
            }
            inside.push((a, l));
        }
        if inside.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut was_mapped = false;
        for (a, l) in inside {
            if let Ok((rest, _)) = self.mapped.remove_region(GuestAddress(a), l - a + 1) {
                self.mapped = rest;
                was_mapped = true;
            }
        }
        self.unreachable.retain(|region| region.address < address || region.last > last);
        Ok(was_mapped)
    }

    /// Withdraws everything.
    pub fn unmap_all(&mut self) {
        self.mapped = GuestMemoryMmap::default();
        self.unreachable.clear();
    }

    /// Whether the guest has ever used memory that the VMM does not share.
    pub fn has_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    /// First and last address of each region.
    fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let mapped = self.mapped.iter().map(|region| (region.start_addr().0, region.last_addr().0));
        let unreachable = self.unreachable.iter().map(|r| (r.address, r.last));
        mapped.chain(unreachable)
    }

    /// Says, once a region, that the guest uses memory that is out of reach.
    fn report(&self, address: u64) {
        let region = self
            .unreachable
            .iter()
            .find(|region| (region.address..=region.last).contains(&address));
        if let Some(region) = region
            && !region.reported.swap(true, Ordering::Relaxed)
        {
            self.missed.store(true, Ordering::Relaxed);
            let told = self.reports.fetch_add(1, Ordering::Relaxed);
            log!(
                report_level(told),
                "the guest's DMA goes to {address:#x}, memory that the VMM does not share: if it is \
                 RAM, start the VMM with shared memory (QEMU: -object \
                 memory-backend-memfd,id=m,size=SIZE,share=on -machine memory-backend=m; \
                 cloud-hypervisor: --memory shared=on)"
            );
        }
    }
}

/// How loud one is told of after `told` others.
fn report_level(told: u32) -> log::Level {
    if told < MOST_REPORTS { log::Level::Warn } else { log::Level::Debug }
}

/// Which file it is, and how it was opened: one that may only be read cannot stand for another.
fn identity(file: &File) -> Result<(u64, u64, OFlags), Errno> {
    let about = fstat(file)?;
    Ok((about.st_dev, about.st_ino, fcntl_getfl(file)? & OFlags::ACCMODE))
}

impl GuestMemoryBackend for GuestRam {
    type R = GuestRegionMmap;

    fn num_regions(&self) -> usize {
        self.mapped.num_regions()
    }

    fn find_region(&self, address: GuestAddress) -> Option<&GuestRegionMmap> {
        let region = self.mapped.find_region(address);
        if region.is_none() {
            self.report(address.0);
        }
        region
    }

    fn iter(&self) -> impl Iterator<Item = &GuestRegionMmap> {
        self.mapped.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vm_memory::Bytes;

    const RW: DmaMapFlags = DmaMapFlags::READ_WRITE;

    fn memory(size: u64) -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    #[test]
    fn shared_ram_is_the_vmms_own() {
        let fd = memory(0x4000);
        let file = File::from(fd.try_clone().unwrap());
        let mut ram = GuestRam::default();
        ram.map(RW, 0x1000, 0x10_0000, 0x2000, Some(fd)).unwrap();
        ram.write_obj(0x1234_5678_u32, GuestAddress(0x10_0004)).unwrap();
        let mut bytes = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0x1004).unwrap();
        assert_eq!(u32::from_ne_bytes(bytes), 0x1234_5678);
        assert!(ram.write_obj(0_u32, GuestAddress(0x10_2000)).is_err());
    }

    #[test]
    fn a_region_without_a_file_is_known_but_out_of_reach() {
        let mut ram = GuestRam::default();
        ram.map(RW, 0, 0xc_0000, 0x1_0000, None).unwrap();
        assert!(ram.read_obj::<u32>(GuestAddress(0xc_0000)).is_err());
        assert_eq!(ram.map(RW, 0, 0xc_f000, 0x2000, None), Err(Errno::EXIST));
        ram.unmap(0xc_0000, 0x1_0000).unwrap();
        ram.map(RW, 0, 0xc_f000, 0x2000, None).unwrap();
    }

    #[test]
    fn memory_the_guest_may_not_write_is_out_of_reach() {
        let mut ram = GuestRam::default();
        ram.map(DmaMapFlags::READ, 0, 0, 0x1000, Some(memory(0x1000))).unwrap();
        assert!(ram.write_obj(0_u32, GuestAddress(0)).is_err());
    }

    #[test]
    fn ranges_that_cannot_be_are_refused_and_leave_the_rest_alone() {
        let mut ram = GuestRam::default();
        ram.map(RW, 0, 0x1000, 0x1000, Some(memory(0x1000))).unwrap();
        let mut refused =
            |offset, address, size| ram.map(RW, offset, address, size, Some(memory(0x1000)));
        assert_eq!(refused(0, 0x1800, 0x1000), Err(Errno::EXIST), "overlap");
        assert_eq!(refused(0, 0x5000, 0), Err(Errno::INVAL), "empty");
        assert_eq!(refused(0, u64::MAX, 2), Err(Errno::INVAL), "wraps");
        assert_eq!(refused(0, 0x5000, 0x2000), Err(Errno::INVAL), "past the file");
        assert_eq!(refused(1, 0x5000, 0xfff), Err(Errno::INVAL), "not a page");
        assert_eq!(refused(u64::MAX - 1, 0x5000, 0x1000), Err(Errno::INVAL), "offset wraps");
        ram.write_obj(1_u8, GuestAddress(0x1fff)).unwrap();
    }

    #[test]
    fn unmapping_takes_whole_regions_only() {
        let mut ram = GuestRam::default();
        ram.map(RW, 0, 0x1000, 0x2000, Some(memory(0x2000))).unwrap();
        ram.map(RW, 0, 0x3000, 0x1000, None).unwrap();
        assert_eq!(ram.unmap(0x8000, 0x1000), Err(Errno::NOENT));
        assert_eq!(ram.unmap(0x1000, 0x1000), Err(Errno::INVAL));
        assert_eq!(ram.unmap(0x1000, 0), Err(Errno::INVAL));
        assert_eq!(ram.unmap(0x1000, u64::MAX), Err(Errno::INVAL));
        ram.unmap(0x1000, 0x3000).unwrap();
        assert_eq!(ram.ranges().count(), 0);
    }

    #[test]
    fn the_number_of_regions_is_bounded() {
        let mut ram = GuestRam::default();
        for index in 0..MAX_REGIONS as u64 {
            ram.map(RW, 0, index * 0x1000, 0x1000, None).unwrap();
        }
        assert_eq!(ram.map(RW, 0, 1 << 40, 0x1000, None), Err(Errno::NOSPC));
    }

    #[test]
    fn regions_of_one_file_share_its_descriptor_and_files_are_bounded() {
        let mut ram = GuestRam::default();
        let fd = memory(0x10_0000);
        for page in 0..256 {
            let fd = fd.try_clone().unwrap();
            ram.map(RW, page * 0x1000, page * 0x1000, 0x1000, Some(fd)).unwrap();
        }
        assert_eq!(ram.files.len(), 1);
        let mut map_another =
            |n: u64| ram.map(RW, 0, (1 << 32) + n * 0x1000, 0x1000, Some(memory(0x1000)));
        for n in 1..MAX_FILES as u64 {
            map_another(n).unwrap();
        }
        assert_eq!(map_another(0), Err(Errno::NOSPC));
        ram.map(RW, 0, 1 << 40, 0x1000, Some(fd)).unwrap();
        // A file that no region lies in counts no more.
        ram.unmap((1 << 32) + 0x1000, 0x1000).unwrap();
        ram.map(RW, 0, 1 << 41, 0x1000, Some(memory(0x1000))).unwrap();
        ram.unmap_all();
        ram.map(RW, 0, 0, 0x1000, Some(memory(0x1000))).unwrap();
        assert_eq!(ram.files.len(), 1);
    }

    #[test]
    fn the_guest_s_use_of_so_many_regions_out_of_reach_is_told_and_no_more() {
        let mut ram = GuestRam::default();
        for index in 0..=u64::from(MOST_REPORTS) {
            ram.map(RW, 0, index * 0x1000, 0x1000, None).unwrap();
            // Once a region, however often the guest uses it.
            for offset in [0, 8] {
                assert!(ram.read(&mut [0; 4], GuestAddress(index * 0x1000 + offset)).is_err());
            }
        }
        assert_eq!(ram.reports.load(Ordering::Relaxed), MOST_REPORTS + 1);
        let loud = |told| report_level(told) == log::Level::Warn;
        assert_eq!([MOST_REPORTS - 1, MOST_REPORTS].map(loud), [true, false]);
    }

    #[test]
    fn a_file_that_may_only_be_read_stays_so() {
        let mut ram = GuestRam::default();
        let file = memory(0x2000);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let read_only = OwnedFd::from(File::open(path).unwrap());
        ram.map(RW, 0, 0, 0x1000, Some(file)).unwrap();
        assert_eq!(ram.map(RW, 0, 0x1000, 0x1000, Some(read_only)), Err(Errno::INVAL));
    }
}
