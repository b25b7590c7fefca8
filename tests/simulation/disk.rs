//! A disk: what is on it is what was written, each write once.

use crate::driver::enumerate::Enumerated;
use crate::driver::mass_storage::{Data, DiskError, MassStorage, ten};
use crate::host::Guest;
use crate::job::{Job, Site, Trouble};
use crate::media::{BLOCK, BLOCKS, Platter};

/// Most blocks of one command.
const MOST_BLOCKS: u64 = 24;

pub struct Disk {
    platter: Platter,
    driver: Option<MassStorage>,
    /// What is on it.
    expected: Vec<u8>,
    /// A write that is under way: where, and what.
    torn: Option<(usize, Vec<u8>)>,
}

impl Disk {
    pub fn new(platter: Platter) -> Self {
        Self { platter, driver: None, expected: vec![0; BLOCKS * BLOCK], torn: None }
    }

    fn command<G: Guest>(&mut self, host: &mut G, site: &Site) -> Result<(), Trouble> {
        let driver = self.driver.as_mut().expect("it is bound");
        let blocks = 1 + site.below(MOST_BLOCKS);
        let lba = site.below(BLOCKS as u64 - blocks);
        let (at, len) = (lba as usize * BLOCK, blocks as usize * BLOCK);
        match site.below(5) {
            0 | 1 => {
                let read = driver.read(host, lba as u32, len, BLOCK)?;
                if read.len() != len {
                    return Err(Trouble::Odd(format!("{} of {len} bytes", read.len())));
                }
                assert!(
                    read == self.expected[at..][..len],
                    "{lba}+{blocks} reads as it was written"
                );
            }
            2 | 3 => {
                let data = site.bytes(len);
                self.torn = Some((at, data.clone()));
                driver.write(host, lba as u32, &data, BLOCK)?;
                self.torn = None;
                self.expected[at..][..len].copy_from_slice(&data);
                self.check_once(at, len);
            }
            _ => {
                driver.scsi(host, &ten(0x35, 0, 0), Data::None).map(drop)?;
                assert!(self.platter.disk.contents() == self.expected, "all that was acknowledged");
            }
        }
        Ok(())
    }

    /// Of a write that was acknowledged, every byte went to the medium once, in order.
    fn check_once(&self, at: usize, len: usize) {
        let mut end = at;
        for (offset, len) in self.platter.take_writes() {
            assert_eq!(offset, end as u64, "a write goes on where it was");
            end += len;
        }
        assert_eq!(end, at + len, "a write comes to its end");
    }
}

impl<G: Guest> Job<G> for Disk {
    fn bind(&mut self, host: &mut G, _site: &Site, found: &Enumerated) -> Result<(), Trouble> {
        let mut driver = MassStorage::bind(found).expect("it is a disk");
        driver.start(host)?;
        self.driver = Some(driver);
        Ok(())
    }

    fn work(&mut self, host: &mut G, site: &Site) -> Result<(), Trouble> {
        let causes = site.causes();
        let Err(trouble) = self.command(host, site) else { return Ok(()) };
        site.excuse(causes, &trouble);
        // The transport's own recovery; if that fails, the device has to be reset.
        let driver = self.driver.as_mut().expect("it is bound");
        let recovered = driver.reset_recovery(host).map_err(DiskError::from);
        if recovered.and_then(|()| driver.start(host)).is_err() {
            return Err(trouble);
        }
        Job::<G>::settle(self, site);
        Ok(())
    }

    fn settle(&mut self, _site: &Site) {
        self.platter.take_writes();
        let contents = self.platter.disk.contents();
        if let Some((at, data)) = self.torn.take() {
            let new = contents[at..].iter().zip(&data).take_while(|(is, new)| is == new).count();
            self.expected[at..][..new].copy_from_slice(&data[..new]);
        }
        assert!(contents == self.expected, "more changed than the start of the torn write");
    }
}
