//! Every version of the format restores for good.
//!
//! `version-1/` holds machines as version 1 wrote them. They are never written again: a change that
//! does not restore them needs a default for what is new, not new files. To add one for a later
//! version, run `WRITE_GOLDEN=1 cargo test --test snapshot golden`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use vm_memory::GuestMemoryMmap;
use vm_usb::controller::HostController;
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::pci::{Identity, InterruptLine, PciFunction, Placement};
use vm_usb::snapshot::Snapshot;
use vm_usb::time::Time;

use crate::driver::ehci::EhciDriver;
use crate::driver::ohci::OhciDriver;
use crate::world::{Kind, Media, Topology, build, restore, save, used};

const NOW: Time = Time::from_nanos(1_000_000_000_000);

struct NoLine;

impl InterruptLine for NoLine {
    fn set_level(&mut self, _asserted: bool) {}

    fn message(&mut self, _address: u64, _data: u32) {}
}

/// What an EHCI controller said it was on PCI when version 1 was new.
const EHCI: Identity = Identity::ehci().with_id(0x1af4, 0x10f1);

type Function<C> = PciFunction<GuestMemoryMmap, C, NoLine>;

fn function<C: Kind + HostController<GuestMemoryMmap>>(
    identity: Identity,
    controller: C,
) -> Function<C> {
    PciFunction::new(identity, Placement::default(), controller, NoLine)
}

/// The machines of the golden files, as they come out of the factory.
fn new_machine<C: Kind + HostController<GuestMemoryMmap>>(
    identity: Identity,
) -> (Function<C>, Topology) {
    let (controller, topology) = build::<C>(&Media::default());
    (function(identity, controller), topology)
}

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/snapshot/version-1", name].iter().collect()
}

/// Whether everything that `old` says is said by `new`, too; what joined later may be there besides.
fn assert_within(old: &Value, new: &Value, place: &str) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                let place = format!("{place}/{key}");
                assert_within(value, new.get(key).unwrap_or_else(|| panic!("{place}")), &place);
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            assert_eq!(old.len(), new.len(), "{place}");
            for (at, (old, new)) in old.iter().zip(new).enumerate() {
                assert_within(old, new, &format!("{place}/{at}"));
            }
        }
        _ => assert_eq!(old, new, "{place}"),
    }
}

fn restores(name: &str, function: &mut impl Snapshot, topology: &Topology) {
    let golden = fs::read(path(name)).unwrap();
    restore(&golden, function, &topology.ports, NOW).unwrap();
    let again = save(function, &topology.ports, NOW);
    let value = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    assert_within(&value(&golden)["parts"], &value(&again)["parts"], name);
}

#[test]
fn a_machine_that_version_1_saved_is_restored() {
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        write_golden();
    }
    let (mut ehci, topology) = new_machine::<Ehci>(EHCI);
    restores("ehci.json", &mut ehci, &topology);
    let (mut ohci, topology) = new_machine::<Ohci>(Identity::ohci());
    restores("ohci.json", &mut ohci, &topology);
}

/// Done once for each version of the format.
fn write_golden() {
    let write = |name: &str, bytes: &[u8]| {
        let value: Value = serde_json::from_slice(bytes).unwrap();
        fs::write(path(name), format!("{value:#}\n")).unwrap();
    };
    let (mut host, topology) = used(&Media::default(), 1, EhciDriver::new);
    let now = host.machine.now;
    let controller = std::mem::replace(&mut host.machine.controller, Ehci::wired(&[]));
    let mut ehci = function(EHCI, controller);
    ehci.config_write(&host.machine.memory, now, 4, &[6]);
    ehci.config_write(&host.machine.memory, now, 0x72, &[1]);
    write("ehci.json", &save(&ehci, &topology.ports, now));

    let (mut host, topology) = used(&Media::default(), 2, OhciDriver::start);
    let now = host.machine.now;
    let controller = std::mem::replace(&mut host.machine.controller, Ohci::wired(&[]));
    let mut ohci = function(Identity::ohci(), controller);
    ohci.config_write(&host.machine.memory, now, 4, &[6]);
    write("ohci.json", &save(&ohci, &topology.ports, now));
}
