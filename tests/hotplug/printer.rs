//! A printer: on its paper is what was sent, up to where the plug was pulled.

use std::sync::{Arc, Mutex};

use vm_usb::devices::printer::{PrintSink, Printer, Ready};
use vm_usb::usb::{Speed, UsbDevice};

use crate::driver::dice::Dice;
use crate::driver::enumerate::Enumerated;
use crate::driver::host::{HostDriver, Pipe, TransferError};
use crate::job::{Job, tell};

/// A printer with little memory: every now and then it has no room, and says at once that it has some
/// again, before its host has even heard that it had none.
#[derive(Clone, Default)]
struct Paper {
    printed: Arc<Mutex<Vec<u8>>>,
    ready: Option<Ready>,
    asked: u32,
}

impl PrintSink for Paper {
    fn attached(&mut self, ready: Ready) {
        self.ready = Some(ready);
    }

    fn room(&mut self) -> usize {
        self.asked += 1;
        if !self.asked.is_multiple_of(3) {
            return 1024;
        }
        self.ready.as_ref().expect("it was attached").room();
        0
    }

    fn print(&mut self, bytes: &[u8]) {
        self.printed.lock().unwrap().extend(bytes);
    }
}

struct Prints {
    dice: Dice,
    output: Option<Pipe>,
    paper: Paper,
    /// What was sent, and how much of it was acknowledged for sure.
    sent: Vec<u8>,
    sure: usize,
}

impl Job for Prints {
    fn device(&mut self, _speed: Speed) -> Box<dyn UsbDevice> {
        self.paper = Paper::default();
        self.sent.clear();
        self.sure = 0;
        Box::new(Printer::new(self.paper.clone()))
    }

    fn bind(&mut self, _: &mut dyn HostDriver, found: &Enumerated) -> Result<(), TransferError> {
        let interface = found.interface(7).expect("it is a printer");
        let output = interface.endpoints.iter().find(|e| !e.address.is_in());
        self.output = output.map(|output| Pipe { interval: 0, ..found.pipe(output) });
        Ok(())
    }

    fn work(&mut self, host: &mut dyn HostDriver) -> Result<(), TransferError> {
        let len = 1 + self.dice.below(20_000) as usize;
        let data = self.dice.bytes(len);
        self.sent.extend(&data);
        host.send(&self.output.expect("it is bound"), &data)?;
        self.sure = self.sent.len();
        Ok(())
    }

    fn check(&mut self) {
        let printed = self.paper.printed.lock().unwrap();
        assert!(self.sent.starts_with(&printed), "something was printed twice or left out");
        assert!(printed.len() >= self.sure, "something acknowledged was not printed");
    }
}

#[test]
fn a_printer_is_pulled_out_while_it_prints() {
    tell(|seed| Prints {
        dice: Dice::new(seed),
        output: None,
        paper: Paper::default(),
        sent: Vec::new(),
        sure: 0,
    });
}
