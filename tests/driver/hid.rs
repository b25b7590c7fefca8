//! A driver for human interface devices: the boot protocol's way and the report protocol's.

use vm_usb::usb::{SetupPacket, request};

use super::enumerate::Enumerated;
use super::host::{Device, HostDriver, Pipe, TransferError};

/// Protocols of SET_PROTOCOL (HID 1.11, 7.2.5).
pub const BOOT_PROTOCOL: u8 = 0;
pub const REPORT_PROTOCOL: u8 = 1;

/// Report types (HID 1.11, 7.2.1).
pub const INPUT: u8 = 1;
pub const OUTPUT: u8 = 2;

/// A human interface device's interface.
#[derive(Clone, Debug)]
pub struct HidDriver {
    pub device: Device,
    pub interface: u8,
    /// The interrupt IN endpoint.
    pub input: Pipe,
    /// Length of the report descriptor as the HID descriptor says.
    pub descriptor_len: u16,
}

impl HidDriver {
    /// Binds to the first interface of the class.
    pub fn bind(enumerated: &Enumerated) -> Option<Self> {
        let interface = enumerated.interface(3)?;
        let input = interface.endpoints.iter().find(|e| e.attributes & 3 == 3)?;
        let hid = interface.class_descriptors.iter().find(|d| d[1] == 0x21)?;
        Some(Self {
            device: enumerated.device,
            interface: interface.number,
            input: enumerated.pipe(input),
            descriptor_len: u16::from_le_bytes([hid[7], hid[8]]),
        })
    }

    /// A class request that sends data.
    pub fn set(
        &self,
        host: &mut dyn HostDriver,
        code: u8,
        value: u16,
        data: &[u8],
    ) -> Result<(), TransferError> {
        let len = data.len() as u16;
        let setup = SetupPacket::new(0x21, code, value, self.interface.into(), len);
        host.control(&self.device, setup, data).map(drop)
    }

    /// A class request that asks for data.
    pub fn get(
        &self,
        host: &mut dyn HostDriver,
        code: u8,
        value: u16,
        len: u16,
    ) -> Result<Vec<u8>, TransferError> {
        let setup = SetupPacket::new(0xa1, code, value, self.interface.into(), len);
        host.control(&self.device, setup, &[])
    }

    /// The report descriptor.
    pub fn report_descriptor(&self, host: &mut dyn HostDriver) -> Result<Vec<u8>, TransferError> {
        let interface = self.interface.into();
        let len = self.descriptor_len;
        let setup = SetupPacket::new(0x81, request::GET_DESCRIPTOR, 0x2200, interface, len);
        host.control(&self.device, setup, &[])
    }

    /// SET_IDLE for all reports; `duration` in units of 4 ms.
    pub fn set_idle(&self, host: &mut dyn HostDriver, duration: u8) -> Result<(), TransferError> {
        self.set(host, 0x0a, u16::from(duration) << 8, &[])
    }

    /// SET_PROTOCOL.
    pub fn set_protocol(
        &self,
        host: &mut dyn HostDriver,
        protocol: u8,
    ) -> Result<(), TransferError> {
        self.set(host, 0x0b, protocol.into(), &[])
    }

    /// GET_PROTOCOL.
    pub fn protocol(&self, host: &mut dyn HostDriver) -> Result<u8, TransferError> {
        self.get(host, 0x03, 0, 1).map(|data| data[0])
    }

    /// SET_REPORT with the light-emitting diodes of a keyboard.
    pub fn set_leds(&self, host: &mut dyn HostDriver, leds: u8) -> Result<(), TransferError> {
        self.set(host, 0x09, u16::from(OUTPUT) << 8, &[leds])
    }

    /// Waits up to `millis` for the next report.
    pub fn report(&self, host: &mut dyn HostDriver, millis: u64) -> Result<Vec<u8>, TransferError> {
        host.poll(&self.input, self.input.max_packet.into(), millis)
    }
}
