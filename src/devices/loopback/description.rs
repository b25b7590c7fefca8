//! Configurations and endpoints, those of Linux's "Gadget Zero".

use crate::usb::{
    Configuration, Description, Endpoint, EndpointAddress, Interface, Speed, Speeds, TransferType,
};

/// Value of the configuration that sources and sinks.
pub(super) const SOURCE_SINK: u8 = 3;
/// Value of the configuration that echoes.
pub(super) const LOOPBACK: u8 = 2;

pub(super) const BULK_IN: EndpointAddress = EndpointAddress::r#in(1);
pub(super) const BULK_OUT: EndpointAddress = EndpointAddress::out(2);
pub(super) const ISOCHRONOUS_IN: EndpointAddress = EndpointAddress::r#in(3);
pub(super) const ISOCHRONOUS_OUT: EndpointAddress = EndpointAddress::out(4);
pub(super) const INTERRUPT_IN: EndpointAddress = EndpointAddress::r#in(5);
pub(super) const INTERRUPT_OUT: EndpointAddress = EndpointAddress::out(6);

/// Size and rate of the isochronous pair: `isoc_maxpacket=`, `isoc_mult=` and `isoc_interval=` of `g_zero`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isochronous {
    packet: u16,
    packets: u8,
    interval: u8,
}

impl Isochronous {
    /// Up to `packets` packets (1 to 3) of `packet` bytes (1 to 1024) every 2^(`interval` - 1)
    /// microframes (1 to 16), as bInterval has it. At full speed these are frames, and there is one
    /// packet of at most 1023 bytes. `None` if a value is not in its range.
    ///
    /// `Isochronous::new(1024, 3, 1)` is the most there is, 24 MB/s: that of a camera.
    pub fn new(packet: u16, packets: u8, interval: u8) -> Option<Self> {
        let valid = (1..=1024).contains(&packet)
            && (1..=3).contains(&packets)
            && (1..=16).contains(&interval);
        valid.then_some(Self { packet, packets, interval })
    }

    /// wMaxPacketSize.
    fn max_packet(self, speed: Speed) -> u16 {
        match speed {
            Speed::High => self.packet | u16::from(self.packets.saturating_sub(1)) << 11,
            _ => self.packet.min(1023),
        }
    }
}

impl Default for Isochronous {
    /// One packet of the largest size every millisecond, at full speed every eighth: two endpoints of
    /// 1023 bytes do not fit one frame.
    fn default() -> Self {
        Self { packet: 1024, packets: 1, interval: 4 }
    }
}

pub(super) fn description(isochronous: Isochronous) -> Description {
    Description {
        vendor: 0x0525,
        product: 0xa4a0,
        release: 0x0100,
        class: [0xff, 0, 0],
        control_packet: 64,
        manufacturer: "vm-usb".into(),
        name: "Gadget Zero".into(),
        serial: "0123456789.0123456789.0123456789".into(),
        speeds: Speeds::High {
            high: configurations(Speed::High, isochronous),
            full: configurations(Speed::Full, isochronous),
        },
    }
}

fn configurations(speed: Speed, isochronous: Isochronous) -> Vec<Configuration> {
    // An interrupt pair moves a packet every millisecond.
    let (bulk, interrupt_interval) = match speed {
        Speed::High => (512, 4),
        _ => (64, 1),
    };
    let bulk = [
        Endpoint::new(BULK_IN, TransferType::Bulk, bulk, 0),
        Endpoint::new(BULK_OUT, TransferType::Bulk, bulk, 0),
    ];
    let (max_packet, interval) = (isochronous.max_packet(speed), isochronous.interval);
    let isochronous = [ISOCHRONOUS_IN, ISOCHRONOUS_OUT]
        .map(|address| Endpoint::new(address, TransferType::Isochronous, max_packet, interval));
    let interrupt = [INTERRUPT_IN, INTERRUPT_OUT]
        .map(|address| Endpoint::new(address, TransferType::Interrupt, 64, interrupt_interval));
    let interface = |alternate, name: &str, more: &[Endpoint]| Interface {
        alternate,
        class: [0xff, 0, 0],
        name: name.into(),
        endpoints: [&bulk[..], more].concat(),
        ..Interface::default()
    };
    let configuration = |value, interfaces| Configuration {
        value,
        self_powered: true,
        remote_wakeup: false,
        max_power: 0,
        interfaces,
    };
    let source_sink = "source and sink data";
    vec![
        configuration(
            SOURCE_SINK,
            vec![
                interface(0, source_sink, &[]),
                interface(1, source_sink, &isochronous),
                interface(2, source_sink, &interrupt),
            ],
        ),
        configuration(LOOPBACK, vec![interface(0, "loop input to output", &[])]),
    ]
}
