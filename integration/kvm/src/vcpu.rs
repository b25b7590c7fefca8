//! The vCPU.

use std::io::{self, ErrorKind};

use anyhow::{Context, bail};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::boot::Entry;
use crate::ports::Ports;

/// Segments as Linux's 32-bit boot protocol wants them: code at 0x10, data at 0x18, both 4 GiB from 0.
const GDT: [u64; 4] = [0, 0, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
const GDT_ADDRESS: u64 = 0x500;
const CODE: u16 = 0x10;
const DATA: u16 = 0x18;

const CR0_PROTECTED: u64 = 1;
/// Bit 1 of RFLAGS is always one; interrupts are off.
const RFLAGS: u64 = 2;

/// A flat segment; `kind` as in a descriptor.
fn segment(selector: u16, kind: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_: kind,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    }
}

/// A vCPU that is about to enter the kernel.
pub(crate) fn create(
    kvm: &Kvm,
    vm: &VmFd,
    memory: &GuestMemoryMmap,
    entry: Entry,
) -> anyhow::Result<VcpuFd> {
    let vcpu = vm.create_vcpu(0).context("KVM does not create a vCPU")?;
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    vcpu.set_cpuid2(&cpuid).context("KVM does not take its own CPUID")?;

    for (index, descriptor) in (0..).zip(GDT) {
        memory.write_obj(descriptor, GuestAddress(GDT_ADDRESS + index * 8))?;
    }
    let mut sregs = vcpu.get_sregs()?;
    sregs.gdt.base = GDT_ADDRESS;
    sregs.gdt.limit = size_of_val(&GDT) as u16 - 1;
    sregs.cs = segment(CODE, 0xb);
    let data = segment(DATA, 0x3);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.cr0 = CR0_PROTECTED;
    sregs.cr4 = 0;
    sregs.efer = 0;
    vcpu.set_sregs(&sregs).context("KVM does not take 32-bit protected mode")?;
    vcpu.set_regs(&kvm_regs {
        rip: entry.rip,
        rbx: entry.rbx,
        rsi: entry.rsi,
        rflags: RFLAGS,
        ..Default::default()
    })?;
    Ok(vcpu)
}

/// Runs the guest until it ends the machine; its exit status.
pub(crate) fn run(mut vcpu: VcpuFd, mut ports: Ports) -> anyhow::Result<u8> {
    loop {
        match vcpu.run() {
            Ok(VcpuExit::MmioRead(address, data)) => ports.bus.mmio_read(address, data),
            Ok(VcpuExit::MmioWrite(address, data)) => ports.bus.mmio_write(address, data),
            Ok(VcpuExit::IoIn(port, data)) => ports.read(port, data),
            Ok(VcpuExit::IoOut(port, data)) => {
                if let Some(status) = ports.write(port, data) {
                    return Ok(status);
                }
            }
            Ok(VcpuExit::Shutdown) => bail!("the guest reset the machine (triple fault)"),
            Ok(exit) => {
                let exit = format!("{exit:?}");
                let rip = vcpu.get_regs()?.rip;
                bail!("KVM cannot go on with the guest at {rip:#x}: {exit}");
            }
            Err(error) => {
                let error = io::Error::from_raw_os_error(error.errno());
                // A signal, or nothing to do yet.
                if !matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) {
                    bail!("KVM cannot run the vCPU: {error}");
                }
            }
        }
    }
}
