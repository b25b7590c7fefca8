//! QEMU's command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::rig::{Attachment, Controller, Disk, Kind, Maker, Rig, Transport};
use crate::setup::{Architecture, Qemu};

/// How the guest's kernel takes the controllers' interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Interrupts {
    /// Message signalled, which Linux prefers.
    Msi,
    /// The pin: the kernel is told to leave MSI alone.
    Intx,
}

/// What the machine starts.
#[derive(Debug, Clone)]
pub(crate) enum Firmware {
    /// This kernel with this initramfs.
    Linux { vmlinuz: PathBuf, initramfs: PathBuf, interrupts: Interrupts, shell: bool },
    /// Whatever SeaBIOS finds on the disks.
    Disks,
    /// This program, which is a kernel of its own and ends QEMU itself.
    BareMetal(PathBuf),
}

/// A machine to be started.
pub(crate) struct Machine<'a> {
    pub(crate) qemu: &'a Qemu,
    pub(crate) firmware: &'a Firmware,
    pub(crate) rig: &'a Rig,
    /// Guest memory in MiB.
    pub(crate) memory: u32,
    /// The folder of the run's sockets.
    pub(crate) run: &'a Path,
}

impl Machine<'_> {
    /// The whole command. The console is on QEMU's standard output and input; the channel to the agent is a socket
    /// that QEMU connects to.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.qemu.command();
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-accel",
            "tcg",
        ]);
        command.args(["-cpu", self.processor(), "-smp", "1", "-m", &self.memory.to_string()]);
        // A vfio-user server maps the guest's memory, so the memory is a file that can be shared.
        command.args([
            "-object",
            &format!("memory-backend-memfd,id=m,size={}M,share=on", self.memory),
        ]);
        command.args(["-machine", self.board()]);
        self.console(&mut command);
        self.firmware(&mut command);
        for controller in &self.rig.controllers {
            match controller.maker {
                Maker::Ours => {
                    let id = Some(controller.id);
                    let all = &self.rig.controllers;
                    let is_shared = all.iter().any(|other| other.companion_of == id);
                    ours(controller, is_shared, self.run, &mut command);
                }
                Maker::Qemu => qemus(controller, &mut command),
            }
        }
        command
    }

    fn processor(&self) -> &'static str {
        match self.qemu.architecture {
            // With SHA instructions a checksum in the guest takes a third of the time.
            Architecture::Amd64 => "max",
            // It has them, too, and no pointer authentication, which takes an emulator long.
            Architecture::Arm64 => "cortex-a72",
        }
    }

    fn board(&self) -> &'static str {
        match self.qemu.architecture {
            // Linux ticks by the HPET until it has found better, and leaves it running: QEMU then wakes 250 times a
            // second for a timer that nobody listens to.
            Architecture::Amd64 => "q35,memory-backend=m,usb=off,hpet=off",
            Architecture::Arm64 => "virt,memory-backend=m,usb=off",
        }
    }

    fn console(&self, command: &mut Command) {
        let shell = matches!(self.firmware, Firmware::Linux { shell: true, .. });
        if shell {
            // Ctrl-C goes to the guest; Ctrl-A X ends QEMU, Ctrl-A C is its monitor.
            command.args(["-serial", "mon:stdio"]);
            return;
        }
        command.args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]);
        if matches!(self.firmware, Firmware::Linux { .. }) {
            let channel = self.channel();
            command.args(["-chardev", &format!("socket,id=channel,path={}", channel.display())]);
            command.args(["-serial", "chardev:channel"]);
        } else {
            // SeaBIOS tells this port what it finds.
            let log = self.run.join("firmware.log");
            command.args(["-chardev", &format!("file,id=firmware,path={}", log.display())]);
            command.args(["-device", "isa-debugcon,iobase=0x402,chardev=firmware"]);
        }
        let monitor = self.monitor();
        command.args(["-monitor", &format!("unix:{},server=on,wait=off", monitor.display())]);
    }

    /// Where the agent's channel listens.
    pub(crate) fn channel(&self) -> PathBuf {
        self.run.join("channel")
    }

    /// QEMU's own monitor, for input to its own devices.
    pub(crate) fn monitor(&self) -> PathBuf {
        self.run.join("monitor")
    }

    fn firmware(&self, command: &mut Command) {
        let (vmlinuz, initramfs, interrupts, shell) = match self.firmware {
            Firmware::Linux { vmlinuz, initramfs, interrupts, shell } => {
                (vmlinuz, initramfs, interrupts, shell)
            }
            Firmware::Disks => return,
            Firmware::BareMetal(program) => {
                command.arg("-kernel").arg(program);
                command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
                return;
            }
        };
        command.arg("-kernel").arg(vmlinuz).arg("-initrd").arg(initramfs);
        // panic=-1 with -no-reboot: a guest that panics ends. No VGA: nothing waits for a console that is not there.
        let port = match self.qemu.architecture {
            Architecture::Amd64 => "ttyS0,115200",
            Architecture::Arm64 => "ttyAMA0",
        };
        let mut line = format!("console={port} panic=-1 printk.time=1");
        if *interrupts == Interrupts::Intx {
            line.push_str(" pci=nomsi");
        }
        if *shell {
            line.push_str(" quiet lab.shell");
        }
        command.arg("-append").arg(line);
    }
}

/// The socket of one of our controllers.
pub(crate) fn socket(run: &Path, controller: &Controller) -> PathBuf {
    run.join(format!("{}.sock", controller.id))
}

fn ours(controller: &Controller, is_shared: bool, run: &Path, command: &mut Command) {
    let device = json!({
        "driver": "vfio-user-pci",
        "id": controller.id,
        "addr": format!("{:02x}.{}", controller.slot, controller.function()),
        // Function 0 says whether there are others; QEMU wants to be told, too.
        "multifunction": is_shared,
        "socket": { "type": "unix", "path": socket(run, controller) },
    });
    command.arg("-device").arg(device.to_string());
}

fn qemus(controller: &Controller, command: &mut Command) {
    let driver = match controller.kind {
        Kind::Ehci => "usb-ehci",
        Kind::Ohci => "pci-ohci",
        Kind::Xhci => "qemu-xhci",
    };
    let id = controller.id;
    command.args(["-device", &format!("{driver},id={id},addr={:02x}.0", controller.slot)]);
    for device in &controller.devices {
        let name = controller.device_id(device);
        match device {
            Attachment::Disk(Disk { image, transport: Transport::BulkOnly }) => {
                command.arg("-drive").arg(drive(&name, image));
                command.args(["-device", &format!("usb-storage,bus={id}.0,drive={name}")]);
            }
            Attachment::Disk(Disk { image, transport: Transport::Uas }) => {
                command.arg("-drive").arg(drive(&name, image));
                command.args(["-device", &format!("usb-uas,bus={id}.0,id={id}-uas")]);
                command.args(["-device", &format!("scsi-hd,bus={id}-uas.0,drive={name}")]);
            }
            Attachment::Keyboard => {
                command.args(["-device", &format!("usb-kbd,bus={id}.0,id={name}")]);
            }
            Attachment::Tablet => {
                command.args(["-device", &format!("usb-tablet,bus={id}.0,id={name}")]);
            }
            Attachment::Printer(_) | Attachment::Loopback(_) => {
                unreachable!("QEMU has no such device: rigs with one have controllers of ours");
            }
        }
    }
}

/// A raw image that is read and written through the host's page cache, as ours is.
fn drive(name: &str, image: &Path) -> OsString {
    let mut drive = OsString::from(format!("if=none,id={name},format=raw,cache=writeback,file="));
    drive.push(image);
    drive
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(maker: Maker, interrupts: Interrupts) -> String {
        command_for(Architecture::Amd64, maker, interrupts)
    }

    fn command_for(architecture: Architecture, maker: Maker, interrupts: Interrupts) -> String {
        let rig = Rig::standard(maker, Path::new("e.img"), Path::new("o.img"));
        let firmware = Firmware::Linux {
            vmlinuz: "vmlinuz".into(),
            initramfs: "initramfs".into(),
            interrupts,
            shell: false,
        };
        let machine = Machine {
            qemu: &Qemu::of_system(architecture),
            firmware: &firmware,
            rig: &rig,
            memory: 512,
            run: Path::new("/run/x"),
        };
        let command = machine.command();
        command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn our_controllers_are_sockets_and_the_memory_is_shared() {
        let line = command(Maker::Ours, Interrupts::Msi);
        assert!(line.contains("memory-backend-memfd,id=m,size=512M,share=on"), "{line}");
        assert!(
            line.contains(r#""path":"/run/x/e0.sock""#)
                && line.contains(r#""path":"/run/x/o0.sock""#),
            "{line}"
        );
        assert!(!line.contains("usb-storage") && !line.contains("nomsi"), "{line}");
    }

    #[test]
    fn the_other_architecture_has_its_own_board_and_console() {
        let line = command_for(Architecture::Arm64, Maker::Ours, Interrupts::Msi);
        assert!(line.contains("-machine virt,") && line.contains("console=ttyAMA0"), "{line}");
        assert!(line.contains("vfio-user-pci") && line.contains("share=on"), "{line}");
    }

    #[test]
    fn qemus_controllers_have_their_devices_on_their_own_bus() {
        let line = command(Maker::Qemu, Interrupts::Intx);
        assert!(
            line.contains("usb-ehci,id=e0,addr=04.0") && line.contains("usb-storage,bus=e0.0"),
            "{line}"
        );
        assert!(line.contains("usb-kbd,bus=o0.0") && line.contains("pci=nomsi"), "{line}");
        assert!(!line.contains("vfio-user-pci"), "{line}");
    }
}
