//! What a guest does that knows nothing, on either controller.

use vm_usb::devices::hid::KeyboardHandle;
use vm_usb::topology::Port;

use crate::devices::stroke;
use crate::guest::{Guest, Model};

/// One thing it does.
#[derive(Debug)]
pub enum Step {
    Write(u64, u32),
    Odd(u64, Vec<u8>),
    Read(u64, usize),
    Memory(u32, u32),
    Pass(u64),
    BusMaster(bool),
    Type(u8, bool),
    Replug(usize),
    Reset,
}

impl Step {
    pub fn take<C: Model>(
        self,
        guest: &mut Guest<C>,
        ports: &mut [Port; 3],
        keys: &KeyboardHandle,
    ) {
        match self {
            Self::Write(offset, value) => guest.write32(offset, value),
            Self::Odd(offset, data) => guest.write(offset, &data),
            Self::Read(offset, len) => guest.read(offset, &mut vec![0; len]),
            Self::Memory(at, value) => guest.store(at, value),
            Self::Pass(nanos) => guest.pass(nanos, 20),
            Self::BusMaster(on) => {
                guest.bus_master = on;
                guest.run();
            }
            Self::Type(usage, down) => {
                stroke(keys, usage, down);
                guest.run();
            }
            Self::Replug(n) => {
                if let Some(device) = ports[n].detach() {
                    guest.run();
                    ports[n].attach(device).map_err(|refused| refused.reason).unwrap();
                }
                guest.run();
            }
            Self::Reset => guest.reset(),
        }
    }
}
