//! The seeds of every target, as they are and a little damaged, without a fuzzer: a stable compiler is enough.
//! What this finds in a moment need not wait for one that looks for hours.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use arbitrary::{Arbitrary, Unstructured};
use peak_alloc::PeakAlloc;
use vm_usb_fuzz::device::Tokens;
use vm_usb_fuzz::driver::tokens::Kind;
use vm_usb_fuzz::{
    descriptors, differential, ehci, ehci_schedule, ohci, ohci_schedule, pci, snapshot, uas,
    vfio_user,
};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Damaged copies of each seed.
const COPIES: u64 = 40;

/// As libFuzzer hands `bytes` to a target that takes a `T`.
fn decoded<T: for<'a> Arbitrary<'a>>(bytes: &[u8], live: impl Fn(T)) {
    if let Ok(input) = T::arbitrary_take_rest(Unstructured::new(bytes)) {
        live(input);
    }
}

fn tokens(bytes: &[u8], kind: impl Fn(u64) -> Kind) {
    decoded(bytes, |tokens: Tokens| tokens.live(&kind));
}

/// What each target does, by its name.
const TARGETS: [(&str, fn(&[u8])); 17] = [
    ("descriptors", |bytes| decoded(bytes, |input: descriptors::Asked| input.live())),
    ("device_disk", |bytes| {
        tokens(bytes, |seed| if seed % 2 == 0 { Kind::Disk } else { Kind::ReadOnlyDisk });
    }),
    ("device_faulty", |bytes| tokens(bytes, Kind::BadDay)),
    ("device_hub", |bytes| tokens(bytes, |_| Kind::Hub)),
    ("device_keyboard", |bytes| tokens(bytes, |_| Kind::Keyboard)),
    ("device_loopback", |bytes| tokens(bytes, |_| Kind::Loopback)),
    ("device_printer", |bytes| tokens(bytes, |_| Kind::Printer)),
    ("device_tablet", |bytes| tokens(bytes, |_| Kind::Tablet)),
    ("device_uas", |bytes| decoded(bytes, |input: uas::Queue| input.live())),
    ("differential", |bytes| decoded(bytes, |play: differential::Play| play.check())),
    ("ehci_mmio", ehci::live),
    ("ehci_schedule", |bytes| decoded(bytes, |input: ehci_schedule::Driver| input.live())),
    ("ohci_mmio", ohci::live),
    ("ohci_schedule", |bytes| decoded(bytes, |input: ohci_schedule::Driver| input.live())),
    ("pci_config", |bytes| decoded(bytes, |input: pci::Visitor| input.live())),
    ("snapshot", |bytes| decoded(bytes, |input: snapshot::Courier| input.live())),
    ("vfio_user", |bytes| vfio_user::live(bytes, &MEMORY)),
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Reproducible numbers (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    }

    /// `bytes` with a few of them changed, or without its end.
    fn damage(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut damaged = bytes.to_vec();
        for _ in 0..=self.next(8) {
            let at = self.next(damaged.len());
            damaged[at] = self.next(256) as u8;
        }
        if self.next(4) == 0 {
            damaged.truncate(self.next(bytes.len()) + 1);
        }
        damaged
    }
}

#[test]
fn the_seeds_of_every_target_and_copies_with_damage_find_nothing() {
    let mut inputs = 0;
    for (name, live) in TARGETS {
        let corpus = folder("corpus").join(name);
        let seeds = names_in(&corpus);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for (seed, number) in seeds.iter().zip(1..) {
            let bytes = fs::read(corpus.join(seed)).unwrap();
            live(&bytes);
            let mut numbers = Numbers(number);
            for copy in 0..COPIES {
                let damaged = numbers.damage(&bytes);
                // A failure is told by its target; this says how to have it again.
                println!("{name}: {seed}, copy {copy}");
                live(&damaged);
            }
            inputs += 1 + COPIES;
        }
    }
    println!("{inputs} inputs");
}

#[test]
fn every_target_is_replayed() {
    let targets = names_in(&folder("fuzz_targets"));
    let replayed = TARGETS.map(|(name, _)| format!("{name}.rs"));
    assert_eq!(targets, BTreeSet::from(replayed));
}
