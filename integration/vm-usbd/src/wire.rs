//! The messages of the vfio-user protocol, as they lie in a message.
//!
//! Multi-byte fields are in the machine's own byte order: both ends run on one machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a [`Header`].
pub const HEADER_SIZE: usize = size_of::<Header>();

/// Most bytes one region access may carry; announced to the client. Our largest region has 4 KiB.
pub const MAX_DATA: usize = 64 << 10;

/// Largest message that is accepted: a region write of [`MAX_DATA`] bytes.
pub const MAX_MESSAGE: usize = HEADER_SIZE + size_of::<RegionAccess>() + MAX_DATA;

/// Most file descriptors in one message; announced to the client.
pub const MAX_FDS: usize = 16;

/// The kind of message, in [`Header::flags`].
pub mod flags {
    /// Bits that tell commands from replies.
    pub const TYPE: u32 = 0xf;
    /// A command.
    pub const COMMAND: u32 = 0;
    /// A reply.
    pub const REPLY: u32 = 1;
    /// The sender of the command wants no reply.
    pub const NO_REPLY: u32 = 1 << 4;
    /// The reply reports an error.
    pub const ERROR: u32 = 1 << 5;
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender of a command; the reply has the same.
    pub message_id: u16,
    /// One of [`vfio_user::Command`].
    pub command: u16,
    /// Bytes of the whole message.
    pub message_size: u32,
    /// See [`flags`].
    pub flags: u32,
    /// Error number of a reply.
    pub error: u32,
}

impl Header {
    /// Whether the sender wants no reply.
    pub fn no_reply(&self) -> bool {
        self.flags & flags::NO_REPLY != 0
    }
}

/// Version negotiation; capabilities follow as JSON text that ends with a zero byte.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    /// Incompatible changes.
    pub major: u16,
    /// Compatible additions.
    pub minor: u16,
}

/// Makes guest memory known to the server; a file descriptor comes with it if it can be mapped.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMap {
    /// Bytes of this structure.
    pub argsz: u32,
    /// Bits of [`vfio_user::DmaMapFlags`].
    pub flags: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Guest physical address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// Withdraws guest memory.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmap {
    /// Bytes of this structure.
    pub argsz: u32,
    /// Bits of [`vfio_user::DmaUnmapFlags`].
    pub flags: u32,
    /// Guest physical address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// `vfio_device_info` without its optional tail.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Bytes of this structure.
    pub argsz: u32,
    /// `VFIO_DEVICE_FLAGS_*`.
    pub flags: u32,
    /// How many regions there are.
    pub num_regions: u32,
    /// How many interrupt indices there are.
    pub num_irqs: u32,
}

/// `vfio_region_info`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionInfo {
    /// Bytes of this structure and its capabilities.
    pub argsz: u32,
    /// `VFIO_REGION_INFO_FLAG_*`.
    pub flags: u32,
    /// Which region.
    pub index: u32,
    /// Offset of the first capability.
    pub cap_offset: u32,
    /// Bytes of the region.
    pub size: u64,
    /// Offset to map at.
    pub offset: u64,
}

/// `vfio_irq_info`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqInfo {
    /// Bytes of this structure.
    pub argsz: u32,
    /// `VFIO_IRQ_INFO_*`.
    pub flags: u32,
    /// Which index.
    pub index: u32,
    /// How many interrupts the index has.
    pub count: u32,
}

/// `vfio_irq_set`; its data follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqSet {
    /// Bytes of this structure and its data.
    pub argsz: u32,
    /// `VFIO_IRQ_SET_*`.
    pub flags: u32,
    /// Which index.
    pub index: u32,
    /// First interrupt of the index.
    pub start: u32,
    /// How many interrupts.
    pub count: u32,
}

/// A read from or a write to a region; the data follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccess {
    /// Offset in the region.
    pub offset: u64,
    /// Which region.
    pub region: u32,
    /// Bytes of data.
    pub count: u32,
}
