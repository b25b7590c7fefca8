//! A disk whose boot sector reads a text from the disk's end through the BIOS and prints it on the serial port.

/// Where firmware puts the boot sector.
const ORIGIN: u16 = 0x7c00;
/// Where the program has the text read to.
const TEXT: u16 = 0x8000;
const SECTOR: usize = 512;
/// The text's room: 64 sectors in one request, so that the read is more than one packet and more than one page.
const TEXT_SECTORS: u16 = 64;

/// An image of `bytes` bytes, a multiple of 512 with room for both, whose program prints `line`.
pub(crate) fn disk(bytes: usize, line: &str) -> Vec<u8> {
    let mut image = vec![0; bytes];
    let text_start = bytes - usize::from(TEXT_SECTORS) * SECTOR;
    let text = format!("{line}\r\n");
    // The text lies at the very end of what is read, behind blanks that the program skips: all of it must arrive.
    image[text_start..].fill(b' ');
    let end = bytes - 1;
    image[end] = 0;
    image[end - text.len()..end].copy_from_slice(text.as_bytes());
    let sector = sector((text_start / SECTOR) as u64);
    image[..SECTOR].copy_from_slice(&sector);
    image
}

/// The boot sector, in 16-bit code.
fn sector(text_sector: u64) -> [u8; SECTOR] {
    let [text_low, text_high] = TEXT.to_le_bytes();
    #[rustfmt::skip]
    let mut code = vec![
        0x31, 0xc0, //             xor ax, ax
        0x8e, 0xd8, //             mov ds, ax
        0x8e, 0xc0, //             mov es, ax
        0x8e, 0xd0, //             mov ss, ax
        0xbc, 0x00, 0x7c, //       mov sp, 7c00h
        0xfc, //                   cld
        0xbe, 0x00, 0x00, //       mov si, packet (filled in below)
        0xb4, 0x42, //             mov ah, 42h: extended read; dl is the boot disk
        0xcd, 0x13, //             int 13h
        0xbe, text_low, text_high, // mov si, TEXT
        0x73, 0x03, //             jnc skip
        0xbe, 0x00, 0x00, //       mov si, complaint (filled in below)
        // skip:
        0xac, //                   lodsb
        0x3c, 0x20, //             cmp al, ' '
        0x74, 0xfb, //             jz skip
        // print:
        0x84, 0xc0, //             test al, al
        0x74, 0x13, //             jz stop
        0x88, 0xc3, //             mov bl, al
        // ready:
        0xba, 0xfd, 0x03, //       mov dx, 3fdh: line status
        0xec, //                   in al, dx
        0xa8, 0x20, //             test al, 20h: transmitter empty
        0x74, 0xf8, //             jz ready
        0x88, 0xd8, //             mov al, bl
        0xba, 0xf8, 0x03, //       mov dx, 3f8h: data
        0xee, //                   out dx, al
        0xac, //                   lodsb
        0xeb, 0xe9, //             jmp print
        // stop:
        0xf4, //                   hlt
        0xeb, 0xfd, //             jmp stop
    ];
    let packet = ORIGIN + code.len() as u16;
    code[13..15].copy_from_slice(&packet.to_le_bytes());
    // The disk address packet: its size, sectors, offset, segment, first sector.
    code.extend([16, 0]);
    code.extend(TEXT_SECTORS.to_le_bytes());
    code.extend(TEXT.to_le_bytes());
    code.extend(0u16.to_le_bytes());
    code.extend(text_sector.to_le_bytes());
    let complaint = ORIGIN + code.len() as u16;
    code[25..27].copy_from_slice(&complaint.to_le_bytes());
    code.extend(b"the BIOS could not read the disk\r\n\0");

    let mut sector = [0; SECTOR];
    sector[..code.len()].copy_from_slice(&code);
    sector[SECTOR - 2..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sector_is_bootable_and_the_text_ends_the_disk() {
        let disk = disk(1 << 20, "hello");
        assert_eq!(&disk[510..512], &[0x55, 0xaa]);
        assert_eq!(&disk[disk.len() - 8..], b"hello\r\n\0");
        assert_eq!(disk[disk.len() - 64 * 512], b' ');
    }

    #[test]
    fn the_address_packet_names_the_texts_first_sector() {
        let sector = sector(0x1234);
        let packet = usize::from(u16::from_le_bytes([sector[13], sector[14]]) - ORIGIN);
        assert_eq!(&sector[packet..packet + 8], &[16, 0, 64, 0, 0x00, 0x80, 0, 0]);
        assert_eq!(&sector[packet + 8..packet + 16], &0x1234u64.to_le_bytes());
        let complaint = usize::from(u16::from_le_bytes([sector[25], sector[26]]) - ORIGIN);
        assert!(sector[complaint..].starts_with(b"the BIOS could not"));
    }
}
