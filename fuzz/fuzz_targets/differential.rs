//! The same driver's program on OHCI and on EHCI.
#![no_main]

libfuzzer_sys::fuzz_target!(|play: vm_usb_fuzz::differential::Play| play.check());
