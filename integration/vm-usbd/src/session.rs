//! One client's conversation with one function: what each command does.

use std::os::fd::OwnedFd;

use log::{debug, trace};
use rustix::io::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_IRQ_INFO_AUTOMASKED,
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_MASKABLE, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_INTX_IRQ_INDEX, VFIO_PCI_MSI_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE,
};
use vfio_user::{Command, DmaMapFlags, DmaUnmapFlags};
use vm_usb::controller::HostController;
use vm_usb::pci::{CONFIG_SPACE_SIZE, PciFunction};
use vm_usb::time::Time;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::channel::{Inbox, Outbox, Violation};
use crate::interrupts::Interrupts;
use crate::irq_set;
use crate::memory::{GuestRam, MAX_REGIONS};
use crate::remapping::Remapping;
use crate::wire::{
    DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, IrqSet, MAX_DATA, MAX_FDS, RegionAccess,
    RegionInfo, Version, flags,
};

/// A controller of either kind.
pub type Controller = Box<dyn HostController<GuestRam>>;

/// A controller as a PCI function whose interrupts go to the VMM.
pub type Function = PciFunction<GuestRam, Controller, Interrupts>;

/// The newest minor version of the protocol that is spoken here.
const MINOR: u16 = 1;

/// A client's session: from its connection until it leaves.
pub struct Session<'a> {
    function: &'a mut Function,
    ram: GuestRam,
    remapping: Remapping,
    negotiated: bool,
}

impl<'a> Session<'a> {
    /// A new client takes over `function`, which is in the state after power-on, or as another server
    /// left it (`restored`): then it stands still until the client has made the guest's memory known.
    pub fn new(function: &'a mut Function, restored: bool) -> Self {
        Self {
            function,
            ram: GuestRam::default(),
            remapping: if restored { Remapping::awaited() } else { Remapping::default() },
            negotiated: false,
        }
    }

    /// Whether the guest has ever used memory that the VMM does not share.
    pub fn missed_memory(&self) -> bool {
        self.ram.has_missed()
    }

    /// The function.
    pub fn function(&mut self) -> &mut Function {
        self.function
    }

    /// Time has passed, or a device has something to say.
    pub fn run(&mut self, now: Time) {
        if self.remapping.may_run(now) {
            trace!("{} us: run", now.as_nanos() / 1000);
            self.function.run(&self.ram, now);
        }
    }

    /// When [`run`](Self::run) must be called next.
    pub fn deadline(&self) -> Option<Time> {
        self.remapping.defer(self.function.deadline())
    }

    /// Carries out the command in `inbox`; replies, errors too, go to `outbox`.
    ///
    /// # Errors
    /// If the client broke the protocol so that the session has to end.
    pub fn handle(
        &mut self,
        now: Time,
        inbox: &mut Inbox,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        let header = inbox.header();
        if header.flags & flags::TYPE != flags::COMMAND {
            return Err(Violation::NotACommand(header.flags));
        }
        let command = Command::n(header.command).unwrap_or(Command::Unknown);
        if matches!(command, Command::Version) {
            return self.version(&header, inbox.payload(), outbox);
        }
        if !self.negotiated {
            return Err(Violation::NoVersion(header.command));
        }
        let fds = inbox.take_fds();
        let mut reply = Reply { header: &header, outbox };
        if let Err(errno) = self.command(command, now, inbox.payload(), fds, &mut reply) {
            debug!("command {} failed: {errno}", header.command);
            if !header.no_reply() {
                outbox.error(&header, errno);
            }
        }
        Ok(())
    }

    fn version(
        &mut self,
        header: &Header,
        payload: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        let Ok((version, text)) = Version::read_from_prefix(payload) else {
            outbox.error(header, Errno::INVAL);
            return Ok(());
        };
        if version.major != 0 {
            outbox.error(header, Errno::PROTONOSUPPORT);
            return Err(Violation::Version(version.major));
        }
        debug!("client's capabilities: {}", String::from_utf8_lossy(text));
        self.negotiated = true;
        let ours = Version { major: 0, minor: version.minor.min(MINOR) };
        let capabilities = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\"max_data_xfer_size\":{MAX_DATA},\
             \"max_dma_maps\":{MAX_REGIONS}}}}}\0"
        );
        outbox.reply(header, &ours, capabilities.as_bytes());
        Ok(())
    }

    fn command(
        &mut self,
        command: Command,
        now: Time,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Errno> {
        match command {
            Command::DmaMap => self.remapping.mapped(now),
            Command::DmaUnmap => {}
            _ => self.remapping.complete(),
        }
        match command {
            Command::RegionRead => self.region_read(now, payload, reply),
            Command::RegionWrite => self.region_write(now, payload, reply),
            Command::DmaMap => self.dma_map(payload, fds, reply),
            Command::DmaUnmap => self.dma_unmap(now, payload, reply),
            Command::DeviceGetInfo => {
                parse::<DeviceInfo>(payload)?;
                reply.with(&DeviceInfo {
                    argsz: size_of::<DeviceInfo>() as u32,
                    flags: VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET,
                    num_regions: VFIO_PCI_NUM_REGIONS,
                    num_irqs: VFIO_PCI_NUM_IRQS,
                });
                Ok(())
            }
            Command::DeviceGetRegionInfo => self.region_info(payload, reply),
            Command::GetIrqInfo => irq_info(payload, reply),
            Command::SetIrqs => {
                let (set, data) = parse::<IrqSet>(payload)?;
                trace!("{} us: set {set:?}", now.as_nanos() / 1000);
                irq_set::apply(self.function.line_mut(), &set, data, fds)?;
                reply.empty();
                Ok(())
            }
            Command::DeviceReset => {
                self.function.reset(now);
                self.function.line_mut().reset();
                reply.empty();
                Ok(())
            }
            // Nothing here can be mapped by the client, migrates, or is reached by messages.
            Command::Unknown
            | Command::Version
            | Command::GetRegionIoFds
            | Command::DmaRead
            | Command::DmaWrite
            | Command::UserDirtyPages => Err(Errno::NOTSUP),
        }
    }

    fn region_size(&self, region: u32) -> Option<u64> {
        match region {
            VFIO_PCI_BAR0_REGION_INDEX => Some(self.function.bar_size().into()),
            VFIO_PCI_CONFIG_REGION_INDEX => Some(CONFIG_SPACE_SIZE),
            // The other regions of a PCI device exist and are empty.
            other => (other < VFIO_PCI_NUM_REGIONS).then_some(0),
        }
    }

    fn region_info(&self, payload: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        let (asked, _) = parse::<RegionInfo>(payload)?;
        let size = self.region_size(asked.index).ok_or(Errno::INVAL)?;
        let flags = if size == 0 {
            0
        } else {
            // Never offered for mapping: every access has to be seen here.
            VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE
        };
        // Without capabilities the size needed is that of the structure, however small `argsz` was.
        reply.with(&RegionInfo {
            argsz: size_of::<RegionInfo>() as u32,
            flags,
            index: asked.index,
            cap_offset: 0,
            size,
            offset: 0,
        });
        Ok(())
    }

    /// Checks that an access stays inside its region; returns its size.
    fn check(&self, access: &RegionAccess) -> Result<usize, Errno> {
        let size = self.region_size(access.region).ok_or(Errno::INVAL)?;
        let end = access.offset.checked_add(access.count.into()).ok_or(Errno::INVAL)?;
        if end > size || access.count as usize > MAX_DATA {
            return Err(Errno::INVAL);
        }
        Ok(access.count as usize)
    }

    fn region_read(
        &mut self,
        now: Time,
        payload: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<(), Errno> {
        let (access, _) = parse::<RegionAccess>(payload)?;
        let count = self.check(&access)?;
        let mut small = [0; 8];
        let mut large = Vec::new();
        let data = match small.get_mut(..count) {
            Some(data) => data,
            None => {
                large.resize(count, 0);
                &mut large[..]
            }
        };
        if access.region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.function.config_read(&self.ram, now, access.offset, data);
        } else {
            self.function.bar_read(&self.ram, now, access.offset, data);
        }
        trace!(
            "{} us: read {}:{:#x} {data:02x?}",
            now.as_nanos() / 1000,
            access.region,
            access.offset
        );
        reply.with_data(&access, data);
        Ok(())
    }

    fn region_write(
        &mut self,
        now: Time,
        payload: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<(), Errno> {
        let (access, data) = parse::<RegionAccess>(payload)?;
        let count = self.check(&access)?;
        let data = data.get(..count).ok_or(Errno::INVAL)?;
        trace!(
            "{} us: write {}:{:#x} {data:02x?}",
            now.as_nanos() / 1000,
            access.region,
            access.offset
        );
        if access.region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.function.config_write(&self.ram, now, access.offset, data);
        } else {
            self.function.bar_write(&self.ram, now, access.offset, data);
        }
        reply.with(&access);
        Ok(())
    }

    fn dma_map(
        &mut self,
        payload: &[u8],
        mut fds: Vec<OwnedFd>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Errno> {
        let (map, _) = parse::<DmaMap>(payload)?;
        let fd = fds.pop();
        if !fds.is_empty() {
            return Err(Errno::INVAL);
        }
        debug!(
            "map {:#x}, {:#x} bytes, flags {:#x}, {}",
            map.address,
            map.size,
            map.flags,
            if fd.is_some() { "shared" } else { "not shared" }
        );
        let flags = DmaMapFlags::from_bits_retain(map.flags);
        self.ram.map(flags, map.offset, map.address, map.size, fd)?;
        reply.empty();
        Ok(())
    }

    fn dma_unmap(&mut self, now: Time, payload: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
        let (unmap, _) = parse::<DmaUnmap>(payload)?;
        let flags = DmaUnmapFlags::from_bits_retain(unmap.flags);
        if flags.contains(DmaUnmapFlags::GET_DIRTY_PAGE_INFO) {
            return Err(Errno::NOTSUP);
        }
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            if (unmap.address, unmap.size) != (0, 0) {
                return Err(Errno::INVAL);
            }
            self.ram.unmap_all();
            self.remapping.unmapped(now);
        } else if self.ram.unmap(unmap.address, unmap.size)? {
            self.remapping.unmapped(now);
        }
        reply.with(&unmap);
        Ok(())
    }
}

/// Where the reply to one command goes, if it wants one.
struct Reply<'a> {
    header: &'a Header,
    outbox: &'a mut Outbox,
}

impl Reply<'_> {
    fn empty(&mut self) {
        self.with_data(&[0_u8; 0], &[]);
    }

    fn with<T: zerocopy::IntoBytes + Immutable>(&mut self, fixed: &T) {
        self.with_data(fixed, &[]);
    }

    fn with_data<T: zerocopy::IntoBytes + Immutable>(&mut self, fixed: &T, data: &[u8]) {
        if !self.header.no_reply() {
            self.outbox.reply(self.header, fixed, data);
        }
    }
}

/// The structure at the start of a payload, and what follows.
fn parse<T: FromBytes + KnownLayout + Immutable>(payload: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(payload).map_err(|_| Errno::INVAL)
}

fn irq_info(payload: &[u8], reply: &mut Reply<'_>) -> Result<(), Errno> {
    let (asked, _) = parse::<IrqInfo>(payload)?;
    let (flags, count) = match asked.index {
        VFIO_PCI_INTX_IRQ_INDEX => {
            (VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_MASKABLE | VFIO_IRQ_INFO_AUTOMASKED, 1)
        }
        VFIO_PCI_MSI_IRQ_INDEX => (VFIO_IRQ_INFO_EVENTFD, 1),
        other if other < VFIO_PCI_NUM_IRQS => (VFIO_IRQ_INFO_EVENTFD, 0),
        _ => return Err(Errno::INVAL),
    };
    reply.with(&IrqInfo { argsz: size_of::<IrqInfo>() as u32, flags, index: asked.index, count });
    Ok(())
}
