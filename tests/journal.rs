//! What a person reads in the log while a driver works. One test program for one log.

mod driver;

use std::sync::Mutex;

use driver::ehci::{EhciDriver, port, reg};
use driver::enumerate::enumerate;
use driver::host::{HostDriver, Pipe, TransferError};
use driver::hub::{HubDriver, feature};
use driver::machine::Machine;
use driver::ohci::OhciDriver;
use driver::scripted::{Answer, Scripted};
use log::{Level, LevelFilter, Log, Metadata, Record};
use vm_usb::devices::hub::{Hub, HubOptions};
use vm_usb::ehci::Ehci;
use vm_usb::ohci::Ohci;
use vm_usb::topology::{Host, Port};
use vm_usb::usb::{EndpointAddress, Speed};

/// The log of the whole program.
struct Lines(Mutex<Vec<String>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));
/// One story at a time.
static STORY: Mutex<()> = Mutex::new(());

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Tells a story and returns what the log has of it.
fn told(story: impl FnOnce()) -> Vec<String> {
    let _turn = STORY.lock().unwrap();
    let _ = log::set_logger(&LINES);
    log::set_max_level(LevelFilter::Info);
    LINES.0.lock().unwrap().clear();
    story();
    std::mem::take(&mut LINES.0.lock().unwrap())
}

/// The lines of `log` that follow each other as in `expected`; others may come in between.
fn assert_tells(log: &[String], expected: &[&str]) {
    let mut rest = log.iter();
    for line in expected {
        assert!(rest.any(|l| l == line), "{line:?} is not where it belongs in {log:#?}");
    }
}

#[test]
fn a_device_on_ohci_from_plug_to_halt() {
    let log = told(|| {
        let (device, controls) = Scripted::new(Speed::Full);
        let socket = Port::classic();
        socket.attach(Box::new(device)).unwrap();
        let mut driver = OhciDriver::new(Ohci::new(vec![socket.link(Host::Classic)]));
        let device = enumerate(&mut driver, 0, 7).unwrap().device;
        let endpoint = EndpointAddress::r#in(1);
        controls.answer(endpoint, [Answer::Stall]);
        let pipe = Pipe { device, endpoint, max_packet: 64, interval: 0 };
        assert_eq!(driver.receive(&pipe, 64), Err(TransferError::Stall));
        socket.detach().unwrap();
        driver.sleep_millis(5);
    });
    assert_tells(
        &log,
        &[
            "\"Scripted\" attached",
            "OHCI: running",
            "OHCI port 1: reset",
            "OHCI port 1: enabled",
            "\"Scripted\", address 7: configuration 1",
            "\"Scripted\", address 7: endpoint 1 IN is halted",
            "\"Scripted\" detached",
            "OHCI port 1: empty",
        ],
    );
    assert!(log.len() < 20, "one line a change, none a transfer: {log:#?}");
}

#[test]
fn a_device_on_ehci_is_suspended_and_another_handed_over() {
    let log = told(|| {
        let sockets = [Port::shared(), Port::shared()];
        sockets[0].attach(Box::new(Scripted::new(Speed::High).0)).unwrap();
        sockets[1].attach(Box::new(Scripted::new(Speed::Full).0)).unwrap();
        let links = sockets.iter().map(|socket| socket.link(Host::High)).collect();
        let mut driver = EhciDriver::new(Machine::new(Ehci::new(links)));
        enumerate(&mut driver, 0, 4).unwrap();
        assert_eq!(driver.reset_port(1), None);
        let machine = &mut driver.machine;
        let status = machine.read32(reg::PORTSC) & !port::CHANGES;
        machine.write32(reg::PORTSC, status | port::SUSPEND);
        machine.write32(reg::USBCMD, 0);
    });
    assert_tells(
        &log,
        &[
            "EHCI: running",
            "EHCI port 1: a device is connected",
            "EHCI port 1: reset",
            "EHCI port 1: enabled",
            "\"Scripted\", address 4: configuration 1",
            "EHCI port 2: handed over to the companion controller",
            "EHCI port 1: suspended",
            "EHCI: halted",
        ],
    );
}

#[test]
fn a_device_behind_a_hub_is_told_of_like_one_at_a_root_port() {
    let log = told(|| {
        let hub = Hub::new(HubOptions::default()).unwrap();
        let sockets = hub.ports().to_vec();
        let socket = Port::high_speed_only();
        socket.attach(Box::new(hub)).unwrap();
        let mut driver = EhciDriver::new(Machine::new(Ehci::new(vec![socket.link(Host::High)])));
        let found = enumerate(&mut driver, 0, 1).unwrap();
        let hub = HubDriver::start(&mut driver, &found).unwrap();
        sockets[1].attach(Box::new(Scripted::new(Speed::High).0)).unwrap();
        hub.wait(&mut driver, 600).unwrap();
        hub.enumerate(&mut driver, 2, 2).unwrap();
        hub.set(&mut driver, 2, feature::SUSPEND).unwrap();
        sockets[1].detach().unwrap();
        hub.wait(&mut driver, 600).unwrap();
    });
    assert_tells(
        &log,
        &[
            "\"Hub\", address 1: port 2: a device is connected",
            "\"Hub\", address 1: port 2: reset",
            "\"Hub\", address 1: port 2: enabled",
            "\"Scripted\", address 2: configuration 1",
            "\"Hub\", address 1: port 2: suspended",
            "\"Scripted\" detached",
            "\"Hub\", address 1: port 2: empty",
        ],
    );
    // This driver resets twice.
    assert_eq!(log.iter().filter(|line| line.contains(": port ")).count(), 7, "{log:#?}");
}

#[test]
fn each_of_two_hubs_is_named_by_its_address() {
    let log = told(|| {
        let hub = || Hub::new(HubOptions::default()).unwrap();
        let (near, far) = (hub(), hub());
        let (near_sockets, far_sockets) = (near.ports().to_vec(), far.ports().to_vec());
        let socket = Port::high_speed_only();
        socket.attach(Box::new(near)).unwrap();
        near_sockets[2].attach(Box::new(far)).unwrap();
        far_sockets[4].attach(Box::new(Scripted::new(Speed::High).0)).unwrap();
        let mut driver = EhciDriver::new(Machine::new(Ehci::new(vec![socket.link(Host::High)])));
        let found = enumerate(&mut driver, 0, 8).unwrap();
        let near = HubDriver::start(&mut driver, &found).unwrap();
        let found = near.enumerate(&mut driver, 3, 9).unwrap();
        let far = HubDriver::start(&mut driver, &found).unwrap();
        far.enumerate(&mut driver, 5, 10).unwrap();
    });
    assert_tells(
        &log,
        &[
            "\"Hub\", address 8: configuration 1",
            "\"Hub\", address 8: port 3: enabled",
            "\"Hub\", address 9: configuration 1",
            "\"Hub\", address 9: port 5: enabled",
            "\"Scripted\", address 10: configuration 1",
        ],
    );
}

#[test]
fn a_guest_that_resets_a_port_for_ever_does_not_fill_the_log() {
    let log = told(|| {
        let socket = Port::high_speed_only();
        socket.attach(Box::new(Scripted::new(Speed::High).0)).unwrap();
        let mut driver = EhciDriver::new(Machine::new(Ehci::new(vec![socket.link(Host::High)])));
        let machine = &mut driver.machine;
        for _ in 0..10_000 {
            machine.write32(reg::PORTSC, port::POWER | port::RESET);
            machine.write32(reg::PORTSC, port::POWER);
        }
        driver.sleep_millis(2000);
        driver.machine.write32(reg::PORTSC, port::POWER | port::RESET);
    });
    assert!((20..100).contains(&log.len()), "{} lines", log.len());
    assert!(log.last().unwrap().ends_with("lines before it left out)"), "{log:#?}");
}
