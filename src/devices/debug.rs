//! A debug device: what a kernel's early console writes to through an EHCI debug port.
//!
//! The console is a pair of bulk endpoints with packets of 8 bytes. Text that the guest sends goes, byte
//! for byte, to a [`DebugConsole`] of the embedder's, which may also answer: kernel debuggers read.
//!
//! What it implements: the debug descriptor, SET_FEATURE(DEBUG_MODE), after which the endpoints work
//! without a configuration (USB 2.0 debug device specification), and the same endpoints for an ordinary
//! driver. It works at any port; early consoles look for it at the debug port, which is root port 1 of
//! [`Ehci`](crate::ehci::Ehci).

use std::sync::Arc;

use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::{
    Configuration, Control, Description, Direction, Endpoint, EndpointAddress, Interface, Notifier,
    Outcome, Recipient, RequestType, SetupPacket, Speeds, Transfer, UsbDevice, Wake, request,
};

const OUT: EndpointAddress = EndpointAddress::out(1);
const IN: EndpointAddress = EndpointAddress::r#in(2);
/// Largest packet of both, in bytes, at any speed.
const PACKET: u16 = 8;
/// Name of its form in a snapshot.
const KIND: &str = "debug device";
/// Bytes copied at a time.
const PIECE: usize = 512;

/// The debug descriptor (USB 2.0 debug device, 4.2): its type, and itself.
const DEBUG: u8 = 0x0a;
const DEBUG_DESCRIPTOR: [u8; 4] = [4, DEBUG, IN.byte(), OUT.byte()];

/// The far end of the console. Every method returns at once.
pub trait DebugConsole: Send {
    /// The device was plugged in. A console that has something to say later wakes `input` then.
    fn attached(&mut self, input: Arc<dyn Wake>) {
        let _ = input;
    }

    /// The next bytes from the guest.
    fn write(&mut self, bytes: &[u8]);

    /// Bytes for the guest, from the start of `into` on; returns how many.
    fn read(&mut self, into: &mut [u8]) -> usize {
        let _ = into;
        0
    }
}

/// A debug device.
pub struct DebugDevice {
    description: Description,
    console: Box<dyn DebugConsole>,
}

impl std::fmt::Debug for DebugDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DebugDevice").finish_non_exhaustive()
    }
}

impl DebugDevice {
    /// A debug device before `console`.
    pub fn new(console: impl DebugConsole + 'static) -> Self {
        let configuration = Configuration::only(Interface {
            class: [0xff, 0, 0],
            endpoints: [OUT, IN].map(|address| Endpoint::bulk(address, PACKET)).to_vec(),
            ..Interface::default()
        });
        let (high, full) = (vec![configuration.clone()], vec![configuration]);
        let description = Description {
            // A test identity that no driver has quirks for.
            vendor: 0x1209,
            product: 0x000a,
            release: 0x0100,
            class: [0xff, 0, 0],
            control_packet: 64,
            manufacturer: "vm-usb".into(),
            name: "Debug device".into(),
            serial: String::new(),
            speeds: Speeds::High { high, full },
        };
        Self { description, console: Box::new(console) }
    }

    fn write(&mut self, transfer: &Transfer<'_>) -> Outcome {
        let mut piece = [0; PIECE];
        let mut at = 0;
        loop {
            let got = transfer.buffer.read(at, &mut piece);
            if got == 0 {
                return Outcome::complete(at);
            }
            self.console.write(piece.get(..got).unwrap_or_default());
            at = at.saturating_add(got);
        }
    }

    fn read(&mut self, transfer: &mut Transfer<'_>) -> Outcome {
        let mut piece = [0; PIECE];
        let room = transfer.buffer.len().min(PIECE);
        let got = self.console.read(piece.get_mut(..room).unwrap_or_default()).min(room);
        if got == 0 {
            return Outcome::PARK;
        }
        transfer.send(piece.get(..got).unwrap_or_default())
    }
}

/// Announces the IN endpoint.
struct Input(Notifier);

impl Wake for Input {
    fn wake(&self) {
        self.0.ready(IN);
    }
}

impl UsbDevice for DebugDevice {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.console.attached(Arc::new(Input(notifier)));
    }

    fn configured(&mut self, _value: u8) {}

    fn control(&mut self, setup: &SetupPacket, data: &mut Vec<u8>) -> Control {
        if (setup.request_type(), setup.recipient()) != (RequestType::Standard, Recipient::Device) {
            return Control::Stall;
        }
        match (setup.b_request, setup.direction()) {
            (request::GET_DESCRIPTOR, Direction::In) if setup.value() >> 8 == u16::from(DEBUG) => {
                data.extend(DEBUG_DESCRIPTOR);
                Control::Done
            }
            // DEBUG_MODE: the framework asks of no other feature.
            (request::SET_FEATURE, Direction::Out) => Control::Done,
            _ => Control::Stall,
        }
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        if endpoint.is_in() { self.read(transfer) } else { self.write(transfer) }
    }

    fn save(&self, _now: Time) -> Result<State, SaveError> {
        // Where the console stands is the console's business.
        let Self { description: _, console: _ } = self;
        State::none(KIND)
    }

    fn restore(&mut self, state: &State, _now: Time) -> Result<(), RestoreError> {
        state.to(KIND)
    }
}
