//! A device as the bus sees it: chapter 9 of the USB 2.0 specification around a [`UsbDevice`].

mod requests;
pub(super) mod routing;
pub(super) mod saved;
mod watch;

use std::sync::Arc;

use self::watch::Watch;
use super::control::{ControlPipe, Step};
use super::{
    BusError, Configuration, DeviceStatistics, Endpoint, EndpointAddress, LinkAnswer, LinkSleep,
    Notifier, Observer, Outcome, Pid, Speed, Status, Suspension, Toggle, Transfer, TransferType,
    UsbDevice,
};
use crate::journal::Lines;
use crate::time::Time;

/// A set of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EndpointSet(u32);

impl EndpointSet {
    fn contains(self, endpoint: EndpointAddress) -> bool {
        self.0 >> endpoint.index() & 1 != 0
    }

    fn set(&mut self, endpoint: EndpointAddress, member: bool) {
        let bit = 1 << endpoint.index();
        self.0 = if member { self.0 | bit } else { self.0 & !bit };
    }
}

/// A device on the bus: its address, configuration, halts and toggles, before the [`UsbDevice`] that
/// does the work.
pub struct Function {
    device: Box<dyn UsbDevice>,
    speed: Speed,
    address: u8,
    /// Value of the present configuration; 0 for none.
    configuration: u8,
    /// Present alternate setting of each interface whose setting is not 0.
    alternates: Vec<(u8, u8)>,
    /// Endpoints of the present configuration and alternate settings.
    endpoints: Vec<Endpoint>,
    remote_wakeup: bool,
    /// The device sleeps in L1 and may end that itself.
    dozing: bool,
    halted: EndpointSet,
    /// Endpoints whose next packet is DATA1.
    toggles: EndpointSet,
    pending: EndpointSet,
    control: ControlPipe,
    watch: Watch,
    lines: Lines,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function")
            .field("device", &self.device.description().name)
            .field("speed", &self.speed)
            .field("address", &self.address)
            .field("configuration", &self.configuration)
            .finish_non_exhaustive()
    }
}

impl Function {
    /// A device that has just been plugged in; `notifier` is its line to the host.
    pub fn new(mut device: Box<dyn UsbDevice>, notifier: Notifier) -> Self {
        device.attached(notifier);
        let speed = device.description().speeds.on_port(Speed::Full);
        let mut function = Self {
            device,
            speed,
            address: 0,
            configuration: 0,
            alternates: Vec::new(),
            endpoints: Vec::new(),
            remote_wakeup: false,
            dozing: false,
            halted: EndpointSet::default(),
            toggles: EndpointSet::default(),
            pending: EndpointSet::default(),
            control: ControlPipe::default(),
            watch: Watch::default(),
            lines: Lines::default(),
        };
        function.collect_endpoints();
        function
    }

    /// The device behind.
    pub fn device(&self) -> &dyn UsbDevice {
        &*self.device
    }

    /// Takes the device off the bus.
    pub fn into_device(mut self) -> Box<dyn UsbDevice> {
        self.drop_pending();
        if let Some(hub) = self.device.as_hub() {
            hub.detached();
        }
        self.device
    }

    /// The present address; 0 after a bus reset.
    pub fn address(&self) -> u8 {
        self.address
    }

    /// The speed the device signals at.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// Whether the host allowed remote wakeup.
    pub fn remote_wakeup_enabled(&self) -> bool {
        self.remote_wakeup
    }

    /// The device as it is now, and what happened at its endpoints.
    pub fn statistics(&self) -> DeviceStatistics {
        DeviceStatistics {
            name: self.device.description().name.clone(),
            address: self.address,
            speed: self.speed,
            configuration: self.configuration,
            endpoints: self.watch.endpoints().cloned().collect(),
        }
    }

    /// Has `observer` see every transfer from now on.
    pub(crate) fn set_observer(&mut self, observer: Option<Arc<dyn Observer>>) {
        self.watch.observe(observer);
    }

    /// Bus reset by a port that offers up to `port` (USB 2.0, 7.1.7.5); returns the speed that was
    /// agreed on.
    pub fn bus_reset(&mut self, port: Speed) -> Speed {
        self.speed = self.device.description().speeds.on_port(port);
        if let Some(hub) = self.device.as_hub() {
            hub.reset(self.speed);
        }
        self.address = 0;
        self.remote_wakeup = false;
        self.dozing = false;
        self.control = ControlPipe::default();
        self.configure(0);
        self.speed
    }

    /// The host asks whoever has `address` on this stretch of the bus to sleep (USB 2.0 LPM addendum).
    pub fn sleep(&mut self, address: u8, sleep: LinkSleep) -> LinkAnswer {
        if self.address != address {
            return LinkAnswer::Silence;
        }
        let answer = self.device.sleep(sleep);
        self.dozing = answer == LinkAnswer::Ack && sleep.remote_wakeup;
        answer
    }

    /// The bus went idle for the device or came back.
    pub fn suspension(&mut self, suspension: Suspension) {
        self.dozing = false;
        self.device.suspension(suspension);
    }

    /// Gives up the transfer that is pending at `endpoint`, if there is one.
    pub fn cancel(&mut self, endpoint: EndpointAddress) {
        if self.pending.contains(endpoint) {
            self.pending.set(endpoint, false);
            self.device.cancel(endpoint);
            self.watch.cancelled(self.address, endpoint);
        }
    }

    /// [`cancel`](Self::cancel) for whoever has sent `pid` to endpoint `number`.
    pub(crate) fn cancel_transfer(&mut self, pid: Pid, number: u8) {
        match (number, pid) {
            (0, _) => self.cancel(EndpointAddress::CONTROL),
            (number, Pid::In) => self.cancel(EndpointAddress::r#in(number)),
            (number, _) => self.cancel(EndpointAddress::out(number)),
        }
    }

    /// The toggle of the next packet that IN endpoint `number` sends, or the control endpoint if it is
    /// 0: for a host that takes a packet whatever its toggle.
    pub fn next_toggle(&self, number: u8) -> Toggle {
        match number {
            0 => self.control.toggle(self.device.description().control_packet_size(self.speed)),
            _ => Toggle::from_bit(self.toggles.contains(EndpointAddress::r#in(number))),
        }
    }

    /// Carries out a transfer addressed to the device.
    pub fn transact(&mut self, transfer: Transfer<'_>) -> Outcome {
        if let Some(hub) = self.device.as_hub() {
            hub.tick(transfer.now, self.address);
        }
        self.watched(transfer, |function, transfer| match transfer.endpoint {
            0 => function.transact_control(transfer),
            _ => function.transact_data(transfer),
        })
    }

    /// Carries out a transfer before the eyes of whoever counts or observes.
    fn watched(
        &mut self,
        mut transfer: Transfer<'_>,
        carry_out: impl FnOnce(&mut Self, &mut Transfer<'_>) -> Outcome,
    ) -> Outcome {
        let offer = self.watch.offered(self.address, self.speed, &transfer);
        let (configuration, halted) = (self.configuration, self.halted);
        let outcome = carry_out(self, &mut transfer);
        self.watch.answered(&offer, &transfer, &outcome);
        if (configuration, halted) != (self.configuration, self.halted) {
            self.tell(configuration, halted, transfer.now);
        }
        outcome
    }

    /// Says in the log that the configuration is another, or which endpoint was halted.
    fn tell(&mut self, configuration: u8, halted: EndpointSet, now: Time) {
        let name = &self.device.description().name;
        if configuration != self.configuration {
            let (address, chosen) = (self.address, self.configuration);
            self.lines
                .info(now, format_args!("\"{name}\", address {address}: configuration {chosen}"));
        }
        let new = self.halted.0 & !halted.0;
        if new != 0 {
            let (address, endpoint) =
                (self.address, EndpointAddress::from_index(new.trailing_zeros()));
            self.lines
                .info(now, format_args!("\"{name}\", address {address}: {endpoint} is halted"));
        }
    }

    fn transact_data(&mut self, transfer: &mut Transfer<'_>) -> Outcome {
        let address = match transfer.pid {
            Pid::In => EndpointAddress::r#in(transfer.endpoint),
            Pid::Out => EndpointAddress::out(transfer.endpoint),
            // Only control endpoints take SETUP; the rest do not answer it (USB 2.0, 8.4.6.4).
            Pid::Setup => return Outcome::TIMEOUT,
        };
        let Some(packet) = self
            .endpoints
            .iter()
            .find(|e| e.address == address && e.transfer_type != TransferType::Isochronous)
            .map(Endpoint::packet_size)
        else {
            return Outcome::TIMEOUT;
        };
        if self.halted.contains(address) {
            return Outcome::STALL;
        }
        let toggle = Toggle::from_bit(self.toggles.contains(address));
        let asked = transfer.buffer.len();
        let outcome = if transfer.toggle != toggle {
            self.out_of_step(address, packet, transfer)
        } else if transfer.max_packet != packet && transfer.pid == Pid::In {
            self.other_packet_size(address, packet, transfer)
        } else {
            let outcome = self.device.transfer(address, transfer);
            let packets = outcome.packets(transfer.pid, asked, transfer.max_packet);
            self.toggles.set(address, toggle.after(packets).bit());
            outcome
        };
        self.pending.set(address, outcome.status == Status::Pending);
        if outcome.status == Status::Stall {
            self.halted.set(address, true);
        }
        outcome
    }

    /// Whether the present configuration and alternate settings have an isochronous endpoint.
    pub fn has_isochronous(&self) -> bool {
        self.endpoints.iter().any(|e| e.transfer_type == TransferType::Isochronous)
    }

    /// Carries out the transactions of one (micro)frame with an isochronous endpoint: no handshake, no
    /// toggle, no second try (USB 2.0, 5.6.4).
    ///
    /// An IN outcome of fewer bytes than asked for is what the device had for this frame.
    pub fn isochronous(&mut self, transfer: Transfer<'_>) -> Outcome {
        self.watched(transfer, Self::transact_isochronous)
    }

    fn transact_isochronous(&mut self, transfer: &mut Transfer<'_>) -> Outcome {
        let address = match transfer.pid {
            Pid::In => EndpointAddress::r#in(transfer.endpoint),
            Pid::Out => EndpointAddress::out(transfer.endpoint),
            Pid::Setup => return Outcome::TIMEOUT,
        };
        let known = self
            .endpoints
            .iter()
            .any(|e| e.address == address && e.transfer_type == TransferType::Isochronous);
        if known { self.device.isochronous(address, transfer) } else { Outcome::TIMEOUT }
    }

    /// The host's toggle is not the device's (USB 2.0, 8.6.2 and 8.6.3): one packet is taken for a
    /// repetition of the last and lost; then both agree again.
    fn out_of_step(
        &mut self,
        address: EndpointAddress,
        packet: u16,
        transfer: &mut Transfer<'_>,
    ) -> Outcome {
        if transfer.pid == Pid::Out {
            // Acknowledged and dropped; the device's own toggle stays, the host's moves on.
            let len = transfer.buffer.len().min(transfer.max_packet.into());
            return Outcome::complete(len);
        }
        let (outcome, packets, _) = self.one_packet(address, packet, transfer);
        if packets == 0 {
            return outcome;
        }
        self.toggles.set(address, transfer.toggle.bit());
        Outcome::failed(0, BusError::ToggleMismatch)
    }

    /// The host's idea of an IN endpoint's packet size is not the device's: packets go one at a time,
    /// and one that is larger than the host expects is babble, a smaller one short.
    fn other_packet_size(
        &mut self,
        address: EndpointAddress,
        packet: u16,
        transfer: &mut Transfer<'_>,
    ) -> Outcome {
        let (outcome, packets, data) = self.one_packet(address, packet, transfer);
        let room = transfer.buffer.len().min(transfer.max_packet.into());
        if data.len() > room {
            return Outcome::failed(0, BusError::Babble);
        }
        self.toggles.set(address, transfer.toggle.after(packets).bit());
        transfer.buffer.write(0, &data);
        outcome
    }

    /// Asks an IN endpoint for one packet of the size its descriptor says. Returns how many came: one,
    /// or none; and its data.
    fn one_packet(
        &mut self,
        address: EndpointAddress,
        packet: u16,
        transfer: &Transfer<'_>,
    ) -> (Outcome, usize, Vec<u8>) {
        let mut data = vec![0; packet.into()];
        let outcome = self.device.transfer(
            address,
            &mut Transfer {
                pid: Pid::In,
                endpoint: transfer.endpoint,
                max_packet: packet,
                toggle: Toggle::from_bit(self.toggles.contains(address)),
                now: transfer.now,
                buffer: &mut data,
            },
        );
        data.truncate(outcome.bytes);
        // A packet that came before a STALL may yet be lost; the halt is not.
        if outcome.status == Status::Stall {
            self.halted.set(address, true);
        }
        (outcome, outcome.packets(Pid::In, packet.into(), packet), data)
    }

    fn transact_control(&mut self, transfer: &mut Transfer<'_>) -> Outcome {
        match self.control.transact(transfer) {
            Step::Answer(outcome) => outcome,
            Step::Request(setup, mut data) => {
                let result = self.request(&setup, &mut data);
                self.control.carried_out(&setup, result, data)
            }
        }
    }

    fn configurations(&self) -> &[Configuration] {
        self.device.description().speeds.configurations(self.speed)
    }

    fn current(&self) -> Option<&Configuration> {
        self.configurations().iter().find(|c| c.value == self.configuration)
    }

    fn has_interface(&self, number: u8) -> bool {
        self.current().is_some_and(|c| c.interface(number, 0).is_some())
    }

    fn alternate(&self, number: u8) -> u8 {
        self.alternates.iter().find(|(n, _)| *n == number).map_or(0, |(_, alternate)| *alternate)
    }

    fn has_endpoint(&self, endpoint: EndpointAddress) -> bool {
        endpoint.number() == 0 || self.endpoints.iter().any(|e| e.address == endpoint)
    }

    fn configure(&mut self, value: u8) {
        self.drop_pending();
        self.configuration = value;
        self.alternates.clear();
        self.halted = EndpointSet::default();
        self.toggles = EndpointSet::default();
        self.collect_endpoints();
        self.device.configured(value);
    }

    fn select_interface(&mut self, number: u16, alternate: u16) -> bool {
        let (Ok(number), Ok(alternate)) = (u8::try_from(number), u8::try_from(alternate)) else {
            return false;
        };
        let Some(interface) = self.current().and_then(|c| c.interface(number, alternate)) else {
            return false;
        };
        let endpoints: Vec<_> = interface.endpoints.iter().map(|e| e.address).collect();
        let before = self.current().and_then(|c| c.interface(number, self.alternate(number)));
        let stopped: Vec<_> =
            before.iter().flat_map(|i| i.endpoints.iter()).map(|e| e.address).collect();
        for endpoint in stopped {
            self.cancel(endpoint);
        }
        for endpoint in endpoints {
            self.halted.set(endpoint, false);
            self.toggles.set(endpoint, false);
        }
        self.alternates.retain(|(n, _)| *n != number);
        if alternate != 0 {
            self.alternates.push((number, alternate));
        }
        self.collect_endpoints();
        self.device.interface_selected(number, alternate);
        true
    }

    fn collect_endpoints(&mut self) {
        let endpoints = self.current().map(|configuration| {
            configuration
                .interfaces
                .iter()
                .filter(|i| i.alternate == self.alternate(i.number))
                .flat_map(|i| i.endpoints.iter().cloned())
                .collect()
        });
        self.endpoints = endpoints.unwrap_or_default();
        self.watch.know(&self.endpoints);
    }

    fn drop_pending(&mut self) {
        for index in 0..32 {
            self.cancel(EndpointAddress::from_index(index));
        }
    }
}
