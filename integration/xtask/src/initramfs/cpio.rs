//! The "newc" cpio format, which the kernel unpacks (its Documentation/driver-api/early-userspace/buffer-format).

use std::collections::HashSet;

const MAGIC: &[u8; 6] = b"070701";
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An archive that grows in memory.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: HashSet<String>,
}

impl Archive {
    pub(crate) fn folder(&mut self, name: &str) {
        if self.folders.insert(name.to_owned()) {
            self.entry(name, FOLDER | 0o755, b"");
        }
    }

    pub(crate) fn file(&mut self, name: &str, permissions: u32, contents: &[u8]) {
        self.entry(name, FILE | permissions, contents);
    }

    /// A file and the folders above it.
    pub(crate) fn file_with_folders(&mut self, name: &str, permissions: u32, contents: &[u8]) {
        for (at, _) in name.match_indices('/') {
            self.folder(&name[..at]);
        }
        self.file(name, permissions, contents);
    }

    pub(crate) fn link(&mut self, name: &str, target: &str) {
        self.entry(name, LINK | 0o777, target.as_bytes());
    }

    /// The archive's bytes with the entry that ends it.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, b"");
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            contents.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(MAGIC);
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    /// Names and contents are filled up to a multiple of four.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_its_header_its_name_and_its_bytes_each_padded() {
        let mut archive = Archive::default();
        archive.file("init", 0o755, b"hello");
        let bytes = archive.bytes;
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[14..22], b"000081ED");
        assert_eq!(&bytes[54..62], b"00000005");
        assert_eq!(&bytes[110..115], b"init\0");
        assert_eq!(&bytes[116..121], b"hello");
        assert_eq!(bytes.len(), 124);
    }

    #[test]
    fn folders_come_before_their_files_and_once() {
        let mut archive = Archive::default();
        archive.file_with_folders("a/b/one", 0o644, b"");
        archive.file_with_folders("a/b/two", 0o644, b"");
        assert_eq!(archive.entries, 4);
    }

    #[test]
    fn an_archive_ends_with_its_trailer() {
        let bytes = Archive::default().finish();
        assert_eq!(&bytes[110..121], b"TRAILER!!!\0");
        assert_eq!(bytes.len() % 4, 0);
    }
}
