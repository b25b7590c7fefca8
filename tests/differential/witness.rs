//! A device that behaves packet by packet, whatever it is offered at once, and notes what it saw.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use vm_usb::usb::{
    BusError, Control, Description, EndpointAddress, Notifier, Outcome, Pid, Readiness,
    SetupPacket, Speed, Speeds, Status, Toggle, Transfer, TransferType, UsbDevice,
};

use crate::driver::scripted::Scripted;

/// How the device answers at the start of a unit of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Takes or sends the packet.
    Go,
    /// NAK, to be asked again.
    Nak,
    /// NAK with a promise, which is kept at once.
    Park,
    /// Begun, and done at once.
    Pending,
    Stall,
    /// The packet is lost, once.
    Glitch,
}

/// What the device saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Saw {
    Configured(u8),
    /// A request of its own, with the bytes of its data stage.
    Request(SetupPacket, Vec<u8>),
    /// A packet that was acknowledged.
    Packet {
        endpoint: EndpointAddress,
        toggle: bool,
        data: Vec<u8>,
    },
    /// The endpoint was halted by the device.
    Stalled(EndpointAddress),
    HaltCleared(EndpointAddress),
}

/// Vendor requests of the device.
pub mod vendor {
    /// Takes its data stage.
    pub const PUT: u8 = 1;
    /// Answers with wValue bytes.
    pub const GET: u8 = 2;
    /// Stalls.
    pub const REFUSE: u8 = 3;
}

/// One endpoint's side of the program.
#[derive(Default)]
struct Pipe {
    replies: VecDeque<Reply>,
    /// Messages to send, each ended by a short packet.
    messages: VecDeque<Vec<u8>>,
    /// How much of the first was sent, or of the present run of bytes was taken.
    position: usize,
}

#[derive(Default)]
struct Diary {
    saw: Vec<Saw>,
    pipes: HashMap<u8, Pipe>,
    notifier: Option<Notifier>,
}

/// A hold on a [`Witness`].
#[derive(Clone, Default)]
pub struct Diaries(Arc<Mutex<Diary>>);

impl Diaries {
    fn open(&self) -> MutexGuard<'_, Diary> {
        self.0.lock().unwrap()
    }

    pub fn take(&self) -> Vec<Saw> {
        std::mem::take(&mut self.open().saw)
    }

    /// A transfer begins: the next answers of its endpoint.
    pub fn reply(&self, endpoint: EndpointAddress, replies: &[Reply]) {
        let mut diary = self.open();
        let pipe = diary.pipes.entry(endpoint.byte()).or_default();
        pipe.replies.extend(replies);
        // Where a packet is short depends on the speed, so it does not say where bytes begin.
        if !endpoint.is_in() {
            pipe.position = 0;
        }
    }

    /// Answers that were not asked for are forgotten.
    pub fn settle(&self) {
        self.open().pipes.values_mut().for_each(|pipe| pipe.replies.clear());
    }

    /// One more message for the host.
    pub fn say(&self, endpoint: EndpointAddress, message: Vec<u8>) {
        self.open().pipes.entry(endpoint.byte()).or_default().messages.push_back(message);
        self.announce(endpoint);
    }

    fn announce(&self, endpoint: EndpointAddress) {
        let notifier = self.open().notifier.clone();
        if let Some(notifier) = notifier {
            notifier.ready(endpoint);
        }
    }
}

/// The device: bulk endpoints 1 and 2, interrupt endpoint 3, isochronous endpoint 4, each IN and OUT.
pub struct Witness {
    description: Description,
    diary: Diaries,
    /// Bytes between two looks at the replies, for bulk endpoints.
    unit: usize,
}

impl Witness {
    pub fn new(speed: Speed, unit: usize) -> (Self, Diaries) {
        let diary = Diaries::default();
        let (mut scripted, _) = Scripted::new(speed);
        if let Speeds::Full(configurations) = &mut scripted.description_mut().speeds {
            for address in [EndpointAddress::out(4), EndpointAddress::r#in(4)] {
                configurations[0].interfaces[0].endpoints.push(vm_usb::usb::Endpoint::new(
                    address,
                    TransferType::Isochronous,
                    1023,
                    1,
                ));
            }
        }
        let description = scripted.description().clone();
        (Self { description, diary: diary.clone(), unit }, diary)
    }

    /// Packet by packet through what is offered at once.
    fn packets(
        &self,
        diary: &mut Diary,
        endpoint: EndpointAddress,
        transfer: &mut Transfer<'_>,
    ) -> Outcome {
        let unit = if endpoint.number() == 3 { 64 } else { self.unit };
        let packet = usize::from(transfer.max_packet);
        let asked = transfer.buffer.len();
        let mut toggle = transfer.toggle;
        let mut bytes = 0;
        let Diary { saw, pipes, notifier } = diary;
        let pipe = pipes.entry(endpoint.byte()).or_default();
        loop {
            let end = |status| Outcome { bytes, status };
            if transfer.pid == Pid::In && pipe.messages.is_empty() {
                return end(Status::Nak(Readiness::Announced));
            }
            if pipe.position.is_multiple_of(unit) {
                let reply = pipe.replies.pop_front().unwrap_or(Reply::Go);
                let announce = || notifier.as_ref().expect("plugged in").ready(endpoint);
                match reply {
                    Reply::Go => {}
                    Reply::Nak => return end(Status::Nak(Readiness::Poll)),
                    Reply::Park => {
                        announce();
                        return end(Status::Nak(Readiness::Announced));
                    }
                    // Nothing may have moved in a transfer that has merely begun.
                    Reply::Pending if bytes == 0 => {
                        announce();
                        return Outcome::PENDING;
                    }
                    Reply::Pending => return end(Status::Nak(Readiness::Poll)),
                    Reply::Glitch => return end(Status::Error(BusError::Timeout)),
                    Reply::Stall => {
                        pipe.position = 0;
                        saw.push(Saw::Stalled(endpoint));
                        return end(Status::Stall);
                    }
                }
            }
            let room = (asked - bytes).min(packet);
            let mut data = vec![0; room];
            let last = if transfer.pid == Pid::In {
                let message = pipe.messages.front().expect("there is one");
                let rest = &message[pipe.position..];
                data = rest[..room.min(rest.len())].to_vec();
                transfer.buffer.write(bytes, &data);
                let last = data.len() < packet;
                if last {
                    pipe.messages.pop_front();
                }
                last
            } else {
                transfer.buffer.read(bytes, &mut data);
                data.len() < packet
            };
            pipe.position = if last { 0 } else { pipe.position + data.len() };
            bytes += data.len();
            saw.push(Saw::Packet { endpoint, toggle: toggle.bit(), data });
            toggle = toggle.after(1);
            if bytes == asked || (last && transfer.pid == Pid::In) {
                return Outcome::complete(bytes);
            }
        }
    }
}

impl UsbDevice for Witness {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.diary.open().notifier = Some(notifier);
    }

    fn configured(&mut self, value: u8) {
        let mut diary = self.diary.open();
        diary.saw.push(Saw::Configured(value));
        diary.pipes.values_mut().for_each(|pipe| pipe.position = 0);
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        self.diary.open().saw.push(Saw::Request(*request, data.clone()));
        match request.b_request {
            vendor::PUT => Control::Done,
            vendor::GET => {
                *data = (0..request.value()).map(|n| (n ^ request.index()) as u8).collect();
                Control::Done
            }
            _ => Control::Stall,
        }
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let mut diary = self.diary.open();
        self.packets(&mut diary, endpoint, transfer)
    }

    fn isochronous(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let mut diary = self.diary.open();
        let mut data = vec![0; transfer.buffer.len()];
        if transfer.pid == Pid::In {
            let pipe = diary.pipes.entry(endpoint.byte()).or_default();
            let Some(message) = pipe.messages.pop_front() else { return Outcome::complete(0) };
            data = message;
            transfer.buffer.write(0, &data);
        } else {
            transfer.buffer.read(0, &mut data);
        }
        let bytes = data.len();
        let toggle = transfer.toggle == Toggle::Data1;
        diary.saw.push(Saw::Packet { endpoint, toggle, data });
        Outcome::complete(bytes)
    }

    fn halt_cleared(&mut self, endpoint: EndpointAddress) {
        let mut diary = self.diary.open();
        diary.saw.push(Saw::HaltCleared(endpoint));
        diary.pipes.entry(endpoint.byte()).or_default().position = 0;
    }
}
