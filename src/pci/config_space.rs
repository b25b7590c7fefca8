//! Registers in configuration space, declared by what a write does to each of their bits.

/// Bytes of a conventional function's configuration space (PCI 3.0, 6.1).
pub(super) const SIZE: usize = 256;

/// A register: where it is, what it reads after reset, what a write changes.
///
/// Bits that are neither in `writable` nor in `clearable` are read-only for the guest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Register {
    /// First byte in configuration space.
    pub(super) offset: u8,
    /// Size in bytes, up to 4.
    pub(super) size: u8,
    /// Value after reset.
    pub(super) reset: u32,
    /// Bits that take what is written.
    pub(super) writable: u32,
    /// Bits that a written 1 clears.
    pub(super) clearable: u32,
}

impl Register {
    /// A register that no write changes.
    pub(super) const fn read_only(offset: u8, size: u8, reset: u32) -> Self {
        Self { offset, size, reset, writable: 0, clearable: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Byte {
    value: u8,
    reset: u8,
    writable: u8,
    clearable: u8,
}

/// Configuration space: bytes, so that accesses of any size and alignment agree.
#[derive(Clone, Debug)]
pub(super) struct ConfigSpace {
    bytes: [Byte; SIZE],
}

impl ConfigSpace {
    /// All bytes read-only zero.
    pub(super) fn new() -> Self {
        Self { bytes: [Byte::default(); SIZE] }
    }

    /// Adds `registers`; a later one replaces an earlier one at the same place.
    pub(super) fn declare(&mut self, registers: &[Register]) {
        for register in registers {
            let reset = register.reset.to_le_bytes();
            let writable = register.writable.to_le_bytes();
            let clearable = register.clearable.to_le_bytes();
            self.bytes
                .iter_mut()
                .skip(register.offset.into())
                .take(register.size.into())
                .zip(reset.into_iter().zip(writable).zip(clearable))
                .for_each(|(byte, ((reset, writable), clearable))| {
                    *byte = Byte { value: reset, reset, writable, clearable };
                });
        }
    }

    /// Every register back to its reset value.
    pub(super) fn reset(&mut self) {
        for byte in &mut self.bytes {
            byte.value = byte.reset;
        }
    }

    /// All bytes, for a snapshot.
    pub(super) fn save(&self) -> Vec<u8> {
        self.bytes.iter().map(|byte| byte.value).collect()
    }

    /// Takes over the bits that a guest can change. The others are what the function is, or follow
    /// from its state.
    pub(super) fn restore(&mut self, bytes: &[u8]) {
        for (byte, saved) in self.bytes.iter_mut().zip(bytes) {
            let changeable = byte.writable | byte.clearable;
            byte.value = (byte.reset & !changeable) | (saved & changeable);
        }
    }

    /// A guest read; bytes outside configuration space are zero.
    pub(super) fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        for (into, byte) in data.iter_mut().zip(self.from(offset)) {
            *into = byte.value;
        }
    }

    /// A guest write; bytes outside configuration space are ignored.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let start = usize::try_from(offset).unwrap_or(SIZE);
        for (byte, new) in self.bytes.iter_mut().skip(start).zip(data) {
            let kept = byte.value & !byte.writable & !(byte.clearable & new);
            byte.value = kept | (new & byte.writable);
        }
    }

    fn from(&self, offset: u64) -> impl Iterator<Item = &Byte> {
        let start = usize::try_from(offset).unwrap_or(SIZE);
        self.bytes.iter().skip(start)
    }

    /// The dword at `offset`, for the function itself.
    pub(super) fn get(&self, offset: u8) -> u32 {
        let mut value = [0; 4];
        self.read(offset.into(), &mut value);
        u32::from_le_bytes(value)
    }

    /// The function itself changes the bits `mask` of the dword at `offset`, whatever a guest may do.
    pub(super) fn set(&mut self, offset: u8, mask: u32, value: u32) {
        let bytes = mask.to_le_bytes().into_iter().zip(value.to_le_bytes());
        for (byte, (mask, value)) in self.bytes.iter_mut().skip(offset.into()).zip(bytes) {
            byte.value = (byte.value & !mask) | (value & mask);
        }
    }
}

/// Whether an access of `len` bytes at `offset` touches `register..register + size`.
pub(super) fn touches(offset: u64, len: usize, register: u8, size: u8) -> bool {
    let first = u64::from(register);
    let end = first.saturating_add(size.into());
    offset < end && offset.saturating_add(len as u64) > first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_follows_its_declaration_at_any_access_size() {
        let mut config = ConfigSpace::new();
        config.declare(&[Register {
            offset: 4,
            size: 4,
            reset: 0x8421_0042,
            writable: 0x0000_ff00,
            clearable: 0xff00_0000,
        }]);
        config.write(5, &[0xa5]);
        assert_eq!(config.get(4), 0x8421_a542, "a byte write");
        config.write(4, &[0xff, 0x11, 0xff, 0x80]);
        assert_eq!(config.get(4), 0x0421_1142, "a dword write");
        config.write(7, &[0]);
        assert_eq!(config.get(4), 0x0421_1142, "writing 0 clears nothing");
        let mut three = [0; 3];
        config.read(6, &mut three);
        assert_eq!(three, [0x21, 0x04, 0]);
        config.reset();
        assert_eq!(config.get(4), 0x8421_0042);
    }

    #[test]
    fn the_world_outside_is_zero_and_ignores_writes() {
        let mut config = ConfigSpace::new();
        let mut data = [0xee; 8];
        config.write(u64::MAX, &data);
        config.write(252, &data);
        config.read(252, &mut data);
        assert_eq!(data, [0; 8]);
        config.read(u64::MAX, &mut data);
        assert_eq!(data, [0; 8]);
    }
}
