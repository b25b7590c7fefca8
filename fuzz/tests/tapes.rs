//! The tapes of real guests still do what the guests did: a change that takes the meaning from them shows here.

use std::fs;
use std::path::Path;

use vm_usb_fuzz::tape::{MOST_STEPS, play};
use vm_usbd::tape::format::Steps;

/// The recordings of `cargo xtask seeds` for both controllers.
const STORIES: [&str; 10] = [
    "linux_bulk_and_unlink",
    "linux_disk",
    "linux_disk_over_uas",
    "linux_interrupt",
    "linux_isochronous",
    "linux_keyboard_behind_hub",
    "linux_printer",
    "linux_reload",
    "linux_suspend",
    "seabios_boot",
];
/// That for EHCI alone.
const SPLIT: &str = "linux_split_transactions";

fn read(target: &str, story: &str) -> Vec<u8> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let path = corpus.join(target).join(story);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a guest that does this has its devices see: bytes on the endpoints of a device, at least so many.
fn wanted(story: &str) -> (&'static str, u64) {
    match story {
        // Commands, their data and status; the first sector, and what was read for a look at it.
        "linux_disk" | "linux_disk_over_uas" | "linux_reload" | "seabios_boot" => ("disk", 512),
        // Reports.
        "linux_keyboard_behind_hub" => ("keyboard", 8),
        "linux_printer" => ("printer", 6),
        "linux_bulk_and_unlink" => ("loopback", 2048),
        "linux_interrupt" => ("loopback", 64),
        "linux_isochronous" => ("loopback", 1023),
        SPLIT => ("loopback", 128),
        // Nothing is plugged in.
        "linux_suspend" => ("disk", 0),
        other => panic!("{other}"),
    }
}

#[test]
fn a_tape_of_a_real_guest_reaches_its_device() {
    for target in ["ehci_mmio", "ohci_mmio"] {
        let split = (target == "ehci_mmio").then_some(SPLIT);
        for story in STORIES.into_iter().chain(split) {
            let tape = read(target, story);
            let (_, steps) = Steps::of(&tape).expect("a tape");
            let count = steps.count();
            assert!(count <= MOST_STEPS, "{target} {story}: {count} steps are not all played");
            let played = play(&tape).expect("a tape");
            println!("{target} {story}: {} bytes, {count} steps, {played:?}", tape.len());
            let (device, least) = wanted(story);
            let bytes = played.bytes.get(device).copied().unwrap_or_default();
            assert!(bytes >= least, "{target} {story}: {bytes} bytes at the {device}");
            if device == "disk" && least > 0 {
                assert!(played.disk_reads > 0, "{target} {story}: no READ");
            }
            // OHCI's tape is full before the guest comes to that.
            if story.starts_with("linux_disk") && target == "ehci_mmio" {
                assert!(played.disk_writes > 0, "{target} {story}: no WRITE");
            }
            // SeaBIOS polls.
            let interrupts = usize::from(least > 0 && story != "seabios_boot");
            assert!(played.interrupts >= interrupts, "{target} {story}: no interrupt");
        }
    }
}
