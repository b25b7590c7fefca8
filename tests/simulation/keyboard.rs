//! A keyboard: every key goes down and comes up once, in order, however long it takes the guest to ask.

use std::collections::VecDeque;

use vm_usb::devices::hid::Key;

use crate::driver::enumerate::{Enumerated, clear_halt};
use crate::driver::hid::HidDriver;
use crate::driver::host::{Background, TransferError};
use crate::host::Guest;
use crate::job::{Job, Site, Trouble, until};

/// Reports that may wait at the keyboard.
const MOST_WAITING: usize = 6;
/// How long a key may take, in milliseconds.
const PATIENCE_MILLIS: u64 = 2_000;

pub struct Typist<G: Guest> {
    driver: Option<HidDriver>,
    /// The question that is always under way, and how much had gone wrong before it.
    flight: Option<(<G as Background>::Flight, u64)>,
    /// Whether the last question ended with a halt that was cleared.
    halted: bool,
    /// The key that is down.
    down: Option<Key>,
    /// Reports that are to come.
    expected: VecDeque<[u8; 8]>,
}

impl<G: Guest> Typist<G> {
    pub fn new() -> Self {
        Self { driver: None, flight: None, halted: false, down: None, expected: VecDeque::new() }
    }

    fn ask(&mut self, host: &mut G, site: &Site) {
        let driver = self.driver.as_ref().expect("it is bound");
        let causes = site.causes();
        self.flight = Some((host.begin_receive(&driver.input), causes));
    }

    /// A key goes down or comes up, if the keyboard is there and knows its host.
    fn strike(&mut self, site: &Site) {
        let handle = site.shared.lock().keyboard(site.place).expect("it is a keyboard");
        if self.expected.len() >= MOST_WAITING {
            return;
        }
        let report = match self.down.take() {
            Some(key) => {
                handle.release(key);
                [0; 8]
            }
            None => {
                let key = Key::from_usage(4 + site.below(26) as u8).expect("a letter");
                if handle.press(key).is_err() {
                    return;
                }
                self.down = Some(key);
                [0, 0, key.usage(), 0, 0, 0, 0, 0]
            }
        };
        self.expected.push_back(report);
    }

    fn answered(&mut self, host: &mut G) -> bool {
        self.flight.as_ref().is_some_and(|(flight, _)| host.has_ended(flight))
    }
}

impl<G: Guest> Job<G> for Typist<G> {
    fn bind(&mut self, host: &mut G, site: &Site, found: &Enumerated) -> Result<(), Trouble> {
        let driver = HidDriver::bind(found).expect("it is a keyboard");
        driver.set_idle(host, 0)?;
        self.driver = Some(driver);
        self.ask(host, site);
        Ok(())
    }

    fn work(&mut self, host: &mut G, site: &Site) -> Result<(), Trouble> {
        self.strike(site);
        if site.below(3) == 0 {
            return Ok(());
        }
        // The driver waits for all that was typed.
        while !self.expected.is_empty() {
            let causes = site.causes();
            let told = until(host, PATIENCE_MILLIS, |host| self.answered(host));
            // A device that was pulled out may have taken its last words with it.
            if !told && site.causes() == causes {
                return Err(Trouble::Transfer(TransferError::TimedOut));
            }
            self.look(host, site)?;
        }
        Ok(())
    }

    fn look(&mut self, host: &mut G, site: &Site) -> Result<(), Trouble> {
        if !self.answered(host) {
            return Ok(());
        }
        let (flight, causes) = self.flight.take().expect("it is answered");
        let answer = host.finish(flight);
        let halted = std::mem::replace(&mut self.halted, answer == Err(TransferError::Stall));
        match answer {
            // A packet without a report.
            Ok(report) if report.is_empty() => {}
            Ok(report) => {
                let expected = self.expected.pop_front();
                assert_eq!(
                    Some(&report[..]),
                    expected.as_ref().map(|all| &all[..]),
                    "each key once"
                );
            }
            // Clearing the halt was no help: it hangs.
            Err(TransferError::Stall) if halted => return Err(Trouble::Excused),
            Err(TransferError::Stall) => {
                site.excuse(causes, &TransferError::Stall.into());
                let driver = self.driver.as_ref().expect("it is bound");
                let causes = site.causes();
                clear_halt(host, &driver.input).map_err(|error| {
                    site.excuse(causes, &error.into());
                    Trouble::Excused
                })?;
            }
            Err(error) => {
                site.excuse(causes, &error.into());
                return Err(Trouble::Excused);
            }
        }
        self.ask(host, site);
        Ok(())
    }

    fn withdraw(&mut self, host: &mut G) {
        if let Some((flight, _)) = self.flight.take() {
            // It may have been answered at the last moment.
            if let Ok(report) = host.finish(flight)
                && !report.is_empty()
            {
                let expected = self.expected.pop_front();
                assert_eq!(
                    Some(&report[..]),
                    expected.as_ref().map(|all| &all[..]),
                    "each key once"
                );
            }
        }
    }

    fn wake(&mut self, host: &mut G, site: &Site) {
        self.ask(host, site);
    }

    fn crashed(&mut self) {
        self.flight = None;
    }

    fn settle(&mut self, _site: &Site) {
        // A reset keyboard has no key down, and nothing to report.
        self.driver = None;
        self.halted = false;
        self.down = None;
        self.expected.clear();
    }
}
