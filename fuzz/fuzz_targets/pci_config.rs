//! Configuration space, with BAR accesses, time and resets in between.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: vm_usb_fuzz::pci::Visitor| input.live());
