//! What the disk says about itself: standard INQUIRY data and vital product data (SPC-4, SBC-3).

use super::Serial;
use super::sense::Sense;
use super::unit::Queueing;

/// T10 vendor identification, space filled.
const VENDOR: &[u8; 8] = b"VM-USB  ";
/// Product identification, space filled.
const PRODUCT: &[u8; 16] = b"Disk            ";
/// Product revision level.
const REVISION: &[u8; 4] = b"1   ";

/// VPD page codes.
mod page {
    pub(super) const SUPPORTED: u8 = 0x00;
    pub(super) const UNIT_SERIAL_NUMBER: u8 = 0x80;
    pub(super) const DEVICE_IDENTIFICATION: u8 = 0x83;
    pub(super) const BLOCK_LIMITS: u8 = 0xb0;
    pub(super) const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
    pub(super) const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;
}

/// Most blocks that one WRITE SAME writes: the time of a command stays bounded.
pub(super) const MAX_WRITE_SAME_BLOCKS: u64 = 0x2000;
/// Most blocks that one UNMAP names in all its descriptors together.
pub(super) const MAX_UNMAP_BLOCKS: u64 = 0x80_0000;
/// Most descriptors in one UNMAP.
pub(super) const MAX_UNMAP_DESCRIPTORS: usize = 256;

/// Standard INQUIRY data, 36 bytes (SPC-4, 6.4.2): firmware that cannot recover from a short answer
/// asks for just these.
///
/// The medium is not removable (RMB is 0): a guest then neither polls for medium changes nor treats
/// the disk as a floppy without partitions.
pub(super) fn standard(queueing: Queueing) -> Vec<u8> {
    let cmd_que = match queueing {
        Queueing::None => 0x00,
        Queueing::Tagged => 0x02,
    };
    // A connected direct access block device, fixed; SPC-4; response data format 2; 31 more bytes.
    let mut bytes = vec![0x00, 0x00, 0x06, 0x02, 31, 0, 0, cmd_que];
    bytes.extend(VENDOR);
    bytes.extend(PRODUCT);
    bytes.extend(REVISION);
    bytes
}

/// A page of vital product data (SPC-4, 7.8; SBC-3, 6.5).
///
/// # Errors
/// If there is no such page.
pub(super) fn vital_product_data(
    code: u8,
    serial: &Serial,
    can_discard: bool,
) -> Result<Vec<u8>, Sense> {
    let body = match code {
        page::SUPPORTED => supported(can_discard),
        page::UNIT_SERIAL_NUMBER => serial.as_str().as_bytes().to_vec(),
        page::DEVICE_IDENTIFICATION => device_identification(serial),
        page::BLOCK_LIMITS => block_limits(can_discard),
        page::BLOCK_DEVICE_CHARACTERISTICS => block_device_characteristics(),
        page::LOGICAL_BLOCK_PROVISIONING if can_discard => logical_block_provisioning(),
        _ => return Err(Sense::INVALID_FIELD_IN_CDB),
    };
    let mut bytes = vec![0x00, code];
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    Ok(bytes)
}

fn supported(can_discard: bool) -> Vec<u8> {
    let mut pages = vec![
        page::SUPPORTED,
        page::UNIT_SERIAL_NUMBER,
        page::DEVICE_IDENTIFICATION,
        page::BLOCK_LIMITS,
        page::BLOCK_DEVICE_CHARACTERISTICS,
    ];
    if can_discard {
        pages.push(page::LOGICAL_BLOCK_PROVISIONING);
    }
    pages
}

/// Two names of the logical unit: T10 vendor identification, and NAA locally assigned.
fn device_identification(serial: &Serial) -> Vec<u8> {
    let mut t10 = VENDOR.to_vec();
    t10.extend(PRODUCT);
    t10.extend(serial.as_str().as_bytes());
    // ASCII, of the logical unit, T10 vendor ID.
    let mut bytes = vec![0x02, 0x01, 0x00, t10.len() as u8];
    bytes.extend(t10);
    // Binary, of the logical unit, NAA; format 3h is locally assigned.
    bytes.extend([0x01, 0x03, 0x00, 8]);
    bytes.extend((0x3 << 60 | serial.condensed()).to_be_bytes());
    bytes
}

fn block_limits(can_discard: bool) -> Vec<u8> {
    let (unmap_blocks, unmap_descriptors) =
        if can_discard { (MAX_UNMAP_BLOCKS as u32, MAX_UNMAP_DESCRIPTORS as u32) } else { (0, 0) };
    // WSNZ; no COMPARE AND WRITE; no limit on and no preference for a transfer's length.
    let mut bytes = vec![0x01, 0];
    bytes.extend([0; 14]);
    bytes.extend(unmap_blocks.to_be_bytes());
    bytes.extend(unmap_descriptors.to_be_bytes());
    // No unmap granularity or alignment.
    bytes.extend([0; 8]);
    bytes.extend(MAX_WRITE_SAME_BLOCKS.to_be_bytes());
    bytes.extend([0; 20]);
    bytes
}

/// Not rotating, so that the guest does not sort its requests for a head that is not there.
fn block_device_characteristics() -> Vec<u8> {
    let mut bytes = 1u16.to_be_bytes().to_vec();
    bytes.extend([0; 58]);
    bytes
}

/// UNMAP and both WRITE SAME unmap; unmapped blocks read as zeros; thinly provisioned.
fn logical_block_provisioning() -> Vec<u8> {
    vec![0, 0b1110_0100, 0x02, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_page_exists_and_says_its_length() {
        let serial = Serial::from_name("disk");
        for can_discard in [false, true] {
            let list = vital_product_data(0, &serial, can_discard).unwrap();
            for code in &list[4..] {
                let page = vital_product_data(*code, &serial, can_discard).unwrap();
                assert_eq!(page[1], *code);
                let len = u16::from_be_bytes([page[2], page[3]]);
                assert_eq!(usize::from(len), page.len() - 4);
            }
            let provisioning = vital_product_data(0xb2, &serial, can_discard);
            assert_eq!(provisioning.is_ok(), can_discard);
        }
        assert_eq!(vital_product_data(0xb0, &serial, true).unwrap().len(), 64, "SBC-3, table 140");
        assert_eq!(vital_product_data(0xb1, &serial, true).unwrap().len(), 64);
    }

    #[test]
    fn the_serial_number_is_in_pages_80_and_83() {
        let serial: Serial = "00112233445566778899".parse().unwrap();
        let number = vital_product_data(0x80, &serial, false).unwrap();
        assert_eq!(&number[4..], b"00112233445566778899");
        let identification = vital_product_data(0x83, &serial, false).unwrap();
        let t10_len = usize::from(identification[7]);
        assert_eq!(
            &identification[8..][..t10_len],
            b"VM-USB  Disk            00112233445566778899"
        );
        let naa = &identification[8 + t10_len..];
        assert_eq!((naa[1], naa[3], naa[4] >> 4), (3, 8, 3));
    }
}
