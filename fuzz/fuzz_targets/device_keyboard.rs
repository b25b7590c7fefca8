//! A keyboard.
#![no_main]

use vm_usb_fuzz::driver::tokens::Kind;

libfuzzer_sys::fuzz_target!(|tokens: vm_usb_fuzz::device::Tokens| tokens.live(|_| Kind::Keyboard));
