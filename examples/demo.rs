//! What the controllers do, without a guest: drivers of the tests' own software host find devices
//! behind an EHCI and an OHCI controller, write and read a disk, and take key presses.
//!
//! Run it with `cargo run --release --example demo`.

#[path = "../tests/driver/mod.rs"]
mod driver;

use std::error::Error;
use std::time::Instant;

use driver::ehci::EhciDriver;
use driver::enumerate::{Enumerated, enumerate};
use driver::hid::HidDriver;
use driver::host::HostDriver;
use driver::machine::Machine;
use driver::mass_storage::MassStorage;
use driver::ohci::OhciDriver;
use vm_usb::devices::hid::{Key, Keyboard, KeyboardHandle};
use vm_usb::devices::storage::{RamDisk, Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::Speed;

/// Size of the disks in blocks of 512 bytes.
const BLOCKS: usize = 16 << 11;
/// Bytes of one read or write.
const CHUNK: usize = 64 << 10;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    println!("vm-usb: two host controllers in this process, each with a disk and a keyboard.");
    println!("The guest's clock is simulated; MB/s are of this machine's time, drivers included.");

    let high = Bus::new(Speed::High, Port::high_speed_only);
    let mut ehci = EhciDriver::new(Machine::new(Ehci::new(high.links(Host::High))));
    println!("\nEHCI");
    let begin = ehci.machine.now;
    high.show(&mut ehci, 32 << 20)?;
    summary(ehci.interrupts, ehci.machine.now, begin);

    let classic = Bus::new(Speed::Full, Port::classic);
    let mut ohci = OhciDriver::new(Ohci::new(classic.links(Host::Classic)));
    println!("\nOHCI");
    let begin = ohci.machine.now;
    classic.show(&mut ohci, 2 << 20)?;
    summary(ohci.interrupts, ohci.machine.now, begin);
    Ok(())
}

fn summary(interrupts: u64, now: Time, begin: Time) {
    let passed = now.since(begin).as_secs_f64() * 1e3;
    println!("  {interrupts} interrupts in {passed:.0} ms of the guest's time");
}

/// A controller's sockets with what is plugged into them.
struct Bus {
    ports: [Port; 2],
    disk: RamDisk,
    keyboard: KeyboardHandle,
}

impl Bus {
    /// A disk in port 0 and a keyboard in port 1.
    fn new(speed: Speed, port: impl Fn() -> Port) -> Self {
        let ports = [port(), port()];
        let disk = RamDisk::zeroed(BLOCKS);
        let keyboard = Keyboard::new(speed);
        let handle = keyboard.handle();
        let storage = Storage::new(disk.clone(), Serial::from_name("demo"));
        ports[0].attach(Box::new(storage)).expect("the port is empty");
        ports[1].attach(Box::new(keyboard)).expect("the port is empty");
        Self { ports, disk, keyboard: handle }
    }

    fn links(&self, host: Host) -> Vec<vm_usb::topology::PortLink> {
        self.ports.iter().map(|port| port.link(host)).collect()
    }

    /// Enumerates everything, then moves `bytes` to the disk and back.
    fn show(&self, host: &mut dyn HostDriver, bytes: usize) -> Result<()> {
        host.sleep_millis(100);
        for port in 0..host.ports() {
            if !host.connected(port) {
                continue;
            }
            let found = enumerate(host, port, port as u8 + 1).map_err(|e| format!("{e:?}"))?;
            describe(port, &found);
            if let Some(disk) = MassStorage::bind(&found) {
                self.use_disk(host, disk, bytes)?;
            }
            if let Some(keyboard) = HidDriver::bind(&found) {
                self.use_keyboard(host, &keyboard)?;
            }
        }
        Ok(())
    }

    fn use_disk(
        &self,
        host: &mut dyn HostDriver,
        mut disk: MassStorage,
        bytes: usize,
    ) -> Result<()> {
        let failed = |e| format!("the disk failed: {e:?}");
        disk.start(host).map_err(failed)?;
        let (blocks, block) = disk.capacity(host).map_err(failed)?;
        println!("    disk of {} MiB", (blocks * u64::from(block)) >> 20);
        let block = block as usize;
        let chunks = bytes / CHUNK;
        let place = |n: usize| (n * CHUNK / block % BLOCKS) as u32;

        let begin = Instant::now();
        for n in 0..chunks {
            disk.write(host, place(n), &pattern(n), block).map_err(failed)?;
        }
        println!("    wrote {} MiB: {}", bytes >> 20, rate(bytes, begin));

        let begin = Instant::now();
        // What was written last is what counts: the writes may have gone round the disk.
        let first = chunks.saturating_sub(BLOCKS * block / CHUNK);
        for n in first..chunks {
            let data = disk.read(host, place(n), CHUNK, block).map_err(failed)?;
            if data != pattern(n) {
                return Err(format!("64 KiB at block {} came back wrong", place(n)).into());
            }
        }
        let read = (chunks - first) * CHUNK;
        println!("    read {} MiB back, every byte right: {}", read >> 20, rate(read, begin));
        let stored = self.disk.contents();
        let wrong = (first..chunks).find(|n| {
            let at = place(*n) as usize * block;
            stored[at..at + CHUNK] != pattern(*n)
        });
        match wrong {
            None => println!("    and the image holds the same"),
            Some(n) => return Err(format!("the image is wrong at block {}", place(n)).into()),
        }
        Ok(())
    }

    fn use_keyboard(&self, host: &mut dyn HostDriver, keyboard: &HidDriver) -> Result<()> {
        let failed = |e| format!("the keyboard failed: {e:?}");
        keyboard.set_idle(host, 0).map_err(failed)?;
        let mut typed = String::new();
        for name in ["u", "s", "b"] {
            let key: Key = name.parse()?;
            self.keyboard.press(key)?;
            let report = keyboard.report(host, 100).map_err(failed)?;
            if report.get(2) != Some(&key.usage()) {
                return Err(format!("key {name} came as {report:02x?}").into());
            }
            self.keyboard.release(key);
            keyboard.report(host, 100).map_err(failed)?;
            typed.push_str(name);
        }
        println!("    typed \"{typed}\"");
        Ok(())
    }
}

fn describe(port: usize, found: &Enumerated) {
    let (vendor, product) = found.id();
    println!(
        "  port {}: {vendor:04x}:{product:04x} \"{}\" by {}, {}",
        port + 1,
        found.product,
        found.manufacturer,
        found.device.speed
    );
}

/// The bytes of chunk `n`.
fn pattern(n: usize) -> Vec<u8> {
    let mut state = n as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut bytes = Vec::with_capacity(CHUNK);
    while bytes.len() < CHUNK {
        // xorshift64*: no two chunks look alike.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend(state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes
}

fn rate(bytes: usize, begin: Instant) -> String {
    let seconds = begin.elapsed().as_secs_f64();
    format!("{:.0} MB/s", bytes as f64 / seconds / 1e6)
}
