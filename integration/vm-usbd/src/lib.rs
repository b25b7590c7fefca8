//! A vfio-user server for the host controllers of `vm-usb`.
//!
//! Each controller has a socket, a thread and a loop of its own ([`serve::Server`]): commands of the
//! VMM, the controller's timer and wake-ups by its devices are looked at in turn. [`session`] is the
//! protocol, [`memory`] the guest's RAM as the VMM shares it, [`interrupts`] its event descriptors.

pub mod alarm;
pub mod assembly;
pub mod backing;
pub mod channel;
pub mod checkpoint;
pub mod cli;
pub mod clock;
pub mod control;
pub mod conversation;
pub mod crowd;
pub mod disks;
pub mod doorbell;
pub mod errands;
pub mod gauge;
pub mod halt_poll;
pub mod input;
pub mod input_socket;
pub mod interrupts;
pub mod irq_set;
pub mod lines;
pub mod listener;
pub mod memory;
pub mod options;
pub mod outputs;
pub mod pcap;
pub mod plugboard;
pub mod printout;
pub mod remapping;
pub mod sandbox;
pub mod serve;
pub mod session;
pub mod spin;
pub mod statistics;
pub mod table;
pub mod tape;
pub mod top;
pub mod transcript;
pub mod wire;
