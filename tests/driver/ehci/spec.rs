//! The registers and words of structures, by the names of the specification (EHCI 2, 3).

/// Offsets of the operational registers, with CAPLENGTH as this driver expects it.
pub mod reg {
    pub const USBCMD: u64 = 0x20;
    pub const USBSTS: u64 = 0x24;
    pub const USBINTR: u64 = 0x28;
    pub const FRINDEX: u64 = 0x2c;
    pub const CTRLDSSEGMENT: u64 = 0x30;
    pub const PERIODICLISTBASE: u64 = 0x34;
    pub const ASYNCLISTADDR: u64 = 0x38;
    pub const CONFIGFLAG: u64 = 0x60;
    pub const PORTSC: u64 = 0x64;
}

pub mod cmd {
    pub const RUN: u32 = 1;
    pub const RESET: u32 = 1 << 1;
    pub const PERIODIC: u32 = 1 << 4;
    pub const ASYNCHRONOUS: u32 = 1 << 5;
    pub const DOORBELL: u32 = 1 << 6;
    /// A threshold of one microframe.
    pub const ITC_1: u32 = 1 << 16;
}

pub mod sts {
    pub const INT: u32 = 1;
    pub const ERROR: u32 = 1 << 1;
    pub const PORT: u32 = 1 << 2;
    pub const ROLLOVER: u32 = 1 << 3;
    pub const SYSTEM_ERROR: u32 = 1 << 4;
    pub const ADVANCE: u32 = 1 << 5;
    pub const HALTED: u32 = 1 << 12;
    pub const RECLAMATION: u32 = 1 << 13;
    pub const PERIODIC: u32 = 1 << 14;
    pub const ASYNCHRONOUS: u32 = 1 << 15;
}

pub mod port {
    pub const CONNECT: u32 = 1;
    pub const CONNECT_CHANGE: u32 = 1 << 1;
    pub const ENABLED: u32 = 1 << 2;
    pub const ENABLE_CHANGE: u32 = 1 << 3;
    pub const OVER_CURRENT: u32 = 1 << 4;
    pub const OVER_CURRENT_CHANGE: u32 = 1 << 5;
    pub const RESUME: u32 = 1 << 6;
    pub const SUSPEND: u32 = 1 << 7;
    pub const RESET: u32 = 1 << 8;
    pub const LINE: u32 = 3 << 10;
    pub const LINE_J: u32 = 2 << 10;
    pub const LINE_K: u32 = 1 << 10;
    pub const POWER: u32 = 1 << 12;
    pub const OWNER: u32 = 1 << 13;
    pub const CHANGES: u32 = CONNECT_CHANGE | ENABLE_CHANGE | OVER_CURRENT_CHANGE;
}

pub mod token {
    pub const PING: u32 = 1;
    pub const MISSED: u32 = 1 << 2;
    pub const ERROR: u32 = 1 << 3;
    pub const BABBLE: u32 = 1 << 4;
    pub const BUFFER_ERROR: u32 = 1 << 5;
    pub const HALTED: u32 = 1 << 6;
    pub const ACTIVE: u32 = 1 << 7;
    pub const OUT: u32 = 0;
    pub const IN: u32 = 1 << 8;
    pub const SETUP: u32 = 2 << 8;
    pub const CERR_3: u32 = 3 << 10;
    pub const IOC: u32 = 1 << 15;
    pub const TOGGLE: u32 = 1 << 31;

    pub fn total(token: u32) -> u32 {
        token >> 16 & 0x7fff
    }

    pub fn cerr(token: u32) -> u32 {
        token >> 10 & 3
    }

    pub fn c_page(token: u32) -> u32 {
        token >> 12 & 7
    }
}

/// "No pointer": bit 0 of a link or qTD pointer.
pub const TERMINATE: u32 = 1;
/// Typ of a link to a queue head.
pub const QUEUE_HEAD: u32 = 1 << 1;
/// QH dword 1: head of the reclamation list.
pub const HEAD: u32 = 1 << 15;
/// QH dword 1: the toggle comes from each qTD.
pub const DTC: u32 = 1 << 14;
/// QH dword 1: a high-speed endpoint.
pub const HIGH_SPEED: u32 = 2 << 12;
/// QH dword 1: a low-speed endpoint; full speed is 0.
pub const LOW_SPEED: u32 = 1 << 12;
/// QH dword 1: a full- or low-speed control endpoint.
pub const CONTROL: u32 = 1 << 27;
