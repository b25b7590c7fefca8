//! An echo: what comes back is what was sent.

use vm_usb::usb::request;

use crate::driver::enumerate::{Enumerated, device_request};
use crate::driver::host::{Background, Pipe};
use crate::host::Guest;
use crate::job::{Job, Site, Trouble, until};

/// The configuration in which it echoes.
const CONFIGURATION: u16 = 2;
const MOST_BYTES: u64 = 3_000;
/// Most answers that one echo comes in.
const MOST_ANSWERS: usize = 200;
/// How long an answer takes at most, in milliseconds.
const PATIENCE_MILLIS: u64 = 5_000;

pub struct Echo<G: Guest> {
    /// IN and OUT.
    pipes: Option<[Pipe; 2]>,
    flight: Option<<G as Background>::Flight>,
}

impl<G: Guest> Echo<G> {
    pub fn new() -> Self {
        Self { pipes: None, flight: None }
    }

    /// Asks for the echo before there is one.
    fn ask_first(&mut self, host: &mut G, site: &Site) -> Result<(), Trouble> {
        let [input, output] = self.pipes.expect("it is bound");
        let len = 1 + site.below(u64::from(input.max_packet) - 1) as usize;
        let data = site.bytes(len);
        self.flight = Some(host.begin_receive(&input));
        host.send(&output, &data)?;
        let mut back = Vec::new();
        for _ in 0..MOST_ANSWERS {
            let flight = self.flight.take().unwrap_or_else(|| host.begin_receive(&input));
            self.flight = Some(flight);
            until(host, PATIENCE_MILLIS, |host| {
                self.flight.as_ref().is_some_and(|flight| host.has_ended(flight))
            });
            back.extend(host.finish(self.flight.take().expect("it is under way"))?);
            if back.len() >= len {
                break;
            }
        }
        assert!(back == data, "{len} bytes came back as {}", back.len());
        Ok(())
    }
}

impl<G: Guest> Job<G> for Echo<G> {
    fn bind(&mut self, host: &mut G, _site: &Site, found: &Enumerated) -> Result<(), Trouble> {
        device_request(host, &found.device, request::SET_CONFIGURATION, CONFIGURATION)?;
        let pipes = [true, false].map(|input| {
            let mut endpoints = found.interfaces[0].endpoints.iter();
            let bulk = endpoints.find(|e| e.attributes == 2 && e.address.is_in() == input);
            found.pipe(bulk.expect("it has both"))
        });
        pipes.iter().for_each(|pipe| host.reset_toggle(pipe));
        self.pipes = Some(pipes);
        Ok(())
    }

    fn work(&mut self, host: &mut G, site: &Site) -> Result<(), Trouble> {
        if site.below(2) == 0 {
            return self.ask_first(host, site);
        }
        let [input, output] = self.pipes.expect("it is bound");
        let len = 1 + site.below(MOST_BYTES) as usize;
        let data = site.bytes(len);
        host.send(&output, &data)?;
        let mut back = Vec::new();
        for _ in 0..MOST_ANSWERS {
            back.extend(host.receive(&input, len - back.len())?);
            if back.len() == len {
                break;
            }
        }
        assert!(back == data, "{len} bytes came back as {}", back.len());
        Ok(())
    }

    fn withdraw(&mut self, host: &mut G) {
        if let Some(flight) = self.flight.take() {
            let _ = host.finish(flight);
        }
    }

    fn crashed(&mut self) {
        self.flight = None;
    }

    fn settle(&mut self, _site: &Site) {
        self.pipes = None;
    }
}
