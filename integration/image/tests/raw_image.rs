//! Raw images as a disk uses them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use vm_usb::devices::storage::{BlockSize, Medium};
use vm_usb::usb::Buffer;
use vm_usb_image::{Access, OpenError, RawImage};

/// A buffer whose bytes lie in many places, like a guest's pages.
struct Scattered(Vec<Vec<u8>>);

impl Scattered {
    fn new(bytes: &[u8], piece: usize) -> Self {
        Self(bytes.chunks(piece).map(<[u8]>::to_vec).collect())
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.concat()
    }
}

impl Buffer for Scattered {
    fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        self.bytes().read(offset, into)
    }

    fn write(&mut self, _offset: usize, _from: &[u8]) -> usize {
        panic!("an image never copies")
    }

    fn pieces(&mut self, offset: usize, len: usize, visit: &mut dyn FnMut(*mut u8, usize)) {
        let mut start = 0;
        for piece in &mut self.0 {
            let (from, to) = (offset.max(start), (offset + len).min(start + piece.len()));
            if from < to {
                visit(piece[from - start..].as_mut_ptr(), to - from);
            }
            start += piece.len();
        }
    }

    fn written(&mut self, _offset: usize, _len: usize) {}
}

fn image(size: usize) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let bytes: Vec<u8> = (0..size).map(|at| (at * 31 / 7) as u8).collect();
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn refusal(path: &Path, access: Access) -> String {
    RawImage::open(path, access).map(drop).unwrap_err().to_string()
}

#[test]
fn bytes_move_between_the_file_and_scattered_memory() {
    let (_dir, path) = image(64 << 10);
    let before = fs::read(&path).unwrap();
    let mut disk = RawImage::open(&path, Access::ReadWrite).unwrap();
    assert_eq!((disk.blocks(), disk.block_size()), (128, BlockSize::B512));

    let mut buffer = Scattered::new(&[0; 5000], 700);
    disk.read(1234, &mut buffer, 100..4900).unwrap();
    let read = buffer.bytes();
    assert_eq!(read[100..4900], before[1234..1234 + 4800]);
    assert!(read[..100].iter().chain(&read[4900..]).all(|byte| *byte == 0));

    let mut buffer = Scattered::new(&[7; 5000], 4096);
    disk.write(512, &mut buffer, 8..5000).unwrap();
    let mut expected = before;
    expected[512..512 + 4992].fill(7);
    assert_eq!(fs::read(&path).unwrap(), expected);
}

#[test]
fn more_pieces_than_the_kernel_takes_at_once_are_no_obstacle() {
    let (_dir, path) = image(8 << 10);
    let mut disk = RawImage::open(&path, Access::ReadWrite).unwrap();
    let mut buffer = Scattered::new(&[0; 5000], 1);
    disk.read(0, &mut buffer, 0..5000).unwrap();
    assert_eq!(buffer.bytes(), fs::read(&path).unwrap()[..5000]);
    disk.write(3000, &mut buffer, 0..5000).unwrap();
    assert_eq!(fs::read(&path).unwrap()[3000..8000], buffer.bytes());
}

#[test]
fn a_file_that_shrank_fails_the_read() {
    let (_dir, path) = image(8 << 10);
    let mut disk = RawImage::open(&path, Access::ReadOnly).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let error = disk.read(2048, &mut Scattered::new(&[0; 4096], 4096), 0..4096).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn discarded_blocks_read_as_zeros_and_the_size_stays() {
    let (_dir, path) = image(64 << 10);
    let mut disk = RawImage::open(&path, Access::ReadWrite).unwrap();
    if !disk.can_discard() {
        // The file system cannot: then the disk must not claim it did.
        let kind = disk.discard(0, 512).unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::Unsupported);
        return;
    }
    let mut expected = fs::read(&path).unwrap();
    disk.discard(512, 20 << 10).unwrap();
    disk.flush().unwrap();
    expected[512..512 + (20 << 10)].fill(0);
    assert_eq!(fs::read(&path).unwrap(), expected);
}

#[test]
fn two_disks_share_an_image_only_to_read_it() {
    let (_dir, path) = image(4096);
    let writer = RawImage::open(&path, Access::ReadWrite).unwrap();
    for access in [Access::ReadWrite, Access::ReadOnly] {
        assert!(matches!(RawImage::open(&path, access), Err(OpenError::InUse(_))));
    }
    drop(writer);
    let reader = RawImage::open(&path, Access::ReadOnly).unwrap();
    RawImage::open(&path, Access::ReadOnly).unwrap();
    assert!(refusal(&path, Access::ReadWrite).contains("in use by another program"));
    drop(reader);
    RawImage::open(&path, Access::ReadWrite).unwrap();
}

#[test]
fn what_is_no_image_is_refused_with_the_reason() {
    let (dir, path) = image(1000);
    let shown = path.display();
    assert_eq!(
        refusal(&path, Access::ReadOnly),
        format!(
            "\"{shown}\" is 1000 bytes long, not a multiple of 512: \
             pad it with `truncate -s %512 {shown}` if it is a raw image at all"
        )
    );
    fs::write(&path, b"").unwrap();
    assert!(refusal(&path, Access::ReadWrite).contains("is empty: give it a size"));
    fs::remove_file(&path).unwrap();
    assert!(refusal(&path, Access::ReadWrite).contains("there is no image"));
    for access in [Access::ReadOnly, Access::ReadWrite] {
        assert!(refusal(dir.path(), access).contains("is a directory, not a raw image"));
    }
    let null = refusal(Path::new("/dev/null"), Access::ReadOnly);
    assert!(null.contains("is a character device"), "{null}");
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    assert!(refusal(&pipe, Access::ReadOnly).contains("is a pipe"));
}

#[test]
fn a_read_only_image_says_so() {
    let (_dir, path) = image(4096);
    let disk = RawImage::open(&path, Access::ReadOnly).unwrap();
    assert!(disk.read_only());
    assert!(!disk.can_discard());
}

/// A block device that shows a file; it goes away with the value.
struct Loop(String);

impl Loop {
    /// Why not, if this user or this kernel sets up none.
    fn new(path: &Path, sector: u32) -> Result<Self, String> {
        let output = std::process::Command::new("losetup")
            .args(["--show", "--find", "--sector-size", &sector.to_string()])
            .arg(path)
            .output()
            .map_err(|error| format!("losetup: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(Self(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.unwrap().success());
    }
}

/// Needs root, for loop devices: without, it says so and checks nothing; in CI that is a failure.
#[test]
fn a_block_device_has_its_own_sectors_and_may_be_discarded() {
    for (sector, block_size) in [(512, BlockSize::B512), (4096, BlockSize::B4096)] {
        let (_dir, path) = image(1 << 20);
        let device = match Loop::new(&path, sector) {
            Ok(device) => device,
            Err(reason) => {
                assert!(std::env::var("CI").is_err(), "no loop devices: {reason}");
                // Not `eprintln!`, which the test harness swallows: `cargo xtask test` counts these lines.
                let test = "a_block_device_has_its_own_sectors_and_may_be_discarded";
                let _ = writeln!(io::stderr(), "SKIPPED {test}: no loop devices: {reason}");
                return;
            }
        };
        let mut expected = fs::read(&path).unwrap();
        let mut disk = RawImage::open(&device.0, Access::ReadWrite).unwrap();
        assert_eq!(disk.block_size(), block_size);
        assert_eq!(disk.blocks(), (1 << 20) / u64::from(sector));
        assert!(refusal(Path::new(&device.0), Access::ReadWrite).contains("in use"));

        // A transfer ends where the controller's does, not where a sector does.
        let mut buffer = Scattered::new(&[9; 3000], 1000);
        disk.write(8192 + 100, &mut buffer, 0..3000).unwrap();
        expected[8292..11292].fill(9);
        disk.discard(65536, 32768).unwrap();
        expected[65536..98304].fill(0);
        disk.flush().unwrap();
        let mut buffer = Scattered::new(&vec![0; 1 << 20], 4096);
        disk.read(0, &mut buffer, 0..1 << 20).unwrap();
        assert!(buffer.bytes() == expected);
        drop(disk);
        assert!(fs::read(&path).unwrap() == expected, "and it is in the file");
    }
}

#[test]
fn others_can_have_an_image_flushed_while_it_is_open() {
    let (_dir, path) = image(4096);
    let mut raw = RawImage::open(&path, Access::ReadWrite).unwrap();
    let flusher = raw.flusher();
    assert!(!flusher.flush().unwrap(), "nothing was written");
    raw.write(512, &mut Scattered::new(&[7; 512], 100), 0..512).unwrap();
    assert!(flusher.flush().unwrap());
    assert!(!flusher.flush().unwrap(), "all of it is stored");
    raw.write(0, &mut Scattered::new(&[8; 512], 512), 0..512).unwrap();
    raw.flush().unwrap();
    assert!(!flusher.flush().unwrap(), "its disk has done it");
    raw.write(0, &mut Scattered::new(&[9; 512], 512), 0..512).unwrap();
    assert!(flusher.is_open());
    drop(raw);
    assert!(!flusher.is_open(), "the handle keeps nothing open");
    assert!(!flusher.flush().unwrap(), "closing flushed it");
    RawImage::open(&path, Access::ReadWrite).unwrap();
}
