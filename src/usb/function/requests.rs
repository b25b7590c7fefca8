//! The standard requests (USB 2.0, 9.4).

use super::Function;
use crate::usb::description::descriptor_type;
use crate::usb::{
    Control, Direction, EndpointAddress, Recipient, RequestType, SetupPacket, Speed, request,
};

/// Standard feature selectors (USB 2.0, table 9-6).
mod feature {
    pub(super) const ENDPOINT_HALT: u16 = 0;
    pub(super) const DEVICE_REMOTE_WAKEUP: u16 = 1;
    pub(super) const TEST_MODE: u16 = 2;
    pub(super) const DEBUG_MODE: u16 = 6;
}

impl Function {
    /// What comes of a request, standard or not; `data` is its data stage.
    pub(super) fn request(&mut self, setup: &SetupPacket, data: &mut Vec<u8>) -> Control {
        let standard = match setup.request_type() {
            RequestType::Standard => self.standard_request(setup, data),
            _ => None,
        };
        standard.unwrap_or_else(|| {
            let answer = self.device.control(setup, data);
            if answer == Control::Done && is_debug_mode(setup) {
                self.enter_debug_mode();
            }
            answer
        })
    }

    /// The debug endpoints work from now on, without a configuration having been chosen (USB 2.0 debug
    /// device, 4.1): those of the first one.
    fn enter_debug_mode(&mut self) {
        if self.configuration == 0
            && let Some(first) = self.configurations().first().map(|c| c.value)
        {
            self.configure(first);
        }
    }

    /// The requests of USB 2.0, 9.4; `None` for those that are the device's own business.
    fn standard_request(&mut self, setup: &SetupPacket, data: &mut Vec<u8>) -> Option<Control> {
        let done = |ok: bool| Some(if ok { Control::Done } else { Control::Stall });
        let endpoint = EndpointAddress::from_byte(setup.index() as u8);
        match (setup.b_request, setup.recipient(), setup.direction()) {
            (request::GET_DESCRIPTOR, Recipient::Device, Direction::In) => {
                *data = self.descriptor(setup.value_high(), setup.value_low())?;
                done(true)
            }
            (request::SET_ADDRESS, Recipient::Device, Direction::Out) => {
                let address = u8::try_from(setup.value()).ok().filter(|address| *address < 128);
                self.address = address.unwrap_or(self.address);
                done(address.is_some())
            }
            (request::SET_CONFIGURATION, Recipient::Device, Direction::Out) => {
                let value = setup.value_low();
                let known = value == 0 || self.configurations().iter().any(|c| c.value == value);
                if known {
                    self.configure(value);
                }
                done(known)
            }
            (request::GET_CONFIGURATION, Recipient::Device, Direction::In) => {
                data.push(self.configuration);
                done(true)
            }
            (request::SET_INTERFACE, Recipient::Interface, Direction::Out) => {
                done(self.select_interface(setup.index(), setup.value()))
            }
            (request::GET_INTERFACE, Recipient::Interface, Direction::In) => {
                let number = u8::try_from(setup.index()).ok().filter(|n| self.has_interface(*n));
                data.extend(number.map(|number| self.alternate(number)));
                done(number.is_some())
            }
            (request::GET_STATUS, recipient, Direction::In) => {
                let status = self.status(recipient, setup.index(), endpoint);
                data.extend(status.into_iter().flat_map(u16::to_le_bytes));
                done(status.is_some())
            }
            // Few devices know of it.
            (request::SET_FEATURE, Recipient::Device, _) if is_debug_mode(setup) => None,
            (code @ (request::SET_FEATURE | request::CLEAR_FEATURE), recipient, Direction::Out) => {
                let on = code == request::SET_FEATURE;
                done(self.feature(recipient, setup.value(), on, endpoint))
            }
            _ => None,
        }
    }

    fn descriptor(&self, kind: u8, index: u8) -> Option<Vec<u8>> {
        let description = self.device.description();
        match kind {
            descriptor_type::DEVICE => Some(description.device_descriptor(self.speed)),
            descriptor_type::CONFIGURATION => {
                description.configuration_descriptor(self.speed, index)
            }
            descriptor_type::STRING => description.string_descriptor(index),
            descriptor_type::DEVICE_QUALIFIER => description.device_qualifier(self.speed),
            descriptor_type::OTHER_SPEED_CONFIGURATION => {
                description.other_speed_configuration(self.speed, index)
            }
            _ => None,
        }
    }

    fn status(&self, recipient: Recipient, index: u16, endpoint: EndpointAddress) -> Option<u16> {
        match recipient {
            Recipient::Device => {
                let powered = self.current().or(self.configurations().first());
                let self_powered = powered.is_some_and(|c| c.self_powered);
                Some(u16::from(self_powered) | u16::from(self.remote_wakeup) << 1)
            }
            Recipient::Interface => {
                u8::try_from(index).ok().filter(|n| self.has_interface(*n)).map(|_| 0)
            }
            Recipient::Endpoint => {
                self.has_endpoint(endpoint).then(|| u16::from(self.halted.contains(endpoint)))
            }
            Recipient::Other => None,
        }
    }

    fn feature(
        &mut self,
        recipient: Recipient,
        selector: u16,
        on: bool,
        endpoint: EndpointAddress,
    ) -> bool {
        match (recipient, selector) {
            (Recipient::Device, feature::DEVICE_REMOTE_WAKEUP) => {
                let able = self.configurations().iter().any(|c| c.remote_wakeup);
                self.remote_wakeup = on && able;
                able
            }
            // There is no signal to test (USB 2.0, 9.4.9); the mode cannot be cleared.
            (Recipient::Device, feature::TEST_MODE) => on && self.speed == Speed::High,
            (Recipient::Endpoint, feature::ENDPOINT_HALT) if self.has_endpoint(endpoint) => {
                // Endpoint 0 recovers with the next SETUP: there is nothing to halt.
                if endpoint.number() != 0 {
                    self.cancel(endpoint);
                    self.halted.set(endpoint, on);
                    if !on {
                        self.toggles.set(endpoint, false);
                        self.device.halt_cleared(endpoint);
                    }
                }
                true
            }
            _ => false,
        }
    }
}

/// Whether this is SET_FEATURE(DEBUG_MODE).
fn is_debug_mode(setup: &SetupPacket) -> bool {
    setup.request_type() == RequestType::Standard
        && setup.recipient() == Recipient::Device
        && setup.b_request == request::SET_FEATURE
        && setup.value() == feature::DEBUG_MODE
}
