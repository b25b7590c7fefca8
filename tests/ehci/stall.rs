//! Short reads and the driver that stops for them: transfers of more than a qTD point Alternate Next at a
//! dummy that never becomes active, so a short packet in the first qTD stops the queue until software has
//! taken it out of the ring, by two doorbells, and put it back. On chips that halves the rate.

use std::time::Duration;

use vm_usb::time::Time;
use vm_usb::usb::{
    Configuration, Description, Endpoint, EndpointAddress, Interface, Outcome, Pid, Speed, Speeds,
    Transfer, UsbDevice,
};

use crate::driver::ehci::{EhciDriver, Queue, Td, sts, token};
use crate::driver::host::{Device, HostDriver};
use crate::driver::machine::Machine;
use crate::rig::{ADDRESS, IN1, controller};

/// What the device sends at a time: a few network packets in one, short of any transfer.
const BURST: u32 = 16_100;
/// Bytes of bulk data in a microframe at best: 13 packets of 512 (USB 2.0, table 5-10).
const MICROFRAME_BYTES: u32 = 6_656;
/// Transfers that the driver keeps queued, and how many it sees through.
const QUEUED: usize = 4;
const TRANSFERS: usize = 200;

/// A device with no end of data, which takes as long to come as on the wire.
struct Source {
    description: Description,
    /// Since when the present burst has been asked for.
    asked: Option<Time>,
}

impl UsbDevice for Source {
    fn description(&self) -> &Description {
        &self.description
    }

    fn configured(&mut self, _value: u8) {
        self.asked = None;
    }

    fn transfer(&mut self, _endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        let on_the_wire = u64::from(BURST) * 125_000 / u64::from(MICROFRAME_BYTES);
        let asked = *self.asked.get_or_insert(transfer.now);
        if transfer.now.nanos_since(asked) < on_the_wire {
            return Outcome::NAK;
        }
        self.asked = None;
        transfer.send(&[0x5a; BURST as usize])
    }
}

/// A driver with the device's queue in its ring.
fn start() -> (EhciDriver, Queue) {
    let ports = [vm_usb::topology::Port::high_speed_only()];
    let interface = Interface { endpoints: vec![Endpoint::bulk(IN1, 512)], ..Interface::default() };
    let high = vec![Configuration::only(interface)];
    let description = Description {
        vendor: 0x1209,
        product: 1,
        release: 1,
        class: [0xff, 0, 0],
        control_packet: 64,
        manufacturer: String::new(),
        name: "Source".into(),
        serial: String::new(),
        speeds: Speeds::High { full: high.clone(), high },
    };
    ports[0].attach(Box::new(Source { description, asked: None })).unwrap();
    let mut driver = EhciDriver::new(Machine::new(controller(&ports)));
    assert_eq!(driver.reset_port(0), Some(Speed::High));
    let request = |code, value| vm_usb::usb::SetupPacket::new(0, code, value, 0, 0);
    let fresh = crate::driver::ehci::fresh_device();
    driver.control(&fresh, request(5, ADDRESS.into()), &[]).unwrap();
    driver.control(&Device { address: ADDRESS, ..fresh }, request(9, 1), &[]).unwrap();
    let queue = driver.open(ADDRESS, 1, 512, 4 << 28);
    (driver, queue)
}

/// Waits until the first qTD of a transfer is over, and checks that it ended short.
fn wait_for_short(driver: &mut EhciDriver, qtd: u32) {
    assert!(driver.wait(20, |m| m.load(qtd + 8) & token::ACTIVE == 0), "the data comes");
    let t = driver.machine.load(qtd + 8);
    assert_eq!((token::total(t), t & token::HALTED), (0x5000 - BURST, 0), "a short packet");
}

/// How long `TRANSFERS` bursts take in transfers of one qTD, 20 KiB.
fn small_transfers() -> Duration {
    let (mut driver, mut queue) = start();
    let buffer = driver.machine.alloc(0x5000, 0x1000);
    let transfer = [Td::new(Pid::In, buffer, 0x5000).ioc()];
    let begin = driver.machine.now;
    let mut queued: Vec<u32> =
        (0..QUEUED).map(|_| driver.submit(&mut queue, &transfer)[0]).collect();
    for _ in 0..TRANSFERS {
        wait_for_short(&mut driver, queued.remove(0));
        queued.push(driver.submit(&mut queue, &transfer)[0]);
    }
    driver.machine.now.since(begin)
}

/// The same in transfers of two qTDs, 32 KiB, that stop the queue.
fn stalling_transfers() -> Duration {
    let (mut driver, mut queue) = start();
    let buffer = driver.machine.alloc(0x8000, 0x1000);
    let stop = driver.stop;
    let transfer = [
        Td::new(Pid::In, buffer, 0x5000).alternate(stop),
        Td::new(Pid::In, buffer + 0x5000, 0x3000).ioc(),
    ];
    let begin = driver.machine.now;
    let mut queued: Vec<u32> =
        (0..QUEUED).map(|_| driver.submit(&mut queue, &transfer)[0]).collect();
    for _ in 0..TRANSFERS {
        driver.events.clear();
        wait_for_short(&mut driver, queued.remove(0));
        // Nothing but the interrupt tells of it.
        while driver.events.iter().all(|events| events & sts::INT == 0) {
            driver.machine.advance_micros(5);
            driver.service();
        }
        // The queue stands still: out of the ring, past the second qTD, and into the ring again.
        driver.unlink(&queue);
        driver.restart(&queue, queued[0]);
        driver.link(&queue);
        queued.push(driver.submit(&mut queue, &transfer)[0]);
    }
    driver.machine.now.since(begin)
}

#[test]
fn a_driver_that_stops_for_short_reads_has_about_half_the_rate() {
    let (small, stalling) = (small_transfers(), stalling_transfers());
    let each = |all: Duration| all.as_micros() / TRANSFERS as u128;
    println!("a burst takes {} us, with a stall {} us", each(small), each(stalling));
    let wire = u128::from(BURST * 125 / MICROFRAME_BYTES);
    assert!(each(small) < wire * 11 / 10, "queued transfers follow each other without a pause");
    let ratio = small.as_secs_f64() / stalling.as_secs_f64();
    assert!((0.4..0.65).contains(&ratio), "a real host has about 0.5: {ratio:.2}");
}
