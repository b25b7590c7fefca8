//! Disk images whose bytes the host can tell again.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use guest_protocol::{Pattern, WritePlan};
use sha2::{Digest, Sha256};

const MIB: usize = 1 << 20;

/// A raw image of random bytes.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    seed: u64,
    mebibytes: usize,
}

impl Image {
    /// Writes an image whose bytes are fixed by `seed`.
    pub(crate) fn create(path: PathBuf, seed: u64, mebibytes: usize) -> Result<Self> {
        let image = Self { path, seed, mebibytes };
        image.rewrite()?;
        Ok(image)
    }

    /// Gives the image its first bytes again.
    pub(crate) fn rewrite(&self) -> Result<()> {
        let mut file = File::create(&self.path).with_context(|| self.path.display().to_string())?;
        let mut pattern = Pattern::new(self.seed);
        let mut block = vec![0; MIB];
        for _ in 0..self.mebibytes {
            pattern.fill(&mut block);
            file.write_all(&block).with_context(|| format!("writing {}", self.path.display()))?;
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.mebibytes * MIB) as u64
    }

    /// The file's checksum as it is now.
    pub(crate) fn sha256(&self) -> Result<String> {
        sha256(&self.path, u64::MAX)
    }

    /// The checksum of the file's first MiB as it is now.
    pub(crate) fn head_sha256(&self) -> Result<String> {
        sha256(&self.path, MIB as u64)
    }

    /// Compares the file with the first bytes and `plan` carried out on them: every byte, so that a write to a wrong
    /// place is found as well as a lost one.
    pub(crate) fn verify(&self, plan: &WritePlan) -> Result<()> {
        let mut expected = vec![0; self.mebibytes * MIB];
        Pattern::new(self.seed).fill(&mut expected);
        for block in plan.blocks() {
            let start = block.offset as usize;
            block.fill(&mut expected[start..start + block.length]);
        }
        let found = fs::read(&self.path).with_context(|| self.path.display().to_string())?;
        if found.len() != expected.len() {
            bail!(
                "{} has {} bytes instead of {}",
                self.path.display(),
                found.len(),
                expected.len()
            );
        }
        if found == expected {
            return Ok(());
        }
        let wrong: Vec<_> = (0..found.len()).filter(|&at| found[at] != expected[at]).collect();
        bail!(
            "{} bytes of {} are wrong, the first at {}",
            wrong.len(),
            self.path.display(),
            wrong[0]
        )
    }
}

/// Of the first `most` bytes, or as many as there are.
fn sha256(path: &Path, most: u64) -> Result<String> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?.take(most);
    let mut hash = Sha256::new();
    let mut block = vec![0; MIB];
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&block[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_with_the_plan_carried_out_is_right_and_one_wrong_byte_is_found() {
        let place = tempfile::tempdir().unwrap();
        let image = Image::create(place.path().join("image"), 3, 4).unwrap();
        let plan = WritePlan { seed: 9, disk_bytes: image.bytes(), large: 2, small: 5 };
        assert!(image.verify(&plan).is_err());
        let mut bytes = fs::read(&image.path).unwrap();
        for block in plan.blocks() {
            let start = block.offset as usize;
            block.fill(&mut bytes[start..start + block.length]);
        }
        fs::write(&image.path, &bytes).unwrap();
        image.verify(&plan).unwrap();
        bytes[12_345] ^= 1;
        fs::write(&image.path, &bytes).unwrap();
        let error = image.verify(&plan).unwrap_err().to_string();
        assert!(error.contains("1 bytes") && error.contains("at 12345"), "{error}");
    }

    #[test]
    fn an_image_is_the_same_every_time() {
        let place = tempfile::tempdir().unwrap();
        let image = Image::create(place.path().join("image"), 5, 1).unwrap();
        let first = image.sha256().unwrap();
        image.rewrite().unwrap();
        assert_eq!(image.sha256().unwrap(), first);
        assert_eq!(image.head_sha256().unwrap(), first, "it is a MiB");
    }
}
