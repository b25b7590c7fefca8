//! The registers and memory structures of the EHCI specification, as typed bit-fields.
//!
//! Nothing here acts: this is chapters 2 and 3 of the specification in Rust.

use bitfield_struct::bitfield;
use serde::{Deserialize, Serialize};

/// CAPLENGTH: where the operational registers begin (EHCI 2.2.1).
pub(super) const CAPLENGTH: u64 = 0x20;
/// HCIVERSION (EHCI 2.2.2): 1.0, and 1.1 with the addendum.
pub(super) const HCIVERSION: u16 = 0x0100;
pub(super) const HCIVERSION_ADDENDUM: u16 = 0x0110;

/// Offsets in the register window (EHCI 2.2, 2.3).
pub(super) mod offset {
    use super::CAPLENGTH;

    pub(in super::super) const CAPLENGTH_HCIVERSION: u64 = 0x00;
    pub(in super::super) const HCSPARAMS: u64 = 0x04;
    pub(in super::super) const HCCPARAMS: u64 = 0x08;
    pub(in super::super) const USBCMD: u64 = CAPLENGTH;
    pub(in super::super) const USBSTS: u64 = CAPLENGTH + 0x04;
    pub(in super::super) const USBINTR: u64 = CAPLENGTH + 0x08;
    pub(in super::super) const FRINDEX: u64 = CAPLENGTH + 0x0c;
    pub(in super::super) const CTRLDSSEGMENT: u64 = CAPLENGTH + 0x10;
    pub(in super::super) const PERIODICLISTBASE: u64 = CAPLENGTH + 0x14;
    pub(in super::super) const ASYNCLISTADDR: u64 = CAPLENGTH + 0x18;
    pub(in super::super) const CONFIGFLAG: u64 = CAPLENGTH + 0x40;
    pub(in super::super) const PORTSC: u64 = CAPLENGTH + 0x44;
    /// The debug port's registers: right behind the last PORTSC there can be (EHCI C.3).
    pub(in super::super) const DEBUG: u64 = 0xa0;
}

/// Offsets of the debug port's registers from the first (EHCI C.3).
pub(super) mod debug {
    pub(in super::super) const CONTROL: u64 = 0x00;
    pub(in super::super) const PIDS: u64 = 0x04;
    pub(in super::super) const DATA: u64 = 0x08;
    pub(in super::super) const DATA_HIGH: u64 = 0x0c;
    pub(in super::super) const ADDRESS: u64 = 0x10;
    /// Bytes of all of them.
    pub(in super::super) const SIZE: u64 = 0x14;
}

/// HCSPARAMS (EHCI 2.2.3).
#[bitfield(u32)]
pub(super) struct HcsParams {
    #[bits(4)]
    pub n_ports: u8,
    pub port_power_control: bool,
    #[bits(2)]
    __: u8,
    pub port_routing_rules: bool,
    #[bits(4)]
    pub ports_per_companion: u8,
    #[bits(4)]
    pub companions: u8,
    pub port_indicators: bool,
    #[bits(3)]
    __: u8,
    #[bits(4)]
    pub debug_port: u8,
    #[bits(8)]
    __: u8,
}

/// HCCPARAMS (EHCI 2.2.4).
#[bitfield(u32)]
pub(super) struct HccParams {
    pub addressing_64bit: bool,
    pub programmable_frame_list: bool,
    pub asynchronous_park: bool,
    __: bool,
    #[bits(4)]
    pub isochronous_scheduling_threshold: u8,
    #[bits(8)]
    pub eecp: u8,
    pub hardware_prefetch: bool,
    pub link_power_management: bool,
    pub per_port_change: bool,
    pub short_frame_list: bool,
    #[bits(12)]
    __: u16,
}

/// USBCMD (EHCI 2.3.1). LHCRST reads 0: it is not implemented.
#[bitfield(u32)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct UsbCmd {
    pub run: bool,
    pub host_controller_reset: bool,
    #[bits(2)]
    pub frame_list_size: u8,
    pub periodic_enable: bool,
    pub asynchronous_enable: bool,
    pub doorbell: bool,
    __: bool,
    #[bits(2)]
    pub park_count: u8,
    __: bool,
    pub park_enable: bool,
    /// Prefetch enables: there is nothing to fetch ahead here, so they are storage.
    #[bits(3)]
    pub prefetch: u8,
    /// PPCEE (EHCI 1.1): USBSTS and USBINTR 31:16 are in use.
    pub per_port_change_enable: bool,
    #[bits(8)]
    pub interrupt_threshold: u8,
    /// HIRD (EHCI 1.1): how long resume from L1 is signalled.
    #[bits(4)]
    pub resume_duration: u8,
    #[bits(4)]
    __: u8,
}

impl UsbCmd {
    /// Value after reset: threshold of 8 microframes, park mode on with a count of 3.
    pub(super) fn at_reset() -> Self {
        Self::new().with_interrupt_threshold(8).with_park_enable(true).with_park_count(3)
    }

    /// The bits a write stores as they are, without and with the addendum.
    pub(super) const WRITABLE: u32 = 0x00ff_0b3d;
    pub(super) const WRITABLE_ADDENDUM: u32 = Self::WRITABLE | 0x0f00_f000;

    /// Bit of the count of microframes whose change is a rollover (EHCI 2.3.4): 10 bits of index and 3
    /// of microframes for 1,024 frames. The last code is that of the addendum's list of 32.
    pub(super) fn rollover_bit(self) -> u32 {
        match self.frame_list_size() {
            0 => 13,
            1 => 12,
            2 => 11,
            _ => 8,
        }
    }

    /// Entries in the frame list.
    pub(super) fn frame_list_entries(self) -> u32 {
        1u32.wrapping_shl(self.rollover_bit().saturating_sub(3))
    }

    /// How many transactions in a row a queue head is allowed by park mode (EHCI 4.10.3.2). A count of
    /// 0 is undefined and means 1 here.
    pub(super) fn parked(self) -> u32 {
        if self.park_enable() { self.park_count().max(1).into() } else { 1 }
    }
}

/// USBSTS (EHCI 2.3.2). Bits 5:0 are events, with their enables at the same places in USBINTR.
pub(super) mod usbsts {
    pub(in super::super) const USBINT: u32 = 1;
    pub(in super::super) const USBERRINT: u32 = 1 << 1;
    pub(in super::super) const PORT_CHANGE: u32 = 1 << 2;
    pub(in super::super) const FRAME_LIST_ROLLOVER: u32 = 1 << 3;
    pub(in super::super) const HOST_SYSTEM_ERROR: u32 = 1 << 4;
    pub(in super::super) const ASYNC_ADVANCE: u32 = 1 << 5;
    pub(in super::super) const EVENTS: u32 = 0x3f;
    /// Where the bit of port 1 is (EHCI 1.1).
    pub(in super::super) const FIRST_PORT: u32 = 16;
    pub(in super::super) const HC_HALTED: u32 = 1 << 12;
    pub(in super::super) const RECLAMATION: u32 = 1 << 13;
    pub(in super::super) const PERIODIC_STATUS: u32 = 1 << 14;
    pub(in super::super) const ASYNCHRONOUS_STATUS: u32 = 1 << 15;
}

/// PORTSC (EHCI 2.3.9).
#[bitfield(u32)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct PortSc {
    pub current_connect: bool,
    pub connect_change: bool,
    pub enabled: bool,
    pub enable_change: bool,
    pub over_current: bool,
    pub over_current_change: bool,
    pub force_resume: bool,
    pub suspend: bool,
    pub reset: bool,
    /// Suspend means L1 (EHCI 1.1).
    pub suspend_using_l1: bool,
    #[bits(2)]
    pub line_status: u8,
    pub power: bool,
    pub owner: bool,
    #[bits(2)]
    __: u8,
    #[bits(4)]
    pub test: u8,
    pub wake_on_connect: bool,
    pub wake_on_disconnect: bool,
    pub wake_on_over_current: bool,
    /// What the device said to the last request to sleep (EHCI 1.1).
    #[bits(2)]
    pub suspend_status: u8,
    /// Whom such a request is addressed to (EHCI 1.1).
    #[bits(7)]
    pub device_address: u8,
}

/// Values of PORTSC's test field that this model acts on (EHCI 4.14).
pub(super) mod test_mode {
    /// Test_J_State, Test_K_State, Test_SE0_NAK, Test_Packet: the port sends a pattern and nothing else.
    pub(in super::super) const SIGNALS: std::ops::RangeInclusive<u8> = 1..=4;
    pub(in super::super) const FORCE_ENABLE: u8 = 5;
}

impl PortSc {
    /// The write-1-to-clear bits.
    pub(super) const CHANGES: u32 = 1 << 1 | 1 << 3 | 1 << 5;
    /// LS: differential 1, a full- or high-speed device.
    pub(super) const LINE_J: u8 = 0b10;
    /// LS: differential 0, a low-speed device.
    pub(super) const LINE_K: u8 = 0b01;
}

/// Debug port control and status (EHCI C.3.1).
#[bitfield(u32)]
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct DebugControl {
    #[bits(4)]
    pub len: u8,
    pub write: bool,
    pub go: bool,
    pub error: bool,
    #[bits(3)]
    pub exception: u8,
    pub in_use: bool,
    #[bits(5)]
    __: u8,
    pub done: bool,
    #[bits(11)]
    __: u16,
    pub enabled: bool,
    __: bool,
    pub owner: bool,
    __: bool,
}

/// Debug port PIDs (EHCI C.3.3).
#[bitfield(u32)]
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct DebugPids {
    pub token: u8,
    pub data: u8,
    pub received: u8,
    __: u8,
}

impl DebugPids {
    /// The bits a write stores; the PID received is the controller's.
    pub(super) const WRITABLE: u32 = 0xffff;
}

/// Debug port device address (EHCI C.3.5). Bits 7:4 are ignored: software stores an endpoint's
/// address there as its descriptor has it.
#[bitfield(u32)]
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct DebugAddress {
    #[bits(4)]
    pub endpoint: u8,
    #[bits(4)]
    __: u8,
    #[bits(7)]
    pub device: u8,
    #[bits(17)]
    __: u32,
}

impl DebugAddress {
    /// The bits a write stores.
    pub(super) const WRITABLE: u32 = 0x7f0f;
}

/// Packet identifiers with their check bits (USB 2.0, 8.3.1).
pub(super) mod pid {
    pub(in super::super) const OUT: u8 = 0xe1;
    pub(in super::super) const IN: u8 = 0x69;
    pub(in super::super) const SETUP: u8 = 0x2d;
    pub(in super::super) const DATA0: u8 = 0xc3;
    pub(in super::super) const DATA1: u8 = 0x4b;
    pub(in super::super) const ACK: u8 = 0xd2;
    pub(in super::super) const NAK: u8 = 0x5a;
    pub(in super::super) const STALL: u8 = 0x1e;
}

/// What a link pointer leads to (EHCI 3.1, Typ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    IsochronousTd,
    QueueHead,
    SplitIsochronousTd,
    SpanNode,
}

/// A link pointer: frame list entry, or first dword of QH, iTD, siTD and FSTN (EHCI 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(pub u32);

impl Link {
    pub(super) const fn terminates(self) -> bool {
        self.0 & 1 != 0
    }

    pub(super) const fn address(self) -> u32 {
        self.0 & !0x1f
    }

    pub(super) const fn element(self) -> Element {
        match self.0 >> 1 & 3 {
            0 => Element::IsochronousTd,
            1 => Element::QueueHead,
            2 => Element::SplitIsochronousTd,
            _ => Element::SpanNode,
        }
    }
}

/// Endpoint speeds (EHCI 3.6.2, EPS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointSpeed {
    Full,
    Low,
    High,
    Reserved,
}

impl EndpointSpeed {
    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Full,
            1 => Self::Low,
            2 => Self::High,
            _ => Self::Reserved,
        }
    }

    const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// QH dword 1, endpoint characteristics (EHCI 3.6.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub(super) struct Characteristics {
    #[bits(7)]
    pub address: u8,
    pub inactivate: bool,
    #[bits(4)]
    pub endpoint: u8,
    #[bits(2)]
    pub speed: EndpointSpeed,
    /// DTC: the toggle comes from each qTD.
    pub toggle_from_qtd: bool,
    pub head: bool,
    #[bits(11)]
    pub max_packet: u16,
    pub control_endpoint: bool,
    #[bits(4)]
    pub nak_reload: u8,
}

/// QH dword 2, endpoint capabilities (EHCI 3.6.2).
#[bitfield(u32)]
pub(super) struct Capabilities {
    #[bits(8)]
    pub s_mask: u8,
    #[bits(8)]
    pub c_mask: u8,
    #[bits(7)]
    pub hub_address: u8,
    #[bits(7)]
    pub port: u8,
    #[bits(2)]
    pub mult: u8,
}

/// PID codes of a token (EHCI 3.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenPid {
    Out,
    In,
    Setup,
    Reserved,
}

impl TokenPid {
    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Out,
            1 => Self::In,
            2 => Self::Setup,
            _ => Self::Reserved,
        }
    }

    const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// The token of a qTD and of the overlay (EHCI 3.5.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub(super) struct Token {
    /// P for high speed (1: PING first), ERR for the others.
    pub ping: bool,
    pub split_complete: bool,
    pub missed_microframe: bool,
    pub transaction_error: bool,
    pub babble: bool,
    pub data_buffer_error: bool,
    pub halted: bool,
    pub active: bool,
    #[bits(2)]
    pub pid: TokenPid,
    #[bits(2)]
    pub cerr: u8,
    #[bits(3)]
    pub c_page: u8,
    pub ioc: bool,
    #[bits(15)]
    pub total: u16,
    pub toggle: bool,
}

/// Offsets of a QH's dwords (EHCI 3.6).
pub(super) mod qh {
    pub(in super::super) const LINK: u32 = 0x00;
    pub(in super::super) const ALTERNATE: u32 = 0x14;
    pub(in super::super) const TOKEN: u32 = 0x18;
    pub(in super::super) const BUFFERS: u32 = 0x1c;
    pub(in super::super) const BUFFERS_HIGH: u32 = 0x30;
    /// Index of Current and of the token among the dwords.
    pub(in super::super) const CURRENT_INDEX: usize = 3;
    pub(in super::super) const TOKEN_INDEX: usize = 6;
}

/// Offsets of a qTD's dwords (EHCI 3.5).
pub(super) mod qtd {
    pub(in super::super) const TOKEN: u32 = 0x08;
    /// Index of the token among the dwords.
    pub(in super::super) const TOKEN_INDEX: usize = 2;
}

/// The low part of the overlay's page 1 (EHCI 3.6.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub(super) struct SplitProgress {
    /// C-prog-mask: complete-splits that were sent.
    pub c_prog_mask: u8,
    #[bits(24)]
    _page: u32,
}

/// The low part of the overlay's page 2 (EHCI 3.6.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub(super) struct SplitTag {
    /// FrameTag: the frame in which the next complete-split is expected.
    #[bits(5)]
    pub frame: u8,
    /// S-bytes: bytes of the packet received so far.
    #[bits(7)]
    pub bytes: u8,
    #[bits(20)]
    _page: u32,
}

/// siTD dword 1 (EHCI 3.4.2).
#[bitfield(u32)]
pub(super) struct SiTdEndpoint {
    #[bits(7)]
    pub address: u8,
    __: bool,
    #[bits(4)]
    pub endpoint: u8,
    #[bits(4)]
    __: u8,
    #[bits(7)]
    pub hub_address: u8,
    __: bool,
    #[bits(7)]
    pub port: u8,
    pub direction_in: bool,
}

/// siTD dword 2 (EHCI 3.4.2).
#[bitfield(u32)]
pub(super) struct SiTdMasks {
    pub s_mask: u8,
    pub c_mask: u8,
    #[bits(16)]
    __: u16,
}

/// siTD dword 3 (EHCI 3.4.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub(super) struct SiTdState {
    __: bool,
    pub split_complete: bool,
    pub missed_microframe: bool,
    pub transaction_error: bool,
    pub babble: bool,
    pub data_buffer_error: bool,
    /// ERR: the translator says that the transaction failed.
    pub error: bool,
    pub active: bool,
    pub c_prog_mask: u8,
    #[bits(10)]
    pub total: u16,
    #[bits(4)]
    __: u8,
    pub second_page: bool,
    pub ioc: bool,
}

/// siTD dword 5 (EHCI 3.4.4).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub(super) struct SiTdPosition {
    #[bits(3)]
    pub count: u8,
    #[bits(2)]
    pub position: u8,
    #[bits(7)]
    __: u8,
    #[bits(20)]
    pub page: u32,
}

/// Offsets of a siTD's dwords (EHCI 3.4).
pub(super) mod sitd {
    pub(in super::super) const ENDPOINT: u32 = 0x04;
    pub(in super::super) const STATE: u32 = 0x0c;
    pub(in super::super) const BUFFER: u32 = 0x10;
    pub(in super::super) const POSITION: u32 = 0x14;
    pub(in super::super) const BUFFERS_HIGH: u32 = 0x1c;
}

/// One transaction of an iTD (EHCI 3.3.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub(super) struct Transaction {
    #[bits(12)]
    pub offset: u16,
    #[bits(3)]
    pub page: u8,
    pub ioc: bool,
    #[bits(12)]
    pub length: u16,
    pub transaction_error: bool,
    pub babble: bool,
    pub data_buffer_error: bool,
    pub active: bool,
}

/// Offsets of an iTD's dwords (EHCI 3.3).
pub(super) mod itd {
    pub(in super::super) const TRANSACTIONS: u32 = 0x04;
    pub(in super::super) const BUFFERS: u32 = 0x24;
    pub(in super::super) const BUFFERS_HIGH: u32 = 0x40;
}

/// Microframes in a frame.
pub(super) const MICROFRAMES: u64 = 8;
/// Length of a microframe in nanoseconds.
pub(super) const MICROFRAME_NANOS: u64 = 125_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_fields_lie_where_the_specification_puts_them() {
        assert_eq!(u32::from(UsbCmd::at_reset()), 0x0008_0b00);
        let token = Token::from(0x8123_4567);
        assert!(token.toggle());
        assert_eq!(token.total(), 0x123);
        assert_eq!((token.c_page(), token.cerr(), token.pid()), (4, 1, TokenPid::In));
        assert!(token.halted() && token.data_buffer_error() && !token.active());
        let qh = Characteristics::from(0x4200_e103);
        assert_eq!((qh.nak_reload(), qh.max_packet()), (4, 512));
        assert!(qh.head() && qh.toggle_from_qtd());
        assert_eq!((qh.speed(), qh.endpoint(), qh.address()), (EndpointSpeed::High, 1, 3));
        assert_eq!(u32::from(PortSc::new().with_power(true).with_owner(true)), 0x3000);
        let slot = Transaction::from(0x8c00_a123);
        assert!(slot.active() && slot.ioc());
        assert_eq!((slot.length(), slot.page(), slot.offset()), (0xc00, 2, 0x123));
        assert_eq!(Link(0x1234_5662).element(), Element::QueueHead);
        assert_eq!(Link(0x1234_5662).address(), 0x1234_5660);
    }
}
