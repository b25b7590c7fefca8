//! A device kept from high speed.

use crate::snapshot::{RestoreError, SaveError, State};
use crate::time::Time;
use crate::usb::{
    Control, Description, EndpointAddress, Notifier, Outcome, SetupPacket, Speeds, Suspension,
    Transfer, UsbDevice, UsbHub,
};

/// The device within, which knows no high speed any more: it works as an older one would, on a
/// companion controller or through the transaction translator of a high-speed hub.
///
/// A device that knows no high speed anyway stays as it is.
///
/// ```
/// use vm_usb::devices::full_speed::FullSpeed;
/// use vm_usb::devices::storage::{RamDisk, Serial, Storage};
/// use vm_usb::topology::Port;
///
/// let disk = Storage::new(RamDisk::zeroed(64), Serial::from_name("disk"));
/// let slow = FullSpeed::new(Box::new(disk));
/// let refused = Port::high_speed_only().attach(Box::new(slow)).unwrap_err();
/// assert!(Port::shared().attach(refused.device).is_ok());
/// ```
pub struct FullSpeed {
    device: Box<dyn UsbDevice>,
    description: Description,
}

impl FullSpeed {
    /// Keeps `device` from high speed.
    pub fn new(device: Box<dyn UsbDevice>) -> Self {
        let mut description = device.description().clone();
        if let Speeds::High { full, .. } = description.speeds {
            description.speeds = Speeds::Full(full);
        }
        Self { device, description }
    }
}

impl UsbDevice for FullSpeed {
    fn description(&self) -> &Description {
        &self.description
    }

    fn attached(&mut self, notifier: Notifier) {
        self.device.attached(notifier);
    }

    fn configured(&mut self, value: u8) {
        self.device.configured(value);
    }

    fn interface_selected(&mut self, interface: u8, alternate: u8) {
        self.device.interface_selected(interface, alternate);
    }

    fn control(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Control {
        self.device.control(request, data)
    }

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        self.device.transfer(endpoint, transfer)
    }

    fn isochronous(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        self.device.isochronous(endpoint, transfer)
    }

    fn cancel(&mut self, endpoint: EndpointAddress) {
        self.device.cancel(endpoint);
    }

    fn halt_cleared(&mut self, endpoint: EndpointAddress) {
        self.device.halt_cleared(endpoint);
    }

    fn as_hub(&mut self) -> Option<&mut dyn UsbHub> {
        self.device.as_hub()
    }

    fn suspension(&mut self, suspension: Suspension) {
        self.device.suspension(suspension);
    }

    fn save(&self, now: Time) -> Result<State, SaveError> {
        self.device.save(now)
    }

    fn restore(&mut self, state: &State, now: Time) -> Result<(), RestoreError> {
        self.device.restore(state, now)
    }
}
