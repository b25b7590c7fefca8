//! A driver for USB Attached SCSI without streams, which may have many commands under way.

use vm_usb::usb::{SetupPacket, request};

use super::enumerate::Enumerated;
use super::host::{Device, HostDriver, Pipe, TransferError};
use super::mass_storage::{CommandError, Data, DiskError, Sense};

/// Room for any information unit.
const MOST_ANSWER: usize = 96;

/// What came over the status pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    ReadReady(u16),
    WriteReady(u16),
    Good(u16),
    /// CHECK CONDITION with fixed format sense data.
    Check(u16, Sense),
    /// SENSE with another status and no sense data.
    Status(u16, u8),
    /// RESPONSE with its code.
    Response(u16, u8),
}

impl Answer {
    /// Reads an information unit of the status pipe.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let tag = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
        Some(match (bytes[0], bytes.len()) {
            (0x06, 4) => Self::ReadReady(tag),
            (0x07, 4) => Self::WriteReady(tag),
            (0x04, 8) => Self::Response(tag, bytes[7]),
            (0x03, 16) if bytes[14..16] == [0, 0] => match bytes[6] {
                0 => Self::Good(tag),
                status => Self::Status(tag, status),
            },
            (0x03, 34) if bytes[6] == 2 && bytes[14..16] == [0, 18] && bytes[16] == 0x70 => {
                Self::Check(tag, Sense(bytes[18] & 0xf, bytes[28], bytes[29]))
            }
            _ => return None,
        })
    }
}

/// An interface with UAS.
#[derive(Clone, Debug)]
pub struct Uas {
    pub device: Device,
    pub interface: u8,
    pub command: Pipe,
    pub status: Pipe,
    pub input: Pipe,
    pub output: Pipe,
    tag: u16,
}

impl Uas {
    /// Finds the alternate setting with UAS and the use of its pipes, and selects it.
    pub fn bind(
        host: &mut dyn HostDriver,
        enumerated: &Enumerated,
    ) -> Result<Option<Self>, TransferError> {
        let found = enumerated.interfaces.iter().find(|i| i.class == [8, 6, 0x62]);
        let Some(interface) = found else {
            return Ok(None);
        };
        let pipe = |id| {
            let usage = vec![vec![4, 0x24, id, 0]];
            let mut endpoints = interface.endpoints.iter();
            endpoints.find(|e| e.class_descriptors == usage).map(|e| enumerated.pipe(e))
        };
        let (Some(command), Some(status), Some(input), Some(output)) =
            (pipe(1), pipe(2), pipe(3), pipe(4))
        else {
            return Ok(None);
        };
        let mut driver = Self {
            device: enumerated.device,
            interface: interface.number,
            command,
            status,
            input,
            output,
            tag: 0,
        };
        driver.select(host, interface.alternate)?;
        Ok(Some(driver))
    }

    /// SET_INTERFACE.
    pub fn select(
        &mut self,
        host: &mut dyn HostDriver,
        alternate: u8,
    ) -> Result<(), TransferError> {
        let (interface, alternate) = (self.interface.into(), alternate.into());
        let setup = SetupPacket::new(0x01, request::SET_INTERFACE, alternate, interface, 0);
        host.control(&self.device, setup, &[])?;
        for pipe in [self.command, self.status, self.input, self.output] {
            host.reset_toggle(&pipe);
        }
        Ok(())
    }

    /// A COMMAND information unit with this TASK ATTRIBUTE, for logical unit 0.
    pub fn command_iu(tag: u16, attribute: u8, cdb: &[u8]) -> [u8; 32] {
        let mut iu = [0; 32];
        iu[0] = 0x01;
        iu[2..4].copy_from_slice(&tag.to_be_bytes());
        iu[4] = attribute;
        iu[16..][..cdb.len()].copy_from_slice(cdb);
        iu
    }

    /// A TASK MANAGEMENT information unit for logical unit 0.
    pub fn task_management_iu(tag: u16, function: u8, managed: u16) -> [u8; 16] {
        let mut iu = [0; 16];
        iu[0] = 0x05;
        iu[2..4].copy_from_slice(&tag.to_be_bytes());
        iu[4] = function;
        iu[6..8].copy_from_slice(&managed.to_be_bytes());
        iu
    }

    /// Sends a command with a new tag and SIMPLE attribute.
    pub fn queue(&mut self, host: &mut dyn HostDriver, cdb: &[u8]) -> Result<u16, TransferError> {
        self.tag += 1;
        host.send(&self.command, &Self::command_iu(self.tag, 0, cdb))?;
        Ok(self.tag)
    }

    /// Fetches one answer.
    pub fn answer(&self, host: &mut dyn HostDriver) -> Result<Answer, CommandError> {
        let bytes = host.receive(&self.status, MOST_ANSWER)?;
        Answer::parse(&bytes).ok_or(CommandError::BadStatus)
    }

    /// A disk command on its own: its data, or the sense data that says why there is none.
    pub fn scsi(
        &mut self,
        host: &mut dyn HostDriver,
        cdb: &[u8],
        data: Data<'_>,
    ) -> Result<Vec<u8>, DiskError> {
        let tag = self.queue(host, cdb)?;
        let mut received = Vec::new();
        let mut answer = self.answer(host)?;
        match (answer, data) {
            (Answer::ReadReady(ready), Data::In(len)) if ready == tag => {
                received = host.receive(&self.input, len)?;
                answer = self.answer(host)?;
            }
            (Answer::WriteReady(ready), Data::Out(bytes)) if ready == tag => {
                host.send(&self.output, bytes)?;
                answer = self.answer(host)?;
            }
            _ => {}
        }
        match answer {
            Answer::Good(good) if good == tag => Ok(received),
            Answer::Check(failed, sense) if failed == tag => Err(DiskError::Check(sense)),
            _ => Err(CommandError::BadStatus.into()),
        }
    }

    /// Waits until the unit is ready, as a driver does at first contact.
    pub fn start(&mut self, host: &mut dyn HostDriver) -> Result<(), DiskError> {
        match self.scsi(host, &[0; 6], Data::None) {
            Err(DiskError::Check(Sense(6, ..))) => self.scsi(host, &[0; 6], Data::None).map(drop),
            result => result.map(drop),
        }
    }
}
