//! What the simulation needs of a host controller's driver besides transfers.

use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;

use crate::driver::ehci::{self, EhciDriver};
use crate::driver::host::{Background, HostDriver};
use crate::driver::machine::Machine;
use crate::driver::ohci::{self, OhciDriver};
use crate::model::Model;
use crate::owner::Owner;
use crate::plan::{Controller, Plan};

/// How long a port resumes, in milliseconds (USB 2.0, 7.1.7.7).
const RESUME_MILLIS: u64 = 20;
/// And how long the driver waits for what has no time of its own.
const MOMENT_MILLIS: u64 = 30;

/// What a root port says; changes are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    pub changed: bool,
    pub connected: bool,
}

/// A driver that the simulation can use.
pub trait Guest: Background + Sized {
    type Controller: Model;

    fn start(machine: Machine<Owner<Self::Controller>>, plan: &Plan) -> Self;
    fn into_machine(self) -> Machine<Owner<Self::Controller>>;

    /// Stops the controller and resets it by its registers.
    fn reset(machine: &mut Machine<Owner<Self::Controller>>);

    /// What became of a root port.
    fn news(&mut self, port: usize) -> News;

    /// Ends everything that the driver had with the device of this address.
    fn forget_device(&mut self, address: u8);

    /// Suspends a root port, and after some time resumes it.
    fn nap(&mut self, port: usize, millis: u64);

    /// Stops the whole controller, and after some time goes on, whatever is under way.
    fn stop(&mut self, millis: u64);
}

impl Guest for EhciDriver<Owner<Ehci>> {
    type Controller = Ehci;

    fn start(machine: Machine<Owner<Ehci>>, _plan: &Plan) -> Self {
        Self::new(machine)
    }

    fn into_machine(self) -> Machine<Owner<Ehci>> {
        self.machine
    }

    fn reset(machine: &mut Machine<Owner<Ehci>>) {
        machine.write32(ehci::reg::USBINTR, 0);
        machine.write32(ehci::reg::USBCMD, 0);
        let halted = |m: &mut Machine<_>| m.read32(ehci::reg::USBSTS) & ehci::sts::HALTED != 0;
        assert!(machine.wait_millis(2, halted), "halts");
        machine.write32(ehci::reg::USBCMD, ehci::cmd::RESET);
        let reset = |m: &mut Machine<_>| m.read32(ehci::reg::USBCMD) & ehci::cmd::RESET == 0;
        assert!(machine.wait_millis(250, reset), "resets");
    }

    fn news(&mut self, port: usize) -> News {
        self.service();
        let status = self.port(port);
        let acknowledged = ehci::port::CONNECT_CHANGE | ehci::port::ENABLE_CHANGE;
        let changed = status & acknowledged;
        if changed != 0 {
            let register = ehci::reg::PORTSC + 4 * port as u64;
            self.machine.write32(register, status & !ehci::port::CHANGES | changed);
        }
        News {
            changed: status & ehci::port::CONNECT_CHANGE != 0,
            connected: status & ehci::port::CONNECT != 0,
        }
    }

    fn forget_device(&mut self, address: u8) {
        self.forget(address);
    }

    fn nap(&mut self, port: usize, millis: u64) {
        self.set_port(port, ehci::port::SUSPEND, 0);
        self.machine.advance_millis(millis);
        self.service();
        self.set_port(port, ehci::port::RESUME, 0);
        self.machine.advance_millis(RESUME_MILLIS);
        self.set_port(port, 0, ehci::port::RESUME);
        let register = ehci::reg::PORTSC + 4 * port as u64;
        let over = self.wait(MOMENT_MILLIS, |m| m.read32(register) & ehci::port::RESUME == 0);
        assert!(over, "resume ends");
        self.machine.advance_millis(10);
    }

    fn stop(&mut self, millis: u64) {
        let command = self.machine.read32(ehci::reg::USBCMD);
        self.machine.write32(ehci::reg::USBCMD, command & !ehci::cmd::RUN);
        let halted = ehci::sts::HALTED;
        let stopped = self.wait(2, |m| m.read32(ehci::reg::USBSTS) & halted != 0);
        assert!(stopped, "halts");
        self.machine.advance_millis(millis);
        self.machine.write32(ehci::reg::USBCMD, command | ehci::cmd::RUN);
        let runs = self.wait(2, |m| m.read32(ehci::reg::USBSTS) & halted == 0);
        assert!(runs, "runs");
    }
}

impl Guest for OhciDriver<Owner<Ohci>> {
    type Controller = Ohci;

    fn start(machine: Machine<Owner<Ohci>>, plan: &Plan) -> Self {
        let mut driver = Self::start(machine);
        if let Controller::Ohci(_, idle) = plan.controller {
            driver.idle = idle;
        }
        driver
    }

    fn into_machine(self) -> Machine<Owner<Ohci>> {
        self.machine
    }

    fn reset(machine: &mut Machine<Owner<Ohci>>) {
        machine.write32(ohci::reg::INTERRUPT_DISABLE, ohci::int::MIE);
        machine.write32(ohci::reg::COMMAND_STATUS, ohci::command::HCR);
        let reset =
            |m: &mut Machine<_>| m.read32(ohci::reg::COMMAND_STATUS) & ohci::command::HCR == 0;
        assert!(machine.wait_millis(1, reset), "resets");
    }

    fn news(&mut self, port: usize) -> News {
        let register = ohci::reg::RH_PORT_STATUS + 4 * port as u64;
        let status = self.machine.read32(register);
        let changed = status & (ohci::port::CSC | ohci::port::PESC);
        if changed != 0 {
            self.machine.write32(register, changed);
            self.machine.write32(ohci::reg::INTERRUPT_STATUS, ohci::int::RHSC);
        }
        News { changed: status & ohci::port::CSC != 0, connected: status & ohci::port::CCS != 0 }
    }

    fn forget_device(&mut self, address: u8) {
        self.forget(address);
    }

    fn nap(&mut self, port: usize, millis: u64) {
        let register = ohci::reg::RH_PORT_STATUS + 4 * port as u64;
        self.machine.write32(register, ohci::port::PSS);
        self.sleep_millis(millis);
        self.machine.write32(register, ohci::port::CLEAR_SUSPEND);
        for _ in 0..MOMENT_MILLIS {
            if self.machine.read32(register) & ohci::port::PSS == 0 {
                break;
            }
            self.sleep_millis(1);
        }
        assert_eq!(self.machine.read32(register) & ohci::port::PSS, 0, "resume ends");
        self.machine.write32(register, ohci::port::PSSC);
        self.sleep_millis(10);
    }

    fn stop(&mut self, millis: u64) {
        use ohci::control::{BLE, CLE, HCFS, IE, OPERATIONAL, PLE, SUSPEND};
        let word = self.machine.read32(ohci::reg::CONTROL) & !HCFS;
        // What has retired is reported first, within the longest DelayInterrupt: entering
        // USBOPERATIONAL sets the counter of the done queue to "never".
        let idle = word & !(PLE | IE | CLE | BLE);
        self.machine.write32(ohci::reg::CONTROL, idle | OPERATIONAL);
        self.sleep_millis(8);
        self.machine.write32(ohci::reg::CONTROL, idle | SUSPEND);
        self.sleep_millis(millis + 5);
        self.machine.write32(ohci::reg::CONTROL, idle | ohci::control::RESUME);
        self.sleep_millis(RESUME_MILLIS);
        self.machine.write32(ohci::reg::CONTROL, word | OPERATIONAL);
        self.machine.write32(ohci::reg::COMMAND_STATUS, ohci::command::CLF | ohci::command::BLF);
        self.sleep_millis(10);
    }
}
