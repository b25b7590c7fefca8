//! A device that never answers at once: it begins, announces, and is asked again.

use std::sync::{Arc, Mutex};

use vm_usb::snapshot::{RestoreError, SaveError, State};
use vm_usb::time::Time;
use vm_usb::usb::{
    Configuration, Description, Endpoint, EndpointAddress, Interface, Notifier, Outcome, Speeds,
    Transfer, UsbDevice,
};

/// Where it fetches from, and where it delivers to.
pub const IN: EndpointAddress = EndpointAddress::r#in(1);
pub const OUT: EndpointAddress = EndpointAddress::out(2);

/// Bytes of one message.
pub const MESSAGE: usize = 64;

/// The world behind the device: it outlives every machine.
#[derive(Clone, Default)]
pub struct Depot {
    /// Every byte that was delivered, in order.
    pub delivered: Arc<Mutex<Vec<u8>>>,
    notifier: Arc<Mutex<Option<Notifier>>>,
}

impl Depot {
    /// What the device has begun is done by now.
    pub fn finish(&self) {
        let notifier = self.notifier.lock().unwrap().clone();
        if let Some(notifier) = notifier {
            notifier.ready(IN);
            notifier.ready(OUT);
        }
    }
}

/// The device. Its message number n is 64 bytes of n.
pub struct Courier {
    description: Description,
    depot: Depot,
    /// Number of the next message for the host.
    next: u8,
    /// Endpoints that have begun.
    begun: Vec<EndpointAddress>,
}

impl Courier {
    pub fn new(depot: Depot) -> Self {
        let interface = |packet| Interface {
            class: [0xff, 0, 0],
            endpoints: [IN, OUT].map(|address| Endpoint::bulk(address, packet)).to_vec(),
            ..Interface::default()
        };
        let configuration = |packet| vec![Configuration::only(interface(packet))];
        Self {
            description: Description {
                vendor: 0x1209,
                product: 0x0005,
                release: 0x0100,
                class: [0, 0, 0],
                control_packet: 64,
                manufacturer: "vm-usb".into(),
                name: "Courier".into(),
                serial: String::new(),
                speeds: Speeds::High { high: configuration(512), full: configuration(64) },
            },
            depot,
            next: 0,
            begun: Vec::new(),
        }
    }
}

impl UsbDevice for Courier {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        *self.depot.notifier.lock().unwrap() = Some(notifier);
    }

    fn configured(&mut self, _value: u8) {
        self.next = 0;
        self.begun.clear();
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        if !self.begun.contains(&endpoint) {
            self.begun.push(endpoint);
            return Outcome::PENDING;
        }
        self.begun.retain(|begun| *begun != endpoint);
        if endpoint == IN {
            let outcome = transfer.send(&[self.next; MESSAGE]);
            self.next = self.next.wrapping_add(1);
            return outcome;
        }
        let mut bytes = vec![0; transfer.buffer.len()];
        transfer.buffer.read(0, &mut bytes);
        self.depot.delivered.lock().unwrap().extend(&bytes);
        Outcome::complete(bytes.len())
    }

    fn cancel(&mut self, endpoint: EndpointAddress) {
        self.begun.retain(|begun| *begun != endpoint);
    }

    /// What has begun is not part of it: nothing happened yet, and it begins again.
    fn save(&self, _now: Time) -> Result<State, SaveError> {
        State::of("courier", &self.next)
    }

    fn restore(&mut self, state: &State, _now: Time) -> Result<(), RestoreError> {
        self.next = state.to("courier")?;
        self.begun.clear();
        Ok(())
    }
}
