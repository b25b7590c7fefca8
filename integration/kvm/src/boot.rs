//! Kernels: an ELF file with a PVH note, or a bzImage by Linux's 32-bit boot protocol.
//!
//! Both start in the same state: 32-bit protected mode with flat segments and no paging.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, bail};
use linux_loader::cmdline::Cmdline;
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::elf::{Elf, PvhBootCapability};
use linux_loader::loader::start_info::{hvm_memmap_table_entry, hvm_start_info};
use linux_loader::loader::{BzImage, KernelLoader, load_cmdline};
use vm_memory::{Address, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// Where the structures for the kernel are, all in the first 640 KiB.
const START_INFO: GuestAddress = GuestAddress(0x7000);
const MEMORY_MAP: GuestAddress = GuestAddress(0x7800);
const ZERO_PAGE: GuestAddress = GuestAddress(0x8000);
const COMMAND_LINE: GuestAddress = GuestAddress(0x2_0000);
/// Bytes of the command line, its end included: what Linux takes.
const COMMAND_LINE_SIZE: usize = 2048;
const HIGH_MEMORY: GuestAddress = GuestAddress(0x10_0000);
/// RAM below the hole of the PC: what is beyond is the video memory's and the firmware's.
const LOW_MEMORY_END: u64 = 0xa_0000;

const XEN_HVM_START_MAGIC: u32 = 0x336e_c578;
const E820_RAM: u32 = 1;
/// "No loader that is registered."
const LOADER_UNDEFINED: u8 = 0xff;

/// What the vCPU starts with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) rip: u64,
    /// PVH: address of hvm_start_info.
    pub(crate) rbx: u64,
    /// Linux: address of the zero page.
    pub(crate) rsi: u64,
}

/// Loads `kernel` and what it is to know into `memory`.
pub(crate) fn load(
    memory: &GuestMemoryMmap,
    kernel: &Path,
    cmdline: &str,
) -> anyhow::Result<Entry> {
    let name = kernel.display();
    let mut file =
        File::open(kernel).with_context(|| format!("cannot open the kernel \"{name}\""))?;
    let mut line = Cmdline::new(COMMAND_LINE_SIZE)?;
    line.insert_str(cmdline).context("cannot use the kernel's command line")?;
    load_cmdline(memory, COMMAND_LINE, &line).context("cannot place the command line")?;

    if let Ok(loaded) = BzImage::load(memory, Some(HIGH_MEMORY), &mut file, None) {
        let Some(header) = loaded.setup_header else {
            bail!("\"{name}\" has no setup header");
        };
        return start_linux(memory, header);
    }
    let loaded = Elf::load(memory, None, &mut file, Some(HIGH_MEMORY));
    match loaded.map(|loaded| loaded.pvh_boot_cap) {
        Ok(PvhBootCapability::PvhEntryPresent(entry)) => start_pvh(memory, entry),
        Ok(_) => bail!("\"{name}\" has no PVH note: build it with CONFIG_PVH, or give a bzImage"),
        Err(error) => bail!(
            "\"{name}\" is neither a bzImage nor a 64-bit ELF file that fits into guest memory \
             ({error})"
        ),
    }
}

/// RAM as the guest is told of it.
fn ram(memory: &GuestMemoryMmap) -> [(u64, u64); 2] {
    let end = memory.last_addr().raw_value() + 1;
    let high = HIGH_MEMORY.raw_value();
    [(0, LOW_MEMORY_END), (high, end - high)]
}

fn start_pvh(memory: &GuestMemoryMmap, entry: GuestAddress) -> anyhow::Result<Entry> {
    let map = ram(memory).map(|(addr, size)| hvm_memmap_table_entry {
        addr,
        size,
        type_: E820_RAM,
        reserved: 0,
    });
    let info = hvm_start_info {
        magic: XEN_HVM_START_MAGIC,
        version: 1,
        cmdline_paddr: COMMAND_LINE.raw_value(),
        memmap_paddr: MEMORY_MAP.raw_value(),
        memmap_entries: map.len() as u32,
        ..Default::default()
    };
    let mut params = BootParams::new(&info, START_INFO);
    params.set_sections(&map, MEMORY_MAP);
    PvhBootConfigurator::write_bootparams(&params, memory)?;
    Ok(Entry { rip: entry.raw_value(), rbx: START_INFO.raw_value(), rsi: 0 })
}

fn start_linux(memory: &GuestMemoryMmap, header: setup_header) -> anyhow::Result<Entry> {
    let mut params = boot_params { hdr: header, ..Default::default() };
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.cmd_line_ptr = COMMAND_LINE.raw_value() as u32;
    let ram = ram(memory);
    for (entry, (addr, size)) in params.e820_table.iter_mut().zip(ram) {
        *entry = boot_e820_entry { addr, size, r#type: E820_RAM };
    }
    params.e820_entries = ram.len() as u8;
    LinuxBootConfigurator::write_bootparams(&BootParams::new(&params, ZERO_PAGE), memory)?;
    Ok(Entry { rip: HIGH_MEMORY.raw_value(), rbx: 0, rsi: ZERO_PAGE.raw_value() })
}
