//! A kernel's early console on an EHCI debug port, before any USB driver runs.
//!
//! It knows the controller's registers and nothing of schedules: it claims the port, resets it, finds
//! the debug device by trying every address, moves it to 127 and sends text eight bytes at a time.

use vm_memory::GuestMemoryMmap;
use vm_usb::controller::HostController;

use super::ehci::{cmd, port, reg, sts};
use super::machine::Machine;

/// Registers and time, however they are reached.
pub trait Registers {
    fn read32(&mut self, register: u64) -> u32;
    fn write32(&mut self, register: u64, value: u32);
    fn sleep_millis(&mut self, millis: u64);
}

impl<C: HostController<GuestMemoryMmap>> Registers for Machine<C> {
    fn read32(&mut self, register: u64) -> u32 {
        Machine::read32(self, register)
    }

    fn write32(&mut self, register: u64, value: u32) {
        Machine::write32(self, register, value);
    }

    fn sleep_millis(&mut self, millis: u64) {
        self.advance_millis(millis);
    }
}

/// Bits of the control register.
pub mod ctrl {
    pub const WRITE: u32 = 1 << 4;
    pub const GO: u32 = 1 << 5;
    pub const ERROR: u32 = 1 << 6;
    pub const IN_USE: u32 = 1 << 10;
    pub const DONE: u32 = 1 << 16;
    pub const ENABLED: u32 = 1 << 28;
    pub const OWNER: u32 = 1 << 30;
    pub const CLAIM: u32 = OWNER | ENABLED | IN_USE;

    pub fn exception(control: u32) -> u32 {
        control >> 7 & 7
    }

    pub fn len(control: u32) -> u32 {
        control & 0xf
    }
}

pub mod pid {
    pub const OUT: u32 = 0xe1;
    pub const IN: u32 = 0x69;
    pub const SETUP: u32 = 0x2d;
    pub const DATA0: u32 = 0xc3;
    pub const DATA1: u32 = 0x4b;
    pub const ACK: u32 = 0xd2;
    pub const NAK: u32 = 0x5a;
    pub const STALL: u32 = 0x1e;
}

/// The address the console gives its device.
const DEVICE: u32 = 127;
/// Tries of a packet that is refused.
const TRIES: u32 = 1_000;

/// Why a transaction or the start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    NotRunning,
    NotConnected,
    NotEnabled,
    NoDebugDevice,
    /// The exception of a transaction.
    Exception(u32),
    /// DONE never came.
    Silence,
}

/// The console.
pub struct EarlyConsole {
    /// Offset of the debug registers.
    at: u64,
    /// Endpoint addresses from the debug descriptor, as they are.
    out_endpoint: u32,
    in_endpoint: u32,
    /// The PID of the next data packet. Nothing but writes changes it, not even a new start.
    data: u32,
    /// The console gave up for good.
    dead: bool,
}

impl EarlyConsole {
    /// A console that has found the registers at `at`, in a controller that nobody has set up.
    pub fn new(at: u64) -> Self {
        Self { at, out_endpoint: 0, in_endpoint: 0, data: pid::DATA1, dead: true }
    }

    /// Brings the debug device up; the controller is reset first unless it is configured already.
    pub fn start(&mut self, bus: &mut impl Registers) -> Result<(), Trouble> {
        if bus.read32(reg::CONFIGFLAG) & 1 == 0 {
            Self::reset_controller(bus);
        }
        self.external_start(bus)
    }

    fn reset_controller(bus: &mut impl Registers) {
        let command = bus.read32(reg::USBCMD);
        bus.write32(reg::USBCMD, command | cmd::RESET);
        assert_eq!(bus.read32(reg::USBCMD) & cmd::RESET, 0, "the reset ends");
    }

    /// What the console does at first, and again after a driver reset the controller.
    pub fn external_start(&mut self, bus: &mut impl Registers) -> Result<(), Trouble> {
        let mut hard = true;
        loop {
            self.claim(bus)?;
            let port = Self::wait_for_port(bus);
            if port.is_ok() {
                break;
            }
            if bus.read32(reg::PORTSC) & port::CONNECT != 0 || !std::mem::take(&mut hard) {
                return port;
            }
            // The last resort: test packets may wake the device.
            let command = bus.read32(reg::USBCMD);
            bus.write32(reg::USBCMD, command & !cmd::RUN);
            let status = bus.read32(reg::PORTSC);
            bus.write32(reg::PORTSC, status | 4 << 16);
            bus.sleep_millis(50);
            Self::reset_controller(bus);
        }
        let control = bus.read32(self.at);
        bus.write32(self.at, control | ctrl::CLAIM);
        let control = bus.read32(self.at);
        if control & ctrl::CLAIM != ctrl::CLAIM {
            bus.write32(self.at, control & !ctrl::CLAIM);
            return Err(Trouble::NotEnabled);
        }
        // From here on the port is the debug port's alone.
        let status = bus.read32(reg::PORTSC);
        bus.write32(reg::PORTSC, status & !port::ENABLED);
        bus.sleep_millis(100);

        let found = (0..=DEVICE).find_map(|device| {
            let descriptor = self.control(bus, device, [0x80, 6, 0, 10, 0, 0, 4, 0]).ok()?;
            (descriptor.len() == 4).then_some((device, descriptor))
        });
        let (device, descriptor) = found.ok_or(Trouble::NoDebugDevice)?;
        (self.in_endpoint, self.out_endpoint) = (descriptor[2].into(), descriptor[3].into());
        if device != DEVICE {
            self.control(bus, device, [0, 5, DEVICE as u8, 0, 0, 0, 0, 0])?;
        }
        self.control(bus, DEVICE, [0, 3, 6, 0, 0, 0, 0, 0])?;
        // Brings both sides' toggles together: if they differ, the device drops it.
        self.packet(bus, b" ")?;
        self.dead = false;
        Ok(())
    }

    /// Takes the port, and has the controller run.
    fn claim(&self, bus: &mut impl Registers) -> Result<(), Trouble> {
        let control = bus.read32(self.at);
        bus.write32(self.at, (control | ctrl::OWNER) & !(ctrl::ENABLED | ctrl::IN_USE));
        let command = bus.read32(reg::USBCMD);
        let off = cmd::PERIODIC | cmd::ASYNCHRONOUS | cmd::DOORBELL | cmd::RESET;
        bus.write32(reg::USBCMD, (command & !off) | cmd::RUN);
        bus.write32(reg::CONFIGFLAG, 1);
        let halted = bus.read32(reg::USBSTS) & sts::HALTED != 0;
        if halted { Err(Trouble::NotRunning) } else { Ok(()) }
    }

    /// Waits for a port change and resets the port.
    fn wait_for_port(bus: &mut impl Registers) -> Result<(), Trouble> {
        for _ in 0..300 {
            if bus.read32(reg::USBSTS) & sts::PORT != 0 {
                break;
            }
            bus.sleep_millis(1);
        }
        let status = bus.read32(reg::PORTSC);
        bus.write32(reg::PORTSC, (status & !port::ENABLED) | port::RESET);
        bus.sleep_millis(50);
        let status = bus.read32(reg::PORTSC);
        bus.write32(reg::PORTSC, status & !(port::CHANGES | port::RESET));
        let status = bus.read32(reg::PORTSC);
        assert_eq!(status & port::RESET, 0, "the reset ends");
        let wanted = port::CONNECT | port::ENABLED;
        let seen = status & (wanted | port::CONNECT_CHANGE);
        if seen == wanted { Ok(()) } else { Err(Trouble::NotConnected) }
    }

    /// One transaction, tried again while the device refuses; how many bytes it received.
    fn transaction(
        &self,
        bus: &mut impl Registers,
        control: u32,
        tries: u32,
    ) -> Result<usize, Trouble> {
        for attempt in 1.. {
            bus.write32(self.at, control | ctrl::GO);
            let status = bus.read32(self.at);
            if status & ctrl::DONE == 0 {
                return Err(Trouble::Silence);
            }
            bus.write32(self.at, status | ctrl::DONE);
            if status & ctrl::ERROR != 0 {
                return Err(Trouble::Exception(ctrl::exception(status)));
            }
            let received = bus.read32(self.at + 4) >> 16 & 0xff;
            if received != pid::NAK || attempt == tries {
                return Ok(ctrl::len(status) as usize);
            }
        }
        unreachable!("the loop ends with its last try")
    }

    fn send(
        &self,
        bus: &mut impl Registers,
        address: u32,
        pids: u32,
        bytes: &[u8],
    ) -> Result<usize, Trouble> {
        let control = bus.read32(self.at) & !0xf | ctrl::WRITE | bytes.len() as u32;
        let mut data = [0; 8];
        data[..bytes.len()].copy_from_slice(bytes);
        bus.write32(self.at + 8, u32::from_le_bytes(data[..4].try_into().unwrap()));
        bus.write32(self.at + 12, u32::from_le_bytes(data[4..].try_into().unwrap()));
        bus.write32(self.at + 16, address);
        bus.write32(self.at + 4, pids);
        self.transaction(bus, control, TRIES)
    }

    fn receive(
        &self,
        bus: &mut impl Registers,
        address: u32,
        len: u32,
        tries: u32,
    ) -> Result<Vec<u8>, Trouble> {
        let control = (bus.read32(self.at) & !(0xf | ctrl::WRITE)) | len;
        bus.write32(self.at + 16, address);
        bus.write32(self.at + 4, pid::DATA0 << 8 | pid::IN);
        let received = self.transaction(bus, control, tries)?;
        let mut bytes = bus.read32(self.at + 8).to_le_bytes().to_vec();
        bytes.extend(bus.read32(self.at + 12).to_le_bytes());
        bytes.truncate(received.min(len as usize));
        Ok(bytes)
    }

    /// A request with up to eight bytes in answer. There is no status stage after them.
    fn control(
        &self,
        bus: &mut impl Registers,
        device: u32,
        setup: [u8; 8],
    ) -> Result<Vec<u8>, Trouble> {
        self.send(bus, device << 8, pid::DATA0 << 8 | pid::SETUP, &setup)?;
        self.receive(bus, device << 8, setup[6].into(), TRIES)
    }

    fn packet(&mut self, bus: &mut impl Registers, bytes: &[u8]) -> Result<(), Trouble> {
        self.data ^= pid::DATA0 ^ pid::DATA1;
        let pids = self.data << 8 | pid::OUT;
        self.send(bus, DEVICE << 8 | self.out_endpoint, pids, bytes).map(|_| ())
    }

    /// Writes text, with a carriage return before each end of a line.
    pub fn print(&mut self, bus: &mut impl Registers, text: &str) {
        if self.dead {
            return;
        }
        let command = bus.read32(reg::USBCMD);
        let mut stop_again = false;
        if command & cmd::RUN == 0 {
            if bus.read32(self.at) & ctrl::ENABLED == 0 {
                // Somebody has reset the controller.
                self.dead = true;
                let _ = self.external_start(bus);
            } else {
                bus.write32(reg::USBCMD, command | cmd::RUN);
                stop_again = true;
            }
        }
        let bytes = text.replace('\n', "\r\n").into_bytes();
        for chunk in bytes.chunks(8) {
            // There is nobody to tell of an error.
            let _ = self.packet(bus, chunk);
        }
        if stop_again {
            let command = bus.read32(reg::USBCMD);
            bus.write32(reg::USBCMD, command & !cmd::RUN);
        }
    }

    /// What a kernel debugger does: reads up to eight bytes, if there are any.
    pub fn read(&mut self, bus: &mut impl Registers) -> Vec<u8> {
        let address = DEVICE << 8 | self.in_endpoint;
        self.receive(bus, address, 8, 1).unwrap_or_default()
    }

    /// Before a driver that takes the device over resets the controller: lets go of the port.
    pub fn let_go(&mut self, bus: &mut impl Registers) {
        self.dead = true;
        let control = bus.read32(self.at);
        if control & ctrl::ENABLED != 0 {
            bus.write32(self.at, control & !ctrl::CLAIM);
        }
    }
}
