//! What goes wrong on the way of a queue of commands, and how driver and disk find each other again.

use serde_json::{Value, json};
use vm_usb::devices::faulty::{Faulty, Odds};
use vm_usb::devices::storage::{BlockSize, RamDisk, Serial, Storage};
use vm_usb::snapshot::{restore, save};
use vm_usb::time::Time;
use vm_usb::usb::Speed;

use crate::driver::direct::DirectHost;
use crate::driver::enumerate::enumerate;
use crate::driver::mass_storage::{Data, DiskError, ten};
use crate::driver::uas::Uas;
use crate::rig::{BLOCK, pattern};

/// A driver that resets the device when a command has no answer, which is all that UAS knows.
struct Stubborn {
    host: DirectHost,
    driver: Uas,
}

impl Stubborn {
    fn begin(host: &mut DirectHost) -> Uas {
        let mut attempt = || {
            let enumerated = enumerate(host, 0, 5).ok()?;
            let mut driver = Uas::bind(host, &enumerated).ok()??;
            driver.start(host).ok()?;
            Some(driver)
        };
        (0..200).find_map(|_| attempt()).expect("200 attempts did not start the disk")
    }

    fn new(mut host: DirectHost) -> Self {
        let driver = Self::begin(&mut host);
        Self { host, driver }
    }

    fn scsi(&mut self, cdb: &[u8], data: Data<'_>) -> Vec<u8> {
        for _ in 0..100 {
            match self.driver.scsi(&mut self.host, cdb, data) {
                Ok(data) => return data,
                Err(DiskError::Check(sense)) => panic!("the disk is in order: {sense:?}"),
                Err(DiskError::Command(_)) => self.driver = Self::begin(&mut self.host),
            }
        }
        panic!("100 attempts did not get a command through");
    }
}

#[test]
fn a_driver_that_resets_gets_every_byte_across_a_bad_bus() {
    for seed in 0..20 {
        let disk = RamDisk::new(pattern(64 * BLOCK), BlockSize::B512);
        let storage = Storage::new(disk.clone(), Serial::from_name("disk"));
        let odds = Odds { nak: 100, stall: 5, error: 100, ..Odds::default() };
        let device = Faulty::seeded(storage, seed, odds);
        let injected = device.injected();
        let mut host = DirectHost::new(Speed::Full, device);
        host.piece = 2048;
        let mut driver = Stubborn::new(host);
        let mut expected = pattern(64 * BLOCK);
        for round in 0..30u8 {
            let lba = usize::from(round) * 2;
            let data = vec![round ^ seed as u8; 4 * BLOCK];
            driver.scsi(&ten(0x2a, lba as u32, 4), Data::Out(&data));
            expected[lba * BLOCK..][..data.len()].copy_from_slice(&data);
            let read = driver.scsi(&ten(0x28, 0, 64), Data::In(64 * BLOCK));
            assert!(read == expected, "seed {seed}, round {round}");
        }
        assert!(disk.contents() == expected, "seed {seed}");
        assert!(injected.count() > 100, "seed {seed}: only {} faults", injected.count());
    }
}

/// The object in `value` that has this key.
fn holder<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    if value.get(key).is_some() {
        return Some(value);
    }
    match value {
        Value::Object(members) => members.values_mut().find_map(|one| holder(one, key)),
        Value::Array(members) => members.iter_mut().find_map(|one| holder(one, key)),
        _ => None,
    }
}

/// A change to a snapshot.
type Change<'a> = &'a dyn Fn(&mut Value);

#[test]
fn a_saved_queue_that_cannot_be_is_refused() {
    let disk = RamDisk::zeroed(64);
    let storage = || Storage::new(disk.clone(), Serial::from_name("disk"));
    let mut host = DirectHost::new(Speed::High, storage());
    let enumerated = enumerate(&mut host, 0, 5).unwrap();
    let mut driver = Uas::bind(&mut host, &enumerated).unwrap().unwrap();
    driver.start(&mut host).unwrap();
    driver.queue(&mut host, &ten(0x28, 0, 4)).unwrap();
    driver.queue(&mut host, &ten(0x28, 0, 4)).unwrap();
    let saved = save(Time::ZERO, &[("port", &host.port)]).unwrap();
    let saved: Value = serde_json::from_slice(&saved).unwrap();

    let restored = |change: Change<'_>| {
        let mut changed = saved.clone();
        change(&mut changed);
        let mut other = DirectHost::new(Speed::High, storage());
        let bytes = serde_json::to_vec(&changed).unwrap();
        restore(&bytes, Time::ZERO, &mut [("port", &mut other.port)])
    };
    restored(&|_| {}).unwrap();

    let run = |offset: u64, left: u64| json!({ "Medium": { "offset": offset, "left": left } });
    let task = json!({ "tag": 7, "lun": 0, "cdb": vec![0; 16] });
    let changes: [(&str, Change<'_>); 9] = [
        ("a queue that is too long", &|all| {
            holder(all, "waiting").unwrap()["waiting"] = json!(vec![task.clone(); 65]);
        }),
        ("more answers than there can be", &|all| {
            holder(all, "answers").unwrap()["answers"] =
                json!(vec![json!({ "ReadReady": 1 }); 300]);
        }),
        ("data past the end", &|all| {
            let data = json!({ "In": { "tag": 1, "source": run(63 * 512, 1024) } });
            holder(all, "answers").unwrap()["data"] = data;
        }),
        ("data that wraps around", &|all| {
            let data = json!({ "In": { "tag": 1, "source": run(u64::MAX - 3, 8) } });
            holder(all, "answers").unwrap()["data"] = data;
        }),
        ("a command that waits for nothing", &|all| {
            let uas = holder(all, "answers").unwrap();
            (uas["data"], uas["answers"]) = (Value::Null, json!([]));
        }),
        ("a failed write without data", &|all| {
            let sense = json!({ "key": 3, "code": 12, "qualifier": 0 });
            let data = json!({ "Drop": { "tag": 1, "left": 0, "sense": sense } });
            holder(all, "answers").unwrap()["data"] = data;
        }),
        ("two transports", &|all| {
            holder(all, "uas").unwrap()["stage"] = json!("Command");
        }),
        ("none", &|all| {
            holder(all, "uas").unwrap().as_object_mut().unwrap().remove("uas");
        }),
        ("too many bytes kept back", &|all| {
            holder(all, "stopped").unwrap()["behind"] = json!("00".repeat((1 << 20) + 1));
        }),
    ];
    for (name, change) in changes {
        assert!(restored(change).is_err(), "{name}");
    }
}
