//! A host prints.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::time::Time;
use crate::usb::{Function, Mailbox, Pid, Speed, Toggle};

/// Paper for the tests: what was printed, and how much more fits.
#[derive(Clone, Default)]
struct Tray {
    printed: Arc<Mutex<Vec<u8>>>,
    full_after: Option<Arc<AtomicUsize>>,
    paper: Paper,
}

impl Tray {
    fn with_room(bytes: usize) -> Self {
        Self { full_after: Some(Arc::new(AtomicUsize::new(bytes))), ..Self::default() }
    }

    fn text(&self) -> Vec<u8> {
        self.printed.lock().unwrap().clone()
    }
}

impl PrintSink for Tray {
    fn room(&mut self) -> usize {
        self.full_after.as_ref().map_or(usize::MAX, |left| left.load(Ordering::Relaxed))
    }

    fn print(&mut self, bytes: &[u8]) {
        if let Some(left) = &self.full_after {
            left.fetch_sub(bytes.len(), Ordering::Relaxed);
        }
        self.printed.lock().unwrap().extend(bytes);
    }

    fn paper(&self) -> Paper {
        self.paper
    }
}

/// A configured printer with the toggles that its host keeps.
struct Host {
    function: Function,
    mailbox: Arc<Mailbox>,
    toggles: [Toggle; 2],
    packet: u16,
}

impl Host {
    fn new(printer: Printer, speed: Speed) -> Self {
        let mailbox = Arc::new(Mailbox::default());
        let mut function = Function::new(Box::new(printer), Notifier::new(mailbox.clone()));
        let speed = function.bus_reset(speed);
        let packet = if speed == Speed::High { 512 } else { 64 };
        let mut host = Self { function, mailbox, toggles: [Toggle::Data0; 2], packet };
        assert_eq!(host.request(0x00, 9, 1, 0, 0), Ok(vec![]));
        host
    }

    fn transact(&mut self, pid: Pid, endpoint: u8, toggle: Toggle, bytes: &mut Vec<u8>) -> Outcome {
        self.function.transact(Transfer {
            pid,
            endpoint,
            max_packet: if endpoint == 0 { 64 } else { self.packet },
            toggle,
            now: Time::ZERO,
            buffer: bytes,
        })
    }

    /// A request without an OUT data stage.
    fn request(
        &mut self,
        kind: u8,
        code: u8,
        value: u16,
        index: u16,
        length: u16,
    ) -> Result<Vec<u8>, Outcome> {
        use zerocopy::IntoBytes;
        let setup = SetupPacket::new(kind, code, value, index, length);
        let mut bytes = setup.as_bytes().to_vec();
        let accepted = self.transact(Pid::Setup, 0, Toggle::Data0, &mut bytes);
        assert_eq!(accepted, Outcome::complete(8));
        let mut data = vec![0; length.into()];
        let answer = self.transact(Pid::In, 0, Toggle::Data1, &mut data);
        if !matches!(answer.status, crate::usb::Status::Complete) {
            return Err(answer);
        }
        data.truncate(answer.bytes);
        Ok(data)
    }

    fn bulk(&mut self, pid: Pid, bytes: &mut Vec<u8>) -> Outcome {
        let (endpoint, at) = if pid == Pid::In { (2, 1) } else { (1, 0) };
        let outcome = self.transact(pid, endpoint, self.toggles[at], bytes);
        let packets = outcome.packets(pid, bytes.len(), self.packet);
        self.toggles[at] = self.toggles[at].after(packets);
        outcome
    }

    fn write(&mut self, bytes: &[u8]) -> Outcome {
        self.bulk(Pid::Out, &mut bytes.to_vec())
    }

    fn read(&mut self) -> Result<Vec<u8>, Outcome> {
        let mut room = vec![0; 1024];
        let outcome = self.bulk(Pid::In, &mut room);
        room.truncate(outcome.bytes);
        if outcome == Outcome::complete(outcome.bytes) { Ok(room) } else { Err(outcome) }
    }

    fn ready(&self) -> Vec<EndpointAddress> {
        self.mailbox.take_ready().collect()
    }
}

#[test]
fn a_page_comes_out_as_it_was_sent() {
    for speed in [Speed::Full, Speed::High] {
        let tray = Tray::default();
        let mut host = Host::new(Printer::new(tray.clone()), speed);
        let page: Vec<u8> = (0..50_000_u32).map(|n| (n % 251) as u8).collect();
        for chunk in page.chunks(16_128) {
            assert_eq!(host.write(chunk), Outcome::complete(chunk.len()));
        }
        assert_eq!(tray.text(), page, "{speed}");
    }
}

#[test]
fn a_status_request_is_answered_and_a_read_without_one_is_parked() {
    let tray = Tray::default();
    let mut host = Host::new(Printer::new(tray.clone()), Speed::Full);
    assert_eq!(host.read(), Err(Outcome::PARK));
    assert_eq!(host.write(&STATUS_REQUEST), Outcome::complete(6));
    assert_eq!(host.ready(), [IN], "the pending read is announced once");
    assert_eq!(host.read(), Ok(vec![0x18, 1, 0, 0, 0, 0]));
    assert_eq!(host.read(), Err(Outcome::PARK));
    assert_eq!(tray.text(), b"", "questions are not printed");
}

#[test]
fn a_reply_counts_what_was_printed_before_its_question() {
    let mut host = Host::new(Printer::new(Discard), Speed::Full);
    host.write(&[0; 6144]);
    host.write(&STATUS_REQUEST);
    host.write(&[0; 256]);
    host.write(&STATUS_REQUEST);
    assert_eq!(host.read(), Ok(vec![0x18, 1, 0, 0x18, 0, 0]));
    assert_eq!(host.read(), Ok(vec![0x18, 2, 0, 0x19, 0, 0]));
}

#[test]
fn the_question_is_known_by_its_packet_however_the_host_queues_it() {
    let tray = Tray::default();
    let mut host = Host::new(Printer::new(tray.clone()), Speed::Full);
    // One transfer descriptor for a page's end and the question behind it.
    let mut bytes = vec![7; 128];
    bytes.extend(STATUS_REQUEST);
    assert_eq!(host.write(&bytes), Outcome::complete(134));
    assert_eq!(host.read(), Ok(vec![0x18, 1, 128, 0, 0, 0]));
    // The same bytes inside a packet are print data.
    let mut bytes = vec![7; 100];
    bytes.extend(STATUS_REQUEST);
    assert_eq!(host.write(&bytes), Outcome::complete(106));
    assert_eq!(host.read(), Err(Outcome::PARK));
    assert_eq!(tray.text().len(), 128 + 106);
}

#[test]
fn a_full_sink_makes_the_host_wait_at_a_packets_end_and_loses_nothing() {
    let tray = Tray::with_room(100);
    let mut host = Host::new(Printer::new(tray.clone()), Speed::Full);
    let page: Vec<u8> = (0..200).collect();
    assert_eq!(host.write(&page), Outcome::complete(64));
    assert_eq!(host.write(&page[64..]), Outcome::PARK);
    tray.full_after.as_ref().unwrap().store(1000, Ordering::Relaxed);
    assert_eq!(host.write(&page[64..]), Outcome::complete(136));
    assert_eq!(tray.text(), page);
}

#[test]
fn a_sink_that_has_room_again_wakes_the_host() {
    let mailbox = Arc::new(Mailbox::default());
    Ready::new(Notifier::new(mailbox.clone()), OUT).room();
    assert_eq!(mailbox.take_ready().collect::<Vec<_>>(), [OUT]);
}

#[test]
fn a_host_that_never_reads_is_held_at_the_bound() {
    let mut host = Host::new(Printer::new(Discard), Speed::Full);
    for _ in 0..REPLIES {
        assert_eq!(host.write(&STATUS_REQUEST), Outcome::complete(6));
    }
    assert_eq!(host.write(&STATUS_REQUEST), Outcome::PARK);
    assert_eq!(host.ready(), []);
    assert_eq!(host.read().map(|reply| reply[1]), Ok(1));
    assert_eq!(host.ready(), [OUT], "there is room for the question now");
    assert_eq!(host.write(&STATUS_REQUEST), Outcome::complete(6));
}

#[test]
fn a_read_with_too_little_room_does_not_lose_the_reply() {
    let mut host = Host::new(Printer::new(Discard), Speed::Full);
    host.write(&STATUS_REQUEST);
    let babble = Outcome::failed(0, crate::usb::BusError::Babble);
    assert_eq!(host.bulk(Pid::In, &mut vec![0; 5]), babble);
    assert_eq!(host.read().map(|reply| reply.len()), Ok(6));
}

#[test]
fn the_device_id_begins_with_its_length() {
    let mut host = Host::new(Printer::new(Discard), Speed::Full);
    let id = host.request(0xa1, 0, 0, 0, 1023).unwrap();
    assert_eq!(usize::from(u16::from_be_bytes([id[0], id[1]])), id.len());
    assert_eq!(&id[2..], DEVICE_ID.as_bytes());
    assert_eq!(host.request(0xa1, 0, 0, 0x0100, 1023), Err(Outcome::STALL), "no interface 1");
}

#[test]
fn the_port_status_tells_of_the_paper() {
    let status = |paper| {
        let tray = Tray { paper, ..Tray::default() };
        Host::new(Printer::new(tray), Speed::Full).request(0xa1, 1, 0, 0, 1).unwrap()
    };
    assert_eq!(status(Paper::Loaded), [0x18]);
    assert_eq!(status(Paper::Empty), [0x38]);
    assert_eq!(status(Paper::Error), [0x10]);
}

#[test]
fn a_soft_reset_forgets_replies_and_counts_in_both_of_its_forms() {
    for kind in [0x21, 0x23] {
        let mut host = Host::new(Printer::new(Discard), Speed::Full);
        host.write(&[0; 64]);
        host.write(&STATUS_REQUEST);
        assert_eq!(host.request(kind, 2, 0, 0, 0), Ok(vec![]));
        assert_eq!(host.read(), Err(Outcome::PARK));
        host.write(&STATUS_REQUEST);
        assert_eq!(host.read(), Ok(vec![0x18, 1, 0, 0, 0, 0]));
    }
}

#[test]
fn an_old_printer_knows_full_speed_only() {
    let mut host = Host::new(Printer::full_speed(Discard), Speed::High);
    assert_eq!(host.packet, 64);
    assert_eq!(host.request(0x80, 6, 0x0600, 0, 10), Err(Outcome::STALL), "no other speed");
}
