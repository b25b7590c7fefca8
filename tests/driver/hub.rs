//! A driver for hubs (USB 2.0, chapter 11): powers their ports and brings up what is behind them.

use vm_usb::usb::{SetupPacket, Speed, request};

use super::enumerate::{EnumerateError, Enumerated, enumerate_after};
use super::host::{Device, HostDriver, Pipe, TransferError};

/// Features of a port (USB 2.0, table 11-17).
pub mod feature {
    pub const ENABLE: u16 = 1;
    pub const SUSPEND: u16 = 2;
    pub const RESET: u16 = 4;
    pub const POWER: u16 = 8;
    pub const C_CONNECTION: u16 = 16;
    pub const C_ENABLE: u16 = 17;
    pub const C_SUSPEND: u16 = 18;
    pub const C_OVER_CURRENT: u16 = 19;
    pub const C_RESET: u16 = 20;
    pub const TEST: u16 = 21;
    pub const INDICATOR: u16 = 22;
}

/// `wPortStatus` and `wPortChange`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub status: u16,
    pub change: u16,
}

/// Bits of `wPortStatus`.
pub mod bit {
    pub const CONNECTION: u16 = 1;
    pub const ENABLE: u16 = 2;
    pub const SUSPEND: u16 = 4;
    pub const OVER_CURRENT: u16 = 8;
    pub const RESET: u16 = 0x10;
    pub const POWER: u16 = 0x100;
    pub const LOW_SPEED: u16 = 0x200;
    pub const HIGH_SPEED: u16 = 0x400;
    pub const TEST: u16 = 0x800;
    pub const INDICATOR: u16 = 0x1000;
}

/// A configured hub whose ports have power.
#[derive(Clone, Copy, Debug)]
pub struct HubDriver {
    pub device: Device,
    pub changes: Pipe,
    pub ports: u16,
}

impl HubDriver {
    /// Takes over a hub that was just enumerated.
    pub fn start(host: &mut dyn HostDriver, hub: &Enumerated) -> Result<Self, TransferError> {
        let interface = hub.interface(9).expect("it is a hub");
        let device = hub.device;
        let get = SetupPacket::new(0xa0, request::GET_DESCRIPTOR, 0x2900, 0, 71);
        let descriptor = host.control(&device, get, &[])?;
        assert_eq!(descriptor[..2], [descriptor.len() as u8, 0x29]);
        let driver = Self {
            device,
            changes: hub.pipe(&interface.endpoints[0]),
            ports: descriptor[2].into(),
        };
        for port in 1..=driver.ports {
            driver.set(host, port, feature::POWER)?;
        }
        host.sleep_millis(2 * u64::from(descriptor[5]));
        Ok(driver)
    }

    pub fn status(&self, host: &mut dyn HostDriver, port: u16) -> Result<Status, TransferError> {
        let get = SetupPacket::new(0xa3, request::GET_STATUS, 0, port, 4);
        let bytes = host.control(&self.device, get, &[])?;
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Ok(Status { status: word(0), change: word(2) })
    }

    pub fn set(
        &self,
        host: &mut dyn HostDriver,
        port: u16,
        feature: u16,
    ) -> Result<(), TransferError> {
        let set = SetupPacket::new(0x23, request::SET_FEATURE, feature, port, 0);
        host.control(&self.device, set, &[]).map(drop)
    }

    pub fn clear(
        &self,
        host: &mut dyn HostDriver,
        port: u16,
        feature: u16,
    ) -> Result<(), TransferError> {
        let clear = SetupPacket::new(0x23, request::CLEAR_FEATURE, feature, port, 0);
        host.control(&self.device, clear, &[]).map(drop)
    }

    /// Resets a port; the speed of the device that is enabled then.
    pub fn reset_port(&self, host: &mut dyn HostDriver, port: u16) -> Option<Speed> {
        self.set(host, port, feature::RESET).ok()?;
        for _ in 0..10 {
            host.sleep_millis(10);
            let Status { status, change } = self.status(host, port).ok()?;
            if status & bit::RESET == 0 {
                let seen = |change_of: u16| change & 1 << (change_of - 16) != 0;
                // A device that went, or one that came instead, ends a reset too.
                let stayed = status & bit::CONNECTION != 0;
                if !seen(feature::C_RESET) && (!stayed || seen(feature::C_CONNECTION)) {
                    return None;
                }
                assert!(seen(feature::C_RESET), "the reset ended unseen");
                self.clear(host, port, feature::C_RESET).ok()?;
                self.clear(host, port, feature::C_CONNECTION).ok()?;
                return (status & bit::ENABLE != 0).then_some(match status {
                    _ if status & bit::LOW_SPEED != 0 => Speed::Low,
                    _ if status & bit::HIGH_SPEED != 0 => Speed::High,
                    _ => Speed::Full,
                });
            }
        }
        None
    }

    /// Brings up the device behind a port.
    pub fn enumerate(
        &self,
        host: &mut dyn HostDriver,
        port: u16,
        address: u8,
    ) -> Result<Enumerated, EnumerateError> {
        enumerate_after(host, address, &mut |host| self.reset_port(host, port))
    }

    /// Waits for the status change endpoint to tell of changes.
    pub fn wait(&self, host: &mut dyn HostDriver, millis: u64) -> Result<Vec<u8>, TransferError> {
        host.poll(&self.changes, self.changes.max_packet.into(), millis)
    }
}
