//! The embedding: an EHCI controller and its OHCI companion in one slot.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow};
use event_manager::EventSubscriber;
use kvm_ioctls::VmFd;
use vm_memory::GuestMemoryMmap;
use vm_usb::adapters::{KvmInterrupt, MonotonicClock, Paused, SharedFunction};
use vm_usb::controller::HostController;
use vm_usb::devices::full_speed::FullSpeed;
use vm_usb::devices::hid::{Key, Keyboard, KeyboardHandle};
use vm_usb::devices::storage::{Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::pci::{FunctionStatistics, Identity, InterruptPin, PciFunction, Placement};
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{Speed, UsbDevice};
use vm_usb_image::{Access, RawImage};

use crate::checkpoint::Checkpoint;
use crate::pci::{Bus, PciDevice};
use crate::statistics::Statistics;

/// Guest memory as everybody here shares it.
pub(crate) type Memory = Arc<GuestMemoryMmap>;

/// Slot of both controllers.
const SLOT: u8 = 1;
/// Interrupt line of INTA#, the companion's.
pub(crate) const LINE_A: u8 = 10;
/// Interrupt line of INTB#, EHCI's.
pub(crate) const LINE_B: u8 = 11;
/// The register firmware leaves the line's number in (PCI 3.0, 6.2.4).
const INTERRUPT_LINE: u64 = 0x3c;

/// The sockets of both controllers. EHCI's driver decides which of the two serves a device: one that is
/// not a high-speed one goes to the companion.
pub(crate) struct Usb {
    ports: [Port; PORTS],
    ohci: Arc<Function<Ohci>>,
    ehci: Arc<Function<Ehci>>,
    keyboards: Mutex<Vec<KeyboardHandle>>,
}

/// Sockets of the machine.
pub(crate) const PORTS: usize = 4;

/// One of the sockets; written as guests number them, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket(usize);

impl FromStr for Socket {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let index = text.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let index = index.filter(|index| *index < PORTS);
        index.map(Self).ok_or_else(|| anyhow!("there is no port \"{text}\": use 1 to {PORTS}"))
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 + 1)
    }
}

/// A controller as vCPU and event loop share it.
type Function<C> = SharedFunction<Memory, C, KvmInterrupt>;
/// A controller that stands still.
type Still<'a, C> = Paused<'a, Memory, C, KvmInterrupt>;

impl Usb {
    /// Puts the controllers on `bus` and hands what the event loop must serve to `subscribe`.
    pub(crate) fn new(
        vm: &Arc<VmFd>,
        memory: &Memory,
        bus: &mut Bus,
        mut subscribe: impl FnMut(Arc<dyn EventSubscriber>),
    ) -> anyhow::Result<Self> {
        let ports: [Port; PORTS] = std::array::from_fn(|_| Port::shared());
        let links = |host| ports.iter().map(|port| port.link(host)).collect();
        let (ohci, ehci) = (Ohci::new(links(Host::Classic)), Ehci::new(links(Host::High)));

        let clock = MonotonicClock::new();
        let mut plug = Plug { vm, memory, bus, clock, ports: &ports, subscribe: &mut subscribe };
        // Companions have the lower function numbers (EHCI 4.2).
        let ohci = plug.add(0, Identity::ohci(), InterruptPin::A, LINE_A, ohci)?;
        let ehci = plug.add(1, Identity::ehci(), InterruptPin::B, LINE_B, ehci)?;
        Ok(Self { ports, ohci, ehci, keyboards: Mutex::default() })
    }

    /// Saves and restores everything each time `interval` has passed, once the event loop has it.
    pub(crate) fn checkpoint(&self, interval: Duration) -> anyhow::Result<Checkpoint> {
        Checkpoint::new(interval, self.ohci.clone(), self.ehci.clone(), self.ports.clone())
    }

    /// Plugs a high-speed disk into port 1.
    pub(crate) fn attach_ehci_disk(&self, image: &Path) -> anyhow::Result<()> {
        self.attach_disk(Socket(0), image)
    }

    /// Plugs a full-speed disk into port 2.
    pub(crate) fn attach_ohci_disk(&self, image: &Path) -> anyhow::Result<()> {
        self.attach(Socket(1), Box::new(FullSpeed::new(disk(image, "ohci-disk")?)))
    }

    /// Plugs a high-speed keyboard into port 3.
    pub(crate) fn attach_ehci_keyboard(&self) -> anyhow::Result<()> {
        self.attach_keyboard(Socket(2), Speed::High)
    }

    /// Plugs a low-speed keyboard into port 4.
    pub(crate) fn attach_ohci_keyboard(&self) -> anyhow::Result<()> {
        self.attach_keyboard(Socket(3), Speed::Low)
    }

    fn attach_keyboard(&self, socket: Socket, speed: Speed) -> anyhow::Result<()> {
        let keyboard = Keyboard::new(speed);
        let handle = keyboard.handle();
        self.attach(socket, Box::new(keyboard))?;
        self.keyboards().push(handle);
        Ok(())
    }

    /// Plugs in a high-speed disk, now or while the guest runs.
    pub(crate) fn attach_disk(&self, socket: Socket, image: &Path) -> anyhow::Result<()> {
        self.attach(socket, disk(image, "ehci-disk")?)
    }

    fn attach(&self, socket: Socket, device: Box<dyn UsbDevice>) -> anyhow::Result<()> {
        self.ports[socket.0].attach(device).map_err(|refused| refused.reason)?;
        Ok(())
    }

    /// Pulls out what is in a socket. A disk writes out what is left of its data.
    pub(crate) fn detach(&self, socket: Socket) -> anyhow::Result<()> {
        let device = self.ports[socket.0].detach();
        device.map(drop).ok_or_else(|| anyhow!("port {socket} is empty"))
    }

    /// A key of each keyboard goes down and comes up.
    pub(crate) fn press(&self, key: Key) -> anyhow::Result<()> {
        for keyboard in &*self.keyboards() {
            keyboard.press(key)?;
            keyboard.release(key);
        }
        Ok(())
    }

    fn keyboards(&self) -> std::sync::MutexGuard<'_, Vec<KeyboardHandle>> {
        self.keyboards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Both controllers stand still until what comes back is dropped.
    pub(crate) fn pause(&self) -> (Still<'_, Ohci>, Still<'_, Ehci>) {
        (self.ohci.pause(), self.ehci.pause())
    }

    /// What was counted of each controller.
    pub(crate) fn function_statistics(&self) -> [(&'static str, FunctionStatistics); 2] {
        [
            ("OHCI", self.ohci.with(|function, _, _| function.statistics())),
            ("EHCI", self.ehci.with(|function, _, _| function.statistics())),
        ]
    }

    /// What was counted of each controller and each device.
    pub(crate) fn statistics(&self) -> Statistics {
        let devices = self.ports.iter().enumerate();
        let devices = devices.filter_map(|(at, port)| Some((Socket(at), port.statistics()?)));
        Statistics { functions: self.function_statistics(), devices: devices.collect() }
    }
}

impl Drop for Usb {
    fn drop(&mut self) {
        for port in &self.ports {
            // A disk writes out what is left of its data when it is dropped.
            drop(port.detach());
        }
    }
}

fn disk(image: &Path, name: &str) -> anyhow::Result<Box<dyn UsbDevice>> {
    let image = RawImage::open(image, Access::ReadWrite)?;
    Ok(Box::new(Storage::new(image, Serial::from_name(name))))
}

/// What it takes to put a controller into the machine.
struct Plug<'a> {
    vm: &'a Arc<VmFd>,
    memory: &'a Memory,
    bus: &'a mut Bus,
    clock: MonotonicClock,
    ports: &'a [Port],
    subscribe: &'a mut dyn FnMut(Arc<dyn EventSubscriber>),
}

impl Plug<'_> {
    fn add<C: HostController<GuestMemoryMmap> + 'static>(
        &mut self,
        number: u8,
        identity: Identity,
        pin: InterruptPin,
        line: u8,
        controller: C,
    ) -> anyhow::Result<Arc<Function<C>>> {
        let (interrupt, resample) = KvmInterrupt::new(self.vm.clone(), line.into())
            .context("KVM does not take the interrupt line")?;
        let placement = Placement { multi_function: true, pin };
        let function = PciFunction::new(identity, placement, controller, interrupt);
        let function = Arc::new(SharedFunction::new(function, self.memory.clone(), self.clock)?);
        // What firmware would leave behind.
        function.config_write(INTERRUPT_LINE, &[line]);
        for port in self.ports {
            port.subscribe(function.wake());
        }
        (self.subscribe)(Arc::new(resample));
        (self.subscribe)(function.clone());
        self.bus.add(SLOT, number, function.clone());
        Ok(function)
    }
}

impl<C> PciDevice for SharedFunction<Memory, C, KvmInterrupt>
where
    C: HostController<GuestMemoryMmap>,
{
    fn config_read(&self, offset: u8, data: &mut [u8]) {
        Self::config_read(self, offset.into(), data);
    }

    fn config_write(&self, offset: u8, data: &[u8]) {
        Self::config_write(self, offset.into(), data);
    }

    fn mmio_read(&self, address: u64, data: &mut [u8]) -> bool {
        Self::mmio_read(self, address, data)
    }

    fn mmio_write(&self, address: u64, data: &[u8]) -> bool {
        Self::mmio_write(self, address, data)
    }
}
