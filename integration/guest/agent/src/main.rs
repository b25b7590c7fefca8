//! The first process of the lab's Linux guest.
//!
//! It mounts what a userland expects, loads the drivers, and then serves the host's requests one at a time over the
//! second serial port (see `guest-protocol`). It never touches a device but through the stock kernel: what it
//! reports is what Linux made of the controllers. With `lab.shell` on the kernel's command line it gives the person
//! at the console a shell instead.

#![deny(unsafe_code)]

mod direct;
mod disks;
mod filesystem;
mod hotplug;
mod input;
mod inventory;
mod measure;
mod printer;
mod reload;
mod serve;
mod start;
mod stream;
mod suspend;
mod sysfs;
mod usbfs;
mod usbtest;
mod wait;

fn main() {
    if let Err(error) = start::run() {
        // The console is what is left when even the channel to the host failed.
        eprintln!("guest agent: {error:#}");
    }
    start::power_off();
}
