//! A disk whose host queues commands.
#![no_main]

libfuzzer_sys::fuzz_target!(|queue: vm_usb_fuzz::uas::Queue| queue.live());
