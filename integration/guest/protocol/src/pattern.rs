//! Bytes and places that both sides can compute from a seed, so that neither has to send them.

use serde::{Deserialize, Serialize};

/// A stream of bytes fixed by a seed (SplitMix64, Steele et al. 2014: short, and every seed is good).
#[derive(Debug, Clone)]
pub struct Pattern {
    state: u64,
}

impl Pattern {
    /// The stream of `seed`, from its start.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`, which must not be zero. The bias is below 2^-32 for the bounds used here.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_word() % bound
    }

    /// The next bytes of the stream.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_word().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Writes of blocks at random places: `large` blocks of 1 MiB, then `small` blocks of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritePlan {
    /// Fixes every place and every byte.
    pub seed: u64,
    /// The disk's size; one MiB at least when there are large blocks.
    pub disk_bytes: u64,
    /// How many blocks of 1 MiB.
    pub large: usize,
    /// How many blocks of 4 KiB.
    pub small: usize,
}

/// One write of a plan; its bytes are those of [`Pattern`] with `seed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where it starts, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: usize,
    /// Fixes its bytes.
    pub seed: u64,
}

impl WritePlan {
    const LARGE: u64 = 1 << 20;
    const SMALL: u64 = 4 << 10;

    /// The bytes the plan writes in all, overlaps counted each time.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.large as u64 * Self::LARGE + self.small as u64 * Self::SMALL
    }

    /// The writes in order. Blocks may overlap: the later one wins, on the disk as in the host's copy. Offsets are
    /// multiples of 4 KiB, so most of the large blocks do not start on a multiple of their own size.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let mut places = Pattern::new(self.seed);
        let Self { disk_bytes, large, small, .. } = *self;
        std::iter::repeat_n(Self::LARGE, large).chain(std::iter::repeat_n(Self::SMALL, small)).map(
            move |length| {
                let starts = (disk_bytes.saturating_sub(length) / Self::SMALL) + 1;
                let offset = places.below(starts) * Self::SMALL;
                Block { offset, length: length as usize, seed: places.next_word() }
            },
        )
    }
}

impl Block {
    /// Writes the block's bytes to `bytes`, which has its length.
    pub fn fill(&self, bytes: &mut [u8]) {
        Pattern::new(self.seed).fill(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64() {
        // The generator's published first output for seed 0.
        assert_eq!(Pattern::new(0).next_word(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn a_plan_stays_on_the_disk_and_writes_what_it_says() {
        let plan = WritePlan { seed: 7, disk_bytes: 8 << 20, large: 4, small: 100 };
        let blocks: Vec<_> = plan.blocks().collect();
        assert_eq!(blocks.len(), 104);
        assert_eq!(blocks.iter().map(|block| block.length as u64).sum::<u64>(), plan.bytes());
        for block in &blocks {
            assert_eq!(block.offset % 4096, 0);
            assert!(block.offset + block.length as u64 <= plan.disk_bytes);
        }
        assert!(blocks.iter().any(|block| block.offset % (1 << 20) != 0));
    }

    #[test]
    fn a_disk_of_one_block_is_written_at_its_start() {
        let plan = WritePlan { seed: 1, disk_bytes: 1 << 20, large: 3, small: 0 };
        assert!(plan.blocks().all(|block| block.offset == 0));
    }
}
