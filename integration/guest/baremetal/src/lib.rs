//! A bare-metal guest with its own OHCI and EHCI drivers.
//!
//! One ELF file with a PVH note, for any VMM that boots such kernels: `vm-usb-kvm --kernel`, QEMU's
//! `-kernel`, cloud-hypervisor's `--kernel`. It finds the first controller of each kind by its PCI class,
//! sets BARs and interrupts, enumerates the disk behind it, writes and reads it, sleeps in HLT until each
//! interrupt, first by pin and then by message, tells all on the first serial port, and ends the machine
//! through port 0xf4.
//!
//! Its sources are C, in `guest/`: a compiler for freestanding x86 code without SSE is on every machine.

/// The guest's file; `None` if it was not built because the host is no x86-64 one.
pub const ELF: Option<&str> = option_env!("VM_USB_BAREMETAL_ELF");

/// What the guest writes to port 0xf4 if all went well; the VMM's exit status is then twice that plus
/// one.
pub const PASSED: u8 = 0x2a;

/// Blocks of 512 bytes that each disk must have at least.
pub const DISK_BLOCKS: usize = 512;

/// What the guest says when there is a disk of [`DISK_BLOCKS`] behind each controller, with the labels
/// `ehci` and `ohci` in block 0, and both interrupts work.
pub const TRANSCRIPT: &str = include_str!("transcript.txt");

/// The transcript without the lines that tell of one machine alone: they begin with `#`.
pub fn common(transcript: &str) -> String {
    let lines = transcript.lines().map(str::trim_end);
    lines.filter(|line| !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect()
}

/// Disk contents to start with: `label` in block 0, zeros behind.
pub fn disk(label: &str) -> Vec<u8> {
    let mut disk = vec![0; DISK_BLOCKS * 512];
    disk[..label.len()].copy_from_slice(label.as_bytes());
    disk
}

/// Disk contents after the guest has passed: `interface` is the controller's programming interface, 0x10
/// for OHCI, 0x20 for EHCI.
pub fn disk_afterwards(label: &str, interface: u8) -> Vec<u8> {
    let mut disk = disk(label);
    for block in WRITTEN_BY_PIN.chain(WRITTEN_BY_MESSAGE) {
        for word in 0..128 {
            let value = u32::from(interface) << 24 | (block as u32) << 8 | word as u32;
            let at = block * 512 + word * 4;
            disk[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
    }
    disk
}

const WRITTEN_BY_PIN: std::ops::Range<usize> = 8..8 + 128;
const WRITTEN_BY_MESSAGE: std::ops::Range<usize> = 256..256 + 128;
