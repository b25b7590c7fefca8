//! Any description of a device, and any part of its descriptors asked for.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: vm_usb_fuzz::descriptors::Asked| input.live());
