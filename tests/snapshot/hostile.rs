//! A snapshot comes from outside: it may be cut short, damaged or made up. It is refused and nothing
//! changes, or it is restored and the machine bears whatever it says.

use proptest::prelude::*;
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::snapshot::MOST_BYTES;
use vm_usb::time::Time;

use crate::driver::ehci::EhciDriver;
use crate::driver::machine::Machine;
use crate::driver::ohci::OhciDriver;
use crate::world::{Drivable, Media, build, restore, save, used};

const NOW: Time = Time::from_nanos(3_000_000_000);

/// What happens to a snapshot on its way.
#[derive(Clone, Debug)]
enum Damage {
    Cut(prop::sample::Index),
    Flip(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    /// A number becomes another one.
    Number(prop::sample::Index, String),
    /// `true` becomes `false` and back.
    Truth(prop::sample::Index),
    /// A stretch is there twice.
    Double(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    use prop::sample::Index;
    let number = prop::sample::select(vec![
        "0",
        "1",
        "-1",
        "2",
        "7",
        "127",
        "128",
        "255",
        "256",
        "511",
        "512",
        "65535",
        "65536",
        "1073741824",
        "2147483648",
        "4294967295",
        "4294967296",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "1e300",
        "null",
    ]);
    prop_oneof![
        1 => any::<Index>().prop_map(Damage::Cut),
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        12 => (any::<Index>(), number).prop_map(|(at, n)| Damage::Number(at, n.to_owned())),
        4 => any::<Index>().prop_map(Damage::Truth),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Damage::Double(from, to)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Self::Flip(at, bits) => {
                let at = at.index(bytes.len());
                bytes[at] ^= bits;
            }
            Self::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
            Self::Number(at, number) => {
                let starts: Vec<_> = (1..bytes.len())
                    .filter(|at| {
                        bytes[*at].is_ascii_digit() && matches!(bytes[at - 1], b':' | b',' | b'[')
                    })
                    .collect();
                if starts.is_empty() {
                    return;
                }
                let start = *at.get(&starts);
                let len = bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
                bytes.splice(start..start + len, number.bytes());
            }
            Self::Truth(at) => {
                let text = String::from_utf8_lossy(bytes).into_owned();
                let places: Vec<_> =
                    text.match_indices("true").chain(text.match_indices("false")).collect();
                if !places.is_empty() && text.len() == bytes.len() {
                    let (start, old) = *at.get(&places);
                    let new = if old == "true" { "false" } else { "true" };
                    bytes.splice(start..start + old.len(), new.bytes());
                }
            }
            Self::Double(from, to) => {
                let ends = [from.index(bytes.len()), to.index(bytes.len())];
                let part = bytes[ends[0].min(ends[1])..ends[0].max(ends[1])].to_vec();
                let at = ends[0].max(ends[1]);
                bytes.splice(at..at, part);
            }
        }
    }
}

/// Restores `bytes` into a new machine and lets it run on memory as the old guest left it.
fn bears<C: Drivable>(bytes: &[u8], memory: &[u8]) {
    let media = Media::default();
    let (mut controller, topology) = build::<C>(&media);
    let before = save(&controller, &topology.ports, NOW);
    match restore(bytes, &mut controller, &topology.ports, NOW) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let after = save(&controller, &topology.ports, NOW);
            assert!(before == after, "refused, and changed all the same: {error}");
        }
        Ok(()) => {
            let mut machine = Machine::new(controller);
            machine.now = NOW;
            machine.fill(0, memory);
            for _ in 0..20 {
                machine.advance_micros(700);
                media.depot.finish();
                for register in (0..0x100).step_by(4) {
                    machine.read32(register);
                }
            }
            let _ = save(&machine.controller, &topology.ports, machine.now);
        }
    }
}

/// A snapshot, and the guest memory that goes with it.
fn ehci() -> (Vec<u8>, Vec<u8>) {
    let (host, topology) = used::<Ehci, _>(&Media::default(), 3, EhciDriver::new);
    let saved = save(&host.machine.controller, &topology.ports, host.machine.now);
    (saved, host.machine.bytes(0, 2 << 20))
}

fn ohci() -> (Vec<u8>, Vec<u8>) {
    let (host, topology) = used::<Ohci, _>(&Media::default(), 4, OhciDriver::start);
    let saved = save(&host.machine.controller, &topology.ports, host.machine.now);
    (saved, host.machine.bytes(0, 2 << 20))
}

#[test]
fn a_damaged_snapshot_is_refused_or_borne() {
    let (ehci, ohci) = (ehci(), ohci());
    let whole = |(saved, memory): &(Vec<u8>, Vec<u8>)| (saved.clone(), memory.clone());
    bears::<Ehci>(&ehci.0, &ehci.1);
    bears::<Ohci>(&ohci.0, &ohci.1);
    let cases = ProptestConfig::default().cases.max(1_000);
    proptest!(ProptestConfig::with_cases(cases), |(
        damages in prop::collection::vec(damage(), 1..4),
        high in any::<bool>(),
    )| {
        let (mut saved, memory) = whole(if high { &ehci } else { &ohci });
        for damage in &damages {
            if !saved.is_empty() {
                damage.apply(&mut saved);
            }
        }
        if high { bears::<Ehci>(&saved, &memory) } else { bears::<Ohci>(&saved, &memory) }
    });
}

#[test]
fn a_count_that_its_register_has_no_room_for_is_borne() {
    let (saved, memory) = ohci();
    let saved = String::from_utf8(saved).unwrap();
    let wide = saved.replace("\"soc\":0", "\"soc\":255");
    let wide = wide.replace("\"stopped_at\":0", "\"stopped_at\":65535");
    let wide = wide.replace("\"run\":{\"start\":0,\"begun\":true}", "\"run\":null");
    assert_eq!(wide.matches("255").count(), saved.matches("255").count() + 1);
    assert_eq!(wide.matches("65535").count(), saved.matches("65535").count() + 1);
    bears::<Ohci>(wide.as_bytes(), &memory);
}

#[test]
fn what_is_no_snapshot_is_refused_with_the_reason() {
    let (mut controller, topology) = build::<Ehci>(&Media::default());
    let mut refused = |bytes: &[u8]| {
        restore(bytes, &mut controller, &topology.ports, NOW).unwrap_err().to_string()
    };
    assert!(refused(b"").starts_with("not a snapshot, or a damaged one: "));
    assert!(refused(&[0; 100]).starts_with("not a snapshot, or a damaged one: "));
    let deep = vec![b'['; 1 << 20];
    assert!(refused(&deep).starts_with("not a snapshot, or a damaged one: "));
    assert_eq!(
        refused(br#"{"format":"picture","version":1,"parts":[]}"#),
        "not a snapshot, or a damaged one: it says that it is a \"picture\""
    );
    assert_eq!(
        refused(br#"{"format":"vm-usb snapshot","version":2,"parts":7,"more":[]}"#),
        "the snapshot's format is version 2, and this program knows up to 1: use a newer one"
    );
    let large = vec![b' '; MOST_BYTES + 1];
    assert_eq!(
        refused(&large),
        format!(
            "the snapshot has {} bytes, more than {MOST_BYTES}: it is none, or a damaged one",
            MOST_BYTES + 1
        )
    );
}
