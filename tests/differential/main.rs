//! The same driver's program on every bus: what the device saw and what the driver got must agree, packet
//! for packet where the packets are of one size, byte for byte where they are not.

#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz target")]
mod buses;
#[path = "../driver/mod.rs"]
mod driver;
#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz target")]
mod play;
#[allow(dead_code, unreachable_pub, reason = "shared with the fuzz target")]
mod witness;

use play::{Program, Step};
use proptest::prelude::*;
use witness::Reply;

/// How a device answers: mostly well, now and then in every way there is. A packet is not lost twice in a
/// row: three times would be an error, which each bus reports in its own way.
fn replies() -> impl Strategy<Value = Vec<Reply>> {
    let reply = prop_oneof![
        8 => Just(vec![Reply::Go]),
        2 => Just(vec![Reply::Nak]),
        1 => Just(vec![Reply::Park]),
        1 => Just(vec![Reply::Pending]),
        1 => Just(vec![Reply::Stall]),
        1 => Just(vec![Reply::Glitch, Reply::Go]),
    ];
    prop::collection::vec(reply, 0..6).prop_map(|replies| replies.concat())
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..200, 0usize..5_000, Just(64), Just(512), Just(4096), Just(20_480)]
}

fn packets() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(1u16..=1023, 1..9)
}

fn step() -> impl Strategy<Value = Step> {
    let bulk = 1u8..=2;
    prop_oneof![
        2 => (0u16..200).prop_map(Step::Put),
        2 => (0u16..300, 0u16..300).prop_map(|(ask, has)| Step::Get(ask, has)),
        1 => (0u16..100).prop_map(Step::Refused),
        6 => (bulk.clone(), size(), replies()).prop_map(|(n, len, r)| Step::Send(n, len, r)),
        6 => (bulk, 1usize..=24, size(), replies())
            .prop_map(|(n, packets, say, r)| Step::Receive(n, packets, say, r)),
        2 => (0usize..=64, replies()).prop_map(|(len, r)| Step::Tell(len, r)),
        3 => (0usize..=64, replies()).prop_map(|(say, r)| Step::Poll(say, r)),
        1 => Just(Step::PollInVain),
        2 => packets().prop_map(Step::Stream),
        2 => packets().prop_map(Step::Hear),
        4 => (1u8..=3, any::<bool>()).prop_map(|(n, input)| Step::ClearHalt(n, input)),
        1 => (1u8..=3, any::<bool>()).prop_map(|(n, input)| Step::SetHalt(n, input)),
        2 => (1u8..=3, any::<bool>()).prop_map(|(n, input)| Step::Status(n, input)),
        1 => Just(Step::Configure),
        1 => (0u16..100).prop_map(Step::Pause),
        1 => Just(Step::Pull),
        2 => Just(Step::Plug),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_bus_gives_the_same_account(
        high in any::<bool>(),
        steps in prop::collection::vec(step(), 1..24),
    ) {
        Program { high, steps }.check();
    }
}

#[test]
fn one_of_each_gives_the_same_account() {
    use Reply::{Glitch, Go, Nak, Park, Pending, Stall};
    for high in [false, true] {
        let steps = vec![
            Step::Put(100),
            Step::Get(64, 200),
            Step::Get(200, 64),
            Step::Refused(10),
            Step::Send(1, 3_000, vec![Nak, Park, Pending, Glitch, Go]),
            Step::Receive(1, 8, 3_000, vec![Pending, Go, Glitch, Go, Nak]),
            Step::Receive(2, 1, 512, vec![]),
            Step::Receive(2, 1, 10, vec![]),
            Step::Receive(2, 1, 10, vec![]),
            Step::Send(2, 2_000, vec![Go, Stall]),
            Step::Send(2, 10, vec![]),
            Step::Status(2, false),
            Step::ClearHalt(2, false),
            Step::Status(2, false),
            Step::Send(2, 10, vec![]),
            Step::Tell(64, vec![Nak]),
            Step::Poll(8, vec![Park]),
            Step::PollInVain,
            Step::Stream(vec![1, 188, 189, 1023]),
            Step::Hear(vec![1023, 189, 188, 1]),
            Step::SetHalt(3, true),
            Step::Poll(8, vec![]),
            Step::Configure,
            Step::Poll(8, vec![]),
            Step::Pull,
            Step::Send(1, 10, vec![]),
            Step::Plug,
            Step::Send(1, 10, vec![]),
        ];
        Program { high, steps }.check();
    }
}
