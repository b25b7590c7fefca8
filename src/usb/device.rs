//! What the author of a device writes.

use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;

use super::{
    Description, EndpointAddress, LinkAnswer, LinkSleep, Notifier, Outcome, SetupPacket, Transfer,
    UsbHub,
};

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

    /// The host asks the device to sleep for a short time; [`suspension`](Self::suspension) tells of the
    /// end. By default the device knows nothing of that.
    fn sleep(&mut self, sleep: LinkSleep) -> LinkAnswer {
        let _ = sleep;
        LinkAnswer::Silence
    }

    /// The bus went idle or came back.
    fn suspension(&mut self, suspension: Suspension) {
        let _ = suspension;
    }

    /// The device's state, `now`, for a snapshot; [`State::none`] for a device without any.
    ///
    /// The machine stands still meanwhile and may go on afterwards. What the [`Function`] keeps
    /// (address, configuration, halts, toggles) is not part of it, nor are promises to announce
    /// anything: after a restore the host asks every endpoint again.
    ///
    /// A transfer that is pending will be offered again to the restored device, which knows nothing of
    /// it. So the state is that before the transfer began, or, if its work cannot be undone or done
    /// twice, that after it, with the outcome kept for the next offer.
    ///
    /// # Errors
    /// If the device cannot be saved. The default is that it cannot: nothing is lost in silence.
    ///
    /// [`Function`]: super::Function
    fn save(&self, now: Time) -> Result<State, SaveError> {
        let _ = now;
        Err(SaveError::unsupported(format_args!("\"{}\"", self.description().name)))
    }

    /// Takes over a state that [`save`](Self::save) recorded, as old as `now`; whatever the device was
    /// doing is over. [`configured`](Self::configured) is not called: the state says it.
    ///
    /// # Errors
    /// If it is not the state of such a device. It comes from outside and may say anything: nothing in
    /// it may lead to a panic, endless work or more memory than a device takes otherwise.
    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        let _ = (state, now);
        Err(RestoreError::unsupported(format_args!("\"{}\"", self.description().name)))
    }
}
