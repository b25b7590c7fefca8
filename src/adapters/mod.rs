//! Ready-made connections to a VMM's surroundings: an event loop, KVM.
//!
//! This is the one room of the library that knows of file descriptors, threads and a clock. Nothing else in
//! it depends on this one, and all of it is optional:
//!
//! | feature | offers | built on |
//! |---|---|---|
//! | `event-manager` | [`SharedFunction`]: a PCI function that vCPU threads and one event loop share | `event-manager`, `vmm-sys-util` |
//! | `kvm` | [`KvmInterrupt`]: INTx on an irqfd with resampling, MSI by `KVM_SIGNAL_MSI` | `kvm-ioctls`, `kvm-bindings`, `vmm-sys-util` |
//! | `thread` | [`ThreadedFunction`]: a PCI function with a thread of its own | the standard library |
//!
//! A VMM with another event loop does what [`SharedFunction`] does: after each call into the function
//! it arms a timer to [`PciFunction::deadline`](crate::pci::PciFunction::deadline), and it calls
//! [`PciFunction::run`](crate::pci::PciFunction::run) when the timer goes off or a
//! [`Wake`](crate::usb::Wake) is called.

#[cfg(feature = "event-manager")]
mod alarm;
#[cfg(any(feature = "event-manager", feature = "thread"))]
mod clock;
#[cfg(all(test, any(feature = "event-manager", feature = "thread")))]
mod clockwork;
#[cfg(feature = "kvm")]
mod kvm;
#[cfg(feature = "event-manager")]
mod shared_function;
#[cfg(feature = "thread")]
mod threaded_function;
#[cfg(feature = "event-manager")]
mod wake_fd;

#[cfg(any(feature = "event-manager", feature = "thread"))]
pub use clock::MonotonicClock;
#[cfg(feature = "kvm")]
pub use kvm::{KvmInterrupt, Resample};
#[cfg(feature = "event-manager")]
pub use shared_function::{Paused, SharedFunction};
#[cfg(feature = "thread")]
pub use threaded_function::ThreadedFunction;
#[cfg(feature = "event-manager")]
pub use wake_fd::WakeFd;

/// The code of the embedding guide, compiled and run.
#[cfg(all(doctest, feature = "event-manager"))]
#[doc = include_str!("../../docs/embedding/embed.md")]
mod guide {}
