//! The bytes of a capture file: libpcap's container, and what Linux's usbmon puts into it
//! (`LINKTYPE_USB_LINUX_MMAPPED`, Documentation/usb/usbmon.rst).
//!
//! Everything is little-endian: usbmon's headers are in the byte order of the file.

use vm_usb::usb::TransferType;
use zerocopy::{Immutable, IntoBytes};

/// Captures with times in microseconds.
const MAGIC: u32 = 0xa1b2_c3d4;
/// `LINKTYPE_USB_LINUX_MMAPPED`: usbmon's headers of 64 bytes.
const LINK_TYPE: u32 = 220;

/// Length of [`Event`], and so of an event without data.
pub const EVENT_SIZE: usize = size_of::<Event>();

/// The head of a file.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub struct FileHeader {
    magic: u32,
    major: u16,
    minor: u16,
    zone: u32,
    accuracy: u32,
    longest: u32,
    link_type: u32,
}

impl FileHeader {
    /// A capture with up to `data` bytes of each transfer.
    pub fn new(data: u32) -> Self {
        Self {
            magic: MAGIC,
            major: 2,
            minor: 4,
            zone: 0,
            accuracy: 0,
            longest: data.saturating_add(EVENT_SIZE as u32),
            link_type: LINK_TYPE,
        }
    }
}

/// The head of a record.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
pub struct RecordHeader {
    seconds: u32,
    micros: u32,
    /// Bytes that follow, and bytes there were.
    captured: u32,
    length: u32,
}

impl RecordHeader {
    /// For `event`, of which all captured data follows.
    pub fn new(event: &Event) -> Self {
        let size = EVENT_SIZE as u32;
        let whole = if event.data_flag == 0 { event.length } else { 0 };
        Self {
            // 32 bits are what the format has; they last until 2106.
            seconds: event.seconds as u32,
            micros: event.micros,
            captured: size.saturating_add(event.captured),
            length: size.saturating_add(whole),
        }
    }
}

/// A moment of wall-clock time, in microseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wall(pub u64);

/// usbmon's `struct mon_bin_hdr`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Event {
    id: u64,
    kind: u8,
    transfer_type: u8,
    endpoint: u8,
    device: u8,
    bus: u16,
    setup_flag: u8,
    data_flag: u8,
    seconds: i64,
    micros: u32,
    status: i32,
    length: u32,
    captured: u32,
    setup: [u8; 8],
    interval: u32,
    start_frame: u32,
    flags: u32,
    descriptors: u32,
}

/// `URB_DIR_IN`.
const DIRECTION_IN: u32 = 0x200;
/// `-EINPROGRESS`, the status of what has just begun.
const IN_PROGRESS: i32 = -115;

/// Which transfer an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The same for the beginning and the end, and for no other transfer.
    pub id: u64,
    /// Number of the bus, from 1.
    pub bus: u16,
    /// Address of the device.
    pub device: u8,
    /// `bEndpointAddress`; of a control transfer, with the direction of its data stage.
    pub endpoint: u8,
    /// The type.
    pub transfer_type: TransferType,
}

impl Subject {
    fn is_in(&self) -> bool {
        self.endpoint & 0x80 != 0
    }

    fn event(&self, kind: u8, at: Wall, status: i32, length: u32) -> Event {
        Event {
            id: self.id,
            kind,
            transfer_type: match self.transfer_type {
                TransferType::Isochronous => 0,
                TransferType::Interrupt => 1,
                TransferType::Control => 2,
                TransferType::Bulk => 3,
            },
            endpoint: self.endpoint,
            device: self.device,
            bus: self.bus,
            setup_flag: b'-',
            data_flag: 0,
            seconds: i64::try_from(at.0 / 1_000_000).unwrap_or(i64::MAX),
            micros: (at.0 % 1_000_000) as u32,
            status,
            length,
            captured: 0,
            setup: [0; 8],
            interval: 0,
            start_frame: 0,
            flags: if self.is_in() { DIRECTION_IN } else { 0 },
            descriptors: 0,
        }
    }

    /// The transfer begins: `length` bytes are to move, of which the file has `captured` if it is an
    /// OUT transfer.
    pub fn submitted(&self, at: Wall, setup: Option<[u8; 8]>, length: u32, captured: u32) -> Event {
        let mut event = self.event(b'S', at, IN_PROGRESS, length);
        if let Some(setup) = setup {
            event.setup_flag = 0;
            event.setup = setup;
        }
        event.carry(!self.is_in(), b'<', captured);
        event
    }

    /// The transfer has ended with `status`, 0 or a negative error number of Linux, after `length`
    /// bytes, of which the file has `captured` if it is an IN transfer.
    pub fn completed(&self, at: Wall, status: i32, length: u32, captured: u32) -> Event {
        let mut event = self.event(b'C', at, status, length);
        event.carry(self.is_in(), b'>', captured);
        event
    }
}

impl Event {
    /// Says whether data follows, or else why not.
    fn carry(&mut self, carries: bool, otherwise: u8, captured: u32) {
        if carries {
            self.captured = captured.min(self.length);
        } else if self.length != 0 {
            self.data_flag = otherwise;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_have_the_layout_that_readers_expect() {
        assert_eq!(size_of::<FileHeader>(), 24);
        assert_eq!(size_of::<RecordHeader>(), 16);
        assert_eq!(EVENT_SIZE, 64);
        let subject = Subject {
            id: 0x0102_0304_0506_0708,
            bus: 2,
            device: 5,
            endpoint: 0x81,
            transfer_type: TransferType::Bulk,
        };
        let at = Wall(1_700_000_000_123_456);
        let event = subject.completed(at, -32, 1000, 13);
        let bytes = event.as_bytes();
        assert_eq!(bytes[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[8..16], [b'C', 3, 0x81, 5, 2, 0, b'-', 0]);
        assert_eq!(bytes[16..24], 1_700_000_000_u64.to_le_bytes());
        assert_eq!(bytes[24..28], 123_456_u32.to_le_bytes());
        assert_eq!(bytes[28..32], (-32_i32).to_le_bytes());
        assert_eq!(bytes[32..40], [0xe8, 3, 0, 0, 13, 0, 0, 0]);
        let record = RecordHeader::new(&event);
        assert_eq!((record.captured, record.length), (64 + 13, 64 + 1000));
        let begun = subject.submitted(at, None, 1000, 0);
        assert_eq!(begun.as_bytes()[8..16], [b'S', 3, 0x81, 5, 2, 0, b'-', b'<']);
        assert_eq!(RecordHeader::new(&begun).length, 64, "data yet to come is not in the record");
    }
}
