//! usbfs: a request to the driver of a USB interface, and transfers without a driver.
//!
//! The one place where the agent hands the kernel pointers: no safe wrapper of these requests exists.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::AsFd;

use guest_protocol::StreamShape;
use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `struct usbdevfs_ioctl`.
#[repr(C)]
struct InterfaceRequest {
    interface: c_int,
    code: c_int,
    data: *mut c_void,
}

/// `USBDEVFS_IOCTL`.
const INTERFACE_REQUEST: Opcode = opcode::read_write::<InterfaceRequest>(b'U', 18);

/// `struct usbtest_param_32`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UsbTestParameters {
    pub(crate) case: u32,
    pub(crate) iterations: u32,
    pub(crate) length: u32,
    pub(crate) vary: u32,
    pub(crate) sglen: u32,
    pub(crate) seconds: i32,
    pub(crate) microseconds: i32,
}

/// `USBTEST_REQUEST_32`.
const USBTEST_REQUEST: Opcode = opcode::read_write::<UsbTestParameters>(b'U', 100);

/// Has the `usbtest` driver of `interface` run a case; `parameters` takes its duration.
pub(crate) fn usbtest(
    device: impl AsFd,
    interface: i32,
    parameters: &mut UsbTestParameters,
) -> Result<()> {
    let mut request = InterfaceRequest {
        interface,
        // The kernel compares the code's bits with the opcode's.
        code: USBTEST_REQUEST as c_int,
        data: std::ptr::from_mut(parameters).cast(),
    };
    // SAFETY: the kernel reads and writes `InterfaceRequest`, and behind `data` as many bytes as `code` says: those of
    // `UsbTestParameters`, which is borrowed until the call returns.
    unsafe { ioctl(device, Updater::<INTERFACE_REQUEST, _>::new(&mut request)) }
}

/// `USBDEVFS_CLAIMINTERFACE` and `USBDEVFS_SETINTERFACE`.
const CLAIM: Opcode = opcode::read::<c_uint>(b'U', 15);
const SET_INTERFACE: Opcode = opcode::read::<[c_uint; 2]>(b'U', 4);

/// Takes an interface that no driver has.
pub(crate) fn claim(device: &File, interface: i32) -> Result<()> {
    // SAFETY: the kernel reads one number.
    unsafe { ioctl(device, Setter::<CLAIM, _>::new(interface)) }
}

/// Selects an alternate setting of a claimed interface.
pub(crate) fn set_interface(device: &File, interface: i32, alternate: u8) -> Result<()> {
    let values = [interface as c_uint, alternate.into()];
    // SAFETY: the kernel reads two numbers.
    unsafe { ioctl(device, Setter::<SET_INTERFACE, _>::new(values)) }
}

/// Most isochronous packets of a request.
const MOST_PACKETS: usize = 128;

/// `struct usbdevfs_iso_packet_desc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Packet {
    length: c_uint,
    actual_length: c_uint,
    status: c_int,
}

/// `struct usbdevfs_urb` without its packets.
#[repr(C)]
struct Head {
    kind: u8,
    endpoint: u8,
    status: c_int,
    flags: c_uint,
    buffer: *mut c_void,
    buffer_length: c_int,
    actual_length: c_int,
    start_frame: c_int,
    number_of_packets: c_int,
    error_count: c_int,
    signal: c_uint,
    user_context: *mut c_void,
}

#[repr(C)]
struct Urb {
    head: Head,
    packets: [Packet; MOST_PACKETS],
}

/// Values of `kind`.
const KIND_ISOCHRONOUS: u8 = 0;
const KIND_BULK: u8 = 3;

/// `USBDEVFS_SUBMITURB` and `USBDEVFS_REAPURB`.
const SUBMIT: Opcode = opcode::read::<Head>(b'U', 10);
const REAP: Opcode = opcode::write::<*mut c_void>(b'U', 12);

/// How a packet went; a bulk request is one packet here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketStatus {
    Good,
    /// Its time had passed.
    Late,
    Failed,
}

/// A request and its memory, mapped from the device's node: physically contiguous and not copied.
struct Slot {
    urb: Box<UnsafeCell<Urb>>,
    memory: *mut c_void,
    length: usize,
}

/// Requests of one open device.
pub(crate) struct Queue<'a> {
    device: &'a File,
    slots: Vec<Slot>,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(device: &'a File) -> Self {
        Self { device, slots: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds a request; it is not submitted.
    pub(crate) fn add(&mut self, endpoint: u8, shape: StreamShape) -> Result<()> {
        let mut packets = [Packet::default(); MOST_PACKETS];
        let (kind, count, length) = match shape {
            StreamShape::Bulk { bytes } => (KIND_BULK, 0, bytes),
            StreamShape::Isochronous { packets: count, bytes } => {
                let used = packets.get_mut(..count).ok_or(Errno::INVAL)?;
                used.fill(Packet { length: bytes as c_uint, ..Packet::default() });
                (KIND_ISOCHRONOUS, count, count * bytes)
            }
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of the device's own memory, at a place that the kernel chooses.
        let memory = unsafe {
            mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, self.device, 0)?
        };
        let head = Head {
            kind,
            endpoint,
            status: 0,
            flags: 0,
            buffer: memory,
            buffer_length: length as c_int,
            actual_length: 0,
            start_frame: 0,
            number_of_packets: count as c_int,
            error_count: 0,
            signal: 0,
            user_context: std::ptr::null_mut(),
        };
        let urb = Box::new(UnsafeCell::new(Urb { head, packets }));
        self.slots.push(Slot { urb, memory, length });
        Ok(())
    }

    /// Hands a request to the kernel.
    pub(crate) fn submit(&mut self, slot: usize) -> Result<()> {
        let urb = self.slots.get_mut(slot).ok_or(Errno::INVAL)?.urb.get_mut();
        // SAFETY: the kernel reads the request now and writes to it within `reap`. It is in a box of its own, which
        // lives as long as the queue; the queue closes nothing, and a kernel that is never asked again writes nothing.
        unsafe { ioctl(self.device, Updater::<SUBMIT, _>::new(urb)) }
    }

    /// Waits for the next request that is back.
    pub(crate) fn reap(&mut self) -> Result<usize> {
        // SAFETY: the kernel writes one pointer, and behind it to a request of this queue: those are the only ones that
        // were submitted to this open device.
        let back = unsafe { ioctl(self.device, Getter::<REAP, *mut c_void>::new())? };
        let is_back = |slot: &Slot| slot.urb.get().cast() == back;
        self.slots.iter().position(is_back).ok_or(Errno::INVAL)
    }

    /// How the packets of a request went that is back, and the bytes of each.
    pub(crate) fn packets(&mut self, slot: usize) -> Vec<(PacketStatus, u32)> {
        let Some(slot) = self.slots.get_mut(slot) else { return Vec::new() };
        let Urb { head, packets } = slot.urb.get_mut();
        if head.kind == KIND_BULK {
            return vec![(status(head.status), head.actual_length as u32)];
        }
        let used = packets.iter().take(head.number_of_packets as usize);
        used.map(|packet| (status(packet.status), packet.actual_length)).collect()
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        for slot in &self.slots {
            // SAFETY: mapped by `add`, and no reference into it exists. The kernel counts its own use of it.
            let _ = unsafe { munmap(slot.memory, slot.length) };
        }
    }
}

fn status(code: c_int) -> PacketStatus {
    match code {
        0 => PacketStatus::Good,
        late if late == -Errno::XDEV.raw_os_error() => PacketStatus::Late,
        _ => PacketStatus::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_are_the_kernels() {
        assert_eq!(INTERFACE_REQUEST, 0xc010_5512);
        assert_eq!(USBTEST_REQUEST, 0xc01c_5564);
        assert_eq!(CLAIM, 0x8004_550f);
        assert_eq!(SET_INTERFACE, 0x8008_5504);
        assert_eq!(SUBMIT, 0x8038_550a);
        assert_eq!(REAP, 0x4008_550c);
    }
}
