//! What the author of a device writes.

use super::{Description, EndpointAddress, Notifier, Outcome, SetupPacket, Transfer, UsbHub};

/// The answer to a class or vendor request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Done; the data stage is as long as the buffer says.
    Done,
    /// Not supported, or wrong parameters (request error, USB 2.0 9.2.7).
    Stall,
}

/// Whether the bus is idle for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspension {
    /// Idle for more than 3 ms: the device must draw little power.
    Suspended,
    /// Traffic goes on.
    Resumed,
}

/// A USB device, as its author sees it: descriptors, class requests and data endpoints.
///
/// [`Function`](super::Function) stands before it and takes care of the rest of USB 2.0 chapter 9:
/// address, descriptors, configurations, endpoint halt, data toggles and the stages of control
/// transfers. Every method returns at once. A device that has to wait answers
/// [`Outcome::PARK`] or [`Outcome::PENDING`] and announces the end through its [`Notifier`].
pub trait UsbDevice: Send {
    /// What the device is.
    fn description(&self) -> &Description;

    /// The device was plugged in; `notifier` reaches its host.
    fn attached(&mut self, notifier: Notifier) {
        let _ = notifier;
    }

    /// Bus reset, or the host chose configuration `value` (0: none). All class state and every
    /// pending transfer is dropped; endpoints start again.
    fn configured(&mut self, value: u8);

    /// The host chose an alternate setting; the framework has checked that it exists.
    fn interface_selected(&mut self, interface: u8, alternate: u8) {
        let _ = (interface, alternate);
    }

    /// A request of the class or the vendor, or a standard one that chapter 9 leaves to the device.
    ///
    /// `data` holds the data stage of an OUT request. For an IN request it is empty and takes the
    /// answer, of which the host gets at most `wLength` bytes.
    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        let _ = (request, data);
        Control::Stall
    }

    /// Data for or from `endpoint`, which exists in the present configuration and is not halted.
    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome;

    /// Data for or from an isochronous `endpoint` in one frame or microframe.
    ///
    /// IN: whatever the device has for this frame, up to the buffer's length, which may be nothing.
    /// OUT: all of it is taken. There is no NAK and no STALL (USB 2.0, 5.6.4).
    fn isochronous(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let _ = (endpoint, transfer);
        Outcome::TIMEOUT
    }

    /// The host gave up the transfer that `endpoint` has pending.
    ///
    /// Nothing of it may take effect later. Bytes already received from outside for an IN transfer
    /// should be kept for the next one: what the host has not acknowledged is not lost.
    fn cancel(&mut self, endpoint: EndpointAddress) {
        let _ = endpoint;
    }

    /// The host cleared the endpoint's halt.
    fn halt_cleared(&mut self, endpoint: EndpointAddress) {
        let _ = endpoint;
    }

    /// The device as a hub, if it is one.
    fn as_hub(&mut self) -> Option<&mut dyn UsbHub> {
        None
    }

    /// The bus went idle or came back.
    fn suspension(&mut self, suspension: Suspension) {
        let _ = suspension;
    }
}
