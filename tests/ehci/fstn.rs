//! Frame span traversal nodes (EHCI 4.12.2.2): rules EHCI-FSTN.

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vm_usb::usb::Pid;

use crate::driver::ehci::{QUEUE_HEAD, Queue, TERMINATE, Td, cmd, reg};
use crate::driver::machine::RAM;
use crate::rig::is_done;
use crate::translator::{Rig, data, is_in};

const FSTN: u32 = 3 << 1;
const COMPLETING: u32 = 1 << 1;

/// A node with these pointers.
fn node(rig: &mut Rig, normal: u32, back: u32) -> u32 {
    let address = rig.driver.machine.alloc(0x20, 32);
    rig.driver.machine.store_all(address, &[normal, back]);
    address
}

/// A queue head that starts in microframe 6 of frame 0, so that its complete-splits are in
/// microframes 0 and 1 of frame 1, where only the back path leads to it; and a driver that has put a
/// Save-Place node into frame 1, with `behind` on its normal path.
fn spanning(rig: &mut Rig, behind: u32) -> (Queue, u32) {
    let mut queue = rig.interrupt(1, 0x40, 0x03);
    let list = rig.driver.frame_list;
    for frame in 0..8 {
        rig.store(list + 4 * frame, TERMINATE);
    }
    let buffer = rig.buffer(64);
    let qtd = rig.driver.submit(&mut queue, &[Td::new(Pid::In, buffer, 8)])[0];
    let restore = node(rig, TERMINATE, TERMINATE);
    rig.store(queue.head, restore | FSTN);
    let save = node(rig, behind, queue.head | QUEUE_HEAD);
    rig.store(list, queue.head | QUEUE_HEAD);
    rig.store(list + 4, save | FSTN);
    (queue, qtd)
}

/// An idle-looking queue head of its own that is polled in every microframe of the frames it is in.
fn polled(rig: &mut Rig) -> Queue {
    let (characteristics, capabilities) = rig.words(2, 64, false, 0x1c01);
    let mut queue = rig.driver.queue(characteristics, capabilities, Some(1));
    let buffer = rig.buffer(64);
    rig.driver.submit(&mut queue, &[Td::new(Pid::Out, buffer, 8)]);
    queue
}

#[test]
fn ehci_fstn_1_later_in_the_frame_the_back_path_is_not_taken() {
    let mut rig = Rig::new();
    let (queue, _) = spanning(&mut rig, TERMINATE);
    // Frame 1 only, from microframe 2 on.
    rig.halt(8);
    rig.go();
    rig.microframes(2);
    rig.driver.machine.advance_micros(10);
    let accesses = rig.driver.machine.record(600);
    assert!(accesses.iter().all(|a| !a.touches(queue.head, 0x44)), "not even read");
}

#[test]
fn ehci_fstn_2_the_back_path_completes_what_was_started_before() {
    let mut rig = Rig::new();
    let other = polled(&mut rig);
    let (_, qtd) = spanning(&mut rig, other.head | QUEUE_HEAD);
    rig.complete([data(&[4; 8])]);
    rig.go();
    rig.microframes(9);
    let seen: Vec<(char, u64, u8)> =
        rig.seen().iter().map(|s| (s.brief().0, s.brief().1, s.token().endpoint)).collect();
    assert_eq!(seen[..3], [('S', 6, 1), ('C', 0, 1), ('S', 0, 2)], "then the normal path goes on");
    assert!(is_done(rig.load(qtd + 8)));
}

#[test]
fn ehci_fstn_3_nothing_is_started_on_the_way_back() {
    let mut rig = Rig::new();
    let (queue, qtd) = spanning(&mut rig, TERMINATE);
    // On the back path: a queue head in DoStart (nothing was started in frame 0).
    let list = rig.driver.frame_list;
    rig.store(list, TERMINATE);
    rig.store(queue.head + 8, rig.load(queue.head + 8) & !0xff | 0x01);
    let high = rig.driver.machine.alloc(0x60, 32);
    let hub = u32::from(crate::translator::HUB);
    let dwords =
        [queue.head | QUEUE_HEAD, hub | 1 << 8 | 2 << 12 | 1 << 16, 1 << 30 | 0xff, 0, TERMINATE];
    rig.driver.machine.store_all(high, &dwords);
    let save = rig.load(list + 4) & !0x1f;
    rig.store(save + 4, high | QUEUE_HEAD);
    rig.halt(8);
    let before = [high, queue.head].map(|at| rig.bytes(at, 0x44));
    rig.go();
    rig.microframes(8);
    assert_eq!(rig.brief(), []);
    assert_eq!([high, queue.head].map(|at| rig.bytes(at, 0x44)), before);
    assert!(!is_done(rig.load(qtd + 8)));
}

#[test]
fn ehci_fstn_4_a_second_save_place_node_is_passed() {
    let mut rig = Rig::new();
    let (queue, qtd) = spanning(&mut rig, TERMINATE);
    // The back path leads over another Save-Place node whose own back path leads nowhere good.
    let trap = rig.driver.machine.alloc(0x60, 32);
    let second = node(&mut rig, queue.head | QUEUE_HEAD, trap | QUEUE_HEAD);
    let list = rig.driver.frame_list;
    let save = rig.load(list + 4) & !0x1f;
    rig.store(save + 4, second | FSTN);
    rig.complete([data(&[4; 8])]);
    rig.go();
    let accesses = rig.driver.machine.record(1_200);
    assert!(is_done(rig.load(qtd + 8)));
    // The look ahead may read anything; nothing is carried out there.
    assert!(!accesses.iter().any(|a| a.write && a.touches(trap, 0x60)));
    assert_eq!(rig.brief().len(), 2);
}

#[test]
fn ehci_fstn_5_a_restore_node_alone_is_passed() {
    let mut rig = Rig::new();
    let other = polled(&mut rig);
    let restore = node(&mut rig, other.head | QUEUE_HEAD, TERMINATE);
    let list = rig.driver.frame_list;
    rig.store(list, restore | FSTN);
    rig.go();
    rig.microframes(1);
    assert_eq!(rig.brief(), [('S', 0)]);
}

#[test]
fn ehci_addr64_5_back_pointers_stay_in_their_segment() {
    const HIGH: u64 = 1 << 32;
    let ranges = [(GuestAddress(0), RAM as usize), (GuestAddress(HIGH), 1 << 20)];
    let mut rig = Rig::with_memory(GuestMemoryMmap::from_ranges(&ranges).unwrap());
    let put = |rig: &Rig, at: u64, values: &[u32]| {
        for (n, value) in values.iter().enumerate() {
            let at = GuestAddress(HIGH | (at + 4 * n as u64));
            rig.driver.machine.memory.write_slice(&value.to_le_bytes(), at).unwrap();
        }
    };
    let (characteristics, capabilities) = rig.words(1, 64, false, 0x0340);
    // All above 4 GiB: frame list at 0x1000, queue head at 0x2000 with its qTD, FSTNs at 0x3000.
    put(&rig, 0x1000, &[0x2000 | QUEUE_HEAD, 0x3000 | FSTN, TERMINATE, TERMINATE]);
    put(&rig, 0x1010, &[TERMINATE; 1020]);
    put(&rig, 0x2000, &[0x3020 | FSTN, characteristics, capabilities, 0, 0x2080, TERMINATE, 0]);
    put(&rig, 0x2080, &[TERMINATE, TERMINATE, Td::new(Pid::In, 0, 8).token()]);
    put(&rig, 0x208c, &[0x4000, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    put(&rig, 0x3000, &[TERMINATE, 0x2000 | QUEUE_HEAD]);
    put(&rig, 0x3020, &[TERMINATE, TERMINATE]);
    // And a siTD of frame 3 whose back pointer names that of frame 2.
    let sitd = |state: u32, back: u32| {
        let endpoint = 1 << 31 | 3 << 24 | 2 << 16 | 4 << 8 | 9;
        [TERMINATE, endpoint, 0x0340, state | 8 << 16 | 1 << 7, 0x5000, 0, back, 1, 1]
    };
    put(&rig, 0x6000, &sitd(0, TERMINATE));
    put(&rig, 0x6040, &sitd(COMPLETING, 0x6000));
    put(&rig, 0x1008, &[0x6000 | 2 << 1, 0x6040 | 2 << 1]);
    let m = &mut rig.driver.machine;
    // The asynchronous ring is below 4 GiB: it would not be found.
    let command = m.read32(reg::USBCMD);
    m.write32(reg::USBCMD, command & !cmd::ASYNCHRONOUS);
    m.write32(reg::CTRLDSSEGMENT, 1);
    m.write32(reg::PERIODICLISTBASE, 0x1000);
    rig.complete([data(&[4; 8]), data(&[5; 8])]);
    rig.go();
    let accesses = rig.driver.machine.record(4_000);
    let bytes = |at: u64| {
        let mut bytes = [0; 8];
        rig.driver.machine.memory.read_slice(&mut bytes, GuestAddress(HIGH | at)).unwrap();
        bytes
    };
    assert_eq!(bytes(0x4000), [4; 8]);
    assert_eq!(bytes(0x5000), [5; 8]);
    assert!(accesses.iter().all(|a| a.address >= HIGH), "nothing below 4 GiB is touched");
    assert!(rig.seen().iter().all(is_in));
}
