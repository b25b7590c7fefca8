//! The registers and words of structures, by the names of the specification (OHCI 4, 7).

/// Register offsets.
pub mod reg {
    pub const REVISION: u64 = 0x00;
    pub const CONTROL: u64 = 0x04;
    pub const COMMAND_STATUS: u64 = 0x08;
    pub const INTERRUPT_STATUS: u64 = 0x0c;
    pub const INTERRUPT_ENABLE: u64 = 0x10;
    pub const INTERRUPT_DISABLE: u64 = 0x14;
    pub const HCCA: u64 = 0x18;
    pub const PERIOD_CURRENT_ED: u64 = 0x1c;
    pub const CONTROL_HEAD_ED: u64 = 0x20;
    pub const CONTROL_CURRENT_ED: u64 = 0x24;
    pub const BULK_HEAD_ED: u64 = 0x28;
    pub const BULK_CURRENT_ED: u64 = 0x2c;
    pub const DONE_HEAD: u64 = 0x30;
    pub const FM_INTERVAL: u64 = 0x34;
    pub const FM_REMAINING: u64 = 0x38;
    pub const FM_NUMBER: u64 = 0x3c;
    pub const PERIODIC_START: u64 = 0x40;
    pub const LS_THRESHOLD: u64 = 0x44;
    pub const RH_DESCRIPTOR_A: u64 = 0x48;
    pub const RH_DESCRIPTOR_B: u64 = 0x4c;
    pub const RH_STATUS: u64 = 0x50;
    /// Port 1; the others follow.
    pub const RH_PORT_STATUS: u64 = 0x54;
}

/// HcControl.
pub mod control {
    pub const CBSR_3: u32 = 3;
    pub const PLE: u32 = 1 << 2;
    pub const IE: u32 = 1 << 3;
    pub const CLE: u32 = 1 << 4;
    pub const BLE: u32 = 1 << 5;
    pub const RESET: u32 = 0 << 6;
    pub const RESUME: u32 = 1 << 6;
    pub const OPERATIONAL: u32 = 2 << 6;
    pub const SUSPEND: u32 = 3 << 6;
    pub const HCFS: u32 = 3 << 6;
    pub const IR: u32 = 1 << 8;
    pub const RWC: u32 = 1 << 9;
    pub const RWE: u32 = 1 << 10;
}

/// HcCommandStatus.
pub mod command {
    pub const HCR: u32 = 1 << 0;
    pub const CLF: u32 = 1 << 1;
    pub const BLF: u32 = 1 << 2;
    pub const OCR: u32 = 1 << 3;
    pub const SOC: u32 = 3 << 16;
}

/// The interrupt registers.
pub mod int {
    pub const SO: u32 = 1 << 0;
    pub const WDH: u32 = 1 << 1;
    pub const SF: u32 = 1 << 2;
    pub const RD: u32 = 1 << 3;
    pub const UE: u32 = 1 << 4;
    pub const FNO: u32 = 1 << 5;
    pub const RHSC: u32 = 1 << 6;
    pub const OC: u32 = 1 << 30;
    pub const MIE: u32 = 1 << 31;
}

/// HcRhPortStatus.
pub mod port {
    pub const CCS: u32 = 1 << 0;
    pub const PES: u32 = 1 << 1;
    pub const PSS: u32 = 1 << 2;
    pub const POCI: u32 = 1 << 3;
    pub const PRS: u32 = 1 << 4;
    pub const PPS: u32 = 1 << 8;
    pub const LSDA: u32 = 1 << 9;
    pub const CSC: u32 = 1 << 16;
    pub const PESC: u32 = 1 << 17;
    pub const PSSC: u32 = 1 << 18;
    pub const OCIC: u32 = 1 << 19;
    pub const PRSC: u32 = 1 << 20;
    pub const CLEAR_ENABLE: u32 = CCS;
    pub const CLEAR_SUSPEND: u32 = POCI;
    pub const CLEAR_POWER: u32 = LSDA;
}

/// Endpoint descriptor bits.
pub mod ed {
    pub const OUT: u32 = 1 << 11;
    pub const IN: u32 = 2 << 11;
    pub const LOW_SPEED: u32 = 1 << 13;
    pub const SKIP: u32 = 1 << 14;
    pub const ISOCHRONOUS: u32 = 1 << 15;
    /// In the head pointer's dword.
    pub const HALTED: u32 = 1;
    pub const CARRY: u32 = 2;

    /// Dword 0 for an endpoint.
    pub fn control(address: u8, number: u8, max_packet: u16) -> u32 {
        u32::from(address) | u32::from(number) << 7 | u32::from(max_packet) << 16
    }
}

/// Transfer descriptor bits.
pub mod td {
    pub const ROUNDING: u32 = 1 << 18;
    pub const SETUP: u32 = 0 << 19;
    pub const OUT: u32 = 1 << 19;
    pub const IN: u32 = 2 << 19;
    pub const DATA0: u32 = 2 << 24;
    pub const DATA1: u32 = 3 << 24;
    pub const NOT_ACCESSED: u32 = 0xf << 28;

    /// DelayInterrupt.
    pub fn delay(frames: u32) -> u32 {
        frames << 21
    }

    /// The condition code of dword 0.
    pub fn cc(control: u32) -> u32 {
        control >> 28
    }
}

/// HCCA offsets.
pub mod hcca {
    pub const FRAME_NUMBER: u32 = 0x80;
    pub const DONE_HEAD: u32 = 0x84;
}
