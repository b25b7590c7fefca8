//! Numbers by chance, the same in every run.

/// The SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    /// From one byte to `most`.
    pub fn some_bytes(&mut self, most: u64) -> Vec<u8> {
        let len = 1 + self.below(most) as usize;
        self.bytes(len)
    }

    /// So many bytes that are unlike any others.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.roll().to_le_bytes());
        words.take(len).collect()
    }
}
