//! `vm-usb-kvm`: a small VMM on KVM that shows how the controllers of `vm-usb` are embedded.
//!
//! | file | |
//! |---|---|
//! | `usb.rs` | the embedding itself: ports, controllers, functions, interrupts, disks |
//! | `monitor.rs` | commands while the guest runs: pause, attach and detach, statistics |
//! | `checkpoint.rs` | the controllers saved and restored while the guest runs |
//! | `idle.rs` | what a sleeping guest costs |
//! | `statistics.rs` | what was counted, as text |
//! | `pci.rs` | bus 0 and configuration mechanism #1 |
//! | `vm.rs` | the virtual machine: KVM, memory, the event loop's thread and the vCPU's |
//! | `vcpu.rs` | the vCPU: initial state, exits |
//! | `ports.rs` | I/O ports: serial line, PCI, the way out |
//! | `boot.rs` | bzImage and PVH kernels |
//!
//! It has one vCPU, no firmware, no ACPI tables and no other devices.

#[cfg(target_arch = "x86_64")]
mod boot;
#[cfg(target_arch = "x86_64")]
mod checkpoint;
#[cfg(target_arch = "x86_64")]
mod cli;
#[cfg(target_arch = "x86_64")]
mod idle;
#[cfg(target_arch = "x86_64")]
mod monitor;
#[cfg(target_arch = "x86_64")]
mod pci;
#[cfg(target_arch = "x86_64")]
mod ports;
#[cfg(target_arch = "x86_64")]
mod statistics;
#[cfg(target_arch = "x86_64")]
mod usb;
#[cfg(target_arch = "x86_64")]
mod vcpu;
#[cfg(target_arch = "x86_64")]
mod vm;

use std::process::ExitCode;

#[cfg(target_arch = "x86_64")]
fn main() -> ExitCode {
    cli::main()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() -> ExitCode {
    eprintln!("vm-usb-kvm: this VMM builds a PC: run it on an x86-64 host");
    ExitCode::FAILURE
}
