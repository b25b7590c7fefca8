//! What is plugged in.

use vm_usb::devices::hid::{Key, Keyboard, KeyboardHandle};
use vm_usb::devices::hub::{Hub, HubOptions};
use vm_usb::devices::storage::{RamDisk, Serial, Storage};
use vm_usb::time::Time;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{EndpointAddress, Pid, Speed, Toggle, Transfer};

use crate::driver::scripted::{Answer, Controls, Scripted};

/// Addresses of the devices in ports 1, 2, and so on.
pub const ADDRESSES: [u8; 3] = [5, 6, 7];

/// A disk, a keyboard and a hub with a disk, one in each of `ports`.
pub fn attach_real(ports: &[Port], speed: Speed) -> KeyboardHandle {
    let disk = |name| Box::new(Storage::new(RamDisk::zeroed(16), Serial::from_name(name)));
    let keyboard = Keyboard::new(speed);
    let keys = keyboard.handle();
    let hub = Hub::new(HubOptions { speed, ..HubOptions::default() }).unwrap();
    hub.ports()[0].attach(disk("behind the hub")).unwrap();
    ports[0].attach(disk("disk")).unwrap();
    ports[1].attach(Box::new(keyboard)).unwrap();
    ports[2].attach(Box::new(hub)).unwrap();
    keys
}

/// A key goes down, or up again.
pub fn stroke(keys: &KeyboardHandle, usage: u8, down: bool) {
    let Some(key) = Key::from_usage(usage) else { return };
    if down {
        let _ = keys.press(key);
    } else {
        keys.release(key);
    }
}

/// A scripted device that answers in every way there is.
pub fn attach_scripted(port: &Port, speed: Speed) -> Controls {
    let (device, controls) = Scripted::new(speed);
    port.attach(Box::new(device)).unwrap();
    controls
}

/// Endpoint `n` of ten: 0 to 4, OUT and IN.
pub fn endpoint(n: u8) -> EndpointAddress {
    if n % 10 < 5 { EndpointAddress::out(n % 5) } else { EndpointAddress::r#in(n % 5) }
}

pub fn answer(n: u8) -> Answer {
    use vm_usb::usb::BusError;
    match n % 11 {
        0 => Answer::Nak,
        1 => Answer::Park,
        2 => Answer::Pending,
        3 => Answer::Stall,
        4 => Answer::Error(BusError::Timeout),
        5 => Answer::Error(BusError::Babble),
        6 => Answer::Error(BusError::ToggleMismatch),
        7 => Answer::Take(64),
        8 => Answer::Data(vec![0xff; 1000]),
        9 => Answer::Data(Vec::new()),
        _ => Answer::Data(vec![0xee; 40]),
    }
}

/// Gives a device that has been reset its address and configuration, behind the controller's back.
pub fn configure(port: &Port, host: Host, address: u8) {
    for setup in [[0, 5, address, 0, 0, 0, 0, 0], [0, 9, 1, 0, 0, 0, 0, 0]] {
        for (pid, mut bytes) in [(Pid::Setup, setup.to_vec()), (Pid::In, vec![])] {
            port.link(host).with(|function| {
                function.transact(Transfer {
                    pid,
                    endpoint: 0,
                    max_packet: 64,
                    toggle: if pid == Pid::In { Toggle::Data1 } else { Toggle::Data0 },
                    now: Time::ZERO,
                    buffer: &mut bytes,
                })
            });
        }
    }
}
