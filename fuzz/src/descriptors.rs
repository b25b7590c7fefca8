//! Any description of a device: its descriptors are well formed, and a host that asks for any part of
//! one gets that.

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{
    Configuration, Description, Endpoint, EndpointAddress, Interface, Outcome, Pid, Speed, Speeds,
    Status, Toggle, Transfer, TransferType, UsbDevice,
};

const CONFIGURATION: u8 = 2;
const STRING: u8 = 3;
const INTERFACE: u8 = 4;
const ENDPOINT: u8 = 5;

/// Class descriptors are ready made: their author keeps to the form.
fn class_descriptors(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..u.int_in_range(0..=2)? {
        let len: u8 = u.int_in_range(2..=20)?;
        bytes.extend([len, 0x21]);
        bytes.resize(bytes.len() + usize::from(len) - 2, 0xaa);
    }
    Ok(bytes)
}

fn endpoint(u: &mut Unstructured<'_>) -> Result<Endpoint> {
    let number = u.int_in_range(1..=15)?;
    Ok(Endpoint {
        address: if u.arbitrary()? {
            EndpointAddress::r#in(number)
        } else {
            EndpointAddress::out(number)
        },
        transfer_type: *u.choose(&[
            TransferType::Isochronous,
            TransferType::Bulk,
            TransferType::Interrupt,
        ])?,
        max_packet: u.arbitrary()?,
        interval: u.arbitrary()?,
        class_descriptors: class_descriptors(u)?,
    })
}

fn interface(u: &mut Unstructured<'_>) -> Result<Interface> {
    Ok(Interface {
        number: u.int_in_range(0..=3)?,
        alternate: u.int_in_range(0..=3)?,
        class: u.arbitrary()?,
        name: u.arbitrary()?,
        class_descriptors: class_descriptors(u)?,
        endpoints: (0..u.int_in_range(0..=4)?).map(|_| endpoint(u)).collect::<Result<_>>()?,
    })
}

fn configurations(u: &mut Unstructured<'_>) -> Result<Vec<Configuration>> {
    (0..u.int_in_range(1..=3u8)?)
        .map(|n| {
            Ok(Configuration {
                value: n + 1,
                self_powered: u.arbitrary()?,
                remote_wakeup: u.arbitrary()?,
                max_power: u.int_in_range(0..=500)?,
                interfaces: (0..u.int_in_range(0..=5)?)
                    .map(|_| interface(u))
                    .collect::<Result<_>>()?,
            })
        })
        .collect()
}

/// A device that is nothing but its description, and what its host asks for.
#[derive(Debug)]
pub struct Asked {
    description: Description,
    high: bool,
    /// `wValue` and `wLength` of GET_DESCRIPTOR.
    requests: Vec<(u16, u16)>,
}

impl<'a> Arbitrary<'a> for Asked {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let high = u.arbitrary()?;
        let description = Description {
            vendor: u.arbitrary()?,
            product: u.arbitrary()?,
            release: u.arbitrary()?,
            class: u.arbitrary()?,
            control_packet: *u.choose(&[8, 16, 32, 64])?,
            manufacturer: u.arbitrary()?,
            name: u.arbitrary()?,
            serial: u.arbitrary()?,
            speeds: if high {
                Speeds::High { high: configurations(u)?, full: configurations(u)? }
            } else {
                Speeds::Full(configurations(u)?)
            },
        };
        let mut requests = Vec::new();
        while !u.is_empty() && requests.len() < 50 {
            let kind: u16 = u.int_in_range(0..=8)?;
            requests.push((kind << 8 | u.int_in_range(0..=9)?, u.arbitrary()?));
        }
        Ok(Self { description, high, requests })
    }
}

/// A device that does nothing.
struct Dummy(Description);

impl UsbDevice for Dummy {
    fn description(&self) -> &Description {
        &self.0
    }

    fn configured(&mut self, _value: u8) {}

    fn transfer(&mut self, _endpoint: EndpointAddress, _transfer: &mut Transfer<'_>) -> Outcome {
        Outcome::NAK
    }
}

/// Walks through a configuration's descriptors, which fill it exactly.
fn check_configuration(bytes: &[u8], of: &Configuration) {
    assert_eq!(bytes[..2], [9, CONFIGURATION]);
    assert_eq!(usize::from(u16::from_le_bytes([bytes[2], bytes[3]])), bytes.len());
    let mut numbers: Vec<_> = of.interfaces.iter().map(|interface| interface.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(usize::from(bytes[4]), numbers.len(), "bNumInterfaces");
    let (mut at, mut endpoints, mut interfaces) = (0, 0, 0);
    while at < bytes.len() {
        let len = usize::from(bytes[at]);
        assert!(len >= 2 && at + len <= bytes.len(), "a descriptor of {len} bytes at {at}");
        interfaces += usize::from(bytes[at + 1] == INTERFACE);
        endpoints += usize::from(bytes[at + 1] == ENDPOINT);
        at += len;
    }
    assert_eq!(interfaces, of.interfaces.len());
    assert_eq!(endpoints, of.interfaces.iter().map(|i| i.endpoints.len()).sum::<usize>());
}

impl Asked {
    /// Asks, and holds the answers to the form.
    pub fn live(self) {
        let speed = if self.high { Speed::High } else { Speed::Full };
        let description = self.description;
        assert_eq!(description.device_descriptor(speed).len(), 18);
        for (n, configuration) in description.speeds.configurations(speed).iter().enumerate() {
            let bytes = description.configuration_descriptor(speed, n as u8).unwrap();
            check_configuration(&bytes, configuration);
        }
        for index in 0..=255 {
            let Some(bytes) = description.string_descriptor(index) else { break };
            assert_eq!(usize::from(bytes[0]), bytes.len());
            assert!(bytes.len() % 2 == 0 && bytes[1] == STRING);
            let units: Vec<_> =
                bytes[2..].as_chunks().0.iter().map(|u| u16::from_le_bytes(*u)).collect();
            assert!(index == 0 || String::from_utf16(&units).is_ok(), "half a character");
        }
        let port = if self.high { Port::high_speed_only() } else { Port::classic() };
        let link = port.link(if self.high { Host::High } else { Host::Classic });
        port.attach(Box::new(Dummy(description.clone()))).unwrap();
        let fastest = link.fastest();
        link.with(|function| function.bus_reset(fastest));
        let packet = description.control_packet_size(speed);
        for (value, length) in self.requests {
            let [index, kind] = value.to_le_bytes();
            let whole = match kind {
                1 => Some(description.device_descriptor(speed)),
                2 => description.configuration_descriptor(speed, index),
                3 => description.string_descriptor(index),
                6 => description.device_qualifier(speed),
                7 => description.other_speed_configuration(speed, index),
                _ => None,
            };
            let [l0, l1] = length.to_le_bytes();
            let stage = |pid, mut buffer: Vec<u8>| {
                let outcome = link.with(|function| {
                    function.transact(Transfer {
                        pid,
                        endpoint: 0,
                        max_packet: packet,
                        toggle: Toggle::from_bit(pid != Pid::Setup),
                        now: Time::ZERO,
                        buffer: &mut buffer,
                    })
                });
                (outcome.unwrap(), buffer)
            };
            let (setup, _) = stage(Pid::Setup, vec![0x80, 6, index, kind, 0, 0, l0, l1]);
            assert_eq!(setup.status, Status::Complete, "a SETUP is never refused");
            if length == 0 {
                continue;
            }
            let (outcome, buffer) = stage(Pid::In, vec![0; usize::from(length)]);
            let Some(whole) = whole else {
                assert_eq!(outcome.status, Status::Stall, "descriptor {value:#x}");
                continue;
            };
            // The first descriptor of a kind that is asked for by another index is its own answer.
            if kind != 1 && kind != 6 || index == 0 {
                assert_eq!(outcome.bytes, whole.len().min(usize::from(length)), "{value:#x}");
                assert!(whole.starts_with(&buffer[..outcome.bytes]));
            }
        }
    }
}
