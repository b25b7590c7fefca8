//! A high-speed hub whose transaction translator answers by a script, and a driver that has
//! configured it: for rules about the packets of split transactions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use vm_memory::GuestMemoryMmap;
use vm_usb::time::Time;
use vm_usb::topology::Port;
use vm_usb::usb::{
    CompleteAnswer, CompleteSplit, Configuration, Description, Endpoint, EndpointAddress, Function,
    Interface, Notifier, Outcome, Pid, SetupPacket, Speed, Speeds, SplitPosition, SplitToken,
    StartAnswer, StartSplit, Toggle, Transfer, TransferType, Upstream, UsbDevice, UsbHub, request,
};

use super::rig::controller;
use crate::driver::ehci::{EhciDriver, LOW_SPEED, Queue, cmd, fresh_device, reg, sts};
use crate::driver::host::HostDriver;
use crate::driver::machine::Machine;

/// Address of the hub, its port, and the address of the device behind it.
pub const HUB: u8 = 2;
pub const PORT: u8 = 3;
pub const DEVICE: u8 = 9;

/// One split token on the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Start { token: SplitToken, position: SplitPosition, toggle: Toggle, data: Vec<u8>, at: u64 },
    Complete { token: SplitToken, at: u64 },
}

impl Seen {
    pub fn token(&self) -> SplitToken {
        match self {
            Self::Start { token, .. } | Self::Complete { token, .. } => *token,
        }
    }

    /// "S" or "C" and FRINDEX 2:0.
    pub fn brief(&self) -> (char, u64) {
        match self {
            Self::Start { at, .. } => ('S', at % 8),
            Self::Complete { at, .. } => ('C', at % 8),
        }
    }
}

/// Answers, used up in order. Without one: ACK to control and bulk start-splits, NYET to
/// complete-splits.
#[derive(Default)]
pub struct Script {
    pub starts: VecDeque<StartAnswer>,
    pub completes: VecDeque<(CompleteAnswer, Vec<u8>)>,
    pub seen: Vec<Seen>,
}

/// The hub.
struct Translator {
    description: Description,
    upstream: Arc<Upstream>,
    script: Arc<Mutex<Script>>,
}

impl UsbDevice for Translator {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.upstream.connect(notifier);
    }

    fn configured(&mut self, _value: u8) {}

    fn transfer(&mut self, _endpoint: EndpointAddress, _transfer: &mut Transfer<'_>) -> Outcome {
        Outcome::PARK
    }

    fn as_hub(&mut self) -> Option<&mut dyn UsbHub> {
        Some(self)
    }
}

impl UsbHub for Translator {
    fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    fn tick(&mut self, _now: Time, _address: u8) {}

    fn reset(&mut self, _speed: Speed) {}

    fn repeat(&mut self, _visit: &mut dyn FnMut(&mut Function) -> bool) -> bool {
        false
    }

    fn each(&mut self, _visit: &mut dyn FnMut(&mut Function)) {}

    fn start_split(&mut self, split: &StartSplit<'_>) -> StartAnswer {
        let mut script = self.script.lock().unwrap();
        script.seen.push(Seen::Start {
            token: split.token,
            position: split.position,
            toggle: split.toggle,
            data: split.data.to_vec(),
            at: split.microframe,
        });
        let handshake = match split.token.transfer_type {
            TransferType::Control | TransferType::Bulk => StartAnswer::Ack,
            _ => StartAnswer::Silence,
        };
        script.starts.pop_front().unwrap_or(handshake)
    }

    fn complete_split(&mut self, split: &CompleteSplit, data: &mut Vec<u8>) -> CompleteAnswer {
        let mut script = self.script.lock().unwrap();
        script.seen.push(Seen::Complete { token: split.token, at: split.microframe });
        let (answer, bytes) =
            script.completes.pop_front().unwrap_or((CompleteAnswer::Nyet, vec![]));
        data.extend(bytes);
        answer
    }

    fn resumes(&mut self, _remote_wakeup: bool) -> bool {
        false
    }

    fn detached(&mut self) {}
}

/// A translator to plug in, and its script.
pub fn hub() -> (Box<dyn UsbDevice>, Arc<Mutex<Script>>) {
    let script = Arc::<Mutex<Script>>::default();
    let changes = Endpoint::new(EndpointAddress::r#in(1), TransferType::Interrupt, 1, 12);
    let configuration = Configuration {
        value: 1,
        self_powered: true,
        remote_wakeup: false,
        max_power: 0,
        interfaces: vec![Interface {
            class: [9, 0, 0],
            endpoints: vec![changes],
            ..Interface::default()
        }],
    };
    let description = Description {
        vendor: 0x1209,
        product: 3,
        release: 0x100,
        class: [9, 0, 1],
        control_packet: 64,
        manufacturer: String::new(),
        name: "Translator".into(),
        serial: String::new(),
        speeds: Speeds::High { high: vec![configuration], full: vec![] },
    };
    let hub = Translator { description, upstream: Arc::default(), script: script.clone() };
    (Box::new(hub), script)
}

/// The driver, with the hub configured and the controller halted at FRINDEX 0.
pub struct Rig {
    pub driver: EhciDriver,
    pub script: Arc<Mutex<Script>>,
}

impl Rig {
    pub fn new() -> Self {
        let ranges = [(vm_memory::GuestAddress(0), crate::driver::machine::RAM as usize)];
        Self::with_memory(GuestMemoryMmap::from_ranges(&ranges).unwrap())
    }

    pub fn with_memory(memory: GuestMemoryMmap) -> Self {
        let (hub, script) = hub();
        let ports = vec![Port::high_speed_only()];
        ports[0].attach(hub).unwrap();
        let mut driver = EhciDriver::new(Machine::with_memory(controller(&ports), memory));
        driver.reset_port(0).unwrap();
        let mut device = fresh_device();
        let address = SetupPacket::new(0, request::SET_ADDRESS, HUB.into(), 0, 0);
        driver.control(&device, address, &[]).unwrap();
        device.address = HUB;
        let configure = SetupPacket::new(0, request::SET_CONFIGURATION, 1, 0, 0);
        driver.control(&device, configure, &[]).unwrap();
        driver.enable(cmd::PERIODIC, sts::PERIODIC);
        driver.sleep_millis(2);
        driver.take_events();
        let mut rig = Self { driver, script };
        rig.halt(0);
        rig
    }
    /// Halts the controller and sets FRINDEX.
    pub fn halt(&mut self, index: u32) {
        let m = &mut self.driver.machine;
        let command = m.read32(reg::USBCMD);
        m.write32(reg::USBCMD, command & !cmd::RUN);
        m.write32(reg::FRINDEX, index);
    }

    /// Has the controller run; it is then in the microframe of FRINDEX.
    pub fn go(&mut self) {
        let m = &mut self.driver.machine;
        let command = m.read32(reg::USBCMD);
        m.write32(reg::USBCMD, command | cmd::RUN);
        m.run();
    }

    pub fn microframes(&mut self, count: u64) {
        self.driver.machine.advance_micros(125 * count);
    }

    /// QH dword 1 and 2 of an endpoint of the device behind the hub.
    pub fn words(&self, endpoint: u8, max_packet: u32, low: bool, masks: u32) -> (u32, u32) {
        let speed = if low { LOW_SPEED } else { 0 };
        let characteristics =
            u32::from(DEVICE) | u32::from(endpoint) << 8 | speed | max_packet << 16;
        (characteristics, 1 << 30 | u32::from(PORT) << 23 | u32::from(HUB) << 16 | masks)
    }

    /// A bulk queue, linked.
    pub fn bulk(&mut self, endpoint: u8, max_packet: u32) -> Queue {
        let (characteristics, capabilities) = self.words(endpoint, max_packet, false, 0);
        let queue = self.driver.queue(characteristics, capabilities, None);
        self.driver.insert(&queue);
        queue
    }

    /// An interrupt queue with these masks, in every frame.
    pub fn interrupt(&mut self, endpoint: u8, s_mask: u8, c_mask: u8) -> Queue {
        let masks = u32::from(c_mask) << 8 | u32::from(s_mask);
        let (characteristics, capabilities) = self.words(endpoint, 64, false, masks);
        let queue = self.driver.queue(characteristics, capabilities, Some(1));
        for frame in 0..crate::driver::ehci::FRAMES {
            let at = self.driver.frame_list + 4 * frame;
            self.driver.machine.store(at, queue.head | crate::driver::ehci::QUEUE_HEAD);
        }
        queue
    }

    pub fn start(&self, answers: impl IntoIterator<Item = StartAnswer>) {
        self.script.lock().unwrap().starts.extend(answers);
    }

    pub fn complete(&self, answers: impl IntoIterator<Item = (CompleteAnswer, Vec<u8>)>) {
        self.script.lock().unwrap().completes.extend(answers);
    }

    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.script.lock().unwrap().seen)
    }

    /// What was seen, in brief.
    pub fn brief(&self) -> Vec<(char, u64)> {
        self.seen().iter().map(Seen::brief).collect()
    }

    pub fn load(&self, address: u32) -> u32 {
        self.driver.machine.load(address)
    }

    pub fn store(&mut self, address: u32, value: u32) {
        self.driver.machine.store(address, value);
    }

    pub fn overlay(&self, queue: &Queue) -> u32 {
        self.load(queue.head + 0x18)
    }

    pub fn buffer(&mut self, len: u32) -> u32 {
        self.driver.machine.alloc(len, 0x1000)
    }

    pub fn bytes(&self, address: u32, len: usize) -> Vec<u8> {
        self.driver.machine.bytes(address, len)
    }
}

/// The whole of an IN packet.
pub fn data(bytes: &[u8]) -> (CompleteAnswer, Vec<u8>) {
    (CompleteAnswer::Data { last: true }, bytes.to_vec())
}

/// Part of an IN packet.
pub fn part(bytes: &[u8]) -> (CompleteAnswer, Vec<u8>) {
    (CompleteAnswer::Data { last: false }, bytes.to_vec())
}

pub fn plain(answer: CompleteAnswer) -> (CompleteAnswer, Vec<u8>) {
    (answer, vec![])
}

pub fn is_in(seen: &Seen) -> bool {
    seen.token().pid == Pid::In
}
