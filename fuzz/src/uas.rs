//! A disk with a host that speaks UAS, more or less.

use std::collections::HashMap;

use arbitrary::{Arbitrary, Result, Unstructured};
use vm_usb::devices::storage::{RamDisk, Serial, Storage};
use vm_usb::snapshot::{restore, save};
use vm_usb::usb::{Outcome, Pid, Speed, Status};

use crate::driver::direct::DirectHost;
use crate::driver::enumerate::{clear_halt, enumerate};
use crate::driver::host::{HostDriver, Pipe};
use crate::driver::mass_storage::{Data, DiskError, Sense, ten};
use crate::driver::uas::{Answer, Uas};

const BLOCKS: usize = 16;
const BLOCK: usize = 512;
/// Most transfers until a queue is empty: 64 commands that wait and 128 answers that were not fetched, with
/// data of up to 255 blocks each in pieces of [`PIECE`] bytes.
const MOST_TRANSFERS: usize = 20_000;
const PIECE: usize = 16 << 10;
/// Tags that a host uses, so that it uses some twice.
const TAGS: u16 = 200;

/// What the host does.
#[derive(Debug)]
enum Act {
    Command {
        tag: u16,
        attribute: u8,
        lun: u8,
        cdb: [u8; 16],
    },
    Manage {
        tag: u16,
        function: u8,
        managed: u16,
        lun: u8,
    },
    /// Something on the command pipe.
    Send(Vec<u8>),
    /// So many information units like it.
    Flood(u16, u8),
    Status(usize),
    In(usize),
    Out(usize, u8),
    /// The toggle of a pipe is the first one again.
    Toggle(u8),
    ClearHalt(u8),
    Select(u8),
    /// The machine goes on elsewhere.
    Migrate,
    Reset,
}

fn cdb(u: &mut Unstructured<'_>) -> Result<[u8; 16]> {
    /// The operation codes a disk knows.
    const KNOWN: [u8; 24] = [
        0x00, 0x03, 0x12, 0x1a, 0x1b, 0x1e, 0x25, 0x28, 0x2a, 0x2f, 0x35, 0x41, 0x42, 0x5a, 0x08,
        0x0a, 0x88, 0x8a, 0x8f, 0x91, 0x93, 0x9e, 0xa0, 0xa8,
    ];
    let opcode = if u.ratio(9, 10)? { *u.choose(&KNOWN)? } else { u.arbitrary()? };
    if u.ratio(1, 2)? {
        // Ten bytes, with blocks that are there or nearly so.
        let mut cdb = [0; 16];
        let (lba, blocks) = (u.int_in_range(0..=17)?, u.int_in_range(0..=17)?);
        cdb[..10].copy_from_slice(&ten(opcode, lba, blocks));
        cdb[1] = if u.ratio(1, 4)? { u.arbitrary()? } else { 0 };
        return Ok(cdb);
    }
    let mut cdb = [opcode; 16];
    for byte in &mut cdb[1..] {
        *byte = if u.ratio(2, 3)? { 0 } else { u.arbitrary()? };
    }
    Ok(cdb)
}

fn len(u: &mut Unstructured<'_>) -> Result<usize> {
    Ok(match u.int_in_range(0..=2)? {
        0 => *u.choose(&[0, 4, 8, 16, 34, 36, 64, 512, 1024, 8192])?,
        1 => u.int_in_range(0..=100)?,
        _ => u.int_in_range(0..=10_000)?,
    })
}

impl<'a> Arbitrary<'a> for Act {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let tag = |u: &mut Unstructured<'a>| u.int_in_range(0..=TAGS);
        let lun = |u: &mut Unstructured<'a>| Ok(u8::from(u.ratio(1, 12)?));
        Ok(match u.int_in_range(0..=31)? {
            0..=9 => Self::Command {
                tag: tag(u)?,
                attribute: if u.ratio(1, 3)? { u.arbitrary()? } else { 0 },
                lun: lun(u)?,
                cdb: cdb(u)?,
            },
            10..=12 => Self::Manage {
                tag: tag(u)?,
                function: *u.choose(&[0x01, 0x02, 0x04, 0x08, 0x10, 0x40, 0x80, 0x81, 0x82])?,
                managed: tag(u)?,
                lun: lun(u)?,
            },
            13 => Self::Send(u.bytes(u.len().min(70))?.to_vec()),
            14 => Self::Flood(tag(u)?, u.arbitrary()?),
            15..=20 => Self::Status(if u.ratio(5, 6)? { 96 } else { len(u)? }),
            21..=23 => Self::In(len(u)?),
            24..=26 => Self::Out(len(u)?, u.arbitrary()?),
            27 => Self::Toggle(u.int_in_range(0..=3)?),
            28 => Self::ClearHalt(u.int_in_range(0..=3)?),
            29 => Self::Select(u.int_in_range(0..=2)?),
            30 => Self::Migrate,
            _ => Self::Reset,
        })
    }
}

/// What a host does with a disk at one of two speeds.
#[derive(Debug)]
pub struct Queue {
    high: bool,
    read_only: bool,
    acts: Vec<Act>,
}

impl<'a> Arbitrary<'a> for Queue {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let (high, read_only) = (u.arbitrary()?, u.ratio(1, 4)?);
        let mut acts = Vec::new();
        while !u.is_empty() && acts.len() < 200 {
            acts.push(u.arbitrary()?);
        }
        Ok(Self { high, read_only, acts })
    }
}

impl Queue {
    /// Does it, and holds the disk to the rules.
    pub fn live(self) {
        let speed = if self.high { Speed::High } else { Speed::Full };
        let disk = RamDisk::zeroed(BLOCKS);
        let disk = if self.read_only { disk.into_read_only() } else { disk };
        let mut host = Host::new(speed, disk);
        for step in self.acts {
            host.play(step);
        }
        host.empty();
        host.assert_usable();
    }
}

/// A disk's host, which counts.
struct Host {
    speed: Speed,
    disk: RamDisk,
    host: DirectHost,
    driver: Uas,
    /// Whether UAS is the present setting.
    uas: bool,
    /// How often each tag was sent, and how often it had a last answer.
    sent: HashMap<u16, u32>,
    answered: HashMap<u16, u32>,
}

fn device(disk: &RamDisk) -> Storage {
    Storage::new(disk.clone(), Serial::from_name("disk"))
}

fn find(host: &mut DirectHost) -> Uas {
    let enumerated = enumerate(host, 0, 5).expect("it always enumerates");
    Uas::bind(host, &enumerated).expect("it answers").expect("it has UAS")
}

impl Host {
    fn new(speed: Speed, disk: RamDisk) -> Self {
        let mut host = DirectHost::new(speed, device(&disk));
        let driver = find(&mut host);
        let (sent, answered) = Default::default();
        Self { speed, disk, host, driver, uas: true, sent, answered }
    }

    fn pipe(&self, n: u8) -> Pipe {
        let Uas { command, status, input, output, .. } = self.driver;
        [command, status, input, output][usize::from(n) % 4]
    }

    /// One transfer. No pipe of UAS is ever halted.
    fn transact(&mut self, pipe: Pipe, buffer: &mut Vec<u8>) -> Outcome {
        let len = buffer.len();
        let pid = if pipe.endpoint.is_in() { Pid::In } else { Pid::Out };
        let outcome = self.host.transact(&pipe, pid, buffer);
        assert!(outcome.bytes <= len, "{outcome:?}");
        assert!(!self.uas || outcome.status != Status::Stall, "{pipe:?}");
        outcome
    }

    /// Sends something on the command pipe.
    fn send(&mut self, bytes: &[u8]) -> Outcome {
        let (mut bytes, tag) = (bytes.to_vec(), tag(bytes));
        let outcome = self.transact(self.driver.command, &mut bytes);
        if self.uas && outcome.status == Status::Complete {
            *self.sent.entry(tag).or_default() += 1;
        }
        outcome
    }

    /// Asks for an answer, which is one to something that was sent.
    fn status(&mut self, room: usize) -> Outcome {
        let mut bytes = vec![0; room];
        let outcome = self.transact(self.driver.status, &mut bytes);
        if self.uas && outcome.status == Status::Complete {
            bytes.truncate(outcome.bytes);
            match Answer::parse(&bytes).unwrap_or_else(|| panic!("no answer: {bytes:x?}")) {
                Answer::ReadReady(tag) | Answer::WriteReady(tag) => {
                    assert!(self.answered.get(&tag) < self.sent.get(&tag), "{tag} has ended");
                }
                Answer::Good(tag)
                | Answer::Check(tag, _)
                | Answer::Status(tag, _)
                | Answer::Response(tag, _) => {
                    let answered = self.answered.entry(tag).or_default();
                    *answered += 1;
                    let sent = self.sent.get(&tag).copied().unwrap_or_default();
                    assert!(*answered <= sent, "{tag} was sent {sent} times");
                }
            }
        }
        outcome
    }

    fn play(&mut self, step: Act) {
        match step {
            Act::Command { tag, attribute, lun, cdb } => {
                let mut iu = Uas::command_iu(tag, attribute, &cdb);
                iu[9] = lun;
                self.send(&iu);
            }
            Act::Manage { tag, function, managed, lun } => {
                let mut iu = Uas::task_management_iu(tag, function, managed);
                iu[9] = lun;
                self.send(&iu);
            }
            Act::Send(bytes) => {
                self.send(&bytes);
            }
            Act::Flood(first, count) => {
                for tag in (first..).take(count.into()) {
                    self.send(&Uas::command_iu(tag, 0, &[0; 6]));
                }
            }
            Act::Status(room) => {
                self.status(room);
            }
            Act::In(len) => {
                self.transact(self.driver.input, &mut vec![0; len]);
            }
            Act::Out(len, byte) => {
                self.transact(self.driver.output, &mut vec![byte; len]);
            }
            Act::Toggle(n) => self.host.reset_toggle(&self.pipe(n)),
            // An endpoint that is not there refuses it.
            Act::ClearHalt(n) => {
                let pipe = self.pipe(n);
                let refused = clear_halt(&mut self.host, &pipe).is_err();
                assert!(!self.uas || !refused);
            }
            Act::Select(alternate) => {
                if self.driver.select(&mut self.host, alternate).is_ok() {
                    self.uas = alternate == 1;
                    self.sent.clear();
                    self.answered.clear();
                }
            }
            Act::Migrate => {
                let saved = save(self.host.now, &[("port", &self.host.port)]).unwrap();
                let mut host = DirectHost::new(self.speed, device(&self.disk));
                let now = host.now;
                restore(&saved, now, &mut [("port", &mut host.port)]).expect("its own snapshot");
                host.adopt_toggles(&self.host);
                self.host = host;
            }
            Act::Reset => {
                self.driver = find(&mut self.host);
                self.uas = true;
                self.sent.clear();
                self.answered.clear();
            }
        }
    }

    /// Fetches and sends all that the disk asks for, until it is quiet. Then nothing is left of any command.
    fn empty(&mut self) {
        if !self.uas {
            return;
        }
        // Both sides agree on the toggles from here on.
        for n in 0..4 {
            let pipe = self.pipe(n);
            clear_halt(&mut self.host, &pipe).unwrap();
        }
        let quiet = (0..MOST_TRANSFERS).any(|_| {
            let Uas { input, output, .. } = self.driver;
            self.status(96) == Outcome::PARK
                && self.transact(input, &mut vec![0; PIECE]) == Outcome::PARK
                && self.transact(output, &mut vec![0; PIECE]) == Outcome::PARK
        });
        assert!(quiet, "the queue never ends");
        // QUERY TASK SET.
        let taken = self.send(&Uas::task_management_iu(u16::MAX, 0x81, 0));
        assert_eq!(taken, Outcome::complete(16));
        let answer = self.driver.answer(&mut self.host);
        assert_eq!(answer, Ok(Answer::Response(u16::MAX, 0)), "a command is left behind");
    }

    /// After the host has chosen anew, a block that is written is read.
    fn assert_usable(&mut self) {
        self.driver.select(&mut self.host, 1).unwrap();
        match self.driver.start(&mut self.host) {
            Ok(()) => {}
            // START STOP UNIT had stopped it.
            Err(DiskError::Check(Sense(2, 4, 2))) => {
                self.driver.scsi(&mut self.host, &[0x1b, 0, 0, 0, 1, 0], Data::None).unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
        let written = self.driver.scsi(&mut self.host, &ten(0x2a, 3, 1), Data::Out(&[0xa5; BLOCK]));
        let read = self.driver.scsi(&mut self.host, &ten(0x28, 3, 1), Data::In(BLOCK));
        match written {
            Ok(_) => assert_eq!(read, Ok(vec![0xa5; BLOCK])),
            // WRITE PROTECTED.
            Err(error) => {
                assert_eq!(error, DiskError::Check(Sense(7, 0x27, 0)));
                assert_eq!(read, Ok(vec![0; BLOCK]));
            }
        }
    }
}

/// TAG, which is 0 where there is none.
fn tag(bytes: &[u8]) -> u16 {
    let byte = |at| bytes.get(at).copied().unwrap_or_default();
    u16::from_be_bytes([byte(2), byte(3)])
}
