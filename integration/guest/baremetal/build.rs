//! Compiles the guest with the C compiler of an x86 host.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Integer instructions of an i586 alone: emulated processors know them all, and nothing has to set up
/// the FPU or SSE.
const FLAGS: &[&str] = &[
    "-m32",
    "-march=i586",
    "-mgeneral-regs-only",
    "-std=gnu11",
    "-O2",
    "-ffreestanding",
    "-fno-pic",
    "-fno-pie",
    "-no-pie",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    // No loop becomes a call of the memset or memcpy that it is the body of.
    "-fno-tree-loop-distribute-patterns",
    "-Wall",
    "-Wextra",
    "-Wno-main",
    "-nostdlib",
    "-static",
    "-Wl,--build-id=none",
];

fn main() {
    println!("cargo::rerun-if-changed=guest");
    println!("cargo::rerun-if-env-changed=CC_X86");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        println!("cargo::warning=the bare-metal guest is for x86-64 hosts; it is left out");
        return;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let elf32 = out.join("guest32.elf");
    let elf64 = out.join("guest.elf");

    let compiler = std::env::var("CC_X86").unwrap_or_else(|_| "gcc".into());
    let mut command = Command::new(&compiler);
    command.args(FLAGS).arg("-T").arg("guest/link.ld").arg("-o").arg(&elf32).args(sources());
    run(command, "set CC_X86 to a gcc that compiles for x86 (package gcc)");

    // 32-bit code in a 64-bit file: the only kind that every loader of PVH kernels takes.
    let mut command = Command::new("objcopy");
    command.args(["-I", "elf32-i386", "-O", "elf64-x86-64"]).arg(&elf32).arg(&elf64);
    run(command, "install objcopy (package binutils)");
    println!("cargo::rustc-env=VM_USB_BAREMETAL_ELF={}", elf64.display());
}

fn sources() -> Vec<PathBuf> {
    let mut sources: Vec<PathBuf> = Path::new("guest")
        .read_dir()
        .expect("the sources are there")
        .map(|entry| entry.expect("and readable").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "c" || kind == "S"))
        .collect();
    sources.sort();
    sources
}

fn run(mut command: Command, advice: &str) {
    let name = command.get_program().to_owned();
    let status = command.status();
    if !status.as_ref().is_ok_and(|status| status.success()) {
        panic!("{} could not build the bare-metal guest ({status:?}): {advice}", name.display());
    }
}
