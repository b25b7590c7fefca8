//! Guests in the VMM: where KVM can be used, that is.
#![cfg(target_arch = "x86_64")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use vm_usb_baremetal as guest;

/// How long a guest may take that takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

/// Exit status of a write of `value` to the exit port.
fn status(value: u8) -> Option<i32> {
    Some(i32::from(value) << 1 | 1)
}

/// Says where the test harness does not swallow it that a test did nothing.
fn skipped(test: &str, why: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: no KVM here: {why}");
}

fn vmm() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vm-usb-kvm"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Standard output, standard error and exit status; a VMM that does not end is stopped.
fn run(command: Command) -> (String, String, Option<i32>) {
    run_and(command, "", || {})
}

/// The same; `act` is called once the guest has said a line that begins with `cue`.
fn run_and(
    mut command: Command,
    cue: &'static str,
    act: impl FnOnce() + Send + 'static,
) -> (String, String, Option<i32>) {
    let mut child = command.spawn().expect("the VMM starts");
    let mut out = BufReader::new(child.stdout.take().expect("is piped"));
    let mut err = child.stderr.take().expect("is piped");
    let (sender, receiver) = channel();
    let reader = std::thread::spawn(move || {
        let (mut text, mut act) = (String::new(), Some(act));
        let mut from = 0;
        while out.read_line(&mut text).is_ok_and(|count| count != 0) {
            if text[from..].starts_with(cue)
                && let Some(act) = act.take()
            {
                act();
            }
            from = text.len();
        }
        let _ = sender.send(());
        text
    });
    let in_time = receiver.recv_timeout(PATIENCE).is_ok();
    if !in_time {
        child.kill().expect("is ours to end");
    }
    let status = child.wait().expect("it ran").code();
    let mut errors = String::new();
    let _ = err.read_to_string(&mut errors);
    let out = reader.join().expect("the reader ends with the VMM");
    assert!(in_time, "the guest did not end in {PATIENCE:?}; it said:\n{out}{errors}");
    (out, errors, status)
}

#[test]
fn the_bare_metal_guest_works_with_both_disks() {
    if let Err(error) = kvm_ioctls::Kvm::new() {
        return skipped("the_bare_metal_guest_works_with_both_disks", &error);
    }
    works_with_both_disks(&[]);
}

#[test]
fn the_guest_does_not_notice_that_its_controllers_are_saved_and_restored() {
    if let Err(error) = kvm_ioctls::Kvm::new() {
        let test = "the_guest_does_not_notice_that_its_controllers_are_saved_and_restored";
        return skipped(test, &error);
    }
    works_with_both_disks(&["--checkpoint", "1"]);
}

fn works_with_both_disks(more: &[&str]) {
    let elf = guest::ELF.expect("is built on x86-64");
    let folder = tempfile::tempdir().unwrap();
    let image = |name: &str| folder.path().join(name);
    for label in ["ehci", "ohci"] {
        std::fs::write(image(label), guest::disk(label)).unwrap();
    }
    let mut command = vmm();
    command.args(["--memory", "16", "--kernel", elf]);
    command.arg("--ehci-disk").arg(image("ehci")).arg("--ohci-disk").arg(image("ohci"));
    command.args(more);
    let (out, errors, code) = run(command);

    assert_eq!(guest::common(&out), guest::TRANSCRIPT, "the guest said:\n{out}{errors}");
    assert!(out.contains("# ehci: port 2: a device for the companion"), "{out}");
    assert_eq!(code, status(guest::PASSED));
    assert_eq!(errors, "");
    for (label, interface) in [("ehci", 0x20), ("ohci", 0x10)] {
        let contents = std::fs::read(image(label)).unwrap();
        assert!(contents == guest::disk_afterwards(label, interface), "the {label} disk differs");
    }
}

/// A guest that starts a disk and a keyboard behind each controller and then sleeps until keys are struck.
fn sleeper(folder: &Path) -> Command {
    let mut command = vmm();
    command.args(["--memory", "16", "--kernel", guest::ELF.expect("is built on x86-64")]);
    for (option, label) in [("--ehci-disk", "ehci"), ("--ohci-disk", "ohci")] {
        let image = folder.join(label);
        std::fs::write(&image, guest::disk(label)).unwrap();
        command.arg(option).arg(image);
    }
    command.args(["--ehci-keyboard", "--ohci-keyboard", "--cmdline", "keyboard"]);
    command
}

/// What the guest says after the disks and keyboards are started, once an A was struck.
const WOKEN: &str = "asleep\nehci: key 4\nohci: key 4\npassed\n";

#[test]
fn a_sleeping_guest_with_disks_and_keyboards_hardly_wakes_the_event_loop() {
    if let Err(error) = kvm_ioctls::Kvm::new() {
        let test = "a_sleeping_guest_with_disks_and_keyboards_hardly_wakes_the_event_loop";
        return skipped(test, &error);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = sleeper(folder.path());
    command.args(["--idle-seconds", "3"]);
    let (out, errors, code) = run(command);
    assert!(guest::common(&out).ends_with(WOKEN), "{out}{errors}");
    assert_eq!(code, status(guest::PASSED));

    // A host that is slow only makes them fewer. A frame timer would make a thousand.
    let wakeups = errors.lines().find_map(|line| line.strip_prefix("event loop: "));
    let wakeups: f64 =
        wakeups.and_then(|line| line.split(' ').next()?.parse().ok()).expect("is told");
    assert!((1.0..100.0).contains(&wakeups), "{errors}");
    let keyboards = errors.matches("\"Keyboard\"").count();
    assert_eq!(keyboards, 2, "{errors}");
    assert_eq!(errors.matches("endpoint 81: 0 transfers, 0 bytes, 1 NAKs").count(), 2, "{errors}");
}

#[test]
fn commands_reach_the_controllers_of_a_guest_that_runs() {
    if let Err(error) = kvm_ioctls::Kvm::new() {
        return skipped("commands_reach_the_controllers_of_a_guest_that_runs", &error);
    }
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::fs::write(&other, guest::disk("other")).unwrap();
    let mut command = sleeper(folder.path());
    let (stdin, mut commands) = std::io::pipe().unwrap();
    command.stdin(stdin);
    let lines = [
        "pause",
        "detach 1",
        "resume",
        "detach 1",
        "detach 1",
        &format!("attach 1 {}", other.display()),
        "statistics",
        "eject",
        "press a",
    ];
    // They wait in the pipe: a machine that is paused before the guest begins, and goes on.
    commands.write_all((lines[..3].join("\n") + "\n").as_bytes()).unwrap();
    let late = lines[3..].join("\n") + "\n";
    let (out, errors, code) = run_and(command, "asleep", move || {
        commands.write_all(late.as_bytes()).unwrap();
    });
    assert!(guest::common(&out).ends_with(WOKEN), "{out}{errors}");
    assert_eq!(code, status(guest::PASSED));
    let mut said = errors.lines();
    assert_eq!(said.next(), Some("paused"));
    assert!(said.next().is_some_and(|line| line.contains("\"resume\" it first")), "{errors}");
    assert!(said.next().is_some_and(|line| line.contains("port 1 is empty")), "{errors}");
    assert!(errors.contains("EHCI: "), "{errors}");
    assert!(errors.contains("port 1: \"Disk\", full speed, address 0"), "no reset yet: {errors}");
    assert!(errors.contains("no command \"eject\""), "{errors}");
    // The guest wrote the one that was pulled out.
    let contents = std::fs::read(folder.path().join("ehci")).unwrap();
    assert!(contents == guest::disk_afterwards("ehci", 0x20));
}

#[test]
fn a_guest_that_never_sleeps_cannot_be_measured() {
    if let Err(error) = kvm_ioctls::Kvm::new() {
        return skipped("a_guest_that_never_sleeps_cannot_be_measured", &error);
    }
    let mut command = vmm();
    command.args(["--memory", "16", "--kernel", guest::ELF.expect("is built on x86-64")]);
    command.args(["--idle-seconds", "3"]);
    let (out, errors, code) = run(command);
    assert!(out.ends_with("passed\n") || out.ends_with("passed\r\n"), "{out}");
    assert_eq!(code, Some(1));
    assert!(errors.contains("before it slept"), "{errors}");
}

#[test]
fn without_disks_the_guest_finds_both_controllers_and_no_device() {
    if let Err(error) = kvm_ioctls::Kvm::new() {
        return skipped("without_disks_the_guest_finds_both_controllers_and_no_device", &error);
    }
    let mut command = vmm();
    command.args(["--memory", "16", "--kernel", guest::ELF.expect("is built on x86-64")]);
    let (out, _, code) = run(command);
    let expected = "vm-usb bare-metal guest\nehci: no device\nohci: no device\npassed\n";
    assert_eq!(guest::common(&out), expected);
    assert_eq!(code, status(guest::PASSED));
}

/// A bzImage of 32-bit `code`.
fn bzimage(code: &[u8]) -> Vec<u8> {
    const SETUP_SECTORS: usize = 1;
    let mut image = vec![0; (1 + SETUP_SECTORS) * 512];
    image[0x1f1] = SETUP_SECTORS as u8;
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x206..0x208].copy_from_slice(&0x020f_u16.to_le_bytes());
    image[0x211] = 1; // loadflags: LOADED_HIGH
    image[0x214..0x218].copy_from_slice(&0x10_0000_u32.to_le_bytes());
    image.extend(code);
    image
}

/// Without an IDT an invalid instruction is a triple fault.
const UD2: [u8; 2] = [0x0f, 0x0b];

#[test]
fn a_bzimage_starts_by_linuxs_boot_protocol() {
    if let Err(error) = kvm_ioctls::Kvm::new() {
        return skipped("a_bzimage_starts_by_linuxs_boot_protocol", &error);
    }
    let mut code = vec![
        0x80, 0xbe, 0xe8, 0x01, 0x00, 0x00, 0x02, // cmp byte [esi + 1e8h], 2: e820_entries
        0x75, 0x0a, //                               jne stop
        0x8b, 0x86, 0x28, 0x02, 0x00, 0x00, //       mov eax, [esi + 228h]: cmd_line_ptr
        0x8a, 0x00, //                               mov al, [eax]
        0xe6, 0xf4, //                               out f4h, al
    ];
    code.extend(UD2); // stop:
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("bzImage");
    std::fs::write(&kernel, bzimage(&code)).unwrap();
    let mut command = vmm();
    command.args(["--memory", "16", "--cmdline", "7up", "--kernel"]).arg(kernel);
    let (_, errors, code) = run(command);
    assert_eq!(code, status(b'7'), "{errors}");
}

#[test]
fn a_guest_that_resets_the_machine_ends_it_with_one_line() {
    if let Err(error) = kvm_ioctls::Kvm::new() {
        return skipped("a_guest_that_resets_the_machine_ends_it_with_one_line", &error);
    }
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("bzImage");
    std::fs::write(&kernel, bzimage(&UD2)).unwrap();
    assert_refused(&["--kernel", kernel.to_str().unwrap()], "the guest", "");
}

/// One line that names the culprit and says what to do.
fn assert_refused(arguments: &[&str], culprit: &str, advice: &str) {
    let mut command = vmm();
    command.args(arguments);
    let (out, errors, code) = run(command);
    assert_eq!(out, "");
    assert!(matches!(code, Some(1 | 2)), "{code:?}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("vm-usb-kvm: "), "{errors}");
    assert!(errors.contains(culprit) && errors.contains(advice), "{errors}");
}

#[test]
fn what_cannot_be_used_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("kernel.txt");
    std::fs::write(&text, "no kernel at all\n".repeat(100)).unwrap();
    let text = text.to_str().unwrap();
    assert_refused(&[], "--kernel", "--help");
    assert_refused(&["--kernel", "/none"], "\"/none\"", "No such file");
    assert_refused(&["--kernel", text], text, "bzImage");
    assert_refused(&["--kernel", text, "--memory", "1"], "--memory", "2..=3072");
    // An ELF file without a PVH note: the VMM itself.
    assert_refused(&["--kernel", env!("CARGO_BIN_EXE_vm-usb-kvm")], "vm-usb-kvm", "ELF");
}

#[test]
fn a_disk_that_is_not_there_is_refused_in_one_line() {
    if let Err(error) = kvm_ioctls::Kvm::new() {
        return skipped("a_disk_that_is_not_there_is_refused_in_one_line", &error);
    }
    let elf = guest::ELF.expect("is built on x86-64");
    assert_refused(&["--kernel", elf, "--ehci-disk", "/none"], "/none", "create it");
}
