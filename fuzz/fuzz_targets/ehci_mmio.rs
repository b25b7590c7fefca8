//! Raw register traffic and time over random memory, on an EHCI controller with real devices.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vm_usb_fuzz::ehci::live(input));
