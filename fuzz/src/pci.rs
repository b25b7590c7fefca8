//! A driver, or whoever else writes to configuration space.

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vm_usb::controller::HostController;
use vm_usb::pci::{CONFIG_SPACE_SIZE, Identity, InterruptLine, PciFunction, Placement};
use vm_usb::time::Time;
use vm_usb::topology::Port;
use vm_usb::usb::Speed;

use crate::devices::attach_real;
use crate::ehci::Options;
use crate::ohci;

const COMMAND: u64 = 0x04;
const CAPABILITIES: u64 = 0x34;
const MEMORY_SPACE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;
const INTERRUPT_DISABLE: u16 = 1 << 10;
const INTERRUPT_STATUS: u16 = 1 << 3;
/// Capabilities of power management and of messages.
const POWER_MANAGEMENT: u8 = 1;
const MSI: u8 = 5;

/// Fields that no write may change: identity, class, header type; subsystem; pin.
const FIXED: [(u64, usize); 5] = [(0, 4), (8, 4), (0x0e, 1), (0x2c, 8), (0x3d, 1)];

#[derive(Arbitrary, Debug)]
enum Step {
    ConfigWrite(u8, u32, u8),
    /// To the command register: what drivers do first.
    Command(u16),
    ConfigRead(u16, u8),
    BarWrite(u16, u32, u8),
    /// USBCMD and HcControl alike: run.
    Run(u8),
    BarRead(u16, u8),
    Pass(u32),
    Reset,
}

/// Somebody at a function.
#[derive(Debug)]
pub struct Visitor {
    high: bool,
    options: Options,
    steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Visitor {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (high, options) = (u.arbitrary()?, u.arbitrary()?);
        let steps = u.arbitrary_iter()?.take(200).collect::<Result<_>>()?;
        Ok(Self { high, options, steps })
    }
}

/// What came out of the function.
#[derive(Default)]
struct Board {
    level: bool,
    messages: usize,
}

impl InterruptLine for Board {
    fn set_level(&mut self, asserted: bool) {
        assert_ne!(self.level, asserted, "the line is told of changes only");
        self.level = asserted;
    }

    fn message(&mut self, _address: u64, _data: u32) {
        self.messages += 1;
    }
}

type Function = PciFunction<GuestMemoryMmap, Box<dyn HostController<GuestMemoryMmap>>, Board>;

struct Bench {
    function: Function,
    memory: GuestMemoryMmap,
    now: Time,
    fixed: Vec<Vec<u8>>,
}

impl Bench {
    fn read<const N: usize>(&mut self, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.function.config_read(&self.memory, self.now, offset, &mut data);
        data
    }

    fn read16(&mut self, offset: u64) -> u16 {
        u16::from_le_bytes(self.read(offset))
    }

    fn fixed(&mut self) -> Vec<Vec<u8>> {
        FIXED
            .map(|(at, len)| {
                let mut data = vec![0; len];
                self.function.config_read(&self.memory, self.now, at, &mut data);
                data
            })
            .to_vec()
    }

    /// Where a capability is: the list ends, and lies behind the header.
    fn capability(&mut self, id: u8) -> u64 {
        let [mut at] = self.read(CAPABILITIES);
        let mut found = None;
        for _ in 0..48 {
            if at == 0 {
                return found.expect("a capability that was there");
            }
            assert!(at >= 0x40 && at % 4 == 0, "a capability at {at:#x}");
            let [this, next] = self.read(at.into());
            if this == id {
                found = Some(at.into());
            }
            at = next;
        }
        panic!("the list of capabilities has no end");
    }

    /// Takes one step, and holds the function to the rules.
    fn take(&mut self, step: Step) {
        let told = self.function.line().messages;
        let before = self.may_send();
        let (memory, now) = (&self.memory, self.now);
        match step {
            Step::ConfigWrite(at, value, len) => {
                let bytes = &value.to_le_bytes()[..usize::from(len % 5)];
                self.function.config_write(memory, now, at.into(), bytes);
            }
            Step::Command(value) => {
                self.function.config_write(memory, now, COMMAND, &value.to_le_bytes());
            }
            Step::ConfigRead(at, len) => {
                let mut data = vec![0xee; usize::from(len % 9)];
                self.function.config_read(memory, now, at.into(), &mut data);
                for (n, byte) in data.iter().enumerate() {
                    let outside = u64::from(at) + n as u64 >= CONFIG_SPACE_SIZE;
                    assert!(!outside || *byte == 0, "bytes outside are zero");
                }
            }
            Step::BarWrite(at, value, len) => {
                let bytes = &value.to_le_bytes()[..usize::from(len % 5)];
                self.function.bar_write(memory, now, (at % 0x1100).into(), bytes);
            }
            Step::Run(value) => {
                for (at, value) in [(0x20, 0x31), (0x04, 0x80 | u32::from(value & 0x3c))] {
                    self.function.bar_write(memory, now, at, &u32::to_le_bytes(value));
                }
            }
            Step::BarRead(at, len) => {
                let mut data = vec![0; usize::from(len % 9)];
                self.function.bar_read(memory, now, (at % 0x1100).into(), &mut data);
            }
            Step::Pass(nanos) => {
                self.now = now.after_nanos(u64::from(nanos));
                self.function.run(&self.memory, self.now);
            }
            Step::Reset => {
                self.function.reset(now);
                assert_eq!(self.read16(COMMAND) & (MEMORY_SPACE | BUS_MASTER), 0);
            }
        }
        let sent = self.function.line().messages - told;
        assert!(sent == 0 || before || self.may_send(), "a message that nobody asked for");
        self.check();
    }

    /// Whether messages are enabled and the function may master the bus.
    fn may_send(&mut self) -> bool {
        let msi = self.capability(MSI);
        self.read16(msi + 2) & 1 != 0 && self.read16(COMMAND) & BUS_MASTER != 0 && self.awake()
    }

    fn awake(&mut self) -> bool {
        let power = self.capability(POWER_MANAGEMENT);
        self.read16(power + 4) & 3 != 3
    }

    fn check(&mut self) {
        assert_eq!(self.fixed(), self.fixed, "what is fixed has changed");
        let command = self.read16(COMMAND);
        let msi = self.capability(MSI);
        let messages = self.read16(msi + 2) & 1 != 0;
        let pending = self.read16(COMMAND + 2) & INTERRUPT_STATUS != 0;
        let level = pending && !messages && command & INTERRUPT_DISABLE == 0 && self.awake();
        assert_eq!(self.function.line().level, level, "the pin is what the registers say");
        if let Some(address) = self.function.bar_address() {
            assert_eq!(address % self.function.bar_size(), 0, "BAR 0 is aligned to its size");
        }
    }
}

impl Visitor {
    /// Lets the visitor do as it likes, and holds the function to the rules.
    pub fn live(self) {
        let (controller, identity): (Box<dyn HostController<GuestMemoryMmap>>, _) = if self.high {
            let ports = [(); 3].map(|()| Port::high_speed_only());
            attach_real(&ports, Speed::High);
            (Box::new(self.options.controller(&ports)), Identity::ehci())
        } else {
            let ports = [(); 3].map(|()| Port::classic());
            attach_real(&ports, Speed::Full);
            (Box::new(ohci::controller(&ports, Default::default())), Identity::ohci())
        };
        let mut bench = Bench {
            function: Function::new(identity, Placement::default(), controller, Board::default()),
            memory: GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap(),
            now: Time::from_nanos(1_000_000_000),
            fixed: Vec::new(),
        };
        bench.fixed = bench.fixed();
        bench.check();
        for step in self.steps {
            bench.take(step);
        }
    }
}
