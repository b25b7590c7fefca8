//! A client of the vfio-user server that does as it likes.
#![no_main]

use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vm_usb_fuzz::vfio_user::live(bytes, &MEMORY));
