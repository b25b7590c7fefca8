//! Whatever tokens a host sends to a device, the answers keep to the rules of the bus.

#[path = "driver/mod.rs"]
mod driver;

use proptest::prelude::*;
use vm_usb::usb::{Pid, Speed};

use driver::tokens::{Event, Kind, Rig};

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Disk),
        Just(Kind::ReadOnlyDisk),
        Just(Kind::Keyboard),
        Just(Kind::Tablet),
        Just(Kind::Loopback),
        Just(Kind::Hub),
        Just(Kind::Printer),
        any::<u64>().prop_map(Kind::BadDay),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let pid = prop::sample::select(vec![Pid::In, Pid::Out, Pid::Setup]);
    let packet = prop_oneof![prop::sample::select(vec![0u16, 1, 8, 64, 512]), 0..2048u16];
    let bytes = || prop::collection::vec(any::<u8>(), 0..1500);
    // Requests with fields that mean something, often enough.
    let setup = (
        prop::sample::select(vec![
            0x00u8, 0x01, 0x02, 0x20, 0x21, 0x23, 0x40, 0x80, 0x81, 0x82, 0xa0, 0xa1, 0xa3, 0xc0,
        ]),
        prop_oneof![0..13u8, prop::sample::select(vec![0x5b, 0x5c, 0xfe, 0xff]), any::<u8>()],
        prop_oneof![0..4u16, (0..8u16).prop_map(|kind| kind << 8), any::<u16>()],
        prop_oneof![0..3u16, 0x80..0x84u16, any::<u16>()],
        prop_oneof![0..70u16, any::<u16>()],
    )
        .prop_map(|(kind, code, value, index, length)| {
            let ([v0, v1], [i0, i1]) = (value.to_le_bytes(), index.to_le_bytes());
            let [l0, l1] = length.to_le_bytes();
            Event::Setup([kind, code, v0, v1, i0, i1, l0, l1])
        });
    prop_oneof![
        3 => (pid, 0..16u8, packet, any::<bool>(), bytes()).prop_map(
            |(pid, endpoint, max_packet, toggle, bytes)| {
                Event::Token { pid, endpoint, max_packet, toggle, bytes }
            }
        ),
        8 => (any::<bool>(), 1..7u8, 0..2100usize, prop::bool::weighted(0.9))
            .prop_map(|(input, number, len, in_step)| Event::Likely { input, number, len, in_step }),
        1 => (any::<bool>(), 1..7u8, 0..2100usize)
            .prop_map(|(input, number, len)| Event::Isochronous { input, number, len }),
        4 => setup,
        1 => (0..4u8).prop_map(Event::Configure),
        1 => (0..16u8).prop_map(Event::Cancel),
        1 => any::<bool>().prop_map(Event::Suspend),
        1 => Just(Event::Reset),
        1 => (0..600_000_000u64).prop_map(Event::Later),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(key, down)| Event::Type(key, down)),
        2 => (any::<u16>(), any::<u16>(), any::<i8>()).prop_map(|(x, y, up)| Event::Point(x, y, up)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn answers_keep_to_the_rules(
        kind in kind(),
        high in any::<bool>(),
        configuration in 1..4u8,
        events in prop::collection::vec(event(), 1..80),
    ) {
        let mut rig = Rig::new(kind, if high { Speed::High } else { Speed::Full });
        rig.play(Event::Reset);
        rig.play(Event::Configure(configuration));
        for event in events {
            rig.play(event);
        }
        rig.assert_enumerates();
    }
}
