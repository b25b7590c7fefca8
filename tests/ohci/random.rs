//! Whatever a guest does, the controller goes on: random register writes over random memory.

use proptest::prelude::*;
use vm_usb::ohci::Pacing;
use vm_usb::usb::BusError;

use crate::driver::scripted::Answer;
use crate::rig::*;

/// Where the random guest keeps its descriptors: few places, so that they link up and overlap.
const ARENA: u32 = 0x20_0000;
const ARENA_LEN: u32 = 0x200;
/// Endpoint descriptors come first, then transfer descriptors.
const ENDPOINTS: u32 = 6;
const PLACES: u32 = 24;
/// Where its buffers are.
const BUFFERS: u32 = 0x30_0000;
/// Memory that nothing names.
const UNNAMED: (u32, usize) = (0x18_0000, 0x1_0000);

#[derive(Clone, Debug)]
enum Step {
    /// A register write: offset and value.
    Register(u64, u32),
    /// A write of odd size.
    Odd(u64, Vec<u8>),
    /// A dword of the arena.
    Memory(u32, u32),
    /// An endpoint descriptor in the arena that makes some sense.
    Endpoint {
        at: u32,
        control: u32,
        tail: u32,
        head: u32,
        next: u32,
    },
    /// A transfer descriptor in the arena that makes some sense.
    Transfer {
        at: u32,
        control: u32,
        cbp: u32,
        next: u32,
        be: u32,
    },
    Advance(u64),
    Answer(u8, u8),
    Announce(u8),
    Wakeup,
    Replug,
    BusMaster(bool),
    Reset,
    /// The guest starts over.
    Restart,
}

fn endpoint_place() -> impl Strategy<Value = u32> {
    (0..ENDPOINTS).prop_map(|n| ARENA + 16 * n)
}

fn transfer_place() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => (ENDPOINTS..PLACES).prop_map(|n| ARENA + 16 * n),
        2 => (ENDPOINTS / 2 ..PLACES / 2).prop_map(|n| ARENA + 32 * n),
    ]
}

/// Nearly always where there is something.
fn mostly(places: impl Strategy<Value = u32>) -> impl Strategy<Value = u32> {
    prop_oneof![
        60 => places,
        4 => Just(0),
        4 => (0..PLACES).prop_map(|n| ARENA + 16 * n),
        1 => 0x8000_0000u32..,
    ]
}

fn buffer() -> impl Strategy<Value = u32> {
    prop_oneof![
        40 => (0..0x3000u32).prop_map(|n| BUFFERS + n),
        4 => Just(0),
        4 => (0..ARENA_LEN).prop_map(|n| ARENA + n),
        1 => 0x8000_0000u32..,
    ]
}

fn endpoint_control() -> impl Strategy<Value = u32> {
    (
        prop_oneof![9 => Just(ADDRESS), 1 => 0..128u8],
        0..5u8,
        prop_oneof![3 => Just(64u16), 1 => Just(0), 1 => Just(8), 1 => Just(1023)],
        0..4u32,
        prop_oneof![6 => Just(0u32), 1 => Just(ed::SKIP), 1 => Just(ed::LOW_SPEED),
                    2 => Just(ed::ISOCHRONOUS)],
    )
        .prop_map(|(fa, en, mps, direction, flags)| {
            ed::control(fa, en, mps) | direction << 11 | flags
        })
}

/// A descriptor that makes some sense.
fn descriptor() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (endpoint_place(), endpoint_control(), mostly(transfer_place()),
               mostly(transfer_place()), prop_oneof![Just(0), mostly(endpoint_place())])
            .prop_map(|(at, control, tail, head, next)| Step::Endpoint {
                at, control, tail, head, next
            }),
        20 => (transfer_place(), any::<u32>(), buffer(), mostly(transfer_place()), buffer(),
               0..8000u32)
            .prop_map(|(at, control, cbp, next, end, len)| {
                let be = if len < 7000 { cbp.wrapping_add(len) } else { end };
                Step::Transfer { at, control: control | 0xe000_0000, cbp, next, be }
            }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let heads = vec![
        reg::CONTROL_HEAD_ED,
        reg::CONTROL_CURRENT_ED,
        reg::BULK_HEAD_ED,
        reg::BULK_CURRENT_ED,
    ];
    prop_oneof![
        2 => ((0..24u64).prop_map(|n| n * 4), any::<u32>())
            .prop_map(|(offset, value)| Step::Register(offset, value)),
        6 => (prop::sample::select(heads), mostly(endpoint_place()))
            .prop_map(|(offset, value)| Step::Register(offset, value)),
        1 => mostly(Just(ARENA)).prop_map(|value| Step::Register(reg::HCCA, value)),
        4 => (0..64u32).prop_map(|lists| Step::Register(reg::CONTROL, control::OPERATIONAL | lists)),
        10 => Just(Step::Register(reg::COMMAND_STATUS, command::CLF | command::BLF)),
        6 => any::<u32>().prop_map(|value| Step::Register(reg::INTERRUPT_STATUS, value)),
        2 => any::<u32>().prop_map(|value| Step::Register(reg::INTERRUPT_ENABLE, value)),
        1 => (0..0x1010u64, prop::collection::vec(any::<u8>(), 0..17))
            .prop_map(|(offset, data)| Step::Odd(offset, data)),
        1 => (0..ARENA_LEN / 4, any::<u32>()).prop_map(|(n, v)| Step::Memory(ARENA + 4 * n, v)),
        32 => descriptor(),
        10 => (0..3_000_000u64).prop_map(Step::Advance),
        1 => Just(Step::Advance(5_000_000_000)),
        3 => (0..10u8, 0..9u8).prop_map(|(endpoint, answer)| Step::Answer(endpoint, answer)),
        2 => (0..10u8).prop_map(Step::Announce),
        1 => Just(Step::Wakeup),
        1 => Just(Step::Replug),
        1 => any::<bool>().prop_map(Step::BusMaster),
        1 => Just(Step::Reset),
        6 => Just(Step::Restart),
    ]
}

fn endpoint(n: u8) -> vm_usb::usb::EndpointAddress {
    let number = n % 5;
    if n < 5 {
        vm_usb::usb::EndpointAddress::out(number)
    } else {
        vm_usb::usb::EndpointAddress::r#in(number)
    }
}

fn answer(n: u8) -> Answer {
    match n {
        0 => Answer::Nak,
        1 => Answer::Park,
        2 => Answer::Pending,
        3 => Answer::Stall,
        4 => Answer::Error(BusError::Timeout),
        5 => Answer::Error(BusError::Babble),
        6 => Answer::Take(64),
        7 => Answer::Data(vec![0xff; 1000]),
        _ => Answer::Data(vec![3; 40]),
    }
}

impl Rig {
    /// Stores what is in RAM.
    fn poke(&mut self, at: u32, words: &[u32]) {
        for (n, word) in words.iter().enumerate() {
            let at = at.wrapping_add(4 * n as u32);
            if (ARENA..ARENA + ARENA_LEN).contains(&at) {
                self.m.store(at & !3, *word);
            }
        }
    }

    /// Brings the controller up with whatever is in the arena as its lists.
    fn restart(&mut self) {
        self.m.bus_master = true;
        self.m.reset();
        self.start();
        for slot in 0..32 {
            self.m.store(self.hcca + 4 * slot, ARENA + 16 * (slot % ENDPOINTS));
        }
        self.m.write32(reg::CONTROL_HEAD_ED, ARENA + 16);
        self.m.write32(reg::BULK_HEAD_ED, ARENA + 32);
        self.enable(control::PLE | control::IE | control::CLE | control::BLE);
        self.m.write32(reg::COMMAND_STATUS, command::CLF | command::BLF);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Register(offset, value) => self.m.write32(offset, value),
            Step::Odd(offset, mut data) => {
                self.m.write(offset, &data);
                self.m.read(offset, &mut data);
            }
            Step::Memory(at, value) => self.poke(at, &[value]),
            Step::Endpoint { at, control, tail, head, next } => {
                self.poke(at, &[control, tail, head, next]);
            }
            Step::Transfer { at, control, cbp, next, be } => {
                self.poke(at, &[control, cbp, next, be]);
            }
            Step::Advance(nanos) => {
                let end = self.m.now.after_nanos(nanos);
                // A host that sleeps through most deadlines, so that long pauses cost little.
                for _ in 0..20 {
                    let Some(deadline) = self.m.deadline().filter(|d| *d <= end) else { break };
                    self.m.now = deadline.max(self.m.now.after_nanos(100));
                    self.m.run();
                }
                self.m.now = self.m.now.max(end);
                self.m.run();
            }
            Step::Answer(n, kind) => self.device.answer(endpoint(n), [answer(kind)]),
            Step::Announce(n) => {
                self.device.announce(endpoint(n));
                self.m.run();
            }
            Step::Wakeup => {
                self.device.remote_wakeup();
                self.m.run();
            }
            Step::Replug => {
                let device = self.ports[0].detach().unwrap();
                self.m.run();
                self.ports[0].attach(device).unwrap();
                self.m.run();
            }
            // As the function in front does when its command register changes.
            Step::BusMaster(on) => {
                self.m.bus_master = on;
                self.m.run();
            }
            Step::Reset => self.m.reset(),
            Step::Restart => self.restart(),
        }
    }

    /// The line is what the registers say it must be.
    fn assert_line(&mut self) {
        let before = self.m.line;
        let mask = self.m.read32(reg::INTERRUPT_ENABLE);
        let status = self.m.read32(reg::INTERRUPT_STATUS);
        let routed = self.m.read32(reg::CONTROL) & control::IR == 0;
        let line = self.m.line;
        let condition = routed && mask & int::MIE != 0 && mask & status & 0x7f != 0;
        assert_eq!(line, condition, "status {status:#x}, mask {mask:#x}");
        // With Eager a frame may end when somebody looks.
        assert!(line || !before, "looking clears nothing");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn whatever_a_guest_does_the_controller_goes_on(
        eager in any::<bool>(),
        descriptors in prop::collection::vec(descriptor(), 20..60),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut rig = running_with(if eager { Pacing::Eager } else { Pacing::RealTime });
        for step in descriptors {
            rig.take(step);
        }
        rig.restart();
        let unnamed = rig.m.bytes(UNNAMED.0, UNNAMED.1);
        for step in steps {
            rig.take(step);
            rig.assert_line();
        }
        prop_assert!(rig.m.bytes(UNNAMED.0, UNNAMED.1) == unnamed);
        // And after a reset it works as ever.
        rig.m.bus_master = true;
        for n in 0..10 {
            rig.device.forget(endpoint(n));
        }
        rig.m.reset();
        rig.start();
        let td = rig.out(&[1; 8]);
        let ed = rig.endpoint_ed(BULK_OUT, &[td]);
        rig.run_bulk(&[ed]);
        prop_assert_eq!(rig.cc(td), 0);
    }
}
