//! Enumeration (USB 2.0, 9.1.2), the way a common operating system goes about it.

use vm_usb::usb::{EndpointAddress, SetupPacket, Speed, request};

use super::host::{Device, HostDriver, Pipe, TransferError};

/// Descriptor types (USB 2.0, table 9-5).
pub mod descriptor {
    pub const DEVICE: u8 = 1;
    pub const CONFIGURATION: u8 = 2;
    pub const STRING: u8 = 3;
    pub const INTERFACE: u8 = 4;
    pub const ENDPOINT: u8 = 5;
    pub const DEVICE_QUALIFIER: u8 = 6;
    pub const OTHER_SPEED_CONFIGURATION: u8 = 7;
}

/// Why a device could not be brought to its configured state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnumerateError {
    /// There is no device, or it is not this controller's.
    NoDevice,
    /// This step failed.
    Transfer(&'static str, TransferError),
    /// This descriptor contradicts itself.
    Malformed(&'static str),
}

/// An interface with its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub number: u8,
    pub alternate: u8,
    pub class: [u8; 3],
    pub name: String,
    /// Descriptors between the interface's own and its endpoints', each with its length and type.
    pub class_descriptors: Vec<Vec<u8>>,
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: EndpointAddress,
    pub attributes: u8,
    pub max_packet: u16,
    pub interval: u8,
    /// Descriptors behind the endpoint's own.
    pub class_descriptors: Vec<Vec<u8>>,
}

/// A device in its first configuration.
#[derive(Clone, Debug)]
pub struct Enumerated {
    pub device: Device,
    /// The 18 bytes of the device descriptor.
    pub descriptor: Vec<u8>,
    pub configuration: u8,
    pub manufacturer: String,
    pub product: String,
    pub serial: String,
    pub interfaces: Vec<Interface>,
}

impl Enumerated {
    /// `idVendor` and `idProduct`.
    pub fn id(&self) -> (u16, u16) {
        let word = |at| u16::from_le_bytes([self.descriptor[at], self.descriptor[at + 1]]);
        (word(8), word(10))
    }

    /// The first interface of this class.
    pub fn interface(&self, class: u8) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.class[0] == class)
    }

    /// The pipe to an endpoint.
    pub fn pipe(&self, endpoint: &Endpoint) -> Pipe {
        Pipe {
            device: self.device,
            endpoint: endpoint.address,
            max_packet: endpoint.max_packet & 0x7ff,
            interval: endpoint.interval,
        }
    }
}

/// GET_DESCRIPTOR.
pub fn get_descriptor(
    host: &mut dyn HostDriver,
    device: &Device,
    kind: u8,
    index: u8,
    language: u16,
    len: u16,
) -> Result<Vec<u8>, TransferError> {
    let value = u16::from(kind) << 8 | u16::from(index);
    let setup = SetupPacket::new(0x80, request::GET_DESCRIPTOR, value, language, len);
    host.control(device, setup, &[])
}

/// A request without data to the whole device.
pub fn device_request(
    host: &mut dyn HostDriver,
    device: &Device,
    code: u8,
    value: u16,
) -> Result<(), TransferError> {
    host.control(device, SetupPacket::new(0x00, code, value, 0, 0), &[]).map(drop)
}

/// CLEAR_FEATURE(ENDPOINT_HALT), and the driver's own toggle with it.
pub fn clear_halt(host: &mut dyn HostDriver, pipe: &Pipe) -> Result<(), TransferError> {
    let endpoint = pipe.endpoint.byte().into();
    let setup = SetupPacket::new(0x02, request::CLEAR_FEATURE, 0, endpoint, 0);
    host.control(&pipe.device, setup, &[])?;
    host.reset_toggle(pipe);
    Ok(())
}

/// Resets a port and brings the device behind it to its first configuration under `address`.
pub fn enumerate(
    host: &mut dyn HostDriver,
    port: usize,
    address: u8,
) -> Result<Enumerated, EnumerateError> {
    enumerate_after(host, address, &mut |host| host.reset_port(port))
}

/// The same for a device behind whatever `reset` resets, which says at what speed it works.
pub fn enumerate_after(
    host: &mut dyn HostDriver,
    address: u8,
    reset: &mut dyn FnMut(&mut dyn HostDriver) -> Option<Speed>,
) -> Result<Enumerated, EnumerateError> {
    let speed = reset(host).ok_or(EnumerateError::NoDevice)?;
    // Before the descriptor says better: the smallest packet, or the only one at high speed.
    let control_packet = if speed == Speed::High { 64 } else { 8 };
    let mut device = Device { address: 0, speed, control_packet };
    let step = |name| move |error| EnumerateError::Transfer(name, error);

    let start = get_descriptor(host, &device, descriptor::DEVICE, 0, 0, 8)
        .map_err(step("the start of the device descriptor"))?;
    if start.len() != 8 || start[..2] != [18, descriptor::DEVICE] {
        return Err(EnumerateError::Malformed("the start of the device descriptor"));
    }
    device.control_packet = start[7].into();
    let known = match speed {
        Speed::Low => start[7] == 8,
        Speed::Full => [8, 16, 32, 64].contains(&start[7]),
        Speed::High => start[7] == 64,
    };
    if !known {
        return Err(EnumerateError::Malformed("bMaxPacketSize0"));
    }

    // A second reset, as many drivers do; then the address.
    reset(host).ok_or(EnumerateError::NoDevice)?;
    device_request(host, &device, request::SET_ADDRESS, address.into())
        .map_err(step("SET_ADDRESS"))?;
    device.address = address;
    host.sleep_millis(2);

    let descriptor = get_descriptor(host, &device, descriptor::DEVICE, 0, 0, 18)
        .map_err(step("the device descriptor"))?;
    if descriptor.len() != 18 || descriptor[..8] != start[..] {
        return Err(EnumerateError::Malformed("the device descriptor"));
    }
    if descriptor[2..4] == [0x00, 0x02] {
        check_other_speed(host, &device)?;
    }
    let raw = configuration(host, &device, descriptor::CONFIGURATION, 0)?;
    let mut interfaces = Vec::new();
    for (interface, name) in parse_interfaces(&raw)? {
        let name = string(host, &device, name)?;
        interfaces.push(Interface { name, ..interface });
    }
    let enumerated = Enumerated {
        device,
        configuration: raw[5],
        manufacturer: string(host, &device, descriptor[14])?,
        product: string(host, &device, descriptor[15])?,
        serial: string(host, &device, descriptor[16])?,
        interfaces,
        descriptor,
    };
    device_request(host, &device, request::SET_CONFIGURATION, raw[5].into())
        .map_err(step("SET_CONFIGURATION"))?;
    let get = SetupPacket::new(0x80, request::GET_CONFIGURATION, 0, 0, 1);
    let active = host.control(&device, get, &[]).map_err(step("GET_CONFIGURATION"))?;
    if active != [raw[5]] {
        return Err(EnumerateError::Malformed("the answer to GET_CONFIGURATION"));
    }
    for endpoint in enumerated.interfaces.iter().flat_map(|interface| &interface.endpoints) {
        host.reset_toggle(&enumerated.pipe(endpoint));
    }
    Ok(enumerated)
}

/// A device that knows two speeds describes the other one too (USB 2.0, 9.6.2 and 9.6.4).
fn check_other_speed(host: &mut dyn HostDriver, device: &Device) -> Result<(), EnumerateError> {
    let qualifier = get_descriptor(host, device, descriptor::DEVICE_QUALIFIER, 0, 0, 10)
        .map_err(|error| EnumerateError::Transfer("the device qualifier", error))?;
    if qualifier.len() != 10 || qualifier[..2] != [10, descriptor::DEVICE_QUALIFIER] {
        return Err(EnumerateError::Malformed("the device qualifier"));
    }
    for index in 0..qualifier[8] {
        let other = configuration(host, device, descriptor::OTHER_SPEED_CONFIGURATION, index)?;
        parse_interfaces(&other)?;
    }
    Ok(())
}

/// A whole configuration descriptor, fetched in two steps.
fn configuration(
    host: &mut dyn HostDriver,
    device: &Device,
    kind: u8,
    index: u8,
) -> Result<Vec<u8>, EnumerateError> {
    let step = |error| EnumerateError::Transfer("a configuration descriptor", error);
    let head = get_descriptor(host, device, kind, index, 0, 9).map_err(step)?;
    if head.len() != 9 || head[..2] != [9, kind] {
        return Err(EnumerateError::Malformed("the start of a configuration descriptor"));
    }
    let total = u16::from_le_bytes([head[2], head[3]]);
    let all = get_descriptor(host, device, kind, index, 0, total).map_err(step)?;
    if all.len() != usize::from(total) || all[..9] != head[..] {
        return Err(EnumerateError::Malformed("a configuration descriptor's total length"));
    }
    Ok(all)
}

/// The interfaces of a configuration, each with the index of its name.
fn parse_interfaces(configuration: &[u8]) -> Result<Vec<(Interface, u8)>, EnumerateError> {
    let mut interfaces: Vec<(Interface, u8)> = Vec::new();
    let mut announced = Vec::new();
    let mut rest = &configuration[9..];
    while !rest.is_empty() {
        let len = usize::from(rest[0]);
        if len < 2 || len > rest.len() {
            return Err(EnumerateError::Malformed("a descriptor's length"));
        }
        let (one, after) = rest.split_at(len);
        rest = after;
        match (one[1], interfaces.last_mut()) {
            (descriptor::INTERFACE, _) if len == 9 => {
                announced.push(usize::from(one[4]));
                let interface = Interface {
                    number: one[2],
                    alternate: one[3],
                    class: [one[5], one[6], one[7]],
                    ..Interface::default()
                };
                interfaces.push((interface, one[8]));
            }
            (descriptor::ENDPOINT, Some((interface, _))) if len == 7 => {
                interface.endpoints.push(Endpoint {
                    address: EndpointAddress::from_byte(one[2]),
                    attributes: one[3],
                    max_packet: u16::from_le_bytes([one[4], one[5]]),
                    interval: one[6],
                    class_descriptors: Vec::new(),
                });
            }
            (_, Some((interface, _))) => match interface.endpoints.last_mut() {
                Some(endpoint) => endpoint.class_descriptors.push(one.to_vec()),
                None => interface.class_descriptors.push(one.to_vec()),
            },
            _ => return Err(EnumerateError::Malformed("a descriptor before any interface")),
        }
    }
    let found = interfaces.iter().map(|(interface, _)| interface.endpoints.len());
    if !found.eq(announced) {
        return Err(EnumerateError::Malformed("bNumEndpoints"));
    }
    let mut numbers: Vec<_> = interfaces.iter().map(|(interface, _)| interface.number).collect();
    numbers.dedup();
    if numbers.len() != usize::from(configuration[4]) {
        return Err(EnumerateError::Malformed("bNumInterfaces"));
    }
    Ok(interfaces)
}

/// A string in the device's first language; empty for index 0.
fn string(host: &mut dyn HostDriver, device: &Device, index: u8) -> Result<String, EnumerateError> {
    if index == 0 {
        return Ok(String::new());
    }
    let step = |error| EnumerateError::Transfer("a string descriptor", error);
    let languages = get_descriptor(host, device, descriptor::STRING, 0, 0, 255).map_err(step)?;
    if languages.len() < 4 || usize::from(languages[0]) != languages.len() {
        return Err(EnumerateError::Malformed("the list of languages"));
    }
    let language = u16::from_le_bytes([languages[2], languages[3]]);
    let bytes =
        get_descriptor(host, device, descriptor::STRING, index, language, 255).map_err(step)?;
    if bytes.len() < 2 || usize::from(bytes[0]) != bytes.len() || bytes[1] != descriptor::STRING {
        return Err(EnumerateError::Malformed("a string descriptor"));
    }
    let units = bytes[2..].chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    char::decode_utf16(units)
        .collect::<Result<_, _>>()
        .map_err(|_| EnumerateError::Malformed("a string's UTF-16"))
}
