//! Guests that lie, race or are broken: nothing panics, every turn is bounded, and a reset restores
//! full function.

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};
use vm_usb::controller::{Context, HostController};
use vm_usb::ehci::Ehci;
use vm_usb::topology::Port;
use vm_usb::usb::{BusError, CompleteAnswer, Pid, Readiness, Speed};

use crate::driver::ehci::{
    EhciDriver, FRAMES, HEAD, HIGH_SPEED, QUEUE_HEAD, TERMINATE, Td, cmd, port, reg, sts, token,
};
use crate::driver::machine::Machine;
use crate::driver::recorder::Recorder;
use crate::driver::scripted::{Answer, Controls, Scripted, Seen};
use crate::rig::{ADDRESS, IN1, IN3, OUT1, OUT2, Rig, controller, is_done};

/// Where random structures lie.
const ARENA: u32 = 0x10_0000;
/// Their size: small, so that pointers meet.
const ARENA_DWORDS: usize = 512;
/// No RAM is here.
const NOWHERE: u32 = 0xfff0_0000;
/// Most accesses to memory in one turn: the budgets of both schedules, each element with the accesses
/// it takes at most.
const MOST_ACCESSES: usize = 8192 * 24 + 1024 * 64 + 4096 * 24;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Read(u64, usize),
    Poke(usize, u32),
    Pass(u64),
    Plug,
    Unplug,
    Announce,
    Wake,
    BusMaster(bool),
}

/// A dword that could be a pointer into the arena, a token, an endpoint, or anything.
fn dword() -> impl Strategy<Value = u32> {
    let arena = 0..(ARENA_DWORDS as u32 / 8);
    prop_oneof![
        4 => (arena, 0u32..32).prop_map(|(n, low)| (ARENA + n * 32) | low),
        3 => (any::<u32>(), any::<bool>()).prop_map(|(value, active)| {
            value & !token::HALTED & !token::ACTIVE | if active { token::ACTIVE } else { 0 }
        }),
        2 => (any::<u32>(), 0u32..4).prop_map(|(value, endpoint)| {
            value & 0xffff_c000 & !HEAD | HIGH_SPEED | endpoint << 8 | u32::from(ADDRESS)
        }),
        // Words of endpoints behind a translator.
        2 => (any::<u32>(), 0u32..4).prop_map(|(value, endpoint)| {
            value & 0x0fff_c000 & !HEAD | (value >> 28 & 1) << 12 | endpoint << 8 | 9
        }),
        1 => any::<u32>().prop_map(|value| {
            value & 0xff80_ffff | u32::from(crate::translator::HUB) << 16
        }),
        1 => Just(0),
        1 => Just(TERMINATE),
        1 => Just(NOWHERE),
        1 => any::<u32>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let registers = prop_oneof![
        8 => (0u64..8).prop_map(|n| 0x20 + 4 * n),
        2 => (0u64..4).prop_map(|n| 0x60 + 4 * n),
        1 => (0u64..5).prop_map(|n| 0xa0 + 4 * n),
        1 => 0u64..0x1008,
    ];
    let value = prop_oneof![
        dword().prop_map(|v| v.to_le_bytes().to_vec()),
        (0u32..0x80).prop_map(|v| (v & !cmd::RESET | cmd::RUN).to_le_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 0..9),
    ];
    prop_oneof![
        6 => (registers.clone(), value).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        2 => (registers, 0usize..9).prop_map(|(at, len)| Step::Read(at, len)),
        4 => (0..ARENA_DWORDS, dword()).prop_map(|(at, value)| Step::Poke(at, value)),
        6 => prop_oneof![0u64..200_000, 0u64..50_000_000].prop_map(Step::Pass),
        1 => Just(Step::Plug),
        1 => Just(Step::Unplug),
        2 => Just(Step::Announce),
        1 => Just(Step::Wake),
        1 => any::<bool>().prop_map(Step::BusMaster),
    ]
}

/// Lets every kind of answer happen.
fn script(controls: &Controls) {
    for endpoint in [IN1, OUT1, IN3, OUT2] {
        controls.answer(
            endpoint,
            [
                Answer::Data(vec![1; 700]),
                Answer::Take(512),
                Answer::Nak,
                Answer::Park,
                Answer::Pending,
                Answer::Error(BusError::Timeout),
                Answer::Error(BusError::ToggleMismatch),
                Answer::Data(vec![]),
                Answer::Stall,
            ],
        );
    }
}

/// One turn with its accesses counted; the interrupt line must follow the registers.
fn turn(m: &mut Machine<Ehci>) -> usize {
    let recorder = Recorder::new(&m.memory);
    let context =
        if m.bus_master { Context::new(&recorder, m.now) } else { Context::without_dma(m.now) };
    m.controller.run(&context);
    recorder.into_log().len()
}

fn line_follows(m: &mut Machine<Ehci>) {
    // Reading brings time up to date; with bus mastering off that is all it does.
    let bus_master = std::mem::replace(&mut m.bus_master, false);
    let expected = m.read32(reg::USBSTS) & m.read32(reg::USBINTR) != 0;
    m.bus_master = bus_master;
    assert_eq!(m.line, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_guests_are_survived(
        arena in proptest::collection::vec(dword(), ARENA_DWORDS),
        steps in proptest::collection::vec(step(), 1..80),
        wide in any::<bool>(),
        addendum in any::<bool>(),
    ) {
        let ports = vec![Port::high_speed_only(), Port::high_speed_only()];
        let controller = controller(&ports).with_64bit_addressing(wide).with_addendum(addendum);
        let mut m = Machine::new(controller);
        let (device, controls) = Scripted::new(Speed::High);
        ports[0].attach(Box::new(device)).unwrap();
        script(&controls);
        let (hub, splits) = crate::translator::hub();
        ports[1].attach(hub).unwrap();
        for answer in [
            CompleteAnswer::Nyet,
            CompleteAnswer::Ack,
            CompleteAnswer::Data { last: false },
            CompleteAnswer::Data { last: true },
            CompleteAnswer::Nak(Readiness::Announced),
            CompleteAnswer::Stall,
            CompleteAnswer::Err,
            CompleteAnswer::Silence,
            CompleteAnswer::ToggleMismatch,
        ] {
            splits.lock().unwrap().completes.extend([(answer, vec![3; 40]), (answer, vec![4; 200])]);
        }
        // The device is configured behind the guest's back, so that tokens reach it.
        m.write32(reg::CONFIGFLAG, 1);
        for (n, address) in [(0, ADDRESS), (1, crate::translator::HUB)] {
            let register = reg::PORTSC + 4 * n;
            m.write32(register, port::POWER);
            m.write32(register, port::POWER | port::RESET);
            m.write32(register, port::POWER);
            configure(&ports[n as usize], address);
        }
        for (n, value) in arena.iter().enumerate() {
            m.store(ARENA + 4 * n as u32, *value);
        }
        m.write32(reg::PERIODICLISTBASE, ARENA);
        m.write32(reg::ASYNCLISTADDR, ARENA);
        m.write32(reg::USBINTR, 0x3f);
        m.write32(reg::USBCMD, cmd::RUN | cmd::PERIODIC | cmd::ASYNCHRONOUS);
        for step in steps {
            match step {
                Step::Write(at, bytes) => m.write(at, &bytes),
                Step::Read(at, len) => m.read(at, &mut vec![0; len]),
                Step::Poke(at, value) => m.store(ARENA + 4 * at as u32, value),
                Step::Pass(nanos) => m.now = m.now.after_nanos(nanos),
                Step::Plug => {
                    let (device, _) = Scripted::new(Speed::High);
                    let _ = ports[1].attach(Box::new(device));
                }
                Step::Unplug => { ports[1].detach(); }
                Step::Announce => controls.announce(IN1),
                Step::Wake => controls.remote_wakeup(),
                Step::BusMaster(on) => m.bus_master = on,
            }
            let accesses = turn(&mut m);
            prop_assert!(accesses <= MOST_ACCESSES, "{accesses} accesses in one turn");
            line_follows(&mut m);
        }
        // A reset restores full function, whatever happened.
        m.bus_master = true;
        ports[1].detach();
        let driver = EhciDriver::new(m);
        let mut rig = Rig { driver, device: crate::driver::ehci::fresh_device(), controls, ports };
        for endpoint in [IN1, OUT1, IN3, OUT2] {
            rig.controls.forget(endpoint);
        }
        rig.enumerate();
        let buffer = rig.buffer(512);
        let mut queue = rig.open(OUT1, 4);
        let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)])[0];
        rig.driver.machine.advance_millis(1);
        prop_assert!(is_done(rig.token(qtd)));
    }
}

/// Gives a device that has been reset its address and configuration.
fn configure(port: &Port, address: u8) {
    use vm_usb::time::Time;
    use vm_usb::topology::Host;
    use vm_usb::usb::{SetupPacket, Toggle, Transfer, request};
    for (code, value) in
        [(request::SET_ADDRESS, u16::from(address)), (request::SET_CONFIGURATION, 1)]
    {
        let setup = crate::driver::ehci::setup_bytes(&SetupPacket::new(0, code, value, 0, 0));
        for (pid, bytes) in [(Pid::Setup, setup.to_vec()), (Pid::In, vec![])] {
            let mut buffer = bytes;
            port.link(Host::High).with(|function| {
                function.transact(Transfer {
                    pid,
                    endpoint: 0,
                    max_packet: 64,
                    toggle: Toggle::Data0,
                    now: Time::ZERO,
                    buffer: &mut buffer,
                })
            });
        }
    }
}

/// A rig whose asynchronous ring is made of the queue heads given by their links; all idle.
fn ring(links: &[(usize, u32)]) -> (Rig, Vec<u32>) {
    let mut rig = Rig::new();
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    let heads: Vec<u32> = links.iter().map(|_| rig.driver.machine.alloc(0x60, 32)).collect();
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

/// The most accesses in any single turn of the next 20 ms.
fn busiest_turn(rig: &mut Rig) -> usize {
    let mut most = 0;
    for _ in 0..160 {
        rig.driver.machine.now = rig.driver.machine.now.after_micros(125);
        most = most.max(turn(&mut rig.driver.machine));
    }
    most
}

#[test]
fn hg_1_2_rings_without_head_and_cycles_beside_the_start_end() {
    for links in [
        vec![(1, 0), (2, 0), (0, 0)],
        vec![(1, 0), (2, 0), (3, 0), (1, 0)],
        vec![(0, 0)],
        vec![(1, 0), (1, HEAD)],
        vec![(1, HEAD), (2, HEAD), (0, HEAD)],
    ] {
        let (mut rig, heads) = ring(&links);
        let most = busiest_turn(&mut rig);
        assert!(most < heads.len() * 100, "{links:?}: {most} accesses");
        // Work in the last queue head of the cycle is still found.
        let head = *heads.last().unwrap();
        let buffer = rig.buffer(64);
        let td = Td::new(Pid::Out, buffer, 64);
        let qtd = rig.driver.machine.alloc(0x60, 32);
        rig.driver.machine.store_all(qtd, &[TERMINATE, TERMINATE, 0]);
        rig.driver.machine.store_all(qtd + 0x0c, &td.pages());
        rig.store(qtd + 8, td.token());
        rig.store(head + 0x10, qtd);
        rig.driver.machine.advance_millis(1);
        assert!(is_done(rig.token(qtd)), "{links:?}");
    }
}

#[test]
fn hg_4_every_element_of_the_asynchronous_list_is_a_queue_head() {
    for typ in 0..4 {
        let (mut rig, heads) = ring(&[(1, HEAD), (0, 0)]);
        rig.store(heads[0], heads[1] | typ << 1 | TERMINATE);
        rig.driver.machine.advance_millis(2);
        assert_eq!(rig.status() & (sts::HALTED | sts::SYSTEM_ERROR), 0);
    }
}

#[test]
fn hg_5_6_cycles_in_the_periodic_list_end() {
    for typ in 0..4u32 {
        let mut rig = Rig::new();
        let element = rig.driver.machine.alloc(0x80, 32);
        rig.store(element, element | typ << 1);
        if typ == 3 {
            rig.store(element + 4, element | typ << 1);
        }
        for frame in 0..FRAMES {
            let at = rig.driver.frame_list + 4 * frame;
            rig.store(at, element | typ << 1);
        }
        rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
        let most = busiest_turn(&mut rig);
        assert!(most <= MOST_ACCESSES, "type {typ}: {most} accesses");
        let index = rig.read(reg::FRINDEX);
        rig.driver.machine.advance_millis(1);
        assert_eq!(rig.read(reg::FRINDEX), (index + 8) & 0x3fff);
        rig.halt();
    }
}

#[test]
fn hg_9_a_stream_of_empty_transfers_leaves_room_for_registers() {
    // A ring of qTDs that the guest makes active again as fast as it can: here, 4,000 of them.
    let mut rig = Rig::new();
    let mut queue = rig.unlinked(OUT1);
    let qtds = rig.submit(&mut queue, &[Td::new(Pid::Out, 0, 0); 4_000]);
    rig.driver.link(&queue);
    let accesses = turn(&mut rig.driver.machine);
    assert!(accesses < 256 * 80, "{accesses}");
    assert!(!is_done(rig.token(*qtds.last().unwrap())));
    rig.driver.machine.advance_millis(2);
    assert!(is_done(rig.token(*qtds.last().unwrap())));
}

#[test]
fn hg_10_an_alternate_that_names_its_own_qtd_ends() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 0);
    let own = queue.dummy;
    rig.controls.answer(IN1, [Answer::Data(vec![1; 10])]);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512).alternate(own)])[0];
    rig.driver.machine.advance_millis(1);
    assert_eq!(qtd, own);
    assert_eq!(rig.packets().len(), 1);
}

#[test]
fn hg_11_dma_into_the_controllers_own_window_is_no_ram() {
    // The guest has mapped BAR 0 at 0xfebf0000: there is no RAM, so there is nothing to re-enter.
    let mut rig = Rig::new();
    let mut queue = rig.open(IN1, 0);
    rig.controls.answer(IN1, [Answer::Data(vec![1; 64])]);
    rig.submit(&mut queue, &[Td::new(Pid::In, 0xfebf_0000, 64)]);
    rig.driver.machine.advance_millis(1);
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0);
}

#[test]
fn hg_13_more_bytes_than_five_pages_hold() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(0x8000);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer + 0xffe, 0x7fff)])[0];
    rig.driver.machine.advance_millis(1);
    let t = rig.token(qtd);
    assert_eq!(t & 0xff, token::HALTED | token::BUFFER_ERROR);
    let moved = rig.controls.take_received(OUT1).len();
    assert_eq!(moved, 0x4002 / 512 * 512, "whole packets that fit");
    assert_eq!(token::total(t), 0x7fff - moved as u32);
    rig.driver.machine.advance_millis(1);
    assert_ne!(rig.driver.take_events() & sts::ERROR, 0);

    for page in 5..8 {
        let mut rig = Rig::new();
        let buffer = rig.buffer(512);
        let mut queue = rig.open(OUT1, 0);
        let qtd = queue.dummy;
        rig.submit(&mut queue, &[]);
        rig.store(qtd, TERMINATE);
        rig.driver.machine.store_all(qtd + 0x0c, &[buffer; 5]);
        rig.store(qtd + 8, Td::new(Pid::Out, buffer, 512).token() | page << 12);
        rig.driver.machine.advance_millis(1);
        assert_eq!(rig.token(qtd) & 0xff, token::HALTED | token::BUFFER_ERROR, "C_Page {page}");
        assert_eq!(rig.packets(), []);
    }
}

#[test]
fn hg_14_addresses_at_the_end_of_32_bits() {
    let mut rig = Rig::new();
    let mut queue = rig.open(OUT1, 0);
    rig.submit(&mut queue, &[Td::new(Pid::Out, 0xffff_f000, 0x5000)]);
    rig.driver.machine.advance_millis(1);
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0);
    let (mut rig, heads) = ring(&[(0, HEAD)]);
    rig.store(heads[0], 0xffff_ffe0);
    rig.driver.machine.advance_millis(1);
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0);
}

#[test]
fn hg_16_packets_of_no_bytes_or_of_too_many() {
    for cerr in [0, 3] {
        let mut rig = Rig::new();
        let buffer = rig.buffer(512);
        let mut queue = rig.driver.open(ADDRESS, 1, 0, 0);
        let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512).cerr(cerr)])[0];
        rig.driver.machine.advance_millis(2);
        let t = rig.token(qtd);
        assert_eq!(t & 0xff & !token::PING, token::HALTED | token::ERROR, "CERR {cerr}");
        assert_eq!(rig.packets(), []);
    }
    let mut rig = Rig::new();
    let buffer = rig.buffer(4096);
    let mut queue = rig.driver.open(ADDRESS, 1, 0x7ff, 0);
    rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 4096)]);
    rig.driver.machine.advance_millis(1);
    let largest = rig.controls.take_seen().into_iter().find_map(|seen| match seen {
        Seen::Transfer { max_packet, .. } => Some(max_packet),
        _ => None,
    });
    assert_eq!(largest, Some(1024));
}

#[test]
fn hg_17_reserved_codes_stop_their_queue_only() {
    // PID 3 and EPS 3.
    for (pid, speed) in [(3 << 8, 0), (0, 1 << 12)] {
        let mut rig = Rig::new();
        let buffer = rig.buffer(512);
        let mut queue = rig.driver.open(ADDRESS, 1, 512, speed);
        let mut other = rig.open(OUT2, 0);
        let qtd = queue.dummy;
        rig.submit(&mut queue, &[]);
        rig.store(qtd, TERMINATE);
        rig.driver.machine.store_all(qtd + 0x0c, &[buffer; 5]);
        rig.store(qtd + 8, Td::new(Pid::Out, buffer, 512).token() | pid);
        let works = rig.submit(&mut other, &[Td::new(Pid::Out, buffer, 512)])[0];
        rig.driver.machine.advance_millis(1);
        assert_ne!(rig.token(qtd) & token::HALTED, 0);
        assert!(is_done(rig.token(works)));
        assert_eq!(rig.driver.take_events(), sts::ERROR);
    }
}

#[test]
fn hg_21_a_transfer_into_its_own_queue_head_harms_nobody() {
    let mut rig = Rig::new();
    let mut queue = rig.open(IN1, 0);
    let target = queue.head;
    let mut image = vec![0xff; 0x44];
    // What the device sends makes the queue head lead nowhere.
    image[..4].copy_from_slice(&NOWHERE.to_le_bytes());
    rig.controls.answer(IN1, [Answer::Data(image)]);
    rig.submit(&mut queue, &[Td::new(Pid::In, target, 0x44)]);
    rig.driver.machine.advance_millis(3);
    rig.write(reg::USBCMD, cmd::RESET);
    assert_ne!(rig.status() & sts::HALTED, 0);
}

#[test]
fn hg_22_23_a_queue_head_reused_while_its_transfer_is_pending() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(IN1, 4);
    rig.controls.answer(IN1, [Answer::Pending]);
    rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512)]);
    rig.driver.machine.advance_millis(1);
    assert_eq!(rig.packets().len(), 1);
    // No doorbell: the guest simply makes another endpoint of it.
    let other = rig.characteristics(OUT2, 512);
    rig.store(queue.head + 4, other);
    let t = rig.overlay(&queue) & !(3 << 8);
    rig.store(queue.head + 0x18, t);
    rig.driver.machine.advance_millis(2);
    let seen = rig.controls.take_seen();
    assert!(seen.contains(&Seen::Cancel(IN1)), "{seen:?}");
    assert!(seen.iter().any(|s| matches!(s, Seen::Transfer { endpoint: 2, .. })), "{seen:?}");
}

#[test]
fn hg_25_26_storms_of_commands() {
    let mut rig = Rig::new();
    let command = rig.read(reg::USBCMD);
    for n in 0..2_000 {
        let toggled = match n % 4 {
            0 => command | cmd::DOORBELL,
            1 => command ^ cmd::RUN,
            2 => command ^ cmd::ASYNCHRONOUS,
            _ => command | cmd::PERIODIC,
        };
        rig.write(reg::USBCMD, toggled);
        rig.write(reg::USBCMD, command);
    }
    let buffer = rig.buffer(64);
    let mut queue = rig.open(OUT1, 0);
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 64)])[0];
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
}

#[test]
fn hg_30_a_microframe_carries_what_a_bus_would() {
    let mut rig = Rig::new();
    // 1,000 interrupt queue heads in every microframe, all with data.
    let buffer = rig.buffer(64);
    let mut link = TERMINATE;
    let characteristics = rig.characteristics(IN3, 64);
    rig.controls.answer(IN3, vec![Answer::Data(vec![1; 64]); 5_000]);
    for _ in 0..1_000 {
        let mut queue = rig.driver.queue(characteristics | 1 << 14, 1 << 30 | 0xff, Some(1));
        rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 64)]);
        rig.store(queue.head, link);
        link = queue.head | QUEUE_HEAD;
    }
    for frame in 0..FRAMES {
        let at = rig.driver.frame_list + 4 * frame;
        rig.store(at, link);
    }
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    rig.packets();
    rig.microframes(1);
    let bytes: usize = rig.packets().iter().map(|p| p.outcome.bytes).sum();
    assert!(bytes <= 2 * (7_500 + 64), "{bytes} bytes in at most two microframes");
}

#[test]
fn hg_31_32_absent_and_silent_devices_by_the_hundred() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    for n in 0..600u32 {
        let address = if n % 2 == 0 { 100 } else { ADDRESS };
        let mut queue = rig.driver.open(address, 1, 512, 4 << 28);
        rig.submit(&mut queue, &[Td::new(Pid::In, buffer, 512).cerr(0)]);
    }
    rig.controls.answer(IN1, vec![Answer::Pending; 20_000]);
    let most = busiest_turn(&mut rig);
    assert!(most <= MOST_ACCESSES, "{most} accesses");
    // Pushed out of what the controller remembers, a pending transfer is cancelled, not forgotten.
    let seen = rig.controls.take_seen();
    let cancelled = seen.iter().filter(|s| **s == Seen::Cancel(IN1)).count();
    assert!(cancelled != 0);
}

#[test]
fn hg_40_a_clock_that_jumps() {
    let mut rig = Rig::new();
    rig.driver.enable(cmd::PERIODIC, sts::PERIODIC);
    for nanos in [u64::MAX / 2, u64::MAX / 4, u64::MAX] {
        rig.driver.machine.now = rig.driver.machine.now.after_nanos(nanos);
        let accesses = turn(&mut rig.driver.machine);
        assert!(accesses <= MOST_ACCESSES);
        rig.status();
        let _ = rig.driver.machine.deadline();
    }
}

#[test]
fn structures_across_the_end_of_ram_are_an_error_not_a_crash() {
    use crate::driver::machine::RAM;
    let (mut rig, heads) = ring(&[(0, HEAD)]);
    rig.store(heads[0], RAM - 32);
    rig.driver.machine.memory.write_slice(&[0; 32], GuestAddress(u64::from(RAM) - 32)).unwrap();
    rig.driver.machine.advance_millis(1);
    assert_eq!(rig.status() & sts::SYSTEM_ERROR, 0, "nothing there needs more than 32 bytes");
    // Active: the buffers of the overlay lie behind the end.
    rig.write(reg::USBCMD, cmd::RESET);
    let (mut rig, heads) = ring(&[(0, HEAD)]);
    let place = u64::from(RAM) - 32;
    rig.driver.machine.memory.write_slice(&[0; 32], GuestAddress(place)).unwrap();
    let active = Td::new(Pid::Out, 0, 64).token();
    rig.driver
        .machine
        .memory
        .write_slice(&active.to_le_bytes(), GuestAddress(place + 0x18))
        .unwrap();
    rig.store(heads[0], RAM - 32);
    rig.driver.machine.advance_millis(1);
    assert_ne!(rig.status() & sts::SYSTEM_ERROR, 0);
}
