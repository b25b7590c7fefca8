//! USB host controllers for virtual machine monitors: OHCI and EHCI on PCI, and devices to plug in.
//!
//! A guest's own drivers find the controllers on their PCI bus and need nothing else. The library is
//! *sans I/O*: a controller is a value that is told of register accesses and of the time, and answers
//! with guest memory, an interrupt and the next moment it must be called. It has no threads, timers,
//! file descriptors or clock, no `unsafe`, and does not panic on anything a guest does.
//!
//! # What it emulates
//!
//! * [`ohci`]: OpenHCI 1.0a. Control, bulk, interrupt and isochronous transfers, root hub, suspend and
//!   remote wakeup, over-current, frame pacing as a policy; legacy keyboard support as an option.
//! * [`ehci`]: EHCI 1.0, and 1.1 as an option. Both schedules, isochronous transfers, split transactions for full- and
//!   low-speed devices behind a high-speed hub, ports with a companion controller, 64-bit addressing,
//!   interrupts on completion, and the debug port.
//! * [`pci`]: a type 0 function around either, with INTx, MSI, power management and EHCI's legacy
//!   support capability.
//! * [`devices`]: mass storage, keyboard, tablet, hubs with transaction translators, printer, a
//!   debug console, the kernel's test gadget, and a wrapper that injects faults. [`usb::UsbDevice`] is
//!   the trait to write another.
//!
//! # What it does not
//!
//! A file or a block device as a medium of a disk is in the crate `vm-usb-image`, since the library
//! opens none.
//!
//! # The map
//!
//! | module | what |
//! |---|---|
//! | [`controller`] | what every controller offers: [`HostController`](controller::HostController) |
//! | [`pci`] | [`PciFunction`](pci::PciFunction): what a VMM puts on its bus |
//! | [`topology`] | [`Port`](topology::Port): sockets, and who owns one |
//! | [`snapshot`] | saving a machine's state, and going on from it |
//! | [`usb`] | transfers, descriptors, chapter 9 around a [`UsbDevice`](usb::UsbDevice) |
//! | [`dma`], [`time`] | guest memory and the clock, both lent for each call |
//!
//! # Features
//!
//! None is on by default. Each adds to the module `adapters`, the one place that knows of file
//! descriptors, threads and a clock.
//!
//! | feature | adds | dependencies |
//! |---|---|---|
//! | `event-manager` | `SharedFunction`: a function that vCPU threads and an `event-manager` loop share | `event-manager` 0.4, `vmm-sys-util` 0.15 |
//! | `kvm` | `KvmInterrupt`: INTx on an irqfd, MSI by `KVM_SIGNAL_MSI` | `kvm-ioctls` 0.25, `kvm-bindings` 0.14, `vmm-sys-util` 0.15 |
//! | `thread` | `ThreadedFunction`: a function with a thread of its own | none |
//!
//! # Versions
//!
//! Releases follow [semantic versioning](https://semver.org). Until 1.0 a new minor version (0.1 to 0.2) may
//! break an embedder and the changelog says how to follow; a patch version (0.1.0 to 0.1.1) does not.
//! Four things belong to the interface besides the Rust items:
//!
//! * **`vm-memory`**, since [`GuestMemory`](vm_memory::GuestMemory) is its trait: this version takes 0.18, and another
//!   one is a new minor version. So are those of the dependencies of a feature.
//! * **The Rust version**: 1.88, declared in the manifest and kept to by the lints. A newer one is a new minor
//!   version, and has been stable for six months then.
//! * **Saved state**: [`snapshot`] reads what all earlier versions of its format wrote.
//! * **What a guest sees**: a default that changes for a guest at work (ids, capabilities, the number of
//!   ports) is a new minor version.
//!
//! Text of log lines and errors, and when exactly within what the specifications allow a transfer is
//! carried out, are not part of the interface.
//!
//! # An EHCI controller with a disk
//!
//! ```
//! use vm_memory::{GuestAddress, GuestMemoryMmap};
//! use vm_usb::devices::storage::{RamDisk, Serial, Storage};
//! use vm_usb::ehci::Ehci;
//! use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
//! use vm_usb::time::Time;
//! use vm_usb::topology::{Host, Port};
//!
//! // Where interrupts go: an irqfd, an interrupt controller, here a flag.
//! #[derive(Default)]
//! struct Line(bool);
//!
//! impl InterruptLine for Line {
//!     fn set_level(&mut self, asserted: bool) {
//!         self.0 = asserted;
//!     }
//!     fn message(&mut self, _address: u64, _data: u32) {}
//! }
//!
//! let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 1 << 20)])?;
//! let port = Port::high_speed_only();
//! port.attach(Box::new(Storage::new(RamDisk::zeroed(2048), Serial::from_name("disk"))))?;
//!
//! let ehci = Ehci::new(vec![port.link(Host::High)]);
//! let mut function =
//!     PciFunction::new(Identity::ehci(), Placement::default(), ehci, Line::default());
//!
//! // The guest's firmware looks at the class code, enables the function, and starts the controller.
//! let mut now = Time::ZERO;
//! let mut class = [0; 3];
//! function.config_read(&memory, now, 0x09, &mut class);
//! assert_eq!(class, [0x20, 0x03, 0x0c]);
//! function.config_write(&memory, now, 0x04, &[0x06, 0x00]);
//! let mut caplength = [0];
//! function.bar_read(&memory, now, 0x00, &mut caplength);
//! let operational = u64::from(caplength[0]);
//! function.bar_write(&memory, now, operational, &[0x01, 0x00, 0x08, 0x00]); // USBCMD: R/S
//! function.bar_write(&memory, now, operational + 0x40, &[1, 0, 0, 0]); // CONFIGFLAG
//! function.bar_write(&memory, now, operational + 0x44, &[0, 0x10, 0, 0]); // PORTSC: port power
//!
//! // The VMM's loop: sleep until the deadline or until a device wakes it, then run.
//! for _ in 0..10 {
//!     now = function.deadline().unwrap_or(now).max(now.after_millis(1));
//!     function.run(&memory, now);
//! }
//!
//! let mut portsc = [0; 4];
//! function.bar_read(&memory, now, operational + 0x44, &mut portsc);
//! assert_eq!(portsc[0] & 0x3, 0x3, "a device is connected, and that is news");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
// Everything below is computed from values a guest chooses.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

#[cfg(any(feature = "event-manager", feature = "kvm", feature = "thread"))]
pub mod adapters;
pub mod controller;
pub mod devices;
pub mod dma;
pub mod ehci;
mod journal;
pub mod ohci;
pub mod pci;
pub mod snapshot;
pub mod time;
pub mod topology;
pub mod usb;
