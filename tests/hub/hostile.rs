//! A host that says anything to a hub and its translators.

use proptest::prelude::*;
use vm_usb::devices::hub::{HubOptions, Translators};
use vm_usb::topology::Port;
use vm_usb::usb::{
    CompleteAnswer, CompleteSplit, Pid, SetupPacket, Speed, SplitPosition, SplitToken, StartSplit,
    Toggle, TransferType, request,
};

use crate::driver::host::HostDriver;
use crate::driver::hub::feature;
use crate::rig::{HUB, Rig, plug};

#[derive(Clone, Debug)]
enum Event {
    Start {
        token: SplitToken,
        position: SplitPosition,
        toggle: bool,
        data: Vec<u8>,
    },
    Complete(SplitToken),
    Request {
        kind: u8,
        code: u8,
        value: u16,
        index: u16,
    },
    Plug(usize, Speed),
    Pull(usize),
    Later(u64),
    /// The frame index is set to anything.
    Jump(u64),
    Bus(bool),
}

fn token() -> impl Strategy<Value = SplitToken> {
    let kind = prop::sample::select(vec![
        TransferType::Control,
        TransferType::Isochronous,
        TransferType::Bulk,
        TransferType::Interrupt,
    ]);
    let pid = prop::sample::select(vec![Pid::In, Pid::Out, Pid::Setup]);
    (0..5u8, any::<bool>(), kind, pid, 0..4u8, 0..5u8).prop_map(
        |(port, low_speed, transfer_type, pid, device, endpoint)| SplitToken {
            hub: HUB,
            port,
            low_speed,
            transfer_type,
            pid,
            device,
            endpoint,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    use SplitPosition::{All, Begin, End, Middle};
    let position = prop::sample::select(vec![All, Begin, Middle, End]);
    let speed = prop::sample::select(vec![Speed::Low, Speed::Full, Speed::High]);
    let data = prop::collection::vec(any::<u8>(), 0..200);
    let likely = prop::sample::select(vec![
        (0x23, request::SET_FEATURE, feature::RESET),
        (0x23, request::SET_FEATURE, feature::POWER),
        (0x23, request::SET_FEATURE, feature::SUSPEND),
        (0x23, request::CLEAR_FEATURE, feature::SUSPEND),
        (0x23, request::CLEAR_FEATURE, feature::POWER),
        (0x23, 8, 0),
        (0x23, 9, 0),
        (0xa3, request::GET_STATUS, 0),
        (0x00, request::SET_CONFIGURATION, 1),
        (0x01, request::SET_INTERFACE, 1),
    ]);
    let likely = (likely, 0..5u16).prop_map(|((kind, code, value), index)| Event::Request {
        kind,
        code,
        value,
        index,
    });
    prop_oneof![
        8 => (token(), position, any::<bool>(), data).prop_map(|(token, position, toggle, data)| {
            Event::Start { token, position, toggle, data }
        }),
        8 => token().prop_map(Event::Complete),
        4 => likely,
        1 => (any::<u8>(), any::<u8>(), any::<u16>(), any::<u16>())
            .prop_map(|(kind, code, value, index)| Event::Request { kind, code, value, index }),
        1 => (0..4usize, speed).prop_map(|(port, speed)| Event::Plug(port, speed)),
        1 => (0..4usize).prop_map(Event::Pull),
        4 => (0..10u64).prop_map(Event::Later),
        1 => any::<u64>().prop_map(Event::Jump),
        1 => any::<bool>().prop_map(Event::Bus),
    ]
}

fn apply(rig: &mut Rig, ports: &[Port], microframe: &mut u64, event: Event) {
    let now = rig.host.now;
    match event {
        Event::Start { token, position, toggle, data } => {
            let toggle = Toggle::from_bit(toggle);
            let (data, microframe) = (&*data, *microframe);
            let split = StartSplit { token, position, toggle, data, now, microframe };
            rig.host.link.with(|function| function.start_split(&split));
        }
        Event::Complete(token) => {
            let split = CompleteSplit { token, now, microframe: *microframe };
            let mut data = Vec::new();
            let answer =
                rig.host.link.with(|function| function.complete_split(&split, &mut data)).unwrap();
            match answer {
                Some(CompleteAnswer::Data { .. }) => assert!(data.len() <= 188, "{}", data.len()),
                _ => assert!(data.is_empty(), "{answer:?} with data"),
            }
        }
        Event::Request { kind, code, value, index } => {
            let length = if kind & 0x80 == 0 { 0 } else { 64 };
            let device = rig.hub.device;
            let _ =
                rig.host.control(&device, SetupPacket::new(kind, code, value, index, length), &[]);
        }
        Event::Plug(port, speed) => {
            if ports[port].detach().is_none() {
                plug(&ports[port], speed);
            }
        }
        Event::Pull(port) => drop(ports[port].detach()),
        Event::Later(microframes) => {
            *microframe = microframe.saturating_add(microframes);
            rig.host.now = now.after_micros(125 * microframes);
        }
        Event::Jump(to) => *microframe = to,
        Event::Bus(idle) => {
            use vm_usb::usb::Suspension::{Resumed, Suspended};
            rig.host.suspension(if idle { Suspended } else { Resumed });
            rig.host.link.take_remote_wakeup();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_hub_survives_it_and_remembers_a_bounded_amount(
        multiple: bool,
        events in prop::collection::vec(event(), 1..300),
    ) {
        let translators = if multiple { Translators::Multiple } else { Translators::Single };
        let options = HubOptions { ports: 4, translators, ..HubOptions::default() };
        let mut rig = Rig::new(Speed::High, options);
        let ports = rig.ports.clone();
        let mut microframe = 8000;
        for event in events {
            apply(&mut rig, &ports, &mut microframe, event);
        }
        let hub = rig.hub.device;
        for translator in 1..=4 {
            let mut ask = |kind, code| {
                let length = u16::from(kind >> 7) * 8;
                rig.host.control(&hub, SetupPacket::new(kind, code, 0, translator, length), &[])
            };
            // StopTT, GetTTState: what is taken of two buffers and sixteen places in the pipeline.
            let _ = ask(0x23, 11);
            if let Ok(state) = ask(0xa3, 10) {
                prop_assert!(state[0] <= 2 && state[1] <= 16, "{:?}", state);
            }
        }
        // Whatever the host has made of the hub, its address and configuration included, after a
        // reset it is as new.
        rig.host.reset_port(0);
        let found = crate::driver::enumerate::enumerate(&mut rig.host, 0, HUB).unwrap();
        crate::driver::hub::HubDriver::start(&mut rig.host, &found).unwrap();
        prop_assert_eq!(rig.status(1).0 & 0x100, 0x100);
    }
}
