//! A pin and a message against the kernel's interrupt controllers, without a guest.

use std::io::Write;

use kvm_ioctls::Kvm;

use super::*;

const GSI: u32 = 10;

/// KVM, or `None` where there is none; that is said where the test harness does not swallow it.
fn kvm() -> Option<Kvm> {
    let refused = |error: &_| {
        let test = std::thread::current();
        let test = test.name().unwrap_or("test");
        let _ = writeln!(std::io::stderr(), "SKIPPED {test}: no /dev/kvm here: {error}");
    };
    Kvm::new().inspect_err(refused).ok()
}

/// A VM with in-kernel interrupt controllers.
fn vm() -> Option<Arc<VmFd>> {
    let vm = kvm()?.create_vm().expect("KVM makes a VM");
    vm.create_irq_chip().expect("the kernel has interrupt controllers");
    Some(Arc::new(vm))
}

#[test]
fn an_asserted_pin_is_raised_again_after_each_end_of_interrupt() {
    let Some(vm) = vm() else { return };
    let (mut line, resample) = KvmInterrupt::new(vm.clone(), GSI).unwrap();
    // The kernel takes what is written to an irqfd; a copy in our hands shows whether it was written.
    let pin = line.pin.clone();
    vm.unregister_irqfd(&pin.trigger, GSI).unwrap();
    let raised = || pin.trigger.read().is_ok();

    line.set_level(true);
    assert!(raised());
    pin.resample.write(1).unwrap();
    resample.answer();
    assert!(raised(), "still asserted");
    line.set_level(false);
    assert!(!raised());
    pin.resample.write(1).unwrap();
    resample.answer();
    assert!(!raised(), "no longer asserted");
}

#[test]
fn a_message_that_names_no_local_apic_is_dropped() {
    let Some(vm) = vm() else { return };
    let (mut line, _resample) = KvmInterrupt::new(vm, GSI).unwrap();
    line.message(0xdead_0000_1234_5678, 0x40);
    line.message(0xfee0_0000, 0x40);
}

#[test]
fn a_vm_without_interrupt_controllers_is_an_error() {
    let Some(kvm) = kvm() else { return };
    let vm = Arc::new(kvm.create_vm().unwrap());
    assert!(KvmInterrupt::new(vm, GSI).is_err());
}
