//! From offers and answers to transfers that begin and end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vm_usb::time::Time;
use vm_usb::usb::{
    BusError, Direction, EndpointAddress, Observer, Outcome, Pid, SetupPacket, Sight, Status,
    TransferType,
};

use super::Epoch;
use super::format::Subject;
use super::spool::Spool;
use crate::clock;

/// Linux's error numbers for a URB that failed (Documentation/driver-api/usb/error-codes.rst).
mod errno {
    pub(super) const PIPE: i32 = -32;
    pub(super) const COMM: i32 = -70;
    pub(super) const PROTO: i32 = -71;
    pub(super) const OVERFLOW: i32 = -75;
    pub(super) const ILSEQ: i32 = -84;
    pub(super) const CONNRESET: i32 = -104;
}

/// The devices of one bus on their way into a capture.
///
/// The host's requests are not seen, only the TDs and qTDs they are made of: each is a transfer here,
/// except that the stages of a control transfer are put together. A transfer that is offered again
/// and again begins once.
pub(super) struct Tap {
    spool: Arc<Spool>,
    ids: Arc<AtomicU64>,
    epoch: Epoch,
    bus: u16,
    open: Mutex<Open>,
}

/// What has begun and not ended: at most one transfer for each endpoint of each address.
#[derive(Default)]
struct Open {
    data: HashMap<(u8, EndpointAddress), Begun>,
    control: HashMap<u8, ControlTransfer>,
}

/// A transfer of a data endpoint.
struct Begun {
    subject: Subject,
    asked: usize,
}

/// A control transfer between its stages.
struct ControlTransfer {
    subject: Subject,
    setup: [u8; 8],
    /// `wLength`.
    wanted: u32,
    answers: bool,
    /// Whether its beginning is in the capture: that of one with an OUT data stage comes with the data.
    submitted: bool,
    data: Vec<u8>,
    /// Bytes moved, those too that are not kept.
    moved: u32,
    /// The last error on the bus; the host may try again.
    failed: Option<i32>,
}

impl Tap {
    pub(super) fn new(spool: Arc<Spool>, ids: Arc<AtomicU64>, epoch: Epoch, bus: u16) -> Self {
        Self { spool, ids, epoch, bus, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subject(&self, sight: &Sight<'_>, endpoint: u8, otherwise: TransferType) -> Subject {
        Subject {
            id: self.ids.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            bus: self.bus,
            device: sight.address,
            endpoint,
            transfer_type: sight.transfer_type.unwrap_or(otherwise),
        }
    }

    /// How much of `bytes` is kept.
    fn kept(&self, bytes: usize) -> usize {
        bytes.min(self.spool.limits().data as usize)
    }

    fn begin(&self, sight: &Sight<'_>) -> Begun {
        let subject = self.subject(sight, sight.endpoint.byte(), TransferType::Bulk);
        let asked = sight.buffer.len();
        let kept = if sight.endpoint.is_in() { 0 } else { self.kept(asked) };
        let event = subject.submitted(self.epoch.wall(sight.time), None, asked as u32, kept as u32);
        self.spool.add(&event, kept, |data| {
            sight.buffer.read(0, data);
        });
        Begun { subject, asked }
    }

    fn end(&self, begun: &Begun, sight: &Sight<'_>, outcome: &Outcome, status: i32) {
        let kept = if sight.endpoint.is_in() { self.kept(outcome.bytes) } else { 0 };
        let at = self.epoch.wall(sight.time);
        let event = begun.subject.completed(at, status, outcome.bytes as u32, kept as u32);
        self.spool.add(&event, kept, |data| {
            sight.buffer.read(0, data);
        });
    }

    /// The host has given up a transfer.
    fn give_up(&self, begun: &Begun, time: Time) {
        let at = self.epoch.wall(time);
        self.spool.add(&begun.subject.completed(at, errno::CONNRESET, 0, 0), 0, |_| {});
    }

    /// A stage of a control transfer was answered.
    fn control(&self, sight: &Sight<'_>, outcome: &Outcome) {
        let mut open = self.open();
        if sight.pid == Pid::Setup {
            if let Some(old) = open.control.remove(&sight.address) {
                let status = old.failed.unwrap_or(errno::CONNRESET);
                self.end_control(old, sight.time, status);
            }
            if let Some(transfer) = self.begin_control(sight, outcome) {
                open.control.insert(sight.address, transfer);
            }
            return;
        }
        let Some(transfer) = open.control.get_mut(&sight.address) else { return };
        let is_status = transfer.answers == (sight.pid == Pid::Out);
        if !is_status {
            self.collect(transfer, sight, outcome.bytes);
        }
        let ended = match outcome.status {
            Status::Complete if is_status => Some(0),
            Status::Complete | Status::Nak(_) | Status::Pending => None,
            Status::Stall => Some(errno::PIPE),
            Status::Error(error) => {
                transfer.failed = Some(number(error));
                None
            }
        };
        if let Some(status) = ended
            && let Some(transfer) = open.control.remove(&sight.address)
        {
            self.end_control(transfer, sight.time, status);
        }
    }

    fn begin_control(&self, sight: &Sight<'_>, outcome: &Outcome) -> Option<ControlTransfer> {
        let mut setup = [0; 8];
        sight.buffer.read(0, &mut setup);
        let packet = SetupPacket::from_bytes(&setup)?;
        let has_data = packet.length() != 0;
        let answers = has_data && packet.direction() == Direction::In;
        let endpoint = if packet.direction() == Direction::In { 0x80 } else { 0 };
        let mut transfer = ControlTransfer {
            subject: self.subject(sight, endpoint, TransferType::Control),
            setup,
            wanted: packet.length().into(),
            answers,
            submitted: false,
            data: Vec::new(),
            moved: 0,
            failed: None,
        };
        if let Status::Error(error) = outcome.status {
            self.end_control(transfer, sight.time, number(error));
            return None;
        }
        if answers || !has_data {
            self.submit_control(&mut transfer, sight.time);
        }
        Some(transfer)
    }

    fn collect(&self, transfer: &mut ControlTransfer, sight: &Sight<'_>, bytes: usize) {
        transfer.moved = transfer.moved.saturating_add(bytes as u32);
        let before = transfer.data.len();
        // A guest may go on for ever; wLength is at most 65535.
        let kept = self.kept(before + bytes).min(transfer.wanted as usize).max(before);
        transfer.data.resize(kept, 0);
        sight.buffer.read(0, &mut transfer.data[before..]);
    }

    fn submit_control(&self, transfer: &mut ControlTransfer, time: Time) {
        transfer.submitted = true;
        let data: &[u8] = if transfer.answers { &[] } else { &transfer.data };
        let at = self.epoch.wall(time);
        let setup = Some(transfer.setup);
        let event = transfer.subject.submitted(at, setup, transfer.wanted, data.len() as u32);
        self.spool.add(&event, data.len(), |into| into.copy_from_slice(data));
    }

    fn end_control(&self, mut transfer: ControlTransfer, time: Time, status: i32) {
        if !transfer.submitted {
            self.submit_control(&mut transfer, time);
        }
        let data: &[u8] = if transfer.answers { &transfer.data } else { &[] };
        let at = self.epoch.wall(time);
        let event = transfer.subject.completed(at, status, transfer.moved, data.len() as u32);
        self.spool.add(&event, data.len(), |into| into.copy_from_slice(data));
    }
}

impl Observer for Tap {
    fn now(&self, _: Time) -> Time {
        clock::now()
    }

    fn offered(&self, sight: &Sight<'_>) {
        if sight.endpoint == EndpointAddress::CONTROL {
            // What matters of a stage is known when it is answered.
            return;
        }
        let mut open = self.open();
        let key = (sight.address, sight.endpoint);
        match open.data.get(&key) {
            Some(begun) if begun.asked == sight.buffer.len() => {}
            // The host has replaced what the device had not answered yet.
            Some(begun) => {
                self.give_up(begun, sight.time);
                open.data.insert(key, self.begin(sight));
            }
            None => {
                open.data.insert(key, self.begin(sight));
            }
        }
    }

    fn answered(&self, sight: &Sight<'_>, outcome: &Outcome) {
        if sight.endpoint == EndpointAddress::CONTROL {
            self.control(sight, outcome);
            return;
        }
        let status = match outcome.status {
            // Nothing was taken, which is what NAK says.
            Status::Complete
                if sight.pid == Pid::Out && outcome.bytes == 0 && !sight.buffer.is_empty() =>
            {
                return;
            }
            Status::Nak(_) | Status::Pending => return,
            Status::Complete => 0,
            Status::Stall => errno::PIPE,
            Status::Error(error) => number(error),
        };
        let begun = self.open().data.remove(&(sight.address, sight.endpoint));
        if let Some(begun) = begun {
            self.end(&begun, sight, outcome, status);
        }
    }

    fn cancelled(&self, address: u8, endpoint: EndpointAddress) {
        let begun = self.open().data.remove(&(address, endpoint));
        if let Some(begun) = begun {
            self.give_up(&begun, clock::now());
        }
    }
}

fn number(error: BusError) -> i32 {
    match error {
        BusError::Crc | BusError::BitStuffing => errno::ILSEQ,
        BusError::Babble => errno::OVERFLOW,
        BusError::HostBuffer => errno::COMM,
        BusError::Timeout
        | BusError::PidCheck
        | BusError::UnexpectedPid
        | BusError::ToggleMismatch => errno::PROTO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::format::EVENT_SIZE;
    use crate::pcap::spool::Limits;
    use crate::pcap::spool::tests::{bytes, stuck};
    use vm_usb::usb::Speed;

    /// A tap, and what comes out of it.
    struct Bench {
        tap: Tap,
        spool: Arc<Spool>,
    }

    impl Bench {
        fn new() -> Self {
            let spool = stuck(Limits { data: 16, file: u64::MAX });
            let tap = Tap::new(spool.clone(), Arc::default(), Epoch(1_000_000), 3);
            Self { tap, spool }
        }

        fn transfer(&self, pid: Pid, endpoint: EndpointAddress, data: &[u8], outcome: Outcome) {
            let buffer = data.to_vec();
            let control = endpoint == EndpointAddress::CONTROL;
            let kind = if control { TransferType::Control } else { TransferType::Bulk };
            let sight = Sight {
                time: Time::from_nanos(7_000),
                address: 5,
                speed: Speed::High,
                pid,
                endpoint,
                transfer_type: Some(kind),
                buffer: &buffer,
            };
            self.tap.offered(&sight);
            self.tap.answered(&sight, &outcome);
        }

        fn setup(&self, setup: [u8; 8]) {
            self.transfer(Pid::Setup, EndpointAddress::CONTROL, &setup, Outcome::complete(8));
        }

        fn stage(&self, pid: Pid, data: &[u8], outcome: Outcome) {
            self.transfer(pid, EndpointAddress::CONTROL, data, outcome);
        }

        /// Each event: kind, id, endpoint, status, length and data.
        fn events(&self) -> Vec<(char, u64, u8, i32, u32, Vec<u8>)> {
            let all = bytes(&self.spool);
            let mut rest = &all[..];
            let mut events = Vec::new();
            let dword = |at: &[u8]| u32::from_le_bytes(at[..4].try_into().unwrap());
            while !rest.is_empty() {
                let captured = dword(&rest[8..]) as usize;
                let event = &rest[16..16 + captured];
                assert_eq!((event[11], event[12], event[9] & 2), (5, 3, 2), "device, bus, type");
                assert_eq!(dword(&event[36..]) as usize, captured - EVENT_SIZE);
                events.push((
                    event[8].into(),
                    u64::from_le_bytes(event[..8].try_into().unwrap()),
                    event[10],
                    dword(&event[28..]) as i32,
                    dword(&event[32..]),
                    event[EVENT_SIZE..].to_vec(),
                ));
                rest = &rest[16 + captured..];
            }
            events
        }
    }

    const IN1: EndpointAddress = EndpointAddress::r#in(1);
    const OUT2: EndpointAddress = EndpointAddress::out(2);
    const BEGUN: i32 = -115;

    #[test]
    fn a_control_read_is_one_transfer_with_the_data_of_all_its_stages() {
        let bench = Bench::new();
        bench.setup([0x80, 6, 0, 1, 0, 0, 12, 0]);
        bench.stage(Pid::In, &[1; 8], Outcome::complete(8));
        bench.stage(Pid::In, &[2; 4], Outcome::NAK);
        bench.stage(Pid::In, &[2; 4], Outcome::complete(4));
        bench.stage(Pid::Out, &[], Outcome::complete(0));
        let data = [[1; 8].as_slice(), &[2; 4]].concat();
        assert_eq!(
            bench.events(),
            [('S', 1, 0x80, BEGUN, 12, vec![]), ('C', 1, 0x80, 0, 12, data)]
        );
    }

    #[test]
    fn a_control_write_begins_with_its_data() {
        let bench = Bench::new();
        bench.setup([0x21, 9, 0, 2, 0, 0, 1, 0]);
        bench.stage(Pid::Out, &[3], Outcome::complete(1));
        bench.stage(Pid::In, &[], Outcome::complete(0));
        bench.setup([0, 9, 1, 0, 0, 0, 0, 0]);
        bench.stage(Pid::In, &[], Outcome::complete(0));
        assert_eq!(
            bench.events(),
            [
                ('S', 1, 0, BEGUN, 1, vec![3]),
                ('C', 1, 0, 0, 1, vec![]),
                ('S', 2, 0, BEGUN, 0, vec![]),
                ('C', 2, 0, 0, 0, vec![]),
            ]
        );
    }

    #[test]
    fn requests_that_are_refused_fail_or_are_given_up_end_with_the_error_linux_has_for_it() {
        let bench = Bench::new();
        let request = [0xc0, 1, 0, 0, 0, 0, 4, 0];
        bench.setup(request);
        bench.stage(Pid::In, &[0; 4], Outcome::STALL);
        bench.setup(request);
        bench.stage(Pid::In, &[0; 4], Outcome::failed(0, BusError::Crc));
        bench.setup(request);
        bench.setup(request);
        bench.stage(Pid::Setup, &request, Outcome::TIMEOUT);
        let ends: Vec<_> = bench.events().into_iter().filter(|event| event.0 == 'C').collect();
        let statuses: Vec<_> = ends.iter().map(|event| (event.1, event.3)).collect();
        assert_eq!(statuses, [(1, -32), (2, -84), (3, -104), (4, -104), (5, -71)]);
    }

    #[test]
    fn a_transfer_that_is_offered_again_and_again_begins_once() {
        let bench = Bench::new();
        bench.transfer(Pid::In, IN1, &[9; 20], Outcome::PARK);
        bench.transfer(Pid::In, IN1, &[9; 20], Outcome::PENDING);
        bench.transfer(Pid::In, IN1, &[9; 20], Outcome::complete(20));
        bench.transfer(Pid::Out, OUT2, &[7; 3], Outcome::complete(0));
        bench.transfer(Pid::Out, OUT2, &[7; 3], Outcome::complete(3));
        assert_eq!(
            bench.events(),
            [
                ('S', 1, 0x81, BEGUN, 20, vec![]),
                ('C', 1, 0x81, 0, 20, vec![9; 16]),
                ('S', 2, 0x02, BEGUN, 3, vec![7; 3]),
                ('C', 2, 0x02, 0, 3, vec![]),
            ],
            "and of its data as much is kept as was asked for"
        );
    }

    #[test]
    fn what_the_host_gives_up_or_replaces_has_an_end() {
        let bench = Bench::new();
        bench.transfer(Pid::In, IN1, &[0; 20], Outcome::PENDING);
        bench.tap.cancelled(5, IN1);
        bench.tap.cancelled(5, IN1);
        bench.transfer(Pid::In, IN1, &[0; 20], Outcome::PARK);
        bench.transfer(Pid::In, IN1, &[0; 30], Outcome::STALL);
        let seen: Vec<_> = bench.events().into_iter().map(|e| (e.0, e.1, e.3)).collect();
        assert_eq!(
            seen,
            [
                ('S', 1, BEGUN),
                ('C', 1, -104),
                ('S', 2, BEGUN),
                ('C', 2, -104),
                ('S', 3, BEGUN),
                ('C', 3, -32),
            ]
        );
    }

    #[test]
    fn a_data_stage_without_end_is_not_kept_for_ever() {
        let bench = Bench::new();
        bench.setup([0x40, 1, 0, 0, 0, 0, 8, 0]);
        for _ in 0..1000 {
            bench.stage(Pid::Out, &[1; 8], Outcome::complete(8));
        }
        assert_eq!(bench.tap.open().control[&5].data.len(), 8);
    }
}
