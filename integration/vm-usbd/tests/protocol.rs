//! A client's way through the protocol, and what a broken or hostile one gets.

mod support;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use support::*;
use vm_usbd::wire::{MAX_DATA, MAX_FDS};

const EINVAL: u32 = 22;
const EEXIST: u32 = 17;
const ENOENT: u32 = 2;
const ENOTSUP: u32 = 95;

const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(50);

const NONE: u32 = 1;
const BOOL: u32 = 2;
const EVENTFD: u32 = 4;
const MASK: u32 = 8;
const UNMASK: u32 = 16;
const TRIGGER: u32 = 32;

fn memory(size: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fd
}

#[test]
fn the_reference_client_finds_a_pci_device() {
    let bench = Bench::new("reference");
    let mut client = vfio_user::Client::new(&bench.path).unwrap();
    let sizes: Vec<u64> = (0..9).map(|index| client.region(index).unwrap().size).collect();
    assert_eq!(sizes, [4096, 0, 0, 0, 0, 0, 0, 256, 0]);
    for index in [BAR0, CONFIG] {
        let region = client.region(index).unwrap();
        assert_eq!(region.flags, 3, "readable and writable, never mapped");
        assert!(region.file_offset.is_none());
    }
    let mut id = [0; 4];
    client.region_read(CONFIG, 0, &mut id).unwrap();
    assert_eq!(id, [0xf4, 0x1a, 0xf0, 0x10]);

    let intx = client.get_irq_info(INTX).unwrap();
    assert_eq!((intx.flags, intx.count), (7, 1), "eventfd, maskable, automasked");
    assert_eq!(client.get_irq_info(MSI).unwrap().count, 1);
    assert_eq!(client.get_irq_info(2).unwrap().count, 0, "no MSI-X");

    client.region_write(CONFIG, 4, &[6, 0]).unwrap();
    client.region_write(BAR0, SCRATCH, &[1, 2, 3, 4]).unwrap();
    let mut scratch = [0; 4];
    client.region_read(BAR0, SCRATCH, &mut scratch).unwrap();
    assert_eq!(scratch, [1, 2, 3, 4]);
    client.reset().unwrap();
    client.region_read(CONFIG, 4, &mut id).unwrap();
    assert_eq!(id, [0, 0, 0x10, 0], "the command register after a reset");
    client.shutdown().unwrap();
}

#[test]
fn dma_reaches_the_memory_that_the_client_shares() {
    let bench = Bench::new("dma");
    let mut client = bench.client();
    let ram = memory(0x10000);
    assert_eq!(client.map(0x10_0000, 0x10000, Some(ram.as_fd())), 0);
    client.set_register(SCRATCH, 0x1234_5678);
    client.set_register(STORE, 0x10_0040);
    assert_eq!(client.register(STATUS), 2);
    let mut stored = [0; 4];
    std::fs::File::from(ram.try_clone().unwrap()).read_exact_at(&mut stored, 0x40).unwrap();
    assert_eq!(stored, [0x78, 0x56, 0x34, 0x12]);

    assert_eq!(client.unmap(0, 0x10_0000, 0x10000), 0);
    client.set_register(STORE, 0x10_0040);
    assert_eq!(client.register(STATUS), 6, "out of reach now");
}

#[test]
fn maps_that_cannot_be_are_refused_and_the_session_goes_on() {
    let bench = Bench::new("maps");
    let mut client = bench.client();
    let ram = memory(0x2000);
    assert_eq!(client.map(0xe_0000, 0x2_0000, None), 0, "firmware has no file");
    assert_eq!(client.map(0xf_0000, 0x2000, Some(ram.as_fd())), EEXIST);
    assert_eq!(client.map(0x10_0000, 0x4000, Some(ram.as_fd())), EINVAL, "past the file");
    assert_eq!(client.unmap(0, 0x50_0000, 0x1000), ENOENT);
    assert_eq!(client.unmap(2, 0xe_0000, 0x2_0000), ENOTSUP, "no dirty pages");
    client.set_register(STORE, 0xe_0000);
    assert_eq!(client.register(STATUS), 4, "known, but out of reach");
    assert_eq!(client.unmap(4, 0, 0), 0, "everything");
    assert_eq!(client.map(0xf_0000, 0x2000, Some(ram.as_fd())), 0);

    let payload = [0; 32];
    let two = [ram.as_fd(), ram.as_fd()];
    assert_eq!(client.command(2, &payload, &two).errno(), EINVAL);
    let nonsense = Event::new();
    assert_eq!(client.map(0, 0x1000, Some(nonsense.fd())), EINVAL, "not memory");
}

#[test]
fn intx_is_a_level_told_by_events() {
    let bench = Bench::new("intx");
    let mut client = bench.client();
    let event = Event::new();
    assert_eq!(client.set_irqs(INTX, EVENTFD | TRIGGER, (0, 1), &[], &[event.fd()]), 0);
    client.set_register(ALARM, 100);
    assert!(event.wait(LONG), "the alarm rings without any access");
    assert_eq!(client.set_irqs(INTX, NONE | UNMASK, (0, 1), &[], &[]), 0);
    assert!(event.wait(LONG), "still asserted");
    client.set_register(STATUS, !0);
    assert_eq!(client.set_irqs(INTX, BOOL | UNMASK, (0, 1), &[1], &[]), 0);
    assert!(!event.wait(SHORT), "deasserted");

    assert_eq!(client.set_irqs(INTX, NONE | MASK, (0, 1), &[], &[]), 0);
    client.set_register(ALARM, 0);
    assert!(!event.wait(SHORT), "masked");
    let unmask = Event::new();
    assert_eq!(client.set_irqs(INTX, EVENTFD | UNMASK, (0, 1), &[], &[unmask.fd()]), 0);
    unmask.signal();
    assert!(event.wait(LONG), "unmasked by an event");

    assert_eq!(client.set_irqs(INTX, NONE | TRIGGER, (0, 0), &[], &[]), 0, "taken down");
    client.set_register(STATUS, !0);
    client.set_register(ALARM, 0);
    assert!(!event.wait(SHORT));
}

#[test]
fn msi_is_one_event_a_message() {
    let bench = Bench::new("msi");
    let mut client = bench.client();
    client.write(CONFIG, 0x72, &[1, 0]);
    client.set_register(ALARM, 0);
    while client.register(STATUS) == 0 {}
    let event = Event::new();
    assert_eq!(client.set_irqs(MSI, EVENTFD | TRIGGER, (0, 1), &[], &[event.fd()]), 0);
    assert!(event.wait(LONG), "sent before the client was ready, and not lost");
    client.set_register(STATUS, !0);
    client.set_register(ALARM, 0);
    assert!(event.wait(LONG));
    assert!(!event.wait(SHORT), "once");
    assert_eq!(client.set_irqs(MSI, BOOL | TRIGGER, (0, 1), &[1], &[]), 0);
    assert!(event.wait(LONG), "a test by the client");
    assert_eq!(client.set_irqs(MSI, NONE | TRIGGER, (0, 1), &[], &[]), 0);
    assert!(event.wait(LONG));
}

#[test]
fn interrupts_that_do_not_exist_cannot_be_set() {
    let bench = Bench::new("irqs");
    let mut client = bench.client();
    let event = Event::new();
    let fds = [event.fd()];
    for (index, flags, range, wanted) in [
        (5, EVENTFD | TRIGGER, (0, 1), EINVAL),
        (u32::MAX, NONE | TRIGGER, (0, 0), EINVAL),
        (MSI, EVENTFD | TRIGGER, (1, 1), EINVAL),
        (MSI, EVENTFD | TRIGGER, (0, 2), EINVAL),
        (MSI, EVENTFD | TRIGGER, (u32::MAX, 2), EINVAL),
        (2, EVENTFD | TRIGGER, (0, 1), EINVAL),
        (2, NONE | TRIGGER, (0, 0), 0),
        (MSI, NONE | MASK, (0, 1), ENOTSUP),
        (INTX, EVENTFD | MASK, (0, 1), ENOTSUP),
        (INTX, NONE | MASK | TRIGGER, (0, 1), EINVAL),
        (INTX, NONE | BOOL | TRIGGER, (0, 1), EINVAL),
        (INTX, BOOL | MASK, (0, 1), EINVAL),
    ] {
        let got = client.set_irqs(index, flags, range, &[], &fds);
        assert_eq!(got, wanted, "index {index}, flags {flags}, range {range:?}");
    }
    let two = [event.fd(), event.fd()];
    assert_eq!(client.set_irqs(MSI, EVENTFD | TRIGGER, (0, 1), &[], &two), EINVAL);
}

#[test]
fn posted_writes_get_no_reply_and_keep_their_order() {
    let bench = Bench::new("posted");
    let mut client = bench.client();
    let mut bytes = Vec::new();
    for value in 1..=100_u32 {
        let mut payload = Client::access(BAR0, SCRATCH, 4);
        payload.extend(value.to_le_bytes());
        bytes.extend(client.message(10, 1 << 4, &payload));
    }
    // One that fails is not answered either.
    bytes.extend(client.message(10, 1 << 4, &Client::access(77, 0, 4)));
    client.send(&bytes, &[]);
    assert_eq!(client.register(SCRATCH), 100);
}

#[test]
fn accesses_outside_a_region_are_refused() {
    let bench = Bench::new("regions");
    let mut client = bench.client();
    for (region, offset, count) in [
        (BAR0, 4096, 1),
        (BAR0, 4093, 4),
        (BAR0, u64::MAX, 4),
        (BAR0, 0, u32::MAX),
        (CONFIG, 256, 4),
        (1, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 1),
    ] {
        let access = Client::access(region, offset, count);
        assert_eq!(client.command(9, &access, &[]).errno(), EINVAL, "{region} {offset}");
        assert_eq!(client.command(10, &access, &[]).errno(), EINVAL, "{region} {offset}");
    }
    let short = Client::access(BAR0, 0, 4);
    assert_eq!(client.command(10, &short, &[]).errno(), EINVAL, "no data");
    assert_eq!(client.command(9, &short[..12], &[]).errno(), EINVAL, "half a request");
    assert!(client.read(BAR0, 0, 0).is_empty());
    assert_eq!(client.read(CONFIG, 0, 256).len(), 256);
}

#[test]
fn region_information_fits_however_small_the_argument() {
    let bench = Bench::new("argsz");
    let mut client = bench.client();
    for argsz in [0_u32, 8, 32, 4096] {
        let mut payload = argsz.to_ne_bytes().to_vec();
        payload.resize(32, 0);
        payload[8] = 7;
        let reply = client.command(5, &payload, &[]);
        assert_eq!(reply.errno(), 0);
        assert_eq!(reply.payload.len(), 32);
        assert_eq!(reply.payload[..4], 32_u32.to_ne_bytes());
        assert_eq!(reply.payload[16..24], 256_u64.to_ne_bytes());
    }
    let mut payload = [0; 32];
    payload[8] = 9;
    assert_eq!(client.command(5, &payload, &[]).errno(), EINVAL);
    assert_eq!(client.command(7, &[0xff; 16], &[]).errno(), EINVAL);
}

#[test]
fn commands_that_are_not_offered_get_an_error() {
    let bench = Bench::new("unknown");
    let mut client = bench.client();
    for command in [0, 6, 11, 12, 14, 15, 99, u16::MAX] {
        assert_eq!(client.command(command, &[0; 64], &[]).errno(), ENOTSUP, "{command}");
    }
    assert_eq!(client.register(SCRATCH), 0, "and the session goes on");
}

#[test]
fn a_message_may_come_in_pieces_while_the_controller_goes_on() {
    let bench = Bench::new("pieces");
    let mut client = bench.client();
    let event = Event::new();
    assert_eq!(client.set_irqs(INTX, EVENTFD | TRIGGER, (0, 1), &[], &[event.fd()]), 0);
    client.set_register(ALARM, 20_000);
    let bytes = client.message(9, 0, &Client::access(BAR0, STATUS, 4));
    for (at, byte) in bytes.iter().enumerate() {
        client.push(&[*byte]);
        if at == 5 {
            assert!(event.wait(LONG), "half a message does not stop the clock");
        }
    }
    assert_eq!(client.receive().payload[16..], [1, 0, 0, 0]);
}

#[test]
fn the_largest_message_is_accepted_and_no_larger_one() {
    let bench = Bench::new("largest");
    // A write of as many bytes as one access may carry, to a region that is smaller: refused, and the
    // session goes on.
    for (bytes, served) in [(MAX_DATA - 1, true), (MAX_DATA, true), (MAX_DATA + 1, false)] {
        let mut client = bench.client();
        let mut payload = Client::access(0, 0, bytes as u32);
        payload.resize(payload.len() + bytes, 0);
        let message = client.message(10, 0, &payload);
        client.push(&message);
        if served {
            assert_eq!(client.receive().errno(), EINVAL, "{bytes}");
            assert_eq!(client.register(SCRATCH), 0);
        } else {
            assert!(client.is_closed(), "{bytes}");
        }
    }
    let mut client = bench.client();
    let event = Event::new();
    let reply = client.command(8, &[0; 20], &[event.fd(); MAX_FDS]);
    assert_ne!(reply.errno(), 0, "what it means is another matter");
    assert_eq!(client.register(SCRATCH), 0);
}

#[test]
fn what_breaks_the_protocol_ends_the_session_and_the_next_client_is_served() {
    let bench = Bench::new("violations");
    let header = |size: u32, flags: u32| {
        let mut bytes = vec![1, 0, 9, 0];
        bytes.extend(size.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes
    };
    for (what, bytes) in [
        ("too small", header(15, 0)),
        ("empty", header(0, 0)),
        ("too large", header(u32::MAX, 0)),
        ("a reply", header(16, 1)),
        ("no kind", header(16, 0xf)),
    ] {
        let mut client = bench.client();
        client.push(&bytes);
        assert!(client.is_closed(), "{what}");
    }
    let mut early = bench.connect();
    early.push(&header(16, 0));
    assert!(early.is_closed(), "no version");

    let mut modern = bench.connect();
    let bytes = modern.message(1, 0, &[1, 0, 0, 0, b'{', b'}', 0]);
    modern.push(&bytes);
    assert_ne!(modern.receive().errno(), 0, "version 1.0");
    assert!(modern.is_closed());

    let mut client = bench.client();
    client.push(&header(32, 0)[..7]);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(client.is_closed(), "left in the middle");

    let mut client = bench.client();
    let event = Event::new();
    let many = vec![event.fd(); 17];
    let bytes = client.message(8, 0, &[0; 20]);
    client.send(&bytes, &many);
    assert!(client.is_closed(), "17 file descriptors");
    assert_eq!(bench.client().register(SCRATCH), 0);
}

#[test]
fn each_client_finds_the_controller_as_after_power_on() {
    let bench = Bench::new("reconnect");
    for round in 0..20 {
        let mut client = bench.client();
        assert_eq!(client.register(SCRATCH), 0, "round {round}");
        assert_eq!(client.read(CONFIG, 0x10, 4), [0; 4]);
        assert_eq!(client.read(CONFIG, 0, 4), [0xf4, 0x1a, 0xf0, 0x10], "B-060");
        client.set_register(SCRATCH, 5);
        client.set_register(STATUS, 0);
        client.write(CONFIG, 0x10, &[0, 0, 0xbf, 0xfe]);
    }
}

#[test]
fn a_second_client_is_turned_away_while_the_first_stays() {
    let bench = Bench::new("second");
    let mut first = bench.client();
    let mut second = bench.connect();
    assert!(second.is_closed());
    assert_eq!(first.register(SCRATCH), 0);
}

#[test]
fn a_client_that_comes_a_little_before_its_predecessor_leaves_is_next() {
    let bench = Bench::new("early");
    let mut first = bench.client();
    first.set_register(SCRATCH, 5);
    let mut second = bench.connect();
    std::thread::sleep(Duration::from_millis(100));
    drop(first);
    second.negotiate();
    second.write(CONFIG, 4, &[6, 0]);
    assert_eq!(second.register(SCRATCH), 0);
}

#[test]
fn a_client_that_does_not_listen_cannot_grow_the_server() {
    let bench = Bench::new("deaf");
    let mut client = bench.client();
    let bytes = client.message(9, 0, &Client::access(CONFIG, 0, 256));
    client.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut sent = 0_usize;
    // The socket fills up in both directions, and then the server waits too.
    while std::io::Write::write_all(&mut client.stream, &bytes).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "the server keeps taking commands");
    }
    drop(client);
    assert_eq!(bench.client().register(SCRATCH), 0);
}
