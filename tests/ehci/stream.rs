//! Isochronous streams that go on for long, through a driver with a ring of iTDs (EHCI 3.3, 4.7).

use vm_usb::devices::loopback::{Counters, Isochronous, Loopback, LoopbackOptions, Pattern};
use vm_usb::topology::Port;
use vm_usb::usb::{Pid, SetupPacket, request};

use crate::driver::ehci::{EhciDriver, FRAMES, TERMINATE, cmd, fresh_device, reg, sts};
use crate::driver::host::HostDriver;
use crate::driver::machine::Machine;
use crate::rig::controller;

const ACTIVE: u32 = 1 << 31;
const ERRORS: u32 = 7 << 28;
const IOC: u32 = 1 << 15;
const DIRECTION_IN: u32 = 1 << 11;

/// Frames of iTDs that a driver keeps queued, as Linux's does for a camera.
const RING: u32 = 64;
/// The driver is interrupted once in this many frames.
const BATCH: u32 = 8;
/// FRINDEX counts this many frames.
const COUNTED_FRAMES: u32 = 2048;
const DEVICE: u8 = 9;

/// What became of the slots of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slots {
    done: u64,
    /// Their time came and went.
    missed: u64,
}

/// The slots of one direction for a ring of frames.
struct Endpoint {
    pid: Pid,
    itds: Vec<u32>,
    buffers: Vec<u32>,
    slots: Slots,
}

/// A driver that streams.
struct Stream {
    driver: EhciDriver,
    endpoints: Vec<Endpoint>,
    /// Bytes of a microframe.
    room: u32,
    /// The first frame not looked at yet.
    frame: u32,
    counters: Counters,
}

impl Stream {
    /// A source and sink at `packets` of 1,024 bytes a microframe with these directions in use.
    fn new(packets: u8, pids: &[Pid]) -> Self {
        let isochronous = Isochronous::new(1024, packets, 1).unwrap();
        let options = LoopbackOptions { pattern: Pattern::Mod63, isochronous, messages: None };
        let device = Loopback::new(options);
        let counters = device.counters();
        let port = Port::high_speed_only();
        let mut driver = EhciDriver::new(Machine::new(controller(std::slice::from_ref(&port))));
        port.attach(Box::new(device)).unwrap();
        driver.sleep_millis(1);
        driver.reset_port(0).unwrap();
        let mut device = fresh_device();
        let set = |kind, what, value: u16| SetupPacket::new(kind, what, value, 0, 0);
        driver.control(&device, set(0, request::SET_ADDRESS, DEVICE.into()), &[]).unwrap();
        device.address = DEVICE;
        driver.control(&device, set(0, request::SET_CONFIGURATION, 3), &[]).unwrap();
        driver.control(&device, set(1, request::SET_INTERFACE, 1), &[]).unwrap();
        driver.sleep_millis(1);
        driver.take_events();

        let room = 1024 * u32::from(packets);
        let endpoints = pids.iter().map(|pid| Endpoint::new(&mut driver, *pid, packets)).collect();
        let mut stream = Self { driver, endpoints, room, frame: 0, counters };
        stream.start();
        stream
    }

    /// Links the rings into every frame and arms them from the frame after the next on.
    fn start(&mut self) {
        for frame in 0..FRAMES {
            let mut link = TERMINATE;
            for endpoint in self.endpoints.iter().rev() {
                let itd = endpoint.itds[(frame % RING) as usize];
                self.driver.machine.store(itd, link);
                link = itd;
            }
            self.driver.machine.store(self.driver.frame_list + 4 * frame, link);
        }
        self.driver.enable(cmd::PERIODIC, sts::PERIODIC);
        self.frame = self.now() + 2;
        for frame in self.frame..self.frame + RING {
            self.arm(frame);
        }
    }

    /// The present frame, counted on from the last one looked at.
    fn now(&mut self) -> u32 {
        let frame = self.driver.machine.read32(reg::FRINDEX) >> 3;
        self.frame + (frame.wrapping_sub(self.frame) % COUNTED_FRAMES)
    }

    fn arm(&mut self, frame: u32) {
        let at = (frame % RING) as usize;
        for endpoint in &self.endpoints {
            let (itd, room) = (endpoint.itds[at], self.room);
            if endpoint.pid == Pid::In {
                // A byte that has to change in every slot.
                for slot in 0..8 {
                    let last = endpoint.buffers[at] + slot * room + room - 1;
                    self.driver.machine.fill(last, &[0xee]);
                }
            }
            for slot in 0..8 {
                let offset = slot * room;
                let ioc = if slot == 7 && frame.is_multiple_of(BATCH) { IOC } else { 0 };
                let word = ACTIVE | room << 16 | (offset >> 12) << 12 | (offset & 0xfff) | ioc;
                self.driver.machine.store(itd + 4 + 4 * slot, word);
            }
        }
    }

    /// The interrupt handler: looks at the frames that are over and queues them again.
    fn service(&mut self) {
        self.driver.service();
        let now = self.now();
        for frame in self.frame..now {
            let at = (frame % RING) as usize;
            for endpoint in &mut self.endpoints {
                for slot in 0..8 {
                    let word = self.driver.machine.load(endpoint.itds[at] + 4 + 4 * slot);
                    if word & ACTIVE != 0 {
                        endpoint.slots.missed += 1;
                        continue;
                    }
                    assert_eq!(word & ERRORS, 0, "frame {frame}, slot {slot}");
                    assert_eq!(word >> 16 & 0xfff, self.room, "frame {frame}, slot {slot}");
                    endpoint.slots.done += 1;
                    if endpoint.pid == Pid::In {
                        let last = endpoint.buffers[at] + slot * self.room + self.room - 1;
                        assert_eq!(self.driver.machine.bytes(last, 1), [(1023 % 63) as u8]);
                    }
                }
            }
            self.arm(frame + RING);
        }
        self.frame = now;
    }

    fn slots(&self, pid: Pid) -> Slots {
        self.endpoints.iter().find(|endpoint| endpoint.pid == pid).unwrap().slots
    }

    fn skipped(&self) -> u64 {
        self.driver.machine.frames().skipped
    }
}

impl Endpoint {
    fn new(driver: &mut EhciDriver, pid: Pid, packets: u8) -> Self {
        let (number, direction) = match pid {
            Pid::In => (3, DIRECTION_IN),
            _ => (4, 0),
        };
        let machine = &mut driver.machine;
        let (mut itds, mut buffers) = (vec![], vec![]);
        for _ in 0..RING {
            let itd = machine.alloc(0x60, 32);
            let buffer = machine.alloc(7 << 12, 1 << 12);
            let facts =
                [number << 8 | u32::from(DEVICE), direction | 1024, u32::from(packets), 0, 0, 0, 0];
            for (page, facts) in (0u32..).zip(facts) {
                machine.store(itd + 0x24 + 4 * page, (buffer + (page << 12)) | facts);
            }
            itds.push(itd);
            buffers.push(buffer);
        }
        Self { pid, itds, buffers, slots: Slots::default() }
    }
}

#[test]
fn a_camera_runs_for_a_minute_and_no_microframe_is_missed() {
    let mut camera = Stream::new(3, &[Pid::In]);
    let seconds = 60;
    for _ in 0..seconds * 1_000 / BATCH {
        camera.driver.machine.advance_millis(BATCH.into());
        camera.service();
    }
    let slots = camera.slots(Pid::In);
    assert_eq!(slots.missed, 0);
    assert_eq!(camera.skipped(), 0);
    // The last frame or two are not looked at yet.
    let all = u64::from(seconds) * 8_000;
    assert!((all - 32..=all).contains(&slots.done), "{} of {all} microframes", slots.done);
    assert!(camera.counters.sent() >= slots.done * 3 * 1024, "24 MB/s: 3 packets each");
}

#[test]
fn a_pair_of_streams_runs_and_no_microframe_is_missed_either_way() {
    let mut pair = Stream::new(1, &[Pid::In, Pid::Out]);
    for _ in 0..5_000 / BATCH {
        pair.driver.machine.advance_millis(BATCH.into());
        pair.service();
    }
    assert_eq!((pair.slots(Pid::In).missed, pair.slots(Pid::Out).missed), (0, 0));
    assert!(pair.slots(Pid::In).done >= 39_900 && pair.slots(Pid::Out).done >= 39_900);
    assert_eq!(pair.skipped(), 0);
    assert!(pair.counters.received() >= 39_900 * 1024);
}

#[test]
fn a_host_that_comes_back_late_makes_up_for_what_is_queued() {
    let mut camera = Stream::new(3, &[Pid::In]);
    for stall in [3, 17, 30, 45, 60, 1, 55] {
        // The controller is not run in the meantime; the guest's handler looks first.
        let machine = &mut camera.driver.machine;
        machine.now = machine.now.after_millis(stall);
        camera.service();
        camera.driver.machine.advance_millis(1);
        camera.service();
        assert_eq!(camera.slots(Pid::In).missed, 0, "after {stall} ms");
    }
    assert_eq!(camera.skipped(), 0);
}

#[test]
fn what_the_driver_did_not_queue_in_time_is_not_sent_later() {
    let mut camera = Stream::new(3, &[Pid::In]);
    // The driver sleeps for twice as long as its ring lasts.
    camera.driver.machine.advance_millis(2 * u64::from(RING));
    let sent = camera.counters.sent();
    assert_eq!(sent, u64::from(RING) * 8 * 3 * 1024, "the ring, once");
    camera.driver.machine.advance_millis(50);
    assert_eq!(camera.counters.sent(), sent);
    assert_eq!(camera.skipped(), 0, "the controller was in time");
}
