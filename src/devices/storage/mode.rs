//! Mode parameters (SPC-4, 7.5; SBC-3, 6.4): what a guest asks to learn of caches and write
//! protection.

use super::command::ModeSense;
use super::sense::Sense;

/// Mode page codes.
mod page {
    pub(super) const CACHING: u8 = 0x08;
    pub(super) const CONTROL: u8 = 0x0a;
    pub(super) const ALL: u8 = 0x3f;
}

/// All subpages of a page.
const ALL_SUBPAGES: u8 = 0xff;
/// Writes wait in the host's page cache until SYNCHRONIZE CACHE or FUA.
const WRITE_CACHE_ENABLED: u8 = 0x04;
/// WP in the device-specific parameter.
const WRITE_PROTECTED: u8 = 0x80;
/// DPOFUA in the device-specific parameter: FUA is honoured.
const FORCED_UNIT_ACCESS: u8 = 0x10;

/// The medium, as far as mode parameters speak of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    pub(super) blocks: u64,
    pub(super) block_size: u32,
    pub(super) read_only: bool,
}

/// The answer to MODE SENSE.
///
/// # Errors
/// If there is no such page, or saved values are asked for.
pub(super) fn parameters(request: &ModeSense, disk: Disk) -> Result<Vec<u8>, Sense> {
    if request.page_control == 3 {
        return Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED);
    }
    let changeable = request.page_control == 1;
    let all = request.page == page::ALL;
    if !(request.subpage == 0 || all && request.subpage == ALL_SUBPAGES) {
        return Err(Sense::INVALID_FIELD_IN_CDB);
    }
    let mut pages = Vec::new();
    if all || request.page == page::CACHING {
        pages.extend(caching(changeable));
    }
    if all || request.page == page::CONTROL {
        pages.extend(control());
    }
    if pages.is_empty() {
        return Err(Sense::INVALID_FIELD_IN_CDB);
    }
    let block_descriptor =
        if request.no_block_descriptor { Vec::new() } else { block_descriptor(disk) };
    let mut bytes = header(request, disk, block_descriptor.len(), pages.len());
    bytes.extend(block_descriptor);
    bytes.extend(pages);
    Ok(bytes)
}

/// The header of MODE SENSE (6) or (10); its mode data length does not count itself.
fn header(request: &ModeSense, disk: Disk, descriptor: usize, pages: usize) -> Vec<u8> {
    let write_protected = if disk.read_only { WRITE_PROTECTED } else { 0 };
    let device_specific = write_protected | FORCED_UNIT_ACCESS;
    let rest = descriptor.saturating_add(pages);
    if request.long_header {
        let [high, low] = (rest.saturating_add(6) as u16).to_be_bytes();
        vec![high, low, 0, device_specific, 0, 0, 0, descriptor as u8]
    } else {
        let len = rest.saturating_add(3) as u8;
        vec![len, 0, device_specific, descriptor as u8]
    }
}

/// Short LBA mode parameter block descriptor.
fn block_descriptor(disk: Disk) -> Vec<u8> {
    let blocks = u32::try_from(disk.blocks).unwrap_or(u32::MAX);
    let mut bytes = blocks.to_be_bytes().to_vec();
    // The byte above the 24-bit block length is reserved.
    bytes.extend(disk.block_size.to_be_bytes());
    bytes
}

fn caching(changeable: bool) -> [u8; 20] {
    let mut bytes = [0; 20];
    let flags = if changeable { 0 } else { WRITE_CACHE_ENABLED };
    bytes[..3].copy_from_slice(&[page::CACHING, 18, flags]);
    bytes
}

/// Fixed format sense data, one task at a time.
fn control() -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..2].copy_from_slice(&[page::CONTROL, 10]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Disk = Disk { blocks: 0x1234, block_size: 512, read_only: true };

    fn all_pages(long_header: bool) -> ModeSense {
        ModeSense {
            long_header,
            no_block_descriptor: false,
            page_control: 0,
            page: 0x3f,
            subpage: 0,
        }
    }

    #[test]
    fn both_headers_count_what_follows_them_and_show_write_protection() {
        let short = parameters(&all_pages(false), DISK).unwrap();
        assert_eq!(usize::from(short[0]), short.len() - 1);
        assert_eq!(short[2], 0x90);
        assert_eq!(short[3], 8);
        assert_eq!(short[4..12], [0, 0, 0x12, 0x34, 0, 0, 2, 0]);

        let long = parameters(&all_pages(true), DISK).unwrap();
        assert_eq!(usize::from(u16::from_be_bytes([long[0], long[1]])), long.len() - 2);
        assert_eq!(long[3], 0x90);
        assert_eq!(long[8..], short[4..], "the same parameters follow");
    }

    #[test]
    fn the_write_cache_is_on_and_cannot_be_switched() {
        let caching = |page_control| {
            let request =
                ModeSense { no_block_descriptor: true, page: 8, page_control, ..all_pages(false) };
            parameters(&request, DISK).map(|bytes| bytes[4..7].to_vec())
        };
        assert_eq!(caching(0), Ok(vec![8, 18, 4]), "current");
        assert_eq!(caching(1), Ok(vec![8, 18, 0]), "changeable");
        assert_eq!(caching(2), Ok(vec![8, 18, 4]), "default");
        assert_eq!(caching(3), Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED));
    }

    #[test]
    fn unknown_pages_and_subpages_are_refused() {
        for (page, subpage) in [(0x1c, 0), (0x08, 1), (0x3f, 1)] {
            let request = ModeSense { page, subpage, ..all_pages(false) };
            assert_eq!(
                parameters(&request, DISK),
                Err(Sense::INVALID_FIELD_IN_CDB),
                "page {page:#x} subpage {subpage}"
            );
        }
    }
}
