//! What a device is, and the descriptors that say so (USB 2.0, 9.6).

use serde::{Deserialize, Serialize};

use super::{EndpointAddress, Speed};

/// Descriptor types (USB 2.0, table 9-5).
pub(crate) mod descriptor_type {
    pub(crate) const DEVICE: u8 = 1;
    pub(crate) const CONFIGURATION: u8 = 2;
    pub(crate) const STRING: u8 = 3;
    pub(crate) const INTERFACE: u8 = 4;
    pub(crate) const ENDPOINT: u8 = 5;
    pub(crate) const DEVICE_QUALIFIER: u8 = 6;
    pub(crate) const OTHER_SPEED_CONFIGURATION: u8 = 7;
}

/// Hub class (USB 2.0, 11.23.1).
const HUB_CLASS: u8 = 9;

/// US English, the one language of our strings.
const LANGUAGE: u16 = 0x0409;

/// Transfer types (USB 2.0, 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum TransferType {
    /// Control.
    Control = 0,
    /// Isochronous.
    Isochronous = 1,
    /// Bulk.
    Bulk = 2,
    /// Interrupt.
    Interrupt = 3,
}

/// An endpoint descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `bEndpointAddress`.
    pub address: EndpointAddress,
    /// Bits 1:0 of `bmAttributes`.
    pub transfer_type: TransferType,
    /// `wMaxPacketSize`, with the high-bandwidth multiplier in bits 12:11.
    pub max_packet: u16,
    /// `bInterval`.
    pub interval: u8,
    /// Class descriptors, ready made, behind the endpoint's.
    pub class_descriptors: Vec<u8>,
}

impl Endpoint {
    /// An endpoint without class descriptors.
    pub fn new(
        address: EndpointAddress,
        transfer_type: TransferType,
        max_packet: u16,
        interval: u8,
    ) -> Self {
        Self { address, transfer_type, max_packet, interval, class_descriptors: Vec::new() }
    }

    /// A bulk endpoint without a NAK rate to declare.
    pub fn bulk(address: EndpointAddress, max_packet: u16) -> Self {
        Self::new(address, TransferType::Bulk, max_packet, 0)
    }

    /// Largest data packet in bytes.
    pub fn packet_size(&self) -> u16 {
        self.max_packet & 0x7ff
    }
}

/// An interface descriptor, its class descriptors and its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// `bInterfaceNumber`.
    pub number: u8,
    /// `bAlternateSetting`.
    pub alternate: u8,
    /// `bInterfaceClass`, `bInterfaceSubClass`, `bInterfaceProtocol`.
    pub class: [u8; 3],
    /// String of `iInterface`; empty for none.
    pub name: String,
    /// Class descriptors, ready made, between the interface's and its endpoints'.
    pub class_descriptors: Vec<u8>,
    /// The endpoints besides endpoint 0.
    pub endpoints: Vec<Endpoint>,
}

/// A configuration descriptor and its interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// `bConfigurationValue`, not 0.
    pub value: u8,
    /// Whether the device does not draw power from the bus.
    pub self_powered: bool,
    /// Whether the device can signal remote wakeup.
    pub remote_wakeup: bool,
    /// Power from the bus in mA, up to 500.
    pub max_power: u16,
    /// All interfaces with all alternate settings.
    pub interfaces: Vec<Interface>,
}

impl Configuration {
    /// A device's only configuration, number 1: it draws no power from the bus and does not wake it.
    pub fn only(interface: Interface) -> Self {
        Self {
            value: 1,
            self_powered: true,
            remote_wakeup: false,
            max_power: 0,
            interfaces: vec![interface],
        }
    }

    /// The interface with this number and alternate setting.
    pub fn interface(&self, number: u8, alternate: u8) -> Option<&Interface> {
        self.interfaces.iter().find(|i| i.number == number && i.alternate == alternate)
    }
}

/// The speeds a device can work at, and what it is at each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Speeds {
    /// Low speed only.
    Low(Vec<Configuration>),
    /// Full speed only.
    Full(Vec<Configuration>),
    /// High speed, and full speed where the port does not offer more.
    High {
        /// At high speed.
        high: Vec<Configuration>,
        /// At full speed.
        full: Vec<Configuration>,
    },
}

impl Speeds {
    /// The fastest of them.
    pub fn fastest(&self) -> Speed {
        match self {
            Self::Low(_) => Speed::Low,
            Self::Full(_) => Speed::Full,
            Self::High { .. } => Speed::High,
        }
    }

    /// The speed the device works at on a port that offers up to `port`.
    pub fn on_port(&self, port: Speed) -> Speed {
        match self {
            Self::Low(_) => Speed::Low,
            Self::Full(_) => Speed::Full,
            Self::High { .. } => port.max(Speed::Full),
        }
    }

    /// The configurations at `speed`, one that [`on_port`](Self::on_port) returned.
    pub fn configurations(&self, speed: Speed) -> &[Configuration] {
        match self {
            Self::Low(configurations) | Self::Full(configurations) => configurations,
            Self::High { high, full } => {
                if speed == Speed::High {
                    high
                } else {
                    full
                }
            }
        }
    }
}

/// What a device is: everything its standard descriptors say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// `idVendor`.
    pub vendor: u16,
    /// `idProduct`.
    pub product: u16,
    /// `bcdDevice`.
    pub release: u16,
    /// `bDeviceClass`, `bDeviceSubClass`, `bDeviceProtocol`.
    pub class: [u8; 3],
    /// `bMaxPacketSize0` at low and full speed: 8, 16, 32 or 64 (8 at low speed). It is 64 at high
    /// speed.
    pub control_packet: u8,
    /// Manufacturer string; empty for none.
    pub manufacturer: String,
    /// Product string; empty for none.
    pub name: String,
    /// Serial number string; empty for none.
    pub serial: String,
    /// Speeds and configurations.
    pub speeds: Speeds,
}

impl Description {
    /// Largest packet of endpoint 0 at `speed`.
    pub fn control_packet_size(&self, speed: Speed) -> u16 {
        if speed == Speed::High { 64 } else { self.control_packet.into() }
    }

    /// All strings in the order of their descriptor indices, which start at 1.
    fn strings(&self) -> Vec<&str> {
        let mut strings = Vec::new();
        let configurations: &[&[Configuration]] = match &self.speeds {
            Speeds::Low(only) | Speeds::Full(only) => &[only],
            Speeds::High { high, full } => &[high, full],
        };
        let names = configurations
            .iter()
            .flat_map(|list| list.iter())
            .flat_map(|configuration| configuration.interfaces.iter())
            .map(|interface| interface.name.as_str());
        for text in [&*self.manufacturer, &*self.name, &*self.serial].into_iter().chain(names) {
            if !text.is_empty() && !strings.contains(&text) {
                strings.push(text);
            }
        }
        strings
    }

    /// Descriptor index of `text`; 0 if it is empty.
    fn string_index(&self, text: &str) -> u8 {
        self.strings()
            .iter()
            .position(|known| *known == text)
            .and_then(|at| u8::try_from(at.saturating_add(1)).ok())
            .unwrap_or(0)
    }

    /// Device descriptor at `speed` (USB 2.0, 9.6.1).
    pub fn device_descriptor(&self, speed: Speed) -> Vec<u8> {
        let mut bytes = vec![18, descriptor_type::DEVICE];
        bytes.extend(self.usb_version().to_le_bytes());
        bytes.extend(self.class_at(speed));
        bytes.push(self.control_packet_size(speed) as u8);
        bytes.extend(self.vendor.to_le_bytes());
        bytes.extend(self.product.to_le_bytes());
        bytes.extend(self.release.to_le_bytes());
        bytes.push(self.string_index(&self.manufacturer));
        bytes.push(self.string_index(&self.name));
        bytes.push(self.string_index(&self.serial));
        bytes.push(count(self.speeds.configurations(speed).len()));
        bytes
    }

    /// Device qualifier: the device at its other speed (USB 2.0, 9.6.2). `None` for a device with
    /// one speed.
    pub fn device_qualifier(&self, speed: Speed) -> Option<Vec<u8>> {
        let other = self.other_speed(speed)?;
        let mut bytes = vec![10, descriptor_type::DEVICE_QUALIFIER];
        bytes.extend(self.usb_version().to_le_bytes());
        bytes.extend(self.class_at(other));
        bytes.push(self.control_packet_size(other) as u8);
        bytes.push(count(self.speeds.configurations(other).len()));
        bytes.push(0);
        Some(bytes)
    }

    /// Configuration descriptor number `index` with all that follows it (USB 2.0, 9.6.3).
    pub fn configuration_descriptor(&self, speed: Speed, index: u8) -> Option<Vec<u8>> {
        self.configuration_as(descriptor_type::CONFIGURATION, speed, index)
    }

    /// The same for the device's other speed (USB 2.0, 9.6.4).
    pub fn other_speed_configuration(&self, speed: Speed, index: u8) -> Option<Vec<u8>> {
        let other = self.other_speed(speed)?;
        self.configuration_as(descriptor_type::OTHER_SPEED_CONFIGURATION, other, index)
    }

    /// String descriptor number `index`; number 0 lists the languages (USB 2.0, 9.6.7).
    pub fn string_descriptor(&self, index: u8) -> Option<Vec<u8>> {
        let mut bytes = vec![0, descriptor_type::STRING];
        match usize::from(index).checked_sub(1) {
            None => bytes.extend(LANGUAGE.to_le_bytes()),
            Some(at) => {
                for character in self.strings().get(at)?.chars() {
                    let mut units = [0; 2];
                    let units = character.encode_utf16(&mut units);
                    // A descriptor's length is one byte, and it holds whole UTF-16 units.
                    if bytes.len().saturating_add(size_of_val(units)) > 254 {
                        break;
                    }
                    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
                }
            }
        }
        let len = count(bytes.len());
        if let Some(first) = bytes.first_mut() {
            *first = len;
        }
        Some(bytes)
    }

    /// A hub's protocol names its transaction translators, which it has at high speed only (USB 2.0,
    /// 11.23.1).
    fn class_at(&self, speed: Speed) -> [u8; 3] {
        let [class, subclass, protocol] = self.class;
        let translates = class != HUB_CLASS || speed == Speed::High;
        [class, subclass, if translates { protocol } else { 0 }]
    }

    fn usb_version(&self) -> u16 {
        match self.speeds {
            Speeds::High { .. } => 0x0200,
            Speeds::Low(_) | Speeds::Full(_) => 0x0110,
        }
    }

    fn other_speed(&self, speed: Speed) -> Option<Speed> {
        match self.speeds {
            Speeds::High { .. } if speed == Speed::High => Some(Speed::Full),
            Speeds::High { .. } => Some(Speed::High),
            Speeds::Low(_) | Speeds::Full(_) => None,
        }
    }

    fn configuration_as(&self, kind: u8, speed: Speed, index: u8) -> Option<Vec<u8>> {
        let configuration = self.speeds.configurations(speed).get(usize::from(index))?;
        let mut body = Vec::new();
        let mut numbers = Vec::new();
        for interface in &configuration.interfaces {
            if !numbers.contains(&interface.number) {
                numbers.push(interface.number);
            }
            body.extend([
                9,
                descriptor_type::INTERFACE,
                interface.number,
                interface.alternate,
                count(interface.endpoints.len()),
            ]);
            body.extend(interface.class);
            body.push(self.string_index(&interface.name));
            body.extend(&interface.class_descriptors);
            for endpoint in &interface.endpoints {
                body.extend([
                    7,
                    descriptor_type::ENDPOINT,
                    endpoint.address.byte(),
                    endpoint.transfer_type as u8,
                ]);
                body.extend(endpoint.max_packet.to_le_bytes());
                body.push(endpoint.interval);
                body.extend(&endpoint.class_descriptors);
            }
        }
        let total = u16::try_from(body.len().saturating_add(9)).unwrap_or(u16::MAX);
        let mut bytes = vec![9, kind];
        bytes.extend(total.to_le_bytes());
        bytes.extend([
            count(numbers.len()),
            configuration.value,
            0,
            0x80 | u8::from(configuration.self_powered) << 6
                | u8::from(configuration.remote_wakeup) << 5,
            (configuration.max_power / 2).min(250) as u8,
        ]);
        bytes.extend(body);
        Some(bytes)
    }
}

/// A length as a descriptor's one-byte field.
fn count(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX)
}
