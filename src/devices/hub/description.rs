//! A hub's descriptors (USB 2.0, 11.23).

use super::{HubOptions, PowerSwitching, STATUS_CHANGE, Translators};
use crate::usb::{Configuration, Description, Endpoint, Interface, Speed, Speeds, TransferType};

/// Hub class (USB 2.0, 11.23.1).
const HUB_CLASS: u8 = 9;
/// `bDescriptorType` of the hub descriptor.
pub(super) const HUB_DESCRIPTOR: u8 = 0x29;

/// `bDeviceProtocol` and `bInterfaceProtocol`.
mod protocol {
    pub(super) const NO_TRANSLATOR: u8 = 0;
    pub(super) const SINGLE: u8 = 1;
    pub(super) const MULTIPLE: u8 = 2;
}

/// `wHubCharacteristics`.
mod characteristics {
    pub(super) const INDIVIDUAL_POWER: u16 = 1;
    pub(super) const INDIVIDUAL_OVER_CURRENT: u16 = 1 << 3;
    pub(super) const PORT_INDICATORS: u16 = 1 << 7;
}

/// Time from power on to power good, in units of 2 ms.
const POWER_GOOD: u8 = 1;

/// Length of the bitmaps that have a bit for the hub and one for each port.
pub(super) fn bitmap_len(ports: u8) -> usize {
    usize::from(ports / 8).saturating_add(1)
}

/// The description of a hub.
pub(super) fn of(options: &HubOptions) -> Description {
    let endpoint = |interval| {
        Endpoint::new(
            STATUS_CHANGE,
            TransferType::Interrupt,
            bitmap_len(options.ports) as u16,
            interval,
        )
    };
    let interface = |alternate, protocol, interval| Interface {
        alternate,
        class: [HUB_CLASS, 0, protocol],
        endpoints: vec![endpoint(interval)],
        ..Interface::default()
    };
    let configuration = |interfaces| {
        vec![Configuration {
            value: 1,
            self_powered: true,
            remote_wakeup: true,
            max_power: 0,
            interfaces,
        }]
    };
    // Intervals as in the examples of 11.23.1: 256 ms at high speed, 255 ms at full speed.
    let full = configuration(vec![interface(0, protocol::NO_TRANSLATOR, 255)]);
    let (device_protocol, speeds) = match (options.speed, options.translators) {
        (Speed::High, Translators::Single) => {
            let high = configuration(vec![interface(0, 0, 12)]);
            (protocol::SINGLE, Speeds::High { high, full })
        }
        (Speed::High, Translators::Multiple) => {
            let high = configuration(vec![
                interface(0, protocol::SINGLE, 12),
                interface(1, protocol::MULTIPLE, 12),
            ]);
            (protocol::MULTIPLE, Speeds::High { high, full })
        }
        _ => (protocol::NO_TRANSLATOR, Speeds::Full(full)),
    };
    Description {
        vendor: 0x1209,
        product: 0x0009,
        release: 0x0100,
        class: [HUB_CLASS, 0, device_protocol],
        control_packet: 64,
        manufacturer: "vm-usb".into(),
        name: "Hub".into(),
        serial: options.serial.clone(),
        speeds,
    }
}

/// The hub descriptor (USB 2.0, 11.23.2.1).
pub(super) fn hub_descriptor(options: &HubOptions) -> Vec<u8> {
    let mut bits = characteristics::PORT_INDICATORS;
    if options.power == PowerSwitching::Individual {
        bits |= characteristics::INDIVIDUAL_POWER | characteristics::INDIVIDUAL_OVER_CURRENT;
    }
    let mut bytes = vec![0, HUB_DESCRIPTOR, options.ports];
    bytes.extend(bits.to_le_bytes());
    bytes.extend([POWER_GOOD, 0]);
    let len = bitmap_len(options.ports);
    // DeviceRemovable: all are. PortPwrCtrlMask: all ones, for software of USB 1.0.
    bytes.extend(std::iter::repeat_n(0, len));
    bytes.extend(std::iter::repeat_n(0xff, len));
    let length = bytes.len() as u8;
    if let Some(first) = bytes.first_mut() {
        *first = length;
    }
    bytes
}
