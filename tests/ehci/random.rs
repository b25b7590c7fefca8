//! Whatever a guest does, the controller goes on: nothing panics, every turn is bounded, and a reset
//! restores full function.

use proptest::prelude::*;
use vm_usb::controller::{Context, HostController};
use vm_usb::ehci::Ehci;
use vm_usb::topology::Port;
use vm_usb::usb::{BusError, CompleteAnswer, Pid, Readiness, Speed};

use crate::driver::ehci::{
    EhciDriver, HEAD, HIGH_SPEED, MOST_ACCESSES, TERMINATE, Td, cmd, port, reg, token,
};
use crate::driver::machine::Machine;
use crate::driver::recorder::Recorder;
use crate::driver::scripted::{Answer, Controls, Scripted};
use crate::rig::{ADDRESS, IN1, IN3, OUT1, OUT2, Rig, controller, is_done};

/// Where random structures lie.
const ARENA: u32 = 0x10_0000;
/// Their size: small, so that pointers meet.
const ARENA_DWORDS: usize = 512;
/// No RAM is here.
const NOWHERE: u32 = 0xfff0_0000;
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
            prop_assert!(accesses as u64 <= MOST_ACCESSES, "{accesses} accesses in one turn");
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
        let setup = crate::driver::host::setup_bytes(&SetupPacket::new(0, code, value, 0, 0));
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
