//! A damaged snapshot.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: vm_usb_fuzz::snapshot::Courier| input.live());
