//! The two controllers, as far as the simulation treats them differently.

use vm_memory::GuestMemoryMmap;
use vm_usb::controller::HostController;
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::Speed;

use crate::driver::recorder::Recorder;
use crate::driver::{ehci, ohci};
use crate::plan::{Controller, Plan};

/// A controller that can be watched.
pub trait Model:
    HostController<GuestMemoryMmap> + for<'a> HostController<Recorder<'a>> + 'static
{
    const SPEED: Speed;
    /// The register that a driver reads to learn why it was interrupted.
    const STATUS: u64;
    /// Most accesses to guest memory in one call, however long the host stood still before it.
    const MOST_ACCESSES: usize;

    fn port() -> Port;
    fn wired(plan: &Plan, ports: &[Port]) -> Self;

    /// Whether the registers say that the interrupt is asserted.
    fn condition(read: &mut dyn FnMut(u64) -> u32) -> bool;
}

impl Model for Ehci {
    const SPEED: Speed = Speed::High;
    const STATUS: u64 = ehci::reg::USBSTS;
    /// The periodic schedule is caught up with for some frames of a driver's few endpoints, and a run of
    /// transfers is carried out: well below the controller's own budgets, which are for guests that
    /// mean harm.
    const MOST_ACCESSES: usize = 20_000;

    fn port() -> Port {
        Port::high_speed_only()
    }

    fn wired(plan: &Plan, ports: &[Port]) -> Self {
        let prompt = plan.controller != Controller::Ehci { prompt: false };
        Self::new(ports.iter().map(|port| port.link(Host::High)).collect())
            .with_prompt_commit(prompt)
    }

    fn condition(read: &mut dyn FnMut(u64) -> u32) -> bool {
        read(ehci::reg::USBINTR) & read(ehci::reg::USBSTS) & 0x3f != 0
    }
}

impl Model for Ohci {
    const SPEED: Speed = Speed::Full;
    const STATUS: u64 = ohci::reg::INTERRUPT_STATUS;
    /// As for EHCI.
    const MOST_ACCESSES: usize = 20_000;

    fn port() -> Port {
        Port::classic()
    }

    fn wired(plan: &Plan, ports: &[Port]) -> Self {
        let all = Self::new(ports.iter().map(|port| port.link(Host::Classic)).collect());
        match plan.controller {
            Controller::Ohci(pacing, _) => all.with_pacing(pacing),
            Controller::Ehci { .. } => all,
        }
    }

    fn condition(read: &mut dyn FnMut(u64) -> u32) -> bool {
        let mask = read(ohci::reg::INTERRUPT_ENABLE);
        mask & ohci::int::MIE != 0 && mask & read(ohci::reg::INTERRUPT_STATUS) & 0x7f != 0
    }
}
