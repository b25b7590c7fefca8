//! The PCI function in front of a host controller: configuration space, BAR 0, interrupts, power.
//!
//! [`PciFunction`] turns a [`HostController`](crate::controller::HostController) into what a VMM plugs
//! into its PCI bus: type-0 configuration space, one 32-bit memory BAR, INTx or one MSI vector, power
//! states D0 and D3hot, and for EHCI the registers of its own in configuration space (EHCI 2.1).
//!
//! Not implemented: I/O space, expansion ROM, MSI-X, PCI Express capabilities (the functions are
//! conventional PCI with 256 bytes of configuration space), D1, D2, and PME from D3cold.

mod config_space;
mod debug;
mod function;
mod identity;
mod legacy;
mod line;
mod message;
mod msi;
mod power;
mod statistics;
mod type0;

pub use function::{PciFunction, Placement};
pub use identity::{Identity, InterruptPin};
pub use line::InterruptLine;
pub use statistics::FunctionStatistics;
pub use type0::CONFIG_SPACE_SIZE;
