//! Hostile guests of an EHCI controller.
#![allow(dead_code, reason = "the rigs have more than these stories need")]

#[path = "../../ehci/pci.rs"]
mod pci;
#[path = "../../ehci/rig.rs"]
pub mod rig;
#[path = "../../ehci/translator.rs"]
mod translator;

mod asynchronous;
mod budgets;
mod function;
mod isochronous;
mod outside;
mod periodic;
mod restraint;
mod storms;
mod transfers;

use vm_usb::topology::Port;
use vm_usb::usb::{Endpoint, EndpointAddress, Pid, Speed, Speeds, TransferType};

use crate::driver::ehci::{
    EhciDriver, MOST_ACCESSES, QUEUE_HEAD, TERMINATE, Td, cmd, fresh_device, reg, sts,
};
use crate::driver::host::HostDriver;
use crate::driver::machine::{Machine, Work};
use crate::driver::scripted::Scripted;
use rig::{OUT1, Rig, controller, is_done};
use vm_usb::ehci::Ehci;

/// Most accesses that one visit of a queue head with one transfer takes.
const VISIT: u64 = 64;
/// Most accesses that a look at an element takes in which nothing is to be done.
const LOOK: u64 = 8;

/// The work of `story`, in which no call does more than any call may.
fn work(rig: &mut Rig, story: impl FnOnce(&mut Rig)) -> Work {
    rig.driver.machine.count_work();
    story(rig);
    let work = rig.driver.machine.take_work();
    assert!(work.most <= MOST_ACCESSES, "{work:?}");
    work
}

/// The same without a device: whatever the driver's machine does.
fn work_of(machine: &mut Machine<Ehci>, story: impl FnOnce(&mut Machine<Ehci>)) -> Work {
    machine.count_work();
    story(machine);
    let work = machine.take_work();
    assert!(work.most <= MOST_ACCESSES, "{work:?}");
    work
}

/// HCRESET restores full function.
fn assert_works_after_reset(rig: Rig) {
    let Rig { driver, controls, ports, .. } = rig;
    for endpoint in [rig::IN1, OUT1, rig::IN3, rig::OUT2] {
        controls.forget(endpoint);
    }
    let mut machine = driver.machine;
    machine.bus_master = true;
    let mut rig = Rig { driver: EhciDriver::new(machine), device: fresh_device(), controls, ports };
    rig.enumerate();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(OUT1, 4);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)])[0];
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
}

/// A rig whose device has isochronous endpoints 4 of three packets of 1,024 bytes, too.
fn streaming() -> Rig {
    let ports = vec![Port::high_speed_only(), Port::high_speed_only()];
    let driver = EhciDriver::new(Machine::new(controller(&ports)));
    let (mut scripted, controls) = Scripted::new(Speed::High);
    if let Speeds::High { high, .. } = &mut scripted.description_mut().speeds {
        for address in [EndpointAddress::out(4), EndpointAddress::r#in(4)] {
            high[0].interfaces[0].endpoints.push(Endpoint::new(
                address,
                TransferType::Isochronous,
                0x1400,
                1,
            ));
        }
    }
    ports[0].attach(Box::new(scripted)).map_err(|refused| refused.reason).unwrap();
    let mut rig = Rig { driver, device: fresh_device(), controls, ports };
    rig.driver.sleep_millis(1);
    rig.enumerate();
    rig
}

/// A rig whose asynchronous ring is made of the queue heads given by their links, each on a page of its
/// own; all idle.
fn ring(links: &[(usize, u32)]) -> (Rig, Vec<u32>) {
    let mut rig = Rig::new();
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let heads: Vec<u32> = links.iter().map(|_| rig.driver.machine.alloc(0x60, 0x80)).collect();
    for (head, (next, flags)) in heads.iter().zip(links) {
        let characteristics = rig.characteristics(OUT1, 512) | flags;
        rig.driver.machine.store_all(
            *head,
            &[heads[*next] | QUEUE_HEAD, characteristics, 1 << 30, 0, TERMINATE, TERMINATE, 0],
        );
    }
    rig.write(reg::ASYNCLISTADDR, heads[0]);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    (rig, heads)
}

/// Gives an idle queue head of [`ring`] a transfer of 64 bytes; its qTD.
fn give_work(rig: &mut Rig, head: u32) -> u32 {
    let buffer = rig.buffer(64);
    let td = Td::new(Pid::Out, buffer, 64);
    let qtd = rig.driver.machine.alloc(0x60, 32);
    rig.driver.machine.store_all(qtd, &[TERMINATE, TERMINATE, 0]);
    rig.driver.machine.store_all(qtd + 0x0c, &td.pages());
    rig.store(qtd + 8, td.token());
    rig.store(head + 0x10, qtd);
    qtd
}

/// Puts one link into every entry of the frame list.
fn fill_frame_list(rig: &mut Rig, link: u32) {
    for frame in 0..crate::driver::ehci::FRAMES {
        let at = rig.driver.frame_list + 4 * frame;
        rig.store(at, link);
    }
}

/// Lets time pass with a turn in each microframe.
fn each_microframe(rig: &mut Rig, count: u32) {
    for _ in 0..count {
        rig.driver.machine.now = rig.driver.machine.now.after_micros(125);
        rig.driver.machine.run();
    }
}
