//! A disk, with a host that speaks UAS.
#![no_main]

libfuzzer_sys::fuzz_target!(|queue: vm_usb_fuzz::uas::Queue| queue.live());
