//! `cargo xtask`: the lab. It boots stock Linux guests from this project's controllers and says what they saw.
//!
//! On a fresh machine it sets itself up: QEMU, kernels and a small userland come from the machine's own Debian mirror
//! into a cache folder (`$VM_USB_CACHE`), and nothing is installed on the system.

#![forbid(unsafe_code)]

mod acceptance;
mod bench;
mod boot;
mod cli;
mod fuzz;
mod guest;
mod guests;
mod hotplug;
mod images;
mod initramfs;
mod lab_run;
mod printer;
mod progress;
mod run_folder;
mod seeds;
mod setup;
mod shell;
mod simulate;
mod tally;
mod test;
mod usbtest;
mod workloads;
mod workspace;

fn main() -> std::process::ExitCode {
    cli::run()
}
