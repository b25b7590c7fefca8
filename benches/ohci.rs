//! What a frame and a doorbell cost, by what is linked and what is busy.
#![allow(missing_docs, reason = "the macro of the harness makes a function without")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vm_usb::controller::{Context, HostController};
use vm_usb::ohci::Ohci;
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{
    Configuration, Description, Endpoint, EndpointAddress, Interface, Outcome, Pid, Speeds, Toggle,
    Transfer, TransferType, UsbDevice,
};

/// A device that takes and gives whatever it is asked for, without looking at it.
struct Null(Description);

impl Null {
    fn new() -> Self {
        let endpoint = |address| Endpoint::new(address, TransferType::Bulk, 64, 0);
        let endpoints = (1..16)
            .flat_map(|n| [EndpointAddress::out(n), EndpointAddress::r#in(n)])
            .map(endpoint)
            .collect();
        Self(Description {
            vendor: 0x1209,
            product: 1,
            release: 1,
            class: [0xff, 0, 0],
            control_packet: 64,
            manufacturer: String::new(),
            name: "Null".into(),
            serial: String::new(),
            speeds: Speeds::Full(vec![Configuration {
                value: 1,
                self_powered: true,
                remote_wakeup: false,
                max_power: 0,
                interfaces: vec![Interface { endpoints, ..Interface::default() }],
            }]),
        })
    }
}

impl UsbDevice for Null {
    fn description(&self) -> &Description {
        &self.0
    }

    fn configured(&mut self, _value: u8) {}

    fn transfer(&mut self, _endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        Outcome::complete(transfer.buffer.len())
    }
}

const HCCA: u32 = 0x1000;
const DESCRIPTORS: u32 = 0x10_0000;
const BUFFER: u32 = 0x40_0000;
const OUT: u32 = 1 << 11;

/// A running controller with the device at address 5.
struct Guest {
    ohci: Ohci,
    memory: GuestMemoryMmap,
    now: Time,
}

impl Guest {
    fn new() -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 16 << 20)]).unwrap();
        let port = Port::classic();
        port.attach(Box::new(Null::new())).unwrap();
        let link = port.link(Host::Classic);
        let mut guest = Self { ohci: Ohci::new(vec![link.clone()]), memory, now: Time::ZERO };
        guest.write(0x18, HCCA);
        guest.write(0x04, 0x80);
        guest.write(0x54, 1 << 4);
        guest.frames(11);
        for setup in [[0, 5, 5, 0, 0, 0, 0, 0], [0, 9, 1, 0, 0, 0, 0, 0]] {
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
        guest
    }

    fn write(&mut self, offset: u64, value: u32) {
        let context = Context::new(&self.memory, self.now);
        self.ohci.write(&context, offset, &value.to_le_bytes());
    }

    fn frames(&mut self, count: u64) {
        for _ in 0..count {
            self.now = self.now.after_millis(1);
            self.ohci.run(&Context::new(&self.memory, self.now));
        }
    }

    fn store(&mut self, address: u32, words: &[u32]) {
        for (n, word) in words.iter().enumerate() {
            let address = GuestAddress(u64::from(address) + 4 * n as u64);
            self.memory.write_obj(*word, address).unwrap();
        }
    }

    /// `count` empty EDs in a row, all of different endpoints; returns the first.
    fn idle_eds(&mut self, at: u32, count: u32) -> u32 {
        for n in 0..count {
            let ed = at + 16 * n;
            let next = if n + 1 == count { 0 } else { ed + 16 };
            let number = 1 + n % 15;
            self.store(ed, &[5 | number << 7 | OUT | 64 << 16, 0x8000, 0x8000, next]);
        }
        if count == 0 { 0 } else { at }
    }

    fn periodic(&mut self, head: u32) {
        self.store(HCCA, &[head; 32]);
        self.write(0x04, 0x80 | 1 << 2);
    }

    fn bulk(&mut self, head: u32) {
        self.write(0x28, head);
        self.write(0x04, 0x80 | 1 << 5);
    }

    /// Queues `tds` TDs of `len` bytes at an ED of endpoint 1.
    fn queue(&mut self, ed: u32, tds: u32, len: u32) {
        let first = ed + 0x100;
        for n in 0..tds {
            let td = first + 16 * n;
            self.store(td, &[0xf << 28 | 1 << 19 | 2 << 24, BUFFER, td + 16, BUFFER + len - 1]);
        }
        self.store(ed, &[5 | 1 << 7 | OUT | 64 << 16, first + 16 * tds, first, 0]);
    }
}

fn idle_frames(c: &mut Criterion) {
    let mut group = c.benchmark_group("ohci frame with idle EDs");
    for count in [0, 1, 8, 64] {
        group.bench_function(BenchmarkId::new("periodic", count), |b| {
            let mut guest = Guest::new();
            let head = guest.idle_eds(DESCRIPTORS, count);
            guest.periodic(head);
            b.iter(|| guest.frames(1));
        });
        group.bench_function(BenchmarkId::new("control and bulk", count), |b| {
            let mut guest = Guest::new();
            let head = guest.idle_eds(DESCRIPTORS, count);
            guest.write(0x20, head);
            guest.bulk(head);
            guest.write(0x08, 6);
            b.iter(|| guest.frames(1));
        });
    }
    group.finish();
}

fn busy_frames(c: &mut Criterion) {
    let mut group = c.benchmark_group("ohci frame with busy EDs");
    for count in [1, 64] {
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new("periodic packets", count), |b| {
            let mut guest = Guest::new();
            let head = guest.idle_eds(DESCRIPTORS, count as u32);
            guest.periodic(head);
            let mut toggle = 2;
            b.iter(|| {
                for n in 0..count as u32 {
                    let td = DESCRIPTORS + 0x1_0000 + 32 * n;
                    let word = 0xf << 28 | 1 << 19 | toggle << 24 | 7 << 21;
                    guest.store(td, &[word, BUFFER, td + 16, BUFFER + 7]);
                    guest.store(DESCRIPTORS + 16 * n + 4, &[td + 16, td]);
                }
                toggle ^= 1;
                guest.frames(1);
            });
        });
    }
    group.finish();
}

fn doorbells(c: &mut Criterion) {
    let mut group = c.benchmark_group("ohci doorbell");
    for (tds, len) in [(1, 64), (1, 4096), (16, 4096)] {
        group.throughput(Throughput::Bytes(u64::from(tds * len)));
        group.bench_function(BenchmarkId::new("TDs", format!("{tds} of {len} bytes")), |b| {
            let mut guest = Guest::new();
            guest.bulk(DESCRIPTORS);
            b.iter(|| {
                guest.queue(DESCRIPTORS, tds, len);
                guest.write(0x08, 4);
                // A new frame's budget.
                guest.now = guest.now.after_millis(1);
            });
            let head: u32 =
                guest.memory.read_obj(GuestAddress(u64::from(DESCRIPTORS) + 8)).unwrap();
            assert_eq!(head & !0xf, DESCRIPTORS + 0x100 + 16 * tds, "all is served");
        });
    }
    for count in [0, 8, 64] {
        group.bench_function(BenchmarkId::new("1 TD of 64 bytes beside idle EDs", count), |b| {
            let mut guest = Guest::new();
            guest.bulk(DESCRIPTORS);
            let idle = guest.idle_eds(DESCRIPTORS + 0x1_0000, count);
            b.iter(|| {
                guest.queue(DESCRIPTORS, 1, 64);
                guest.store(DESCRIPTORS + 12, &[idle]);
                guest.write(0x08, 4);
                guest.now = guest.now.after_millis(1);
            });
        });
    }
    for count in [1, 64] {
        group.bench_function(BenchmarkId::new("1 TD of 64 bytes at each of EDs", count), |b| {
            let mut guest = Guest::new();
            guest.bulk(DESCRIPTORS);
            b.iter(|| {
                for n in 0..count {
                    let ed = DESCRIPTORS + 0x1000 * n;
                    guest.queue(ed, 1, 64);
                    guest.store(ed + 12, &[if n + 1 == count { 0 } else { ed + 0x1000 }]);
                }
                guest.write(0x08, 4);
                guest.now = guest.now.after_millis(1);
            });
        });
    }
    group.bench_function("read of HcInterruptStatus", |b| {
        let mut guest = Guest::new();
        let mut data = [0; 4];
        b.iter(|| {
            let context = Context::new(&guest.memory, guest.now);
            guest.ohci.read(&context, 0x0c, &mut data);
            black_box(data)
        });
    });
    group.finish();
}

criterion_group!(benches, idle_frames, busy_frames, doorbells);
criterion_main!(benches);
