//! Registers and memory structures of OpenHCI 1.0a, bit by bit.
//!
//! Nothing here acts: these are the words of the specification as types.

use bitfield_struct::bitfield;
use serde::{Deserialize, Serialize};

use crate::usb::{BusError, Speed};

/// Offsets in the register window (OHCI 1.0a, 7).
pub mod register {
    /// BCD revision of the specification.
    pub const HC_REVISION: u64 = 0x00;
    /// Operating modes.
    pub const HC_CONTROL: u64 = 0x04;
    /// Commands and the overrun count.
    pub const HC_COMMAND_STATUS: u64 = 0x08;
    /// Events, cleared by writing ones.
    pub const HC_INTERRUPT_STATUS: u64 = 0x0c;
    /// Sets bits of the interrupt mask.
    pub const HC_INTERRUPT_ENABLE: u64 = 0x10;
    /// Clears bits of the interrupt mask.
    pub const HC_INTERRUPT_DISABLE: u64 = 0x14;
    /// Address of the communications area.
    pub const HC_HCCA: u64 = 0x18;
    /// Periodic ED in service.
    pub const HC_PERIOD_CURRENT_ED: u64 = 0x1c;
    /// First ED of the control list.
    pub const HC_CONTROL_HEAD_ED: u64 = 0x20;
    /// Control ED in service.
    pub const HC_CONTROL_CURRENT_ED: u64 = 0x24;
    /// First ED of the bulk list.
    pub const HC_BULK_HEAD_ED: u64 = 0x28;
    /// Bulk ED in service.
    pub const HC_BULK_CURRENT_ED: u64 = 0x2c;
    /// Last TD that was retired.
    pub const HC_DONE_HEAD: u64 = 0x30;
    /// Frame length and largest data packet.
    pub const HC_FM_INTERVAL: u64 = 0x34;
    /// Bit times left in the frame.
    pub const HC_FM_REMAINING: u64 = 0x38;
    /// Frame number.
    pub const HC_FM_NUMBER: u64 = 0x3c;
    /// When the periodic list gets priority.
    pub const HC_PERIODIC_START: u64 = 0x40;
    /// Least time for a low-speed packet.
    pub const HC_LS_THRESHOLD: u64 = 0x44;
    /// Root hub: ports and power.
    pub const HC_RH_DESCRIPTOR_A: u64 = 0x48;
    /// Root hub: removable devices and port power.
    pub const HC_RH_DESCRIPTOR_B: u64 = 0x4c;
    /// Root hub: hub status.
    pub const HC_RH_STATUS: u64 = 0x50;
    /// Root hub: status of port 1; the others follow.
    pub const HC_RH_PORT_STATUS: u64 = 0x54;
    /// Legacy support (optional): what is emulated (appendix B).
    pub const HCE_CONTROL: u64 = 0x100;
    /// Legacy support: the byte that was written to port 60h or 64h.
    pub const HCE_INPUT: u64 = 0x104;
    /// Legacy support: the byte that a read of port 60h gets.
    pub const HCE_OUTPUT: u64 = 0x108;
    /// Legacy support: the byte that a read of port 64h gets.
    pub const HCE_STATUS: u64 = 0x10c;
}

/// Length of the nominal frame in bit times minus one: FrameInterval after reset.
pub const NOMINAL_FRAME_INTERVAL: u16 = 11_999;
/// HcFmInterval after reset. The specification leaves FSMPS open; this is what every driver computes,
/// for the ones that do not ((FI - 210) * 6 / 7).
pub const FM_INTERVAL_RESET: u32 = 0x2778_2edf;
/// HcLSThreshold after reset.
pub const LS_THRESHOLD_RESET: u16 = 0x628;
/// Address bits of an ED or TD pointer.
pub const POINTER: u32 = 0xffff_fff0;

/// HostControllerFunctionalState.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hcfs {
    /// USBRESET: reset signalling on the bus.
    Reset,
    /// USBRESUME: resume signalling on the bus.
    Resume,
    /// USBOPERATIONAL: frames and lists run.
    Operational,
    /// USBSUSPEND: the bus is idle.
    Suspend,
}

impl Hcfs {
    /// From the two bits of HcControl.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Reset,
            1 => Self::Resume,
            2 => Self::Operational,
            _ => Self::Suspend,
        }
    }

    /// The two bits of HcControl.
    pub const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// HcControl (7.1.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HcControl {
    /// ControlBulkServiceRatio: this many control transactions more than one for each bulk one.
    #[bits(2)]
    pub cbsr: u8,
    /// PeriodicListEnable.
    pub ple: bool,
    /// IsochronousEnable.
    pub ie: bool,
    /// ControlListEnable.
    pub cle: bool,
    /// BulkListEnable.
    pub ble: bool,
    /// HostControllerFunctionalState.
    #[bits(2)]
    pub hcfs: Hcfs,
    /// InterruptRouting: to the system management interrupt.
    pub ir: bool,
    /// RemoteWakeupConnected.
    pub rwc: bool,
    /// RemoteWakeupEnable.
    pub rwe: bool,
    #[bits(21)]
    __: u32,
}

impl HcControl {
    /// Bits that exist.
    pub const WRITABLE: u32 = 0x7ff;
}

/// HcCommandStatus (7.1.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HcCommandStatus {
    /// HostControllerReset.
    pub hcr: bool,
    /// ControlListFilled.
    pub clf: bool,
    /// BulkListFilled.
    pub blf: bool,
    /// OwnershipChangeRequest.
    pub ocr: bool,
    #[bits(12)]
    __: u16,
    /// SchedulingOverrunCount.
    #[bits(2)]
    pub soc: u8,
    #[bits(14)]
    __: u16,
}

/// HcInterruptStatus, HcInterruptEnable and HcInterruptDisable (7.1.4 to 7.1.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Interrupts {
    /// SchedulingOverrun.
    pub so: bool,
    /// WritebackDoneHead.
    pub wdh: bool,
    /// StartofFrame.
    pub sf: bool,
    /// ResumeDetected.
    pub rd: bool,
    /// UnrecoverableError.
    pub ue: bool,
    /// FrameNumberOverflow.
    pub fno: bool,
    /// RootHubStatusChange.
    pub rhsc: bool,
    #[bits(23)]
    __: u32,
    /// OwnershipChange.
    pub oc: bool,
    /// MasterInterruptEnable (in the mask only).
    pub mie: bool,
}

impl Interrupts {
    /// Bits the mask can hold.
    pub const MASK: u32 = 0xc000_007f;
    /// Events that raise the host's interrupt; OwnershipChange always goes to system management.
    pub const HOST: u32 = 0x7f;
}

/// HcFmInterval (7.3.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HcFmInterval {
    /// FrameInterval in bit times, minus one.
    #[bits(14)]
    pub fi: u16,
    #[bits(2)]
    __: u8,
    /// FSLargestDataPacket.
    #[bits(15)]
    pub fsmps: u16,
    /// FrameIntervalToggle.
    pub fit: bool,
}

impl HcFmInterval {
    /// Bits that exist.
    pub const WRITABLE: u32 = 0xffff_3fff;
}

/// HcFmRemaining (7.3.2).
#[bitfield(u32)]
pub struct HcFmRemaining {
    /// FrameRemaining in bit times.
    #[bits(14)]
    pub fr: u16,
    #[bits(17)]
    __: u32,
    /// FrameRemainingToggle.
    pub frt: bool,
}

/// HcRhDescriptorA (7.4.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HcRhDescriptorA {
    /// NumberDownstreamPorts.
    pub ndp: u8,
    /// PowerSwitchingMode: each port on its own.
    pub psm: bool,
    /// NoPowerSwitching.
    pub nps: bool,
    /// DeviceType; always 0.
    pub dt: bool,
    /// OverCurrentProtectionMode: each port on its own.
    pub ocpm: bool,
    /// NoOverCurrentProtection.
    pub nocp: bool,
    #[bits(11)]
    __: u16,
    /// PowerOnToPowerGoodTime in units of 2 ms.
    pub potpgt: u8,
}

impl HcRhDescriptorA {
    /// Bits the driver may write.
    pub const WRITABLE: u32 = 0xff00_1b00;
}

/// HcRhDescriptorB (7.4.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HcRhDescriptorB {
    /// DeviceRemovable: bit n for port n, 1 for a device that stays.
    pub dr: u16,
    /// PortPowerControlMask: bit n for port n, 1 for a port with power switching of its own.
    pub ppcm: u16,
}

/// HcRhStatus as it reads (7.4.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HcRhStatus {
    /// LocalPowerStatus; writing 1 turns global power off.
    pub lps: bool,
    /// OverCurrentIndicator.
    pub oci: bool,
    #[bits(13)]
    __: u16,
    /// DeviceRemoteWakeupEnable; writing 1 sets it.
    pub drwe: bool,
    /// LocalPowerStatusChange; writing 1 turns global power on.
    pub lpsc: bool,
    /// OverCurrentIndicatorChange.
    pub ocic: bool,
    #[bits(13)]
    __: u16,
    /// ClearRemoteWakeupEnable; write only.
    pub crwe: bool,
}

/// HcRhPortStatus (7.4.4). A written 1 is the command named second.
#[bitfield(u32)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HcRhPortStatus {
    /// CurrentConnectStatus; ClearPortEnable.
    pub ccs: bool,
    /// PortEnableStatus; SetPortEnable.
    pub pes: bool,
    /// PortSuspendStatus; SetPortSuspend.
    pub pss: bool,
    /// PortOverCurrentIndicator; ClearSuspendStatus.
    pub poci: bool,
    /// PortResetStatus; SetPortReset.
    pub prs: bool,
    #[bits(3)]
    __: u8,
    /// PortPowerStatus; SetPortPower.
    pub pps: bool,
    /// LowSpeedDeviceAttached; ClearPortPower.
    pub lsda: bool,
    #[bits(6)]
    __: u8,
    /// ConnectStatusChange.
    pub csc: bool,
    /// PortEnableStatusChange.
    pub pesc: bool,
    /// PortSuspendStatusChange.
    pub pssc: bool,
    /// PortOverCurrentIndicatorChange.
    pub ocic: bool,
    /// PortResetStatusChange.
    pub prsc: bool,
    #[bits(11)]
    __: u16,
}

impl HcRhPortStatus {
    /// The change bits; writing 1 clears them.
    pub const CHANGES: u32 = 0x001f_0000;
}

/// HceControl (appendix B.3.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HceControl {
    /// EmulationEnable: accesses to ports 60h and 64h are the controller's.
    pub emulation_enable: bool,
    /// EmulationInterrupt: the condition, as it is now.
    pub emulation_interrupt: bool,
    /// CharacterPending: interrupt when OutputFull is clear.
    pub character_pending: bool,
    /// IRQEn: IRQ 1 or IRQ 12 while OutputFull is set.
    pub irq_en: bool,
    /// ExternalIRQEn: interrupt when the keyboard controller raises IRQ 1 or IRQ 12.
    pub external_irq_en: bool,
    /// GateA20Sequence: the last byte to port 64h was D1h.
    pub gate_a20_sequence: bool,
    /// IRQ1Active: the keyboard controller's IRQ 1 rose.
    pub irq1_active: bool,
    /// IRQ12Active: the keyboard controller's IRQ 12 rose.
    pub irq12_active: bool,
    /// A20State: what the keyboard controller's gate A20 is at.
    pub a20_state: bool,
    #[bits(23)]
    __: u32,
}

impl HceControl {
    /// Bits that hold what is written to them.
    pub const WRITABLE: u32 = 0x13d;
    /// Bits that a written 1 clears.
    pub const CLEARED: u32 = 0xc0;
}

/// HceStatus (appendix B.3.4): the status register of a keyboard controller.
#[bitfield(u8)]
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HceStatus {
    /// OutputFull: there is a byte to read from port 60h.
    pub output_full: bool,
    /// InputFull: a byte was written to port 60h or 64h.
    pub input_full: bool,
    /// Flag: warm start.
    pub flag: bool,
    /// CmdData: the byte was written to port 64h.
    pub cmd_data: bool,
    /// InhibitSwitch: the keyboard is not locked.
    pub inhibit_switch: bool,
    /// AuxOutputFull: the byte to read is the mouse's.
    pub aux_output_full: bool,
    /// Time-out.
    pub timeout: bool,
    /// Parity error.
    pub parity: bool,
}

/// Offsets in the communications area (4.4.1).
pub mod hcca {
    /// Heads of the 32 periodic lists.
    pub const INTERRUPT_TABLE: u64 = 0x00;
    /// Frame number, with a pad that is written as zero.
    pub const FRAME_NUMBER: u64 = 0x80;
    /// The done queue handed to the driver.
    pub const DONE_HEAD: u64 = 0x84;
}

/// Dword 0 of an endpoint descriptor (4.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct EdControl {
    /// FunctionAddress.
    #[bits(7)]
    pub fa: u8,
    /// EndpointNumber.
    #[bits(4)]
    pub en: u8,
    /// Direction: 1 OUT, 2 IN, else the TD says.
    #[bits(2)]
    pub d: u8,
    /// Speed: low speed.
    pub s: bool,
    /// sKip.
    pub k: bool,
    /// Format: isochronous TDs.
    pub f: bool,
    /// MaximumPacketSize in bytes.
    #[bits(11)]
    pub mps: u16,
    #[bits(5)]
    __: u8,
}

/// Dword 2 of an endpoint descriptor.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct EdHead {
    /// Halted.
    pub h: bool,
    /// toggleCarry.
    pub c: bool,
    #[bits(2)]
    __: u8,
    /// TDQueueHeadPointer, bits 31:4.
    #[bits(28)]
    pub head_p: u32,
}

/// Dword 0 of a general TD (4.3.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct TdControl {
    #[bits(18)]
    __: u32,
    /// bufferRounding: a short packet is not an error.
    pub r: bool,
    /// Direction/PID: 0 SETUP, 1 OUT, 2 IN.
    #[bits(2)]
    pub dp: u8,
    /// DelayInterrupt in frames; 7 for no interrupt.
    #[bits(3)]
    pub di: u8,
    /// DataToggle; the upper bit says that the lower one counts.
    #[bits(2)]
    pub t: u8,
    /// ErrorCount.
    #[bits(2)]
    pub ec: u8,
    /// ConditionCode.
    #[bits(4)]
    pub cc: u8,
}

/// Dword 0 of an isochronous TD (4.3.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct IsoControl {
    /// StartingFrame.
    pub sf: u16,
    #[bits(5)]
    __: u8,
    /// DelayInterrupt, as in a general TD.
    #[bits(3)]
    pub di: u8,
    /// FrameCount: packets minus one.
    #[bits(3)]
    pub fc: u8,
    #[bits(1)]
    __: u8,
    /// ConditionCode.
    #[bits(4)]
    pub cc: u8,
}

/// ConditionCode (4.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ConditionCode {
    /// Done.
    NoError = 0,
    /// CRC error.
    Crc = 1,
    /// Bit stuffing violation.
    BitStuffing = 2,
    /// An IN packet with the wrong toggle.
    DataToggleMismatch = 3,
    /// STALL handshake.
    Stall = 4,
    /// No answer.
    DeviceNotResponding = 5,
    /// Check bits of a packet identifier.
    PidCheckFailure = 6,
    /// A packet identifier that has no place here.
    UnexpectedPid = 7,
    /// More data than asked for, or an isochronous TD that is late.
    DataOverrun = 8,
    /// Less data than asked for.
    DataUnderrun = 9,
    /// The controller could not reach memory in time.
    BufferOverrun = 12,
}

impl From<BusError> for ConditionCode {
    fn from(error: BusError) -> Self {
        match error {
            BusError::Timeout => Self::DeviceNotResponding,
            BusError::Crc => Self::Crc,
            BusError::BitStuffing => Self::BitStuffing,
            BusError::PidCheck => Self::PidCheckFailure,
            BusError::UnexpectedPid => Self::UnexpectedPid,
            BusError::ToggleMismatch => Self::DataToggleMismatch,
            BusError::Babble => Self::DataOverrun,
            BusError::HostBuffer => Self::BufferOverrun,
        }
    }
}

impl ConditionCode {
    /// Whether the transaction is tried again, up to three times in a row (4.3.2).
    pub const fn is_retried(self) -> bool {
        matches!(
            self,
            Self::Crc
                | Self::BitStuffing
                | Self::DataToggleMismatch
                | Self::DeviceNotResponding
                | Self::PidCheckFailure
        )
    }
}

/// The S bit of an ED for a device of this speed.
pub fn is_low(speed: Speed) -> bool {
    speed == Speed::Low
}
