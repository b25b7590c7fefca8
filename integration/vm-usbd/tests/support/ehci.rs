//! A driver for EHCI with a bulk-only disk, as small as can be: one queue head, one qTD at a time. It runs
//! under any VMM: the tests' own, and the reference client of the protocol.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::program::PATIENCE;
use super::{BAR0, CONFIG, Client};

pub const RAM: u64 = 0x10_0000;
const QUEUE_HEAD: u32 = 0x1000;
const QTD: u32 = 0x2000;
const DATA: u32 = 0x3000;

const USBCMD: u64 = 0x20;
const USBSTS: u64 = 0x24;
const ASYNCLISTADDR: u64 = 0x38;
const CONFIGFLAG: u64 = 0x60;
const PORTSC: u64 = 0x64;

const OUT: u32 = 0;
const IN: u32 = 1;
const SETUP: u32 = 2;

pub fn memory() -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, RAM).unwrap();
    fd
}

/// What a driver needs of its VMM.
pub trait Vmm {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]);
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]);
    /// Makes memory known to the server, shared if there is a file.
    fn share(&mut self, address: u64, size: u64, fd: Option<BorrowedFd<'_>>);
    /// The guest has written to its memory.
    fn poked(&mut self, _address: u32, _bytes: &[u8]) {}
}

impl Vmm for Client {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        data.copy_from_slice(&self.read(region, offset, data.len() as u32));
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.write(region, offset, data);
    }

    fn share(&mut self, address: u64, size: u64, fd: Option<BorrowedFd<'_>>) {
        assert_eq!(self.map(address, size, fd), 0);
    }

    fn poked(&mut self, address: u32, bytes: &[u8]) {
        self.recording.iter_mut().for_each(|recording| recording.poked(address, bytes));
    }
}

impl Vmm for vfio_user::Client {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        vfio_user::Client::region_read(self, region, offset, data).unwrap();
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        vfio_user::Client::region_write(self, region, offset, data).unwrap();
    }

    fn share(&mut self, address: u64, size: u64, fd: Option<BorrowedFd<'_>>) {
        self.dma_map(0, address, size, fd.expect("it shares what it has").as_raw_fd()).unwrap();
    }
}

pub struct Ehci<V = Client> {
    vmm: V,
    memory: Option<File>,
    address: u32,
    toggles: [u32; 3],
}

impl Ehci {
    /// Connects as a VMM that shares its memory, or one that does not.
    pub fn connect(socket: &Path, memory: Option<&OwnedFd>) -> Self {
        let mut client = Client::connect(socket);
        client.negotiate();
        Self::under(client, memory)
    }

    /// Connects anew, to a server that was restored: the guest's memory and its driver are as they were,
    /// and the function is not touched.
    pub fn reconnect(&mut self, socket: &Path) {
        self.vmm = Client::connect(socket);
        self.vmm.negotiate();
        let memory = self.memory.as_ref().unwrap().as_fd();
        assert_eq!(self.vmm.map(0, RAM, Some(memory)), 0);
    }
}

impl<V: Vmm> Ehci<V> {
    /// Runs under `vmm`, which shares the guest's memory, or does not.
    pub fn under(mut vmm: V, memory: Option<&OwnedFd>) -> Self {
        vmm.share(0, RAM, memory.map(AsFd::as_fd));
        vmm.region_write(CONFIG, 4, &[6, 0]);
        let memory = memory.map(|memory| File::from(memory.try_clone().unwrap()));
        Self { vmm, memory, address: 0, toggles: [0; 3] }
    }

    /// What it runs under.
    pub fn vmm(&mut self) -> &mut V {
        &mut self.vmm
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut value = [0; 4];
        self.vmm.region_read(BAR0, offset, &mut value);
        u32::from_le_bytes(value)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.vmm.region_write(BAR0, offset, &value.to_le_bytes());
    }

    pub fn status(&mut self) -> u32 {
        self.read(USBSTS)
    }

    /// PORTSC of the first port.
    pub fn port(&mut self) -> u32 {
        self.read(PORTSC)
    }

    /// Has the ports powered and owned by this controller.
    pub fn take_ports(&mut self) {
        self.write(CONFIGFLAG, 1);
        self.write(PORTSC, 0x1000);
    }

    /// Waits until the first port says that a device came (`true`) or went, and clears the change.
    pub fn wait_for_change(&mut self, connected: bool) {
        self.wait(|ehci| ehci.port() & 3 == 2 | u32::from(connected));
        self.write(PORTSC, 0x1002);
        assert_eq!(self.port() & 3, u32::from(connected), "the change is acknowledged");
    }

    /// Resets the controller and lets it look at a queue head at `address`.
    pub fn run_schedule_at(&mut self, address: u32) {
        self.write(USBCMD, 2);
        self.wait(|ehci| ehci.read(USBCMD) & 2 == 0);
        self.write(ASYNCLISTADDR, address);
        self.write(USBCMD, 0x21);
        self.wait(|ehci| ehci.status() & 0x10 != 0 || ehci.memory.is_some());
    }

    fn wait(&mut self, done: impl Fn(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "the controller does not answer");
        }
    }

    fn poke(&mut self, address: u32, dwords: &[u32]) {
        let bytes: Vec<u8> = dwords.iter().flat_map(|dword| dword.to_le_bytes()).collect();
        self.poke_bytes(address, &bytes);
    }

    fn poke_bytes(&mut self, address: u32, bytes: &[u8]) {
        self.memory.as_ref().unwrap().write_all_at(bytes, address.into()).unwrap();
        self.vmm.poked(address, bytes);
    }

    fn peek(&self, address: u32) -> u32 {
        let mut bytes = [0; 4];
        self.memory.as_ref().unwrap().read_exact_at(&mut bytes, address.into()).unwrap();
        u32::from_le_bytes(bytes)
    }

    /// Lets the controller look at a queue head with one qTD.
    fn start(&mut self, endpoint: u32, packet: u32, token: u32) {
        self.poke(QTD, &[1, 1, token, DATA, 0, 0, 0, 0]);
        let characteristics =
            packet << 16 | 1 << 15 | 1 << 14 | 2 << 12 | endpoint << 8 | self.address;
        let head = [QUEUE_HEAD | 2, characteristics, 1 << 30, 0, QTD, 1, 0, 0, 0, 0, 0, 0];
        self.poke(QUEUE_HEAD, &head);
        self.write(ASYNCLISTADDR, QUEUE_HEAD);
        self.write(USBCMD, 0x21);
    }

    /// One transfer of up to a page; returns how many bytes were not moved.
    fn transfer(&mut self, endpoint: u32, pid: u32, toggle: u32, len: usize) -> u32 {
        let control = endpoint == 0;
        let packet = if control { 64 } else { 512 };
        let token = toggle << 31 | (len as u32) << 16 | 3 << 10 | pid << 8 | 0x80;
        self.start(endpoint, packet, token);
        // Memory alone would not show that the server has gone.
        self.wait(|ehci| {
            ehci.status();
            ehci.peek(QTD + 8) & 0x80 == 0
        });
        self.write(USBCMD, 0x01);
        self.wait(|ehci| ehci.status() & 0x8000 == 0);
        let token = self.peek(QTD + 8);
        assert_eq!(token & 0x78, 0, "an error: {token:#x}");
        token >> 16 & 0x7fff
    }

    /// Asks the disk for a status that it does not have, and goes on without waiting for it.
    pub fn leave_a_transfer_waiting(&mut self) {
        let token = self.toggles[1] << 31 | 13 << 16 | 3 << 10 | IN << 8 | 0x80;
        self.start(1, 512, token);
        self.wait(|ehci| ehci.status() & 0x8000 != 0);
    }

    fn request(&mut self, setup: [u8; 8]) {
        self.poke_bytes(DATA, &setup);
        assert_eq!(self.transfer(0, SETUP, 0, 8), 0);
        assert_eq!(self.transfer(0, IN, 1, 0), 0);
    }

    /// Resets the first port and configures the disk in it.
    pub fn enumerate_disk(&mut self) {
        self.write(USBCMD, 0x01);
        self.take_ports();
        self.address = 0;
        self.toggles = [0; 3];
        self.wait(|ehci| ehci.port() & 1 != 0);
        self.write(PORTSC, 0x1100);
        std::thread::sleep(Duration::from_millis(50));
        self.write(PORTSC, 0x1000);
        self.wait(|ehci| ehci.read(PORTSC) & 0x104 == 0x004);
        self.request([0, 5, 1, 0, 0, 0, 0, 0]);
        self.address = 1;
        std::thread::sleep(Duration::from_millis(5));
        self.request([0, 9, 1, 0, 0, 0, 0, 0]);
        // The first command after a reset is answered with a unit attention.
        self.command([0; 16], 6, None);
    }

    fn bulk(&mut self, endpoint: u32, pid: u32, len: usize) -> u32 {
        let toggle = self.toggles[endpoint as usize];
        let rest = self.transfer(endpoint, pid, toggle, len);
        let packets = (len as u32 - rest).div_ceil(512).max(1);
        self.toggles[endpoint as usize] ^= packets & 1;
        rest
    }

    /// A command of the bulk-only transport; returns its status.
    fn command(&mut self, block: [u8; 16], len: u8, data: Option<&[u8]>) -> u8 {
        self.begin_command(block, len, data);
        self.end_command(data)
    }

    /// Sends a command's wrapper.
    fn begin_command(&mut self, block: [u8; 16], len: u8, data: Option<&[u8]>) {
        let mut wrapper = b"USBC\x01\0\0\0".to_vec();
        wrapper.extend((data.map_or(0, <[u8]>::len) as u32).to_le_bytes());
        wrapper.extend([0, 0, len]);
        wrapper.extend(block);
        self.poke_bytes(DATA, &wrapper);
        assert_eq!(self.bulk(2, OUT, 31), 0);
    }

    /// Sends a command's data and fetches its status.
    fn end_command(&mut self, data: Option<&[u8]>) -> u8 {
        if let Some(data) = data {
            self.poke_bytes(DATA, data);
            assert_eq!(self.bulk(2, OUT, data.len()), 0);
        }
        assert_eq!(self.bulk(1, IN, 13), 0);
        let mut status = [0; 13];
        self.memory.as_ref().unwrap().read_exact_at(&mut status, DATA.into()).unwrap();
        assert_eq!(&status[..4], b"USBS");
        status[12]
    }

    /// Writes sectors from `number` on.
    pub fn write_sector(&mut self, number: u8, data: &[u8]) {
        assert_eq!(self.command(write(number, data.len(), false), 10, Some(data)), 0);
    }

    /// The same with FUA: they are durable then.
    pub fn write_durably(&mut self, number: u8, data: &[u8]) {
        assert_eq!(self.command(write(number, data.len(), true), 10, Some(data)), 0);
    }

    /// SYNCHRONIZE CACHE.
    pub fn synchronize(&mut self) {
        let mut block = [0; 16];
        block[0] = 0x35;
        assert_eq!(self.command(block, 10, None), 0);
    }

    /// Begins to write sectors, and stops before their data is sent.
    pub fn begin_write(&mut self, number: u8, data: &[u8]) {
        self.begin_command(write(number, data.len(), false), 10, Some(data));
    }

    /// Ends what [`begin_write`](Self::begin_write) began.
    pub fn end_write(&mut self, data: &[u8]) {
        assert_eq!(self.end_command(Some(data)), 0);
    }
}

/// WRITE (10), with FUA if it is to be durable.
fn write(number: u8, len: usize, durable: bool) -> [u8; 16] {
    let mut block = [0; 16];
    block[0] = 0x2a;
    block[1] = u8::from(durable) << 3;
    block[5] = number;
    block[8] = (len / 512) as u8;
    block
}
