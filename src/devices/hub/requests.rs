//! Hub class requests (USB 2.0, 11.24.2).

use super::description::{HUB_DESCRIPTOR, hub_descriptor};
use super::port::{HubPort, change};
use super::{Hub, PowerSwitching};
use crate::usb::{Control, Recipient, RequestType, SetupPacket, Speed, request};

/// `bRequest` (USB 2.0, table 11-16).
mod class {
    pub(super) const CLEAR_TT_BUFFER: u8 = 8;
    pub(super) const RESET_TT: u8 = 9;
    pub(super) const GET_TT_STATE: u8 = 10;
    pub(super) const STOP_TT: u8 = 11;
}

/// Feature selectors of the hub (USB 2.0, table 11-17).
mod hub {
    pub(super) const C_LOCAL_POWER: u16 = 0;
    pub(super) const C_OVER_CURRENT: u16 = 1;
}

/// Feature selectors of a port (USB 2.0, table 11-17).
mod feature {
    pub(super) const ENABLE: u16 = 1;
    pub(super) const SUSPEND: u16 = 2;
    pub(super) const RESET: u16 = 4;
    pub(super) const POWER: u16 = 8;
    pub(super) const CHANGES: std::ops::RangeInclusive<u16> = 16..=20;
    pub(super) const TEST: u16 = 21;
    pub(super) const INDICATOR: u16 = 22;
}

/// Bit of `wHubStatus` and `wHubChange`.
const HUB_OVER_CURRENT: u16 = 1 << 1;
/// Last test mode, Test_Force_Enable (USB 2.0, 9.4.9).
const LAST_TEST: u8 = 5;
/// Last indicator selector, off (USB 2.0, table 11-25).
const LAST_INDICATOR: u8 = 3;

impl Hub {
    /// A class request; `None` for a request error.
    pub(super) fn request(&mut self, request: &SetupPacket, data: &mut Vec<u8>) -> Option<Control> {
        if request.request_type() != RequestType::Class {
            return None;
        }
        self.look();
        match (request.recipient(), request.b_request) {
            (Recipient::Device, request::GET_DESCRIPTOR) => {
                // Index 0, and type 0 for hosts that leave it out (USB 1.0).
                let known = matches!(request.value_high(), HUB_DESCRIPTOR | 0);
                *data = Some(hub_descriptor(&self.options)).filter(|_| known)?;
            }
            (Recipient::Device, request::GET_STATUS) => {
                let bit = |on| if on { HUB_OVER_CURRENT } else { 0 };
                let words = [bit(self.over_current), bit(self.over_current_change)];
                data.extend(words.into_iter().flat_map(u16::to_le_bytes));
            }
            (Recipient::Device, code @ (request::SET_FEATURE | request::CLEAR_FEATURE)) => {
                match request.value() {
                    hub::C_LOCAL_POWER => {}
                    hub::C_OVER_CURRENT => {
                        self.over_current_change &= code == request::SET_FEATURE;
                    }
                    _ => return None,
                }
            }
            (Recipient::Other, request::GET_STATUS) => {
                let words = self.port(request)?.status();
                data.extend(words.into_iter().flat_map(u16::to_le_bytes));
            }
            (Recipient::Other, request::SET_FEATURE) => self.set_feature(request)?,
            (Recipient::Other, request::CLEAR_FEATURE) => self.clear_feature(request)?,
            (Recipient::Other, code) => return self.translator_request(code, request, data),
            _ => return None,
        }
        Some(Control::Done)
    }

    /// The port in the low byte of `wIndex`.
    fn port(&mut self, request: &SetupPacket) -> Option<&mut HubPort> {
        let at = usize::from(request.index() as u8).checked_sub(1)?;
        self.ports.get_mut(at)
    }

    fn set_feature(&mut self, request: &SetupPacket) -> Option<()> {
        let (now, speed) = (self.now, self.speed);
        let selector = (request.index() >> 8) as u8;
        let port = self.port(request)?;
        match request.value() {
            feature::RESET => port.begin_reset(now),
            feature::SUSPEND => port.suspend(),
            feature::POWER => port.power_on(now),
            feature::TEST => {
                let known = speed == Speed::High && (1..=LAST_TEST).contains(&selector);
                (known && port.test()).then_some(())?;
            }
            feature::INDICATOR => {
                (selector <= LAST_INDICATOR).then_some(())?;
                port.set_indicator(selector != 0);
            }
            // Not required, and without use (USB 2.0, 11.24.2.13).
            value if feature::CHANGES.contains(&value) => {}
            _ => return None,
        }
        self.announce();
        Some(())
    }

    fn clear_feature(&mut self, request: &SetupPacket) -> Option<()> {
        let now = self.now;
        let ganged = self.options.power == PowerSwitching::Ganged;
        let port = self.port(request)?;
        match request.value() {
            feature::ENABLE => port.disable(),
            feature::SUSPEND => port.resume(now),
            feature::POWER => {
                port.power_off();
                if !ganged {
                    port.cut_power();
                } else if !self.ports.iter().any(HubPort::is_powered) {
                    // The gang's switch opens with the last of its ports (USB 2.0, 11.11).
                    self.ports.iter_mut().for_each(HubPort::cut_power);
                }
            }
            feature::INDICATOR => port.set_indicator(false),
            value if feature::CHANGES.contains(&value) => {
                let bit = 1_u16.checked_shl(u32::from(value & 0xf)).unwrap_or(0);
                port.acknowledge(bit & change::ALL);
                return Some(());
            }
            _ => return None,
        }
        self.announce();
        Some(())
    }

    /// Requests to a transaction translator, which `wIndex` names by its port; a hub with a single one
    /// calls it port 1 (USB 2.0, 11.24.2.3).
    fn translator_request(
        &mut self,
        code: u8,
        request: &SetupPacket,
        data: &mut Vec<u8>,
    ) -> Option<Control> {
        if self.speed != Speed::High {
            return None;
        }
        let at = usize::from(request.index()).checked_sub(1)?;
        let translator = self.translators.get_mut(at)?;
        match code {
            class::CLEAR_TT_BUFFER => translator.clear_buffer(request.value()),
            class::RESET_TT => translator.reset(),
            class::GET_TT_STATE => data.extend(translator.state()?),
            class::STOP_TT => translator.stop(),
            _ => return None,
        }
        Some(Control::Done)
    }
}
