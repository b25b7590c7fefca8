//! The echo: what comes back is what was sent.

use vm_usb::devices::loopback::{Loopback, Pattern};
use vm_usb::usb::{Speed, UsbDevice, request};

use crate::driver::dice::Dice;
use crate::driver::enumerate::{Enumerated, device_request};
use crate::driver::host::{HostDriver, Pipe, TransferError};
use crate::job::{Job, tell};

/// The configuration in which it echoes.
const ECHO: u16 = 2;

struct Echo {
    dice: Dice,
    /// IN and OUT.
    pipes: Option<[Pipe; 2]>,
}

impl Job for Echo {
    fn device(&mut self, _speed: Speed) -> Box<dyn UsbDevice> {
        Box::new(Loopback::new(Pattern::Zeros))
    }

    fn bind(&mut self, host: &mut dyn HostDriver, found: &Enumerated) -> Result<(), TransferError> {
        device_request(host, &found.device, request::SET_CONFIGURATION, ECHO)?;
        let pipes = [true, false].map(|input| {
            let mut endpoints = found.interfaces[0].endpoints.iter();
            let bulk = endpoints.find(|e| e.attributes == 2 && e.address.is_in() == input);
            found.pipe(bulk.expect("it has both"))
        });
        pipes.iter().for_each(|pipe| host.reset_toggle(pipe));
        self.pipes = Some(pipes);
        Ok(())
    }

    fn work(&mut self, host: &mut dyn HostDriver) -> Result<(), TransferError> {
        let [input, output] = self.pipes.expect("it is bound");
        let len = 1 + self.dice.below(16_000) as usize;
        let data = self.dice.bytes(len);
        host.send(&output, &data)?;
        let back = host.receive(&input, 32 << 10)?;
        assert!(back == data, "{} bytes came back as {}", data.len(), back.len());
        Ok(())
    }

    fn check(&mut self) {}
}

#[test]
fn an_echo_is_pulled_out_while_it_answers() {
    tell(|seed| Echo { dice: Dice::new(seed), pipes: None });
}
