//! What belongs together: a snapshot goes into the machine it was taken of, or nowhere.

use vm_memory::GuestMemoryMmap;
use vm_usb::devices::hid::Tablet;
use vm_usb::devices::loopback::{Loopback, Pattern};
use vm_usb::devices::storage::{RamDisk, Serial, Storage};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
use vm_usb::snapshot::{self, Snapshot};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{Speed, UsbDevice};

use crate::driver::scripted::Scripted;
use crate::world::{Media, build, place, restore, save};

const NOW: Time = Time::from_nanos(1_000_000_000);

const TAIL: &str = ": build the machine as it was when it was saved";

/// Saves the machine, has it changed and restored; the error, after which it is as it was changed.
fn mismatch(change: impl FnOnce(&mut Ehci, &[Port], &[Port])) -> String {
    let (mut controller, topology) = build::<Ehci>(&Media::default());
    let saved = save(&controller, &topology.ports, NOW);
    change(&mut controller, &topology.ports, &topology.hub_ports);
    let before = save(&controller, &topology.ports, NOW);
    let error = restore(&saved, &mut controller, &topology.ports, NOW).unwrap_err().to_string();
    assert!(save(&controller, &topology.ports, NOW) == before, "the machine is as it was");
    let error = error.strip_suffix(TAIL);
    error.expect("the error tells what to do").to_owned()
}

fn instead(port: &Port, device: impl UsbDevice + 'static) {
    port.detach();
    port.attach(Box::new(device)).unwrap();
}

#[test]
fn a_machine_of_other_devices_is_named_and_left_alone() {
    let disk = |name| Storage::new(RamDisk::zeroed(64), Serial::from_name(name));
    assert_eq!(
        mismatch(|_, ports, _| instead(&ports[place::LOOPBACK], Tablet::new(Speed::High))),
        "port 4: the snapshot has \"Gadget Zero\" (0525:a4a0, release 0100, high speed (480 Mbit/s), \
         serial number \"0123456789.0123456789.0123456789\"), the machine has \"Tablet\" \
         (1209:0003, release 0100, high speed (480 Mbit/s))"
    );
    let serial = |name: &str| Serial::from_name(name);
    assert_eq!(
        mismatch(|_, ports, _| instead(&ports[place::DISK], disk("other"))),
        format!(
            "port 1: the snapshot has \"Disk\" (1209:0001, release 0100, high speed (480 Mbit/s), \
             serial number \"{}\"), the machine has \"Disk\" (1209:0001, release 0100, high speed \
             (480 Mbit/s), serial number \"{}\")",
            serial("disk"),
            serial("other")
        )
    );
    let larger = Storage::new(RamDisk::zeroed(65), serial("disk"));
    assert_eq!(
        mismatch(|_, ports, _| instead(&ports[place::DISK], larger)),
        "port 1: the snapshot has a writable medium of 64 blocks of 512 bytes, the machine has \
         a writable medium of 65 blocks of 512 bytes"
    );
    assert_eq!(
        mismatch(|_, ports, _| instead(&ports[place::LOOPBACK], Loopback::new(Pattern::Mod63))),
        "port 4: the snapshot has the pattern Zeros, the machine has the pattern Mod63"
    );
    assert!(
        mismatch(|_, ports, _| drop(ports[place::DISK].detach()))
            .ends_with("the machine has no device")
    );
    assert!(
        mismatch(|_, ports, _| instead(&ports[place::FREE], disk("one more")))
            .starts_with("port 6: the snapshot has no device, the machine has \"Disk\"")
    );
    let pulled = mismatch(|_, _, hub| drop(hub[place::KEYBOARD].detach()));
    assert!(pulled.starts_with("port 2, hub port 2: the snapshot has \"Keyboard\""), "{pulled}");
}

#[test]
fn a_machine_of_other_controllers_is_named_and_left_alone() {
    assert_eq!(
        mismatch(|ehci, ports, _| {
            let links = ports.iter().map(|port| port.link(Host::High)).take(3).collect();
            *ehci = Ehci::new(links);
        }),
        "controller: the snapshot has revision 1.0, 6 ports, no companion, 64-bit addresses and a debug \
         port, the machine has revision 1.0, 3 ports, no companion, 64-bit addresses and a debug port"
    );
    let (ehci, topology) = build::<Ehci>(&Media::default());
    let saved = save(&ehci, &topology.ports, NOW);
    let (mut ohci, topology) = build::<Ohci>(&Media::default());
    assert_eq!(
        restore(&saved, &mut ohci, &topology.ports, NOW).unwrap_err().to_string(),
        format!(
            "controller: the snapshot has EHCI controller, the machine has OHCI controller{TAIL}"
        )
    );
}

#[test]
fn parts_go_by_their_names() {
    let ohci = || Ohci::new(vec![Port::classic().link(Host::Classic)]);
    let (one, two) = (ohci(), ohci());
    let saved = snapshot::save(NOW, &[("one", &one), ("two", &two)]).unwrap();
    let (mut first, mut second) = (ohci(), ohci());
    snapshot::restore(&saved, NOW, &mut [("two", &mut first), ("one", &mut second)]).unwrap();
    let error = |parts: &mut [(&str, &mut dyn Snapshot)]| {
        snapshot::restore(&saved, NOW, parts).unwrap_err().to_string()
    };
    assert_eq!(
        error(&mut [("one", &mut first)]),
        format!("two: the snapshot has such a part, the machine has none{TAIL}")
    );
    assert_eq!(
        error(&mut [("one", &mut first), ("two", &mut second), ("three", &mut ohci())]),
        format!("three: the snapshot has no such part, the machine has one{TAIL}")
    );
    assert_eq!(
        snapshot::save(NOW, &[("one", &one), ("one", &two)]).unwrap_err().to_string(),
        "2 parts are called \"one\": give each a name of its own"
    );
}

#[test]
fn a_device_that_cannot_be_saved_is_never_lost_in_silence() {
    let port = Port::classic();
    port.attach(Box::new(Scripted::new(Speed::Full).0)).unwrap();
    assert_eq!(
        snapshot::save(NOW, &[("port 1", &port)]).unwrap_err().to_string(),
        "port 1: \"Scripted\" cannot be saved: detach it first, or give its type `save` and `restore`"
    );
}

/// The levels that a function's line was told, and the messages it sent.
#[derive(Default)]
struct Line {
    level: bool,
    messages: u32,
}

impl InterruptLine for Line {
    fn set_level(&mut self, asserted: bool) {
        self.level = asserted;
    }

    fn message(&mut self, _address: u64, _data: u32) {
        self.messages += 1;
    }
}

#[test]
fn a_restored_function_drives_its_line_as_the_old_one_did_and_sends_nothing_twice() {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(vm_memory::GuestAddress(0), 1 << 16)]);
    let memory = memory.unwrap();
    for messages in [false, true] {
        let build = || {
            let port = Port::classic();
            port.attach(Box::new(Tablet::new(Speed::Full))).unwrap();
            let ohci = Ohci::new(vec![port.link(Host::Classic)]);
            (PciFunction::new(Identity::ohci(), Placement::default(), ohci, Line::default()), port)
        };
        let (mut function, port) = build();
        function.config_write(&memory, NOW, 4, &[6]);
        function.config_write(&memory, NOW, 0x10, &[0, 0, 0xfe, 0xfe]);
        function.config_write(&memory, NOW, 0x72, &[u8::from(messages)]);
        // RootHubStatusChange for the tablet that is connected.
        function.bar_write(&memory, NOW, 0x10, &(1u32 << 31 | 1 << 6).to_le_bytes());
        function.run(&memory, NOW);
        assert_eq!((function.line().level, function.line().messages), (!messages, messages.into()));

        let saved = snapshot::save(NOW, &[("ohci", &function), ("port", &port)]).unwrap();
        let (mut again, mut port) = build();
        let now = Time::from_nanos(77);
        snapshot::restore(&saved, now, &mut [("ohci", &mut again), ("port", &mut port)]).unwrap();
        again.run(&memory, now);
        assert_eq!((again.line().level, again.line().messages), (!messages, 0));
        assert_eq!(again.bar_address(), Some(0xfefe_0000));
        // The driver acknowledges: the line falls.
        again.bar_write(&memory, now, 0x0c, &(1u32 << 6).to_le_bytes());
        assert!(!again.line().level);

        let (ehci, _) = build_ehci();
        let mut other = ehci;
        let error =
            snapshot::restore(&saved, now, &mut [("ohci", &mut other), ("port", &mut port)]);
        assert_eq!(
            error.unwrap_err().to_string(),
            format!(
                "ohci: the snapshot has function 1af4:10f0 of class 0c0310, revision 01, the machine \
                 has function 8086:24cd of class 0c0320, revision 01{TAIL}"
            )
        );
    }
}

fn build_ehci() -> (PciFunction<GuestMemoryMmap, Ehci, Line>, Port) {
    let port = Port::high_speed_only();
    let ehci = Ehci::new(vec![port.link(Host::High)]);
    (PciFunction::new(Identity::ehci(), Placement::default(), ehci, Line::default()), port)
}

#[test]
fn a_device_plugged_in_unseen_is_seen_after_the_restore() {
    let port = Port::classic();
    let mut ohci = Ohci::new(vec![port.link(Host::Classic)]);
    port.attach(Box::new(Tablet::new(Speed::Full))).unwrap();
    let saved = snapshot::save(NOW, &[("ohci", &ohci), ("port", &port)]).unwrap();

    let mut port = Port::classic();
    port.attach(Box::new(Tablet::new(Speed::Full))).unwrap();
    ohci = Ohci::new(vec![port.link(Host::Classic)]);
    snapshot::restore(&saved, NOW, &mut [("ohci", &mut ohci), ("port", &mut port)]).unwrap();
    let mut machine = crate::driver::machine::Machine::new(ohci);
    // CCS and CSC of HcRhPortStatus.
    assert_eq!(machine.read32(0x54) & 0x1_0001, 0x1_0001);
}
