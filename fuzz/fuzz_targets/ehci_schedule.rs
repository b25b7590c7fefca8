//! EHCI schedules that make sense, up to a few wrong fields.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: vm_usb_fuzz::ehci_schedule::Driver| input.live());
