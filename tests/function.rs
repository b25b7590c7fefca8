//! A device behind a port, without any controller: plugging, and who sees it.

mod driver;

use driver::scripted::Scripted;
use vm_usb::topology::{AttachError, Host, Port};
use vm_usb::usb::Speed;

#[test]
fn a_shared_port_shows_its_device_to_the_owner_only() {
    let port = Port::shared();
    let (high, classic) = (port.link(Host::High), port.link(Host::Classic));
    port.attach(Box::new(Scripted::new(Speed::High).0)).unwrap();
    assert_eq!(high.view().device, None);
    assert_eq!(classic.view().device, Some(Speed::Full));

    high.set_owner(Host::High);
    assert_eq!(high.view().device, Some(Speed::Full), "a high-speed device shows as full speed");
    assert_eq!(classic.view().device, None);
    assert!(classic.view().occupied);
    assert_eq!(high.with(|f| f.bus_reset(high.fastest())), Some(Speed::High));
    assert_eq!(classic.with(|f| f.speed()), None);
}

#[test]
fn a_device_no_controller_serves_is_refused_before_the_guest_sees_it() {
    let port = Port::high_speed_only();
    let before = port.link(Host::High).view();
    let refused = port.attach(Box::new(Scripted::new(Speed::Full).0)).unwrap_err();
    assert_eq!(refused.reason, AttachError::Speed { device: Speed::Full, port: Speed::High });
    assert_eq!(port.link(Host::High).view(), before);
    assert_eq!(refused.device.description().name, "Scripted");
}

#[test]
fn a_port_takes_one_device_and_notices_a_quick_replug() {
    let port = Port::classic();
    port.attach(Box::new(Scripted::new(Speed::Low).0)).unwrap();
    let first = port.link(Host::Classic).view();
    assert_eq!(first.device, Some(Speed::Low));
    let refused = port.attach(Box::new(Scripted::new(Speed::Full).0)).unwrap_err();
    assert_eq!(refused.reason, AttachError::Occupied("Scripted".into()));

    port.detach().unwrap();
    port.attach(refused.device).unwrap();
    assert_ne!(port.link(Host::Classic).view().generation, first.generation);
}
