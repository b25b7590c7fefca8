//! PCI bus 0 behind configuration mechanism #1 (PCI 3.0, 3.2.2.3.2).

use std::collections::BTreeMap;
use std::sync::Arc;

/// A function on the bus.
pub(crate) trait PciDevice: Send + Sync {
    fn config_read(&self, offset: u8, data: &mut [u8]);
    fn config_write(&self, offset: u8, data: &[u8]);
    /// `false` if the address is not the function's.
    fn mmio_read(&self, address: u64, data: &mut [u8]) -> bool;
    /// `false` if the address is not the function's.
    fn mmio_write(&self, address: u64, data: &[u8]) -> bool;
}

/// CONFIG_ADDRESS and the first byte of CONFIG_DATA.
pub(crate) const CONFIG_ADDRESS: u16 = 0xcf8;
pub(crate) const CONFIG_DATA: u16 = 0xcfc;

/// Bit 31 of CONFIG_ADDRESS.
const ENABLE: u32 = 1 << 31;

/// Bus 0: a host bridge and what was added.
pub(crate) struct Bus {
    address: u32,
    /// By device number << 3 | function number.
    functions: BTreeMap<u8, Arc<dyn PciDevice>>,
}

impl Bus {
    pub(crate) fn new() -> Self {
        let mut bus = Self { address: 0, functions: BTreeMap::new() };
        bus.add(0, 0, Arc::new(HostBridge));
        bus
    }

    pub(crate) fn add(&mut self, slot: u8, number: u8, function: Arc<dyn PciDevice>) {
        self.functions.insert(slot << 3 | number, function);
    }

    /// Guest read of `data.len()` bytes from a port of the mechanism.
    pub(crate) fn port_read(&mut self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        if port == CONFIG_ADDRESS && data.len() == 4 {
            data.copy_from_slice(&self.address.to_le_bytes());
        } else if let Some((function, offset)) = self.selected(port) {
            function.config_read(offset, data);
        }
    }

    /// Guest write to a port of the mechanism; CONFIG_ADDRESS takes dwords only.
    pub(crate) fn port_write(&mut self, port: u16, data: &[u8]) {
        if port == CONFIG_ADDRESS {
            self.address = <[u8; 4]>::try_from(data).map_or(self.address, u32::from_le_bytes);
        } else if let Some((function, offset)) = self.selected(port) {
            function.config_write(offset, data);
        }
    }

    /// The function that CONFIG_ADDRESS names, and the register that `port` is then.
    fn selected(&self, port: u16) -> Option<(&dyn PciDevice, u8)> {
        let lane = port.checked_sub(CONFIG_DATA).filter(|lane| *lane < 4)?;
        let [register, function, bus, _] = self.address.to_le_bytes();
        if self.address & ENABLE == 0 || bus != 0 {
            return None;
        }
        let function = self.functions.get(&function)?;
        Some((&**function, (register & 0xfc) | lane as u8))
    }

    /// Guest read of memory that is not RAM: all ones if nobody answers.
    pub(crate) fn mmio_read(&self, address: u64, data: &mut [u8]) {
        if !self.functions.values().any(|function| function.mmio_read(address, data)) {
            data.fill(0xff);
        }
    }

    /// Guest write to memory that is not RAM; lost if nobody answers.
    pub(crate) fn mmio_write(&self, address: u64, data: &[u8]) {
        let _ = self.functions.values().any(|function| function.mmio_write(address, data));
    }
}

/// What a guest looks for to know that there is a bus: nothing but an identity.
struct HostBridge;

impl HostBridge {
    /// Vendor and device id, command and status, revision and class 060000: what other small VMMs say.
    const HEADER: [u32; 3] = [0x0d57_8086, 0, 0x0600_0000];
}

impl PciDevice for HostBridge {
    fn config_read(&self, offset: u8, data: &mut [u8]) {
        let header = Self::HEADER.iter().flat_map(|dword| dword.to_le_bytes());
        let mut bytes = header.chain(std::iter::repeat(0)).skip(offset.into());
        data.fill_with(|| bytes.next().unwrap_or(0));
    }

    fn config_write(&self, _: u8, _: &[u8]) {}

    fn mmio_read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn mmio_write(&self, _: u64, _: &[u8]) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bus: &mut Bus, register: u32, port: u16, count: usize) -> Vec<u8> {
        bus.port_write(CONFIG_ADDRESS, &register.to_le_bytes());
        let mut data = vec![0; count];
        bus.port_read(port, &mut data);
        data
    }

    #[test]
    fn a_guest_finds_the_host_bridge_and_nothing_else() {
        let mut bus = Bus::new();
        assert_eq!(read(&mut bus, ENABLE, CONFIG_DATA, 4), [0x86, 0x80, 0x57, 0x0d]);
        assert_eq!(read(&mut bus, ENABLE | 8, CONFIG_DATA + 2, 2), [0x00, 0x06]);
        assert_eq!(read(&mut bus, ENABLE | 1 << 11, CONFIG_DATA, 4), [0xff; 4], "slot 1");
        assert_eq!(read(&mut bus, ENABLE | 1 << 16, CONFIG_DATA, 4), [0xff; 4], "bus 1");
        assert_eq!(read(&mut bus, 0, CONFIG_DATA, 4), [0xff; 4], "not enabled");
        assert_eq!(read(&mut bus, ENABLE | 0x1234, CONFIG_ADDRESS, 4), [0x34, 0x12, 0, 0x80]);
    }

    #[test]
    fn a_byte_written_to_config_address_is_not_for_the_bus() {
        let mut bus = Bus::new();
        bus.port_write(CONFIG_ADDRESS, &ENABLE.to_le_bytes());
        bus.port_write(CONFIG_ADDRESS, &[0x55]);
        let mut data = [0; 2];
        bus.port_read(CONFIG_DATA, &mut data);
        assert_eq!(data, [0x86, 0x80]);
    }
}
