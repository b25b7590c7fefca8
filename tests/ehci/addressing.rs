//! 64-bit addressing (EHCI appendix B): rules EHCI-ADDR64. Isochronous ones are with the iTDs.

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vm_usb::ehci::Ehci;
use vm_usb::topology::Port;
use vm_usb::usb::{EndpointAddress, Pid, SetupPacket, Speed, request};

use crate::driver::ehci::{
    EhciDriver, FRAMES, HEAD, HIGH_SPEED, QUEUE_HEAD, TERMINATE, Td, cmd, fresh_device, reg, sts,
    token,
};
use crate::driver::host::HostDriver;
use crate::driver::machine::{Machine, RAM};
use crate::driver::scripted::{Answer, Controls, Scripted};
use crate::rig::{ADDRESS, IN1, IN3, Rig, controller, is_done, pattern};

const HIGH: u64 = 1 << 32;

/// A machine with RAM at 0 and at 4 GiB, and a device configured through the low half.
fn high_memory(change: impl FnOnce(Ehci) -> Ehci) -> (EhciDriver, Controls) {
    let ranges = [(GuestAddress(0), RAM as usize), (GuestAddress(HIGH), 1 << 20)];
    let memory = GuestMemoryMmap::from_ranges(&ranges).unwrap();
    let ports = vec![Port::high_speed_only()];
    let machine = Machine::with_memory(change(controller(&ports)), memory);
    let mut driver = EhciDriver::new(machine);
    let (device, controls) = Scripted::new(Speed::High);
    ports[0].attach(Box::new(device)).unwrap();
    driver.sleep_millis(1);
    driver.reset_port(0).unwrap();
    let mut device = fresh_device();
    let address = SetupPacket::new(0, request::SET_ADDRESS, ADDRESS.into(), 0, 0);
    driver.control(&device, address, &[]).unwrap();
    device.address = ADDRESS;
    let configure = SetupPacket::new(0, request::SET_CONFIGURATION, 1, 0, 0);
    driver.control(&device, configure, &[]).unwrap();
    driver.sleep_millis(1);
    driver.take_events();
    driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    (driver, controls)
}

fn store(m: &Machine<Ehci>, address: u64, values: &[u32]) {
    for (n, value) in values.iter().enumerate() {
        let at = GuestAddress(address + 4 * n as u64);
        m.memory.write_slice(&value.to_le_bytes(), at).unwrap();
    }
}

fn load(m: &Machine<Ehci>, address: u64) -> u32 {
    let mut bytes = [0; 4];
    m.memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
    u32::from_le_bytes(bytes)
}

/// A queue head and its one qTD at `place` and `place + 0x80` in the high RAM, with these pages.
fn transfer(
    m: &Machine<Ehci>,
    place: u32,
    endpoint: EndpointAddress,
    (max_packet, s_mask): (u32, u32),
    td: Td,
    pages: [u64; 5],
) {
    let head = HIGH | u64::from(place);
    let characteristics =
        u32::from(ADDRESS) | u32::from(endpoint.number()) << 8 | HIGH_SPEED | max_packet << 16;
    let qtd = place + 0x80;
    let ring = if s_mask == 0 { HEAD } else { 0 };
    let link = if s_mask == 0 { place | QUEUE_HEAD } else { TERMINATE };
    store(m, head, &[link, characteristics | ring, 1 << 30 | s_mask, 0, qtd, TERMINATE, 0]);
    store(m, head + 0x80, &[TERMINATE, TERMINATE, td.token()]);
    store(m, head + 0x8c, &pages.map(|page| page as u32));
    store(m, head + 0xa0, &pages.map(|page| (page >> 32) as u32));
}

#[test]
fn ehci_addr64_1_structures_are_found_in_their_segment() {
    let (mut driver, controls) = high_memory(|ehci| ehci);
    let m = &mut driver.machine;
    let data = pattern(64);
    controls.answer(IN1, [Answer::Data(data.clone())]);
    controls.answer(IN3, [Answer::Data(data.clone())]);
    let pages = |at: u64| [at, 0, 0, 0, 0];
    // Ring at 0x1000, interrupt queue head at 0x2000, frame list at 0x4000: all at 4 GiB.
    transfer(m, 0x1000, IN1, (512, 0), Td::new(Pid::In, 0, 64), pages(HIGH | 0x8000));
    transfer(m, 0x2000, IN3, (64, 0xff), Td::new(Pid::In, 0, 64), pages(HIGH | 0x9000));
    store(m, HIGH | 0x4000, &[0x2000 | QUEUE_HEAD; FRAMES as usize]);
    m.write32(reg::CTRLDSSEGMENT, 1);
    m.write32(reg::PERIODICLISTBASE, 0x4000);
    m.write32(reg::ASYNCLISTADDR, 0x1000);
    let command = m.read32(reg::USBCMD);
    m.write32(reg::USBCMD, command | cmd::ASYNCHRONOUS | cmd::PERIODIC);
    let accesses = m.record(5_000);
    for at in [0x1088, 0x2088] {
        assert!(is_done(load(m, HIGH | at)), "{at:#x}");
    }
    for at in [0x8000u64, 0x9000] {
        let mut bytes = vec![0; 64];
        m.memory.read_slice(&mut bytes, GuestAddress(HIGH | at)).unwrap();
        assert_eq!(bytes, data);
    }
    assert!(accesses.iter().all(|a| a.address >= HIGH), "nothing below 4 GiB is touched");
}

#[test]
fn ehci_addr64_2_each_page_has_an_upper_half_of_its_own() {
    let (mut driver, controls) = high_memory(|ehci| ehci);
    let m = &mut driver.machine;
    let data = pattern(11_000);
    controls.answer(IN1, [Answer::Data(data.clone())]);
    let pages = [0x10_0800, HIGH | 0x2_0000, 0x30_0000, HIGH | 0x4_0000, 0];
    transfer(m, 0x1000, IN1, (512, 0), Td::new(Pid::In, 0, 11_000), pages);
    m.write32(reg::CTRLDSSEGMENT, 1);
    m.write32(reg::ASYNCLISTADDR, 0x1000);
    let command = m.read32(reg::USBCMD);
    m.write32(reg::USBCMD, command | cmd::ASYNCHRONOUS);
    m.advance_millis(2);
    assert!(is_done(load(m, HIGH | 0x1088)));
    let mut got = vec![];
    for (page, len) in pages.into_iter().zip([0x800, 0x1000, 0x1000, 11_000 - 0x2800]) {
        let mut bytes = vec![0; len];
        m.memory.read_slice(&mut bytes, GuestAddress(page)).unwrap();
        got.extend(bytes);
    }
    assert!(got == data);
}

#[test]
fn ehci_addr64_4_the_upper_halves_are_overlaid() {
    let mut rig = Rig::new();
    let mut queue = rig.open(IN1, 0);
    let qtd = queue.dummy;
    let halves = [0, 0x11, 0x22, 0x33, 0x44];
    rig.driver.machine.store_all(qtd + 0x20, &halves);
    let buffer = rig.buffer(512);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
    rig.settle();
    assert_ne!(rig.overlay(&queue) & token::ACTIVE, 0, "the device has nothing to say");
    assert_eq!(rig.driver.machine.load_all::<5>(queue.head + 0x30), halves);
    assert_eq!(rig.load(queue.head + 0x0c), qtd);
}

#[test]
fn ehci_addr64_6_with_32_bits_what_lies_behind_is_not_looked_at() {
    let mut rig = Rig::with(|ehci| ehci.with_64bit_addressing(false));
    let mut queue = rig.open(IN1, 0);
    let qtd = queue.dummy;
    for place in [queue.head + 0x30, qtd + 0x20] {
        rig.driver.machine.store_all(place, &[0xdead_beef; 5]);
    }
    let data = pattern(9_000);
    let buffer = rig.buffer(9_000);
    rig.controls.answer(IN1, [Answer::Data(data.clone())]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 9_000)]);
    rig.settle();
    assert!(is_done(rig.token(qtd)));
    assert!(rig.driver.machine.bytes(buffer, 9_000) == data);
    for place in [queue.head + 0x30, qtd + 0x20] {
        assert_eq!(rig.driver.machine.load_all::<5>(place), [0xdead_beef; 5]);
    }
}
