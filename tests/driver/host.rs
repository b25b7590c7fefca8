//! What a class driver needs of a host controller's driver.

use vm_usb::usb::{EndpointAddress, SetupPacket, Speed};

/// How a driver names a device it talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// 0 before SET_ADDRESS.
    pub address: u8,
    pub speed: Speed,
    /// Largest packet of endpoint 0.
    pub control_packet: u16,
}

/// An endpoint of a device, with what its descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe {
    pub device: Device,
    pub endpoint: EndpointAddress,
    pub max_packet: u16,
    /// `bInterval`, for interrupt endpoints.
    pub interval: u8,
}

impl Pipe {
    /// Endpoint 0.
    pub fn control(device: &Device) -> Self {
        Self {
            device: *device,
            endpoint: EndpointAddress::CONTROL,
            max_packet: device.control_packet,
            interval: 0,
        }
    }
}

/// The eight bytes of a SETUP packet.
pub fn setup_bytes(setup: &SetupPacket) -> [u8; 8] {
    let [v0, v1] = setup.value().to_le_bytes();
    let [i0, i1] = setup.index().to_le_bytes();
    let [l0, l1] = setup.length().to_le_bytes();
    [setup.bm_request_type, setup.b_request, v0, v1, i0, i1, l0, l1]
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferError {
    /// The endpoint stalled; the driver has cleared its own side, not the device's.
    Stall,
    /// The device sent too much.
    Babble,
    /// Nobody answered, three times.
    NoAnswer,
    /// Nothing happened for as long as the driver was willing to wait; the transfer was unlinked.
    TimedOut,
    /// The controller reported an error of its own and has stopped.
    ControllerDied,
}

/// A host controller's driver: one transfer at a time, each waited for in simulated time.
pub trait HostDriver {
    /// Number of root ports; they count from 0.
    fn ports(&mut self) -> usize;

    /// Whether a device is plugged into a root port.
    fn connected(&mut self, port: usize) -> bool;

    /// Resets a root port and returns the speed of the device that is enabled behind it then; `None`
    /// if there is none, or it is not this controller's.
    fn reset_port(&mut self, port: usize) -> Option<Speed>;

    /// A control transfer: sends `data` for an OUT request, and for an IN request returns the answer.
    fn control(
        &mut self,
        device: &Device,
        setup: SetupPacket,
        data: &[u8],
    ) -> Result<Vec<u8>, TransferError>;

    /// Sends `data` to a bulk or interrupt endpoint.
    fn send(&mut self, pipe: &Pipe, data: &[u8]) -> Result<(), TransferError>;

    /// Receives up to `len` bytes from a bulk endpoint.
    fn receive(&mut self, pipe: &Pipe, len: usize) -> Result<Vec<u8>, TransferError>;

    /// Waits up to `millis` for a report from an interrupt endpoint.
    fn poll(&mut self, pipe: &Pipe, len: usize, millis: u64) -> Result<Vec<u8>, TransferError>;

    /// The driver's data toggle of the endpoint starts at DATA0 again, as after
    /// CLEAR_FEATURE(ENDPOINT_HALT) or SET_CONFIGURATION.
    fn reset_toggle(&mut self, pipe: &Pipe);

    /// Lets simulated time pass.
    fn sleep_millis(&mut self, millis: u64);
}

/// A driver that can do something else while an endpoint has nothing to say.
pub trait Background: HostDriver {
    /// A transfer under way.
    type Flight;

    /// Asks a bulk or interrupt IN endpoint, which nobody else uses meanwhile, for one packet.
    fn begin_receive(&mut self, pipe: &Pipe) -> Self::Flight;

    /// Whether there is an answer.
    fn has_ended(&mut self, flight: &Self::Flight) -> bool;

    /// Takes the answer; withdraws the transfer if there is none, and that is
    /// [`TransferError::TimedOut`] then.
    fn finish(&mut self, flight: Self::Flight) -> Result<Vec<u8>, TransferError>;
}
