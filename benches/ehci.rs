//! What a transfer, a qTD and idle queue heads cost.
//!
//! Only the controller's turns are timed, not the guest that gives it work.
#![allow(missing_docs, reason = "the macro of the harness makes a function without")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vm_usb::controller::{Context, HostController};
use vm_usb::ehci::Ehci;
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port, PortLink};
use vm_usb::usb::{
    Configuration, Description, Endpoint, EndpointAddress, Interface, Outcome, Pid, Speed, Speeds,
    Toggle, Transfer, TransferType, UsbDevice,
};

/// Most bytes of a qTD.
const QTD_BYTES: usize = 20 << 10;
/// qTDs in a row.
const STREAM: u32 = 64;
/// Turns of a stream and of memcpy each.
const PAIRS: usize = 2001;
/// Streams until a buffer is used again: with one, all buffers fit into a cache; with many they are as cold
/// as those of a guest that reads a disk.
const LAPS: [u32; 2] = [1, 48];

/// A device that fills pages and takes what it is sent without looking; interrupt endpoints, which are
/// 8 to 15, have nothing to say.
struct Pages {
    description: Description,
    source: Vec<u8>,
}

impl Pages {
    fn new() -> Self {
        let endpoint = |number: u8, address| {
            let (transfer_type, max_packet) = match number {
                1..8 => (TransferType::Bulk, 512),
                _ => (TransferType::Interrupt, 64),
            };
            Endpoint::new(address, transfer_type, max_packet, 1)
        };
        let endpoints = (1..16)
            .flat_map(|n| {
                [EndpointAddress::out(n), EndpointAddress::r#in(n)].map(|a| endpoint(n, a))
            })
            .collect();
        let high = vec![Configuration::only(Interface { endpoints, ..Interface::default() })];
        Self {
            description: Description {
                vendor: 0x1209,
                product: 1,
                release: 1,
                class: [0xff, 0, 0],
                control_packet: 64,
                manufacturer: String::new(),
                name: "Pages".into(),
                serial: String::new(),
                speeds: Speeds::High { full: high.clone(), high },
            },
            source: vec![0x5a; QTD_BYTES],
        }
    }
}

impl UsbDevice for Pages {
    fn description(&self) -> &Description {
        &self.description
    }

    fn configured(&mut self, _value: u8) {}

    fn transfer(&mut self, endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        if endpoint.number() >= 8 {
            return Outcome::PARK;
        }
        let len = transfer.buffer.len();
        if endpoint.is_in() {
            transfer.buffer.write(0, &self.source[..len]);
        }
        Outcome::complete(len)
    }
}

const FRAME_LIST: u32 = 0x1000;
const RING: u32 = 0x2000;
const QUEUE_HEADS: u32 = 0x1_0000;
const QTDS: u32 = 0x10_0000;
const BUFFERS: u32 = 0x20_0000;
/// Room of a structure in its longest form.
const STRUCTURE: u32 = 0x60;

const ADDRESS: u32 = 5;
const HIGH_SPEED: u32 = 2 << 12;
const HEAD: u32 = 1 << 15;
const QUEUE_HEAD: u32 = 2;
const END: u32 = 1;
const HALTED: u32 = 1 << 6;
const ACTIVE: u32 = 1 << 7;
const IN: u32 = 1 << 8;
const CERR_3: u32 = 3 << 10;

const USBCMD: u64 = 0x20;
const PERIODICLISTBASE: u64 = 0x34;
const ASYNCLISTADDR: u64 = 0x38;
const CONFIGFLAG: u64 = 0x60;
const PORTSC: u64 = 0x64;
const RUN: u32 = 1;
const PERIODIC: u32 = 1 << 4;
const ASYNCHRONOUS: u32 = 1 << 5;

/// A running controller with the device at its address.
struct Guest {
    ehci: Ehci,
    memory: GuestMemoryMmap,
    now: Time,
    /// Buffers of the next stream, of so many sets.
    lap: u32,
    laps: u32,
}

impl Guest {
    fn new(wide: bool) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 80 << 20)]).unwrap();
        let port = Port::high_speed_only();
        port.attach(Box::new(Pages::new())).unwrap();
        let link = port.link(Host::High);
        let ehci = Ehci::new(vec![link.clone()]).with_64bit_addressing(wide);
        let mut guest = Self { ehci, memory, now: Time::ZERO, lap: 0, laps: 1 };
        guest.store(FRAME_LIST, &[END; 1024]);
        guest.store(RING, &[RING | QUEUE_HEAD, HEAD | HIGH_SPEED, 1 << 30, 0, END, END, HALTED]);
        guest.write(PERIODICLISTBASE, FRAME_LIST);
        guest.write(ASYNCLISTADDR, RING);
        guest.write(USBCMD, RUN | 1 << 16);
        guest.write(CONFIGFLAG, 1);
        guest.write(PORTSC, 1 << 12);
        guest.write(PORTSC, 1 << 12 | 1 << 8);
        guest.write(PORTSC, 1 << 12);
        enumerate(&link);
        guest
    }

    fn write(&mut self, offset: u64, value: u32) {
        let context = Context::new(&self.memory, self.now);
        self.ehci.write(&context, offset, &value.to_le_bytes());
    }

    fn store(&self, address: u32, words: &[u32]) {
        for (n, word) in words.iter().enumerate() {
            let address = GuestAddress(u64::from(address) + 4 * n as u64);
            self.memory.write_obj(*word, address).unwrap();
        }
    }

    fn load(&self, address: u32) -> u32 {
        self.memory.read_obj(GuestAddress(address.into())).unwrap()
    }

    fn run(&mut self) {
        self.ehci.run(&Context::new(&self.memory, self.now));
    }

    /// `count` queue heads in a row, the last of which leads to `end`; returns the link to the first.
    fn queue_heads(&self, count: u32, capabilities: u32, first: u32, end: u32) -> u32 {
        let at = |n| QUEUE_HEADS + STRUCTURE * n;
        for n in 0..count {
            let next = if n + 1 == count { end } else { at(n + 1) | QUEUE_HEAD };
            let characteristics = ADDRESS | (first + n % 7) << 8 | HIGH_SPEED | 64 << 16;
            let dummy = QTDS + STRUCTURE * n;
            self.store(dummy, &[END, END, HALTED]);
            self.store(at(n), &[next, characteristics, capabilities, 0, dummy, END, 0]);
        }
        if count == 0 { end } else { at(0) | QUEUE_HEAD }
    }

    /// Queues `count` IN transfers of `len` bytes at the only queue head of endpoint 1.
    fn stream(&mut self, count: u32, len: u32) {
        self.lap = (self.lap + 1) % self.laps;
        for n in 0..count {
            let buffer = BUFFERS + (self.lap * STREAM + n) * QTD_BYTES as u32;
            let pages: [u32; 5] = std::array::from_fn(|page| buffer + 0x1000 * page as u32);
            let next = if n + 1 == count { END } else { qtd(n + 1) };
            let token = len << 16 | CERR_3 | IN | ACTIVE;
            self.store(
                qtd(n),
                &[next, END, token, pages[0], pages[1], pages[2], pages[3], pages[4]],
            );
        }
        // The toggle goes on where it is.
        let toggle = self.load(QUEUE_HEADS + 0x18) & 1 << 31;
        self.store(QUEUE_HEADS + 0x10, &[qtd(0), END, toggle]);
    }
}

fn qtd(n: u32) -> u32 {
    QTDS + STRUCTURE * n
}

/// What a driver asks for before it uses a device.
fn enumerate(link: &PortLink) {
    assert_eq!(link.with(|function| function.speed()), Some(Speed::High));
    for setup in [[0, 5, ADDRESS as u8, 0, 0, 0, 0, 0], [0, 9, 1, 0, 0, 0, 0, 0]] {
        for (pid, bytes) in [(Pid::Setup, setup.to_vec()), (Pid::In, vec![])] {
            let mut buffer = bytes;
            let transfer = Transfer {
                pid,
                endpoint: 0,
                max_packet: 64,
                toggle: Toggle::Data0,
                buffer: &mut buffer,
                now: Time::ZERO,
            };
            link.with(|function| function.transact(transfer)).unwrap();
        }
    }
}

/// Time for `rounds` streams of `count` qTDs of `len` bytes.
fn time_streams(guest: &mut Guest, rounds: u64, count: u32, len: u32) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..rounds {
        guest.stream(count, len);
        let last = qtd(count - 1) + 8;
        let begin = Instant::now();
        while guest.load(last) & ACTIVE != 0 {
            guest.now = guest.now.after_micros(125);
            guest.run();
        }
        spent += begin.elapsed();
        assert_eq!(guest.load(last) & (HALTED | 0x7fff << 16), 0, "all is served, in full");
    }
    spent
}

/// A guest with one bulk queue head in its ring.
fn streaming(wide: bool) -> Guest {
    let mut guest = Guest::new(wide);
    guest.queue_heads(1, 1 << 30, 1, RING | QUEUE_HEAD);
    let characteristics = ADDRESS | 1 << 8 | HIGH_SPEED | 512 << 16;
    guest.store(QUEUE_HEADS + 4, &[characteristics]);
    guest.store(RING, &[QUEUE_HEADS | QUEUE_HEAD]);
    guest.write(USBCMD, RUN | ASYNCHRONOUS | 1 << 16);
    guest
}

fn bulk(c: &mut Criterion) {
    let mut group = c.benchmark_group("ehci bulk stream");
    group.throughput(Throughput::Bytes(u64::from(STREAM) * QTD_BYTES as u64));
    for laps in LAPS {
        let size = format!("{} MiB", (laps * STREAM * QTD_BYTES as u32) >> 20);
        group.bench_function(BenchmarkId::new("memcpy", &size), |b| {
            let source = vec![0x5a_u8; QTD_BYTES];
            let set = STREAM as usize * QTD_BYTES;
            // Aligned to pages, as the guest's buffers are.
            let mut pages = vec![0_u8; laps as usize * set + 0x1000];
            let start = pages.as_ptr().align_offset(0x1000);
            let mut lap = 0;
            b.iter(|| {
                lap = (lap + 1) % laps as usize;
                let begin = start + lap * set;
                for page in pages[begin..begin + set].chunks_mut(QTD_BYTES) {
                    page.copy_from_slice(black_box(&source));
                }
                black_box(&mut pages);
            });
        });
        for (bits, wide) in [(32, false), (64, true)] {
            let name = format!("qTDs of 20 KiB, {bits} bits");
            group.bench_function(BenchmarkId::new(name, &size), |b| {
                let mut guest = streaming(wide);
                guest.laps = laps;
                b.iter_custom(|rounds| time_streams(&mut guest, rounds, STREAM, QTD_BYTES as u32));
            });
        }
    }
    group.finish();
}

/// What share of memcpy's rate a stream reaches. The two take turns, in the same pages of the guest's: between two
/// figures that were taken apart the machine may have become faster or slower.
fn share(_: &mut Criterion) {
    for laps in LAPS {
        let mut guest = streaming(true);
        guest.laps = laps;
        let source = vec![0x5a_u8; QTD_BYTES];
        let mut ratios: Vec<_> = (0..PAIRS)
            .map(|_| {
                let streamed = time_streams(&mut guest, 1, STREAM, QTD_BYTES as u32);
                guest.lap = (guest.lap + 1) % guest.laps;
                let begin = Instant::now();
                for n in 0..STREAM {
                    let buffer = BUFFERS + (guest.lap * STREAM + n) * QTD_BYTES as u32;
                    let slice = guest.memory.get_slice(GuestAddress(buffer.into()), QTD_BYTES);
                    slice.unwrap().copy_from(black_box(&source));
                }
                begin.elapsed().as_secs_f64() / streamed.as_secs_f64()
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let share = ratios[ratios.len() / 2] * 100.0;
        let size = (laps * STREAM * QTD_BYTES as u32) >> 20;
        println!(
            "a stream of 20 KiB qTDs over {size} MiB: {share:.0} % of memcpy, median of {PAIRS} pairs"
        );
    }
}

fn overhead(c: &mut Criterion) {
    let mut group = c.benchmark_group("ehci qTD");
    group.throughput(Throughput::Elements(STREAM.into()));
    for len in [1, 512] {
        group.bench_function(BenchmarkId::new("bytes", len), |b| {
            let mut guest = streaming(true);
            b.iter_custom(|rounds| time_streams(&mut guest, rounds, STREAM, len));
        });
    }
    group.finish();
}

fn periodic(c: &mut Criterion) {
    let mut group = c.benchmark_group("ehci frame with interrupt queue heads");
    for waiting in [false, true] {
        for count in [0, 8, 64] {
            let name = if waiting { "waiting" } else { "idle" };
            group.bench_function(BenchmarkId::new(name, count), |b| {
                let mut guest = Guest::new(true);
                let link = guest.queue_heads(count, 1 << 30 | 1, 8, END);
                guest.store(FRAME_LIST, &[link; 1024]);
                if waiting {
                    for n in 0..count {
                        // As a driver leaves them: a transfer that the device has nothing for.
                        guest.store(qtd(n), &[END, END, 8 << 16 | CERR_3 | IN | ACTIVE, BUFFERS]);
                    }
                }
                guest.write(USBCMD, RUN | PERIODIC | 1 << 16);
                let frame = |guest: &mut Guest| {
                    guest.now = guest.now.after_millis(1);
                    guest.run();
                };
                frame(&mut guest);
                frame(&mut guest);
                b.iter(|| frame(&mut guest));
            });
        }
    }
    group.finish();
}

fn asynchronous(c: &mut Criterion) {
    let mut group = c.benchmark_group("ehci look at a ring");
    for waiting in [false, true] {
        for count in [0, 8, 64] {
            let name = if waiting { "waiting" } else { "idle" };
            group.bench_function(BenchmarkId::new(name, count), |b| {
                let mut guest = Guest::new(true);
                // Endpoints from 8 on wait for ever.
                let first = if waiting { 8 } else { 1 };
                let link = guest.queue_heads(count, 1 << 30, first, RING | QUEUE_HEAD);
                guest.store(RING, &[link]);
                if waiting {
                    for n in 0..count {
                        guest.store(qtd(n), &[END, END, 8 << 16 | CERR_3 | IN | ACTIVE, BUFFERS]);
                    }
                }
                guest.write(USBCMD, RUN | ASYNCHRONOUS | 1 << 16);
                let look = |guest: &mut Guest| {
                    guest.now = guest.now.after_micros(10);
                    guest.run();
                };
                look(&mut guest);
                look(&mut guest);
                b.iter(|| look(&mut guest));
            });
        }
    }
    group.finish();
}

fn registers(c: &mut Criterion) {
    c.bench_function("ehci read of USBSTS", |b| {
        let mut guest = streaming(true);
        let mut data = [0; 4];
        b.iter(|| {
            let context = Context::new(&guest.memory, guest.now);
            guest.ehci.read(&context, 0x24, &mut data);
            black_box(data)
        });
    });
}

criterion_group!(benches, share, bulk, overhead, periodic, asynchronous, registers);
criterion_main!(benches);
