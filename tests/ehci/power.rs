//! Power management (EHCI appendix A): rules EHCI-PM and EHCI-REG-6.

use vm_usb::pci::Placement;
use vm_usb::topology::Port;
use vm_usb::usb::{Pid, SetupPacket, Speed, request};

use crate::driver::ehci::{Td, cmd, port, reg, sts, token};
use crate::driver::host::HostDriver;
use crate::driver::scripted::{Controls, Scripted};
use crate::pci::Pci;
use crate::rig::{OUT1, Rig, is_done, pattern};

/// A running function with one empty port.
fn running() -> Pci {
    Pci::running(vec![Port::high_speed_only()], Placement::default())
}

fn plug(pci: &Pci) -> Controls {
    let (device, controls) = Scripted::new(Speed::High);
    pci.ports[0].attach(Box::new(device)).unwrap();
    controls
}

/// The rig's machine as a PCI function with bus mastering on, everything else as it was.
fn as_function(rig: Rig) -> Pci {
    let mut pci = Pci::around(rig.driver.machine, rig.ports, Placement::default());
    pci.set_config16(4, 6);
    pci
}

#[test]
fn ehci_reg_6_a_controller_reset_is_no_reset_of_anything_else() {
    let mut pci = running();
    let controls = plug(&pci);
    pci.advance_millis(1);
    pci.set_config(0x10, &0xfebf_0000u32.to_le_bytes());
    pci.set_config(0x61, &[0x21]);
    let eecp = u64::from(vm_usb::ehci::EECP);
    pci.set_config(eecp + 3, &[1]);
    let before = (pci.config16(0x04), [0x10, 0x60, eecp].map(|at| pci.config32(at)));
    controls.take_seen();
    pci.write32(reg::USBCMD, cmd::RESET);
    pci.advance_millis(5);
    let after = (pci.config16(0x04), [0x10, 0x60, eecp].map(|at| pci.config32(at)));
    assert_eq!(after, before);
    assert_eq!(controls.take_seen(), [], "the device saw nothing");
}

#[test]
fn ehci_pm_1_everything_outlives_d3hot() {
    let mut pci = running();
    plug(&pci);
    pci.advance_millis(1);
    pci.write32(reg::PORTSC, port::POWER | 1 << 21 | 1 << 22);
    let all = [reg::USBCMD, reg::USBINTR, reg::CONFIGFLAG, reg::PORTSC, reg::ASYNCLISTADDR];
    let before = all.map(|register| pci.read32(register));
    pci.set_power_state(3);
    pci.advance_millis(5);
    pci.set_power_state(0);
    assert_eq!(all.map(|register| pci.read32(register)), before);
}

#[test]
fn ehci_pm_2_no_memory_and_no_interrupt_in_d3hot() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(512);
    let mut queue = rig.open(OUT1, 0);
    rig.halt();
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)])[0];
    rig.resume();
    let controls = rig.controls.clone();
    let before = rig.token(qtd);
    let mut pci = as_function(rig);
    pci.set_power_state(3);
    let load = |pci: &Pci| {
        use vm_memory::{Bytes, GuestAddress};
        pci.memory.read_obj::<u32>(GuestAddress(u64::from(qtd) + 8)).unwrap()
    };
    // The switch of the power state may have let the controller finish a turn.
    let now = load(&pci);
    controls.take_seen();
    pci.ports[1].attach(Box::new(Scripted::new(Speed::High).0)).unwrap();
    pci.told(|t| t.levels.clear());
    pci.advance_millis(5);
    assert_eq!(load(&pci), now);
    assert_eq!(controls.take_seen(), []);
    assert_eq!(pci.told(|t| (t.levels.clone(), t.messages)), (vec![], 0));
    pci.set_power_state(0);
    pci.advance_millis(5);
    assert!(is_done(load(&pci)), "was {before:#x}");
}

#[test]
fn ehci_pm_3_a_suspended_device_wakes_the_system() {
    let mut rig = Rig::new();
    let device = rig.device;
    let feature = SetupPacket::new(0, request::SET_FEATURE, 1, 0, 0);
    rig.driver.control(&device, feature, &[]).unwrap();
    rig.driver.set_port(0, port::SUSPEND, 0);
    rig.halt();
    rig.driver.take_events();
    let controls = rig.controls.clone();
    let mut pci = as_function(rig);
    pci.set_power_state(3);
    assert!(!pci.pme_status());
    controls.remote_wakeup();
    pci.run();
    assert!(pci.pme_status());
    assert!(pci.told(|t| t.pme));
    pci.set_power_state(0);
    assert_ne!(pci.read32(reg::PORTSC) & port::RESUME, 0);
    assert_ne!(pci.read32(reg::USBSTS) & sts::PORT, 0);
}

#[test]
fn ehci_pm_4_plugging_and_over_current_wake_as_their_enables_say() {
    type Event = fn(&Pci);
    let connect: Event = |pci| {
        plug(pci);
    };
    let disconnect: Event = |pci| {
        pci.ports[0].detach();
    };
    let over_current: Event = |pci| pci.ports[0].set_over_current(true);
    for (bit, plugged, event) in
        [(20, false, connect), (21, true, disconnect), (22, true, over_current)]
    {
        for enabled in [false, true] {
            let mut pci = running();
            if plugged {
                plug(&pci);
                pci.advance_millis(1);
            }
            // All the other enables are on, this one only sometimes.
            let others = 0x70_0000 & !(1 << bit);
            let enables = if enabled { 1 << bit } else { others };
            pci.write32(reg::PORTSC, port::POWER | enables);
            pci.set_power_state(3);
            event(&pci);
            pci.run();
            assert_eq!(pci.pme_status(), enabled, "bit {bit}");
        }
    }
}

#[test]
fn ehci_pm_5_without_bus_mastering_the_schedules_stand_still() {
    let mut rig = Rig::new();
    let data = pattern(512);
    let buffer = rig.buffer_of(&data);
    let mut queue = rig.open(OUT1, 0);
    rig.driver.machine.bus_master = false;
    let qtd = rig.submit(&mut queue, &[Td::new(Pid::Out, buffer, 512)])[0];
    rig.driver.machine.advance_millis(10);
    assert_eq!(rig.packets(), []);
    assert_ne!(rig.token(qtd) & token::ACTIVE, 0);
    assert_eq!(rig.status() & (sts::SYSTEM_ERROR | sts::HALTED), 0);
    rig.driver.machine.bus_master = true;
    rig.driver.machine.run();
    rig.driver.machine.advance_millis(1);
    assert!(is_done(rig.token(qtd)));
    assert_eq!(rig.controls.take_received(OUT1), data);
}

#[test]
fn ehci_pm_6_the_linux_way_to_sleep_and_back() {
    let mut rig = Rig::new();
    let pipe = rig.bulk(OUT1);
    rig.driver.send(&pipe, &[1; 512]).unwrap();
    rig.driver.disable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.driver.set_port(0, port::SUSPEND | 1 << 21 | 1 << 22, 1 << 20);
    rig.driver.sleep_millis(5);
    rig.halt();
    rig.driver.sleep_millis(1_000);

    rig.write(reg::USBINTR, 0);
    rig.write(reg::CTRLDSSEGMENT, 0);
    let (list, ring) = (rig.driver.frame_list, rig.driver.ring);
    rig.write(reg::PERIODICLISTBASE, list);
    rig.write(reg::ASYNCLISTADDR, ring);
    rig.resume();
    rig.driver.set_port(0, port::RESUME, 0);
    rig.driver.sleep_millis(20);
    rig.driver.set_port(0, 0, port::RESUME | port::SUSPEND);
    rig.driver.sleep_millis(2);
    rig.write(reg::USBINTR, 0x37);
    rig.driver.enable(cmd::ASYNCHRONOUS, sts::ASYNCHRONOUS);
    rig.driver.send(&pipe, &[2; 512]).unwrap();
    let mut expected = vec![1; 512];
    expected.extend([2; 512]);
    assert_eq!(rig.controls.take_received(OUT1), expected, "the toggles fit");
}
