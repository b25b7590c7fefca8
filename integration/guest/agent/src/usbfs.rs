//! A request to the driver of a USB interface, through usbfs.
//!
//! The one place where the agent hands the kernel a pointer: no safe wrapper of this request exists.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;

use rustix::io::Result;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_are_the_kernels() {
        assert_eq!(INTERFACE_REQUEST, 0xc010_5512);
        assert_eq!(USBTEST_REQUEST, 0xc01c_5564);
    }
}
