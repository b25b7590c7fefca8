//! Both kinds of driver against a device with moods, in random order.

use proptest::prelude::*;
use vm_usb::ohci::Pacing;

use crate::model::{Habit, Model};
use crate::streams::{Act, byte};

#[derive(Clone, Debug)]
enum Step {
    Submit(usize, u32),
    SubmitAll(usize, Vec<u32>),
    Cancel(usize),
    Rebuild(usize),
    Act(usize, Act),
    Announce(usize),
    Run(u64),
    ResetPort,
    ResetController,
}

fn step() -> impl Strategy<Value = Step> {
    let endpoint = 0..6usize;
    let act = prop_oneof![
        (0..4usize).prop_map(Act::Park),
        (0..4usize).prop_map(Act::Nak),
        Just(Act::Pend),
        (0..200usize).prop_map(Act::Short),
    ];
    prop_oneof![
        6 => (endpoint.clone(), 1..700u32).prop_map(|(n, len)| Step::Submit(n, len)),
        3 => (endpoint.clone(), prop::collection::vec(1..400u32, 2..5))
            .prop_map(|(n, lens)| Step::SubmitAll(n, lens)),
        1 => endpoint.clone().prop_map(Step::Cancel),
        1 => endpoint.clone().prop_map(Step::Rebuild),
        3 => (endpoint.clone(), act).prop_map(|(n, act)| Step::Act(n, act)),
        2 => endpoint.prop_map(Step::Announce),
        4 => (0..3000u64).prop_map(Step::Run),
        1 => (0..600_000u64).prop_map(Step::Run),
        1 => prop_oneof![Just(Step::ResetPort), Just(Step::ResetController)],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_byte_is_lost_or_repeated_and_no_memory_touched_that_was_taken_back(
        pacing in prop::sample::select(vec![Pacing::RealTime, Pacing::Eager, Pacing::Wire]),
        habit in prop::sample::select(vec![Habit::UnlinkAtOnce, Habit::LeaveLinked]),
        before_wrap in prop::option::of(1..1000u16),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut model = Model::new(pacing, habit, false);
        if let Some(frames) = before_wrap {
            model.begin_before_wrap(frames);
        }
        for step in steps {
            match step {
                Step::Submit(n, len) => model.submit(n, len),
                Step::SubmitAll(n, lens) => model.submit_all(n, &lens),
                Step::ResetPort => model.reset_port(),
                Step::ResetController => model.reset_controller(),
                Step::Cancel(n) => model.cancel(n),
                Step::Rebuild(n) => model.rebuild(n),
                Step::Act(n, act) => model.device.act(model.address(n), act),
                Step::Announce(n) => model.device.announce(model.address(n)),
                Step::Run(micros) => model.run_micros(micros),
            }
        }
        // In the end the device has nothing against going on, and says so once.
        model.device.forget_acts();
        for n in 0..model.count() {
            model.device.announce(model.address(n));
        }
        let until = model.rig.m.now.after_millis(500);
        prop_assert!(model.run(until, Model::all_idle), "a wake-up was lost");
        model.run_micros(3000);
        model.assert_memory_intact();
        for n in 0..model.count() {
            let address = model.address(n);
            let moved = model.moved(n);
            for (at, got) in moved.iter().enumerate() {
                prop_assert_eq!(*got, byte(address, at), "{:?}, byte {}", address, at);
            }
            if address.is_in() {
                prop_assert_eq!(moved.len(), model.device.given(address));
            } else {
                prop_assert_eq!(moved, &model.device.taken(address)[..]);
            }
        }
    }
}
