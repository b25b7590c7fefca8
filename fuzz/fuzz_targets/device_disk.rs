//! A disk, of which every other one is read-only.
#![no_main]

use vm_usb_fuzz::driver::tokens::Kind;

libfuzzer_sys::fuzz_target!(|tokens: vm_usb_fuzz::device::Tokens| tokens
    .live(|seed| if seed % 2 == 0 { Kind::Disk } else { Kind::ReadOnlyDisk }));
